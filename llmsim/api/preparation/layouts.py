"""Layouts of a cluster file: each is resolved and lowered as if it served alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmsim.api.checked.run_options import RunOptions
from llmsim.config.engine.scheduler_kinds import INSTALLED, VLLM
from llmsim.config.errors import InfeasibleError, InputError, NotYetError, PluginRefused
from llmsim.config.units import BYTES_PER_GIB

if TYPE_CHECKING:
    from llmsim import _native
    from llmsim.config import Cluster as ClusterModel
    from llmsim.config import Deployment
    from llmsim.lowering import LoweredDeployment
    from llmsim.lowering.kv.tiers import KvTierOptions
    from llmsim.lowering.network.cluster_network import ClusterNetwork
    from llmsim.lowering.switches.layouts import LayoutPlan, LayoutPlans
    from llmsim.scheduling.reconfigure import Decision

Lower = Callable[["Deployment", "ClusterNetwork | None"], "LoweredDeployment"]
Resolve = Callable[["ClusterModel"], "Deployment"]


def plans_of(
    cluster: "ClusterModel", options: RunOptions, resolve: Resolve, lower: Lower
) -> "LayoutPlans":
    """The layouts of a cluster file with the costs of switching; raises InputError,
    InfeasibleError, and NotYetError for what does not run together with layouts.
    """
    from llmsim.config.cluster_file.cluster import first_layout, places_of, serving
    from llmsim.config.cluster_file.json_positions import field_path
    from llmsim.config.cluster_file.layouts import Reconfiguration
    from llmsim.lowering.switches.layouts import plan_layouts

    assert cluster.layouts is not None
    cost = cluster.reconfiguration or Reconfiguration()
    plans: list[LayoutPlan] = []
    names = list(cluster.layouts)
    for name in sorted(names, key=lambda name: name != first_layout(cluster)):
        places = [field_path(at) for at, _ in places_of(cluster, name)]
        deployment = _at_places(resolve(serving(cluster, name)), places)
        plans.append(_plan(name, deployment, lower, plans, options))
    plans.sort(key=lambda plan: names.index(plan.name))
    _refuse(cluster, options, plans, moves_kv=cost.kv == "move")
    if cost.weights == "cached" and cost.fixed_s is None:
        plans = _with_all_shards(cluster, plans, lower, options)
    if options.tiers is not None:
        plans = _with_tiers(plans, options.tiers)
    initial = names.index(first_layout(cluster))
    return plan_layouts(plans, initial, cluster.switch, cost, _decide(cluster))


def _at_places(deployment: "Deployment", places: list[str]) -> "Deployment":
    """With the paths that instances have in the file, which are given in order of their devices."""
    on_nodes = dict.fromkeys(group.field_path for group in deployment.groups)
    place_of = dict(zip(on_nodes, places, strict=True))
    groups = [replace(group, field_path=place_of[group.field_path]) for group in deployment.groups]
    return replace(deployment, groups=tuple(groups))


def _plan(
    name: str,
    deployment: "Deployment",
    lower: Lower,
    before: "Sequence[LayoutPlan]",
    options: RunOptions,
) -> "LayoutPlan":
    """A layout, on the network of those that were planned before it."""
    from llmsim.lowering.network.cluster_network import cluster_network, network_beside
    from llmsim.lowering.network.topology import routes_of
    from llmsim.lowering.switches.layouts import LayoutPlan

    beside = before[-1].network if before else None
    lowered = lower(deployment, beside)
    network = lowered.network
    if network is None and beside is not None:
        network = network_beside(beside, deployment)
    elif network is None:
        contention = "fifo" if options.network == "congestion-aware" else "fair"
        network = cluster_network(deployment, contention, routes_of(deployment))
    return LayoutPlan(name, deployment, lowered, network)


def _with_tiers(plans: "list[LayoutPlan]", options: "KvTierOptions") -> "list[LayoutPlan]":
    """With the pools that their groups use; the second pass knows the pools of all layouts."""
    from llmsim.lowering.kv.tiers import TierPools, lower_tiers

    pools = TierPools()

    def tiers_of(plan: "LayoutPlan") -> "_native.KvTiersConfig":
        groups = plan.lowered.groups
        return lower_tiers(plan.deployment, groups, options, plan.network, pools, plan.name).config

    for plan in plans:
        tiers_of(plan)
    return [replace(plan, tiers=tiers_of(plan)) for plan in plans]


def _decide(cluster: "ClusterModel") -> "Callable[[], Decision] | None":
    """Makes what asks the class that the cluster file names."""
    if cluster.decide is None:
        return None
    from llmsim.scheduling.reconfigure import decision, parse_reconfigure

    assert cluster.layouts is not None
    try:
        maker = parse_reconfigure(cluster.decide)
    except PluginRefused:
        raise
    except InputError as error:
        raise InputError(f"{cluster.position(('decide',))}: {error}") from error
    return partial(decision, maker, list(cluster.layouts))


def _with_all_shards(
    cluster: "ClusterModel", plans: "list[LayoutPlan]", lower: Lower, options: RunOptions
) -> "list[LayoutPlan]":
    """Every device holds its shards of all layouts, which leaves less for KV.

    Raises InfeasibleError where a device has no room for them.
    """
    from llmsim.lowering.switches.weight_shards import largest_shard

    shards = [largest_shard(plan) for plan in plans]
    _check_room(cluster, plans, sum(shards))
    made: list[LayoutPlan] = []
    for plan, own in zip(plans, shards, strict=True):
        groups = []
        for group in plan.deployment.groups:
            others = round((sum(shards) - own) / group.engine.gpu_memory_utilization)
            memory = replace(group.memory, capacity_bytes=group.memory.capacity_bytes - others)
            groups.append(replace(group, memory=memory))
        deployment = replace(plan.deployment, groups=tuple(groups))
        made.append(_plan(plan.name, deployment, lower, made, options))
    return made


def _check_room(cluster: "ClusterModel", plans: "list[LayoutPlan]", shards_bytes: int) -> None:
    group = plans[0].deployment.groups[0]
    room_bytes = int(group.memory.capacity_bytes * group.engine.gpu_memory_utilization)
    if shards_bytes >= room_bytes:
        raise InfeasibleError(
            f'{cluster.position(("reconfiguration", "weights"))} is "cached", but the shards of '
            f"all {len(plans)} layouts take {shards_bytes / BYTES_PER_GIB:.2f} GiB of a device, of "
            f"which gpu_memory_utilization leaves {room_bytes / BYTES_PER_GIB:.2f} GiB; say links "
            "or host"
        )


def _refuse(
    cluster: "ClusterModel", options: RunOptions, plans: "list[LayoutPlan]", *, moves_kv: bool
) -> None:
    _refuse_unlike_models(cluster, plans)
    _refuse_unknown_nodes(cluster, options, plans)
    _refuse_several_hosts(cluster, plans)
    for is_so, what, remedy in (
        (
            moves_kv and _any_engine(plans, "sglang"),
            "the scheduler sglang and KV that moves",
            'set kv to "recompute" or "drop"',
        ),
        (
            _any_engine(plans, INSTALLED),
            f"the scheduler {INSTALLED}, which does not take over answers that have begun,",
            f"choose {VLLM}",
        ),
        (_loads_fail(plans), "kv_load_failure_rate", "leave it out"),
        (
            moves_kv and _attends_elsewhere(plans),
            "KV that moves and attention outside of the devices",
            'set kv to "recompute" or "drop"',
        ),
        (
            options.tiers is not None and len({plan.network.stripes for plan in plans}) > 1,
            "KV tiers and weights that only some layouts keep in the pool",
            "leave one of them out",
        ),
    ):
        if is_so:
            raise NotYetError(
                f"{cluster.path}: layouts together with {what} do not run in this version; {remedy}"
            )


def _attends_elsewhere(plans: "list[LayoutPlan]") -> bool:
    """Whether the KV of some group is in host memory."""
    offloads = [group.offload for plan in plans for group in plan.lowered.groups]
    return any(one is not None and one.kv_bytes is not None for one in offloads)


def _refuse_several_hosts(cluster: "ClusterModel", plans: "list[LayoutPlan]") -> None:
    """What is outside of an instance's devices is in the memory of its host."""
    for plan in plans:
        each = plan.deployment.devices_per_node
        first = 0
        for group, lowered in zip(plan.deployment.groups, plan.lowered.groups, strict=True):
            last = first + group.num_devices - 1
            if lowered.offload is not None and each is not None and first // each != last // each:
                raise InputError(
                    f"{cluster.path}: {group.field_path} has weights or "
                    f"operators outside of its devices, {first} to {last}, which are on several "
                    f"hosts of {each} devices; remove placement and operator_devices, or keep the "
                    "instance on one host"
                )
            first = last + 1


