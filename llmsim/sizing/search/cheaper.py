"""Numbers of instances that cost less than the best deployment found."""

import itertools
from collections.abc import Iterable, Sequence

from llmsim.sizing.plan import Plan
from llmsim.sizing.search.pairs import MOST_STEPS, from_half
from llmsim.sizing.search.question import Costs


def largest_cheaper(best: Plan, plans: Sequence[Plan], costs: Costs) -> Iterable[Plan]:
    """The largest deployments of layouts that cost less than the best one found, with at least half
    as many instances of each role as estimated.
    """
    limit = costs(best)
    for plan in plans:
        most_steps = MOST_STEPS if len(plan.pools) > 1 else plan.devices
        ranges = [from_half(pool.count, most_steps) for pool in plan.pools]
        counts_of_all = itertools.product(*ranges)
        cheaper = [one for one in counts_of_all if costs(plan.with_counts(*one)) < limit]
        for counts in cheaper:
            if not any(_has_more(other, counts) for other in cheaper):
                yield plan.with_counts(*counts)


def _has_more(counts: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether no role has fewer instances than in `others`, and some role more."""
    pairs = zip(counts, others, strict=True)
    return counts != others and all(mine >= theirs for mine, theirs in pairs)
