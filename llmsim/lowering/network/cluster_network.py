"""The cluster's shared network, as the loop knows it: which place is whose, and the links between
places.

Every device has two ports, full duplex: one to its node's switch, one (the network card) to a
switch between nodes; no switch blocks. A node's `host_link` is a third one, to what is below its
devices: host memory, storage, pools; without it they take the first. The cluster file's `link_bw`
and `link_latency` list dimensions, innermost first: 0 inside an instance (its collectives, not in
the network), 1 between the instances of a node, 2 between nodes; the last entry stands for all that
are not given. A link's latency is charged on the way out; what leaves a memory pays that of the
link it crosses on top of the memory's own. A host memory is one link of `mem_bw`, shared by reads
and writes, on its node's switch. Where the file names a topology, devices reach each other by its
routes instead.
"""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, StorageSpec
from llmsim.config.deployment import BETWEEN_GROUPS, BETWEEN_NODES, Node
from llmsim.config.errors import InputError
from llmsim.config.machine.host_links import DevicePlace, LinkPlace
from llmsim.lowering.network.topology import Routes

if TYPE_CHECKING:
    from llmsim.config.topology.file import TopologySpec

FASTEST_BYTES_PER_S = (1 << 47) - 1
"""Of a shared link: what the fair-share solver of the native network holds (shared_network.cpp)."""
EVERY_NODE = -1
"""The island of what is near to all."""
OF_READER = -1
"""Latency of the way out of a memory: that of the reader's link to it."""
Ends = tuple[int, int]
"""Numbers of a place's links out and in."""


class ClusterNetwork(Struct, frozen=True, eq=False):
    """The network that the loop simulates, and the numbers of its nodes; immutable, any number of
    runs may use it.
    """

    config: "_native.NetworkConfig"
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
    kv: tuple[tuple[int, ...], ...] = ()
    """`kv[group][rank]`: the place that holds that device's KV, where groups hand KV over."""
    stripes: tuple[int, ...] = ()
    """The pool's devices, where something is on single ones of them: then KV in the pool is spread
    over these.
    """
    pool_devices: tuple[int, ...] = ()
    """The pool's devices, where any layout of the network's devices has something on them."""
    host_links: tuple["PlacedHostLink", ...] = ()
    """Links between devices and hosts that the file tells apart, in the order of the devices."""


class PlacedHostLink(Struct, frozen=True):
    """A `host_link` on the network."""

    node: int
    devices: tuple[int, ...]
    """Their numbers on the node."""
    ends: Ends


def cluster_network(
    deployment: Deployment, contention: str = "fair", routes: Routes | None = None
) -> ClusterNetwork:
    """The network of a deployment; `contention` is "fair" (max-min fair shares) or "fifo" (one
    after the other).
    """
    config = _native.NetworkConfig(
        _native.Sharing.FIFO if contention == "fifo" else _native.Sharing.FAIR
    )
    if routes is not None:
        assert deployment.topology is not None, "routes are of a topology"
        _refuse_fast_links(deployment, deployment.topology.spec)
        config.add_topology(routes.native)
        config.incast = routes.incast
    ports = _HostPorts(deployment, config)
    devices = tuple(
        tuple(
            _device(deployment, config, place, number, ports)
            for place, number in zip(
                deployment.device_places[group.index],
                [-1] * group.num_devices if routes is None else routes.placed.devices[group.index],
                strict=True,
            )
        )
        for group in deployment.groups
    )
    hosts = tuple(_host(deployment, config, node) for node in deployment.nodes)
    pool = _pool(deployment, config)
    drives = tuple(_drive(deployment, config, node) for node in deployment.nodes)
    storage = _cluster_storage(deployment, config)
    return ClusterNetwork(
        config, devices, hosts, pool, drives, storage, host_links=tuple(ports.placed())
    )


