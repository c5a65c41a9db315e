"""Runs a plan under a load and keeps what decides: latencies at a percentile and throughput.

The figures are those of `llmsim run`; tables, series and summary are left out, because a search
needs thousands of runs.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.config.errors import InfeasibleError
from llmsim.core import PS_PER_S, Int64, RequestColumns, Workload
from llmsim.lowering import LoweredDeployment, LoweringOptions
from llmsim.lowering.deployment import Kinds, lower
from llmsim.results.requests.ceilings import Ceiling, least_latencies
from llmsim.results.requests.metrics import finished_rows, latencies, percentile
from llmsim.results.time_sources import TimeSources
from llmsim.sizing.load import Load
from llmsim.sizing.plan import Plan
from llmsim.sizing.targets import METRICS, NO_CLASS, PS_PER_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmsim import _native

KEPT_DEPLOYMENTS = 8
KEPT_KINDS = 512
"""Compiled groups that one process keeps; each has 1 to 4 MB of tables."""
EVENTS, WALL_MS = 1_000_000, 60_000
FIRST_LOOK, MORE_EVENTS = 2_000, 4
"""Events before the first look at a run that may be given up, and of which share of those that were
handled the next look comes later. A result depends on events alone, not on the machine's speed.
"""


@dataclass(frozen=True)
class Measured:
    """One run of a plan; times at `percentiles`, ms."""

    level: float
    requests: int
    completed: int
    duration_s: float
    output_tokens: int
    latency_ms: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    too_long: int = 0
    """Requests whose prompts are beyond the model's context, so that no deployment serves them."""
    mean_ttft_s: float = 0.0
    mean_after_s: float = 0.0
    """From the first token to the last one, on average."""
    sources: TimeSources | None = None
    """Where its times come from; None where nobody asked."""
    given_up: Ceiling | None = None
    """What was certain to be exceeded when the run was stopped, which has no figures then."""

    @property
    def is_given_up(self) -> bool:
        """Whether the run was stopped, so that it has no figures."""
        return self.given_up is not None

    @property
    def requests_per_s(self) -> float:
        """Requests that ended, per second from the first arrival to the last token."""
        return self.completed / self.duration_s if self.duration_s else 0.0

    def at(self, percentile: float) -> dict[str, float]:
        """Each metric at a percentile; a metric that no request has is left out."""
        return {
            name: dict(values)[percentile]
            for name, values in self.latency_ms
            if percentile in dict(values)
        }

    @property
    def output_tok_s(self) -> float:
        """Generated tokens per second from the first arrival to the last token."""
        return self.output_tokens / self.duration_s if self.duration_s else 0.0

    @property
    def unfinished(self) -> int:
        """Requests that the model can serve, and that did not end."""
        return self.requests - self.completed - self.too_long

    @property
    def complete(self) -> bool:
        """Whether every request ended that the model can serve."""
        return self.unfinished == 0