def _loads_fail(plans: "list[LayoutPlan]") -> bool:
    """Whether loads of KV of some group fail."""
    engines = [group.engine for plan in plans for group in plan.lowered.groups]
    return any(engine.kv_load_failure_rate > 0 for engine in engines)


def _any_engine(plans: "list[LayoutPlan]", scheduler: str) -> bool:
    """Whether some group has the scheduler."""
    engines = [group.engine for plan in plans for group in plan.lowered.groups]
    return any(engine.scheduler == scheduler for engine in engines)


def _refuse_unlike_models(cluster: "ClusterModel", plans: "list[LayoutPlan]") -> None:
    first = plans[0]
    for plan in plans[1:]:
        if plan.lowered.models != first.lowered.models:
            ours, theirs = (", ".join(one.lowered.models) for one in (plan, first))
            raise InputError(
                f"{cluster.position(('layouts', plan.name))} serves {ours}, but {first.name} "
                f"serves {theirs}; layouts serve the same models, named in the same order"
            )


def _refuse_unknown_nodes(
    cluster: "ClusterModel", options: RunOptions, plans: "list[LayoutPlan]"
) -> None:
    """What goes between nodes needs to know where they end."""
    from llmsim.lowering.switches.weight_moves import devices_per_server

    apart = any(plan.lowered.kv_transfers is not None for plan in plans)
    if cluster.node is not None or not (apart or options.tiers is not None):
        return
    devices = sum(group.num_devices for group in plans[0].deployment.groups)
    server = devices_per_server(plans[0])
    if devices > server:
        what = "prefill and decode apart" if apart else "KV tiers"
        raise InputError(
            f"{cluster.path}: node is missing; layouts of {devices} devices with {what} need to "
            f'know the nodes, such as "node": {{"devices": {server}}}'
        )