def network_beside(other: ClusterNetwork, deployment: Deployment) -> ClusterNetwork:
    """The network of another layout of the same devices, in order: both have the same `config`, to
    which each may add memories of its own.
    """
    places = iter([place for ranks in other.devices for place in ranks])
    devices = tuple(tuple(islice(places, group.num_devices)) for group in deployment.groups)
    return replace(other, devices=devices, kv=(), stripes=())


def nodes_of_groups(deployment: Deployment) -> tuple[frozenset[int], ...]:
    """By group, the nodes that its devices are on."""
    return tuple(frozenset(node for node, _ in places) for places in deployment.device_places)


def idle_pool_notes(deployment: Deployment, media: Collection[str]) -> tuple[str, ...]:
    """Says that nothing is in the pool: no weights by placement, no tier of the prefix cache (which
    are on `media`).
    """
    if deployment.pool is None:
        return ()
    placements = [group.offloading.placement for group in deployment.groups]
    placed = {entry.weights or "" for one in placements if one is not None for entry in one.entries}
    holds_weights = any(place.startswith("cxl") for place in placed)
    holds_kv = "CXL" in media
    if holds_weights or holds_kv:
        return ()
    return (
        (
            "cxl_mem holds nothing: no placement puts weights there, and --prefix-storage CXL is "
            "not given"
        ),
    )


def _refuse_fast_links(deployment: Deployment, spec: "TopologySpec") -> None:
    """Raises InputError for a link of a topology that is too fast to be shared."""
    rates = (
        [rate for _, _, rate, _ in spec.network.links]
        if spec.network
        else [row[2] for row in spec.dimensions]
    )
    for rate in rates:
        _check_rate(deployment, f"a link of the topology {spec.name}", rate)


def _check_rate(deployment: Deployment, field: str, bytes_per_s: int) -> None:
    if bytes_per_s > FASTEST_BYTES_PER_S:
        most = FASTEST_BYTES_PER_S // 10**9
        raise InputError(
            f"{deployment.cluster_path}: {field} is {bytes_per_s / 1e9:g} GB/s; what several "
            f"transfers may share can have at most {most} GB/s"
        )


def add_link(
    deployment: Deployment,
    config: "_native.NetworkConfig",
    field: str,
    bytes_per_s: int,
    latency_ps: int,
) -> int:
    """A link of the shared network; InputError, naming the `field` of the cluster file, where it is
    too fast.
    """
    _check_rate(deployment, field, bytes_per_s)
    link: int = config.add_link(bytes_per_s, latency_ps)
    return link


def _host(deployment: Deployment, config: "_native.NetworkConfig", node: Node) -> int | None:
    """The place of a node's host memory."""
    memory = node.host_memory
    if memory is None:
        return None
    field = f"nodes[{node.index}].cpu_mem.mem_bw"
    link = add_link(deployment, config, field, memory.bandwidth_bytes_per_s, memory.latency_ps)
    far = port_links(deployment, config, BETWEEN_NODES)
    return _memory_of_node(deployment, config, node, (link, link), far)


def _memory_of_node(
    deployment: Deployment, config: "_native.NetworkConfig", node: Node, links: Ends, far: Ends
) -> int:
    """The place of what devices of a node reach by their links to the host."""
    place: int = config.add_place(
        node.index,
        links,
        far,
        near_latency_ps=OF_READER,
        host_latency_ps=deployment.host_links.of_node(node.index).latency_ps,
        below=True,
    )
    return place


def _pool(deployment: Deployment, config: "_native.NetworkConfig") -> int | None:
    """The place of the CXL pool, near to every node."""
    if deployment.pool is None:
        return None
    whole = deployment.pool.whole
    field = "cxl_mem.mem_bw of all devices together"
    link = add_link(deployment, config, field, whole.bandwidth_bytes_per_s, whole.latency_ps)
    return pool_place(deployment, config, link)


def pool_place(deployment: Deployment, config: "_native.NetworkConfig", link: int) -> int:
    """A place of the CXL pool behind this link, near to every node."""
    place: int = config.add_place(
        EVERY_NODE,
        (link, link),
        (-1, -1),
        near_latency_ps=OF_READER,
        host_latency_ps=deployment.host_links.nominal.latency_ps,
        below=True,
    )
    return place


