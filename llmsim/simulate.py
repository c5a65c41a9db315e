"""Runs a workload on a lowered deployment: from arrivals to results."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmsim import _native
from llmsim.config.errors import InvariantError
from llmsim.core import PS_PER_S, RequestColumns, Results, TimeShare, Workload
from llmsim.lowering import LoweredDeployment
from llmsim.results.invariants import check_invariants

EVENTS_PER_CALL = 100_000
"""Events between two looks at the keyboard and the progress bar: some tens of milliseconds."""

Progress = Callable[["_native.Simulation"], None]


@dataclass(frozen=True)
class SimulationOptions:
    """How to run; `series_interval_ps` 0 records no series."""

    router: str = "LOAD"
    seed: int = 0
    series_interval_ps: int = PS_PER_S
    record_steps: bool = False


def simulate(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    progress: Progress | None = None,
) -> Results:
    """Runs to the end, or until KeyboardInterrupt: then the results cover what was done and say `interrupted`.

    Raises InvariantError when the simulation stalls, which is a defect of the simulator.
    """
    simulation = _native_simulation(deployment, workload, options)
    interrupted = False
    try:
        while not simulation.run(EVENTS_PER_CALL):
            if progress is not None:
                progress(simulation)
        if progress is not None:
            progress(simulation)
    except KeyboardInterrupt:
        interrupted = True
    except _native.Stalled as error:
        raise InvariantError(f"invariant 7 (nobody waits for nothing) is violated: {error}") from None
    return _results(deployment, workload, simulation, interrupted)


def _native_simulation(
    deployment: LoweredDeployment, workload: Workload, options: SimulationOptions
) -> "_native.Simulation":
    simulation = _native.Simulation(
        arrival_ps=workload.arrival_ps,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        model=_model_indices(deployment, workload),
        next_call=workload.next_call,
        tool_delay_ps=workload.tool_delay_ps,
        priority=np.empty(0, np.int32),
        key_offsets=workload.key_offsets,
        keys=workload.keys,
        granularity=workload.granularity,
        series_interval_ps=options.series_interval_ps,
    )
    for group in deployment.groups:
        simulation.add_group(
            group.native, group.scheduler, group.program, group.expanded, record_steps=options.record_steps
        )
    simulation.set_router(options.router, options.seed, len(deployment.models))
    return simulation


def _model_indices(deployment: LoweredDeployment, workload: Workload) -> "np.ndarray[tuple[int], np.dtype[np.int16]]":
    """The workload numbers its own models; the core needs the deployment's numbers. Unnamed: the only one there is."""
    of_workload = [deployment.models.index(name) for name in workload.models]
    return np.array([*of_workload, 0], dtype=np.int16)[workload.model]


def _results(
    deployment: LoweredDeployment, workload: Workload, simulation: "_native.Simulation", interrupted: bool
) -> Results:
    emissions = _native.Emissions(simulation)
    values, counts = emissions.inter_token_latencies()
    results = Results(
        workload=workload,
        groups=tuple(group.info for group in deployment.groups),
        requests=RequestColumns(**simulation.requests()),
        itl_values_ps=values,
        itl_counts=counts,
        itl_of=emissions.inter_token_latencies_of,
        steps=simulation.steps(),
        series=simulation.series(),
        counters=simulation.counters(),
        time_shares=tuple(
            TimeShare(group, *deployment.operator(group, op), ps) for group, op, ps in simulation.busy_time()
        ),
        blame=simulation.blame(),
        interrupted=interrupted,
        notes=deployment.notes,
    )
    results.invariants = check_invariants(results, deployment.enforces_light)
    return results
