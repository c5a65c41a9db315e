"""Deterministic minimisation over constants that trade against each other: a simplex (Nelder and
Mead, 1965).

Written here because the package does without scipy otherwise, which would be a large dependency for
one function.
"""

from collections.abc import Callable, Sequence

from llmsim.validation.fit.golden_section import Axis

Point = tuple[float, ...]
"""One value for each axis; within this module also shares of the way along each."""

FIRST_STEP = 0.1
"""Edge of the first simplex, as a share of each axis."""
MOST_TRIED = 60
"""Values that one descent may try."""


def minimise_together(
    objective: Callable[[Point], float], axes: Sequence[Axis], start: Point
) -> Point:
    """The best values that two descents find, the second from where the first ends with a simplex
    of its own.

    One constant after the other, a search stops in the valley that joins a link's bandwidth and its
    latency.
    """
    best = start
    for _ in range(2):
        best = _Descent(objective, axes).run(best)
    return best


class _Descent:
    """One descent; remembers what it has tried. Shares beyond an axis' ends are taken
    as its ends.
    """

    def __init__(self, objective: Callable[[Point], float], axes: Sequence[Axis]) -> None:
        self._objective = objective
        self._axes = axes
        self._ends = [(axis.coordinate(axis.least), axis.coordinate(axis.largest)) for axis in axes]
        self._seen: dict[Point, float] = {}

    def run(self, start: Point) -> Point:
        """The values with the least objective of all tried, `start` among them."""
        self._seen[start] = self._objective(start)
        simplex = self._first(start)
        while len(self._seen) < MOST_TRIED and not self._small(simplex):
            simplex = self._step(sorted(simplex, key=self._at))
        return min(self._seen, key=lambda values: (self._seen[values], values))

    def _at(self, shares: Point) -> float:
        values = tuple(
            axis.value(low + (high - low) * min(max(share, 0.0), 1.0))
            for axis, (low, high), share in zip(self._axes, self._ends, shares, strict=True)
        )
        if values not in self._seen:
            self._seen[values] = self._objective(values)
        return self._seen[values]

    def _first(self, start: Point) -> list[Point]:
        """The start and one corner along each axis, away from its nearer end."""
        shares = tuple(
            (axis.coordinate(value) - low) / (high - low)
            for axis, (low, high), value in zip(self._axes, self._ends, start, strict=True)
        )
        steps = [FIRST_STEP if share < 0.5 else -FIRST_STEP for share in shares]
        return [
            shares,
            *((*shares[:i], shares[i] + step, *shares[i + 1 :]) for i, step in enumerate(steps)),
        ]

    def _small(self, simplex: Sequence[Point]) -> bool:
        """Every corner is within the tolerance of the first along every axis."""
        tolerances = [
            axis.tolerance / (high - low)
            for axis, (low, high) in zip(self._axes, self._ends, strict=True)
        ]
        return all(
            abs(share - first) <= tolerance
            for corner in simplex
            for share, first, tolerance in zip(corner, simplex[0], tolerances, strict=True)
        )

    def _step(self, simplex: list[Point]) -> list[Point]:
        """The next simplex after one whose corners are sorted, the worst last."""
        best, worst, others = simplex[0], simplex[-1], simplex[:-1]
        middle = tuple(sum(shares) / len(others) for shares in zip(*others, strict=True))
        reflected = _towards(middle, worst, -1.0)
        if self._at(reflected) < self._at(best):
            further = _towards(middle, worst, -2.0)
            return [*others, further if self._at(further) < self._at(reflected) else reflected]
        if self._at(reflected) < self._at(others[-1]):
            return [*others, reflected]
        inside = _towards(middle, worst, -0.5 if self._at(reflected) < self._at(worst) else 0.5)
        if self._at(inside) < min(self._at(reflected), self._at(worst)):
            return [*others, inside]
        return [best, *(_towards(best, corner, 0.5) for corner in simplex[1:])]


def _towards(start: Point, end: Point, share: float) -> Point:
    return tuple(a + share * (b - a) for a, b in zip(start, end, strict=True))
