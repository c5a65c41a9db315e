"""The native scheduler `sglang` against recordings of SGLang 0.5.23's own."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.cli import main
from llmsim.config.engine.options import (
    HICACHE_PREFETCH_POLICIES,
    HICACHE_WRITE_POLICIES,
    SGLANG_POLICIES,
)
from llmsim.config.errors import InputError
from llmsim.scheduling.conformance.sglang.compare import first_difference
from llmsim.scheduling.conformance.sglang.ours import our_steps
from llmsim.scheduling.conformance.sglang.random_cases import random_case
from llmsim.scheduling.conformance.sglang.recorded import load_recording, recorded_verdicts

RECORDINGS = Path(__file__).parent / "recordings" / "sglang"


def test_every_recorded_step_is_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "sglang", "--recorded", str(RECORDINGS), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["version"] == "0.5.23" and shown["first_difference"] is None
    assert shown["cases"] == shown["identical"] == len(list(RECORDINGS.iterdir())) >= 8
    assert shown["steps"] > 1000


def test_the_recordings_cover_what_the_scheduler_decides() -> None:
    cases = [load_recording(path) for path in sorted(RECORDINGS.iterdir())]
    for option, values in {
        "page_size": {1, 16, 64},
        "schedule_policy": set(SGLANG_POLICIES),
        "enable_priority_scheduling": {False, True},
        "schedule_low_priority_values_first": {False, True},
        "retraction_policy": {"length", "priority"},
        "enable_mixed_chunk": {False, True},
        "disable_overlap_schedule": {False, True},
        "disable_radix_cache": {False, True},
        "ends_with_stop_token": {False, True},
        "speculative_algorithm": {None, "EAGLE", "STANDALONE"},
        "speculative_eagle_topk": {1, 4},
        "pp_size": {1, 2, 3, 4},
        "enable_hierarchical_cache": {False, True},
        "disaggregation_mode": {None, "prefill", "decode", "pair"},
        "disaggregation_decode_enable_radix_cache": {False, True},
        "dp_size": {1, 2, 3},
        "scheduler_recv_interval": {1, 2, 5, 30},
    }.items():
        assert {case["config"][option] for case in cases} == values
    hosted = [case["config"] for case in cases if case["config"]["enable_hierarchical_cache"]]
    assert {config["hicache_write_policy"] for config in hosted} == set(HICACHE_WRITE_POLICIES)
    assert {config["disable_overlap_schedule"] for config in hosted} == {False, True}
    stored = [config for config in hosted if config["hicache_storage_backend"] is not None]
    for option, values in {
        "hicache_storage_prefetch_policy": set(HICACHE_PREFETCH_POLICIES),
        "hicache_write_policy": set(HICACHE_WRITE_POLICIES),
        "page_size": {1, 16, 64},
        "disable_overlap_schedule": {False, True},
    }.items():
        assert {config[option] for config in stored} == values
    assert {config["storage_pages"] > 0 for config in stored} == {False, True}
    assert {config["speculative_algorithm"] for config in stored} == {None, "EAGLE", "STANDALONE"}
    assert max(config["pp_size"] for config in stored) > 1
    assert max(config["dp_size"] for config in stored) > 1
    for mode in ("prefill", "decode", "pair"):
        playing = [case for case in cases if case["config"]["disaggregation_mode"] == mode]
        assert {case["config"]["disable_overlap_schedule"] for case in playing} == {False, True}
    retracting = [any(step["preempted"] for step in case["steps"]) for case in playing]
    assert sum(retracting) >= 2
    ranks = [case["config"] for case in cases if case["config"]["dp_size"] > 1]
    assert {config["disable_overlap_schedule"] for config in ranks} == {False, True}
    windowed = [case["config"] for case in cases if case["config"]["sliding_window"] > 0]
    for option, values in {
        "disable_radix_cache": {False, True},
        "disable_overlap_schedule": {False, True},
        "enable_mixed_chunk": {False, True},
        "page_size": {1, 16, 64},
        "speculative_algorithm": {None, "EAGLE"},
        "dp_size": {1, 3},
    }.items():
        assert values <= {config[option] for config in windowed}
    keeping = [case for case in cases if case["config"]["mamba_chunk_size"] > 0]
    for option, values in {
        "mamba_radix_cache_strategy": {"no_buffer", "extra_buffer", "extra_buffer_lazy"},
        "disable_overlap_schedule": {False, True},
        "enable_mixed_chunk": {False, True},
        "page_size": {1, 16, 64},
        "speculative_algorithm": {None, "EAGLE"},
        "pp_size": {1, 2},
        "dp_size": {1, 3},
    }.items():
        assert values <= {case["config"][option] for case in keeping}
    for name, cases_of in (("windows", windowed), ("states", [one["config"] for one in keeping])):
        hosted = [config for config in cases_of if config["enable_hierarchical_cache"]]
        for option, values in {
            "hicache_write_policy": set(HICACHE_WRITE_POLICIES),
            "disable_overlap_schedule": {False, True},
            "page_size": {1, 16, 64},
        }.items():
            assert {config[option] for config in hosted} == values, name
        assert min(config["hicache_ratio"] for config in hosted) < 1
    lazy = [one["config"] for one in keeping]
    lazy = [one for one in lazy if one["mamba_radix_cache_strategy"] == "extra_buffer_lazy"]
    assert {one["speculative_algorithm"] is None for one in lazy} == {False, True}
    handing = [case for case in keeping if case["config"]["disaggregation_mode"] is not None]
    for option, values in {
        "disaggregation_mode": {"prefill", "decode", "pair"},
        "disaggregation_decode_enable_radix_cache": {False, True},
        "mamba_radix_cache_strategy": {"no_buffer", "extra_buffer"},
        "disable_overlap_schedule": {False, True},
    }.items():
        assert {case["config"][option] for case in handing} == values
    assert sum(any(step["preempted"] for step in case["steps"]) for case in handing) >= 2
    assert any(step["preempted"] for case in keeping for step in case["steps"])
    counted = [case["steps"] for case in keeping if "free_states" in case["steps"][0]]
    for name in ("free_states", "free_states_after"):
        assert any(len({step[name] for step in steps}) >= 4 for steps in counted)
    receiving = [case for case in cases if case["config"]["sliding_window"] > 0]
    receiving = [case for case in receiving if case["config"]["disaggregation_mode"] is not None]
    for option, values in {
        "disaggregation_mode": {"decode", "pair"},
        "disaggregation_decode_enable_radix_cache": {False, True},
        "page_size": {16, 64},
    }.items():
        assert {case["config"][option] for case in receiving} == values
    assert sum(any(step["preempted"] for step in case["steps"]) for case in receiving) >= 2
    retracting = [any(step["preempted"] for step in case["steps"]) for case in cases]
    assert sum(retracting) >= 2
    asked = [request for case in cases for request in case["requests"]]
    assert any("cancel_after" in request for request in asked)
    assert any("cancel_after_tokens" in request for request in asked)
    for option in ("pp_size", "scheduler_recv_interval"):
        ran = [case for case in cases if case["config"][option] > 1]
        assert any("cancel_after" in request for case in ran for request in case["requests"])
    drafting = [case for case in cases if case["config"]["speculative_algorithm"] is not None]
    assert any(step["preempted"] for case in drafting for step in case["steps"])
    assert {case["config"]["enable_mixed_chunk"] for case in drafting} == {False, True}
    by_priority = [case for case in cases if case["config"]["enable_priority_scheduling"]]
    assert sum(any(step["preempted"] for step in case["steps"]) for case in by_priority) >= 2


def test_the_recordings_cover_drafts_beside_roles_and_ranks() -> None:
    cases = [load_recording(path) for path in sorted(RECORDINGS.iterdir())]
    drafting = [one for one in cases if one["config"]["speculative_algorithm"] is not None]
    for name, values in (
        ("disaggregation_mode", {"prefill", "decode", "pair"}),
        ("dp_size", {2, 3}),
    ):
        beside = [one for one in drafting if one["config"][name] in values]
        configs = [one["config"] for one in beside]
        assert {config[name] for config in configs} == values
        assert {config["disable_overlap_schedule"] for config in configs} == {False, True}
        assert {config["speculative_eagle_topk"] for config in configs} == {1, 4}
        assert any(step["preempted"] for one in beside for step in one["steps"])


def test_the_recordings_cover_ranks_of_servers_with_a_role() -> None:
    cases = [load_recording(path) for path in sorted(RECORDINGS.iterdir())]
    configs = [one["config"] for one in cases if one["config"]["dp_size"] > 1]
    playing = [config for config in configs if config["disaggregation_mode"] is not None]
    assert {config["disaggregation_mode"] for config in playing} == {"prefill", "pair"}
    assert {config["dp_size"] for config in playing} == {2, 3}
    assert {config["disable_overlap_schedule"] for config in playing} == {False, True}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_total_tokens", 64),
        ("disable_overlap_schedule", None),
        ("schedule_policy", None),
        ("max_prefill_tokens", 1),
        ("enable_priority_scheduling", None),
        ("schedule_low_priority_values_first", None),
        ("disable_priority_preemption", None),
        ("priority_scheduling_preemption_threshold", None),
        ("pp_size", None),
        ("speculative_algorithm", None),
        ("speculative_num_draft_tokens", None),
        ("enable_hierarchical_cache", None),
        ("hicache_write_policy", None),
        ("hicache_ratio", None),
        ("hicache_copy_ps", None),
        ("hicache_storage_backend", None),
        ("hicache_storage_prefetch_policy", None),
        ("hicache_storage_prefetch_retry_poll_interval", None),
        ("hicache_storage_prefetch_retry_max_attempts", None),
        ("prefetch_threshold", None),
        ("storage_ps", None),
        ("storage_pages", None),
        ("storage_timeout_ps", None),
        ("transfer_ps", None),
        ("num_reserved_decode_tokens", None),
        ("disaggregation_decode_enable_radix_cache", None),
        ("dp_size", None),
    ],
)
def test_another_configuration_gives_other_steps(option: str, value: int | None) -> None:
    """The recordings tell apart what the scheduler was told."""
    others = {
        "schedule_policy": ("lof", "fcfs"),
        "priority_scheduling_preemption_threshold": (100, 0),
        "pp_size": (1, 2),
        "speculative_algorithm": ("STANDALONE", "EAGLE"),
        "speculative_num_draft_tokens": (20, 24),
        "hicache_write_policy": ("write_through", "write_back"),
        "hicache_ratio": (0.1, 1.0),
        "hicache_copy_ps": (0, 100_000_000),
        "hicache_storage_backend": ("file", None),
        "hicache_storage_prefetch_policy": ("best_effort", "wait_complete"),
        "hicache_storage_prefetch_retry_poll_interval": (0, 1),
        "hicache_storage_prefetch_retry_max_attempts": (0, 4),
        "prefetch_threshold": (1, 10_000),
        "storage_ps": (0, 10_000_000_000),
        "storage_pages": (0, 1),
        "storage_timeout_ps": (0, 10_000_000_000_000),
        "transfer_ps": (10_000_000_000_000, 0),
        "num_reserved_decode_tokens": (100, 0),
        "dp_size": (2, 3),
    }

    def differs(path: Path) -> bool:
        case = load_recording(path)
        config = case["config"]
        if value is None:
            first, second = others.get(option, (True, False))
            config[option] = second if config[option] == first else first
        else:
            config[option] += value if option == "max_total_tokens" else 0
            config[option] = value if option == "max_prefill_tokens" else config[option]
        return bool(first_difference(our_steps(case), case["steps"])[1])

    assert any(differs(path) for path in sorted(RECORDINGS.iterdir()))


def changed(tmp_path: Path, edit: Any) -> Path:
    path = next(iter(sorted(RECORDINGS.iterdir())))
    case = json.loads(gzip.decompress(path.read_bytes()))
    edit(case)
    other = tmp_path / "changed.json"
    other.write_text(json.dumps(case), encoding="utf-8")
    return other


@pytest.mark.parametrize(
    "field",
    [
        "running",
        "waiting",
        "free_blocks",
        "free_blocks_after",
        "free_states",
        "free_states_after",
    ],
)
def test_a_changed_step_is_found(
    tmp_path: Path, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, lambda case: case["steps"][4].update({field: 1 << 20}))
    assert main(["conformance", "sglang", "--recorded", str(path)]) == 1
    shown = capsys.readouterr().out
    assert f"step 4: {field} is" in shown and "0/1 cases identical" in shown


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda case: case.pop("config"), "missing required field"),
        (lambda case: case["config"].update(page_size=0), "page_size"),
        (lambda case: case["config"].update(schedule_policy="random"), "schedule_policy"),
        (lambda case: case["requests"].append(case["requests"][0]), "same id"),
        (lambda case: case["requests"][0].update(output_len=1 << 16), None),
    ],
)
def test_what_is_no_recording_is_one_sentence(tmp_path: Path, edit: Any, words: str | None) -> None:
    path = changed(tmp_path, edit)
    if words is None:
        assert next(v for v in recorded_verdicts(path) if "recording" in v)["difference"]
        return
    with pytest.raises(InputError, match=words):
        load_recording(path)


def test_random_cases_repeat_and_differ() -> None:
    assert random_case(3, 20) == random_case(3, 20) != random_case(4, 20)


def test_without_sglang_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "llmsim.scheduling.conformance.sglang.worker.installed_version", lambda: None
    )
    assert main(["conformance", "sglang"]) == 0
    assert "skipped: SGLang is not installed" in capsys.readouterr().err
