"""Cluster file and command line -> deployment: every default filled in, every unit converted, or
one clear refusal.
"""

from collections import deque
from types import MappingProxyType

from msgspec.structs import replace
from pydantic import ValidationError

from llmsim.config.cluster_file.afd import resolve_afd
from llmsim.config.cluster_file.cluster import Cluster, placements
from llmsim.config.cluster_file.devices import CxlMemory, Memory, Storage
from llmsim.config.cluster_file.devices import HostLink as HostLinkFields
from llmsim.config.cluster_file.disaggregation import resolve_disaggregation
from llmsim.config.cluster_file.instance import AFD_ROLES, Instance
from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.cluster_file.power import resolve_node_power, resolve_pool_power
from llmsim.config.deployment import (
    BETWEEN_GROUPS,
    Deployment,
    Economics,
    Group,
    LinkSpec,
    MemorySpec,
    Node,
    Offloading,
    PoolSpec,
    Processors,
    StorageSpec,
)
from llmsim.config.engine.args import CLUSTER_FILE, COMMAND_LINE, EngineArgs, Given, resolve_engine
from llmsim.config.engine.defaults import synchronous_origin
from llmsim.config.engine.options import EngineOptions, EngineOverrides, given, name_used
from llmsim.config.engine.profile import (
    DEFAULT_PROFILE,
    DEFAULT_PROFILES,
    EngineProfile,
    load_profile,
)
from llmsim.config.engine.schedulers import INSTALLED, KINDS, VLLM, check_async_stages
from llmsim.config.errors import InputError, NotYetError
from llmsim.config.machine.device_memory import SheetMemory, device_memory
from llmsim.config.machine.host_links import HostLink
from llmsim.config.topology.placement import place_topology
from llmsim.config.units import gb_per_s_to_bytes_per_s, gib_to_bytes, ns_to_ps

NEWEST = 4
"""Different instances that later ones are compared with, for roles that alternate from node to
node.
"""


def resolve(
    cluster: Cluster,
    overrides: EngineOverrides,
    switches: frozenset[str] = frozenset(),
    kv_transfer: str | None = None,
    kv_transfer_mode: str | None = None,
    *,
    sheet: SheetMemory | None = None,
) -> Deployment:
    """The deployment that a cluster and the command line describe.

    For every engine option the instance wins over the command line, that over the cluster's
    `engine`, that over the engine profile; `EngineArgs.origin` says which. `switches` are
    offloading keys of an instance that the command line turned on, for instances that do not say
    otherwise; `kv_transfer` and `kv_transfer_mode` are the command line's. `sheet` knows the memory
    of devices that the file does not describe. Raises InputError for a bad or contradictory value,
    NotYetError for what a later version runs.
    """
    _refuse_what_does_not_run_yet(cluster)
    command_line = _command_line(overrides)
    groups: list[Group] = []
    nodes_of = _nodes_of_dp_groups(cluster)
    newest: deque[tuple[Instance, Group]] = deque(maxlen=NEWEST)
    for location, instance in cluster.instances():
        like = next((known for known in newest if _copies(instance, known[0])), None)
        if like is not None:
            group = _elsewhere(like[1], location)
        else:
            group = _group(cluster, location, instance, command_line, nodes_of, switches, sheet)
            newest.append((instance, group))
        for rank in range(instance.layout.replicas):
            node = group.node + rank * (instance.nnodes or 1) // instance.layout.replicas
            groups.append(replace(group, index=len(groups), node=node))
    groups = resolve_afd(cluster, groups)
    return Deployment(
        cluster_path=cluster.path,
        nodes=tuple(_node(cluster, i, groups) for i in range(len(cluster.nodes))),
        groups=tuple(groups),
        link=_link(cluster),
        economics=Economics(cluster.grid_g_per_kwh, cluster.electricity_price_per_kwh),
        pool=_pool(cluster.cxl_mem) if cluster.cxl_mem is not None else None,
        pool_power=resolve_pool_power(cluster.cxl_mem),
        storage=_storage(cluster.storage),
        disaggregation=resolve_disaggregation(
            cluster, tuple(groups), kv_transfer, kv_transfer_mode
        ),
        topology=place_topology(cluster),
        slo_classes=tuple(
            (name, limits.limits_ps()) for name, limits in cluster.slo_classes.items()
        ),
        devices_per_node=None if cluster.node is None else cluster.node.devices,
    )


