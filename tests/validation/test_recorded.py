"""The runs that were recorded for this project, against bounds that a wrong term would break."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from llmsim.config import load_profile

pytest.importorskip("aiconfigurator_core", reason="the silicon database is not installed")
EVALUATION = Path(__file__).parents[2] / "evaluation"
sys.path.insert(0, str(EVALUATION))

import recorded  # noqa: E402
import recorded_hosts  # noqa: E402
import recorded_power  # noqa: E402
import recorded_runs  # noqa: E402

WHOLE = [
    (served, load)
    for served in recorded.SERVED
    for load in recorded.LOADS
    if (recorded.FOLDER / served.folder / load).is_dir()
]
BOUNDS = {"mean_ttft_ms": 15.0, "mean_tpot_ms": 10.0, "output_throughput": 3.5}
"""Percent, with times of the host by other models on it: more than the largest errors of dense
models on the page.
"""
OF_EXPERTS = {"mean_ttft_ms": 23.0, "mean_tpot_ms": 10.0, "output_throughput": 3.5}


@pytest.fixture(scope="module")
def assumed() -> list[recorded.Run]:
    """The runs with the host's times that were assumed before any recording."""
    return [recorded.simulate(*each, recorded.ASSUMED_HOST) for each in WHOLE]


@pytest.mark.parametrize(("served", "load"), WHOLE, ids=lambda each: getattr(each, "folder", each))
def test_latencies_and_throughput_of_a_recorded_run(
    served: recorded.Served, load: str, assumed: list[recorded.Run]
) -> None:
    host = recorded.host_times(assumed, (served.host,), without=served)
    run = recorded.simulate(served, load, host)
    bounds = OF_EXPERTS if "a3b" in served.folder else BOUNDS
    compared = [metric for metric in bounds if recorded.comparable(run, metric)]
    assert bool(compared) == (not run.compiling)
    for metric in compared:
        assert abs(recorded.error(run, metric)) < bounds[metric], metric


def test_decodes_of_experts_are_those_of_the_experts_that_sequences_touch() -> None:
    """One to 256 sequences; without the term 9 to 16 of them are off by two fifths."""
    (served,) = (each for each in recorded.SERVED if each.folder == "qwen3-30b-a3b")
    assert {row: abs(off) < 6 for row, off in decode_errors(served).items()} == dict.fromkeys(
        ("1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-256"), True
    )
    assert decode_errors(served, disable_term="touched_experts")["9-16"] > 35


def decode_errors(served: recorded.Served, **options: Any) -> dict[str, float]:
    """Percent, by the row of the page's table."""
    loads = [load for each, load in WHOLE if each is served]
    runs = [recorded.simulate(served, load, recorded.ASSUMED_HOST, **options) for load in loads]
    cells = [line.strip("| ").split(" | ") for line in list(recorded.steps_table(runs))[2:]]
    return {row: float(off) for _, row, _, _, _, off in cells}


def test_the_times_of_the_host_make_lone_prompts_better(assumed: list[recorded.Run]) -> None:
    """Which gave none of them; other models on the same host give nearly the same."""
    for served in recorded.SERVED:
        of_all = recorded.host_times(assumed, (served.host,))
        crossed = recorded.host_times(assumed, (served.host,), without=served)
        for name in ("prepare_ns", "launch_ns"):
            assert crossed[name] == pytest.approx(of_all[name], rel=0.2)
        before = [run for run in assumed if run.served is served]
        after = [recorded.simulate(served, run.load, crossed) for run in before]
        off, now = (lone_error(runs) for runs in (before, after))
        assert off < -0.15 < now < 0.05


def lone_error(runs: list[recorded.Run]) -> float:
    lone = pd.concat([run.lone for run in runs])
    return float((lone.simulated / lone.real - 1).median())


def test_the_profile_has_what_the_recordings_give(assumed: list[recorded.Run]) -> None:
    """The first host's times, and those of experts and sequences on the others at its speed."""
    first = recorded.host_times(assumed, ("first",))
    others = recorded.host_times(assumed, ("second", "third"))
    profile = load_profile(recorded_runs.ENGINE)
    assert (profile.prepare_ns, profile.launch_ns) == (first["prepare_ns"], first["launch_ns"])
    at_speed = recorded.at_speed_of(others, first)
    assert profile.fused_moe_ns == at_speed["fused_moe_ns"]
    assert profile.prepare_sequence_ns == at_speed["prepare_sequence_ns"]


