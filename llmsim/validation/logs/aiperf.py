"""aiperf's records of single requests."""

from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.plurals import counted
from llmsim.validation.logs.fields import Rows, count_of, finite_number, number_at, partitioned
from llmsim.validation.logs.findings import backwards_findings, failed_findings
from llmsim.validation.logs.recording import (
    UNKNOWN,
    FailedRequests,
    Float64,
    Int64,
    Recording,
    counts_of,
)

NS_PER_S = 1e9
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def read_aiperf(path: Path, rows: Rows) -> Recording:
    """aiperf's profile_export.jsonl: one record per request, each metric with its unit; warm-up
    records are left out.

    A request arrives when the client started it; its number is the record's session_num.
    """
    measured = _measured(path, rows)
    succeeded, failed = partitioned(
        measured, lambda one: not one[2].get("error") and bool(one[2].get("metrics"))
    )
    good = [(line, row) for _, line, row in succeeded]
    if not good:
        raise InputError(
            f"{path}: none of its {counted(len(rows), 'record')} is of a request that succeeded",
            file=str(path),
        )
    start = (
        np.array([number_at(path, line, row["metadata"], "request_start_ns") for line, row in good])
        / NS_PER_S
    )
    gaps = _chunk_latencies(path, good)
    pooled = np.concatenate(gaps)
    ttft, latency = (
        _metric(path, good, "time_to_first_token"),
        _metric(path, good, "request_latency"),
    )
    return Recording(
        source=str(path),
        kind="aiperf records",
        request_id=tuple(name for name, _, _ in succeeded),
        arrival_s=start - start.min(),
        ttft_s=ttft,
        latency_s=latency,
        input_tokens=_tokens(path, good, "input_sequence_length"),
        output_tokens=_tokens(path, good, "output_sequence_length", needed=True),
        itl_s=pooled if len(pooled) else None,
        itl_counts=counts_of(gaps),
        findings=(
            *failed_findings(len(failed), len(measured)),
            *backwards_findings(ttft, latency),
        ),
        failed=FailedRequests.of(
            ((name, row["metadata"].get("request_start_ns")) for name, _, row in failed),
            float(start.min()) * NS_PER_S,
            NS_PER_S,
        ),
    )


def _measured(path: Path, rows: Rows) -> list[tuple[str, int, dict[str, Any]]]:
    """Name, line and record of each request after the warm-up; raises InputError for records of
    another shape.
    """
    for line, row in rows:
        has_metrics = isinstance(row.get("metrics") or {}, dict)
        if not has_metrics or not isinstance(row.get("metadata"), dict):
            raise InputError(
                f"{path}:{line}: metadata and metrics must be objects, as in aiperf's "
                "profile_export.jsonl",
                file=str(path),
            )
    profiled = [
        (line, row)
        for line, row in rows
        if row["metadata"].get("benchmark_phase", "profiling") == "profiling"
    ]
    return [
        (str(row["metadata"].get("session_num", index)), line, row)
        for index, (line, row) in enumerate(profiled)
    ]


def _chunk_latencies(path: Path, rows: Rows) -> list[Float64]:
    """Those of each record in seconds; none where a record has none."""
    found: list[Float64] = []
    for line, row in rows:
        chunk = row["metrics"].get("inter_chunk_latency")
        if not chunk:
            found.append(np.empty(0))
            continue
        if not isinstance(chunk, dict) or not isinstance(chunk.get("value"), list):
            raise InputError(
                f"{path}:{line}: metrics.inter_chunk_latency has no list of values", file=str(path)
            )
        values = [
            finite_number(f"{path}:{line}: metrics.inter_chunk_latency", value)
            for value in chunk["value"]
        ]
        found.append(np.array(values, dtype=np.float64) * _unit(path, line, chunk))
    return found


def _metric(path: Path, rows: Rows, name: str) -> Float64:
    """A metric of every record, seconds."""
    values = []
    for line, row in rows:
        metric = row["metrics"].get(name)
        if not isinstance(metric, dict):
            raise InputError(
                f"{path}:{line}: metrics.{name} is missing; run aiperf with --streaming",
                file=str(path),
            )
        values.append(number_at(path, line, metric, "value") * _unit(path, line, metric))
    return np.array(values)


def _unit(path: Path, line: int, metric: dict[str, Any]) -> float:
    unit = metric.get("unit")
    if not isinstance(unit, str) or unit not in _UNITS:
        raise InputError(
            f'{path}:{line}: the unit "{unit}" is not known; it may be {", ".join(_UNITS)}',
            file=str(path),
        )
    return _UNITS[unit]


def _tokens(path: Path, rows: Rows, name: str, *, needed: bool = False) -> Int64:
    """Token counts; UNKNOWN where a record has none, unless it is `needed`."""
    counts = []
    for line, row in rows:
        metric = row["metrics"].get(name)
        value = metric.get("value") if isinstance(metric, dict) else metric
        if value is None and needed:
            raise InputError(f"{path}:{line}: metrics.{name} is missing", file=str(path))
        counts.append(
            UNKNOWN if value is None else count_of(f"{path}:{line}: metrics.{name}", value)
        )
    return np.array(counts, dtype=np.int64)
