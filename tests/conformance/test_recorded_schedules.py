"""The native vLLM scheduler against recordings of the real one, and the comparison
against itself.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared

from llmsim.cli import main
from llmsim.config.errors import InputError
from llmsim.scheduling.conformance import cases
from llmsim.scheduling.conformance.cases import run_case
from llmsim.scheduling.conformance.recorded import find_recordings, load_recording, replay

CASES = [
    "plain",
    "kv_pressure",
    "prefix_caching",
    "max_num_seqs",
    "long_prefill_threshold",
    "async_scheduling",
    "async_prefix_pressure",
    "priority",
    "no_chunked_prefill",
    "watermark_no_reserve",
    "bench300",
    "spec_decode_lookahead",
    "async_spec_draft_model",
]


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_identical_to_the_recorded_one(name: str) -> None:
    verdict = replay(shared(f"vllm_oracle/{name}.json"))
    assert verdict.difference == ""
    assert verdict.steps > 300


RECORDINGS = Path(__file__).parent / "recordings"


@pytest.mark.parametrize("release", ["0.28.0", "0.33.0"])
def test_recordings_of_later_releases_are_identical(release: str) -> None:
    """Random cases of 40 requests that `engine_worker SEED 1 40 FOLDER` wrote with the release."""
    verdicts = [replay(path) for path in sorted(RECORDINGS.glob(f"vllm_{release}_*.json.gz"))]
    assert len(verdicts) == 10
    assert [verdict.difference for verdict in verdicts] == [""] * 10
    assert sum(verdict.steps for verdict in verdicts) > 2000


@pytest.mark.parametrize("release", ["0.28.0", "0.33.0"])
def test_recordings_of_later_releases_differ_from_the_rules_of_0_24(
    release: str, tmp_path: Path
) -> None:
    differing = 0
    for path in RECORDINGS.glob(f"vllm_{release}_*.json.gz"):
        case = load_recording(path)
        case["resolved"]["engine_profile"] = "vllm-0.24"
        differing += not replay(write(tmp_path / "old.json", case)).identical
    assert differing >= 4


def test_stages_of_0_24_sample_early_behind_a_preempted_verification() -> None:
    """150 requests, of which one is preempted while its drafts are verified and goes on at once."""
    verdict = replay(RECORDINGS / "stages" / "vllm_0.24.0_1010015.json.gz")
    assert verdict.difference == ""
    assert verdict.steps == 14438


BETWEEN = RECORDINGS / "releases"
BEFORE = {"0.25": "0.24", "0.26": "0.25", "0.27": "0.26", "0.29": "0.28", "0.30": "0.29"} | {
    "0.31": "0.30",
    "0.32": "0.31",
}
"""Releases whose schedule has a rule that the profile of the one before lacks."""


@pytest.mark.parametrize("release", BEFORE)
def test_each_release_has_a_rule_that_the_one_before_lacks(release: str, tmp_path: Path) -> None:
    """Random cases of 12 or 16 requests that were recorded with the release."""
    paths = sorted(BETWEEN.glob(f"vllm_{release}.0_*.json.gz"))
    assert paths
    for path in paths:
        case = load_recording(path)
        assert case["resolved"]["engine_profile"] == f"vllm-{release}"
        assert replay(path).difference == ""
        case["resolved"]["engine_profile"] = f"vllm-{BEFORE[release]}"
        assert not replay(write(tmp_path / "before.json", case)).identical


STATES = RECORDINGS / "states"


def test_cached_states_are_kept_as_releases_keep_them() -> None:
    """Random cases of 16 requests with 0.28, with prompts that end with blocks and states behind
    gaps; of two that share a state with 0.32.
    """
    assert [replay(path).difference for path in sorted(STATES.iterdir())] == [""] * 4


@pytest.mark.parametrize("rule", ["cuts_last_block", "frees_past_gaps"])
def test_a_later_rule_of_cached_states_gives_another_schedule(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cases.kv_tables

    def with_rule(*given: Any, **more: Any) -> Any:
        *before, rules, retention = given
        return made(*before, [*rules, rule], retention, **more)

    monkeypatch.setattr(cases, "kv_tables", with_rule)
    paths = list(STATES.glob("vllm_0.28.0_*"))
    assert sum(replay(path).difference != "" for path in paths) >= 2


def test_another_release_shares_states_a_step_sooner(tmp_path: Path) -> None:
    case = load_recording(STATES / "vllm_0.32.0_72017.json.gz")
    case["resolved"]["engine_profile"] = "vllm-0.33"
    assert not replay(write(tmp_path / "later.json", case)).identical


ENCODER = RECORDINGS / "encoder"


def test_images_and_adapters_go_as_releases_let_them() -> None:
    """Random cases of 14 and 18 requests with 0.24 and 0.32, and one of an image that a drafter
    alone reads with 0.24 and 0.28: tight budgets of an encoder, images that repeat, drafters and
    slots of adapters.
    """
    assert [replay(path).difference for path in sorted(ENCODER.iterdir())] == [""] * 12


@pytest.mark.parametrize(
    ("release", "rules"),
    [
        (
            "0.24.0",
            [
                "passed_over_first",
                "encodes_ahead",
                "holds_repeated",
                "counts_repeated",
                "keeps_first_whole",
                "frees_at_once",
                "passes_over_cut",
            ],
        ),
        ("0.28.0", ["encodes_ahead"]),
        ("0.32.0", ["counts_repeated", "keeps_first_whole", "frees_at_once", "passes_over_cut"]),
    ],
)
def test_another_rule_of_images_gives_another_schedule(
    release: str, rules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule that the release has is taken away, and each other one is added."""
    made = cases.set_rules
    for rule in rules:

        def changed(native: Any, names: Sequence[str], rule: str = rule) -> None:
            has = rule in names
            made(native, [name for name in names if name != rule] if has else [*names, rule])

        monkeypatch.setattr(cases, "set_rules", changed)
        replayed = [replay(path) for path in ENCODER.glob(f"vllm_{release}_*")]
        assert any(one.difference for one in replayed), rule


