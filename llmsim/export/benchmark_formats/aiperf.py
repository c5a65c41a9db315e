"""aiperf's summary `profile_export_aiperf.json` and its records `profile_export.jsonl`."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from llmsim.core import PS_PER_MS, PS_PER_NS
from llmsim.export.benchmark_formats.tables import (
    EPOCH_NS,
    Floats,
    RunTables,
    distribution,
    needs_requests,
)

SCHEMA_VERSION = "1.4"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def aiperf_summary(tables: RunTables) -> dict[str, Any]:
    """aiperf's summary; raises InputError where no request finished."""
    needs_requests(tables)
    summary = tables.summary
    metrics = {name: _block(unit, values) for name, (unit, values) in _of_requests(tables).items()}
    derived = {
        "request_throughput": ("requests/sec", summary["request_throughput"]),
        "output_token_throughput": ("tokens/sec", summary["output_throughput"]),
        "total_token_throughput": ("tokens/sec", summary["total_token_throughput"]),
        "request_count": ("requests", float(summary["completed"])),
        "error_request_count": ("requests", float(tables.failed)),
        "benchmark_duration": ("sec", tables.duration_s),
    }
    blocks = {name: {"unit": unit, "avg": value} for name, (unit, value) in derived.items()}
    return {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"llmsim {tables.version}",
        "benchmark_id": f"llmsim-{tables.seed}",
        "run_info": {
            "benchmark_id": f"llmsim-{tables.seed}",
            "random_seed": tables.seed,
            "trial": 0,
            "variation_label": "base",
            "variation_index": 0,
            "variation_values": {},
        },
        **metrics,
        **blocks,
        "was_cancelled": bool(summary["interrupted"]),
        "error_summary": [
            {"error_details": _error(status), "count": count}
            for status, count in sorted(Counter(one.status for one in tables.unfinished).items())
        ],
        "start_time": _iso(tables.start_ps),
        "end_time": _iso(int(tables.ps("finish_ps").max())),
    }


def aiperf_records(tables: RunTables) -> Iterator[dict[str, Any]]:
    """One record for each request that was sent, by its place in the workload as `session_num`.

    Finished requests come first. The others have their status as the error, and no metrics.
    """
    needs_requests(tables)
    yield from _finished_records(tables)
    for one in tables.unfinished:
        start = EPOCH_NS + one.arrival_ps // PS_PER_NS
        end = EPOCH_NS + one.end_ps // PS_PER_NS
        stamps = (start, start, end)
        yield {
            "metadata": _metadata(one.row, one.request_id, one.session_id, stamps)
            | {"was_cancelled": one.status == "cancelled"},
            "metrics": {},
            "error": _error(one.status),
        }


def _finished_records(tables: RunTables) -> Iterator[dict[str, Any]]:
    names, sessions = tables.text("request_id"), tables.text("session_id")
    start = EPOCH_NS + tables.ps("arrival_ps") // PS_PER_NS
    queued = EPOCH_NS + tables.ps("queued_ps") // PS_PER_NS
    end = EPOCH_NS + tables.ps("finish_ps") // PS_PER_NS
    metrics = {
        name: (unit, values.tolist()) for name, (unit, values) in _of_requests(tables).items()
    }
    gaps = tables.itl_lists(PS_PER_MS)
    for row, place in enumerate(tables.finished_rows.tolist()):
        stamps = (int(start[row]), int(queued[row]), int(end[row]))
        blocks: dict[str, Any] = {
            name: {"value": values[row], "unit": unit}
            for name, (unit, values) in metrics.items()
            if values[row] == values[row]
        }
        if gaps[row]:
            blocks["inter_chunk_latency"] = {"value": gaps[row], "unit": "ms"}
        yield {
            "metadata": _metadata(place, names[row], sessions[row], stamps),
            "metrics": blocks,
            "error": None,
        }


def _metadata(
    place: int, name: str | None, session: str | None, stamps_ns: tuple[int, int, int]
) -> dict[str, Any]:
    """What a record says of its request beside metrics; start, acknowledgement and end."""
    start, acknowledged, end = stamps_ns
    return {
        "session_num": place,
        "x_request_id": name,
        "x_correlation_id": session,
        "conversation_id": session,
        "turn_index": 0,
        "request_start_ns": start,
        "request_ack_ns": acknowledged,
        "request_end_ns": end,
        "worker_id": "llmsim",
        "record_processor_id": "llmsim",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
        "cancellation_time_ns": None,
    }


def _error(status: str) -> dict[str, Any]:
    """aiperf's details of a failure, of a request that did not finish."""
    return {"code": None, "type": status, "message": f"the request did not finish: {status}"}


def _of_requests(tables: RunTables) -> dict[str, tuple[str, Floats]]:
    """Metrics with a value for each finished request; NaN where it has none."""
    tpot = tables.tpot_ps
    tokens = tables.whole("emitted_tokens").astype(np.float64)
    ms = {
        "time_to_first_token": tables.ps("ttft_ps"),
        "inter_token_latency": tpot,
        "request_latency": tables.ps("e2el_ps"),
    }
    found = {name: ("ms", np.asarray(values / PS_PER_MS)) for name, values in ms.items()}
    second = np.full(len(tokens), np.nan)
    offsets, gaps = tables.itl
    several = np.flatnonzero(np.diff(offsets) > 0)
    second[several] = gaps[offsets[several]] / PS_PER_MS
    found["time_to_second_token"] = ("ms", second)
    with np.errstate(invalid="ignore", divide="ignore"):
        per_user = np.where(tpot > 0, 1e12 / tpot, np.nan)
    found["output_token_throughput_per_user"] = ("tokens/sec/user", per_user)
    found["input_sequence_length"] = ("tokens", tables.whole("input_tokens").astype(np.float64))
    found["output_sequence_length"] = ("tokens", tokens)
    return found


def _block(unit: str, values: Floats) -> dict[str, Any]:
    known = distribution(values)
    if not len(known):
        return {"unit": unit}
    return {
        "unit": unit,
        "avg": float(known.mean()),
        **{f"p{q}": float(np.percentile(known, q)) for q in PERCENTILES},
        "min": float(known.min()),
        "max": float(known.max()),
        "std": float(known.std()),
        "count": len(known),
        "sum": float(known.sum()),
    }


def _iso(time_ps: int) -> str:
    at = datetime.fromtimestamp((EPOCH_NS // 1000 + time_ps // 1_000_000) / 1e6, UTC)
    return at.replace(tzinfo=None).isoformat()
