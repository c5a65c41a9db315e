"""Lowers one group: model, layout, memory ledger, cost tables, step program."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, EngineArgs, Group, with_model_limits
from llmsim.config.engine.latent_prompts import (
    WIDE_BYTES,
    LatentPrompts,
    LatentServer,
    latent_prompts,
)
from llmsim.config.engine.profile import BalancerRules, load_profile
from llmsim.config.engine.sglang.defaults import with_server_defaults
from llmsim.config.errors import DoesNotFit
from llmsim.config.units import ns_to_ps
from llmsim.core import GroupInfo
from llmsim.costs import (
    AttentionCost,
    CompiledCosts,
    CostRequest,
    EngineVersions,
    OpCost,
    compile_costs,
)
from llmsim.costs.hardware_limits import own_peak_rates_of
from llmsim.costs.sources.blackbox import PREFIX as BLACKBOX
from llmsim.costs.sources.blackbox import Coefficients, read_coefficients
from llmsim.lowering.adjust.ablation_terms import (
    CARD_STREAMING,
    COLD_KV,
    CONTEXT_EXPANSION,
    DEFAULT_TILES,
    FULLEST_RANK,
    FUSED_SCALING,
    LATENT_PROMPTS,
    PADDED_EXPERTS,
    PROMPTS_TOGETHER,
    SECOND_STREAM,
    SINK_ATTENTION,
    SUSTAINED_CLOCK,
    TOUCHED_EXPERTS,
    WEIGHT_ONLY_EXPERTS,
)
from llmsim.lowering.adjust.apply import adjusted_costs
from llmsim.lowering.adjust.power_cap import clock_ppm, costs_at_clock
from llmsim.lowering.adjust.sustained_clock import limit_power
from llmsim.lowering.afd.rows import of_operators, unused_attention, with_rows_of_all
from llmsim.lowering.engine_dtype import with_narrow_floats
from llmsim.lowering.host.api_server import api_server, frontend_costs
from llmsim.lowering.host.cuda_graphs import decode_sizes, graph_rules, padded_mixed
from llmsim.lowering.kv.host_cache import device_pools, host_cache
from llmsim.lowering.kv.hybrid_cache import shares_blocks, with_indexed_blocks, with_state_blocks
from llmsim.lowering.kv.kv_transfer import ROLES
from llmsim.lowering.kv.offloading import keeps_kv_below, offloading_config, refuse_offloading
from llmsim.lowering.kv.resharding import of_several_kinds, prefill_all_but_last_token
from llmsim.lowering.kv.sglang_pools import (
    pool_shares,
    state_pool,
    window_pool,
    with_sequences_of_pool,
    with_states,
)
from llmsim.lowering.network.base import NetworkView
from llmsim.lowering.network.collective_costs import (
    LinkedCosts,
    MeantRates,
    expanded_config,
    library_of,
    link_collective_costs,
    links_of_file,
    network_view,
    unmeasured_ranks,
)
from llmsim.lowering.network.topology import Routes
from llmsim.lowering.offload.host_memory import located
from llmsim.lowering.offload.host_operators import with_host_costs
from llmsim.lowering.offload.plan import OffloadPlan, complete, local_reads, offload_plan
from llmsim.lowering.offload.weight_streaming import Uneven
from llmsim.lowering.operators.adapters import (
    AdapterLayout,
    experts_of_adapters,
    lora_config,
    lora_slots,
    most_adapters,
    untimed_adapters,
)
from llmsim.lowering.operators.context_parallel import with_gathered_context
from llmsim.lowering.operators.encoder import encoder_operators, timed_tokens, untimed_encoder
from llmsim.lowering.operators.pipeline import architectures_of, with_stages
from llmsim.lowering.operators.shared_experts import as_engine_runs_it
from llmsim.lowering.overlap import as_in_sglang, most_tokens, server_of, with_host_gap
from llmsim.lowering.parallel_layout import (
    batches_in_flight,
    distinct_operators,
    expert_placement,
    layout_of,
    members_of,
    stage_operators,
    stages_of,
    tightest,
    with_even_graphs,
)
from llmsim.lowering.program import FEATURES, Placed, build_program
from llmsim.lowering.remedies import with_remedies
from llmsim.lowering.scheduler import scheduler_config
from llmsim.lowering.speculation.drafter import (
    DraftPlan,
    busy_names,
    draft_plan,
    refuse_what_does_not_run_yet,
)
from llmsim.lowering.types import LoweredGroup, LoweringOptions
from llmsim.model import (
    DEFAULT_NUM_SMS,
    Dtypes,
    Hardware,
    Layout,
    MemoryLedger,
    ModelConfig,
    Operator,
    dtype_bytes,
    load_hardware,
    load_model,
    memory_ledger,
    resolve_dtypes,
)

LOCKSTEP_QUIET_PS = 50 * 10**9
"""What vLLM's coordinator waits at least behind a message of ranks in lock-step, to have heard of
all of them (v1/engine/coordinator.py, min_timeout, 0.10 to 0.33).
"""
_BLACKWELL = 10
"""The compute capability of data centres' Blackwell cards."""


