"""`/metrics` with vLLM's names, in the form that Prometheus reads."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from llmsim.core import PS_PER_S, GroupInfo, Status
from llmsim.endpoint.engine.async_engine import Stream
from llmsim.endpoint.engine.live import LiveSimulation
from llmsim.export.benchmark_formats.openmetrics import (
    LATENCY_BUCKETS,
    TOKEN_BUCKETS,
    TOKEN_TIME_BUCKETS,
    TTFT_BUCKETS,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens processed.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
    ("vllm:num_preemptions", "Preemptions.", "preemptions"),
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "prefix_queried_tokens"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "prefix_hit_tokens"),
)
"""(name, help, column of the totals of groups)."""

_UNDER_WAY = (Status.PENDING, Status.WAITING, Status.PARKED, Status.RUNNING)
REASONS = {Status.FINISHED: "length", Status.CANCELLED: "abort", Status.FAILED: "error"}


class Metrics(Collector):
    """Histograms of what clients have seen; gauges and counters are asked when somebody scrapes."""

    def __init__(
        self,
        live: LiveSimulation,
        groups: Sequence[GroupInfo],
        models: Sequence[str],
        max_loras: int | None = None,
    ) -> None:
        """`models`: the names under which the deployment's models are served."""
        self._live, self._groups, self._models = live, groups, models
        self._max_loras = max_loras
        self._adapted: dict[int, Stream] = {}
        """Requests with an adapter that are under way, by their number."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Time to first token.", TTFT_BUCKETS
        )
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Time between tokens.", TOKEN_TIME_BUCKETS
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time per output token of a request.",
            TOKEN_TIME_BUCKETS,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "End-to-end latency.", LATENCY_BUCKETS
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "Time in decode.", LATENCY_BUCKETS
        )
        self._prompt = self._histogram(
            "request_prompt_tokens", "Tokens of each prompt.", TOKEN_BUCKETS
        )
        self._generation = self._histogram(
            "request_generation_tokens", "Tokens of each answer.", TOKEN_BUCKETS
        )
        self._success = Counter(
            "vllm:request_success",
            "Requests that finished, by reason.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        for model in models:
            for histogram in (
                self._ttft, self._itl, self._tpot, self._e2e, self._decode, self._prompt,
                self._generation,
            ):  # fmt: skip
                histogram.labels(model)
            for reason in REASONS.values():
                self._success.labels(model, reason)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"vllm:{name}", text, ("model_name",), buckets=buckets, registry=self._registry
        )

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def asked(self, stream: Stream) -> None:
        """A request has come."""
        if stream.adapter is not None:
            self._adapted[stream.number] = stream
        self._prompt.labels(self._models[stream.model]).observe(len(stream.prompt))

    def tokens(self, stream: Stream, more: int, time_ps: int) -> None:
        """It has more tokens."""
        model = self._models[stream.model]
        if stream.tokens == 0:
            self._ttft.labels(model).observe((time_ps - stream.arrival_ps) / PS_PER_S)
        else:
            self._itl.labels(model).observe((time_ps - stream.last_ps) / PS_PER_S)

    def ended(self, stream: Stream, time_ps: int) -> None:
        """It has ended."""
        self._adapted.pop(stream.number, None)
        if stream.status not in REASONS:
            return
        model = self._models[stream.model]
        self._success.labels(model, REASONS[stream.status]).inc()
        if stream.status != Status.FINISHED:
            return
        self._generation.labels(model).observe(stream.tokens)
        self._e2e.labels(model).observe((time_ps - stream.arrival_ps) / PS_PER_S)
        decode_s = (time_ps - stream.first_ps) / PS_PER_S
        self._decode.labels(model).observe(decode_s)
        if stream.tokens > 1:
            self._tpot.labels(model).observe(decode_s / (stream.tokens - 1))

    def collect(self) -> "Iterator[Metric]":
        """Gauges and counters of every engine, as they stand now."""
        gauges = self._live.gauges()
        named: list[tuple[str, str, list[float]]] = [
            ("vllm:num_requests_running", "Requests in execution.", [g.running for g in gauges]),
            ("vllm:num_requests_waiting", "Requests that wait.", [g.waiting for g in gauges]),
            (
                "vllm:kv_cache_usage_perc",
                "KV cache usage, 1 is full.",
                [g.kv_blocks_used / max(g.kv_blocks, 1) for g in gauges],
            ),
        ]
        labels = ("engine", "model_name")
        for name, text, values in named:
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for group, value in zip(self._groups, values, strict=True):
                gauge.add_metric(self._labels(group), value)
            yield gauge
        totals = self._live.counters()
        for name, text, column in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=labels)
            for group, total in zip(self._groups, totals[column], strict=True):
                counter.add_metric(self._labels(group), total)
            yield counter
        cache = InfoMetricFamily("vllm:cache_config", "KV cache of each engine.", labels=labels)
        for group in self._groups:
            about = {"block_size": str(group.block_size), "num_gpu_blocks": str(group.num_blocks)}
            cache.add_metric(self._labels(group), about)
        yield cache
        if self._max_loras is not None:
            yield self._lora_requests()

    def _lora_requests(self) -> GaugeMetricFamily:
        """vLLM's: which adapters run and wait stands in the labels, and the time is the value."""
        streams = list(self._adapted.values())
        found: dict[bool, dict[str, None]] = {True: {}, False: {}}
        statuses = self._live.statuses([stream.row for stream in streams])
        for stream, status in zip(streams, statuses, strict=True):
            assert stream.adapter is not None, "only those are kept"
            if status in _UNDER_WAY:
                found[status == Status.RUNNING].setdefault(stream.adapter.name)
        running, waiting = (",".join(found[runs]) for runs in (True, False))
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        gauge = GaugeMetricFamily(
            "vllm:lora_requests_info", "Running stats on lora requests.", labels=labels
        )
        gauge.add_metric((str(self._max_loras), waiting, running), self._live.now_ps / PS_PER_S)
        return gauge

    def _labels(self, group: GroupInfo) -> tuple[str, str]:
        return str(group.index), group.model_name