@dataclass
class Bench:
    """Measures plans in this process; compiled groups are kept by what they are made of."""

    options: LoweringOptions = field(default_factory=LoweringOptions)
    router: str = "LOAD"
    compiled: int = 0
    """Groups that were compiled; others were known."""
    runs: int = 0

    def __post_init__(self) -> None:
        self._kinds: OrderedDict[tuple[Any, ...], Kinds] = OrderedDict()
        self._lowered: OrderedDict[Plan, LoweredDeployment] = OrderedDict()

    def lowered(self, plan: Plan) -> LoweredDeployment:
        """The plan, compiled; raises InputError and InfeasibleError."""
        if plan in self._lowered:
            self._lowered.move_to_end(plan)
            return self._lowered[plan]
        kinds = self._kinds.setdefault(plan.kind_key(), {})
        before = len(kinds)
        found = lower(plan.deployment(), self.options, kinds)
        self.compiled += len(kinds) - before
        if sum(map(len, self._kinds.values())) > KEPT_KINDS:
            self._kinds.clear()
        self._lowered[plan] = found
        while len(self._lowered) > KEPT_DEPLOYMENTS:
            self._lowered.popitem(last=False)
        return found

    def measure(
        self,
        plan: Plan,
        load: Load,
        level: float,
        requests: int,
        percentiles: tuple[float, ...],
        ceilings: Sequence[Ceiling] = (),
        *,
        sources: bool = False,
    ) -> Measured:
        """One run at a level of the load, if asked with the sources of its times, and given up
        where it is certain to exceed a ceiling; raises InfeasibleError where requests can never
        run.
        """
        from llmsim.routing import RouterSpec
        from llmsim.simulation.errors import errors_named
        from llmsim.simulation.options import SimulationOptions
        from llmsim.simulation.results import time_shares
        from llmsim.simulation.run import native_simulation

        lowered = self.lowered(plan)
        workload = load.workload(level, requests, lowered.granularity)
        options = SimulationOptions(
            router=RouterSpec(self.router),
            seed=load.seed,
            record_series=False,
            clients=load.clients(level),
        )
        simulation = native_simulation(lowered, workload, options)
        with errors_named(simulation, lowered, workload, options):
            events = FIRST_LOOK if ceilings else EVENTS
            handled, exceeded = 0, None
            while exceeded is None and not simulation.run(events, WALL_MS):
                exceeded = _exceeded(ceilings, simulation, workload)
                handled += events
                events = max(events, handled // MORE_EVENTS)
        self.runs += 1
        if exceeded is not None:
            return Measured(level, len(workload), 0, 0.0, 0, (), given_up=exceeded)
        columns = RequestColumns(**simulation.requests())
        found = _measured(columns, level, workload, percentiles)
        servable = is_servable(plan.model, workload.input_tokens)
        return replace(
            found,
            too_long=len(workload) - int(np.count_nonzero(servable)),
            sources=TimeSources.of(time_shares(lowered, simulation)) if sources else None,
        )


def _exceeded(
    ceilings: Sequence[Ceiling], simulation: "_native.Simulation", workload: Workload
) -> Ceiling | None:
    """The first ceiling that the run is certain to end above, or to end above without some of its
    requests.
    """
    if not ceilings:
        return None
    columns = RequestColumns(**simulation.requests())
    times = least_latencies(columns, workload.output_tokens, simulation.now_ps)
    return next((one for one in ceilings if one.is_exceeded(times, len(workload))), None)


def is_servable(model: str, input_tokens: "NDArray[Any]") -> "NDArray[np.bool_]":
    """Which prompts leave room for a token of the answer in the model's context."""
    from llmsim.model import load_model

    servable: NDArray[np.bool_] = input_tokens < load_model(model).max_position_embeddings
    return servable


def _measured(
    columns: RequestColumns, level: float, workload: Workload, percentiles: tuple[float, ...]
) -> Measured:
    requests = len(workload)
    rows = finished_rows(columns)
    if not len(rows):
        raise InfeasibleError(f"none of {requests} requests ended; their KV does not fit")
    arrivals = columns.arrival_ps[columns.arrival_ps >= 0]
    duration_ps = int(columns.finish_ps[rows].max()) - int(arrivals.min())
    shown = list(_percentiles(columns, rows, "", percentiles))
    if workload.slo_class is not None:
        names = np.array(workload.slo_class)[rows]
        for name in np.unique(names).tolist():
            prefix = f"{name or NO_CLASS}."
            shown += _percentiles(columns, rows[names == name], prefix, percentiles)
    emitted = int(columns.emitted_tokens[rows].sum())
    found = latencies(columns, rows)
    ttft_s, e2el_s = (float(one.mean()) / PS_PER_S for one in (found.ttft_ps, found.e2el_ps))
    return Measured(
        level,
        requests,
        len(rows),
        duration_ps / PS_PER_S,
        emitted,
        tuple(shown),
        mean_ttft_s=ttft_s,
        mean_after_s=e2el_s - ttft_s,
    )


def _percentiles(
    columns: RequestColumns, rows: Int64, prefix: str, percentiles: tuple[float, ...]
) -> Iterator[tuple[str, tuple[tuple[float, float], ...]]]:
    """The percentiles of each latency of these requests, ms; none of a latency that none has."""
    found = latencies(columns, rows)
    metrics = zip(METRICS, (found.ttft_ps, found.tpot_ps, found.e2el_ps), strict=True)
    for name, values in metrics:
        ordered = np.sort(values)
        if len(ordered):
            at = tuple((q, percentile(ordered, None, q) / PS_PER_MS) for q in percentiles)
            yield f"{prefix}{name}", at