def _node(cluster: Cluster, index: int, groups: list[Group]) -> Node:
    """One node with the groups that are on it."""
    node = cluster.nodes[index]
    memory, cpu = node.cpu_mem, node.cpu
    processors = None if cpu is None else Processors(cpu.hardware.strip(), cpu.sockets)
    return Node(
        index=index,
        host_memory=_memory(memory) if memory else None,
        groups=tuple(group.index for group in groups if group.node == index),
        power=resolve_node_power(cluster, index),
        pim=memory.pim_config if memory else None,
        pim_table=memory.pim_table if memory else None,
        price_per_hour=node.price_per_hour,
        storage=_storage(node.storage),
        processors=processors,
        host_link=_host_link(node.host_link or cluster.host_link, _link(cluster)),
    )


def _copies(instance: Instance, before: Instance) -> bool:
    """Whether an instance differs from an earlier one in nothing but its place, or the name of its
    `afd_group`, which `resolve_afd` reads.
    """
    if instance.dp_group is not None or instance.layout.replicas > 1:
        return False
    if instance.afd_group is not None:
        instance = instance.model_copy(update={"afd_group": before.afd_group})
    return instance is before or instance == before


def _elsewhere(group: Group, location: Location) -> Group:
    """An equal group at another place of the file."""
    node = location[1]
    assert isinstance(node, int)
    return replace(group, node=node, field_path=field_path(location))


def _nodes_of_dp_groups(cluster: Cluster) -> dict[str | None, list[int]]:
    """For each dp_group the node of every member."""
    nodes: dict[str | None, list[int]] = {}
    for location, instance in cluster.instances():
        assert isinstance(location[1], int)
        nodes.setdefault(instance.dp_group, []).append(location[1])
    return nodes | {None: [0]}


