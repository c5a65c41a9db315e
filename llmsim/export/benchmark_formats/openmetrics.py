"""OpenMetrics text with timestamps: the history that Prometheus would have scraped from vLLM.

Gauges and counters come from the series, one sample per interval and engine; histograms of
latencies are cumulative at the same times. `promtool tsdb create-blocks-from openmetrics` loads it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmsim.core import PS_PER_S, Int64
from llmsim.export.benchmark_formats.tables import EPOCH_NS, Floats, RunTables, seconds

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_TIME_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TOKEN_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


@dataclass(frozen=True)
class Histogram:
    """A histogram: when each value was seen, and the value."""

    name: str
    help: str
    at_ps: Int64
    values: Floats
    buckets: tuple[float, ...]


def openmetrics(tables: RunTables) -> Iterator[str]:
    """The lines of the exposition, the last of which is `# EOF`."""
    engines = [int(group["group"]) for group in tables.summary["kv_cache"]]
    yield from _cache_config(tables)
    yield from _gauges(tables)
    yield from _counters(tables)
    group = tables.whole("group")
    times = _times(tables)
    for histogram in _histograms(tables):
        points = [_cumulative(histogram, group == engine, times) for engine in engines]
        yield from _families(tables, histogram, list(zip(engines, points, strict=True)), times)
    yield from _successes(tables, engines, times)
    yield "# EOF"


def _labels(tables: RunTables, engine: int, more: str = "") -> str:
    model = next(one["model"] for one in tables.summary["kv_cache"] if int(one["group"]) == engine)
    escaped = str(model).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{engine="{engine}",model_name="{escaped}"{more}}}'


def _stamp(time_ps: int) -> str:
    """Seconds since 1970, to the millisecond."""
    ms = EPOCH_NS // 1_000_000 + time_ps // 1_000_000_000
    return f"{ms // 1000}.{ms % 1000:03d}"


def _times(tables: RunTables) -> list[int]:
    recorded = np.asarray(tables.series.get("time_ps", ()), dtype=np.int64)
    last = tables.ps("finish_ps").max(initial=0)
    times: list[int] = np.unique(np.append(recorded, max(last, recorded.max(initial=0)))).tolist()
    return times


def _cache_config(tables: RunTables) -> Iterator[str]:
    yield "# TYPE vllm:cache_config info"
    yield "# HELP vllm:cache_config KV cache of each engine."
    for group in tables.summary["kv_cache"]:
        more = f',block_size="{group["block_size_tokens"]}",num_gpu_blocks="{group["num_blocks"]}"'
        yield f"vllm:cache_config_info{_labels(tables, int(group['group']), more)} 1"


def _gauges(tables: RunTables) -> Iterator[str]:
    series = tables.series
    blocks = {int(g["group"]): max(int(g["num_blocks"]) - 1, 1) for g in tables.summary["kv_cache"]}
    usable = np.array([blocks[int(group)] for group in series["group"]], dtype=np.float64)
    gauges = (
        ("vllm:num_requests_running", "Requests in execution.", series["running"]),
        ("vllm:num_requests_waiting", "Requests that wait.", series["waiting"]),
        (
            "vllm:kv_cache_usage_perc",
            "KV cache usage, 1 is full.",
            series["kv_blocks_used"] / usable,
        ),
    )
    for name, text, values in gauges:
        yield f"# TYPE {name} gauge"
        yield f"# HELP {name} {text}"
        yield from _rows(tables, name, values.tolist())


def _counters(tables: RunTables) -> Iterator[str]:
    series = tables.series
    counters = (
        ("vllm:prompt_tokens", "Prompt tokens processed.", "prompt_tokens"),
        ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
        ("vllm:num_preemptions", "Preemptions.", "preemptions"),
        ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "queried_tokens"),
        ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "hit_tokens"),
    )
    for name, text, column in counters:
        totals = np.zeros(len(series[column]), dtype=np.int64)
        for engine in np.unique(series["group"]):
            mine = series["group"] == engine
            totals[mine] = np.cumsum(series[column][mine])
        yield f"# TYPE {name} counter"
        yield f"# HELP {name} {text}"
        yield from _rows(tables, f"{name}_total", totals.tolist())


def _rows(tables: RunTables, name: str, values: Sequence[float]) -> Iterator[str]:
    """The samples of a series' column, engine by engine in order of time."""
    group, times = tables.series["group"], tables.series["time_ps"]
    for engine in np.unique(group).tolist():
        labels = _labels(tables, int(engine))
        for row in np.flatnonzero(group == engine).tolist():
            yield f"{name}{labels} {values[row]:.12g} {_stamp(int(times[row]))}"


