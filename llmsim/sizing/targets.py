"""Latency targets, and how a measured run stands to them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llmsim.config.errors import InputError
from llmsim.results.goodput import parse_targets

METRICS = ("ttft", "tpot", "e2el")
PS_PER_MS = 10**9


@dataclass(frozen=True)
class Targets:
    """Most milliseconds of a percentile of TTFT, TPOT and end-to-end latency."""

    most_ms: tuple[tuple[str, float], ...]
    percentile: float = 99.0

    @classmethod
    def parse(cls, text: str, percentile: float) -> "Targets":
        """`ttft:1000,tpot:40,e2el:20000`; raises InputError."""
        if not 0 < percentile <= 100:
            raise InputError(
                f"--percentile is {percentile:g}; it must be above 0 and at most 100, such as 99",
                field="--percentile",
                value=percentile,
            )
        found = parse_targets([text], "--slo")
        return cls(tuple((name, ps / PS_PER_MS) for name, ps in found.items()), percentile)

    def of(self, metric: str) -> float:
        """The target of a metric; infinite where it has none."""
        return dict(self.most_ms).get(metric, math.inf)

    def only(self, *metrics: str) -> "Targets":
        """These metrics alone."""
        return Targets(
            tuple((name, most) for name, most in self.most_ms if name in metrics), self.percentile
        )

    def misses(self, found_ms: Mapping[str, float]) -> list["Miss"]:
        """The targets that measured percentiles miss, the worst one first."""
        missed = [
            Miss(name, found_ms.get(name, math.inf), most)
            for name, most in self.most_ms
            if found_ms.get(name, math.inf) > most
        ]
        return sorted(missed, key=lambda one: -one.by)

    @property
    def text(self) -> str:
        """`p99 TTFT <= 1000 ms, p99 TPOT <= 40 ms`."""
        return ", ".join(
            f"p{self.percentile:g} {name.upper()} <= {most:g} ms" for name, most in self.most_ms
        )


@dataclass(frozen=True)
class Miss:
    """A target that is missed, ms."""

    metric: str
    found_ms: float
    most_ms: float

    @property
    def by(self) -> float:
        """How far beyond the target, as a share of it."""
        return self.found_ms / self.most_ms - 1

    @property
    def text(self) -> str:
        """`p99 TTFT` is said by the caller; this is the figure and the share."""
        if math.isinf(self.found_ms):
            return f"{self.metric.upper()} has no value, as no request ended"
        found = f"{self.metric.upper()} {self.found_ms:,.0f} ms"
        return f"{found} is {self.by:.0%} over {self.most_ms:g} ms"
