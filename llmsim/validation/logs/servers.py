"""Logs of real servers: the engine's stamps, vLLM's benchmark, aiperf's records."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, shown
from llmsim.validation.logs.recording import (
    UNKNOWN,
    FailedRequests,
    Finding,
    Float64,
    Recording,
)
from llmsim.validation.logs.units import benchmark_units, check_clocks

Rows = Sequence[tuple[int, dict[str, Any]]]
"""Line number and object of each line of a JSONL file."""

Row = TypeVar("Row")
NS_PER_S = 1e9
_STAMPS = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
RECORDED_KINDS = (
    "vLLM engine log",
    "vLLM benchmark",
    "aiperf records",
    "GuideLLM report",
    "Inference-Perf records",
)
"""`Recording.kind` of logs of servers and of their clients."""
CLOCK_GRAIN_S = 1e-6
"""Epoch seconds in a 64-bit float are no finer."""
LARGEST_COUNT = 2**31 - 1
LARGEST_STAMP = 1e20
"""Of any clock, in any unit: nanoseconds since 1970 are below it."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def read_engine_log(path: Path, rows: Rows) -> Recording:
    """Stamps of vLLM's engine: `arrival_time` in epoch seconds, the others in seconds of a
    monotonic clock.

    The clocks are aligned by the smallest queued_ts - arrival_time: the quickest way from client to
    queue counts as 0. A request without a first or a last token (null) failed, and is left out with
    a finding.
    """
    named = [
        (str(row.get("request_id", index)), line, row) for index, (line, row) in enumerate(rows)
    ]
    good, failed = partitioned(named, lambda one: _has_tokens(one[2]))
    if not good:
        raise InputError(
            f"{path}: none of its {len(rows)} requests has a first and a last token", file=str(path)
        )
    stamps = {
        name: np.array([_number(path, line, row, name) for _, line, row in good])
        for name in _STAMPS
    }
    check_clocks(path, stamps)
    offset = float(np.min(stamps["queued_ts"] - stamps["arrival_time"]))
    arrival = stamps["arrival_time"] + offset
    findings = [*failed_findings(len(failed), len(rows)), *_order(arrival, stamps)]
    return Recording(
        source=str(path),
        kind="vLLM engine log",
        request_id=tuple(name for name, _, _ in good),
        arrival_s=arrival - arrival.min(),
        ttft_s=stamps["first_token_ts"] - arrival,
        latency_s=stamps["last_token_ts"] - arrival,
        input_tokens=np.array(
            [
                count_of(f"{path}:{line}: input_toks", row["input_toks"])
                if "input_toks" in row
                else UNKNOWN
                for _, line, row in good
            ],
            dtype=np.int64,
        ),
        output_tokens=np.array(
            [
                count_of(f"{path}:{line}: output_toks", row.get("output_toks"))
                for _, line, row in good
            ],
            dtype=np.int64,
        ),
        findings=tuple(findings),
        failed=FailedRequests.of(
            ((name, row.get("arrival_time")) for name, _, row in failed),
            float(stamps["arrival_time"].min()),
        ),
    )


def _has_tokens(row: dict[str, Any]) -> bool:
    """Whether a request of the engine's log has a first and a last token."""
    return all(row.get(name, 0) is not None for name in _STAMPS[2:])


def _order(arrival: Float64, stamps: dict[str, Float64]) -> list[Finding]:
    chain = (("arrival", arrival), *((name, stamps[name]) for name in _STAMPS[1:]))
    found = []
    for (earlier, before), (later, after) in pairwise(chain):
        wrong = int((after < before - CLOCK_GRAIN_S).sum())
        if wrong:
            sentence = f"the log's clocks disagree: {later} is before {earlier} in {wrong} requests"
            found.append(Finding("clocks", True, sentence))
    return found