def _histograms(tables: RunTables) -> Iterator[Histogram]:
    first, finish = tables.ps("first_token_ps"), tables.ps("finish_ps")
    scheduled, queued = tables.ps("scheduled_ps"), tables.ps("queued_ps")
    tokens = tables.whole("emitted_tokens")
    latencies = (
        ("time_to_first_token", "Time to first token.", first, tables.ps("ttft_ps"), TTFT_BUCKETS),
        (
            "e2e_request_latency",
            "End-to-end latency.",
            finish,
            tables.ps("e2el_ps"),
            LATENCY_BUCKETS,
        ),
        ("request_queue_time", "Time in the queue.", finish, scheduled - queued, LATENCY_BUCKETS),
        ("request_prefill_time", "Time in prefill.", finish, first - scheduled, LATENCY_BUCKETS),
        ("request_decode_time", "Time in decode.", finish, finish - first, LATENCY_BUCKETS),
        ("request_inference_time", "Time running.", finish, finish - scheduled, LATENCY_BUCKETS),
    )
    for name, text, at, value, buckets in latencies:
        yield Histogram(f"vllm:{name}_seconds", f"{text}", at, seconds(value), buckets)
    tpot = tables.tpot_ps / PS_PER_S
    yield Histogram(
        "vllm:request_time_per_output_token_seconds",
        "Mean time per output token of a request.",
        finish,
        tpot,
        TOKEN_TIME_BUCKETS,
    )
    counts = (
        ("prompt", tables.whole("input_tokens")),
        ("generation", tokens),
    )
    for name, value in counts:
        yield Histogram(
            f"vllm:request_{name}_tokens",
            f"Tokens of each {name}.",
            finish,
            value.astype(np.float64),
            TOKEN_BUCKETS,
        )


@dataclass(frozen=True)
class Points:
    """A histogram of one engine at each time: cumulative buckets, and sums."""

    buckets: Int64
    """Shape (times, buckets + 1); the last one is infinity."""
    sums: Floats


def _cumulative(
    histogram: Histogram, rows: "np.ndarray[Any, np.dtype[np.bool_]]", times: list[int]
) -> Points:
    known = rows & ~np.isnan(histogram.values)
    values, at = histogram.values[known], histogram.at_ps[known]
    moment = np.searchsorted(np.asarray(times), at)
    slot = np.searchsorted(histogram.buckets, values)
    counts = np.zeros((len(times), len(histogram.buckets) + 1), dtype=np.int64)
    np.add.at(counts, (moment, slot), 1)
    sums = np.zeros(len(times))
    np.add.at(sums, moment, values)
    return Points(np.cumsum(np.cumsum(counts, axis=0), axis=1), np.cumsum(sums))


def _families(
    tables: RunTables, histogram: Histogram, of_engines: list[tuple[int, Points]], times: list[int]
) -> Iterator[str]:
    """Buckets, counts and sums series by series, each over all times.

    They are of type unknown: OpenMetrics readers in Python lose the history of a histogram, and the
    database of Prometheus keeps no types.
    """
    stamps = [_stamp(time_ps) for time_ps in times]
    yield from _head(f"{histogram.name}_bucket", histogram.help)
    names = [_float(f"{bound:g}") for bound in histogram.buckets] + ["+Inf"]
    for engine, points in of_engines:
        for column, name in enumerate(names):
            bucket_of = ',le="' + name + '"'
            labels = _labels(tables, engine, bucket_of)
            for stamp, count in zip(stamps, points.buckets[:, column].tolist(), strict=True):
                yield f"{histogram.name}_bucket{labels} {count} {stamp}"
    yield from _head(f"{histogram.name}_count", histogram.help)
    for engine, points in of_engines:
        labels = _labels(tables, engine)
        for stamp, count in zip(stamps, points.buckets[:, -1].tolist(), strict=True):
            yield f"{histogram.name}_count{labels} {count} {stamp}"
    yield from _head(f"{histogram.name}_sum", histogram.help)
    for engine, points in of_engines:
        labels = _labels(tables, engine)
        for stamp, total in zip(stamps, points.sums.tolist(), strict=True):
            yield f"{histogram.name}_sum{labels} {total:.12g} {stamp}"


def _head(name: str, text: str) -> Iterator[str]:
    yield f"# TYPE {name} unknown"
    yield f"# HELP {name} {text}"


def _float(name: str) -> str:
    """OpenMetrics writes bounds as floats, such as 1.0."""
    return name if name == "+Inf" or "." in name or "e" in name else f"{name}.0"


def _successes(tables: RunTables, engines: list[int], times: list[int]) -> Iterator[str]:
    finish, group = tables.ps("finish_ps"), tables.whole("group")
    yield "# TYPE vllm:request_success counter"
    yield "# HELP vllm:request_success Requests that finished, by reason."
    for engine in engines:
        mine = np.sort(finish[group == engine])
        labels = _labels(tables, engine, ',finished_reason="length"')
        for time_ps in times:
            count = int(np.searchsorted(mine, time_ps, "right"))
            yield f"vllm:request_success_total{labels} {count} {_stamp(time_ps)}"
