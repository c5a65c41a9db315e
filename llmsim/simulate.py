"""Runs a workload on a lowered deployment: from arrivals to results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from llmsim import _native
from llmsim.columns import check_agreement
from llmsim.config.engine.rankings import is_ranking
from llmsim.config.engine.scheduler_kinds import INSTALLED, VLLM
from llmsim.config.errors import (
    BackendFailed,
    InfeasibleError,
    InputError,
    InvariantError,
    NotYetError,
)
from llmsim.config.plugin_calls import foreign_code, released_after
from llmsim.core import (
    OFFLOAD,
    PS_PER_S,
    BackendUse,
    Clients,
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
from llmsim.lowering.kv.tiers import LoweredTiers
from llmsim.lowering.operators.encoder_inputs import with_encoder_inputs
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.lowering.speculation.request_speculation import request_speculation
from llmsim.results.invariants import check_invariants
from llmsim.results.printed.notes import notes_of_run
from llmsim.results.requests.detokenization_delay import with_output_processing
from llmsim.results.series_sink import KeptSeries, SeriesSink
from llmsim.routing import RouterSpec, kept_sessions
from llmsim.scheduling.policies import PolicySpecs
from llmsim.scheduling.ranking import with_ranking
from llmsim.workload.content import adapter_numbers

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlans

EVENTS_PER_CALL = 100_000
"""Most events between two looks at signals and the progress bar."""
WALL_MS_PER_CALL = 20
"""Milliseconds on the wall clock between two looks; no result depends on where a call ends."""

Progress = Callable[["_native.Simulation"], None]

check_agreement(_native.column_types())


StepTimer = Callable[[Sequence[list[list[int]]], int, Sequence[tuple[int, int, int]]], list[int]]
"""(items of each member, number of the step, drafts and passes of each member's drafter) -> by how
many ps each stage of each member is done later than in the step's graph.
"""


class StepTimes(Protocol):
    """Times the steps of a run (`llmsim.rounds.outside.OutsideTimes`)."""

    def of(self, group: int) -> StepTimer:
        """The callable that the core asks for the steps of a group, and of those that run with it:
        (items of each member, number of the step) -> ps beyond each member's graph.
        """
        ...

    def of_layout(self, layout: int) -> "StepTimes":
        """Times the steps of a layout, whose groups have its own numbers."""
        ...

    @property
    def note(self) -> str:
        """A sentence about the run."""
        ...

    @property
    def use(self) -> BackendUse:
        """What the program did."""
        ...


class SimulationOptions(Struct, frozen=True):
    """How to run; `series_interval_ps` 0 records no series, nor does `record_series` False (power
    has its own).
    """

    router: RouterSpec = field(default_factory=RouterSpec)
    decode_router: RouterSpec = field(default_factory=RouterSpec)
    """Chooses where a disaggregated request is decoded."""
    session_affinity: bool = True
    """Later calls of sessions with hidden rounds go where the first one went, whatever the routers
    choose for others.
    """
    seed: int = 0
    series_interval_ps: int = PS_PER_S
    record_series: bool = True
    step_times: "StepTimes | None" = None
    """Another program that times the steps; None: none does."""
    record_steps: bool = False
    record_sources: bool = True
    """Keep the busy time of every operator by source (`Results.time_shares`)."""
    record_row_waits: bool = True
    """Tell what steps wait for rows between attention and FFN from other waiting, for which each is
    timed twice.
    """
    record_rounds: bool = False
    """Keep the schedules of all groups, so that graphs can be made of every step."""
    record_transfers: bool = False
    """Keep every transfer of the network that groups share (`llmsim.columns.TransferColumns`)."""
    policies: PolicySpecs = field(default_factory=PolicySpecs)
    tiers: LoweredTiers | None = None
    """Pools of KV below the devices, on the deployment's network."""
    check_every_step: bool = False
    """Recount all pools of KV at every step (invariant 4) instead of at the end."""
    clients: Clients | None = None
    """None: an open loop."""
    horizon_ps: int | None = None
    """The run ends then, whatever is left to do; None: when nothing is left."""


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
        _hand_over_series(simulation, sink)
    except _native.Circular as error:
        circular = tuple(int(group) for group in str(error).split(", "))
        _hand_over_series(simulation, sink)
    except BackendFailed:
        _hand_over_series(simulation, sink)
    return _results(
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


@contextmanager
def errors_named(
    simulation: "_native.Simulation",
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
) -> Iterator[None]:
    """What ends the core's loop as an error of ours: who is to blame, and what was done by then."""
    try:
        yield
    except (OverflowError, _native.engine.OutOfRange) as error:
        raise InfeasibleError(
            f"{error} at {simulation.num_finished} of {len(workload)} finished requests; are steps "
            "and links that slow, or are times of the profile in the wrong unit?"
        ) from None
    except _native.OutOfStates as error:
        raise InfeasibleError(
            f"{error}, beside those that HiCache still has to copy, and SGLang would end with 'Can "
            "not alloc mamba cache'; raise max_mamba_cache_size or mamba_full_memory_ratio"
        ) from None
    except _native.OutOfKvMemory as error:
        raise InfeasibleError(
            f"{error}, beside pages that HiCache still has to copy, and SGLang would end with 'out "
            "of memory'; raise hicache_ratio, or set hicache_write_policy to write_through"
        ) from None
    except _native.Stalled as error:
        if options.policies.scheduler is not None:
            raise InputError(
                f"scheduler {options.policies.scheduler.name} schedules nothing although requests "
                f"wait: {error} ({options.policies.scheduler.position('build(')})"
            ) from None
        raise InvariantError(
            f"invariant 7 (nobody waits for nothing) is violated: {error}"
        ) from None
    except _native.Violated as error:
        raise InvariantError(str(error)) from None
    except _native.BadPolicy as error:
        raise InputError(options.policies.named(str(error))) from None
    except _native.BadRoute as error:
        name, position = options.router.name, options.router.position()
        if deployment.kv_transfers is not None and options.decode_router.python is not None:
            name = f"{name} or {options.decode_router.name}"
            position = ", ".join(filter(None, (position, options.decode_router.position())))
        raise InputError(f"router {name} {error} ({position})") from None


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
    return _native.Simulation(_native_config(deployment, workload, options, recorded, live=live))


def _native_config(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    recorded: tuple[int, ...],
    *,
    live: bool,
) -> "_native.SimulationConfig":
    _refuse_what_a_python_scheduler_does_not_do(deployment, options)
    _refuse_routers_by_caches(deployment, options)
    outside = options.step_times
    groups = [
        _group(group, workload, options, record_schedule=group.info.index in recorded)
        for group in deployment.groups
    ]
    return _native.SimulationConfig(
        None if live else _source(deployment, workload, options.clients),
        groups,
        lockstep=[_lockstep(one, options, outside) for one in deployment.lockstep_groups],
        network=None if deployment.network is None else deployment.network.config,
        contention=[] if outside else [domain.native() for domain in deployment.contended],
        kv_tiers=None if options.tiers is None else options.tiers.config,
        kv_transfer=deployment.kv_transfers,
        kv_offloading=list(deployment.kv_offloading),
        frontend=_frontend(deployment, workload, options),
        observers=_native.Observers(
            series_interval_ps=options.series_interval_ps if options.record_series else 0,
            device_shares=deployment.accounting.power is not None,
            check_every_step=options.check_every_step,
            transfers=options.record_transfers,
        ),
        limits=None if options.horizon_ps is None else _native.Limits(options.horizon_ps),
        live=_native.Live(len(workload), workload.granularity) if live else None,
        layouts=_layouts(deployment.layouts, workload, options),
    )


def _layouts(
    layouts: "LayoutPlans | None", workload: Workload, options: SimulationOptions
) -> "_native.LayoutsConfig | None":
    if layouts is None:
        return None
    from llmsim.lowering.switches.layouts import kv_moves, move_network

    moves = kv_moves(layouts.plans) if layouts.moves_kv else None
    specs = []
    for number, plan in enumerate(layouts.plans):
        outside = None if options.step_times is None else options.step_times.of_layout(number)
        own = replace(options, step_times=outside)
        groups = [
            _group(one, workload, own, record_schedule=options.record_rounds)
            for one in plan.lowered.groups
        ]
        lockstep = [_lockstep(one, own, outside) for one in plan.lowered.lockstep_groups]
        domains = [] if outside else plan.lowered.contended
        specs.append(layouts.native_spec(plan, groups, lockstep, domains, moves))
    config = _native.LayoutsConfig(
        specs,
        layouts.initial,
        layouts.triggers(),
        [list(row) for row in layouts.weights_ps],
        layouts.process_ps,
        layouts.kv,
        None if layouts.decide is None else layouts.decide(),
    )
    if moves is not None:
        network = move_network(layouts.plans[layouts.initial])
        config.move_kv(network, moves.tables, moves.table_of)
    return config


def _lockstep(
    lockstep: LoweredLockstep, options: SimulationOptions, outside: StepTimes | None
) -> "_native.LockstepSpec":
    groups, interval = list(lockstep.groups), lockstep.sync_interval
    first = lockstep.syncs_first
    if lockstep.afd is not None:
        ports = list(lockstep.ports)
        return _native.LockstepSpec(
            groups,
            interval,
            lockstep.afd,
            lockstep.exact,
            ports,
            first,
            splits_waiting=options.record_row_waits,
        )
    times = outside.of(groups[0]) if outside else None
    return _native.LockstepSpec(groups, interval, lockstep.expanded, times, first)


def _source(
    deployment: LoweredDeployment, workload: Workload, clients: Clients | None
) -> "_native.Source":
    none, no_times = np.empty(0, np.int32), np.empty(0, np.int64)
    cancelled = workload.cancel_after_tokens
    return _native.Source(
        arrival_ps=workload.arrival_ps,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        model=_model_indices(deployment, workload),
        next_call=workload.next_call,
        tool_delay_ps=workload.tool_delay_ps,
        priority=none if workload.priority is None else workload.priority,
        key_offsets=workload.key_offsets,
        keys=workload.keys,
        granularity=workload.granularity,
        clients=_native.ClientsConfig(
            timeout_ps=no_times if workload.timeout_ps is None else workload.timeout_ps,
            cancel_after_tokens=none if cancelled is None else cancelled,
            count=0 if clients is None else clients.count,
            think_ps=no_times if clients is None else clients.think_ps,
        ),
        adapter=none if workload.adapter is None else adapter_numbers(workload.adapter),
    )


def _frontend(
    deployment: LoweredDeployment, workload: Workload, options: SimulationOptions
) -> "_native.Frontend":
    models, seed = deployment.models, options.seed
    admission = options.policies.native_admission(models, workload)
    kept = kept_sessions(workload) if options.session_affinity else None

    def router(spec: RouterSpec) -> "_native.RouterMaker":
        made = spec.native(seed, models, workload)
        return made if kept is None else _native.keep_sessions(made, kept)

    if deployment.kv_transfers is None:
        return _native.Frontend(router(options.router), None, admission)
    return _native.Frontend(router(options.router), router(options.decode_router), admission)


def _refuse_what_a_python_scheduler_does_not_do(
    deployment: LoweredDeployment, options: SimulationOptions
) -> None:
    """Its requests can neither be handed to another group nor wait for KV."""
    if options.policies.scheduler is None:
        return
    apart = any(group.native.role != _native.Role.BOTH for group in deployment.groups)
    for is_so, what in (
        (apart, "prefill/decode disaggregation"),
        (options.tiers is not None, "KV tiers (--prefix-storage)"),
        (bool(deployment.kv_offloading), "KV offloading (kv_offloading_size)"),
    ):
        if is_so:
            raise NotYetError(
                f"a scheduler in Python together with {what} does not run in this version; "
                "remove one"
            )


def _refuse_routers_by_caches(deployment: LoweredDeployment, options: SimulationOptions) -> None:
    """The installed vLLM's scheduler does not say what its prefix cache holds."""
    groups = deployment.groups
    installed = any(group.engine.scheduler == INSTALLED for group in groups)
    if not installed or len(groups) == 1:
        return
    for router in (options.router, options.decode_router):
        if router.reads_caches:
            raise NotYetError(
                f"the router {router.name} follows prefix caches, and llmsim does not hear of that "
                f"of the scheduler {INSTALLED}; choose {VLLM}, or another router"
            )


def _group(
    group: LoweredGroup, workload: Workload, options: SimulationOptions, *, record_schedule: bool
) -> "_native.GroupSpec":
    if group.scheduler is not None:
        group.scheduler.speculation.acceptance.seed = options.seed
        group.scheduler.load_failures.seed = options.seed
        group.scheduler.speculation.requests = request_speculation(workload)
        with_encoder_inputs(group.scheduler.encoder, workload)
    return _native.GroupSpec(
        group.native,
        None if group.scheduler is None else _scheduler(group, workload, options),
        group.program,
        group.expanded,
        record_steps=options.record_steps,
        record_schedule=record_schedule,
        outside=None if options.step_times is None else options.step_times.of(group.info.index),
    )


def _scheduler(
    group: LoweredGroup, workload: Workload, options: SimulationOptions
) -> "_native.SchedulerConfig | _native.PythonSchedulerConfig":
    assert group.scheduler is not None, "the caller looked"
    steps = _scheduler_in_python(group, group.scheduler, workload, options)
    if steps is None:
        return options.policies.applied(with_ranking(group.scheduler, group.engine, workload))
    # The installed vLLM says itself how many batches are in flight.
    group.native.depth = getattr(steps, "depth", group.native.depth)
    return _native.PythonSchedulerConfig(
        steps, group.scheduler.kv, group.scheduler.speculation, group.scheduler.lora
    )


def _scheduler_in_python(
    group: LoweredGroup,
    native: "_native.SchedulerConfig",
    workload: Workload,
    options: SimulationOptions,
) -> object | None:
    """The installed vLLM's, or a policy's; None: the native one runs."""
    policies, engine = options.policies, group.engine
    if engine.scheduler == INSTALLED:
        if policies.queue_order or policies.victim or policies.eviction:
            raise InputError(
                "a queue order, a preemption victim or a cache eviction of yours does not reach "
                "into the installed vLLM's scheduler; choose the scheduler vllm_v1, or remove it"
            )
        from llmsim.scheduling.conformance.vllm.installed import installed_scheduler

        if engine.speculation is not None and request_speculation(workload) is not None:
            raise NotYetError(
                "acceptance_rate, accepted_drafts and num_speculative_tokens of requests do not "
                "reach the installed vLLM's scheduler; choose the scheduler vllm_v1, or remove them"
            )
        return installed_scheduler(engine, native, workload)
    steps = policies.steps(native, workload)
    if steps is not None and is_ranking(engine.scheduling_policy):
        raise InputError(
            f"scheduling_policy {engine.scheduling_policy} does not reach into a scheduler in "
            "Python; remove one of them"
        )
    if steps is not None and engine.speculation is not None:
        raise NotYetError(
            f"the scheduler {policies.scheduler.name if policies.scheduler else ''} in Python does "
            "not run together with speculative_config in this version; remove one of them"
        )
    return steps


def _model_indices(
    deployment: LoweredDeployment, workload: Workload
) -> "np.ndarray[tuple[int], np.dtype[np.int16]]":
    """The workload numbers its own models; the core needs the deployment's numbers. Unnamed: the
    only one there is.
    """
    of_workload = [deployment.models.index(name) for name in workload.models]
    return np.array([*of_workload, 0], dtype=np.int16)[workload.model]


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


def _possible(
    deployment: LoweredDeployment, workload: Workload, causes: Mapping[str, Int64]
) -> Mapping[str, Int64]:
    """Where latency went, without the causes that the run cannot have."""
    plans = () if deployment.layouts is None else deployment.layouts.plans
    lowered = (deployment, *(plan.lowered for plan in plans))
    groups = [one for each in lowered for one in each.groups]
    lockstep = [one for each in lowered for one in each.lockstep_groups]
    has_images = workload.encoder_inputs is not None
    encodes = any(not one.untimed_encoder for one in groups)
    has_attention_apart = any(one.afd is not None for one in lockstep)
    possible = {
        "encoder_ps": has_images and encodes,
        "m2n_ps": has_attention_apart,
        "offload_ps": any(one.offload is not None for one in groups),
        "reconfigure_ps": deployment.layouts is not None,
    }
    return {name: parts for name, parts in causes.items() if possible.get(name, True)}


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


def _results(
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
        blame=_possible(asked, workload, simulation.blame()),
        first_token_blame=lambda: _possible(asked, workload, simulation.first_token_blame()),
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


def _first(texts: Iterable[str]) -> str:
    """The first that says anything."""
    return next(filter(None, texts), "")


def _notes(
    deployment: LoweredDeployment, results: Results, options: SimulationOptions
) -> tuple[str, ...]:
    """What only the run can say."""
    groups = deployment.groups
    engines = [group.engine for group in groups]
    schedulers = [group.scheduler for group in groups if group.scheduler is not None]
    caches_prefixes = any(engine.enable_prefix_caching for engine in engines)
    has_lora_slots = any(engine.max_loras is not None for engine in engines)
    has_encoder_budgets = all(scheduler.encoder.step_tokens > 0 for scheduler in schedulers)
    notes = notes_of_run(
        results,
        prefix_caching=caches_prefixes,
        open_loop=options.clients is None,
        lora_slots=has_lora_slots,
        untimed_adapters=_first(group.untimed_adapters for group in groups),
        encoder_budgets=has_encoder_budgets,
        untimed_encoder=_first(group.untimed_encoder for group in groups),
    )
    return notes if options.step_times is None else (*notes, options.step_times.note)
