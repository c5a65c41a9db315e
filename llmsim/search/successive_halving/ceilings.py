"""What a figure of a run may be at most while its point may still be an answer."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmsim.core import PS_PER_MS, RequestColumns
from llmsim.results.requests.metrics import latencies

if TYPE_CHECKING:
    from llmsim import _native

Ceilings = Mapping[str, float]
"""The most that figures may be, by their names."""
_LATENCY = re.compile(r"(?:p(?P<percentile>\d+)|median)_(?P<name>ttft|tpot|e2el)_ms")
_SLACK = 1e-6
"""Share, and ms, by which latencies have to be higher: figures are rounded to the nanosecond."""


def has_ceiling(name: str) -> bool:
    """Whether latencies of single requests decide the figure, so that a run can show it early."""
    return _LATENCY.fullmatch(name) is not None


def exceeded(values: Mapping[str, float], ceilings: Ceilings) -> str:
    """The first figure that is above its ceiling; empty where none is."""
    above = (name for name, most in ceilings.items() if values.get(name, -math.inf) > most)
    return next(above, "")


class RunStopped(Exception):
    """A figure is certain to be above its ceiling, whatever the rest of the run does."""

    def __init__(self, figure: str, ceiling: float) -> None:
        super().__init__(f"{figure} is above {ceiling:.6g}")
        self.figure, self.ceiling = figure, ceiling


@dataclass(frozen=True)
class _Limit:
    """A percentile of a latency and its ceiling."""

    figure: str
    ceiling: float
    latency: str
    percentile: float

    @classmethod
    def of(cls, figure: str, ceiling: float) -> "_Limit":
        found = _LATENCY.fullmatch(figure)
        assert found is not None, "only figures with a ceiling are watched"
        return cls(figure, ceiling, f"{found['name']}_ps", float(found["percentile"] or 50))

    def is_exceeded(self, values_ps: NDArray[Any], requests: int) -> bool:
        """Whether the percentile is above the ceiling, however the other requests fare."""
        last_below = math.floor((requests - 1) * (self.percentile / 100))
        limit_ps = (self.ceiling * (1 + _SLACK) + _SLACK) * PS_PER_MS
        return int(np.count_nonzero(values_ps > limit_ps)) >= requests - last_below


class Watch:
    """Looks at a run while it goes on (`llmsim.simulate.Progress`).

    The percentile of n values lies between two neighbours of their order. It is above a ceiling if
    both are: if n - floor((n - 1) q / 100) values are, which is most where all requests count.
    """

    def __init__(self, ceilings: Ceilings, requests: int) -> None:
        self._limits = [_Limit.of(figure, most) for figure, most in ceilings.items()]
        self._requests = requests

    def __call__(self, simulation: "_native.Simulation") -> None:
        """Raises RunStopped for the first figure that is certain to end above its ceiling."""
        if not self._limits:
            return
        times = latencies(RequestColumns(**simulation.requests()))
        for limit in self._limits:
            if limit.is_exceeded(getattr(times, limit.latency), self._requests):
                raise RunStopped(limit.figure, limit.ceiling)
