"""GuideLLM's `benchmarks.json`: one benchmark with metrics by status and every request's stamps."""

from typing import Any

import numpy as np

from llmsim.core import PS_PER_MS, PS_PER_S
from llmsim.export.benchmark_formats.tables import (
    EPOCH_NS,
    Floats,
    RunTables,
    Unfinished,
    distribution,
    needs_requests,
    seconds,
)

EPOCH_S = EPOCH_NS / 1e9
SCHEMA_VERSION = 2
MODALITIES = {
    "text": ("tokens", "words", "characters"),
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}
PERCENTILES = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90,
    "p95": 95, "p99": 99, "p999": 99.9,
}  # fmt: skip


def guidellm_report(tables: RunTables) -> dict[str, Any]:
    """The report; raises InputError where no request finished."""
    needs_requests(tables)
    begin, end = tables.ps("arrival_ps"), tables.ps("finish_ps")
    first, last = EPOCH_S + int(begin.min()) / PS_PER_S, EPOCH_S + int(end.max()) / PS_PER_S
    return {
        "metadata": {
            "version": SCHEMA_VERSION,
            "guidellm_version": f"llmsim {tables.version}",
            "python_version": "",
            "platform": "llmsim",
        },
        "config": _scenario(tables),
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                "config": _config(tables),
                "scheduler_state": _state(tables, first, last),
                "scheduler_metrics": _scheduler(tables, first, last),
                "metrics": _metrics(tables),
                "requests": {
                    "successful": _requests(tables),
                    "errored": [_errored(one) for one in tables.unfinished],
                    "incomplete": [],
                    "total": None,
                },
                "start_time": first,
                "end_time": last,
                "duration": last - first,
                "warmup_duration": 0.0,
                "cooldown_duration": 0.0,
            }
        ],
    }


def _scenario(tables: RunTables) -> dict[str, Any]:
    backend = {"kind": "openai_http", "target": "http://llmsim", "model": tables.model}
    return {
        "spec": {
            "backend": backend,
            "data": [{"kind": "synthetic_text", "prompt_tokens": 1, "output_tokens": 1}],
            "profile": {"kind": "throughput", "max_concurrency": None},
        }
    }


def _config(tables: RunTables) -> dict[str, Any]:
    return {
        "id_": f"llmsim-{tables.seed}",
        "run_id": f"llmsim-{tables.seed}",
        "run_index": 0,
        "strategy": {"type_": "throughput", "max_concurrency": None},
        "constraints": {},
        "profile": {"type_": "throughput"},
        "requests": {"data": tables.summary["workload"]["source"]},
        "backend": {"type_": "llmsim", "model": tables.model},
        "environment": {"type_": "llmsim", "version": tables.version},
    }


def _state(tables: RunTables, first: float, last: float) -> dict[str, Any]:
    done = len(tables.finished)
    return {
        "node_id": 0,
        "num_processes": 1,
        "start_time": first,
        "end_time": last,
        "end_queuing_time": last,
        "end_processing_time": last,
        "created_requests": len(tables.requests),
        "queued_requests": 0,
        "pending_requests": 0,
        "processing_requests": 0,
        "processed_requests": len(tables.requests),
        "successful_requests": done,
        "errored_requests": tables.failed,
        "cancelled_requests": 0,
    }


def _scheduler(tables: RunTables, first: float, last: float) -> dict[str, Any]:
    delays = (
        "resolve_start_delay_avg",
        "resolve_targeted_start_delay_avg",
        "request_start_delay_avg",
        "request_targeted_start_delay_avg",
        "resolve_end_delay_avg",
        "finalized_delay_avg",
        "processed_delay_avg",
    )
    latency = float(seconds(tables.ps("e2el_ps")).mean())
    return {
        "start_time": first,
        "request_start_time": first,
        "measure_start_time": first,
        "measure_end_time": last,
        "request_end_time": last,
        "end_time": last,
        "requests_made": _counts(tables),
        "queued_time_avg": 0.0,
        **dict.fromkeys(delays, 0.0),
        "request_time_avg": latency,
        "resolve_time_avg": latency,
        "strategy_type": "throughput",
    }


def _counts(tables: RunTables) -> dict[str, int]:
    return {
        "successful": len(tables.finished),
        "errored": tables.failed,
        "incomplete": 0,
        "total": len(tables.requests),
    }


def _metrics(tables: RunTables) -> dict[str, Any]:
    inputs = tables.whole("input_tokens").astype(float)
    outputs = tables.whole("emitted_tokens").astype(float)
    latency = seconds(tables.ps("e2el_ps"))
    ttft, tpot = tables.ps("ttft_ps") / PS_PER_MS, tables.tpot_ps / PS_PER_MS
    busy = float(latency.sum())
    rates = {
        "requests_per_second": tables.summary["request_throughput"],
        "request_concurrency": busy / tables.duration_s if tables.duration_s else 0.0,
        "prompt_tokens_per_second": inputs.sum() / tables.duration_s if tables.duration_s else 0.0,
        "output_tokens_per_second": tables.summary["output_throughput"],
        "tokens_per_second": tables.summary["total_token_throughput"],
    }
    values = {
        "request_latency": latency,
        "request_streaming_iterations_count": outputs,
        "prompt_token_count": inputs,
        "output_token_count": outputs,
        "total_token_count": inputs + outputs,
        "time_to_first_token_ms": ttft,
        "time_to_first_output_token_ms": ttft,
        "time_per_output_token_ms": latency * 1e3 / outputs,
        "inter_token_latency_ms": tpot,
        "time_to_last_round_trip_ms": latency * 1e3,
        "avg_round_trip_time_ms": latency * 1e3,
        "output_tokens_per_iteration": np.ones(len(outputs)),
        "iter_tokens_per_iteration": np.ones(len(outputs)),
    }
    return {
        "request_totals": _counts(tables),
        **{name: _by_status(np.array([value or 0.0])) for name, value in rates.items()},
        **{name: _by_status(value) for name, value in values.items()},
        **{name: dict.fromkeys(parts) for name, parts in MODALITIES.items()},
    }


