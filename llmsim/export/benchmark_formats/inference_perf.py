"""Inference-Perf's summary and its records of single requests."""

from typing import Any

import numpy as np

from llmsim.core import PS_PER_S
from llmsim.exact import exact_sum
from llmsim.export.benchmark_formats.tables import (
    EPOCH_NS,
    Floats,
    RunTables,
    distribution,
    needs_requests,
    seconds,
)

PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


def inference_perf_summary(tables: RunTables) -> dict[str, Any]:
    """`summary_lifecycle_metrics.json`; latencies in seconds.

    Raises InputError where no request finished.
    """
    needs_requests(tables)
    summary, tokens = tables.summary, tables.whole("emitted_tokens")
    latency = tables.ps("e2el_ps")
    inputs = tables.whole("input_tokens")
    cached = exact_sum(tables.whole("cached_tokens"))
    return {
        "benchmark_time_seconds": tables.duration_s,
        "load_summary": {
            "count": len(tables.requests),
            "schedule_delay": _summary(np.zeros(len(tables.requests))),
        },
        "successes": {
            "count": summary["completed"],
            "latency": {
                "request_latency": _summary(seconds(latency)),
                "normalized_time_per_output_token": _summary(seconds(latency) / tokens),
                "time_per_output_token": _summary(tables.tpot_ps / PS_PER_S),
                "time_to_first_token": _summary(seconds(tables.ps("ttft_ps"))),
                "inter_token_latency": _summary(seconds(tables.itl[1])),
            },
            "throughput": {
                "input_tokens_per_sec": _per_second(summary["total_input_tokens"], tables),
                "output_tokens_per_sec": summary["output_throughput"],
                "total_tokens_per_sec": summary["total_token_throughput"],
                "requests_per_sec": summary["request_throughput"],
            },
            "prompt_tokens": {
                "total": float(exact_sum(inputs)),
                "cached": float(cached),
                "uncached": float(exact_sum(inputs) - cached),
                **(_summary(inputs.astype(float)) or {}),
            },
            "output_len": _summary(tokens.astype(float)),
            "output_tokens": {
                "total": float(exact_sum(tokens)),
                **(_summary(tokens.astype(float)) or {}),
            },
        },
        "failures": {
            "count": tables.failed,
            "request_latency": None,
            "prompt_tokens": {"total": 0.0},
            "by_label": {},
        },
    }


def inference_perf_requests(tables: RunTables) -> list[dict[str, Any]]:
    """`per_request_lifecycle_metrics.json`; stamps in seconds since 1970.

    Each request of the workload has its place. One that did not finish has its status as the error.
    """
    needs_requests(tables)
    start = EPOCH_NS / 1e9 + seconds(tables.ps("arrival_ps"))
    end = EPOCH_NS / 1e9 + seconds(tables.ps("finish_ps"))
    inputs, tokens = tables.whole("input_tokens").tolist(), tables.whole("emitted_tokens").tolist()
    first = EPOCH_NS / 1e9 + seconds(tables.ps("first_token_ps"))
    gaps, sessions = tables.itl_lists(PS_PER_S), tables.text("session_id")
    rows = []
    for row in range(len(start)):
        times = np.concatenate(([0.0], np.cumsum(gaps[row]))) + first[row]
        entry: dict[str, Any] = {"start_time": float(start[row]), "end_time": float(end[row])}
        if sessions[row] is not None:
            entry["session_id"] = sessions[row]
        entry["info"] = {
            "request_metrics": {"text": {"input_tokens": inputs[row]}},
            "response_metrics": {
                "output_tokens": tokens[row],
                "output_token_times": times.tolist(),
                "server_usage": {
                    "prompt_tokens": inputs[row],
                    "completion_tokens": tokens[row],
                },
            },
        }
        rows.append({**entry, "error": None})
    return _with_failures(tables, rows)


def _with_failures(tables: RunTables, finished: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of finished requests, and of the others, in the order of the workload."""
    never = _failure("never sent", None, None, 0)
    rows = tables.of_all(finished, never)
    for one in tables.unfinished:
        rows[one.row] = _failure(one.status, one.arrival_ps, one.end_ps, one.input_tokens)
    return rows


def _failure(
    status: str, begin_ps: int | None, end_ps: int | None, input_tokens: int
) -> dict[str, Any]:
    """The row of a request that did not finish."""
    stamps = [None if ps is None else EPOCH_NS / 1e9 + ps / PS_PER_S for ps in (begin_ps, end_ps)]
    return {
        "start_time": stamps[0],
        "end_time": stamps[1],
        "info": {
            "request_metrics": {"text": {"input_tokens": input_tokens}},
            "response_metrics": None,
        },
        "error": {"error_type": status, "error_msg": f"the request did not finish: {status}"},
    }


def _summary(values: Floats) -> dict[str, float] | None:
    known = distribution(values)
    if not len(known):
        return None
    found = {"mean": float(known.mean()), "min": float(known.min()), "max": float(known.max())}
    for q in PERCENTILES:
        name = "median" if q == 50 else f"p{q:g}"
        found[name] = float(np.percentile(known, q))
    return found


def _per_second(amount: int, tables: RunTables) -> float:
    return amount / tables.duration_s if tables.duration_s else 0.0