def placed_at(lowered: LoweredGroup, group: Group) -> LoweredGroup:
    """The same group at another place."""
    group = replace(group, engine=lowered.engine)
    before = lowered.native
    native = _native_group(
        group,
        lowered.model,
        before.model,
        lowered.offload,
        lowered.draft,
        before.api_latency_per_token_ps,
    )
    return replace(lowered, native=native, info=replace(lowered.info, index=group.index))


def lower_group(
    group: Group,
    deployment: Deployment,
    options: LoweringOptions,
    model_index: int,
    routes: Routes | None,
) -> LoweredGroup:
    """One group; an error (InputError, InfeasibleError, NotYetError) does not yet say where in the
    file it is.
    """
    overheads = overheads_of(options.cost_plugin)
    if overheads is not None:
        group = replace(group, engine=with_queueing(group.engine, options.cost_plugin, overheads))
    planned = _planned(group, deployment, options, routes)
    group, request, stages = planned.group, planned.request, planned.stages
    offload, draft, ledger = planned.offload, planned.draft, planned.ledger
    engine, model, layout, ops = group.engine, request.model, request.layout, request.operators
    links = _links(group, deployment, options, request, routes)
    costs = with_gathered_context(
        _costs(deployment, group, options, request, offload), request, links
    )
    linked = link_collective_costs(ops, request, costs.link_collectives, links)
    program, placed = _program(group, request, stages, costs, linked)
    program_costs = tuple(one.cost for one in placed)
    if offload is None and group.afd is None and SUSTAINED_CLOCK not in options.disabled_terms:
        clock = clock_ppm(deployment.accelerator_power(group))
        limit_power(program, placed, costs, request, clock)
    exact = options.exact or not links.exact()
    if offload is not None:
        _complete(offload, deployment, group, request, program_costs, exact=options.exact)
    per_token_ps = 0 if overheads is None else overheads.queueing_per_token_ps
    return LoweredGroup(
        info=_info(group, model, ledger, layout),
        model=model,
        layout=layout,
        dtypes=request.dtypes,
        operators=ops,
        ledger=ledger,
        costs=costs,
        program=program,
        placed=placed,
        busy_names=busy_names(program_costs, engine, draft, request.hardware),
        links=links,
        expanded=expanded_config(ops, program_costs, linked.as_messages, links) if exact else None,
        scheduler=None
        if computes_ffns(group)
        else _scheduler(group, deployment, request, planned, program, tiers=options.tiers),
        native=_native_group(group, model, model_index, offload, draft, per_token_ps),
        draft=draft,
        engine=engine,
        offload=offload,
        hardware=request.hardware,
        memory_bytes_per_s=group.memory.bandwidth_bytes_per_s,
        linked=tuple(name for name in costs.link_collectives if name not in linked.planned),
        untimed_adapters=untimed_adapters(group, layout, request.hardware),
        untimed_encoder=untimed_encoder(group, model, layout, request.hardware),
        network_notes=links.notes if costs.link_collectives else links.measured_notes,
    )


class _Planned(Struct, frozen=True, eq=False):
    """A group whose memory is settled; its costs are not compiled yet."""

    group: Group
    request: CostRequest
    stages: "tuple[tuple[Operator, ...], ...]"
    offload: OffloadPlan | None
    draft: DraftPlan | None
    ledger: MemoryLedger


