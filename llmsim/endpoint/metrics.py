"""`/metrics` with vLLM's names, in the form that Prometheus reads."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from llmsim.core import PS_PER_S, GroupInfo, Status
from llmsim.endpoint.engine.async_engine import Stream
from llmsim.endpoint.engine.live import LiveSimulation
from llmsim.endpoint.engine_metrics import EngineMetrics, EngineOptions, engine_labels
from llmsim.export.benchmark_formats.vllm_metrics import (
    ADMISSION_REASONS,
    ENGINE_LABELS,
    FINISH_REASONS,
    HISTOGRAMS,
    REJECTIONS,
    SUCCESS,
    full_name,
    labels_of,
)
from llmsim.export.benchmark_formats.vllm_metrics import Metric as Named

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_UNDER_WAY = (Status.PENDING, Status.WAITING, Status.PARKED, Status.RUNNING)
REASONS = {Status.FINISHED: "length", Status.CANCELLED: "abort", Status.FAILED: "error"}


class Metrics(Collector):
    """Counts what requests went through; `EngineMetrics` asks the simulation for the rest."""

    def __init__(
        self,
        live: LiveSimulation,
        groups: Sequence[GroupInfo],
        models: Sequence[str],
        options: Sequence[EngineOptions],
        max_loras: int | None = None,
    ) -> None:
        """`models`: the names under which the deployment's models are served; `options` has an
        entry for each group.
        """
        self._live, self._groups, self._models = live, groups, models
        self._max_loras = max_loras
        self._adapted: dict[int, Stream] = {}
        """Requests with an adapter that are under way, by their number."""
        self._registry = CollectorRegistry()
        self._registry.register(EngineMetrics(live, groups, options))
        self._registry.register(self)
        longest = max(group.max_model_len for group in groups)
        self._histograms = {metric.name: self._histogram(metric, longest) for metric in HISTOGRAMS}
        """By name, the histogram of each group: a server observes a value with every token."""
        self._success = Counter(
            full_name(SUCCESS.name), SUCCESS.help, labels_of(SUCCESS), registry=self._registry
        )
        self._rejections = Counter(
            full_name(REJECTIONS.name),
            REJECTIONS.help,
            ("model_name", *REJECTIONS.labels),
            registry=self._registry,
        )
        for group in groups:
            for reason in FINISH_REASONS:
                self._success.labels(*engine_labels(group), reason)
        for model in models:
            for reason in ADMISSION_REASONS:
                self._rejections.labels(model, reason)

    def _histogram(self, metric: Named, max_model_len: int) -> list[Histogram]:
        assert metric.buckets is not None, "it is a histogram"
        whole = Histogram(
            full_name(metric.name),
            metric.help,
            ENGINE_LABELS,
            buckets=metric.buckets.bounds(max_model_len),
            registry=self._registry,
        )
        return [whole.labels(*engine_labels(group)) for group in self._groups]

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def asked(self, stream: Stream) -> None:
        """A request has come."""
        if stream.adapter is not None:
            self._adapted[stream.number] = stream

    def refused(self, stream: Stream) -> None:
        """A request is turned away, since too many are under way."""
        self._rejections.labels(self._models[stream.model], ADMISSION_REASONS[0]).inc()

    def tokens(self, stream: Stream, more: int, time_ps: int) -> None:
        """It has more tokens."""
        if stream.tokens == 0:
            waited_ps = time_ps - stream.arrival_ps
            self._observe(stream, "time_to_first_token_seconds", waited_ps / PS_PER_S)
        else:
            gap_ps = time_ps - stream.last_ps
            self._observe(stream, "inter_token_latency_seconds", gap_ps / PS_PER_S)

    def ended(self, stream: Stream, time_ps: int) -> None:
        """It has ended."""
        self._adapted.pop(stream.number, None)
        if stream.status == Status.REFUSED:
            self.refused(stream)
        if stream.status not in REASONS:
            return
        self._success.labels(*self._labels(stream), REASONS[stream.status]).inc()
        if stream.status == Status.FINISHED:
            self._finished(stream, time_ps)

    def _finished(self, stream: Stream, time_ps: int) -> None:
        """What vLLM counts of a request that ends, with the engine's own times."""
        progress = stream.progress
        assert progress is not None, "a request that finished has run"
        decode_ps = progress.finish_ps - progress.first_token_ps
        times_ps = {
            "e2e_request_latency": time_ps - stream.arrival_ps,
            "request_queue_time": progress.scheduled_ps - progress.queued_ps,
            "request_prefill_time": progress.first_token_ps - progress.scheduled_ps,
            "request_decode_time": decode_ps,
            "request_inference_time": progress.finish_ps - progress.scheduled_ps,
            "request_time_per_output_token": decode_ps / max(stream.tokens - 1, 1),
        }
        for name, value_ps in times_ps.items():
            self._observe(stream, f"{name}_seconds", value_ps / PS_PER_S)
        computed = stream.prompt_tokens - progress.cached_tokens
        self._observe(stream, "request_prompt_tokens", stream.prompt_tokens)
        self._observe(stream, "request_generation_tokens", stream.tokens)
        self._observe(stream, "request_params_max_tokens", stream.output_tokens)
        self._observe(stream, "request_num_preemptions", progress.preemptions)
        self._observe(stream, "request_prefill_kv_computed_tokens", computed)
        if stream.samples.ended(stream.tokens):
            self._observe(stream, "request_params_n", stream.samples.number)
            longest = stream.samples.longest
            self._observe(stream, "request_max_num_generation_tokens", longest)

    def _observe(self, stream: Stream, name: str, value: float) -> None:
        self._histograms[name][stream.group].observe(value)

    def _labels(self, stream: Stream) -> tuple[str, str]:
        """Those of its engine; of the first of its model, if no engine has had it."""
        if stream.group >= 0:
            return engine_labels(self._groups[stream.group])
        model = self._models[stream.model]
        return next(engine_labels(one) for one in self._groups if one.model_name == model)

    def collect(self) -> "Iterator[Metric]":
        """The adapters that run and wait, where there are slots for adapters."""
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
