"""The installed vLLM's scheduler in our loop (skipped without it), and the cases that the
comparison draws.
"""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsim.cli import main
from llmsim.config.engine.profile import PROVEN, profile_names
from llmsim.config.errors import InputError
from llmsim.scheduling.conformance.cases import scheduler_config
from llmsim.scheduling.conformance.random_cases import random_case
from llmsim.scheduling.conformance.vllm.live import (
    engine_profile_of,
    installed_version,
)
from llmsim.scheduling.conformance.vllm.scheduler import VllmScheduler


def test_random_cases_repeat_and_cover_the_options() -> None:
    cases = [random_case(seed, 20) for seed in range(120)]
    assert cases == [random_case(seed, 20) for seed in range(120)]
    for option in (
        "policy",
        "watermark",
        "speculative",
        "long_prefill_token_threshold",
        "max_num_scheduled_tokens",
        "pipeline_parallel_size",
        "prefill_schedule_interval",
    ):
        assert 10 < sum(option in case["config"] for case in cases) < 110
    assert {case["config"]["block_size"] for case in cases} == {
        1,
        3,
        8,
        16,
        24,
        32,
        64,
        100,
        128,
        256,
    }
    assert {case["config"].get("use_v2_model_runner") for case in cases} == {None, False, True}
    for case in cases:
        longest = case["config"]["max_model_len"]
        for request in case["requests"]:
            prompt = sum(length for _, length in request["segments"])
            assert 1 <= prompt <= longest - 1 and all(
                length > 0 for _, length in request["segments"]
            )
            blocks = -(
                -min(prompt + request["output_len"], longest) // case["config"]["block_size"]
            )
            assert blocks < case["config"]["num_gpu_blocks"]


def test_random_cases_have_adapters_only_where_vllm_starts() -> None:
    configs = [random_case(seed, 2)["config"] for seed in range(300)]
    adapted = [config for config in configs if "max_loras" in config]
    drafted = [config for config in adapted if "speculative" in config]
    assert len(adapted) > 30
    assert len(drafted) > 5
    for config in drafted:
        verification = 1 + config["speculative"]["num_speculative_tokens"]
        assert config["max_num_seqs"] * verification <= config["max_num_batched_tokens"]


def test_random_cases_have_images_that_an_encoder_can_compute() -> None:
    cases = [random_case(seed, 20) for seed in range(200)]
    drawn = [case for case in cases if "encoder_tokens" in case["config"]]
    assert len(drawn) > 30
    assert {case["config"]["disable_chunked_mm_input"] for case in drawn} == {False, True}
    for case in drawn:
        for request in case["requests"]:
            assert all(request["segments"][place][0] >= 10_000 for place in request["images"])
            sizes = [request["segments"][place][1] for place in request["images"]]
            budgets = (case["config"]["encoder_tokens"], case["config"]["encoder_cache_tokens"])
            assert max(sizes, default=0) <= min(budgets)


def test_random_cases_have_modules_only_where_prompts_end() -> None:
    """A step takes as much of a prompt as the modules read: 5090 would stand still, in vLLM too."""
    drafted = [random_case(seed, 2)["config"] for seed in (*range(300), 5090)]
    several = [one for one in drafted if "num_nextn_predict_layers" in one.get("speculative", {})]
    assert len(several) > 10
    for config in several:
        modules = config["speculative"]["num_nextn_predict_layers"]
        assert config.get("long_prefill_token_threshold", modules) >= modules


@pytest.mark.skipif(
    not str(installed_version()).startswith("0.24"), reason="vLLM 0.24 is not installed"
)
def test_five_random_cases_are_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "vllm", "--cases", "5", "--requests", "60"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("5/5 cases identical")


class Queues:
    """A double of vLLM's scheduler with the attributes that `gauges` reads, under the names of one
    release.
    """

    def __init__(self, release: str, running: int, waiting: int, aside: int) -> None:
        self.num_spec_tokens = 0
        self.running, self.waiting = [0] * running, [0] * waiting
        self._aside = "kv_holding_waiting" if release == "0.33" else "skipped_waiting"
        setattr(self, self._aside, [0] * aside)
        pool = SimpleNamespace(get_num_free_blocks=lambda: 7)
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(getattr(self, self._aside))