def _planned(
    group: Group, deployment: Deployment, options: LoweringOptions, routes: Routes | None
) -> _Planned:
    """The group's memory; raises DoesNotFit with what would hold it."""
    try:
        return _plan(group, deployment, options, routes)
    except DoesNotFit as error:
        raise with_remedies(
            error, group, lambda other: _plan(other, deployment, options, None)
        ) from None


def _plan(
    group: Group, deployment: Deployment, options: LoweringOptions, routes: Routes | None
) -> _Planned:
    group, request, stages = _asked(group, deployment, options, routes)
    model, layout, ops = request.model, request.layout, request.operators
    tables = {feature: request.counts(feature) for feature in FEATURES}
    offload = offload_plan(
        deployment, group, model, layout, stages, ops, request.max_model_len, tables
    )
    draft = _draft(deployment, group, options, request, offload, routes)
    hybrid = shares_blocks(group, model, tiers=options.tiers)
    ledger = _ledger(group, request, offload, draft, hybrid=hybrid)
    group = with_sequences_of_pool(group, ledger, request.max_model_len)
    return _Planned(group, request, stages, offload, draft, ledger)


def _links(
    group: Group,
    deployment: Deployment,
    options: LoweringOptions,
    request: CostRequest,
    routes: Routes | None,
) -> NetworkView:
    """The links of the group's collectives."""
    library = library_of(deployment, group, request, options.collectives)
    members = members_of(group, request.model)
    return network_view(
        deployment, routes, group, request.layout, members, options.network, library
    )


def _complete(
    offload: OffloadPlan,
    deployment: Deployment,
    group: Group,
    request: CostRequest,
    costs: tuple[OpCost | AttentionCost, ...],
    *,
    exact: bool,
) -> None:
    """Gives the plan what belongs to the operators of the program, whose costs are `costs`."""
    uneven = Uneven(request.expert_routing, request.expert_placement)
    tp = request.layout.tp
    complete(offload, deployment, group, request.model, request.dtypes, costs, uneven, tp)
    offload.native.expanded = exact


def _scheduler(
    group: Group,
    deployment: Deployment,
    request: CostRequest,
    planned: _Planned,
    program: "_native.Program",
    *,
    tiers: bool,
) -> "_native.SchedulerConfig":
    """The core's view of the group's scheduler."""
    ledger, draft = planned.ledger, planned.draft
    scheduler = scheduler_config(
        group.engine,
        ledger.num_blocks,
        request.max_model_len,
        program,
        group.pd_type,
        request.layout.context_ranks,
        prefill_all_but_last_token=prefill_all_but_last_token(
            request.model, group.engine.scheduler
        ),
        several_kinds=of_several_kinds(request.model),
        stages=group.pp,
        in_flight=batches_in_flight(group),
        tables=ledger.tables,
        tiers=tiers,
    )
    scheduler.window_pool = window_pool(group, request.model, ledger, scheduler)
    scheduler.state_pool = state_pool(group, request.model, ledger, scheduler)
    drafter_bytes = 0 if draft is None else draft.share.kv_bytes_per_token
    pools = device_pools(group, ledger, scheduler, drafter_bytes)
    scheduler.host_cache = host_cache(group, deployment, request.model, pools, tiers=tiers)
    scheduler.lora = lora_config(group.engine, request.operators)
    scheduler.encoder.pair_tokens = request.encoder_tokens
    scheduler.offloading = offloading_config(
        group, request.model, request.layout, ledger, request.dtypes
    )
    return scheduler


