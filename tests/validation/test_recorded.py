"""The runs that were recorded for this project, against bounds that a wrong term would break."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("aiconfigurator_core", reason="the silicon database is not installed")
EVALUATION = Path(__file__).parents[2] / "evaluation"
sys.path.insert(0, str(EVALUATION))

import recorded  # noqa: E402

WHOLE = [
    (served, load)
    for served in recorded.SERVED
    for load in recorded.LOADS
    if (recorded.FOLDER / served.folder / load / "requests.jsonl.gz").is_file()
]
BOUNDS = {
    "mean_ttft_ms": 15.0,
    "mean_tpot_ms": 10.0,
    "median_tpot_ms": 12.0,
    "output_throughput": 2.0,
}
"""Percent: a fifth more than the largest error on the page, or more."""


@pytest.mark.parametrize(("served", "load"), WHOLE, ids=lambda each: getattr(each, "folder", each))
def test_latencies_and_throughput_of_a_recorded_run(served: recorded.Served, load: str) -> None:
    run = recorded.simulate(served, load)
    for metric, bound in BOUNDS.items():
        assert abs(recorded.error(run, metric)) < bound, metric


def test_the_times_of_the_host_make_lone_prompts_better() -> None:
    """Which gave none of them; each model alone gives nearly the same."""
    runs = [recorded.simulate(*each) for each in WHOLE]
    found = recorded.host_times(runs)
    for served in {run.served for run in runs}:
        crossed = recorded.host_times(runs, without=served)
        for name, value in found.items():
            assert crossed[name] == pytest.approx(value, rel=0.1)
        (before,) = (run for run in runs if (run.served, run.load) == (served, "light"))
        ours = recorded.simulate(served, "light", crossed)
        off, now = ((one.lone.simulated / one.lone.real).median() for one in (before, ours))
        assert off < 0.85 < now < 1.05


def test_decodes_of_fp8_need_the_fused_scaling() -> None:
    served = recorded.SERVED[1]
    with_term, without = (
        recorded.simulate(served, "light", **options)
        for options in ({}, {"disable_term": "fused_scaling"})
    )
    assert abs(recorded.error(with_term, "mean_tpot_ms")) < 2
    assert recorded.error(without, "mean_tpot_ms") > 7


@pytest.mark.parametrize("served", recorded.SERVED, ids=lambda each: each.folder)
def test_the_capacity_of_the_kv_cache_is_that_of_the_log(served: recorded.Served) -> None:
    assert recorded.capacity_tokens(served) == pytest.approx(served.kv_tokens, rel=0.01)


def test_steps_of_the_logs_are_whole() -> None:
    """Every token that a request got is in one step."""
    for served, load in WHOLE:
        folder = recorded.FOLDER / served.folder / load
        requests = recorded.rows(folder / "requests.jsonl.gz")
        asked = sum(each["input_toks"] + each["output_toks"] - 1 for each in requests)
        steps = recorded.rows(folder / "steps.jsonl.gz")
        assert sum(new for step in steps for new, _ in step["batch"]) == asked
