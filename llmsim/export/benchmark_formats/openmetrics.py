"""OpenMetrics text with timestamps: the history that Prometheus would have scraped from vLLM.

Gauges and counters come from the series, one sample per interval and engine; histograms of
latencies are cumulative at the same times. `promtool tsdb create-blocks-from openmetrics` loads it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llmsim.core import PS_PER_S, Int64
from llmsim.export.benchmark_formats.tables import EPOCH_NS, Floats, RunTables, seconds
from llmsim.export.benchmark_formats.vllm_metrics import NAMED, SUCCESS, Metric, full_name

_LONGEST = 500_000
"""Tokens of the last bucket of a histogram of tokens: a run folder does not say how long a sequence
may be.
"""


@dataclass(frozen=True)
class Histogram:
    """A histogram: where and when each value was seen, and the value."""

    metric: Metric
    group: Int64
    at_ps: Int64
    values: Floats

    @property
    def name(self) -> str:
        """As Prometheus knows it."""
        return full_name(self.metric.name)

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds."""
        assert self.metric.buckets is not None, "it is a histogram"
        return self.metric.buckets.bounds(_LONGEST)


def openmetrics(tables: RunTables) -> Iterator[str]:
    """The lines of the exposition, the last of which is `# EOF`."""
    engines = [int(group["group"]) for group in tables.summary["kv_cache"]]
    yield from _cache_config(tables)
    yield from _gauges(tables)
    yield from _counters(tables)
    times = _times(tables)
    for histogram in _histograms(tables):
        points = [_cumulative(histogram, engine, times) for engine in engines]
        yield from _families(tables, histogram, list(zip(engines, points, strict=True)), times)
    yield from _cached_prompts(tables, engines, times)
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
    gauges = {
        "num_requests_running": series["running"],
        "num_requests_waiting": series["waiting"],
        "kv_cache_usage_perc": series["kv_blocks_used"] / usable,
    }
    for name, values in gauges.items():
        yield from _head(full_name(name), NAMED[name].help, "gauge")
        yield from _rows(tables, full_name(name), values.tolist())


_COUNTED = {
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "num_preemptions": "preemptions",
    "prefix_cache_queries": "queried_tokens",
    "prefix_cache_hits": "hit_tokens",
}
"""The column of the series that each counter adds up."""


def _counters(tables: RunTables) -> Iterator[str]:
    series = tables.series
    for name, column in _COUNTED.items():
        totals = np.zeros(len(series[column]), dtype=np.int64)
        for engine in np.unique(series["group"]):
            mine = series["group"] == engine
            totals[mine] = np.cumsum(series[column][mine])
        yield from _head(full_name(name), NAMED[name].help, "counter")
        yield from _rows(tables, f"{full_name(name)}_total", totals.tolist())


def _rows(tables: RunTables, name: str, values: Sequence[float]) -> Iterator[str]:
    """The samples of a series' column, engine by engine in order of time."""
    group, times = tables.series["group"], tables.series["time_ps"]
    for engine in np.unique(group).tolist():
        labels = _labels(tables, int(engine))
        for row in np.flatnonzero(group == engine).tolist():
            yield f"{name}{labels} {values[row]:.12g} {_stamp(int(times[row]))}"


def _histograms(tables: RunTables) -> Iterator[Histogram]:
    """All are noted when a request ends, but for those of its tokens."""
    group = tables.whole("group")
    first, finish = tables.ps("first_token_ps"), tables.ps("finish_ps")
    scheduled, queued = tables.ps("scheduled_ps"), tables.ps("queued_ps")
    prompt, answer = tables.whole("input_tokens"), tables.whole("emitted_tokens")
    single = np.where(answer == 1, 0.0, tables.tpot_ps / PS_PER_S)
    ttft = seconds(tables.ps("ttft_ps"))
    yield Histogram(NAMED["time_to_first_token_seconds"], group, first, ttft)
    yield _token_gaps(tables)
    noted = {
        "e2e_request_latency_seconds": seconds(tables.ps("e2el_ps")),
        "request_queue_time_seconds": seconds(scheduled - queued),
        "request_prefill_time_seconds": seconds(first - scheduled),
        "request_decode_time_seconds": seconds(finish - first),
        "request_inference_time_seconds": seconds(finish - scheduled),
        "request_time_per_output_token_seconds": single,
        "request_prompt_tokens": prompt,
        "request_generation_tokens": answer,
        "request_max_num_generation_tokens": answer,
        "request_params_n": np.ones(len(answer)),
        "request_params_max_tokens": tables.whole("output_tokens"),
        "request_num_preemptions": tables.whole("preemptions"),
        "request_prefill_kv_computed_tokens": prompt - tables.whole("cached_tokens"),
    }
    for name, values in noted.items():
        yield Histogram(NAMED[name], group, finish, values.astype(np.float64))