class StaticView(Struct, frozen=True):
    """What is known of a group before any table is compiled."""

    ledger: MemoryLedger
    request: CostRequest
    stages: tuple[tuple[Operator, ...], ...]
    """The operators of one rank, by pipeline stage."""
    engine: EngineArgs

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV the blocks hold, where every layer keeps all of them."""
        tables = self.ledger.tables
        block = self.engine.block_size if tables is None else tables.block_size
        return self.ledger.usable_blocks * block * self.request.layout.context_ranks


def static_view(group: Group, deployment: Deployment, options: LoweringOptions) -> StaticView:
    """Memory and operators of a group without offloading and drafts.

    Raises InputError where the layout does not split the model, and InfeasibleError where the
    model does not fit.
    """
    options = replace(options, tiers=keeps_kv_below(deployment, tiers=options.tiers))
    group, request, stages = _asked(group, deployment, options, None)
    hybrid = shares_blocks(group, request.model, tiers=options.tiers)
    ledger = _ledger(group, request, None, None, hybrid=hybrid)
    return StaticView(ledger, request, stages, group.engine)


def _asked(
    group: Group, deployment: Deployment, options: LoweringOptions, routes: Routes | None
) -> "tuple[Group, CostRequest, tuple[tuple[Operator, ...], ...]]":
    """The group with its engine settled for the model, what its costs are asked for, and the
    operators by stage.

    Where the file names a topology, collectives take its routes, unless measured times fit the
    links that join their ranks, or are asked for.
    """
    model = load_model(located(group.model_name, deployment.cluster_path))
    hardware = load_hardware(located(group.hardware, deployment.cluster_path))
    group, layout = _settled(group, deployment, model, hardware, tiers=options.tiers)
    engine = group.engine
    dtypes = resolve_dtypes(model, engine.dtype, engine.kv_cache_dtype)
    model = as_engine_runs_it(model, layout, dtypes, hardware, load_profile(engine.engine_profile))
    verified = 1 if engine.speculation is None else engine.speculation.verified
    stages = stage_operators(model, layout, dtypes)
    distinct = distinct_operators(stages, model, layout, dtypes)
    members = members_of(group, model)
    view = network_view(deployment, routes, group, layout, members, "analytical")
    slots = lora_slots(engine)
    if slots is not None and not untimed_adapters(group, layout, hardware):
        adapters = AdapterLayout(group, deployment, model, layout, dtypes, slots)
        stages, distinct = adapters.stages(stages), adapters.distinct(stages, distinct)
    encoder: tuple[Operator, ...] = ()
    if not untimed_encoder(group, model, layout, hardware):
        encoder = encoder_operators(model, stages_of(layout)[0], dtypes, engine)
        stages = ((*encoder, *stages[0]), *stages[1:])
    request = CostRequest(
        model=model,
        layout=layout,
        dtypes=dtypes,
        hardware_name=group.hardware,
        hardware=hardware,
        group_memory_bandwidth_bytes_per_s=group.memory.bandwidth_bytes_per_s,
        operators=(*encoder, *distinct, *unused_attention(model, layout, dtypes)),
        max_tokens=most_tokens(engine),
        max_seqs=engine.max_num_seqs * verified,
        adapters=most_adapters(engine),
        adapter_experts=most_adapters(engine) * max(experts_of_adapters(distinct), default=0),
        encoder_tokens=timed_tokens(engine) if encoder else 0,
        max_model_len=engine.max_model_len or model.max_position_embeddings,
        cuda_graph_sizes=engine.cuda_graph_sizes,
        profile_dirs=options.profile_dirs,
        source=options.cost_source,
        cost_tables=options.cost_tables,
        plugin=options.cost_plugin,
        predict_attention=options.predict_attention,
        collectives=options.collectives,
        links=links_of_file(view, hardware, _meant_rates(deployment), options.collectives),
        unmeasured_ranks=unmeasured_ranks(deployment, routes, group, layout, members, hardware),
        expert_routing=options.expert_routing.with_array(model.num_moe_layers, model.num_experts),
        expert_placement=expert_placement(layout, engine),
        spans_nodes=group.dp_nodes > 1,
        peer_to_peer=group.peer_to_peer,
        engine=engine_versions(engine.engine_profile),
        latent_prompts=_latent_prompts(engine, model, hardware, layout, dtypes),
        compiles_scaling=compiles_scaling(engine),
        second_stream_tokens=second_stream_tokens(engine, hardware),
    )
    return group, _without_terms(request, options.disabled_terms), stages


def _meant_rates(deployment: Deployment) -> MeantRates:
    """By the data sheets of all devices."""
    names = dict.fromkeys(group.hardware for group in deployment.groups)
    return MeantRates.of([load_hardware(located(name, deployment.cluster_path)) for name in names])


def _without_terms(request: CostRequest, disabled: Sequence[str]) -> CostRequest:
    """The request with those terms off that cost sources know themselves."""
    routing = request.expert_routing
    if FULLEST_RANK in disabled and routing.waits_for_fullest:
        routing = replace(routing, name="BALANCED")
    return replace(
        request,
        expert_routing=routing,
        prompts_together=PROMPTS_TOGETHER not in disabled,
        latent_prompts=LatentPrompts() if LATENT_PROMPTS in disabled else request.latent_prompts,
        context_expansion=CONTEXT_EXPANSION not in disabled,
        cold_kv=COLD_KV not in disabled,
        sustained_clock=SUSTAINED_CLOCK not in disabled,
        card_streaming=CARD_STREAMING not in disabled,
        fused_scaling=FUSED_SCALING not in disabled,
        touched_experts=TOUCHED_EXPERTS not in disabled,
        padded_experts=PADDED_EXPERTS not in disabled,
        default_tiles=DEFAULT_TILES not in disabled,
        sink_attention=SINK_ATTENTION not in disabled,
        weight_only_experts=WEIGHT_ONLY_EXPERTS not in disabled,
        second_stream_tokens=0 if SECOND_STREAM in disabled else request.second_stream_tokens,
    )


def settled_engines(deployment: Deployment) -> Deployment:
    """The deployment with what each engine derives from its model and card, as runs have it."""

    def settled(group: Group) -> Group:
        model = load_model(located(group.model_name, deployment.cluster_path))
        hardware = load_hardware(located(group.hardware, deployment.cluster_path))
        return _settled(group, deployment, model, hardware, tiers=False)[0]

    return replace(deployment, groups=tuple(settled(group) for group in deployment.groups))


def _settled(
    group: Group,
    deployment: Deployment,
    model: ModelConfig,
    hardware: Hardware | None,
    *,
    tiers: bool,
) -> tuple[Group, Layout]:
    """The group with what its engine derives from the model and the card, and its layout."""
    refuse_offloading(group, model)
    group = with_indexed_blocks(group, model, hardware)
    architectures = tuple(architectures_of(model))
    limited = with_model_limits(
        group.engine,
        model.max_position_embeddings,
        "the engine",
        architectures,
        blackwell=is_data_center_blackwell(hardware),
    )
    limited = with_narrow_floats(limited, model)
    server = server_of(group, model, members_of(group, model), architectures)
    limited = with_server_defaults(limited, server)
    group = with_state_blocks(replace(group, engine=limited), model, tiers=tiers)
    group = with_stages(group, model, tiers=tiers)
    group = as_in_sglang(group, members_of(group, model), tiers=tiers)
    group = with_states(group, model)
    group = with_host_gap(group, tiers=tiers)
    layout = layout_of(group, model)
    group = with_even_graphs(group, layout)
    if group.afd is not None and group.afd.domain == "ffn":
        attention = deployment.groups[group.afd.attention[0]]
        card = load_hardware(located(attention.hardware, deployment.cluster_path))
        served = _settled(attention, deployment, model, card, tiers=tiers)[0]
        group = with_rows_of_all(group, served.engine, layout)
    return group, layout


def compiles_scaling(engine: EngineArgs) -> bool:
    """Whether the engine's compiler converts inputs to fp8 inside of the operator before."""
    return load_profile(engine.engine_profile).compiles_scaling and not engine.enforce_eager


