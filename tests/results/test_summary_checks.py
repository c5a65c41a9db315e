"""Invariant 14: the summary agrees with sums made in another way, also of huge values; tampered
figures are found.
"""

import copy
import dataclasses
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from results.conftest import make_results

from llmsim.columns import LatencyCauses
from llmsim.core import PS_PER_S, Results
from llmsim.results import summary_checks
from llmsim.results.requests.metrics import finished_rows
from llmsim.results.summary import summary

LONG_PS = 1 << 61
"""A run of 26 days."""


def slowed(results: Results, times: int) -> Results:
    """The same run with every latency `times` as long, and causes as before: shares stay, sums
    grow.
    """
    requests = results.requests
    arrival_ps = requests.arrival_ps

    def later(column: np.ndarray) -> np.ndarray:
        return np.where(column < 0, column, arrival_ps + (column - arrival_ps) * times)

    return dataclasses.replace(
        results,
        requests=dataclasses.replace(
            requests,
            queued_ps=later(requests.queued_ps),
            scheduled_ps=later(requests.scheduled_ps),
            first_token_ps=later(requests.first_token_ps),
            finish_ps=later(requests.finish_ps),
        ),
        itl_values_ps=results.itl_values_ps * times,
        blame={name: column * times for name, column in results.blame.items()},
    )


@given(st.integers(0, 40), st.sampled_from([1, 1000, 10_000_000]))
def test_causes_keep_their_shares_however_long_the_latencies(seed: int, times: int) -> None:
    results = make_results(80, seed=seed)
    found, long = summary(results, {}), summary(slowed(results, times), {})
    assert (
        found["invariants"][summary_checks.NAME] == long["invariants"][summary_checks.NAME] == "ok"
    )
    for name, part in found["blame"].items():
        assert long["blame"][name]["share"] == pytest.approx(part["share"], abs=1e-6)
        assert long["blame"][name]["mean_ms"] == pytest.approx(
            (part["mean_ms"] or 0) * times, rel=1e-5, abs=1e-3 * times
        )
    assert sum(part["share"] for part in long["blame"].values()) == pytest.approx(1, abs=1e-5)


def test_latencies_that_wrap_int64_when_added() -> None:
    """Nine million request-seconds are enough; these are 10^13, all of them in the queue but a
    tenth.
    """
    results = make_results(400, seed=3)
    rows = finished_rows(results.requests)
    latency_ps = (results.requests.finish_ps - results.requests.arrival_ps)[rows]
    results = slowed(results, LONG_PS // int(latency_ps.max()))
    assert int(results.blame["prefill_ps"][rows].astype(object).sum()) > 1 << 63
    found = summary(results, {})
    assert found["invariants"][summary_checks.NAME] == "ok"
    assert found["blame"]["queue"]["share"] == pytest.approx(0.1, abs=1e-6)
    assert found["blame"]["prefill"]["share"] == pytest.approx(0.9, abs=1e-6)
    assert found["mean_e2el_ms"] > 0


def numbers(block: dict) -> list[tuple]:
    """Paths of the figures that the invariant covers."""
    names = ("ttft", "itl", "e2el", "queueing_delay")
    paths = [(f"mean_{name}_ms",) for name in names]
    paths += [("request_throughput",), ("output_throughput",), ("total_token_throughput",)]
    paths += [("total_input_tokens",), ("total_output_tokens",), ("sources", "busy_time_s")]
    paths += [
        ("blame", column.name.removesuffix("_ps"), what)
        for column in LatencyCauses.COLUMNS
        for what in ("mean_ms", "share")
    ]
    paths += [("sources", "by_source", name) for name in block["sources"]["by_source"]]
    return paths


@given(st.integers(0, 10), st.data(), st.sampled_from([-1.0, 0.5, 1.0001, 2.0]))
def test_a_tampered_figure_is_found(seed: int, data: st.DataObject, factor: float) -> None:
    results = make_results(60, seed=seed)
    block = copy.deepcopy(summary(results, {}))
    *path, last = data.draw(st.sampled_from(numbers(block)))
    holder = block
    for key in path:
        holder = holder[key]
    holder[last] = holder[last] * factor if holder[last] else 0.01 * factor
    found = summary_checks.check_summary(block, results)
    small = abs(holder[last] / factor * (factor - 1)) < 2e-5
    assert found != "ok" or small, (path, last)


@pytest.mark.parametrize(
    ("column", "words"), [("queue_ps", "causes of latency"), ("decode_ps", "causes of latency")]
)
def test_a_column_that_does_not_add_up_is_found(column: str, words: str) -> None:
    results = make_results(60)
    results.blame[column][finished_rows(results.requests)[0]] += PS_PER_S
    assert words in summary(results, {})["invariants"][summary_checks.NAME]


def test_inter_token_latencies_must_be_the_time_after_first_tokens() -> None:
    results = make_results(60)
    results.itl_counts[0] += 1
    results.itl_counts[-1] -= 1
    assert "mean_itl_ms" in summary(results, {})["invariants"][summary_checks.NAME]


def test_nothing_finished() -> None:
    results = make_results(20, finished_share=0.0)
    assert summary(results, {})["invariants"][summary_checks.NAME] == "ok"


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=200))
def test_the_other_sum_is_exact_too(values: list[int]) -> None:
    assert summary_checks.total_of(np.array(values, dtype=np.int64)) == sum(values)


def test_a_million_requests_are_checked_in_a_fraction_of_a_second() -> None:
    results = make_results(1000)
    requests = results.requests
    wide = {name: np.tile(column, 1000) for name, column in vars(requests).items()}
    columns = ("arrival_ps", "input_tokens")
    tiled = {name: np.tile(getattr(results.workload, name), 1000) for name in columns}
    workload = replace(results.workload, **tiled)
    results = dataclasses.replace(
        results,
        workload=workload,
        requests=dataclasses.replace(requests, **wide),
        itl_counts=results.itl_counts * 1000,
        blame={name: np.tile(column, 1000) for name, column in results.blame.items()},
    )
    block = summary(results, {})
    begun = perf_counter()
    assert summary_checks.check_summary(block, results) == "ok"
    assert perf_counter() - begun < 2.0
