"""The highest level of a load that a plan serves within its targets, by bisection."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmsim.config.errors import InfeasibleError
from llmsim.results.requests.ceilings import Ceiling
from llmsim.sizing.load import CONCURRENCY, Load
from llmsim.sizing.measure import Bench, Measured
from llmsim.sizing.plan import Plan
from llmsim.sizing.targets import Miss, Targets, metric_of

FEWEST = 400
FEWEST_VERIFIED = 1000
"""Requests of a run that decides. Estimates have as many where lengths are drawn: the longest of
fewer ones may be beyond a target that those of all of them meet.
"""
MOST = 20_000
SPANS = 3
"""Arrivals last this many times the time of a request that just meets its targets."""
LOWEST, HIGHEST = 1e-3, 1e6
PRECISION = 0.02
FLAT = 0.05
"""A target is missed by as much where half the load takes less than this share of the miss away."""


@dataclass(frozen=True)
class Capacity:
    """The highest level found to meet the targets, and the lowest found to miss them."""

    level: float
    """0 where even the lowest level that was tried misses them."""
    at: Measured | None
    beyond: Measured | None
    misses: tuple[Miss, ...]
    """What `beyond` misses."""


def enough_requests(load: Load, targets: Targets, level: float, fewest: int = FEWEST) -> int:
    """Requests of one run: as many as arrive in several lifetimes of a request, within limits.

    A trace is simulated as a whole (0).
    """
    if load.dataset:
        return 0
    _, outputs = load.lengths(FEWEST)
    tpot = min(targets.longest("tpot"), 100.0)
    ttft = min(targets.longest("ttft"), 10_000.0)
    lifetime_s = min(targets.longest("e2el"), ttft + float(outputs.mean()) * tpot) / 1000
    needed = SPANS * (level if load.kind == CONCURRENCY else level * lifetime_s)
    return int(min(MOST, max(fewest, needed)))


def misses(found: Measured, targets: Targets) -> list[Miss]:
    """The missed targets of a run; requests that did not end miss all of them, and one that was
    given up misses the target for which it was.
    """
    if found.given_up is not None:
        ceiling = found.given_up
        return [Miss(ceiling.latency, ceiling.most_ms, targets.at_key(ceiling.latency), True)]
    figures = found.at(targets.percentile) if found.complete else {}
    if found.complete:  # answers of one token have no TPOT
        one_token = [key for key, _ in targets.most_ms if metric_of(key) == "tpot"]
        figures = {**dict.fromkeys(one_token, 0.0), **figures}
    return targets.misses(figures)


def capacity(
    bench: Bench,
    plan: Plan,
    load: Load,
    targets: Targets,
    start: float,
    *,
    fewest: int = FEWEST,
    precision: float = PRECISION,
    floor: float = LOWEST,
    ceiling: float = HIGHEST,
    missing: Measured | None = None,
    gives_up: bool = False,
) -> Capacity:
    """Doubles or halves from `start` until the targets are met and missed, then bisects.

    With `gives_up` runs stop that are certain to be far beyond a target, and those above a level
    that meets the targets as soon as they are certain to miss one.

    A plan that meets them at `ceiling` is not driven further, and `beyond` is None; one that misses
    them at `floor` has the level 0. `missing` is a run above `start` that is known to miss them.
    The draws of every level are the same, so that nothing but the level differs.
    """
    whole = load.kind == CONCURRENCY
    lowest = max(1.0, math.floor(floor)) if whole else max(LOWEST, floor)
    lowest = min(lowest, ceiling)

    def run(level: float, stops: Sequence[Ceiling]) -> Measured:
        requests = enough_requests(load, targets, level, fewest)
        given = stops if gives_up else ()
        return bench.measure(plan, load, level, requests, (targets.percentile,), given)

    start = min(ceiling, max(lowest, round(start) if whole else start))
    low, high = _bracket(run, targets, start, (lowest, ceiling), missing)
    if low is None:
        missed = () if high is None else tuple(misses(high, targets))
        return Capacity(0.0, None, high, missed)
    while high is not None:
        middle = (low.level * high.level) ** 0.5
        if whole:
            middle = float(round(middle))
            if middle in (low.level, high.level):
                break
        elif high.level / low.level <= 1 + precision:
            break
        found = run(middle, targets.limits)
        low, high = (low, found) if misses(found, targets) else (found, high)
    missed = () if high is None else tuple(misses(high, targets))
    return Capacity(low.level, low, high, missed)


def with_figures(
    bench: Bench, plan: Plan, load: Load, targets: Targets, found: Capacity
) -> Capacity:
    """With the whole run of the level that misses the targets, if it was given up."""
    beyond = found.beyond
    if beyond is None or not beyond.is_given_up:
        return found
    whole = bench.measure(plan, load, beyond.level, beyond.requests, (targets.percentile,))
    return replace(found, beyond=whole, misses=tuple(misses(whole, targets)))


def _bracket(
    run: Callable[[float, Sequence[Ceiling]], Measured],
    targets: Targets,
    start: float,
    limits: tuple[float, float],
    missing: Measured | None,
) -> tuple[Measured | None, Measured | None]:
    """The last level that meets the targets and the first beyond it that misses them.

    Where half the load misses the targets by as much, it is not the load that misses them, and the
    lowest level is tried next.
    """
    low, high = None, missing
    level, worst = start, math.inf
    lowest, ceiling = limits
    while True:
        found = run(level, targets.ceilings if low is None else targets.limits)
        if missed := misses(found, targets):
            high = found
            if low is not None or level == lowest:
                break
            before, worst = worst, math.inf if missed[0].at_least else missed[0].by
            level = lowest if worst > (1 - FLAT) * before else max(lowest, level / 2)
        else:
            low = found
            if high is not None or level == ceiling:
                break
            level = min(ceiling, level * 2)
    return low, high


def able(
    bench: Bench,
    plan: Plan,
    load: Load,
    targets: Targets,
    *,
    fewest: int,
    stops: Sequence[Ceiling] = (),
) -> tuple[Measured | None, list[Miss], str]:
    """The run at the level that is asked for, what it misses, and why there is none; a run that is
    certain to end above one of `stops` is given up.
    """
    requests = enough_requests(load, targets, load.level, fewest)
    percentiles = tuple(dict.fromkeys((50.0, 90.0, 95.0, 99.0, targets.percentile)))
    try:
        found = bench.measure(plan, load, load.level, requests, percentiles, stops, sources=True)
    except InfeasibleError as error:
        return None, [], str(error)
    return found, misses(found, targets), ""
