"""Runs a workload until one iteration of a group, and hands out its batches: what graphs of steps
are made of.
"""

from collections.abc import Mapping
from dataclasses import replace
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
    members = next(
        (lockstep.groups for lockstep in deployment.lockstep_groups if group in lockstep.groups),
        (group,),
    )
    simulation = native_simulation(
        deployment, workload, replace(options, record_steps=True), recorded=members
    )
    done, count = False, 0
    while not done:
        with errors_named(simulation, deployment, workload, options):
            try:
                done = simulation.run(EVENTS_PER_BATCH)
            except _native.Circular:
                done = True  # no iteration behind this one differs
        steps = simulation.steps()
        worked = {member: steps["tokens"][steps["group"] == member] > 0 for member in members}
        own = np.flatnonzero(worked[group])
        count = len(own)
        if 0 <= iteration < count and all(len(rows) > own[iteration] for rows in worked.values()):
            step = int(own[iteration])
            items = tuple(
                _items(simulation.schedule(member), worked[member], step) for member in members
            )
            return Round(iteration, step + 1, members, items)
    raise InputError(f"group {group} ran {count} iterations; there is no iteration {iteration}")


def _items(
    schedule: Mapping[str, Any], worked: "np.ndarray[Any, np.dtype[np.bool_]]", step: int
) -> tuple[Item, ...]:
    """The batch of a step; the schedule lists what was built, which dummies are not."""
    if not worked[step]:
        return ()
    offsets = schedule["item_offsets"]
    built = int(np.flatnonzero(np.diff(offsets))[np.count_nonzero(worked[:step])])
    first, last = int(offsets[built]), int(offsets[built + 1])
    columns = schedule["item_tokens"][first:last], schedule["item_computed"][first:last]
    return tuple((int(tokens), int(before)) for tokens, before in zip(*columns, strict=True))
