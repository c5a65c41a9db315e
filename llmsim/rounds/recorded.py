"""The steps of a run with their batches, and what moved meanwhile: what graphs are made of."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.export.step_graph.graph import Round
from llmsim.export.step_graph.rows import Item
from llmsim.lowering import LoweredDeployment
from llmsim.simulate import SimulationOptions, errors_named, native_simulation

EVENTS_PER_BATCH = 2_000
"""Events between two looks at the steps so far."""


class RecordedSteps:
    """The steps of a group in a simulation that records steps, schedules and transfers, and of
    those that run them in lock-step.
    """

    def __init__(
        self, simulation: "_native.Simulation", deployment: LoweredDeployment, group: int
    ) -> None:
        self._simulation, self._network = simulation, deployment.network
        self._accounting = deployment.accounting
        self._group, self._members = group, members_of_round(deployment, group)
        steps = simulation.steps()
        self._of_member = {
            member: {name: column[steps["group"] == member] for name, column in steps.items()}
            for member in self._members
        }

    @cached_property
    def worked(self) -> "np.ndarray[Any, np.dtype[np.intp]]":
        """Places of the group's steps that had work, among all of its steps."""
        return np.flatnonzero(self._of_member[self._group]["tokens"] > 0)

    @cached_property
    def _schedules(self) -> dict[int, Mapping[str, Any]]:
        return {member: self._simulation.schedule(member) for member in self._members}

    @cached_property
    def _transfers(self) -> Mapping[str, Any]:
        return self._simulation.transfers()

    def has(self, iteration: int) -> bool:
        """Whether all members have run the group's iteration of that number."""
        if not 0 <= iteration < len(self.worked):
            return False
        place = self.worked[iteration]
        return all(len(steps["tokens"]) > place for steps in self._of_member.values())

    def times_ps(self, iteration: int) -> tuple[int, int]:
        """When the group's own step of an iteration began and ended."""
        steps, place = self._of_member[self._group], self.worked[iteration]
        return int(steps["start_ps"][place]), int(steps["end_ps"][place])

    def slowness(self, iteration: int) -> tuple[int, int]:
        """Orders steps by their lengths, the longest first, and equal ones by time."""
        start_ps, end_ps = self.times_ps(iteration)
        return start_ps - end_ps, iteration

    def at(self, time_ps: int) -> int | None:
        """The iteration that runs at a time; None: none does."""
        running = [
            iteration
            for iteration in range(len(self.worked))
            if self.times_ps(iteration)[0] <= time_ps < self.times_ps(iteration)[1]
        ]
        return running[0] if running else None

    @property
    def num_requests(self) -> int:
        """Of the trace."""
        return len(self._simulation.requests()["status"])

    def requests(self, iteration: int) -> list[int]:
        """The numbers of the requests in the group's batch."""
        first, last = self._items_of(self._group, int(self.worked[iteration]))
        return [int(one) for one in self._schedules[self._group]["item_request"][first:last]]

    def round(self, iteration: int) -> Round:
        """The batches of an iteration, and what moved while it ran."""
        place = int(self.worked[iteration])
        times = [
            (int(steps["start_ps"][place]), int(steps["end_ps"][place]))
            for steps in self._of_member.values()
        ]
        return Round(
            iteration,
            place + 1,
            self._members,
            tuple(self._items(member, place) for member in self._members),
            tuple(times),
            self._accounting,
            self._transfers,
            self._network,
        )

    def _items(self, member: int, place: int) -> tuple[Item, ...]:
        """The batch of a step; the schedule lists what was built, which dummies are not."""
        if self._of_member[member]["tokens"][place] == 0:
            return ()
        schedule = self._schedules[member]
        first, last = self._items_of(member, place)
        columns = schedule["item_tokens"][first:last], schedule["item_computed"][first:last]
        return tuple((int(tokens), int(before)) for tokens, before in zip(*columns, strict=True))

    def _items_of(self, member: int, place: int) -> tuple[int, int]:
        offsets = self._schedules[member]["item_offsets"]
        worked = self._of_member[member]["tokens"][:place] > 0
        built = int(np.flatnonzero(np.diff(offsets))[np.count_nonzero(worked)])
        return int(offsets[built]), int(offsets[built + 1])


def members_of_round(deployment: LoweredDeployment, group: int) -> tuple[int, ...]:
    """The groups that run their steps together with a group, itself included."""
    return next(
        (
            tuple(lockstep.groups)
            for lockstep in deployment.lockstep_groups
            if group in lockstep.groups
        ),
        (group,),
    )


def recorded_run(
    deployment: LoweredDeployment, workload: Workload, options: SimulationOptions, group: int
) -> RecordedSteps:
    """All steps of a group; raises what `simulate` raises."""
    recorded = replace(options, record_steps=True, record_transfers=True)
    members = members_of_round(deployment, group)
    simulation = native_simulation(deployment, workload, recorded, recorded=members)
    with errors_named(simulation, deployment, workload, options):
        while not simulation.run(EVENTS_PER_BATCH):
            pass
    return RecordedSteps(simulation, deployment, group)


def round_of(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    group: int,
    iteration: int,
) -> Round:
    """The batches of one iteration of a group, and of those that run it in lock-step; steps without
    work not counted.

    Runs until that iteration. Raises InputError when the run ends before it, and what `simulate`
    raises.
    """
    recorded = replace(options, record_steps=True, record_transfers=True)
    members = members_of_round(deployment, group)
    simulation = native_simulation(deployment, workload, recorded, recorded=members)
    done, count = False, 0
    while not done:
        with errors_named(simulation, deployment, workload, options):
            try:
                done = simulation.run(EVENTS_PER_BATCH)
            except _native.Circular:
                done = True  # no iteration behind this one differs
        steps = RecordedSteps(simulation, deployment, group)
        # A step is in the table when it begins; KV may land until it ends.
        if steps.has(iteration) and (done or simulation.now_ps >= steps.times_ps(iteration)[1]):
            return steps.round(iteration)
        count = len(steps.worked)
    raise InputError(f"group {group} ran {count} iterations; there is no iteration {iteration}")
