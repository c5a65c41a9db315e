"""Statistics equal numpy's, the summary has its fields, and what has no value is null."""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmsim.core import Status
from llmsim.export.json import json_text
from llmsim.results.requests.metrics import describe, latencies, makespan_ps, percentile
from llmsim.results.summary import summary

picoseconds = st.integers(0, 10**15)


@given(
    st.lists(
        st.tuples(picoseconds, st.integers(1, 9)),
        min_size=1,
        max_size=30,
        unique_by=lambda pair: pair[0],
    ),
    st.floats(0, 100),
)
def test_weighted_percentile_is_numpys_on_the_expanded_values(pairs, q):
    pairs.sort()
    values, counts = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    expanded = np.repeat(values, counts)
    assert percentile(values, np.cumsum(counts), q) == np.percentile(expanded, q)
    assert percentile(expanded, None, q) == np.percentile(expanded, q)


@given(st.lists(picoseconds, min_size=1, max_size=60))
def test_statistics_equal_numpys(values):
    array = np.array(values, dtype=np.int64)
    unique, counts = np.unique(array, return_counts=True)
    for found in (
        describe(array),
        describe(unique, counts.astype(np.int64)),
        describe(array.astype(np.float64)),
    ):
        assert found is not None
        assert found.count == len(values)
        assert found.mean == pytest.approx(np.mean(array), rel=1e-12)
        assert found.median == np.median(array)
        assert found.std == pytest.approx(np.std(array), rel=1e-9, abs=1e-3)
        assert found.percentiles == {q: np.percentile(array, q) for q in (90, 95, 99)}


def test_the_mean_of_long_latencies_does_not_overflow():
    hours = np.full(100_000, 4 * 3600 * 10**12 + 1, dtype=np.int64)
    found = describe(hours)
    assert found is not None
    assert (found.mean, found.std) == (float(4 * 3600 * 10**12 + 1), 0)
    assert describe(hours[:1], np.array([10**7])).mean == found.mean


def test_nothing_has_no_statistics():
    empty = np.zeros(0, dtype=np.int64)
    assert describe(empty) is None
    assert describe(empty, empty) is None


def test_latencies_follow_their_definitions(build):
    results = build(50)
    requests, found = results.requests, latencies(results.requests)
    rows = [row for row in range(50) if requests.status[row] == Status.FINISHED]
    arrival = results.workload.arrival_ps
    assert found.ttft_ps.tolist() == [requests.first_token_ps[row] - arrival[row] for row in rows]
    assert found.e2el_ps.tolist() == [requests.finish_ps[row] - arrival[row] for row in rows]
    assert found.queueing_ps.tolist() == [requests.scheduled_ps[row] - arrival[row] for row in rows]
    means = [results.itl_of(row).mean() for row in rows if requests.emitted_tokens[row] > 1]
    assert found.tpot_ps == pytest.approx(means)  # the mean inter-token latency, request by request
    assert len(means) < len(rows)
    arrived = requests.arrival_ps[requests.arrival_ps >= 0]
    assert makespan_ps(results) == requests.finish_ps.max() - arrived.min()


def test_summary_figures(build, info):
    results = build(200)
    found = summary(results, info)
    done = results.requests.status == Status.FINISHED
    seconds = makespan_ps(results) / 1e12
    output = int(results.requests.emitted_tokens.sum())
    assert found["completed"] + found["rejected"] + found["unfinished"] == 200
    assert (found["completed"], found["failed"]) == (
        done.sum(),
        (results.requests.status == Status.REJECTED).sum(),
    )
    assert found["total_input_tokens"] == results.workload.input_tokens[done].sum()
    assert found["total_output_tokens"] == output
    assert found["request_throughput"] == pytest.approx(done.sum() / seconds, abs=1e-6)
    assert found["output_throughput"] == pytest.approx(output / seconds, abs=1e-6)
    assert found["total_token_throughput"] == pytest.approx(
        (output + found["total_input_tokens"]) / seconds, abs=1e-6
    )
    every = np.repeat(results.itl_values_ps, results.itl_counts)
    assert found["p99_itl_ms"] == round(np.percentile(every, 99) / 1e9, 6)
    assert found["p95_e2el_ms"] == round(
        np.percentile((results.requests.finish_ps - results.workload.arrival_ps)[done], 95) / 1e9, 6
    )
    assert found["prefix_cache"] == {
        "queried_tokens": 75,
        "hit_tokens": 75,
        "hit_rate": 1.0,
        "both_sides_of_hand_overs": False,
    }
    assert found["kv_cache"][1]["peak_usage"] == 0.5
    assert found["kv_cache"][0]["ledger"] == [
        {"label": "weights", "bytes": 10},
        {"label": "KV cache", "bytes": 20},
    ]
    assert found["notes"] == ["from the workload", "from the costs", "from the run"]


def test_sources_add_up(build, info):
    sources = summary(build(5), info)["sources"]
    assert sources["by_source"] == {"bundle": 0.6, "roofline": 0.4}
    assert sources["by_provenance"] == {
        "measured": 0.6,
        "interpolated": 0.1,
        "extrapolated": 0.0,
        "scaled": 0.0,
        "analytic": 0.3,
    }
    assert [entry["share"] for entry in sources["operators"]] == [0.6, 0.4]


def test_what_does_not_exist_is_null(build):
    results = build(20, finished_share=0.0)
    for column in results.counters.values():
        column[:] = 0
    results.time_shares = ()
    found = summary(results, {})
    for name, value in found.items():
        if name.endswith(("_ms", "_throughput")) or name == "duration":
            assert value is None, name
    assert found["completed"] == found["total_output_tokens"] == 0
    assert found["prefix_cache"]["hit_rate"] is None
    assert set(found["sources"]["by_provenance"].values()) == {None}
    one_token = build(30, finished_share=1.0, max_tokens=1)
    found = summary(one_token, {})
    assert found["mean_tpot_ms"] is found["p99_itl_ms"] is None
    assert found["mean_ttft_ms"] > 0


def test_names_are_vllms_and_the_text_is_stable(build, info):
    found = summary(build(40), info)
    statistics = [
        f"{what}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el")
        for what in ("mean", "median", "std", "p90", "p95", "p99")
    ]
    head = [
        "completed",
        "failed",
        "duration",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
    ]
    assert set(head + statistics) <= set(found)
    text = json_text(found)
    assert text == json_text(summary(build(40), info))
    assert json.loads(text) == found
    with pytest.raises(ValueError, match="JSON"):
        json_text({"value": math.nan})


def test_a_hundred_thousand_requests_are_quick(build, info):
    results = build(100_000, max_tokens=4)
    random = np.random.Generator(np.random.PCG64(1))
    results.itl_values_ps = np.unique(
        random.integers(0, 10**12, 1_400_000)
    )  # one per iteration: the worst case
    results.itl_counts = np.full(len(results.itl_values_ps), 14, dtype=np.int64)
    start = time.process_time()
    summary(results, info)
    assert (
        time.process_time() - start < 0.3 * 3
    )  # measured 0.08 s; three times the budget, for slow machines
