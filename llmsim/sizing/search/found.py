"""What a search has found: instances, deployments, and the answer before it is worded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmsim.config.errors import WiderSplit
from llmsim.results.time_sources import TimeSources
from llmsim.sizing.bounds import Pruned
from llmsim.sizing.capacity import Capacity
from llmsim.sizing.measure import Measured
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.question import Question
from llmsim.sizing.targets import Miss

PARTNERS = 2
"""Instances of the other role while one role's capacity is measured."""
NEXT = 3
"""Deployments that are shown beside the best one."""


@dataclass(frozen=True)
class Unit:
    """One instance and how much of the load it takes."""

    plan: Plan
    role: str
    capacity: Capacity
    instances: int = 1
    """So many were measured together, as bursts of several instances even out."""
    partners: int = PARTNERS
    """Instances of the other role beside each of them."""
    is_bound: bool = False
    """Whether a request alone misses the targets, so that no level was tried."""
    problem: str = ""

    @property
    def level(self) -> float:
        """The level that each instance takes."""
        return self.capacity.level / self.instances

    @property
    def requests_per_s(self) -> float:
        """Requests per second that each instance takes."""
        return 0.0 if self.capacity.at is None else self.capacity.at.requests_per_s / self.instances

    @property
    def deployment(self) -> Plan:
        """What was measured: an instance of one role has more partners than it can keep busy."""
        if self.role == "both":
            return self.plan.with_counts(self.instances)
        counts = (self.instances, self.partners * self.instances)
        return self.plan.with_counts(*(counts if self.role == "prefill" else reversed(counts)))


@dataclass(frozen=True)
class Candidate:
    """A plan that was run under the load that is asked for."""

    plan: Plan
    run: Measured | None
    misses: tuple[Miss, ...]
    problem: str = ""

    @property
    def meets(self) -> bool:
        """Whether every request ended and every target was met."""
        return self.run is not None and self.run.complete and not self.misses

    @property
    def sources(self) -> TimeSources | None:
        """Where the times of its run come from; None where it did not run, or nothing was timed."""
        found = None if self.run is None else self.run.sources
        return found if found is not None and found.total_ps else None


@dataclass
class Found:
    """The answer before it is worded."""

    question: Question
    meeting: list[Candidate] = field(default_factory=list)
    """The smallest deployment of each layout that meets the targets, the best first."""
    missing: list[Candidate] = field(default_factory=list)
    """Deployments that miss a target: of the best layout the next smaller one first."""
    units: list[Unit] = field(default_factory=list)
    pruned: Pruned = field(default_factory=Pruned)
    evaluated: int = 0
    beyond: Capacity | None = None
    """How far the load of the best plan can grow."""
    fitting: Mapping[str, WiderSplit] = field(default_factory=dict)
    """Where memory or --max-devices rule everything out: the smallest instance by device."""

    @property
    def units_that_miss(self) -> list[Unit]:
        """Those whose targets some level misses."""
        return [one for one in self.units if one.capacity.misses]

    @property
    def shown_missing(self) -> list[Candidate]:
        """Of those that miss a target: the nearest one that is smaller than the best, or the next
        ones where nothing meets the targets.
        """
        if not self.meeting:
            return self.missing[:NEXT]
        most = self.meeting[0].plan.devices
        return [one for one in self.missing if one.misses and one.plan.devices < most][:1]


def layout_of(plan: Plan) -> tuple[Any, ...]:
    return (plan.device, plan.engine, *((pool.shape, pool.role) for pool in plan.pools))