def _group(
    cluster: Cluster,
    location: Location,
    instance: Instance,
    command_line: Given,
    nodes_of: dict[str | None, list[int]],
    switches: frozenset[str],
    sheet: SheetMemory | None,
) -> Group:
    layers = [
        _file_layer(cluster, location, instance),
        command_line,
        _file_layer(cluster, ("engine",), cluster.engine),
    ]
    memory, from_sheet = device_memory(cluster, location, instance, sheet)
    profile = _profile(layers)
    layout = instance.layout
    node = location[1]
    assert isinstance(node, int)
    dp_group, dp = instance.dp_group, len(nodes_of[instance.dp_group])
    nodes, dp_nodes = instance.nnodes or 1, len(set(nodes_of[instance.dp_group]))
    if layout.replicas > 1:
        dp_nodes = nodes
        alone = instance.pd_type in AFD_ROLES  # ranks share nothing but the FFN instances
        dp_group, dp = (None, 1) if alone else (field_path(location), layout.replicas)
    return Group(
        index=0,
        node=node,
        field_path=field_path(location),
        model_name=instance.model_name.strip(),
        hardware=instance.hardware.strip(),
        num_devices=layout.num_devices,
        tp=layout.tp,
        pp=layout.pp,
        pcp=layout.pcp,
        ep=layout.ep,
        ffn_tp=layout.ffn_tp,
        pp_layers=instance.pp_layers,
        dp_group=dp_group,
        dp=dp,
        dp_nodes=dp_nodes,
        nnodes=max(1, nodes // layout.replicas),
        pd_type=None if instance.pd_type in AFD_ROLES else instance.pd_type,
        memory=memory,
        engine=_engine(cluster, location, layers, profile, instance, memory.capacity_bytes),
        offloading=_offloading(cluster, location, instance, switches),
        price_per_device_hour=instance.price_per_device_hour,
        memory_from_sheet=from_sheet,
        peer_to_peer=instance.peer_to_peer,
        whole_experts_asked=instance.enable_expert_parallel is True,
    )


def _engine(
    cluster: Cluster,
    location: Location,
    layers: list[Given],
    profile: EngineProfile,
    instance: Instance,
    memory: int,
) -> EngineArgs:
    """The engine's arguments; how pipeline stages are scheduled depends on the model, too
    (lowering/operators/pipeline.py).
    """
    args = resolve_engine(layers, profile, instance.hardware.strip(), memory)
    stages = instance.layout.pp
    reason = KINDS[args.scheduler].lacks.get("pp_size")
    if stages > 1 and reason is not None:
        raise InputError(
            f"{cluster.position(location)}: {stages} pipeline stages do not go with the scheduler "
            f"{args.scheduler} ({args.origin['scheduler']}): {reason}; say pp_size 1, or choose "
            "another scheduler"
        )
    if stages == 1:
        return _between_processes(args, profile, instance.layout.num_devices)
    if not args.async_scheduling:
        return args
    if not args.is_default("async_scheduling"):
        check_async_stages(args, profile, cluster.position(location), stages)
        return args
    if args.scheduler in (VLLM, INSTALLED) and profile.async_stages:
        return args
    origin = {**args.origin, "async_scheduling": f"off with {stages} pipeline stages"}
    return replace(args, async_scheduling=False, origin=MappingProxyType(origin))


def _between_processes(args: EngineArgs, profile: EngineProfile, devices: int) -> EngineArgs:
    """The arguments with `host.ranks_ns` added to the gap between steps of several devices.

    Each device has a process of its own. The engine's process tells it of every step and hears from
    it, and a synchronous engine waits for both. A gap that was given stays.
    """
    ranks_ps = ns_to_ps(profile.host_ranks_ns)
    of_profile = synchronous_origin(profile)
    gap_was_given = args.origin["host_gap_ps"] != of_profile
    if devices == 1 or not ranks_ps or gap_was_given:
        return args
    origin = {**args.origin, "host_gap_ps": f"{of_profile}, several devices"}
    return replace(
        args,
        host_gap_ps=args.host_gap_ps + ranks_ps,
        host_ranks_ps=ranks_ps,
        origin=MappingProxyType(origin),
    )


def _offloading(
    cluster: Cluster, location: Location, instance: Instance, switches: frozenset[str]
) -> Offloading:
    def on(key: str) -> bool:
        value = getattr(instance, key)
        return key in switches if value is None else bool(value)

    devices = instance.operator_devices
    attention_device = devices.get("attention")
    attention = on("enable_attn_offloading") or attention_device == "pim"
    if attention and attention_device not in (None, "pim"):
        raise InputError(
            f"{cluster.position((*location, 'operator_devices', 'attention'))} is "
            f'"{attention_device}", but '
            "enable_attn_offloading says that decodes attend in memory; leave one of them out"
        )
    halves = on("enable_sub_batch_interleaving")
    attends_off_device = attention or attention_device == "cpu"
    if halves and not attends_off_device:
        raise InputError(
            f"{cluster.position((*location, 'enable_sub_batch_interleaving'))} is on, but decodes "
            "attend on the devices; turn enable_attn_offloading on too"
        )
    default = Offloading()
    sub_batches = instance.sub_batch_rule or "shorter"
    return Offloading(
        placement=instance.placement,
        local_reads=on("enable_local_offloading"),
        attention=attention,
        sub_batches=sub_batches if halves else "never",
        weight_buffers=instance.weight_buffers or default.weight_buffers,
        expert_prefetch=instance.expert_prefetch or default.expert_prefetch,
        expert_cache=instance.expert_cache or default.expert_cache,
        operator_devices=tuple(devices.items()),
    )


def _profile(layers: list[Given]) -> EngineProfile:
    for layer in layers:
        if layer.profile is not None:
            try:
                return load_profile(layer.profile)
            except InputError as error:
                raise InputError(f"{layer.position('engine_profile')}: {error}") from None
    schedulers = [layer.values["scheduler"] for layer in layers if "scheduler" in layer.values]
    scheduler: str = next(iter(schedulers), VLLM)
    return load_profile(DEFAULT_PROFILES.get(scheduler, DEFAULT_PROFILE))


def _file_layer(cluster: Cluster, location: Location, options: EngineOptions) -> Given:
    values = given(options)
    from_memory = isinstance(options, Instance) and options.memory_utilization is not None
    if isinstance(options, Instance) and from_memory:
        # The file's reader has checked that its other names, if given too, say the same.
        values["gpu_memory_utilization"] = options.memory_utilization

    def position(option: str) -> str:
        if option == "gpu_memory_utilization" and from_memory:
            return cluster.position((*location, "npu_mem", "mem_util"))
        return cluster.position((*location, name_used(options, option)))

    return Given(CLUSTER_FILE, options.engine_profile, values, position)


def _command_line(overrides: EngineOverrides) -> Given:
    """The overrides, checked by the same rules as the file; InputError names the option."""

    def position(option: str) -> str:
        return f"--{option.replace('_', '-')}"

    data = dict(overrides.given)
    if not data:
        return Given(COMMAND_LINE, None, {}, position)
    try:
        options = EngineOptions.model_validate(data)
    except ValidationError as error:
        from llmsim.config.problems import (
            option_error,
        )  # builds the schema: only needed when there is an error

        raise option_error(error, position) from None
    return Given(
        COMMAND_LINE,
        options.engine_profile,
        given(options),
        lambda option: position(name_used(options, option)),
    )


def _memory(memory: Memory) -> MemorySpec:
    return MemorySpec(
        capacity_bytes=gib_to_bytes(memory.size_gib),
        bandwidth_bytes_per_s=gb_per_s_to_bytes_per_s(memory.bandwidth_gb_per_s),
        latency_ps=ns_to_ps(memory.latency_ns),
    )


def _storage(storage: Storage | None) -> StorageSpec | None:
    if storage is None:
        return None
    return StorageSpec(
        capacity_bytes=gib_to_bytes(storage.size_gib),
        read_bytes_per_s=gb_per_s_to_bytes_per_s(storage.read_gb_per_s),
        write_bytes_per_s=gb_per_s_to_bytes_per_s(storage.write_gb_per_s),
        read_latency_ps=ns_to_ps(storage.read_latency_ns),
        write_latency_ps=ns_to_ps(storage.write_latency_ns),
        queue_depth=storage.queue_depth,
    )


def _pool(memory: CxlMemory) -> PoolSpec:
    """Its size is of all devices, the other numbers are of each."""
    whole = _memory(memory)
    return PoolSpec(
        memory.num_devices,
        replace(whole, capacity_bytes=whole.capacity_bytes // memory.num_devices),
    )


def _link(cluster: Cluster) -> LinkSpec:
    bandwidths = [gb_per_s_to_bytes_per_s(value) for value in cluster.link_bw_gb_per_s]
    latencies = [ns_to_ps(value) for value in cluster.link_latency_ns]
    dimensions = max(len(bandwidths), len(latencies))
    return LinkSpec(
        bandwidth_bytes_per_s=tuple(
            bandwidths * dimensions if len(bandwidths) == 1 else bandwidths
        ),
        latency_ps=tuple(latencies * dimensions if len(latencies) == 1 else latencies),
    )


def _host_link(given: HostLinkFields | None, link: LinkSpec) -> HostLink | None:
    """Its latency is that of links between a node's instances where the file gives none."""
    if given is None:
        return None
    latency_ns = given.latency_ns
    return HostLink(
        gb_per_s_to_bytes_per_s(given.bandwidth_gb_per_s),
        link.latency_of(BETWEEN_GROUPS) if latency_ns is None else ns_to_ps(latency_ns),
        given.devices_per_link,
    )


def _refuse_what_does_not_run_yet(cluster: Cluster) -> None:
    """Valid wishes of a later version: refused by name, never ignored."""
    for location, placement in placements(cluster):
        if placement.kv_loc not in (None, "npu"):
            what = (
                f'is "{placement.kv_loc}", but a KV cache outside of device memory ("npu") does '
                "not run in this version"
            )
            raise _not_yet(cluster, (*location, "kv_loc"), what)


def _not_yet(cluster: Cluster, location: Location, what: str) -> NotYetError:
    return NotYetError(f"{cluster.position(location)} {what}; remove it to run without")