def _latent_prompts(
    engine: EngineArgs,
    model: ModelConfig,
    hardware: Hardware | None,
    layout: Layout,
    dtypes: Dtypes,
) -> LatentPrompts:
    """Which prompts the engine runs on cached latents; none where ranks share sequences by tokens,
    of which no engine's rule is known.
    """
    if model.latent is None or hardware is None or layout.context_ranks > 1:
        return LatentPrompts()
    server = LatentServer(
        hardware.compute_capability,
        architectures_of(model),
        dtype_bytes(dtypes.kv) == WIDE_BYTES,
        engine.prefill_graph_sizes,
    )
    return latent_prompts(load_profile(engine.engine_profile).latent_prompts, server)


def is_data_center_blackwell(hardware: Hardware | None) -> bool:
    """Whether the card has compute capability 10 (B200, B300 and those beside Grace)."""
    return hardware is not None and int(hardware.compute_capability or 0) == _BLACKWELL


def second_stream_tokens(engine: EngineArgs, hardware: Hardware | None) -> int:
    """Up to how many tokens the engine runs shared experts on a stream of their own: on NVIDIA's
    cards alone, and in SGLang where a graph has both streams.
    """
    if hardware is None or not hardware.compute_capability:
        return 0
    profile = load_profile(engine.engine_profile)
    graphs = max(decode_sizes(engine), default=0) if profile.sglang_release else None
    most = profile.second_stream_tokens
    return most if graphs is None else min(most, graphs)


