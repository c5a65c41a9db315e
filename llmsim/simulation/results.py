"""What a simulation has found, as results."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from llmsim import _native
from llmsim.core import (
    OFFLOAD,
    PS_PER_S,
    Int64,
    KvTransferColumns,
    Provenance,
    RequestColumns,
    RequestDrafts,
    Results,
    TimeShare,
    Workload,
)
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.energy.stays import Stay, stays_of
from llmsim.results.invariants import check_invariants
from llmsim.results.printed.notes import notes_of_run
from llmsim.results.requests.detokenization_delay import with_output_processing
from llmsim.results.series_sink import SeriesSink
from llmsim.simulation.options import SimulationOptions

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlans


def results_of(
    deployment: LoweredDeployment,
    workload: Workload,
    simulation: "_native.Simulation",
    sink: SeriesSink,
    *,
    interrupted: bool,
    circular: tuple[int, ...],
    options: SimulationOptions,
) -> Results:
    asked = deployment
    visits = [] if asked.layouts is None else asked.layouts.visits(simulation)
    if visits:
        assert deployment.layouts is not None
        deployment = deployment.layouts.as_run(visits)[1]
    sources = _sources(deployment, simulation) if options.record_sources else _Sources()
    interval_ps = options.series_interval_ps or PS_PER_S
    emissions = _native.TokenTimes(simulation)
    values, counts = emissions.inter_token_latencies()
    requests = RequestColumns(**simulation.requests())
    results = Results(
        workload=workload,
        groups=tuple(group.info for group in deployment.groups),
        requests=requests,
        itl_values_ps=values,
        itl_counts=counts,
        itl_of=emissions.inter_token_latencies_of,
        steps=simulation.steps(),
        series=sink.columns("series"),
        counters=simulation.counters(),
        kv_tiers=tuple(simulation.kv_tiers()),
        kv_tier_series=sink.columns("kv_tiers"),
        link_series=sink.columns("links"),
        time_shares=sources.time_shares,
        table_rows=tuple(simulation.table_rows()),
        attention_reach=sources.attention_reach,
        blame=possible_causes(asked, workload, simulation.blame()),
        first_token_blame=lambda: possible_causes(asked, workload, simulation.first_token_blame()),
        accepted_at=tuple(simulation.accepted_at()),
        drafts=_drafts(simulation),
        kv_transfers=_kv_transfers(asked.layouts, visits, simulation),
        links=simulation.network(),
        energy=deployment.accounting.energy(
            simulation, requests, interval_ps, _stays(asked, deployment, visits, simulation)
        ),
        reconfigurations=tuple(simulation.reconfigurations()),
        layout_visits=tuple(visits),
        interrupted=interrupted,
        circular=circular,
        horizon_ps=simulation.now_ps if simulation.at_horizon else None,
        backend=None if options.step_times is None else options.step_times.use,
        notes=deployment.notes,
        simulation=simulation,
    )
    results = with_output_processing(results, deployment.output_processing_ps)
    results.invariants = check_invariants(results, deployment.enforces_lower_bound)
    results.notes += _notes(deployment, results, options)
    return results


class _Sources(Struct, frozen=True):
    """Where the busy time comes from, and where attention is read beyond its tables."""

    time_shares: tuple[TimeShare, ...] = ()
    attention_reach: tuple[tuple[int, str, float], ...] = ()


def _sources(deployment: LoweredDeployment, simulation: "_native.Simulation") -> _Sources:
    return _Sources(
        time_shares=time_shares(deployment, simulation),
        attention_reach=tuple(
            (group, deployment.operator(group, op)[0], permille / 1000)
            for group, op, permille in simulation.attention_reach()
        ),
    )


def time_shares(
    deployment: LoweredDeployment, simulation: "_native.Simulation"
) -> tuple[TimeShare, ...]:
    """The busy time of every operator by source, and that of steps which waited for what a group
    keeps outside of its devices.
    """
    operators = (
        TimeShare(group, *deployment.operator(group, op), ps)
        for group, op, ps in simulation.busy_time()
    )
    return (*operators, *_offload_shares(deployment, simulation))


def _offload_shares(
    deployment: LoweredDeployment, simulation: "_native.Simulation"
) -> Iterator[TimeShare]:
    """Waits of groups that wait for nothing else: groups in lock-step and in stages wait for each
    other, too, and what processors compute is the time of their own operators.
    """
    members = {index for one in deployment.lockstep_groups for index in one.groups}
    for index, group in enumerate(deployment.groups):
        plan = group.offload
        if plan is None or plan.host is not None or index in members or group.layout.pp > 1:
            continue
        parts = [0] * len(Provenance)
        parts[Provenance.ANALYTIC] = simulation.activity(index)["offload"]["stalled_ps"]
        if any(parts):
            yield TimeShare(index, OFFLOAD, plan.source, tuple(parts))


def possible_causes(
    deployment: LoweredDeployment, workload: Workload, causes: Mapping[str, Int64]
) -> Mapping[str, Int64]:
    """Where latency went, without the causes that the run cannot have."""
    impossible = set(_impossible_causes(deployment, workload))
    return {name: parts for name, parts in causes.items() if name not in impossible}


def _impossible_causes(deployment: LoweredDeployment, workload: Workload) -> Iterator[str]:
    lowered = _with_its_layouts(deployment)
    groups = [group for one in lowered for group in one.groups]
    encodes = not all(group.untimed_encoder for group in groups)
    if workload.encoder_inputs is None or not encodes:
        yield "encoder_ps"
    if not any(_has_attention_apart(one) for one in lowered):
        yield "m2n_ps"
    if all(group.offload is None for group in groups):
        yield "offload_ps"
    if deployment.layouts is None:
        yield "reconfigure_ps"


def _with_its_layouts(deployment: LoweredDeployment) -> list[LoweredDeployment]:
    if deployment.layouts is None:
        return [deployment]
    return [deployment, *(plan.lowered for plan in deployment.layouts.plans)]


def _has_attention_apart(lowered: LoweredDeployment) -> bool:
    """Attention and FFN of some group are on devices of their own."""
    return any(lockstep.afd is not None for lockstep in lowered.lockstep_groups)


def _kv_transfers(
    layouts: "LayoutPlans | None",
    visits: Sequence[tuple[int, int]],
    simulation: "_native.Simulation",
) -> KvTransferColumns | None:
    """None where no layout that served has prefill and decode apart."""
    served = [layout for layout, _ in visits]
    if layouts is not None and all(
        layouts.plans[one].lowered.kv_transfers is None for one in served
    ):
        return None
    columns = cast("Mapping[str, Any] | None", simulation.kv_transfers())
    return None if columns is None else KvTransferColumns(**columns)


def _drafts(simulation: "_native.Simulation") -> RequestDrafts | None:
    columns = cast("Mapping[str, Any] | None", simulation.drafts())
    return None if columns is None else RequestDrafts(**columns)


def _stays(
    asked: LoweredDeployment,
    served: LoweredDeployment,
    visits: Sequence[tuple[int, int]],
    simulation: "_native.Simulation",
) -> Sequence[Stay]:
    """When devices were whose; none without layouts."""
    if asked.layouts is None:
        return ()
    return stays_of(asked.layouts, simulation.reconfigurations(), visits, served.accounting)


def _notes(
    deployment: LoweredDeployment, results: Results, options: SimulationOptions
) -> tuple[str, ...]:
    """What only the run can say."""
    groups = deployment.groups
    notes = notes_of_run(
        results,
        prefix_caching=any(group.engine.enable_prefix_caching for group in groups),
        open_loop=options.clients is None,
        lora_slots=any(group.engine.max_loras is not None for group in groups),
        untimed_adapters=_first(group.untimed_adapters for group in groups),
        encoder_budgets=all(map(_has_encoder_budget, groups)),
        untimed_encoder=_first(group.untimed_encoder for group in groups),
    )
    return notes if options.step_times is None else (*notes, options.step_times.note)


def _has_encoder_budget(group: LoweredGroup) -> bool:
    """A group that gets no requests needs none."""
    return group.scheduler is None or group.scheduler.encoder.step_tokens > 0


def _first(texts: Iterable[str]) -> str:
    """The first that says anything."""
    return next(filter(None, texts), "")
