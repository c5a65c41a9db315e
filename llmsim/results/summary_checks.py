"""Invariant 14: the figures of the summary agree with sums that are made again, in another way.

The summary adds columns with `llmsim.exact`; here short runs of a column are added by numpy and
joined as Python ints. Identities between figures are checked beside: causes add up to latencies,
tokens to rates times the duration.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmsim.core import PS_PER_MS, PS_PER_S, Int64, Results
from llmsim.results.requests.metrics import PERCENTILES, finished_rows

NAME = "14 summary"
OK = "ok"
_ROUNDED = 1e-6
"""Half of the last digit of a figure in the summary, and then some."""
_DOUBLE = 1e-9
"""Relative: sums of doubles in two orders."""
_SAFE = 1 << 62
_MOST_IN_A_RUN = 1 << 16

Found = Iterator[str]


def check_summary(block: Mapping[str, Any], results: Results) -> str:
    """ "ok", or the first figure of `block` (`llmsim.results.summary`) that does not agree with the
    results.
    """
    rows = finished_rows(results.requests)
    totals = _latency_totals(results, rows)
    for check in (
        _means(block, results, rows, totals),
        _order(block),
        _blame(block, results, rows, totals["e2el"]),
        _rates(block, results, rows),
        _transfers(block, results, rows),
        _sources(block),
    ):
        wrong = next(check, None)
        if wrong is not None:
            return wrong
    return OK


def total_of(values: NDArray[Any]) -> int:
    """Sum of an integer column in runs that are short enough for int64."""
    if not len(values):
        return 0
    largest = max(abs(int(values.min())), abs(int(values.max())), 1)
    length = min(_MOST_IN_A_RUN, max(1, _SAFE // largest))
    begins = np.arange(0, len(values), length)
    parts = np.add.reduceat(
        values, begins, dtype=np.int64
    )  # each below 2^62 by its length, or a single value
    return sum(parts.tolist())


def _latency_totals(results: Results, rows: Int64) -> dict[str, int]:
    requests = results.requests
    arrival_ps = requests.arrival_ps[rows]
    ends = {
        "ttft": requests.first_token_ps,
        "e2el": requests.finish_ps,
        "queueing_delay": requests.scheduled_ps,
    }
    totals = {name: total_of(column[rows] - arrival_ps) for name, column in ends.items()}
    # The times between the tokens of an answer are what its latency has beside the first token's.
    return {**totals, "itl": totals["e2el"] - totals["ttft"]}


def _means(
    block: Mapping[str, Any], results: Results, rows: Int64, totals: Mapping[str, int]
) -> Found:
    emitted = total_of(results.requests.emitted_tokens[rows])
    counts = {
        "ttft": len(rows),
        "e2el": len(rows),
        "queueing_delay": len(rows),
        "itl": emitted - len(rows),
    }
    for name, count in counts.items():
        exact_ms = totals[name] / count / PS_PER_MS if count else None
        shown_ms = block[f"mean_{name}_ms"]
        if not _same(shown_ms, exact_ms):
            yield f"mean_{name}_ms is {shown_ms!r}, an exact sum gives {exact_ms!r}"


def _order(block: Mapping[str, Any]) -> Found:
    for name in ("ttft", "tpot", "itl", "e2el", "queueing_delay"):
        if block[f"mean_{name}_ms"] is None:
            continue
        ranks = [block[f"median_{name}_ms"], *(block[f"p{q}_{name}_ms"] for q in PERCENTILES)]
        if ranks != sorted(ranks) or ranks[0] < 0 or block[f"std_{name}_ms"] < 0:
            yield f"the percentiles of {name} do not rise from 0: {ranks!r} ms"


def _blame(block: Mapping[str, Any], results: Results, rows: Int64, e2el_ps: int) -> Found:
    totals = {name: total_of(results.blame[f"{name}_ps"][rows]) for name in block["blame"]}
    if sum(totals.values()) != e2el_ps:
        yield f"the causes of latency add up to {sum(totals.values())} ps of {e2el_ps} ps"
    for name, total_ps in totals.items():
        shown = block["blame"][name]
        exact = {
            "mean_ms": total_ps / len(rows) / PS_PER_MS if len(rows) else None,
            "share": total_ps / e2el_ps if e2el_ps else None,
        }
        for figure, value in exact.items():
            if not _same(shown[figure], value):
                yield f"blame.{name}.{figure} is {shown[figure]!r}, an exact sum gives {value!r}"


def _rates(block: Mapping[str, Any], results: Results, rows: Int64) -> Found:
    amounts = {
        "total_input_tokens": total_of(results.workload.input_tokens[rows]),
        "total_output_tokens": total_of(results.requests.emitted_tokens[rows]),
    }
    for name, amount in amounts.items():
        if block[name] != amount:
            yield f"{name} is {block[name]!r}, an exact sum gives {amount}"
    output, both = amounts["total_output_tokens"], sum(amounts.values())
    duration_ps = None
    if len(rows):
        arrival_ps = results.requests.arrival_ps
        duration_ps = int(results.requests.finish_ps[rows].max()) - int(
            arrival_ps[arrival_ps >= 0].min()
        )
    for name, count in (
        ("request_throughput", len(rows)),
        ("output_throughput", output),
        ("total_token_throughput", both),
    ):
        exact = count * PS_PER_S / duration_ps if duration_ps else None
        if not _same(block[name], exact):
            yield f"{name} is {block[name]!r}, an exact sum over the duration gives {exact!r}"


def _transfers(block: Mapping[str, Any], results: Results, rows: Int64) -> Found:
    columns, shown = results.kv_transfers, block["kv_transfer"]
    if columns is None or shown is None:
        return
    rows = rows[columns.prefill_group[rows] >= 0]
    for name, column in (
        ("bytes", columns.kv_transfer_bytes),
        ("decode_cached_tokens", columns.decode_cached_tokens),
    ):
        if shown[name] != total_of(column[rows]):
            yield (
                f"kv_transfer.{name} is {shown[name]!r}, an exact sum gives "
                f"{total_of(column[rows])}"
            )


def _sources(block: Mapping[str, Any]) -> Found:
    sources = block["sources"]
    operators = sources["operators"]
    slack = _ROUNDED * (2 + len(operators))
    for name in ("by_source", "by_provenance"):
        shares = [share for share in sources[name].values() if share is not None]
        if shares and abs(sum(shares) - 1) > slack:
            yield f"the shares of sources.{name} add up to {sum(shares)!r}"
    busy_s = sum(operator["time_s"] for operator in operators)
    if abs(busy_s - (sources["busy_time_s"] or 0.0)) > slack + _DOUBLE * busy_s:
        yield f"the operators of sources add up to {busy_s!r} s of {sources['busy_time_s']!r} s"


def _same(shown: float | None, exact: float | None) -> bool:
    """A rounded figure beside what it was rounded from."""
    if shown is None or exact is None:
        return shown is exact
    return abs(shown - exact) <= _ROUNDED + _DOUBLE * abs(exact)
