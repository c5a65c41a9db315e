"""The steps of a run with their batches, and what moved meanwhile: what graphs are made of."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.core import Workload
from llmsim.export.step_graph.core_nodes import NodeKey, StepSpans
from llmsim.export.step_graph.graph import Round, refuse_without_steps
from llmsim.export.step_graph.rows import Item
from llmsim.export.step_graph.streams import Drafts
from llmsim.lowering import LoweredDeployment
from llmsim.simulation.errors import errors_named
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.run import native_simulation

EVENTS_PER_BATCH = 2_000
"""Events between two looks at the steps so far."""
Places = np.ndarray[Any, np.dtype[np.int64]]


class RecordedSteps:
    """The steps of a group in a simulation that records steps, schedules and transfers, and of
    those that run them in lock-step.
    """

    def __init__(
        self, simulation: "_native.Simulation", deployment: LoweredDeployment, group: int
    ) -> None:
        self.groups = deployment.groups
        """All groups of the run so far."""
        self._simulation, self._network = simulation, deployment.network_of(group)
        self._accounting = deployment.accounting
        self._group, self._members = group, members_of_round(deployment, group)
        lockstep = next((one for one in deployment.lockstep_groups if group in one.groups), None)
        self._afd = None if lockstep is None else lockstep.afd
        self._attention_members = 0 if lockstep is None else lockstep.attention_members
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
    def dummies(self) -> "np.ndarray[Any, np.dtype[np.intp]]":
        """Places of the group's steps without work, among all of its steps: it joined a round of
        its lock-step group with a dummy.
        """
        return np.flatnonzero(self._of_member[self._group]["tokens"] == 0)

    @cached_property
    def _schedules(self) -> dict[int, Mapping[str, Any]]:
        return {member: self._simulation.schedule(member) for member in self._members}

    @cached_property
    def _items_by_place(self) -> "dict[int, tuple[Places, Places]]":
        """By member: for each of its steps, the first item of its batch and the one behind the
        last. The schedule lists what was built, which dummies are not.
        """
        found = {}
        for member in self._members:
            offsets = np.asarray(self._schedules[member]["item_offsets"])
            built = np.flatnonzero(np.diff(offsets))
            worked = self._of_member[member]["tokens"] > 0
            firsts, ends = np.zeros((2, len(worked)), dtype=np.int64)
            batches = built[: np.count_nonzero(worked)]
            firsts[worked], ends[worked] = offsets[batches], offsets[batches + 1]
            found[member] = (firsts, ends)
        return found

    @cached_property
    def _transfers(self) -> "_Transfers":
        return _Transfers(self._simulation.transfers())

    def has(self, iteration: int) -> bool:
        """Whether all members have run the group's iteration of that number."""
        return 0 <= iteration < len(self.worked) and self.has_at(int(self.worked[iteration]))

    def iterations(self) -> list[int]:
        """The numbers of the group's iterations that all members have run."""
        return [iteration for iteration in range(len(self.worked)) if self.has(iteration)]

    def has_at(self, place: int) -> bool:
        """Whether all members have run the group's step at that place among all of its steps, to
        its end: steps that the horizon cut off have no times.
        """
        return all(
            len(steps["tokens"]) > place and steps["end_ps"][place] >= 0
            for steps in self._of_member.values()
        )

    def times_ps(self, iteration: int) -> tuple[int, int]:
        """When the group's own step of an iteration began and ended."""
        return self.times_at_ps(int(self.worked[iteration]))

    def times_at_ps(self, place: int) -> tuple[int, int]:
        """When the group's own step at that place among all of its steps began and ended."""
        steps = self._of_member[self._group]
        return int(steps["start_ps"][place]), int(steps["end_ps"][place])

    def slowness(self, iteration: int) -> tuple[int, int]:
        """Orders steps by their lengths, the longest first, and equal ones by time."""
        start_ps, end_ps = self.times_ps(iteration)
        return start_ps - end_ps, iteration

    def at(self, time_ps: int) -> int | None:
        """The iteration that runs at a time; None: none does."""
        steps = self._of_member[self._group]
        starts_ps, ends_ps = steps["start_ps"][self.worked], steps["end_ps"][self.worked]
        running = np.flatnonzero((starts_ps <= time_ps) & (time_ps < ends_ps))
        return int(running[0]) if len(running) else None

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
        return self.round_at(int(self.worked[iteration]))

    def round_at(self, place: int) -> Round:
        """The batches of the step at that place among all of the group's steps, dummies counted."""
        times = self._member_times_ps(place)
        first, last = min(start for start, _ in times), max(end for _, end in times)
        return Round(
            self._iteration_at(place),
            place + 1,
            self._members,
            tuple(self._items(member, place) for member in self._members),
            times,
            self._accounting,
            self._transfers.during(first, last),
            self._network,
            tuple(self._node_spans.of(member, place) for member in self._members),
            tuple(self._drafts_of(member, place) for member in self._members),
            self._ends_before_ps(place),
            tuple(self._adapters_of(member, place) for member in self._members),
            self._afd,
            self._attention_members,
        )

    def _iteration_at(self, place: int) -> int | None:
        """The iteration of the group's step at that place; None: it is a dummy."""
        iteration = int(np.searchsorted(self.worked, place))
        works = iteration < len(self.worked) and self.worked[iteration] == place
        return iteration if works else None

    def _member_times_ps(self, place: int) -> tuple[tuple[int, int], ...]:
        """When each member's step at that place began and ended."""
        members = self._of_member.values()
        return tuple((int(one["start_ps"][place]), int(one["end_ps"][place])) for one in members)

    def _ends_before_ps(self, place: int) -> tuple[int, ...]:
        """When each member's step in front of that place ended; 0 in front of the first one."""
        if place == 0:
            return (0,) * len(self._of_member)
        return tuple(int(steps["end_ps"][place - 1]) for steps in self._of_member.values())

    @cached_property
    def _node_spans(self) -> "_NodeSpans":
        return _NodeSpans(self._simulation.node_spans())

    def _drafts_of(self, member: int, place: int) -> Drafts:
        """What the drafter proposes at the end of a step; a dummy's proposes nothing."""
        worked = self._of_member[member]["tokens"] > 0
        schedule = self._schedules[member]
        built = np.flatnonzero(np.diff(np.asarray(schedule["item_offsets"])))
        after = np.asarray(schedule["drafts_after"])[built]
        before = after[: np.count_nonzero(worked[:place])]
        passes = int(np.count_nonzero(before)), int(np.maximum(before - 1, 0).sum())
        return Drafts(int(after[len(before)]) if worked[place] else 0, *passes)

    def _adapters_of(self, member: int, place: int) -> tuple[int, ...]:
        """What the batch of a step has of LoRA adapters; nothing for a dummy."""
        worked = self._of_member[member]["tokens"] > 0
        if not worked[place]:
            return ()
        schedule = self._schedules[member]
        built = np.flatnonzero(np.diff(np.asarray(schedule["item_offsets"])))
        uses = np.asarray(schedule["adapter_use"]).reshape(len(schedule["drafts_after"]), -1)
        return tuple(uses[built[np.count_nonzero(worked[:place])]].tolist())

    def _items(self, member: int, place: int) -> tuple[Item, ...]:
        """The batch of a step; none for a dummy."""
        if self._of_member[member]["tokens"][place] == 0:
            return ()
        schedule = self._schedules[member]
        first, last = self._items_of(member, place)
        names = ("item_tokens", "item_computed", "item_drafts")
        rows = np.stack([schedule[name][first:last] for name in names], axis=1).tolist()
        return tuple(tuple(row) if row[-1] else tuple(row[:-1]) for row in rows)

    def _items_of(self, member: int, place: int) -> tuple[int, int]:
        firsts, ends = self._items_by_place[member]
        return int(firsts[place]), int(ends[place])


