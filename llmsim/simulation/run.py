"""Runs a workload on a lowered deployment: from arrivals to results."""

from collections.abc import Callable

from llmsim import _native
from llmsim.columns import check_agreement
from llmsim.config.errors import (
    BackendFailed,
)
from llmsim.config.plugin_calls import foreign_code, released_after
from llmsim.core import (
    Results,
    Workload,
)
from llmsim.lowering import LoweredDeployment
from llmsim.results.series_sink import KeptSeries, SeriesSink
from llmsim.simulation.errors import errors_named
from llmsim.simulation.native_config import native_config
from llmsim.simulation.options import SimulationOptions
from llmsim.simulation.results import results_of

EVENTS_PER_CALL = 100_000
"""Most events between two looks at signals and the progress bar."""
WALL_MS_PER_CALL = 20
"""Milliseconds on the wall clock between two looks; no result depends on where a call ends."""

Progress = Callable[["_native.Simulation"], None]

check_agreement(_native.column_types())


@released_after()
def simulate(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    progress: Progress | None = None,
    sink: SeriesSink | None = None,
) -> Results:
    """Runs to the end, or until KeyboardInterrupt: then the results cover what was done and say
    `interrupted`.

    Where requests take KV blocks from each other for ever, the results cover what was done and say
    `circular`.

    The rows of the series go to `sink` while the run goes on, and what it keeps is in the results;
    without one, all.

    Raises InvariantError when the simulation stalls, which is a defect of the simulator, InputError
    when a router, a policy or a scheduler written in Python fails, and InfeasibleError when
    simulated times leave the clock's range.
    """
    recorded = tuple(range(len(deployment.groups))) if options.record_rounds else ()
    simulation = native_simulation(deployment, workload, options, recorded)
    sink = sink or KeptSeries()
    interrupted = False
    circular: tuple[int, ...] = ()
    try:
        with foreign_code(), errors_named(simulation, deployment, workload, options):
            ended = False
            while not ended:
                ended = simulation.run(EVENTS_PER_CALL, WALL_MS_PER_CALL)
                if progress is not None:
                    progress(simulation)
                _hand_over_series(simulation, sink)
    except KeyboardInterrupt:
        interrupted = True
        _end_series(simulation, sink)
    except _native.Circular as error:
        circular = tuple(int(group) for group in str(error).split(", "))
        _end_series(simulation, sink)
    except BackendFailed:
        _end_series(simulation, sink)
    return results_of(
        deployment,
        workload,
        simulation,
        sink,
        interrupted=interrupted,
        circular=circular,
        options=options,
    )


def _hand_over_series(simulation: "_native.Simulation", sink: SeriesSink) -> None:
    sink.add("series", simulation.take_series())
    sink.add("kv_tiers", simulation.take_kv_tier_series())
    sink.add("links", simulation.take_link_series())


def _end_series(simulation: "_native.Simulation", sink: SeriesSink) -> None:
    """Hands over the series of a run that goes no further, with its last interval."""
    simulation.end_series()
    _hand_over_series(simulation, sink)


def native_simulation(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    recorded: tuple[int, ...] = (),
    *,
    live: bool = False,
) -> "_native.Simulation":
    """The native simulation before its first event; it keeps the schedules of `recorded` groups.

    With `live`, the rows of the workload are empty, and requests come while the simulation runs
    (`Simulation.ask`).
    """
    return _native.Simulation(native_config(deployment, workload, options, recorded, live=live))
