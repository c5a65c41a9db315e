"""Finds groups whose step transfers contend with other traffic, and maps their memories to network
nodes.

A group whose copies contend with nothing is folded: its ranks copy at once, each with an even share
of the memory. All others move their bytes over the network, where only those that are active share
(docs/explanation/memory.md).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.deployment import BETWEEN_NODES, PoolSpec
from llmsim.config.errors import InfeasibleError
from llmsim.config.machine.host_links import LinkPlace
from llmsim.lowering.network.cluster_network import (
    EVERY_NODE,
    ClusterNetwork,
    add_link,
    pool_place,
    port_links,
)
from llmsim.lowering.offload.placement import HOST, memory_at
from llmsim.lowering.offload.plan import OffloadPlan, on_network
from llmsim.lowering.parallel_layout import members_of

if TYPE_CHECKING:
    from llmsim.lowering.types import LoweredGroup

Memory = tuple[int, str]
"""(node, "cpu") or (-1, "cxl:<id>")."""


def memory_key(group: Group, place: str) -> Memory:
    """Which memory a group means by a place."""
    return (group.node if place == HOST else EVERY_NODE, place)


def weights_in(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> dict[Memory, int]:
    """Bytes of weights that all groups together keep in each memory beside the devices."""
    total: dict[Memory, int] = {}
    for group, lowered in zip(deployment.groups, groups, strict=True):
        if lowered.offload is None:
            continue
        for stage in range(group.pp):
            for place, size in lowered.offload.where.bytes_elsewhere(stage).items():
                key = memory_key(group, place)
                total[key] = total.get(key, 0) + size * group.tp
    return total


def check_capacities(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> None:
    """InfeasibleError where a memory cannot hold what all groups put there: weights, and KV that is
    attended there.
    """
    weights = weights_in(deployment, groups)
    total = dict(weights)
    for group, lowered in zip(deployment.groups, groups, strict=True):
        if lowered.offload is not None and lowered.offload.kv_bytes is not None:
            key = memory_key(group, HOST)
            total[key] = total.get(key, 0) + lowered.offload.kv_bytes * group.num_devices
    for (node, place), size in total.items():
        capacity = memory_at(deployment, node, place).capacity_bytes
        if size > capacity:
            where = f" of node {node}" if place == HOST else ""
            held = weights.get((node, place), 0)
            more = f" beside {(size - held) / (1 << 30):.2f} GiB of KV" if size > held else ""
            raise InfeasibleError(
                f"{deployment.cluster_path}: weights at {place}{where}: {held / (1 << 30):.2f} "
                f"GiB{more} do not fit its {capacity / (1 << 30):.2f} GiB"
            )


def meeting_groups(
    deployment: Deployment, groups: Sequence["LoweredGroup"], *, fifo: bool, tiers: bool
) -> frozenset[int]:
    """Groups whose steps cannot be folded: others may use the same links while they copy.

    Alone are those of one stage, outside of a lock-step domain, with one kind of traffic on their
    ports and memories and links to the host of their own. First come, first served (`fifo`), ranks
    do not get even shares; KV tiers (`tiers`) and handed-over KV use all ports.
    """
    use = _Use(_stages_on_links(deployment, groups), _users_of_memories(deployment, groups))
    kv_meets = tiers or deployment.disaggregation is not None
    return frozenset(
        group.index
        for group, lowered in zip(deployment.groups, groups, strict=True)
        if lowered.offload is not None
        and (kv_meets or _meets_others(deployment, group, lowered, use, fifo=fifo))
    )


class _Use(Struct, frozen=True, eq=False):
    """What groups beside the devices use in their steps."""

    stages_on_links: Mapping[LinkPlace, int]
    users_of_memories: Mapping[Memory, int]


def _meets_others(
    deployment: Deployment, group: Group, lowered: "LoweredGroup", use: _Use, *, fifo: bool
) -> bool:
    plan = lowered.offload
    assert plan is not None, "the caller looked"
    links = set(deployment.host_links.links(group.index))
    links_shared = any(use.stages_on_links[link] > 1 for link in links)
    memory_shared = any(
        use.users_of_memories[memory_key(group, place)] > 1 for place in plan.memories
    )
    queued = fifo and len(links) < group.num_devices
    meets_others = links_shared or memory_shared or queued
    return meets_others or _kinds_meet(plan) or _copies_meet(plan, group, lowered, fifo=fifo)


def _kinds_meet(plan: "OffloadPlan") -> bool:
    """Whether transfers of several kinds, or both halves of a batch, run at the same time."""
    halves = plan.host is not None and plan.native.interleaving != _native.Interleaving.NEVER
    return plan.num_movers > 1 or halves


def _copies_meet(plan: "OffloadPlan", group: Group, lowered: "LoweredGroup", *, fifo: bool) -> bool:
    """Whether stages, replicas or ranks of the group copy from memories at different times."""
    several = group.pp > 1 or members_of(group, lowered.model) > 1
    uneven = fifo and group.tp > 1
    return bool(plan.memories) and (several or uneven)


def _users_of_memories(deployment: Deployment, groups: Sequence["LoweredGroup"]) -> Counter[Memory]:
    """Of each memory beside the devices, the groups whose steps use it."""
    return Counter(
        memory_key(group, place)
        for group, lowered in zip(deployment.groups, groups, strict=True)
        if lowered.offload is not None
        for place in lowered.offload.memories
    )


def _stages_on_links(
    deployment: Deployment, groups: Sequence["LoweredGroup"]
) -> Counter[LinkPlace]:
    """On each link to a host, the stages whose steps use it."""
    found = Counter[LinkPlace]()
    for group, lowered in zip(deployment.groups, groups, strict=True):
        if lowered.offload is None:
            continue
        links, each = deployment.host_links.links(group.index), group.num_devices // group.pp
        for first in range(0, len(links), each):
            found.update(set(links[first : first + each]))
    return found


class Memories(Struct, frozen=True, eq=False):
    """Places on the network of what is beside the devices."""

    pools: dict[str, int]
    channels: dict[int, tuple[int, ...]]
    """By group: each rank's memory that computes."""