class _Transfers:
    """The transfers of a run, found by time."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self._by_start = np.argsort(columns["start_ps"], kind="stable")
        self._starts_ps = columns["start_ps"][self._by_start]
        ends_ps = columns["end_ps"][self._by_start]
        open_for_ever = np.where(ends_ps < 0, np.iinfo(np.int64).max, ends_ps)
        self._latest_ps = np.maximum.accumulate(open_for_ever)
        """Of the ends so far: from the first that is late enough on, one may be still open."""

    def during(self, start_ps: int, end_ps: int) -> dict[str, Any]:
        """All that move in the window, and some that have ended before, in the order of starts."""
        first = np.searchsorted(self._latest_ps, start_ps, side="right")
        last = np.searchsorted(self._starts_ps, end_ps, side="left")
        rows = np.sort(self._by_start[first:last])
        return {name: column[rows] for name, column in self._columns.items()}


class _NodeSpans:
    """The spans of a run's nodes, found by group and step."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._order = np.lexsort((columns["step"], columns["group"]))
        self._columns = columns
        self._groups = columns["group"][self._order]
        self._steps = columns["step"][self._order]

    def of(self, group: int, step: int) -> StepSpans:
        """Those of one step of a group; steps count dummies, too."""
        first, last = np.searchsorted(self._groups, [group, group + 1])
        begin, end = first + np.searchsorted(self._steps[first:last], [step, step + 1])
        names = ("stage", "role", "op", "execution", "lane", "rank", "start_ps", "end_ps")
        rows = self._order[begin:end]
        found: dict[NodeKey, dict[int, tuple[int, int]]] = {}
        for *key, rank, start_ps, end_ps in zip(
            *(self._columns[name][rows].tolist() for name in names), strict=True
        ):
            found.setdefault(NodeKey(*key), {})[rank] = (start_ps, end_ps)
        return StepSpans(found)


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


