"""What a few instances of one layout take alone, as workers measure it."""

from dataclasses import dataclass, replace

from llmsim.config.errors import LlmsimError
from llmsim.sizing.alone import missed_alone
from llmsim.sizing.capacity import (
    FEWEST,
    FEWEST_VERIFIED,
    Capacity,
    capacity,
    enough_requests,
    misses,
    with_figures,
)
from llmsim.sizing.load import CONCURRENCY
from llmsim.sizing.measure import Bench, Measured
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.found import Unit
from llmsim.sizing.search.question import Question, role_targets
from llmsim.sizing.targets import Miss

TOGETHER = 4
"""Instances whose capacity is measured together, where the load needs so many."""
MOST_PARTNERS = 16
"""Instances of the other role beside one: more than `PARTNERS` where decode instances have no room
for what a prefill instance computes.
"""
MORE = 1.25
"""Times the load that a prefill instance has to take beside more decode instances, for these to
matter.
"""
COARSE = 0.05
"""The precision of a capacity."""
FIRST_CLIENTS = 16.0
"""The clients with which the capacity of whole instances is looked for at first."""


@dataclass(frozen=True)
class Asked:
    """Which role of a layout to measure, and what of it matters."""

    plan: Plan
    role: str
    question: Question
    most: float
    """The level that one instance cannot exceed."""
    least: float
    """The lowest level of one instance that matters."""
    most_instances: float
    """The number of instances beyond which none matters."""

    @property
    def together(self) -> int:
        """The most instances that are measured together."""
        own = self.plan.pools[1 if self.role == "decode" else 0]
        most_devices = self.question.max_devices // own.shape.devices
        return max(1, int(min(TOGETHER, self.most_instances, most_devices)))


def unit(bench: Bench, asked: Asked) -> Unit:
    """The capacity of a few instances together, as few as the load needs.

    An instance alone takes far less than its share of several, where its targets leave little room
    for waiting: where several take the whole load, fewer say more only if each of them takes more.
    None takes more than one that takes the whole load.
    """
    instances = _Instances(bench, asked)
    together = asked.together
    best = found = instances.measured(together)
    if together > 1 and _takes_all(found) and (one := instances.one_at_whole_load()) is not None:
        return one
    while together > 1 and _takes_all(found):
        together //= 2
        found = instances.measured(together)
        best = found if found.level > best.level else best
    return best


def _takes_all(one: Unit) -> bool:
    """Whether instances take the whole load together."""
    return not one.problem and one.capacity.beyond is None


class _Instances:
    """Instances of one layout, and the runs that show what some of them take together."""

    def __init__(self, bench: Bench, asked: Asked) -> None:
        question = asked.question
        self._bench, self._asked, self._load = bench, asked, question.load
        self._targets = role_targets(question.targets, asked.role)
        self._fewest = FEWEST if question.load.has_equal_requests() else FEWEST_VERIFIED
        self._one_misses: Measured | None = None
        """The run of one instance under the whole load, if it misses a target."""

    def measured(self, together: int) -> Unit:
        """The capacity of so many instances."""
        asked = self._asked
        nothing = Unit(asked.plan, asked.role, Capacity(0.0, None, None, ()), together)
        try:
            alone = missed_alone(self._bench, asked.plan, self._load, self._targets, self._fewest)
            if alone is not None:
                run, miss = alone
                return replace(nothing, capacity=Capacity(0.0, None, run, (miss,)), is_bound=True)
            missing = self._one_misses if together == 1 else None
            unit = self._bisected(nothing, self._start(together), missing)
            return self._with_partners(unit) if asked.role == "prefill" else unit
        except LlmsimError as error:
            return replace(nothing, problem=str(error))

    def one_at_whole_load(self) -> Unit | None:
        """One instance, if it takes the whole load."""
        asked, load = self._asked, self._load
        one = Unit(asked.plan, asked.role, Capacity(0.0, None, None, ()))
        if asked.most < load.level:
            return None
        try:
            run, missed = self._at(one, load.level)
        except LlmsimError:
            return None  # bisection says what the problem is
        if missed:
            self._one_misses = run
            return None
        return replace(one, capacity=Capacity(load.level, run, None, ()))

    def _start(self, together: int) -> float:
        """The first level that is tried. One role seldom takes less than a closed loop asks for,
        because clients wait for the other one, too.
        """
        level = self._load.level
        if together == 1 and self._one_misses is not None:
            level /= 2
        if self._load.kind != CONCURRENCY:
            return min(level, self._asked.most * together / 4)
        return level if self._asked.role != "both" else FIRST_CLIENTS

    def _with_partners(self, unit: Unit) -> Unit:
        """The prefill instances beside as many decode instances as they keep busy."""
        while unit.capacity.beyond and unit.partners < MOST_PARTNERS:
            more, level = replace(unit, partners=2 * unit.partners), unit.capacity.beyond.level
            if self._at(more, min(self._load.level, level * MORE))[1]:
                break
            unit = self._bisected(more, level)
        return unit

    def _bisected(self, unit: Unit, start: float, missing: Measured | None = None) -> Unit:
        found = capacity(
            self._bench,
            unit.deployment,
            self._load,
            self._targets,
            start,
            fewest=self._fewest,
            precision=COARSE,
            floor=self._asked.least * unit.instances,
            ceiling=self._load.level,
            missing=missing,
            gives_up=True,
        )
        return replace(unit, capacity=found)

    def _at(self, unit: Unit, level: float) -> tuple[Measured, list[Miss]]:
        """The run at a level, and what it misses."""
        requests = enough_requests(self._load, self._targets, level, self._fewest)
        stops, percentiles = self._targets.limits, (self._targets.percentile,)
        plan, bench = unit.deployment, self._bench
        run = bench.measure(plan, self._load, level, requests, percentiles, stops)
        return run, misses(run, self._targets)


def least_loaded(bench: Bench, task: tuple[Unit, Question]) -> Unit:
    """Instances under the lowest load that is tried."""
    one, question = task
    fewest = FEWEST if question.load.has_equal_requests() else FEWEST_VERIFIED
    targets = role_targets(question.targets, one.role)
    found = capacity(bench, one.deployment, question.load, targets, 0.0, fewest=fewest)
    return replace(one, capacity=found)


def with_whole_run(bench: Bench, task: tuple[Unit, Question]) -> Unit:
    """The instances with the figures of the level that they miss, if that run was given up."""
    one, question = task
    targets = role_targets(question.targets, one.role)
    known = with_figures(bench, one.deployment, question.load, targets, one.capacity)
    return replace(one, capacity=known)
