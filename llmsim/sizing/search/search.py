"""The fewest devices, or dollars, that serve a load within its targets.

1. What cannot be is pruned: memory, layouts, the data sheet's speed.
2. The capacity of a few instances of every layout is bisected.
3. Layouts whose estimated cost is far above the best one's are left out.
4. For the others the smallest number of instances that serves the load is found by runs of the
   whole deployment; beyond the first ones of each architecture, only numbers that cost less than
   the best one found are run.
"""

import math
from collections.abc import Iterable, Sequence

from llmsim.sizing.bounds import DEVICES, MEMORY, SPREAD, fitting_splits
from llmsim.sizing.load import CONCURRENCY
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.bounded import Bounded, deployments, unpruned
from llmsim.sizing.search.cheaper import largest_cheaper
from llmsim.sizing.search.found import Candidate, Found, Unit, layout_of
from llmsim.sizing.search.measuring import BATCH, ESTIMATE, MARGIN, Measuring
from llmsim.sizing.search.pairs import balanced, starts_of
from llmsim.sizing.search.question import Costs, Question
from llmsim.sizing.shapes import STAGES
from llmsim.sizing.workers.workers import Workers

MOST_VERIFIED = 10
"""Layouts of an architecture whose smallest deployment is searched."""
NEAREST = 6
"""Deployments that are run where a request alone misses the targets in all of them."""
MOST_CHEAPER = 200
"""Deployments that are tried below the best one's cost."""
_COUNTS, _INSTANCES = "llmsim.sizing.search.counts", "llmsim.sizing.search.instances"
"""Modules of what workers run."""


def search(question: Question, workers: Workers, costs: Costs) -> Found:
    """The answer to a question; raises InputError."""
    return _Search(question, workers, costs).run()


