"""Latency targets, and how a measured run stands to them.

A target has a key: the name of a latency, or `CLASS.LATENCY` where requests have classes.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from llmsim.config.errors import InputError
from llmsim.results.requests.ceilings import Ceiling
from llmsim.results.requests.classes import parse_objectives

METRICS = ("ttft", "tpot", "e2el")
PS_PER_MS = 10**9
INF = math.inf
HOPELESS = 2.0
"""Times a target beyond which only that it is missed matters of a run, and not by how much."""
NO_CLASS = "-"
"""Stands for requests without a class in the keys of targets; no class has this name."""


def metric_of(key: str) -> str:
    """The name of the latency of a key."""
    return key.rpartition(".")[2]


def class_of(key: str) -> str:
    """The class of a key; "" for all requests."""
    return key.rpartition(".")[0]


def label(key: str) -> str:
    """`TTFT`, or `chat TTFT`."""
    name, latency = class_of(key), metric_of(key).upper()
    return f"{'unclassed' if name == NO_CLASS else name} {latency}" if name else latency


def beyond_target(found_ms: float, most_ms: float) -> str:
    """A time with as few digits as show that it is beyond its target."""
    for digits in range(4):
        shown = f"{found_ms:,.{digits}f}"
        if float(shown.replace(",", "")) > most_ms and (digits or found_ms >= 100):
            return shown
    return f"{found_ms:,.6g}"


def _most_ms(name: str, limits_ps: Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    prefix = f"{name}." if name else ""
    return tuple((f"{prefix}{one}", ps / PS_PER_MS) for one, ps in limits_ps.items())


@dataclass(frozen=True)
class Targets:
    """Most milliseconds of a percentile of TTFT, TPOT and end-to-end latency."""

    most_ms: tuple[tuple[str, float], ...]
    percentile: float = 99.0

    @classmethod
    def parse(cls, text: str, percentile: float, classes: Collection[str] = ()) -> "Targets":
        """`ttft:1000,tpot:40,e2el:20000`, or `chat=ttft:300;batch=e2el:60000` for `classes` of the
        load, where "" stands for requests that are in none; raises InputError.
        """
        if not 1 <= percentile <= 100:
            meant = f" (did you mean {100 * percentile:g}?)" if 0 < percentile < 1 else ""
            raise InputError(
                f"percentile is {percentile:g}{meant}; it must be from 1 to 100, such as 99",
                field="percentile",
                value=percentile,
            )
        try:
            found = parse_objectives([text], "slo")
        except InputError as error:
            error.field, error.value = "slo", text
            raise
        if not found.classes_ps:
            return cls(_most_ms("", found.targets_ps), percentile)
        found.check(set(classes), "slo")
        stated = [
            one for name in sorted(classes) for one in _most_ms(name or NO_CLASS, found.of(name))
        ]
        return cls(tuple(stated), percentile)

    def of(self, metric: str) -> float:
        """The target of a latency, the tightest one of all classes; infinite where it has none."""
        return min((most for key, most in self.most_ms if metric_of(key) == metric), default=INF)

    def at_key(self, key: str) -> float:
        """The target of a key; infinite where it has none."""
        return dict(self.most_ms).get(key, INF)

    def longest(self, metric: str) -> float:
        """The loosest target of a latency over all classes; infinite where a class has none."""
        by_class = self.by_class()
        return max((limits.get(metric, INF) for limits in by_class.values()), default=INF)

    def by_class(self) -> dict[str, dict[str, float]]:
        """The targets of each class, by the name of the latency; "" stands for all requests."""
        found: dict[str, dict[str, float]] = {}
        for key, most in self.most_ms:
            found.setdefault(class_of(key), {})[metric_of(key)] = most
        return found

    def only(self, *metrics: str) -> "Targets":
        """These latencies alone."""
        stated = tuple(one for one in self.most_ms if metric_of(one[0]) in metrics)
        return Targets(stated, self.percentile)

    def misses(self, found_ms: Mapping[str, float]) -> list["Miss"]:
        """The targets that measured percentiles miss, the worst one first."""
        missed = [
            Miss(name, found_ms.get(name, INF), most)
            for name, most in self.most_ms
            if found_ms.get(name, INF) > most
        ]
        return sorted(missed, key=lambda one: -one.by)

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """Latencies of all requests that no load near the target's has."""
        return self._ceilings(HOPELESS)

    @property
    def limits(self) -> tuple[Ceiling, ...]:
        """The targets of all requests, for runs of which only whether they are missed matters."""
        return self._ceilings(1.0)

    def _ceilings(self, times: float) -> tuple[Ceiling, ...]:
        return tuple(
            Ceiling(key, self.percentile, times * most)
            for key, most in self.most_ms
            if not class_of(key)
        )

    @property
    def text(self) -> str:
        """`p99 TTFT <= 1000 ms, p99 TPOT <= 40 ms`."""
        return ", ".join(
            f"p{self.percentile:g} {label(key)} <= {most:g} ms" for key, most in self.most_ms
        )


@dataclass(frozen=True)
class Miss:
    """A target that is missed, ms."""

    key: str
    found_ms: float
    most_ms: float
    at_least: bool = False
    """Whether the run was given up above `found_ms`."""

    @property
    def metric(self) -> str:
        """The name of the latency."""
        return metric_of(self.key)

    @property
    def by(self) -> float:
        """How far beyond the target, as a share of it."""
        return self.found_ms / self.most_ms - 1

    @property
    def text(self) -> str:
        """`p99 TTFT` is said by the caller; this is the figure and the share."""
        if math.isinf(self.found_ms):
            return f"{label(self.key)} has no value"
        found = f"{label(self.key)} {beyond_target(self.found_ms, self.most_ms)} ms"
        if self.at_least:
            return f"{found} or more is {self.by:.0%} or more over {self.most_ms:g} ms"
        share = "less than 1%" if self.by < 0.005 else f"{self.by:.0%}"
        return f"{found} is {share} over {self.most_ms:g} ms"
