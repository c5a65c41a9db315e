"""Successive halving: many points with few requests, those near the front with more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmsim.search.journal import Trial
from llmsim.search.space import REQUESTS, Bound, Point, Space
from llmsim.search.templates import DEPLOYMENT

EXACT = ("devices", "cost.price_per_hour")
"""Figures that are the same for any number of requests."""
BLOCK = 512
"""Rows of points that are compared with all others at once."""
Evaluate = Callable[[Sequence[dict[str, Any]]], list[Trial]]


@dataclass
class Rungs:
    """What every rung ran."""

    counts: list[tuple[int, int]] = field(default_factory=list)
    """(requests, points)."""


def halved(space: Space, evaluate: Evaluate, points: Sequence[Point], rungs: Rungs) -> list[Trial]:
    """The trials of the last rung, without the number of requests in their points."""
    halving = space.file.halving
    assert halving is not None
    alive = list(points)
    trials: list[Trial] = []
    for i, requests in enumerate(halving.requests):
        rungs.counts.append((requests, len(alive)))
        found = evaluate([{**point, REQUESTS: requests} for point in alive])
        trials = [replace(one, point=p) for one, p in zip(found, alive, strict=True)]
        if i + 1 < len(halving.requests):
            alive = [alive[at] for at in near(space, trials, halving.margin)]
    return trials


def near(space: Space, trials: Sequence[Trial], margin: float) -> list[int]:
    """Indices of the trials that may be on a front when they run with more requests.

    A trial stays if it misses no requirement by more than the margin, and if no other trial of its
    architecture that may stay is better by the margin in all that is wanted. A run that failed
    stays.
    """
    kept = {i for i, one in enumerate(trials) if one.state == "failed"}
    fronts: dict[str, list[int]] = {}
    noise = np.log1p(margin)
    margins = np.array([0.0 if name in EXACT else noise for name, _ in space.objectives])
    for i, one in enumerate(trials):
        if one.state in ("feasible", "short") and _nearly_meets(space, one.values, margin):
            fronts.setdefault(architecture_of(space, one.point), []).append(i)
    for indices in fronts.values():
        costs = np.array([_costs(space, trials[i]) for i in indices])
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
    costs = np.array([_costs(space, one) for one in rivals]).reshape(-1, len(space.objectives))
    mine = np.array(_costs(space, trials[at]))
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
    most = bound.at_most + abs(bound.at_most) * margin
    least = bound.at_least - abs(bound.at_least) * margin / (1 + margin)
    return least <= value <= most


def _costs(space: Space, trial: Trial) -> list[float]:
    """Logarithms of the figures, all to be small; figures that are not above 0 are as small as can
    be told.
    """
    tiny = 1e-300
    signs = [(-1 if more else 1) for _, more in space.objectives]
    values = [max(trial.values[name], tiny) for name, _ in space.objectives]
    return [sign * float(np.log(value)) for sign, value in zip(signs, values, strict=True)]


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
