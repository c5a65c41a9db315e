"""Latencies of finished requests and their statistics; docs/reference/metrics.md says the same in
words.
"""

import math
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.core import PS_PER_MS, Int64, RequestColumns, Results, Status
from llmsim.exact import exact_sum

Float64 = NDArray[np.float64]
PERCENTILES = (90, 95, 99)
_DIGITS = 6
"""Of a millisecond figure, which is then exact to the nanosecond."""


class Distribution(Struct, frozen=True):
    """Statistics of one latency, ps. `std` is the population's (numpy's default, as in vLLM's
    benchmark); `percentiles` follow numpy's linear rule.
    """

    count: int
    mean: float
    median: float
    std: float
    percentiles: dict[int, float]


class Latencies(Struct, frozen=True, eq=False):
    """Per finished request, in order of rows; shapes (finished,), of `tpot_ps` (finished with two
    tokens or more,).

    `ttft_ps` = first token - arrival; `e2el_ps` = last token - arrival; `queueing_ps` = first
    scheduled - arrival; `tpot_ps` = (e2el - ttft) / (n - 1) over the n emitted tokens; requests
    with n = 1 have none.
    """

    ttft_ps: Int64
    e2el_ps: Int64
    queueing_ps: Int64
    tpot_ps: Float64


def finished_rows(requests: RequestColumns) -> Int64:
    """Rows of the requests that finished: only they count in latencies and throughputs."""
    return np.flatnonzero(requests.status == Status.FINISHED)


def latencies(requests: RequestColumns, rows: Int64 | None = None) -> Latencies:
    """Latencies of the finished requests, or of those in `rows`, from their arrival (not from when
    the engine saw them).
    """
    rows = finished_rows(requests) if rows is None else rows
    arrival_ps = requests.arrival_ps[rows]
    ttft_ps = requests.first_token_ps[rows] - arrival_ps
    e2el_ps = requests.finish_ps[rows] - arrival_ps
    emitted = requests.emitted_tokens[rows]
    several = emitted > 1
    tpot_ps = (e2el_ps - ttft_ps)[several] / (emitted[several] - 1)
    return Latencies(ttft_ps, e2el_ps, requests.scheduled_ps[rows] - arrival_ps, tpot_ps)


def makespan_ps(results: Results) -> int | None:
    """From the first arrival of any request to the last token of a finished one, ps; None where
    none finished.
    """
    rows = finished_rows(results.requests)
    if len(rows) == 0:
        return None
    arrival_ps = results.requests.arrival_ps
    return int(results.requests.finish_ps[rows].max()) - int(arrival_ps[arrival_ps >= 0].min())


def describe(values: NDArray[Any], counts: Int64 | None = None) -> Distribution | None:
    """Statistics of `values`, or of each value `counts` times (then `values` must be sorted); None
    where there is none.

    Exact for integers up to the last division, and summed in a fixed order, so that every machine
    agrees.
    """
    total = len(values) if counts is None else exact_sum(counts)
    if total == 0:
        return None
    ordered = np.sort(values) if counts is None else values
    mean = _sum(ordered, counts) / total
    squares = (ordered - mean) ** 2
    if counts is not None:
        squares *= counts
    cumulative = None if counts is None else np.cumsum(counts)
    percentiles = {q: percentile(ordered, cumulative, q) for q in (50, *PERCENTILES)}
    return Distribution(
        total, mean, percentiles.pop(50), math.sqrt(_in_order(squares) / total), percentiles
    )


def statistics_ms(name: str, distribution: Distribution | None) -> dict[str, float | None]:
    """The statistics of a latency by the names of vLLM's benchmark, ms to the nanosecond; None
    where there is no value.
    """
    if distribution is None:
        statistics = ("mean", "median", "std", *(f"p{q}" for q in PERCENTILES))
        return {f"{statistic}_{name}_ms": None for statistic in statistics}
    values = {"mean": distribution.mean, "median": distribution.median, "std": distribution.std}
    values |= {f"p{q}": value for q, value in distribution.percentiles.items()}
    return {
        f"{statistic}_{name}_ms": round(value / PS_PER_MS, _DIGITS)
        for statistic, value in values.items()
    }


def percentile(ordered: NDArray[Any], cumulative_counts: Int64 | None, q: float) -> float:
    """q-th percentile by linear interpolation between the closest ranks, exactly as
    numpy.percentile's default.

    `ordered` rises; value i stands for `cumulative_counts[i] - cumulative_counts[i - 1]` equal
    samples (one each without counts). Neither may be empty.
    """
    total = len(ordered) if cumulative_counts is None else int(cumulative_counts[-1])
    # The rank and the two-sided interpolation copy numpy's arithmetic, so that equal means equal
    # bits.
    rank = (total - 1) * (q / 100)
    below = math.floor(rank)
    low, high = (
        _at(ordered, cumulative_counts, index) for index in (below, min(below + 1, total - 1))
    )
    weight = rank - below
    if weight >= 0.5:
        return float(high - (high - low) * (1 - weight))
    return float(low + (high - low) * weight)


def _at(ordered: NDArray[Any], cumulative_counts: Int64 | None, index: int) -> int | float:
    position = (
        index
        if cumulative_counts is None
        else int(np.searchsorted(cumulative_counts, index, side="right"))
    )
    value: int | float = ordered[position].item()
    return value


def _sum(values: NDArray[Any], counts: Int64 | None) -> int | float:
    """Exact for integers: latencies of a long run overflow int64 when added."""
    if values.dtype.kind == "f":
        return _in_order(values if counts is None else values * counts)
    return exact_sum(values, counts)


def _in_order(values: Float64) -> float:
    """Sum from left to right: numpy's own sum depends on the width of the machine's vectors."""
    return float(np.cumsum(values)[-1])
