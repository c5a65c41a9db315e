"""Readers of published means: results of benchmark clients, and the metrics of a server."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llmsim.config.errors import InputError
from llmsim.config.files.reading import finite, shown
from llmsim.validation.logs.files import text_of

TIMES: Mapping[str, str] = MappingProxyType(
    {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "latency": "e2el"}
)
"""Our name of a time -> its name in the result of vLLM's benchmark."""
STATISTICS: Mapping[str, str] = MappingProxyType(
    {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
)
AIPERF: Mapping[str, str] = MappingProxyType(
    {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "latency": "request_latency"}
)
"""aiperf's inter-token latency is that of a request: (latency - TTFT) / (tokens - 1), which vLLM
calls TPOT.
"""
COUNTS = ("completed", "total_input_tokens", "total_output_tokens")
MLPERF: Mapping[str, str] = MappingProxyType(
    {
        "ttft": "result_first_token_latency",
        "tpot": "result_time_per_output_token",
        "latency": "result_latency",
    }
)
"""Our name of a time -> what the names of MLPerf's LoadGen begin with; nanoseconds."""
MLPERF_STATISTICS: Mapping[str, str] = MappingProxyType(
    {"mean": "mean"} | {f"p{q}": f"{q}.00_percentile" for q in (50, 90, 95, 99)}
)
METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ttft": ("vllm:time_to_first_token_seconds",),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "latency": ("vllm:e2e_request_latency_seconds",),
    }
)
"""Our name of a time -> vLLM's names of its histogram, the newest first."""
METRICS_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "completed": "vllm:request_success_total",
        "total_input_tokens": "vllm:prompt_tokens_total",
        "total_output_tokens": "vllm:generation_tokens_total",
    }
)
METRICS_SUM = "vllm:e2e_request_latency_seconds_sum"
"""A line that every text of vLLM's `/metrics` has."""
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})? (\S+)(?: \S+)?(?: #.*)?$")
LARGEST = 1e18
"""No figure of a run is larger, in any of the units."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


@dataclass(frozen=True)
class Means:
    """What was published of a run: `values` by our names (mean_ttft, p99_tpot, ...; seconds, tokens
    per second).
    """

    source: str
    kind: str
    values: Mapping[str, float]
    counts: Mapping[str, int]


def read_means(path: Path) -> Means | None:
    """The result of `vllm bench serve --save-result`, of `llmsim run --json`, aiperf's summary, a
    summary with MLPerf's names, or what vLLM's `/metrics` says; None: another file.

    A file with single requests is no table of means: `read_recording` reads it. Raises InputError
    for a number that is none.
    """
    try:
        text = text_of(path, "a table of means is JSON") if path.is_file() else ""
    except InputError:
        return None
    if METRICS_SUM in text:
        return _metrics(path, text)
    try:
        data = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("ttfts"):
        return None
    if isinstance(data.get("time_to_first_token"), dict):
        return _aiperf(path, data)
    if f"{MLPERF['latency']}_mean_ns" in data:
        return _mlperf(path, data)
    if not {f"mean_{name}_ms" for name in TIMES.values()} & data.keys():
        return None
    values = {
        f"{ours}_{name}": _number(path, key, data[key]) / 1e3
        for name, theirs in TIMES.items()
        for ours, word in STATISTICS.items()
        if data.get(key := f"{word}_{theirs}_ms") is not None
    }
    for ours, theirs in (("output_throughput", "output_throughput"), ("makespan", "duration")):
        if data.get(theirs) is not None:
            values[ours] = _number(path, theirs, data[theirs])
    counts = {
        name: int(_number(path, name, data[name])) for name in COUNTS if data.get(name) is not None
    }
    return Means(str(path), "published means", values, counts)


def _aiperf(path: Path, data: Mapping[str, Any]) -> Means:
    values = {}
    for name, key in AIPERF.items():
        metric = data.get(key)
        if not isinstance(metric, dict):
            continue
        unit = _UNITS.get(str(metric.get("unit")))
        if unit is None:
            raise InputError(
                f'{path}: {key}.unit is "{metric.get("unit")}"; it may be {", ".join(_UNITS)}',
                file=str(path),
            )
        for ours in STATISTICS:
            theirs = "avg" if ours == "mean" else ours
            if metric.get(theirs) is not None:
                values[f"{ours}_{name}"] = _number(path, f"{key}.{theirs}", metric[theirs]) * unit
    rate = data.get("output_token_throughput")
    if isinstance(rate, dict) and rate.get("avg") is not None:
        values["output_throughput"] = _number(path, "output_token_throughput.avg", rate["avg"])
    count = data.get("request_count")
    counts = {}
    if isinstance(count, dict) and count.get("avg") is not None:
        counts["completed"] = int(_number(path, "request_count.avg", count["avg"]))
    return Means(str(path), "aiperf summary", values, counts)


def _mlperf(path: Path, data: Mapping[str, Any]) -> Means:
    values = {
        f"{ours}_{name}": _number(path, key, data[key]) / 1e9
        for name, begin in MLPERF.items()
        for ours, word in MLPERF_STATISTICS.items()
        if data.get(key := f"{begin}_{word}_ns") is not None
    }
    rate = data.get("result_token_throughput")
    if rate is not None:
        values["output_throughput"] = _number(path, "result_token_throughput", rate)
    tokens = data.get("output_token_count")
    counts = (
        {}
        if tokens is None
        else {"total_output_tokens": int(_number(path, "output_token_count", tokens))}
    )
    return Means(str(path), "summary with MLPerf's names", values, counts)


def _metrics(path: Path, text: str) -> Means:
    """Means of histograms, over all engines of a server. Its sums count from its start on: they are
    those of one run where it served nothing else.
    """
    totals = _totals(path, text)
    values: dict[str, float] = {}
    for name, histograms in METRICS.items():
        for one in histograms:
            if totals.get(f"{one}_count"):
                values.setdefault(f"mean_{name}", totals[f"{one}_sum"] / totals[f"{one}_count"])
    if not values:
        raise InputError(
            f"{path}: {METRICS_SUM.removesuffix('_sum')}_count is 0; scrape the metrics after the "
            "server has answered requests",
            file=str(path),
        )
    counts = {
        name: int(totals[metric]) for name, metric in METRICS_COUNTS.items() if metric in totals
    }
    return Means(str(path), "metrics of vLLM", values, counts)


def _totals(path: Path, text: str) -> dict[str, float]:
    """The last sample of each series, added up over the labels of each name."""
    last = {(name, labels): value for name, labels, value in _samples(path, text)}
    totals: dict[str, float] = {}
    for (name, _), value in last.items():
        totals[name] = totals.get(name, 0.0) + value
    return totals


def _samples(path: Path, text: str) -> Iterator[tuple[str, str, float]]:
    wanted = {
        *(
            f"{one}_{part}"
            for names in METRICS.values()
            for one in names
            for part in ("sum", "count")
        ),
        *METRICS_COUNTS.values(),
    }
    for number, line in enumerate(text.splitlines(), 1):
        name = line.partition("{")[0].partition(" ")[0]
        if name not in wanted:
            continue
        found = _SAMPLE.match(line)
        try:
            value = float(found[3]) if found else None
        except ValueError:
            value = None
        if found is None or value is None:
            raise InputError(
                f"{path}:{number}: {shown(line)} is no sample of a metric; it needs a name, its "
                "labels and a number",
                file=str(path),
            )
        yield name, found[2] or "", _number(path, f"{name} in line {number}", value)


def _number(path: Path, name: str, value: Any) -> float:
    number = finite(value)
    if number is None or not 0 <= number <= LARGEST:
        raise InputError(
            f"{path}: {name} is {shown(value)}; it must be a number from 0 to {LARGEST:g}",
            file=str(path),
        )
    return number