class _Search:
    """What is found so far, and who runs deployments."""

    def __init__(self, question: Question, workers: Workers, costs: Costs) -> None:
        self._question, self._workers, self._costs = question, workers, costs
        self._found = Found(question)

    def run(self) -> Found:
        found, question = self._found, self._question
        plans, over_nodes = unpruned(question, found.pruned)
        if not plans and found.pruned.counts.keys() & {MEMORY, DEVICES}:
            found.fitting = fitting_splits(
                question.model, question.devices, max(STAGES), question.server
            )
        self._try(plans, plans)
        if found.meeting:
            for one in over_nodes:
                found.pruned.add(SPREAD, one.plan)
        elif over_nodes:
            self._try(over_nodes, [*plans, *over_nodes])
        found.evaluated += len(found.units)
        if not found.meeting and not found.missing:
            found.missing += self._units_that_miss()
        self._order_missing()
        self._run_shown()
        if found.meeting:
            task = (found.meeting[0].plan, question)
            (found.beyond,) = self._workers.map(f"{_COUNTS}:headroom", [task])
        return found

    def _try(self, plans: Sequence[Bounded], planned: Sequence[Bounded]) -> None:
        """Measures plans and verifies what may be the best; those `planned` before are measured."""
        found, question = self._found, self._question
        Measuring(found, planned, self._workers, self._costs).run(plans)
        starts = starts_of(question, found.units, self._costs)
        near = self._near(starts)
        kept = _kept(near, question)
        self._verify("smallest", kept)
        if found.meeting:
            others = [plan for plan in near if plan not in kept]
            cheaper = list(largest_cheaper(found.meeting[0].plan, others, self._costs))
            self._verify("fewest", cheaper[:MOST_CHEAPER])
        if question.load.kind == CONCURRENCY:
            self._try_balanced()
        tried = {layout_of(one.plan) for one in (*found.meeting, *found.missing)}
        for plan in starts:
            if layout_of(plan) not in tried:
                found.pruned.add(ESTIMATE, plan)
        if question.load.shares_prefixes():
            self._try_cheaper(plans)

    def _near(self, starts: Sequence[Plan]) -> list[Plan]:
        """The plans near the cheapest estimate."""
        if not starts:
            return []
        limit = MARGIN * self._costs(starts[0])
        return [one for one in starts if self._costs(one) <= limit]

    def _verify(self, task: str, plans: Sequence[Plan]) -> None:
        """Runs deployments, and adds the smallest one of each that meets the targets."""
        found = self._found
        for candidates in self._workers.map(f"{_COUNTS}:{task}", self._tasks(plans)):
            found.evaluated += len(candidates)
            meeting = [one for one in candidates if one.meets]
            found.missing += [one for one in candidates if not one.meets]
            if meeting:
                found.meeting.append(min(meeting, key=lambda one: one.plan.devices))
        self._order_meeting()

    def _try_cheaper(self, plans: Sequence[Bounded]) -> None:
        """Runs the deployments that cost less than the best one, those nearest to it first.

        Sessions find their prompts cached where they ran before, and wait for their own answers:
        fewer instances may serve them better, and one role's speed changes the load of the other.
        Capacities of parts say too little then.
        """
        self._run_once(self._untried_below(plans)[:MOST_CHEAPER])

    def _try_balanced(self) -> None:
        """In a closed loop, runs prefill and decode instances that cost less than the best
        deployment, those that take most by their capacities first.

        More instances of one role may be too many for the other, so that bisection passes over
        some.
        """
        found = self._found
        waiting = balanced(self._question, found.units)[:MOST_CHEAPER]
        while waiting:
            most, tried = self._most(), self._tried()
            waiting = [plan for plan in waiting if plan not in tried and self._costs(plan) < most]
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            self._run_once(batch)

    def _run_once(self, plans: Sequence[Plan]) -> None:
        """Runs these deployments as they are."""
        found = self._found
        found.evaluated += len(plans)
        for candidate in self._workers.map(f"{_COUNTS}:verified", self._tasks(plans)):
            side = found.meeting if candidate.meets else found.missing
            side.append(candidate)
        self._order_meeting()

    def _untried_below(self, plans: Sequence[Bounded]) -> list[Plan]:
        """Deployments that were not run and cost less than the best one: the dearest first, or the
        cheapest where none meets the targets.
        """
        most, tried = self._most(), self._tried()
        untried = (plan for plan in deployments(plans, self._question) if plan not in tried)
        cheaper = [plan for plan in untried if self._costs(plan) < most]
        return sorted(cheaper, key=self._costs, reverse=bool(self._found.meeting))

    def _most(self) -> float:
        """The cost of the best deployment; infinite where none meets the targets."""
        meeting = self._found.meeting
        return self._costs(meeting[0].plan) if meeting else math.inf

    def _tried(self) -> set[Plan]:
        return {one.plan for one in (*self._found.meeting, *self._found.missing)}

    def _tasks(self, plans: Iterable[Plan]) -> list[tuple[Plan, Question]]:
        return [(plan, self._question) for plan in plans]

    def _run_shown(self) -> None:
        """Runs to the end what the answer shows of deployments that miss a target."""
        found = self._found
        shown = [one for one in found.shown_missing if one.run is not None and one.run.is_given_up]
        tasks = self._tasks(one.plan for one in shown)
        of_plan = {one.plan: one for one in self._workers.map(f"{_COUNTS}:verified_whole", tasks)}
        found.missing = [of_plan.get(one.plan, one) for one in found.missing]

    def _units_that_miss(self) -> list[Candidate]:
        """Where no layout takes any load within the targets: what each misses at the lowest one
        tried.

        A role is no deployment, and is named where nothing has both. Of those that one request
        alone has ruled out, the nearest are run.
        """
        question, missing = self._question, _whole_if_any(self._found.units_that_miss)
        ruled_out = [one for one in missing if one.is_bound]
        ruled_out.sort(key=lambda one: one.capacity.misses[0].by)
        nearest = [(one, question) for one in ruled_out[:NEAREST]]
        measured = [one for one in missing if not one.is_bound]
        measured += self._workers.map(f"{_INSTANCES}:least_loaded", nearest)
        whole = self._workers.map(
            f"{_INSTANCES}:with_whole_run", [(one, question) for one in measured]
        )
        return [
            Candidate(one.deployment, one.capacity.beyond, one.capacity.misses) for one in whole
        ]

    def _order_meeting(self) -> None:
        self._found.meeting.sort(key=self._rank)

    def _rank(self, one: Candidate) -> tuple[float, float, str]:
        """The cheapest first; of equal ones that with the most room below its targets."""
        assert one.run is not None
        targets = self._question.targets
        at = one.run.at(targets.percentile)
        used = max((at.get(name, 0.0) / most for name, most in targets.most_ms), default=0.0)
        return self._costs(one.plan), used, one.plan.label

    def _order_missing(self) -> None:
        """The next smaller deployment of the best layout first, then by how little they miss."""
        meeting = self._found.meeting
        best = layout_of(meeting[0].plan) if meeting else None

        def key(one: Candidate) -> tuple[bool, float, int]:
            is_alike = layout_of(one.plan) == best
            worst = one.misses[0].by if one.misses and not one.misses[0].at_least else math.inf
            return not is_alike, worst, one.plan.devices

        self._found.missing.sort(key=key)


def _kept(near: Sequence[Plan], question: Question) -> list[Plan]:
    """The plans whose smallest deployment is searched: some of each architecture."""
    kept = []
    for architecture in question.architectures:
        kept += [one for one in near if one.architecture == architecture][:MOST_VERIFIED]
    return kept


def _whole_if_any(units: list[Unit]) -> list[Unit]:
    """The units that serve requests alone, else all of them."""
    return [one for one in units if one.role == "both"] or units
