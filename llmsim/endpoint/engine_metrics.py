"""Gauges and counters of `/metrics`, asked of the simulation when somebody scrapes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from llmsim.core import GroupInfo
from llmsim.endpoint.engine.live import LiveSimulation
from llmsim.export.benchmark_formats.vllm_metrics import (
    CACHE_SOURCES,
    COUNTERS,
    ENGINE_LABELS,
    GAUGES,
    PROMPT_SOURCES,
    SLEEP_STATES,
    SPECULATION,
    STEP_TOKENS,
    WAITING_REASONS,
    Buckets,
    full_name,
    labels_of,
)
from llmsim.export.benchmark_formats.vllm_metrics import Metric as Named

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Samples = dict[tuple[str, ...], list[float]]
"""A value per engine, by the labels beside the engine's."""


@dataclass(frozen=True)
class EngineOptions:
    """What an engine's metrics depend on beside the simulation."""

    drafts: int = 0
    """num_speculative_tokens; 0: it does not speculate."""
    cache_source: str = "external_unspecified"
    """Where it finds KV behind its prefix cache, one of CACHE_SOURCES."""


class EngineMetrics(Collector):
    """Reads the totals of every engine, which the simulation counts itself."""

    def __init__(
        self,
        live: LiveSimulation,
        groups: Sequence[GroupInfo],
        options: Sequence[EngineOptions],
    ) -> None:
        """`options` has an entry for each group."""
        self._live, self._groups, self._options = live, groups, options

    def collect(self) -> "Iterator[Metric]":
        """Every metric as it stands now."""
        yield from _families(GaugeMetricFamily, GAUGES, self._gauges(), self._groups)
        totals = {**self._live.counters(), **self._live.engine_counters()}
        yield from _families(CounterMetricFamily, COUNTERS, self._counters(totals), self._groups)
        speculating = [n for n, one in enumerate(self._options) if one.drafts > 0]
        if speculating:
            groups = [self._groups[n] for n in speculating]
            samples = self._speculation(totals, speculating)
            yield from _families(CounterMetricFamily, SPECULATION, samples, groups)
        yield self._step_tokens()
        yield self._cache_config()

    def _gauges(self) -> Mapping[str, Samples]:
        gauges = self._live.gauges()
        deferred = self._live.engine_counters()["deferred"]
        waiting = [one.waiting for one in gauges]
        capacity = [max(all_ - some, 0) for all_, some in zip(waiting, deferred, strict=True)]
        always, never = [1.0] * len(gauges), [0.0] * len(gauges)
        return {
            "num_requests_running": _alone([one.running for one in gauges]),
            "num_requests_waiting": _alone(waiting),
            "num_requests_waiting_by_reason": _by(WAITING_REASONS, (capacity, deferred)),
            "engine_sleep_state": _by(SLEEP_STATES, (always, never, never)),
            "kv_cache_usage_perc": _alone(
                [one.kv_blocks_used / max(one.kv_blocks, 1) for one in gauges]
            ),
        }

    def _counters(self, totals: Mapping[str, list[int]]) -> Mapping[str, Samples]:
        prompt, cached = totals["prompt_tokens"], totals["prompt_cached_tokens"]
        external = totals["prompt_external_tokens"]
        none = [0] * len(prompt)
        return {
            "prefix_cache_queries": _alone(totals["first_queried_tokens"]),
            "prefix_cache_hits": _alone(totals["first_hit_tokens"]),
            "external_prefix_cache_queries": _alone(totals["external_queried_tokens"]),
            "external_prefix_cache_hits": _alone(totals["external_hit_tokens"]),
            "mm_cache_queries": _alone(none),
            "mm_cache_hits": _alone(none),
            "num_preemptions": _alone(totals["preemptions"]),
            "prompt_tokens": _alone(prompt),
            "prompt_tokens_by_source": _by(
                PROMPT_SOURCES, (_less(prompt, cached), _less(cached, external), external)
            ),
            "prompt_tokens_cached": _alone(cached),
            "prompt_tokens_cached_by_source": self._cached_by_source(totals),
            "generation_tokens": _alone(totals["generation_tokens"]),
        }

    def _cached_by_source(self, totals: Mapping[str, list[int]]) -> Samples:
        found = totals["external_hit_tokens"]
        values = {}
        for source in CACHE_SOURCES:
            mine = (one.cache_source == source for one in self._options)
            values[source] = [hits if own else 0 for hits, own in zip(found, mine, strict=True)]
        values["device"] = totals["first_hit_tokens"]
        return _by(CACHE_SOURCES, values.values())

    def _speculation(
        self, totals: Mapping[str, list[int]], groups: Sequence[int]
    ) -> Mapping[str, Samples]:
        held = self._live.accepted_at()
        most = max(self._options[group].drafts for group in groups)
        by_position: Samples = {
            (str(place),): [
                float(held[group][place]) if place < len(held[group]) else 0.0 for group in groups
            ]
            for place in range(most)
        }
        return {
            "spec_decode_num_drafts": _alone([totals["verifications"][g] for g in groups]),
            "spec_decode_num_draft_tokens": _alone([totals["drafted_tokens"][g] for g in groups]),
            "spec_decode_num_accepted_tokens": _alone(
                [totals["accepted_tokens"][g] for g in groups]
            ),
            "spec_decode_num_accepted_tokens_per_pos": by_position,
        }

    def _step_tokens(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            full_name(STEP_TOKENS.name), STEP_TOKENS.help, labels=ENGINE_LABELS
        )
        bounds = Buckets.STEP_TOKENS.bounds(0)
        for group, steps in zip(self._groups, self._live.step_tokens(), strict=True):
            buckets = [
                (repr(bound), float(sum(count for tokens, count in steps if tokens <= bound)))
                for bound in bounds
            ]
            buckets.append(("+Inf", float(sum(count for _, count in steps))))
            total = float(sum(tokens * count for tokens, count in steps))
            family.add_metric(engine_labels(group), buckets, total)
        return family

    def _cache_config(self) -> InfoMetricFamily:
        family = InfoMetricFamily(
            full_name("cache_config"), "KV cache of each engine.", labels=ENGINE_LABELS
        )
        for group in self._groups:
            about = {"block_size": str(group.block_size), "num_gpu_blocks": str(group.num_blocks)}
            family.add_metric(engine_labels(group), about)
        return family


def engine_labels(group: GroupInfo) -> tuple[str, str]:
    """The values of ENGINE_LABELS."""
    return group.model_name, str(group.index)


def _alone(values: Sequence[float]) -> Samples:
    return {(): [float(value) for value in values]}


def _by(labels: Iterable[str], values: Iterable[Sequence[float]]) -> Samples:
    return {
        (label,): [float(one) for one in column]
        for label, column in zip(labels, values, strict=True)
    }


def _less(these: Sequence[int], those: Sequence[int]) -> list[int]:
    return [one - other for one, other in zip(these, those, strict=True)]


def _families(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    metrics: Sequence[Named],
    samples: Mapping[str, Samples],
    groups: Sequence[GroupInfo],
) -> "Iterator[Metric]":
    for metric in metrics:
        family = kind(full_name(metric.name), metric.help, labels=labels_of(metric))
        for more, values in samples[metric.name].items():
            for group, value in zip(groups, values, strict=True):
                family.add_metric((*engine_labels(group), *more), value)
        yield family
