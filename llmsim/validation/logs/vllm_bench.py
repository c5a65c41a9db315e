"""The result of `vllm bench serve` with the details of each request."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmsim.config.errors import InputError
from llmsim.config.files.reading import shown
from llmsim.plurals import counted, plural
from llmsim.validation.logs.fields import count_of, finite_number, partitioned
from llmsim.validation.logs.findings import backwards_findings, failed_findings
from llmsim.validation.logs.recording import (
    UNKNOWN,
    FailedRequests,
    Finding,
    Float64,
    Recording,
    counts_of,
)
from llmsim.validation.logs.units import benchmark_units


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
            f"{path}: none of its {counted(count, 'request')} succeeded; there is nothing to "
            "compare",
            file=str(path),
        )
    ttft = _seconds(path, data, "ttfts", good)
    gaps = [_gaps(path, row, itls[row]) for row in good]
    given = _list(path, data, "latencies", count)
    by_gaps = ttft + np.array([math.fsum(gap) for gap in gaps])
    total = _seconds(path, data, "latencies", good) if given else by_gaps
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
        itl_counts=counts_of(gaps),
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
    who, whose = plural(chunked, "request"), plural(chunked, "its", "their")
    sentence = f"{chunked} {who} did not stream token by token: {whose} ITLs are those of chunks"
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