def engine_versions(profile: str) -> EngineVersions:
    """The versions of the engine and of NCCL whose measured kernels an engine profile wants."""
    known = load_profile(profile)
    framework = "sglang" if known.sglang_release else "vllm"
    return EngineVersions(
        known.vllm_release,
        known.nccl_release,
        known.sglang_release,
        framework,
        known.marlin_below,
    )


def _program(
    group: Group,
    request: CostRequest,
    stages: "tuple[tuple[Operator, ...], ...]",
    costs: CompiledCosts,
    linked: LinkedCosts,
) -> "tuple[_native.Program, tuple[Placed, ...]]":
    """The step program, and the costs of its operators with how often each runs."""
    engine = group.engine
    if computes_ffns(group):
        costs = of_operators(costs, request)
    return build_program(
        stages,
        costs,
        linked.of_stage,
        padded_mixed(engine, request.max_tokens, request.token_multiple),
        engine.host_gap_ps,
        graph_rules(
            engine,
            stages,
            request,
            request.token_multiple,
            prepares=True,
            posts_reads=group.pd_type == "decode",
        ),
        group.pcp,
        engine.host_sequence_ps,
    )


def _info(group: Group, model: ModelConfig, ledger: MemoryLedger, layout: Layout) -> GroupInfo:
    return GroupInfo(
        index=group.index,
        model_name=group.model_name,
        hardware=group.hardware,
        num_devices=group.num_devices,
        tp=group.tp,
        num_blocks=ledger.num_blocks,
        block_size=group.engine.block_size * layout.context_ranks,
        max_model_len=group.engine.max_model_len or model.max_position_embeddings,
        model_max_len=model.max_position_embeddings,
    )


def _draft(
    deployment: Deployment,
    group: Group,
    options: LoweringOptions,
    request: CostRequest,
    offload: OffloadPlan | None,
    routes: Routes | None,
) -> DraftPlan | None:
    """The drafter, priced like the model: by the same sources, on the same links."""
    members = members_of(group, request.model)
    refuse_what_does_not_run_yet(group, offloads=offload is not None)

    def linked(
        ops: tuple[Operator, ...], own: CostRequest, costs: CompiledCosts, layout: Layout
    ) -> tuple[LinkedCosts, NetworkView]:
        library = library_of(deployment, group, own, options.collectives)
        links = network_view(deployment, routes, group, layout, 1, options.network, library)
        return link_collective_costs(ops, own, costs.link_collectives, links), links

    return draft_plan(
        group,
        request,
        lambda name: located(name, deployment.cluster_path),
        lambda own: _costs(deployment, group, options, own, None),
        linked,
        members=members,
        exact=options.exact,
    )


def _ledger(
    group: Group,
    request: CostRequest,
    offload: OffloadPlan | None,
    draft: DraftPlan | None,
    *,
    hybrid: bool,
) -> MemoryLedger:
    """Of the stage with the least room, which decides for all."""
    engine, hardware = group.engine, request.hardware
    return tightest(
        request.layout,
        lambda stage: memory_ledger(
            request.model,
            stage,
            request.dtypes,
            device_bytes=group.memory.capacity_bytes,
            utilization=engine.gpu_memory_utilization,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            block_size=engine.block_size,
            num_gpu_blocks_override=engine.num_gpu_blocks_override,
            rules=replace(
                load_profile(engine.engine_profile).memory, native_sampler=engine.native_sampler
            ),
            cuda_graph_sizes=engine.cuda_graph_sizes,
            cudagraph_mode=engine.cudagraph_mode,
            num_sms=DEFAULT_NUM_SMS if hardware is None else hardware.num_sms,
            elsewhere=None if offload is None else offload.elsewhere(stage.stage),
            on_nvlink=hardware is not None and hardware.on_nvlink,
            draft=None if draft is None else draft.share,
            hybrid=hybrid,
            lora=lora_slots(engine),
            shares=pool_shares(group, request.model),
        ),
    )