class _Recording:
    """A run whose steps are recorded while it goes on; groups of later layouts come as it does."""

    def __init__(
        self,
        deployment: LoweredDeployment,
        workload: Workload,
        options: SimulationOptions,
        group: int,
    ) -> None:
        layouts = deployment.layouts
        asked = deployment if layouts is None else layouts.initial_with_links()
        noted = replace(
            options,
            record_steps=True,
            record_transfers=True,
            record_rounds=layouts is not None,
        )
        members = members_of_round(asked, group)
        if layouts is not None:
            members = tuple(range(len(asked.groups)))
        self._asked, self._errors = asked, (workload, options)
        self.simulation = native_simulation(asked, workload, noted, recorded=members)

    def go_on(self) -> bool:
        """Whether the run has ended after some more events; raises what `simulate` raises."""
        with errors_named(self.simulation, self._asked, *self._errors):
            try:
                return self.simulation.run(EVENTS_PER_BATCH)
            except _native.Circular:
                return True  # no iteration behind this one differs

    def deployment(self) -> LoweredDeployment:
        """With the groups of all layouts that served so far."""
        layouts = self._asked.layouts
        if layouts is None:
            return self._asked
        return layouts.as_run(layouts.visits(self.simulation))[1]


def recorded_run(
    deployment: LoweredDeployment, workload: Workload, options: SimulationOptions, group: int
) -> RecordedSteps:
    """All steps of a group; raises InputError where it never comes, and what `simulate` raises."""
    recording = _Recording(deployment, workload, options, group)
    while not recording.go_on():
        pass
    served = recording.deployment()
    _check_group(served, group)
    return RecordedSteps(recording.simulation, served, group)


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
    return steps_until(deployment, workload, options, group, iteration).round(iteration)


def steps_until(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    group: int,
    iteration: int,
) -> RecordedSteps:
    """The steps of a group until one of its iterations has ended; raises what `round_of` raises."""
    recording = _Recording(deployment, workload, options, group)
    done, count = False, 0
    while not done:
        done = recording.go_on()
        served = recording.deployment()
        if group >= len(served.groups):
            continue
        steps = RecordedSteps(recording.simulation, served, group)
        # A step is in the table when it begins; KV may land until it ends.
        now_ps = recording.simulation.now_ps
        if steps.has(iteration) and (done or now_ps >= steps.times_ps(iteration)[1]):
            return steps
        count = len(steps.worked)
    _check_group(served, group)
    raise InputError(
        f"group {group} ran {count} iterations; there is no iteration {iteration}, the last one is "
        f"{count - 1}",
        field="step",
        value=iteration,
    )


def _check_group(served: LoweredDeployment, group: int) -> None:
    if group >= len(served.groups):
        raise InputError(
            f"group is {group}; the run had the groups 0 to {len(served.groups) - 1}",
            field="group",
            value=group,
        )
    refuse_without_steps(served.groups, group)