def place_memories(
    deployment: Deployment, groups: Sequence["LoweredGroup"], network: ClusterNetwork
) -> Memories:
    """Adds the pool's devices where weights are on some of them (one device is the pool itself,
    with all KV that is there), and the channels of each rank that attends in memory.
    """
    plans = {
        group.index: plan
        for group, one in zip(deployment.groups, groups, strict=True)
        if (plan := one.offload)
    }
    pools: dict[str, int] = {}
    if deployment.pool is not None and any(
        place != HOST for plan in plans.values() for place in plan.copies.places
    ):
        pools = _pool_devices(deployment, deployment.pool, network)
    channels = {
        index: tuple(_channels(deployment, group, plan, network) for _ in range(group.num_devices))
        for index, plan in plans.items()
        if plan.pim is not None and (group := deployment.groups[index])
    }
    return Memories(pools, channels)


def _pool_devices(
    deployment: Deployment, pool: PoolSpec, network: ClusterNetwork
) -> dict[str, int]:
    """Their places, by name."""
    if pool.devices == 1:
        assert network.pool is not None, "the file declares it"
        return {"cxl:0": network.pool}
    if network.pool_devices:
        return {f"cxl:{number}": place for number, place in enumerate(network.pool_devices)}
    found = {}
    for number in range(pool.devices):
        rate, latency_ps = pool.device.bandwidth_bytes_per_s, pool.device.latency_ps
        link = add_link(deployment, network.config, "cxl_mem.mem_bw", rate, latency_ps)
        found[f"cxl:{number}"] = pool_place(deployment, network.config, link)
    return found


def _channels(
    deployment: Deployment, group: Group, plan: OffloadPlan, network: ClusterNetwork
) -> int:
    """One rank's channels, as fast as their buses together; a link's latency is charged on the way
    out.
    """
    pim = plan.pim
    assert pim is not None, "the caller looked"
    rate = pim.channels * pim.part.bus_bytes_per_s
    config, channels = (
        network.config,
        f"the bandwidth of {pim.channels} channels of {pim.part.name}",
    )
    latency_ps = deployment.host_links.of_node(group.node).latency_ps
    out = add_link(deployment, config, channels, rate, pim.access_ps + latency_ps)
    near = (out, add_link(deployment, config, channels, rate, pim.access_ps))
    far = port_links(deployment, config, BETWEEN_NODES)
    place: int = network.config.add_place(
        group.node, near, far, host_latency_ps=latency_ps, below=True
    )
    return place


def met_by_others(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    meeting: frozenset[int],
    network: ClusterNetwork,
    memories: Memories,
) -> None:
    """Tells the core of the groups whose steps meet others."""
    for index in meeting:
        group, lowered = deployment.groups[index], groups[index]
        plan = lowered.offload
        assert plan is not None, "only groups with a plan meet others"
        host = network.hosts[group.node]
        places = memories.pools | ({} if host is None else {HOST: host})
        lowered.native.offload = on_network(
            plan,
            deployment,
            group,
            group.tp,
            network.devices[index],
            places,
            memories.channels.get(index, ()),
        )


def kv_places(
    deployment: Deployment,
    groups: Sequence["LoweredGroup"],
    network: ClusterNetwork,
    memories: Memories,
) -> list[list[int]]:
    """Where each rank of each group has its KV: its device, its channels, or the node's memory."""
    places = []
    for group, lowered in zip(deployment.groups, groups, strict=True):
        plan, devices = lowered.offload, list(network.devices[group.index])
        host = network.hosts[group.node]
        if group.index in memories.channels:
            devices = list(memories.channels[group.index])
        elif (
            plan is not None
            and plan.host is not None
            and plan.host.kv_bytes is not None
            and host is not None
        ):
            devices = [host] * len(devices)
        places.append(devices)
    return places
