"""What a figure of a run may be at most while its point may still be an answer."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmsim.core import RequestColumns
from llmsim.results.requests.ceilings import Ceiling, least_latencies
from llmsim.results.requests.metrics import Latencies, latencies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmsim import _native

Ceilings = Mapping[str, float]
"""The most that figures may be, by their names."""
_LATENCY = re.compile(r"(?:p(?P<percentile>\d+)|median)_(?P<name>ttft|tpot|e2el)_ms")


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


class Watch:
    """Looks at a run while it goes on (`llmsim.simulation.run.Progress`).

    `asked_tokens` are the longest answers, shape (requests,): requests that go on have at least the
    latencies of now. None where clients may give up, whose requests count in no latency.
    """

    def __init__(
        self,
        ceilings: Ceilings,
        requests: int,
        asked_tokens: "NDArray[np.integer[Any]] | None" = None,
    ) -> None:
        self._ceilings = {figure: _ceiling(figure, most) for figure, most in ceilings.items()}
        self._requests, self._asked_tokens = requests, asked_tokens

    def __call__(self, simulation: "_native.Simulation") -> None:
        """Raises RunStopped for the first figure that is certain to end above its ceiling."""
        if not self._ceilings:
            return
        times = self._certain(simulation)
        for figure, ceiling in self._ceilings.items():
            if ceiling.is_exceeded(times, self._requests):
                raise RunStopped(figure, ceiling.most_ms)

    def _certain(self, simulation: "_native.Simulation") -> Latencies:
        columns = RequestColumns(**simulation.requests())
        if self._asked_tokens is None:
            return latencies(columns)
        return least_latencies(columns, self._asked_tokens, simulation.now_ps)


def _ceiling(figure: str, most_ms: float) -> Ceiling:
    found = _LATENCY.fullmatch(figure)
    assert found is not None, "only figures with a ceiling are watched"
    return Ceiling(found["name"], float(found["percentile"] or 50), most_ms)