OPTIONS = RECORDINGS / "options"


def test_recordings_of_options_of_033_are_identical() -> None:
    """Random cases of 30 requests, with windows, chunks and states in the prefix cache, hits inside
    of blocks, heads of several modules, LoRA slots, images, and drafts by n-grams without a wait.
    """
    verdicts = [replay(path) for path in sorted(OPTIONS.iterdir())]
    assert [verdict.difference for verdict in verdicts] == [""] * 19
    assert sum(verdict.steps for verdict in verdicts) > 2000


@pytest.mark.parametrize(
    ("part", "option", "other"),
    [
        ("resolved", "prefix_cache_retention_interval", -1),
        ("resolved", "num_prefill_lookahead_tokens", 0),
        ("config", "max_loras", 0),
        ("config", "checkpoint_alignment", 0),
        ("config", "prefix_match_unit", 0),
        ("config", "encoder_tokens", 1 << 20),
        ("config", "encoder_cache_tokens", 1 << 20),
        ("config", "disable_chunked_mm_input", False),
    ],
)
def test_without_the_option_the_schedule_is_another(
    part: str, option: str, other: int, tmp_path: Path
) -> None:
    differing = 0
    for path in OPTIONS.iterdir():
        case = load_recording(path)
        if case[part].get(option, other) != other:
            case[part][option] = other
            differing += not replay(write(tmp_path / "other.json", case)).identical
    assert differing >= 1


def test_windows_as_long_as_chunks_give_another_schedule(tmp_path: Path) -> None:
    differing = chunked = 0
    for path in OPTIONS.iterdir():
        case = load_recording(path)
        windows = case["config"].get("kv_windows", [])
        if min(windows, default=0) >= -1:
            continue
        chunked += 1
        case["config"]["kv_windows"] = [abs(one) if one < -1 else one for one in windows]
        differing += not replay(write(tmp_path / "other.json", case)).identical
    assert chunked == 3
    assert differing >= 1


def own_recording() -> dict[str, Any]:
    """A small case in the recorded format, with steps made by our own scheduler: 40 blocks force
    preemptions.
    """
    requests = [
        {
            "id": f"r{i}",
            "arrival": 0.01 * i,
            "segments": [[1, 40], [10 + i, 30 + 13 * i]],
            "output_len": 40 + 7 * i,
        }
        for i in range(8)
    ]
    config = {
        "num_gpu_blocks": 40,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 96,
        "enable_prefix_caching": True,
    }
    resolved = {
        "max_num_scheduled_tokens": 96,
        "max_concurrent_batches": 1,
        "num_lookahead_tokens": 0,
        "num_spec_tokens": 0,
        "reserve_full_isl": True,
        "watermark": 0.0,
    }
    case = {"config": config, "resolved": resolved, "requests": requests, "steps": []}
    case["steps"] = [
        {
            "t": step["schedule_ps"] / 1e12,
            "t_end": step["end_ps"] / 1e12,
            "sched": [list(item) for item in step["scheduled"]],
            "running": step["running"],
            "waiting": step["waiting"],
            "free_blocks": step["free_blocks"],
            "free_blocks_after": step["free_blocks_after"],
            "preempted": step["preempted"],
            "finished": step["finished"],
        }
        for step in run_case(case)
    ]
    return case


