"""Deterministic minimisation of a noisy function of one number: a coarse grid, then golden sections
around its best.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Axis:
    """The values of one constant that are tried: from `least` to `largest`, logarithmic or linear,
    to a `tolerance` (relative on a logarithmic axis, absolute on a linear one).
    """

    name: str
    least: float
    largest: float
    tolerance: float
    logarithmic: bool
    coarse: int = 9

    def coordinate(self, value: float) -> float:
        """Where a value lies on the searched line."""
        return math.log(value) if self.logarithmic else value

    def value(self, coordinate: float) -> float:
        """The value at a coordinate."""
        return math.exp(coordinate) if self.logarithmic else coordinate


@dataclass(frozen=True)
class Minimum:
    """The best value tried, its objective, and how many were tried."""

    value: float
    objective: float
    tried: int


def minimise(objective: Callable[[float], float], axis: Axis) -> Minimum:
    """The value with the least objective among those tried.

    The objective may be rough (a simulation is chaotic in detail): the best value seen is returned,
    not the last.
    """
    seen: dict[float, float] = {}

    def at(coordinate: float) -> float:
        value = axis.value(coordinate)
        if value not in seen:
            seen[value] = objective(value)
        return seen[value]

    first, last = axis.coordinate(axis.least), axis.coordinate(axis.largest)
    coordinates = [first + (last - first) * i / (axis.coarse - 1) for i in range(axis.coarse)]
    best = min(range(axis.coarse), key=lambda i: at(coordinates[i]))
    low, high = coordinates[max(best - 1, 0)], coordinates[min(best + 1, axis.coarse - 1)]
    inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    while high - low > axis.tolerance:
        if at(inner) <= at(outer):
            high, outer = outer, inner
            inner = high - GOLDEN * (high - low)
        else:
            low, inner = inner, outer
            outer = low + GOLDEN * (high - low)
    value = min(seen, key=lambda v: (seen[v], v))
    return Minimum(value, seen[value], len(seen))
