"""Successive halving: many points with few requests, those near the front with more."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmsim.search.journal import Trial
from llmsim.search.space import REQUESTS, Bound, Point, Space
from llmsim.search.successive_halving.bounds import ANY, Bounds, Range
from llmsim.search.successive_halving.ceilings import Ceilings, exceeded, has_ceiling
from llmsim.search.templates import DEPLOYMENT

EXACT = ("devices", "cost.price_per_hour")
"""Figures that are the same for any number of requests."""
BLOCK = 512
"""Rows of points that are compared with all others at once."""
AT_FIRST, AT_ONCE = 16, 128
"""Points of a rung that are run before others are compared with them again, at first and at most:
which points run must not depend on how many processes there are.
"""
_ROUNDED = 1e-9
"""Share by which a ceiling is higher than the figure whose logarithm it comes from."""
UNMET, BEATEN = "cannot meet a requirement", "cannot be better than a point that was run"
"""Why a point of a rung is not run: by its bounds it would not be an answer."""
Evaluate = Callable[[Sequence[dict[str, Any]], Sequence[Ceilings]], list[Trial]]
"""Runs points, each of which may be stopped above its ceilings."""


@dataclass
class Rung:
    """What a rung ran, and what it did not have to run."""

    requests: int
    points: int = 0
    """Points that were run."""
    stopped: int = 0
    """Of these, points of which a figure turned out to be above what an answer may have."""
    pruned: Counter[str] = field(default_factory=Counter)
    """Points that were not, by reason."""
    example: str = ""
    """The first point that cannot meet a requirement, and what it is at best."""


def halved(
    space: Space,
    evaluate: Evaluate,
    points: Sequence[Point],
    rungs: list[Rung],
    bounds: Bounds | None = None,
) -> list[Trial]:
    """The trials of the last rung, without the number of requests in their points; `rungs` is added
    to.

    With bounds, points are not run, or not to the end, that would not stay for the next rung, or,
    at the last one, not be on a front. What stays is what stays without bounds.
    """
    halving = space.file.halving
    assert halving is not None
    alive = list(points)
    promising: list[int] = []
    trials: list[Trial] = []
    if bounds is not None:
        bounds.look_at(alive)
    for i, requests in enumerate(halving.requests):
        last = i + 1 == len(halving.requests)
        rungs.append(Rung(requests))
        field_of = _Field(space, requests, 0.0 if last else halving.margin, bounds)
        trials = _run(evaluate, alive, field_of, rungs[-1], promising)
        if not last:
            kept = [trials[at] for at in near(space, trials, halving.margin)]
            alive = [dict(one.point) for one in kept]
            promising = near(space, kept, 0.0)
    return trials


def _run(
    evaluate: Evaluate,
    points: Sequence[Point],
    contenders: "_Field",
    rung: Rung,
    promising: Sequence[int],
) -> list[Trial]:
    """The trials of the points that may stay, in the order of the points. Those that may be best
    run first, so that others need not: those at `promising`, then those with the best bounds.
    """
    found: dict[int, Trial] = {}
    order = list(dict.fromkeys([*promising, *contenders.order(points)]))
    at_once = AT_FIRST
    while order:
        chosen = []
        batch, order = order[:at_once], order[at_once:]
        at_once = min(2 * at_once, AT_ONCE)
        for at in batch:
            reason, sentence = contenders.excludes(points[at])
            if reason:
                rung.pruned[reason] += 1
                rung.example = rung.example or sentence
            else:
                chosen.append(at)
        asked = [{**points[at], REQUESTS: rung.requests} for at in chosen]
        ceilings = [contenders.ceilings(points[at]) for at in chosen]
        for at, most, one in zip(chosen, ceilings, evaluate(asked, ceilings), strict=True):
            if one.state == "stopped" or exceeded(one.values, most):
                rung.stopped += 1
                continue
            found[at] = replace(one, point=points[at])
            contenders.add(found[at])
        rung.points += len(chosen)
    return [found[at] for at in sorted(found)]


class _Field:
    """The points of a rung that others have to beat, by architecture."""

    def __init__(self, space: Space, requests: int, margin: float, bounds: Bounds | None) -> None:
        self._space, self._requests, self._margin = space, requests, margin
        self._bounds = bounds
        self._margins = _margins(space, margin)
        self._required = {
            name: _moved(bound.at_most, margin)
            for name, bound in space.file.require.items()
            if has_ceiling(name) and np.isfinite(bound.at_most)
        }
        self._watched = {
            name: at
            for at, (name, more) in enumerate(space.objectives)
            if has_ceiling(name) and not more
        }
        self._costs: dict[str, list[list[float]]] = {}

    def order(self, points: Sequence[Point]) -> list[int]:
        """Indices of the points, those with the best bounds first."""
        if self._bounds is None:
            return list(range(len(points)))
        costs = [self._best_costs(self._bounds.of(point, self._requests)) for point in points]
        return sorted(range(len(points)), key=lambda at: (costs[at][0], at))

    def excludes(self, point: Point) -> tuple[str, str]:
        """Why the point need not run, and for a requirement in a sentence; empty where it has to
        run.
        """
        if self._bounds is None:
            return "", ""
        ranges = self._bounds.of(point, self._requests)
        for name, bound in self._space.file.require.items():
            least, most = ranges.get(name, ANY)
            if not _within(Bound(at_most=bound.at_most), least, self._margin):
                return UNMET, f"{point[DEPLOYMENT]}: {name} is at least {least:.6g}"
            if not _within(Bound(at_least=bound.at_least), most, self._margin):
                return UNMET, f"{point[DEPLOYMENT]}: {name} is at most {most:.6g}"
        known = self._costs.get(architecture_of(self._space, point))
        best = np.array(self._best_costs(ranges))
        beaten = known and _is_beaten(best, np.array(known), self._margins)
        return (BEATEN, "") if beaten else ("", "")

    def ceilings(self, point: Point) -> Ceilings:
        """What latencies of a point may be at most while it may stay; none before a point of its
        architecture may.
        """
        known = self._costs.get(architecture_of(self._space, point))
        if self._bounds is None or not known:
            return {}
        costs = np.array(known) + self._margins
        best = np.array(self._best_costs(self._bounds.of(point, self._requests)))
        found: dict[str, float] = dict(self._required)
        for name, at in self._watched.items():
            better_elsewhere = np.delete(costs <= best, at, axis=1).all(axis=1)
            least = float(np.exp(costs[better_elsewhere, at].min(initial=np.inf)))
            if np.isfinite(least):
                found[name] = min(found.get(name, np.inf), least * (1 + _ROUNDED))
        return found

    def add(self, trial: Trial) -> None:
        """A point that was run: those that may stay have to be beaten."""
        if trial.state not in ("feasible", "short"):
            return
        if self._bounds is not None:
            self._bounds.check(trial, self._requests)
        if _nearly_meets(self._space, trial.values, self._margin):
            name = architecture_of(self._space, trial.point)
            self._costs.setdefault(name, []).append(_costs(self._space, trial.values))

    def _best_costs(self, ranges: Mapping[str, Range]) -> list[float]:
        """Costs of the best figures that a point may have."""
        best = {}
        for name, more in self._space.objectives:
            least, most = ranges.get(name, ANY)
            best[name] = most if more else least
        return _costs(self._space, best)


def near(space: Space, trials: Sequence[Trial], margin: float) -> list[int]:
    """Indices of the trials that may be on a front when they run with more requests.

    A trial stays if it misses no requirement by more than the margin, and if no other trial of its
    architecture that may stay is better by the margin in all that is wanted. A run that failed
    stays.
    """
    kept = {i for i, one in enumerate(trials) if one.state == "failed"}
    fronts: dict[str, list[int]] = {}
    margins = _margins(space, margin)
    for i, one in enumerate(trials):
        if one.state in ("feasible", "short") and _nearly_meets(space, one.values, margin):
            fronts.setdefault(architecture_of(space, one.point), []).append(i)
    for indices in fronts.values():
        costs = np.array([_costs(space, trials[i].values) for i in indices])
        kept |= {indices[at] for at in _unbeaten(costs, margins)}
    return sorted(kept)


def needed_margin(space: Space, trials: Sequence[Trial], at: int) -> float:
    """The smallest margin, to a thousandth, with which a trial stays for the next rung."""
    architecture = architecture_of(space, trials[at].point)
    rivals = [
        one
        for one in trials
        if one.state in ("feasible", "short") and architecture_of(space, one.point) == architecture
    ]
    costs = np.array([_costs(space, one.values) for one in rivals]).reshape(
        -1, len(space.objectives)
    )
    mine = np.array(_costs(space, trials[at].values))
    exact = np.array([name in EXACT for name, _ in space.objectives])

    def stays(margin: float) -> bool:
        if not _nearly_meets(space, trials[at].values, margin):
            return False
        meets = np.array([_nearly_meets(space, one.values, margin) for one in rivals], bool)
        within = np.all(costs + np.where(exact, 0.0, np.log1p(margin)) <= mine, axis=1)
        return not np.any(meets & within & np.any(costs < mine, axis=1))

    low, high = 0.0, 1.0
    while not stays(high):
        low, high = high, 2 * high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if stays(middle) else (middle, high)
    return high


def architecture_of(space: Space, point: Point) -> str:
    """The architecture of a point of a model's space; empty where a cluster file varies."""
    plan = space.plans.get(str(point.get(DEPLOYMENT)))
    return "" if plan is None else plan.architecture