def write(path: Path, case: dict[str, Any]) -> Path:
    path.write_text(json.dumps(case), encoding="utf-8")
    return path


def test_own_recording_is_identical_and_every_change_of_a_step_is_found(tmp_path: Path) -> None:
    case = own_recording()
    assert any(step["preempted"] for step in case["steps"])
    path = write(tmp_path / "own.json", case)
    assert replay(path).identical
    for field in ("running", "waiting", "free_blocks", "free_blocks_after"):
        changed = json.loads(json.dumps(case))
        changed["steps"][5][field] += 1
        verdict = replay(write(tmp_path / "changed.json", changed))
        assert verdict.steps == 5
        assert verdict.difference.startswith(f"step 5: {field} is")
    shorter = dict(case, steps=case["steps"][:-1])
    assert "steps, recorded" in replay(write(tmp_path / "shorter.json", shorter)).difference


def test_command_counts_cases_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = own_recording()
    write(tmp_path / "a.json", case)
    with gzip.open(tmp_path / "b.json.gz", "wt", encoding="utf-8") as stream:
        json.dump(case, stream)
    assert main(["conformance", "schedules", str(tmp_path)]) == 0
    steps = len(case["steps"])
    assert capsys.readouterr().out.splitlines()[-1] == f"2/2 cases identical, {2 * steps} steps"
    case["steps"][3]["running"] += 1
    write(tmp_path / "a.json", case)
    assert main(["conformance", "schedules", str(tmp_path)]) == 4
    assert capsys.readouterr().out.splitlines()[-1].startswith("1/2 cases identical")


def test_what_is_no_recording_is_one_sentence(tmp_path: Path) -> None:
    for content in ("", "{", "[]", '{"config": {}}'):
        path = tmp_path / "bad.json"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"bad\.json"):
            load_recording(path)
    with pytest.raises(InputError, match="does not exist"):
        find_recordings([tmp_path / "absent.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no recorded schedule"):
        find_recordings([tmp_path / "empty"])


def test_all_recordings_of_vllm_replay_without_an_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the folders below are taken, and those of SGLang are left out."""
    monkeypatch.setattr("llmsim.scheduling.conformance.vllm.live.installed_version", lambda: None)
    assert main(["conformance", "vllm", "--recorded", str(RECORDINGS), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    releases = [f"0.{minor}" for minor in range(24, 34)]
    assert shown["version"] == ", ".join(releases)
    assert shown["engine_profile"] == ", ".join(f"vllm-{release}" for release in releases)
    vllm = [path for path in RECORDINGS.rglob("*.gz") if path.name.startswith("vllm")]
    assert shown["cases"] == shown["identical"] == len(vllm) >= 90
    assert shown["first_difference"] is None and shown["steps"] > 50_000


def test_the_first_difference_of_recordings_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = own_recording()
    write(tmp_path / "a.json", case)
    case["steps"][3]["running"] += 1
    (tmp_path / "below").mkdir()
    path = write(tmp_path / "below" / "b.json", case)
    assert main(["conformance", "vllm", "--recorded", str(tmp_path), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["cases"], shown["identical"]) == (2, 1)
    assert shown["first_difference"]["recording"] == str(path)
    assert shown["first_difference"]["difference"].startswith("step 3: running is")
    assert shown["first_difference"]["options"]["num_gpu_blocks"] == 40
    assert main(["conformance", "vllm", "--recorded", str(path)]) == 1
    assert "0/1 cases identical" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_folder_without_recordings_of_the_engine_is_one_sentence(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if engine == "sglang":
        write(tmp_path / "other.json", own_recording())
    assert main(["conformance", engine, "--recorded", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "no recorded schedule of" in err and err.count("\n") == 1
