"""Measures what instances of every layout take, the most promising first."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from llmsim.sizing.plan import Pool
from llmsim.sizing.search.bounded import Bounded
from llmsim.sizing.search.found import Found, Unit
from llmsim.sizing.search.instances import Asked
from llmsim.sizing.search.pairs import starts_of
from llmsim.sizing.search.question import Costs
from llmsim.sizing.workers.workers import Workers

MARGIN = 2.0
"""Layouts whose estimated cost is beyond this share of the best estimate are not verified."""
BATCH = 8
BOUND = "too costly at the data sheet's peak"
PARTNER = "no instances of the other role meet their targets"
ESTIMATE = "estimated cost far above the best"
"""Why a layout is left out."""
_UNIT = "llmsim.sizing.search.instances:unit"


class Measuring:
    """The capacity of one instance of each layout, those of one node before those over several.

    A layout that cannot come near the best estimate at the data sheet's peak is left out, and so
    are other engine options of a layout that is far from it. The best estimate is of an instance
    that does both, or of a prefill and a decode instance. Levels at which an instance could not
    come near it are not tried.
    """

    def __init__(
        self, found: Found, planned: Sequence[Bounded], workers: Workers, costs: Costs
    ) -> None:
        """`planned`: all layouts so far, measured or not."""
        self._found, self._planned = found, planned
        self._workers, self._costs = workers, costs
        self._best = math.inf
        """The least estimated cost."""
        self._whole_costs: dict[tuple[str, tuple[Pool, ...]], float] = {}
        """The estimated cost of a layout that serves requests alone, by device and pools."""

    def run(self, plans: Sequence[Bounded]) -> None:
        """Measures these layouts, and adds what they take to what is found."""
        waiting = sorted(plans, key=self._order)
        while waiting:
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            self._measure(batch)
            waiting = self._left_of(waiting)

    def _order(self, one: Bounded) -> tuple[bool, bool, float]:
        least_cost = one.least_cost(self._found.question, self._costs)
        return one.plan.spans_nodes, bool(one.plan.engine), least_cost

    def _measure(self, batch: Sequence[Bounded]) -> None:
        question, limit = self._found.question, MARGIN * self._best
        tasks = []
        for one in batch:
            least_level = one.least_level(question, self._costs, limit)
            most_instances = one.most_instances(self._costs, limit)
            tasks.append(Asked(one.plan, one.role, question, one.most, least_level, most_instances))
        for unit in self._workers.map(_UNIT, tasks):
            self._found.units.append(unit)
            self._keep_cost(unit)
        starts = starts_of(question, self._found.units, self._costs)
        if starts:
            self._best = self._costs(starts[0])

    def _keep_cost(self, one: Unit) -> None:
        if one.role != "both" or not one.capacity.level:
            return
        count = math.ceil(self._found.question.load.level / one.level)
        cost = self._costs(one.plan.with_counts(count))
        self._whole_costs[one.plan.device, one.plan.pools] = cost

    def _left_of(self, waiting: Sequence[Bounded]) -> list[Bounded]:
        """Those that may still be best; the reason of each other one is counted."""
        left = []
        alone = set(roles_alone(self._planned, self._found.units))
        for one in waiting:
            why = self._ruled_out(one, alone)
            if why:
                self._found.pruned.add(why, one.plan)
            else:
                left.append(one)
        return left

    def _ruled_out(self, one: Bounded, alone: set[tuple[str, str]]) -> str:
        """Why a layout need not be measured; "" where it has to be."""
        limit = MARGIN * self._best
        if (one.plan.device, one.role) in alone:
            return PARTNER
        if one.least_cost(self._found.question, self._costs) > limit:
            return BOUND
        estimated = self._whole_costs.get((one.plan.device, one.plan.pools), 0.0)
        return ESTIMATE if estimated > limit else ""


def roles_alone(plans: Sequence[Bounded], units: Sequence[Unit]) -> Iterable[tuple[str, str]]:
    """Devices and roles whose other role no layout of the device fills."""
    planned = Counter((one.plan.device, one.role) for one in plans)
    measured = Counter((one.plan.device, one.role) for one in units)
    filled = {(one.plan.device, one.role) for one in units if one.level}
    for device in {one.plan.device for one in plans}:
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            side = device, role
            if measured[side] == planned[side] and side not in filled:
                yield device, other