def _nearly_meets(space: Space, values: Mapping[str, float], margin: float) -> bool:
    return all(_within(bound, values[name], margin) for name, bound in space.file.require.items())


def _within(bound: Bound, value: float, margin: float) -> bool:
    most = _moved(bound.at_most, margin)
    least = _moved(bound.at_least, -margin / (1 + margin))
    return least <= value <= most


def _moved(end: float, share: float) -> float:
    """An end of a bound, by a share of it further up; no end stays none."""
    return end + abs(end) * share if np.isfinite(end) else end


def _margins(space: Space, margin: float) -> np.ndarray:
    """By how much a figure has to be better, as a difference of logarithms (shape (figures,))."""
    noise = np.log1p(margin)
    return np.array([0.0 if name in EXACT else noise for name, _ in space.objectives])


def _costs(space: Space, figures: Mapping[str, float]) -> list[float]:
    """Logarithms of the figures, all to be small; figures that are not above 0 are as small as can
    be told.
    """
    tiny = 1e-300
    signs = [(-1 if more else 1) for _, more in space.objectives]
    values = [max(figures[name], tiny) for name, _ in space.objectives]
    return [sign * float(np.log(value)) for sign, value in zip(signs, values, strict=True)]


def _is_beaten(row: np.ndarray, costs: np.ndarray, margins: np.ndarray) -> bool:
    """Whether any row of costs (shape (points, figures)) is better by the margins in every figure,
    and really in one.
    """
    within = np.all(costs + margins <= row, axis=1)
    return bool(np.any(within & np.any(costs < row, axis=1)))


def _unbeaten(costs: np.ndarray, margins: np.ndarray) -> list[int]:
    """Rows (shape (points, figures)) that no other row beats by the margins (shape (figures,)) in
    every figure, and really in one.
    """
    kept: list[int] = []
    for first in range(0, len(costs), BLOCK):
        block = costs[first : first + BLOCK, None, :]
        within = np.all(costs[None, :, :] + margins <= block, axis=2)
        better = np.any(costs[None, :, :] < block, axis=2)
        beaten = np.any(within & better, axis=1)
        kept += [first + int(at) for at in np.flatnonzero(~beaten)]
    return kept