def _drive(deployment: Deployment, config: "_native.NetworkConfig", node: Node) -> int | None:
    """The place of a node's storage. What the cluster's storage takes from it crosses the links of
    both, and no network card.
    """
    if node.storage is None:
        return None
    links = _storage_links(deployment, config, node.storage)
    return _memory_of_node(deployment, config, node, links, links)


def _cluster_storage(deployment: Deployment, config: "_native.NetworkConfig") -> int | None:
    """The place of the cluster's storage, behind the network cards; the pool, which is near to
    all, reaches it by its own links, too.
    """
    if deployment.storage is None:
        return None
    links = _storage_links(deployment, config, deployment.storage)
    latency_ps = deployment.link.latency_of(BETWEEN_NODES)
    island = len(deployment.nodes)
    place: int = config.add_place(
        island,
        links,
        links,
        near_latency_ps=latency_ps,
        far_latency_ps=latency_ps,
        host_latency_ps=deployment.host_links.nominal.latency_ps,
    )
    return place


def _storage_links(
    deployment: Deployment, config: "_native.NetworkConfig", storage: StorageSpec
) -> tuple[int, int]:
    """Links of reads and writes; what an operation waits for before its first byte is the drive's
    business.
    """
    reads = add_link(deployment, config, "read_bw of a storage", storage.read_bytes_per_s, 0)
    return reads, add_link(
        deployment, config, "write_bw of a storage", storage.write_bytes_per_s, 0
    )


class _HostPorts:
    """The ports of devices to what is below them; devices of one link have the same."""

    def __init__(self, deployment: Deployment, config: "_native.NetworkConfig") -> None:
        self._deployment, self._config = deployment, config
        self._links = deployment.host_links
        self._ends: dict[LinkPlace, Ends] = {}
        self._devices: dict[LinkPlace, list[int]] = {}

    def of(self, device: DevicePlace, near: Ends) -> Ends:
        """The port of a device, whose port to other devices is `near`."""
        node, number = device
        if node not in self._links.stated:
            return near
        link = self._links.link_of(device)
        if link not in self._ends:
            self._ends[link] = self._added(node)
        self._devices.setdefault(link, []).append(number)
        return self._ends[link]

    def _added(self, node: int) -> Ends:
        link, field = self._links.of_node(node), f"nodes[{node}].host_link.bandwidth_gb_per_s"
        rate = link.bandwidth_bytes_per_s
        out = add_link(self._deployment, self._config, field, rate, link.latency_ps)
        return out, add_link(self._deployment, self._config, field, rate, 0)

    def placed(self) -> Iterator[PlacedHostLink]:
        """All links that devices have been given."""
        for (node, number), ends in self._ends.items():
            yield PlacedHostLink(node, tuple(self._devices[node, number]), ends)


def _device(
    deployment: Deployment,
    config: "_native.NetworkConfig",
    device: DevicePlace,
    number: int,
    ports: _HostPorts,
) -> int:
    """A place; `number` is its own in the topology, -1 without one."""
    near, far = (
        port_links(deployment, config, BETWEEN_GROUPS),
        port_links(deployment, config, BETWEEN_NODES),
    )
    node, _ = device
    latency_ps = deployment.host_links.of_node(node).latency_ps
    host = ports.of(device, near)
    place: int = config.add_place(node, near, far, number, host_latency_ps=latency_ps, host=host)
    return place


def port_links(
    deployment: Deployment, config: "_native.NetworkConfig", dimension: int
) -> tuple[int, int]:
    """Links out and in of one dimension."""
    link = deployment.link
    at = min(dimension, len(link.bandwidth_bytes_per_s) - 1)
    bandwidth = link.bandwidth_bytes_per_s[at]
    out = add_link(deployment, config, "link_bw", bandwidth, link.latency_of(dimension))
    return out, add_link(deployment, config, "link_bw", bandwidth, 0)