def test_decodes_of_many_sequences_wait_for_the_host_in_one_model_alone(
    assumed: list[recorded.Run],
) -> None:
    """And by its constant the host of no other model takes longer than its decodes did."""
    cells = [line.strip("| ").split(" | ") for line in list(recorded.sequences_table(assumed))[2:]]
    waits = {
        model for _, model, _, _, _, growth, _ in cells if float(growth) > recorded_hosts.HOST_BOUND
    }
    assert waits == {"gpt-oss-20b, MXFP4"}
    assert len(cells) == 6
    assert all(float(host_ms) < 1.02 * float(real_ms) for *_, real_ms, _, host_ms in cells)


def test_steps_of_whole_budgets_last_as_long_as_recorded(assumed: list[recorded.Run]) -> None:
    cells = [line.strip("| ").split(" | ") for line in list(recorded.full_steps_table(assumed))[2:]]
    errors = {model: float(off) for model, _, _, _, off in cells}
    assert len(errors) == 6
    assert all(-16 < off < 11 for off in errors.values())
    assert all(-3 < off < 3 for model, off in errors.items() if model.startswith("Llama"))


def test_runs_that_compiled_are_marked(assumed: list[recorded.Run]) -> None:
    found = {(run.served.folder, run.load): run.compiling for run in assumed if run.compiling}
    assert found == {
        ("qwen3-30b-a3b", "light"): 3,
        ("qwen3-30b-a3b", "medium"): 1,
        ("qwen3-30b-a3b-fp8", "light"): 1,
        ("qwen3-30b-a3b-third", "medium"): 2,
        ("gpt-oss-20b", "light"): 4,
        ("gpt-oss-20b", "medium"): 1,
        ("gpt-oss-20b", "burst"): 1,
        ("gpt-oss-20b", "long"): 2,
    }


def test_decodes_of_fp8_need_the_fused_scaling() -> None:
    served = recorded.SERVED[1]
    with_term, without = (
        recorded.simulate(served, "light", recorded.ASSUMED_HOST, **options)
        for options in ({}, {"disable_term": "fused_scaling"})
    )
    assert abs(recorded.error(with_term, "mean_tpot_ms")) < 2
    assert recorded.error(without, "mean_tpot_ms") > 7


@pytest.mark.parametrize("served", recorded.SERVED, ids=lambda each: each.folder)
def test_the_capacity_of_the_kv_cache_is_that_of_the_log(served: recorded.Served) -> None:
    real = recorded.recorded_capacity_tokens(served)
    assert recorded.capacity_tokens(served) == pytest.approx(real, rel=0.013)


def test_decodes_by_a_bundle_of_the_same_card_with_its_experts() -> None:
    (served,) = (each for each in recorded.SERVED if each.folder == "qwen3-30b-a3b-third")
    errors = decode_errors(served, profile_dir=str(recorded.FOLDER / "profile"))
    assert len(errors) == 9
    assert all(abs(off) < 8 for off in errors.values())


def test_steps_of_the_logs_are_whole() -> None:
    """Every token that a request got is in one step."""
    for served, load in WHOLE:
        folder = recorded.FOLDER / served.folder / load
        requests = recorded_runs.rows(folder / "requests.jsonl.gz")
        asked = sum(each["input_toks"] + each["output_toks"] - 1 for each in requests)
        steps = recorded_runs.rows(folder / "steps.jsonl.gz")
        assert sum(new for step in steps for new, _ in step["batch"]) == asked


def test_the_data_sheet_has_the_energies_that_the_recorded_power_gives() -> None:
    card, energies = recorded_power.card_power(), recorded_power.fitted_energies()
    assert energies.switching_fj_per_flop == pytest.approx(card.switching_fj_per_flop, rel=1e-3)
    assert energies.traffic_fj_per_byte == pytest.approx(card.traffic_fj_per_byte, rel=1e-3)
    runs = list(recorded_power.dense_runs())
    assert len(runs) == 10
    assert all(abs(run.drawn_w / run.read_w - 1) < 0.06 for run in runs)


def test_the_power_limit_makes_steps_of_whole_budgets_as_long_as_recorded() -> None:
    """Without it they are 4 to 6 % too short."""
    served = [each for each in recorded.SERVED if each.folder.startswith("llama")]
    runs = [
        recorded.simulate(each, "burst", recorded.ASSUMED_HOST, disable_term="sustained_clock")
        for each in served
    ]
    cells = [line.strip("| ").split(" | ") for line in list(recorded.full_steps_table(runs))[2:]]
    assert [-6 < float(off) < -4 for _, _, _, _, off in cells] == [True, True]
