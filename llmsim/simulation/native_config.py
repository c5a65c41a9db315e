"""What the native core is given of a deployment and a workload."""

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from llmsim import _native
from llmsim.core import (
    Clients,
    Workload,
)
from llmsim.lowering import LoweredDeployment, LoweredGroup
from llmsim.lowering.operators.encoder_inputs import with_encoder_inputs
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.lowering.speculation.request_speculation import request_speculation
from llmsim.routing import RouterSpec, kept_sessions
from llmsim.scheduling.conformance.vllm.ranks.exchange import Rank
from llmsim.simulation.options import SimulationOptions, StepTimes
from llmsim.simulation.schedulers import (
    ranks_of,
    refuse_routers_by_caches,
    refuse_what_a_python_scheduler_does_not_do,
    scheduler_of,
)
from llmsim.workload.content import adapter_numbers

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlans


def native_config(
    deployment: LoweredDeployment,
    workload: Workload,
    options: SimulationOptions,
    recorded: tuple[int, ...],
    *,
    live: bool,
) -> "_native.SimulationConfig":
    refuse_what_a_python_scheduler_does_not_do(deployment, options)
    refuse_routers_by_caches(deployment, options)
    outside = options.step_times
    ranks = ranks_of(deployment)
    groups = [
        _group(
            group,
            workload,
            options,
            ranks.get(group.info.index),
            record_schedule=group.info.index in recorded,
        )
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
        ranks = ranks_of(plan.lowered)
        groups = [
            _group(
                one,
                workload,
                own,
                ranks.get(one.info.index),
                record_schedule=options.record_rounds,
            )
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


def _group(
    group: LoweredGroup,
    workload: Workload,
    options: SimulationOptions,
    rank: Rank | None,
    *,
    record_schedule: bool,
) -> "_native.GroupSpec":
    if group.scheduler is not None:
        group.scheduler.speculation.acceptance.seed = options.seed
        group.scheduler.load_failures.seed = options.seed
        group.scheduler.speculation.requests = request_speculation(workload)
        with_encoder_inputs(group.scheduler.encoder, workload)
    return _native.GroupSpec(
        group.native,
        None if group.scheduler is None else scheduler_of(group, workload, options, rank),
        group.program,
        group.expanded,
        record_steps=options.record_steps,
        record_schedule=record_schedule,
        outside=None if options.step_times is None else options.step_times.of(group.info.index),
    )


def _model_indices(
    deployment: LoweredDeployment, workload: Workload
) -> "np.ndarray[tuple[int], np.dtype[np.int16]]":
    """The workload numbers its own models; the core needs the deployment's numbers. Unnamed: the
    only one there is.
    """
    of_workload = [deployment.models.index(name) for name in workload.models]
    return np.array([*of_workload, 0], dtype=np.int16)[workload.model]