def _by_status(values: Floats) -> dict[str, Any]:
    """The distribution of the finished requests, which is that of all that have a value."""
    mine, none = _distribution(values), _distribution(np.zeros(0))
    return {"successful": mine, "errored": none, "incomplete": none, "total": mine}


def _distribution(values: Floats) -> dict[str, Any]:
    known = distribution(values)
    if not len(known):
        names = ("mean", "median", "mode", "variance", "std_dev", "min", "max", "total_sum")
        zero = dict.fromkeys(names, 0.0)
        return {**zero, "count": 0, "percentiles": dict.fromkeys(PERCENTILES, 0.0)}
    distinct, counts = np.unique(known, return_counts=True)
    return {
        "mean": float(known.mean()),
        "median": float(np.median(known)),
        "mode": float(distinct[np.argmax(counts)]),
        "variance": float(known.var()),
        "std_dev": float(known.std()),
        "min": float(known.min()),
        "max": float(known.max()),
        "count": len(known),
        "total_sum": float(known.sum()),
        "percentiles": {name: float(np.percentile(known, q)) for name, q in PERCENTILES.items()},
    }


def _requests(tables: RunTables) -> list[dict[str, Any]]:
    names = tables.text("request_id")
    start = (EPOCH_S + seconds(tables.ps("arrival_ps"))).tolist()
    first = (EPOCH_S + seconds(tables.ps("first_token_ps"))).tolist()
    end = (EPOCH_S + seconds(tables.ps("finish_ps"))).tolist()
    scheduled = (EPOCH_S + seconds(tables.ps("scheduled_ps"))).tolist()
    inputs, outputs = tables.whole("input_tokens").tolist(), tables.whole("emitted_tokens").tolist()
    ttft = (tables.ps("ttft_ps") / PS_PER_MS).tolist()
    latency, tpot = seconds(tables.ps("e2el_ps")).tolist(), (tables.tpot_ps / PS_PER_MS).tolist()
    rows = []
    for row, name in enumerate(names):
        timings = {
            "targeted_start": start[row],
            "queued": start[row],
            "dequeued": start[row],
            "scheduled_at": scheduled[row],
            "resolve_start": start[row],
            "request_start": start[row],
            "first_request_iteration": first[row],
            "first_token_iteration": first[row],
            "first_output_token_iteration": first[row],
            "last_token_iteration": end[row],
            "last_request_iteration": end[row],
            "request_iterations": outputs[row],
            "token_iterations": outputs[row],
            "request_end": end[row],
            "resolve_end": end[row],
            "finalized": end[row],
        }
        rows.append(
            {
                "type_": "generative_request_stats",
                "request_id": name,
                "info": {"request_id": name, "status": "completed", "timings": timings},
                "input_metrics": {"text_tokens": inputs[row]},
                "output_metrics": {"text_tokens": outputs[row]},
                "request_start_time": start[row],
                "request_end_time": end[row],
                "request_latency": latency[row],
                "prompt_tokens": inputs[row],
                "output_tokens": outputs[row],
                "total_tokens": inputs[row] + outputs[row],
                "time_to_first_token_ms": ttft[row],
                "inter_token_latency_ms": None if tpot[row] != tpot[row] else tpot[row],
            }
        )
    return rows


def _errored(one: Unfinished) -> dict[str, Any]:
    """A request that was sent and did not finish; GuideLLM keeps its stamps and its error."""
    begin, end = EPOCH_S + one.arrival_ps / PS_PER_S, EPOCH_S + one.end_ps / PS_PER_S
    sent = ("targeted_start", "queued", "dequeued", "scheduled_at", "resolve_start")
    timings = dict.fromkeys((*sent, "request_start"), begin)
    timings |= dict.fromkeys(("request_end", "resolve_end", "finalized"), end)
    return {
        "type_": "generative_request_stats",
        "request_id": one.request_id,
        "info": {
            "request_id": one.request_id,
            "status": "errored",
            "error": f"the request did not finish: {one.status}",
            "timings": timings,
        },
        "input_metrics": {"text_tokens": one.input_tokens},
        "output_metrics": {"text_tokens": one.emitted_tokens},
        "request_start_time": begin,
        "request_end_time": end,
        "request_latency": end - begin,
        "prompt_tokens": one.input_tokens,
        "output_tokens": one.emitted_tokens,
        "total_tokens": one.input_tokens + one.emitted_tokens,
        "time_to_first_token_ms": None,
        "inter_token_latency_ms": None,
    }