def _costs(
    deployment: Deployment,
    group: Group,
    options: LoweringOptions,
    request: CostRequest,
    offload: OffloadPlan | None,
) -> CompiledCosts:
    """The compiled tables with all that changes them on this machine: terms, calibration, clock,
    local reads.
    """
    costs = adjusted_costs(
        compile_costs(request), group.hardware, options.calibration, options.disabled_terms
    )
    clock = clock_ppm(deployment.accelerator_power(group))
    costs = costs_at_clock(
        costs, request.operators, request.dtypes, own_peak_rates_of(request), clock
    )
    if group.offloading.local_reads:
        costs = replace(costs, ops=local_reads(costs.ops, request.operators, group.memory))
    if offload is not None and offload.host is not None:
        costs = with_host_costs(costs, request, offload.host)
    if (
        offload is not None and offload.kv_bytes is not None
    ):  # decodes do not read the device's memory
        costs = replace(costs, floor=replace(costs.floor, kv_bytes_per_token=0))
    return costs


def overheads_of(plugin: str) -> Coefficients | None:
    """What a blackbox adds beside the steps; None for other sources."""
    return (
        read_coefficients(Path(plugin.removeprefix(BLACKBOX)))
        if plugin.startswith(BLACKBOX)
        else None
    )


def with_queueing(engine: EngineArgs, plugin: str, overheads: Coefficients) -> EngineArgs:
    """The engine with a blackbox's queueing term as the time between a request's arrival and its
    queue. Its steps are whole: they hold the host's time, unless somebody states more of it.
    """
    stated = {name for name in ("host_gap_ps", "host_sequence_ps") if not engine.is_default(name)}
    ours = {"api_latency_ps", "host_gap_ps", "host_sequence_ps"} - stated
    origin = {**engine.origin, **dict.fromkeys(sorted(ours), plugin.removeprefix(BLACKBOX))}
    return replace(
        engine,
        api_latency_ps=overheads.queueing_ps,
        host_gap_ps=engine.host_gap_ps if "host_gap_ps" in stated else 0,
        host_sequence_ps=engine.host_sequence_ps if "host_sequence_ps" in stated else 0,
        origin=MappingProxyType(origin),
    )


def _native_group(
    group: Group,
    model: ModelConfig,
    model_index: int,
    offload: OffloadPlan | None,
    draft: DraftPlan | None,
    per_token_ps: int,
) -> "_native.GroupConfig":
    """`per_token_ps`: of a prompt's way to the queue, beside the engine's `api_latency_ps`."""
    native = _native.GroupConfig()
    native.drafter = draft.native if draft is not None else None
    native.max_queued_requests = group.engine.max_num_queued_reqs or 0
    native.max_queued_tokens = group.engine.max_num_queued_tokens or 0
    if offload is not None:
        native.offload = offload.native
    native.index = group.index
    native.model = model_index
    native.depth = batches_in_flight(group)
    native.stages_wait = (
        group.pp > 1 and group.engine.async_scheduling and not group.engine.use_v2_model_runner
    )
    latency_ps = ns_to_ps(frontend_costs(group.engine, model).latency_ns)
    native.api_latency_ps = group.engine.api_latency_ps + latency_ps
    profile = load_profile(group.engine.engine_profile)
    native.abort_latency_ps = ns_to_ps(profile.abort_latency_ns)
    in_lockstep = members_of(group, model) > 1
    native.balancer = _balancer(
        profile.balancer, dense=not model.num_experts, in_lockstep=in_lockstep
    )
    if not computes_ffns(group):
        native.api_server = api_server(group.engine, model, group.pd_type)
    native.api_latency_per_token_ps = per_token_ps
    native.role = _native.Role.FFN if computes_ffns(group) else ROLES[group.pd_type]
    return native


def _balancer(rules: BalancerRules, *, dense: bool, in_lockstep: bool) -> "_native.BalancerRules":
    native = _native.BalancerRules()
    native.by_requests_in_flight = rules.by_requests_in_flight
    native.rotates = rules.rotates
    native.hears_loads = rules.hears_dense_engines or not dense
    native.hears_of_first_iterations = rules.hears_of_first_iterations
    if dense or in_lockstep:
        native.quiet_ps = LOCKSTEP_QUIET_PS if in_lockstep else ns_to_ps(rules.quiet_ns)
        native.hears_of_first_requests = rules.hears_of_first_requests
    return native


def computes_ffns(group: Group) -> bool:
    """Whether the group computes FFNs for others, and gets no requests."""
    return group.afd is not None and group.afd.domain == "ffn"