def read_bench(path: Path, data: dict[str, Any]) -> Recording:
    """The JSON of `vllm bench serve --save-result --save-detailed`; times in seconds, as the client
    saw them.

    A request arrives when the client sent it (`start_times`; versions before 0.10 have none). Row i
    is the benchmark's request i. Failed requests are left out, with a finding.
    """
    count = _bench_requests(path, data)
    itls = _list(path, data, "itls", count) or [[]] * count
    errors = _list(path, data, "errors", count) or [""] * count
    lengths = [
        count_of(f"{path}: output_lens[{row}]", data["output_lens"][row]) for row in range(count)
    ]
    good, failed = partitioned(range(count), lambda row: not errors[row] and lengths[row] > 0)
    if not good:
        raise InputError(
            f"{path}: none of its {count} requests succeeded; there is nothing to compare",
            file=str(path),
        )
    ttft = _seconds(path, data, "ttfts", good)
    gaps = [_gaps(path, row, itls[row]) for row in good]
    given = _list(path, data, "latencies", count)
    total = (
        _seconds(path, data, "latencies", good)
        if given
        else ttft + np.array([math.fsum(gap) for gap in gaps])
    )
    start = _list(path, data, "start_times", count)
    arrival = _seconds(path, data, "start_times", good) if start else np.full(len(good), np.nan)
    outputs = np.array([lengths[row] for row in good], dtype=np.int64)
    inputs = _list(path, data, "input_lens", count)
    pooled = np.concatenate(gaps)
    findings = (
        failed_findings(len(failed), count)
        + backwards_findings(ttft, total)
        + benchmark_units(data, ttft)
    )
    if len(pooled):
        findings += _chunked([len(itls[row]) for row in good], outputs.tolist())
    return Recording(
        source=str(path),
        kind="vLLM benchmark",
        request_id=tuple(str(row) for row in good),
        arrival_s=arrival - arrival.min(),
        ttft_s=ttft,
        latency_s=total,
        input_tokens=np.array(
            [
                count_of(f"{path}: input_lens[{row}]", inputs[row]) if inputs else UNKNOWN
                for row in good
            ],
            dtype=np.int64,
        ),
        output_tokens=outputs,
        itl_s=pooled if len(pooled) else None,
        findings=tuple(findings),
        failed=FailedRequests.of(
            ((str(row), start[row] if start else None) for row in failed), float(arrival.min())
        ),
    )


def _bench_requests(path: Path, data: dict[str, Any]) -> int:
    """How many requests the benchmark sent; raises InputError for one without details."""
    for name in ("ttfts", "output_lens"):
        if not isinstance(data.get(name), list):
            raise InputError(
                f'{path}: there is no list "{name}"; run the benchmark with --save-result '
                "--save-detailed, or compare its means: llmsim validate RESULT.json RUN_DIR",
                file=str(path),
            )
    count, lengths = len(data["ttfts"]), len(data["output_lens"])
    if lengths != count:
        raise InputError(
            f'{path}: "output_lens" has {lengths} entries and "ttfts" {count}; both need one per '
            "request",
            file=str(path),
        )
    return count


def _chunked(gaps: list[int], outputs: list[int]) -> list[Finding]:
    """Requests with fewer inter-token latencies than tokens."""
    chunked = sum(count != tokens - 1 for count, tokens in zip(gaps, outputs, strict=True))
    if not chunked:
        return []
    sentence = f"{chunked} requests did not stream token by token: their ITLs are those of chunks"
    return [Finding("chunks", False, sentence)]


def _list(path: Path, data: dict[str, Any], name: str, count: int) -> list[Any] | None:
    values = data.get(name)
    if not values:
        return None
    if not isinstance(values, list) or len(values) != count:
        raise InputError(
            f'{path}: "{name}" must be a list as long as "ttfts", which has {count} entries',
            file=str(path),
        )
    return values


def _seconds(path: Path, data: dict[str, Any], name: str, rows: Sequence[int]) -> Float64:
    return np.array([finite_number(f"{path}: {name}[{row}]", data[name][row]) for row in rows])


def _gaps(path: Path, row: int, values: Any) -> Float64:
    """Inter-token latencies of one request."""
    where = f"{path}: itls[{row}]"
    if not isinstance(values, list):
        raise InputError(f"{where} is {shown(values)}; it must be a list of seconds")
    return np.array(
        [finite_number(f"{where}[{index}]", value) for index, value in enumerate(values)],
        dtype=np.float64,
    )