@pytest.mark.parametrize("release", PROVEN)
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
@settings(derandomize=True)
def test_gauges_count_whom_a_release_keeps_apart(
    release: str, running: int, waiting: int, aside: int
) -> None:
    """0.33 has no queue `skipped_waiting`; requests that wait outside of `waiting` count in every
    release.
    """
    queues = Queues(release, running, waiting, aside)
    assert hasattr(queues, "skipped_waiting") == (release != "0.33")
    core, loop = SimpleNamespace(scheduler=queues), SimpleNamespace(end=lambda: None)
    assert VllmScheduler([], core, loop).gauges() == (running, waiting + aside, 7)


VERSIONS = st.builds(
    lambda major, minor, rest: f"{major}.{minor}{rest}",
    st.integers(0, 2),
    st.integers(0, 60),
    st.sampled_from([".0", ".1", ".0rc1", ".2.post1", ".0+cu130", ""]),
)


@given(VERSIONS | st.sampled_from(["0.1.dev19262", "none", ""]))
@settings(derandomize=True)
def test_a_release_runs_by_the_nearest_proven_profile_or_is_refused(version: str) -> None:
    parts = version.split(".")
    minor = 0
    if len(parts) > 1:
        minor = 33 if parts[0] in "12" else int(re.match(r"\d*", parts[1])[0] or 0)
    if minor >= 24:
        name = engine_profile_of(version)
        assert name in profile_names()
        older = [one for one in PROVEN if int(one.removeprefix("0.")) <= minor]
        assert name == f"vllm-{older[-1]}"
        return
    with pytest.raises(InputError) as refused:
        engine_profile_of(version)
    assert version in str(refused.value) and PROVEN[0] in str(refused.value)


@pytest.mark.parametrize("version", ["0.23.1", "0.19.0", "none"])
def test_both_verbs_refuse_a_release_before_the_proven_ones(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("live", "installed"):
        monkeypatch.setattr(
            f"llmsim.scheduling.conformance.vllm.{module}.installed_version", lambda: version
        )
    run = [
        "run",
        "--cluster-config",
        "cluster_config/h100_llama31_8b.json",
        "--dataset",
        "dataset/example_10.jsonl",
    ]
    for arguments in (
        ["conformance", "vllm"],
        [*run, "--scheduler", "vllm", "--cost-source", "roofline"],
    ):
        assert main(arguments) == 2
        shown = capsys.readouterr()
        assert (
            shown.out == ""
            and f"vLLM {version} is installed" in shown.err
            and "0.24 and later" in shown.err
        )


def a_case(**resolved: Any) -> dict[str, Any]:
    config = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 96,
        "num_gpu_blocks": 50,
        "max_model_len": 64,
    }
    known = {
        "max_num_scheduled_tokens": 96,
        "reserve_full_isl": True,
        "watermark": 0.0,
        "num_spec_tokens": 2,
        "num_lookahead_tokens": 2,
    }
    return {"config": config, "resolved": known | resolved}


def test_a_case_takes_the_limits_of_the_release_that_resolved_it() -> None:
    """A recording names no release: it is of 0.24, which has no second budget."""
    old, same = (
        scheduler_config(a_case()),
        scheduler_config(a_case(engine_profile="vllm-0.24", draft_slots=1)),
    )
    new = scheduler_config(a_case(engine_profile="vllm-0.33", draft_slots=1))
    for one in (old, same):
        assert (one.limits.input_budget, one.limits.draft_slots) == (0, 0)
        assert not one.limits.pads_new_decodes and not one.limits.lone_prompt_uncapped
    assert (new.limits.input_budget, new.limits.draft_slots) == (96, 1)
    assert new.limits.pads_new_decodes and new.limits.lone_prompt_uncapped


def test_without_vllm_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llmsim.scheduling.conformance.vllm.live.installed_version", lambda: None)
    assert main(["conformance", "vllm"]) == 0
    assert "skipped: vLLM is not installed" in capsys.readouterr().err