def _token_gaps(tables: RunTables) -> Histogram:
    """The times between the steps that gave a request tokens: those of one step have none."""
    offsets, gaps = tables.itl
    lengths = np.diff(offsets)
    passed = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(gaps)))
    first = tables.ps("first_token_ps") - passed[offsets[:-1]]
    at_ps = np.repeat(first, lengths) + passed[1:]
    known = gaps > 0
    group = np.repeat(tables.whole("group"), lengths)
    metric = NAMED["inter_token_latency_seconds"]
    return Histogram(metric, group[known], at_ps[known], seconds(gaps[known]))


@dataclass(frozen=True)
class Points:
    """A histogram of one engine at each time: cumulative buckets, and sums."""

    buckets: Int64
    """Shape (times, buckets + 1); the last one is infinity."""
    sums: Floats


def _cumulative(histogram: Histogram, engine: int, times: list[int]) -> Points:
    known = (histogram.group == engine) & ~np.isnan(histogram.values)
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
    yield from _head(f"{histogram.name}_bucket", histogram.metric.help)
    names = [_float(f"{bound:g}") for bound in histogram.buckets] + ["+Inf"]
    for engine, points in of_engines:
        for column, name in enumerate(names):
            bucket_of = ',le="' + name + '"'
            labels = _labels(tables, engine, bucket_of)
            for stamp, count in zip(stamps, points.buckets[:, column].tolist(), strict=True):
                yield f"{histogram.name}_bucket{labels} {count} {stamp}"
    yield from _head(f"{histogram.name}_count", histogram.metric.help)
    for engine, points in of_engines:
        labels = _labels(tables, engine)
        for stamp, count in zip(stamps, points.buckets[:, -1].tolist(), strict=True):
            yield f"{histogram.name}_count{labels} {count} {stamp}"
    yield from _head(f"{histogram.name}_sum", histogram.metric.help)
    for engine, points in of_engines:
        labels = _labels(tables, engine)
        for stamp, total in zip(stamps, points.sums.tolist(), strict=True):
            yield f"{histogram.name}_sum{labels} {total:.12g} {stamp}"


def _head(name: str, text: str, kind: str = "unknown") -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"# HELP {name} {text}"


def _float(name: str) -> str:
    """OpenMetrics writes bounds as floats, such as 1.0."""
    return name if name == "+Inf" or "." in name or "e" in name else f"{name}.0"


def _cached_prompts(tables: RunTables, engines: list[int], times: list[int]) -> Iterator[str]:
    """Counted when requests first run, whatever becomes of them."""
    name = "prompt_tokens_cached"
    yield from _head(full_name(name), NAMED[name].help, "counter")
    at_ps, cached = _of_all(tables, "scheduled_ps"), _of_all(tables, "cached_tokens")
    ran, group = at_ps >= 0, _of_all(tables, "group")
    for engine in engines:
        mine = ran & (group == engine)
        order = np.argsort(at_ps[mine], kind="stable")
        totals = np.concatenate(([0], np.cumsum(cached[mine][order])))
        moments = np.searchsorted(at_ps[mine][order], times, "right")
        labels = _labels(tables, engine)
        for time_ps, total in zip(times, totals[moments].tolist(), strict=True):
            yield f"{full_name(name)}_total{labels} {total} {_stamp(time_ps)}"


def _of_all(tables: RunTables, name: str) -> Int64:
    """A column of all requests; -1 where it is null."""
    return np.asarray(tables.requests.column(name).fill_null(-1).to_numpy(), dtype=np.int64)


def _successes(tables: RunTables, engines: list[int], times: list[int]) -> Iterator[str]:
    status = np.asarray(tables.requests.column("status").to_pylist())
    group = _of_all(tables, "group")
    yield from _head(full_name(SUCCESS.name), SUCCESS.help, "counter")
    for reason, (ended_as, column) in _ENDS.items():
        at_ps = _of_all(tables, column)
        for engine in engines:
            mine = np.sort(at_ps[(status == ended_as) & (group == engine)])
            labels = _labels(tables, engine, f',finished_reason="{reason}"')
            for time_ps in times:
                count = int(np.searchsorted(mine, time_ps, "right"))
                yield f"vllm:request_success_total{labels} {count} {_stamp(time_ps)}"


_ENDS = {
    "length": ("finished", "finish_ps"),
    "abort": ("cancelled", "cancelled_ps"),
    "error": ("failed", "cancelled_ps"),
}
"""By reason, the status of such requests and the column that says when they ended."""