def backwards_findings(ttft: Float64, latency: Float64) -> list[Finding]:
    """First tokens before the request, and last tokens before the first."""
    wrong = int(((ttft < -CLOCK_GRAIN_S) | (latency < ttft - CLOCK_GRAIN_S)).sum())
    if not wrong:
        return []
    sentence = (
        f"the log's clocks disagree: in {wrong} requests a token comes before the request or the "
        "one before it"
    )
    return [Finding("clocks", True, sentence)]


def read_aiperf(path: Path, rows: Rows) -> Recording:
    """aiperf's profile_export.jsonl: one record per request, each metric with its unit; warm-up
    records are left out.

    A request arrives when the client started it; its number is the record's session_num.
    """
    for line, row in rows:
        if not isinstance(row.get("metadata"), dict) or not isinstance(
            row.get("metrics") or {}, dict
        ):
            raise InputError(
                f"{path}:{line}: metadata and metrics must be objects, as in aiperf's "
                "profile_export.jsonl",
                file=str(path),
            )
    measured = [
        (line, row)
        for line, row in rows
        if row["metadata"].get("benchmark_phase", "profiling") == "profiling"
    ]
    named = [
        (str(row["metadata"].get("session_num", index)), line, row)
        for index, (line, row) in enumerate(measured)
    ]
    succeeded, failed = partitioned(
        named, lambda one: not one[2].get("error") and bool(one[2].get("metrics"))
    )
    good = [(line, row) for _, line, row in succeeded]
    if not good:
        raise InputError(
            f"{path}: none of its {len(rows)} records is of a request that succeeded",
            file=str(path),
        )
    start = (
        np.array([_number(path, line, row["metadata"], "request_start_ns") for line, row in good])
        / NS_PER_S
    )
    pooled = _chunk_latencies(path, good)
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
        itl_s=pooled,
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


def _chunk_latencies(path: Path, rows: Rows) -> Float64 | None:
    """All of them in seconds; None where the records have none."""
    found = []
    for line, row in rows:
        chunk = row["metrics"].get("inter_chunk_latency")
        if not chunk:
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
    return np.concatenate(found) if found else None


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
        values.append(_number(path, line, metric, "value") * _unit(path, line, metric))
    return np.array(values)


def _unit(path: Path, line: int, metric: dict[str, Any]) -> float:
    unit = metric.get("unit")
    if not isinstance(unit, str) or unit not in _UNITS:
        raise InputError(
            f'{path}:{line}: the unit "{unit}" is not known; it may be {", ".join(_UNITS)}',
            file=str(path),
        )
    return _UNITS[unit]


def _tokens(
    path: Path, rows: Rows, name: str, *, needed: bool = False
) -> "np.ndarray[Any, np.dtype[np.int64]]":
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


def partitioned(
    rows: Iterable[Row], succeeded: Callable[[Row], bool]
) -> tuple[list[Row], list[Row]]:
    """The rows of requests that succeeded, and the others."""
    good: list[Row] = []
    failed: list[Row] = []
    for row in rows:
        (good if succeeded(row) else failed).append(row)
    return good, failed


def failed_findings(failed: int, total: int) -> list[Finding]:
    """What a comparison has to say of requests that failed."""
    if not failed:
        return []
    return [
        Finding(
            "failed",
            True,
            f"{failed} of the log's {total} requests failed; they loaded the server all the same",
        )
    ]


def _number(path: Path, line: int, row: dict[str, Any], name: str) -> float:
    if name not in row:
        raise InputError(f"{path}:{line}: {name} is missing; it must be a number", file=str(path))
    return finite_number(f"{path}:{line}: {name}", row.get(name))


def finite_number(where: str, value: Any) -> float:
    """The number of a log at `where`; raises InputError for anything else."""
    number = finite(value)
    if number is None or abs(number) > LARGEST_STAMP:
        raise InputError(
            f"{where} is {shown(value)}; it must be a number from {-LARGEST_STAMP:g} to "
            f"{LARGEST_STAMP:g}"
        )
    return number


def count_of(where: str, value: Any) -> int:
    """The token count of a log at `where`; raises InputError for anything else."""
    number = finite(value)
    if number is None or not 0 <= number <= LARGEST_COUNT or not number.is_integer():
        raise InputError(
            f"{where} is {shown(value)}; it must be a whole number of tokens up to {LARGEST_COUNT}"
        )
    return int(number)
