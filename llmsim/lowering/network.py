"""The cluster's shared network, as the loop's fabric knows it: which place is whose, and the links between places.

Every device has two ports, full duplex: one to its node's switch, one (the network card) to a switch between nodes; no
switch blocks. The cluster file's `link_bw` and `link_latency` list dimensions, innermost first: 0 inside an instance
(its collectives, not in the fabric), 1 between the instances of a node, 2 between nodes; the last entry stands for all
that are not given. A link's latency is charged on the way out; what leaves a memory pays that of the link it crosses on
top of the memory's own. A host memory is one link of `mem_bw`, shared by
reads and writes, on its node's switch. Where the file names a topology, devices reach each other by its routes instead.
"""

from collections.abc import Collection
from dataclasses import dataclass

from llmsim import _native
from llmsim.config import Deployment, LinkSpec, StorageSpec
from llmsim.lowering.routed import Routes

EVERY_NODE = -1
"""The island of what is near to all."""
BETWEEN_GROUPS, BETWEEN_NODES = 1, 2
"""Dimensions of the cluster file's link list."""


@dataclass(frozen=True, eq=False)
class ClusterNetwork:
    """The fabric's description and the numbers of its places; immutable, any number of runs may use it."""

    config: "_native.FabricConfig"
    devices: tuple[tuple[int, ...], ...]
    """`devices[group][rank]`: the place of that device's memory."""
    hosts: tuple[int | None, ...]
    """By node; None where the file declares no host memory."""
    pool: int | None = None
    """The CXL pool, near to every node; None where the file declares none."""
    drives: tuple[int | None, ...] = ()
    """By node, its storage."""
    storage: int | None = None
    """The cluster's storage, behind the network cards."""
    stripes: tuple[int, ...] = ()
    """The pool's devices, where something is on single ones of them: then KV in the pool is spread over these."""


def cluster_network(deployment: Deployment, contention: str = "fair", routes: Routes | None = None) -> ClusterNetwork:
    """The network of a deployment; `contention` is "fair" (max-min fair shares) or "fifo" (one after the other)."""
    config = _native.FabricConfig(_native.Sharing.FIFO if contention == "fifo" else _native.Sharing.FAIR)
    if routes is not None:
        config.add_topology(routes.native)
    devices = tuple(
        tuple(
            _device(config, group.node, deployment.link, number)
            for number in ([-1] * group.num_devices if routes is None else routes.placed.devices[group.index])
        )
        for group in deployment.groups
    )
    near_latency_ps = deployment.link.latency_of(BETWEEN_GROUPS)
    far_latency_ps = deployment.link.latency_of(BETWEEN_NODES)
    hosts: list[int | None] = []
    for node in deployment.nodes:
        memory = node.host_memory
        if memory is None:
            hosts.append(None)
            continue
        link = config.add_link(memory.bandwidth_bytes_per_s, memory.latency_ps)
        far = port_links(config, deployment.link, BETWEEN_NODES)
        hosts.append(config.add_place(node.index, (link, link), far, near_latency_ps=near_latency_ps))
    pool = None
    if deployment.pool is not None:
        whole = deployment.pool.whole
        link = config.add_link(whole.bandwidth_bytes_per_s, whole.latency_ps)
        pool = config.add_place(EVERY_NODE, (link, link), (-1, -1), near_latency_ps=near_latency_ps)
    drives = tuple(
        None
        if node.storage is None
        else config.add_place(node.index, _drive(config, node.storage), (-1, -1), near_latency_ps=near_latency_ps)
        for node in deployment.nodes
    )
    storage = None
    if deployment.storage is not None:
        drive = _drive(config, deployment.storage)
        storage = config.add_place(len(deployment.nodes), (-1, -1), drive, far_latency_ps=far_latency_ps)
    return ClusterNetwork(config, devices, tuple(hosts), pool, drives, storage)


def idle_pool_notes(deployment: Deployment, media: Collection[str]) -> tuple[str, ...]:
    """Says that nothing is in the pool: no weights by placement, no tier of the prefix cache (which are on `media`)."""
    placements = [group.offloading.placement for group in deployment.groups]
    placed = {entry.weights or "" for one in placements if one is not None for entry in one.entries}
    if deployment.pool is None or "CXL" in media or any(place.startswith("cxl") for place in placed):
        return ()
    return ("cxl_mem holds nothing: no placement puts weights there, and --prefix-storage CXL is not given",)


def _drive(config: "_native.FabricConfig", storage: StorageSpec) -> tuple[int, int]:
    """Links of reads and writes; what an operation waits for before its first byte is the drive's business."""
    return config.add_link(storage.read_bytes_per_s, 0), config.add_link(storage.write_bytes_per_s, 0)


def _device(config: "_native.FabricConfig", node: int, link: LinkSpec, number: int) -> int:
    """A place; `number` is its own in the topology, -1 without one."""
    near, far = port_links(config, link, BETWEEN_GROUPS), port_links(config, link, BETWEEN_NODES)
    place: int = config.add_place(node, near, far, number)
    return place


def port_links(config: "_native.FabricConfig", link: LinkSpec, dimension: int) -> tuple[int, int]:
    """Links out and in of one dimension."""
    at = min(dimension, len(link.bandwidth_bytes_per_s) - 1)
    bandwidth = link.bandwidth_bytes_per_s[at]
    return config.add_link(bandwidth, link.latency_of(dimension)), config.add_link(bandwidth, 0)
