"""Generators of networks: nodes with rails, fat trees, PCIe servers, and islands of different
kinds.
"""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Struct, field
from pydantic import BaseModel, ConfigDict, Field, model_validator

from llmsim.config.units import gb_per_s_to_bytes_per_s, ns_to_ps

Count = Annotated[int, Field(ge=1, le=65_536)]
Speed = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Limit = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]


class Network(Struct, frozen=True):
    """Vertices are devices, then switches (bisection bytes/s or 0, spread); links: ends, bytes/s
    and ps per cable.
    """

    num_devices: int
    switches: tuple[tuple[int, int], ...]
    links: tuple[tuple[int, int, int, int], ...]
    routes: tuple[tuple[int, ...], ...] = ()
    devices_relay: bool = False
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)


class _Sketch:
    """A network under construction."""

    def __init__(self, num_devices: int) -> None:
        self.num_devices = num_devices
        self.switches: list[tuple[int, int]] = []
        self.links: list[tuple[int, int, int, int]] = []
        self.groups: dict[str, tuple[int, ...]] = {}

    def switch(self, bisection_gb_per_s: float = 0, spread: int = 0) -> int:
        self.switches.append((gb_per_s_to_bytes_per_s(bisection_gb_per_s), spread))
        return self.num_devices + len(self.switches) - 1

    def link(self, a: int, b: int, gb_per_s: float, latency_ns: float) -> None:
        self.links.append((a, b, gb_per_s_to_bytes_per_s(gb_per_s), ns_to_ps(latency_ns)))

    def done(self) -> Network:
        return Network(
            self.num_devices, tuple(self.switches), tuple(self.links), groups=self.groups
        )


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class Rails(_Parameters):
    """Nodes whose devices share a switch; device i of every node has its NIC on rail i; spines join
    the rails.
    """

    nodes: Count = 1
    devices_per_node: Count
    switch_gb_per_s: Speed
    switch_latency_ns: Delay
    switch_bisection_gb_per_s: Limit = 0
    nic_gb_per_s: Speed = 50
    nic_latency_ns: Delay = 0
    spines: Count = 8
    spine_gb_per_s: Speed | None = None
    spine_latency_ns: Delay = 0


def rails(p: Rails) -> Network:
    """The uplink of a rail to one spine carries `spine_gb_per_s`; by default its share of the
    rail's NICs.
    """
    sketch = _Sketch(p.nodes * p.devices_per_node)
    nodes = [sketch.switch(p.switch_bisection_gb_per_s) for _ in range(p.nodes)]
    for device in range(sketch.num_devices):
        sketch.link(
            device, nodes[device // p.devices_per_node], p.switch_gb_per_s, p.switch_latency_ns
        )
    for node in range(p.nodes):
        first = node * p.devices_per_node
        sketch.groups[f"node{node}"] = tuple(range(first, first + p.devices_per_node))
    if p.nodes == 1:
        return sketch.done()
    leaves = [sketch.switch() for _ in range(p.devices_per_node)]
    for device in range(sketch.num_devices):
        sketch.link(device, leaves[device % p.devices_per_node], p.nic_gb_per_s, p.nic_latency_ns)
    uplink = p.spine_gb_per_s or p.nic_gb_per_s * p.nodes / p.spines
    for spine in [sketch.switch() for _ in range(p.spines)]:
        for leaf in leaves:
            sketch.link(leaf, spine, uplink, p.spine_latency_ns)
    for rail in range(p.devices_per_node):
        sketch.groups[f"rail{rail}"] = tuple(range(rail, sketch.num_devices, p.devices_per_node))
    return sketch.done()


class FatTree(_Parameters):
    """Level l of switches (0: leaves) has `down[l]` ports below each switch and `up[l]` links from
    it; none on top.

    `k` stands for the k-ary fat tree of three levels: down [k/2, k/2, k], up [k/2, k/2, 0].
    Oversubscription of a level is down / up, at equal speeds.
    """

    k: Annotated[int, Field(ge=2, le=80, multiple_of=2)] | None = None
    down: list[Count] = []
    up: list[Annotated[int, Field(ge=0, le=65_536)]] = []
    gb_per_s: list[Speed]
    latency_ns: list[Delay]
    routing: Annotated[str, Field(pattern="^(hash|spread)$")] = "hash"

    @model_validator(mode="after")
    def _levels(self) -> "FatTree":
        down, up = self.levels()
        if not down or len(up) != len(down) or any(n < 1 for n in up[:-1]) or up[-1] != 0:
            raise ValueError("needs k, or down and up of equal length with up ending in 0")
        if len(self.gb_per_s) != len(down) or len(self.latency_ns) != len(down):
            raise ValueError(f"gb_per_s and latency_ns need one entry per level ({len(down)})")
        devices = 1
        for count in down:
            devices *= count
        if devices > 65_536:
            raise ValueError(f"describes {devices} devices; at most 65536 are possible")
        return self

    def levels(self) -> tuple[list[int], list[int]]:
        if self.k is not None:
            half = self.k // 2
            return [half, half, self.k], [half, half, 0]
        return list(self.down), list(self.up)


def fat_tree(p: FatTree) -> Network:
    """An extended generalised fat tree: switch (subtree, copy) of a level joins its children of
    every fitting copy.
    """
    down, up = p.levels()
    devices = 1
    for count in down:
        devices *= count
    sketch = _Sketch(devices)
    below = list(range(devices))  # by subtree * copies + copy
    copies = 1
    size = 1  # devices below one subtree of the level below
    for level, children in enumerate(down):
        parents = copies * (up[level - 1] if level else 1)
        size_here = size * children
        spread = size if p.routing == "spread" else 0
        here = [
            sketch.switch(spread=max(1, spread) if spread else 0)
            for _ in range(devices // size_here * parents)
        ]
        for child in range(devices // size):
            for copy in range(copies):
                for port in range(parents // copies):
                    parent = here[child // children * parents + copy * (parents // copies) + port]
                    sketch.link(
                        below[child * copies + copy], parent, p.gb_per_s[level], p.latency_ns[level]
                    )
        if level == 0:
            for leaf in range(devices // children):
                sketch.groups[f"leaf{leaf}"] = tuple(range(leaf * children, (leaf + 1) * children))
        below, copies, size = here, parents, size_here
    return sketch.done()


class Pcie(_Parameters):
    """A server: devices below PCIe switches, switches below sockets, sockets joined."""

    sockets: Count = 2
    switches_per_socket: Count = 2
    devices_per_switch: Count = 2
    device_gb_per_s: Speed
    uplink_gb_per_s: Speed
    socket_gb_per_s: Speed
    latency_ns: Delay
    socket_latency_ns: Delay


def pcie(p: Pcie) -> Network:
    """Sockets are switches; every pair of them has a link of its own."""
    per_socket = p.switches_per_socket * p.devices_per_switch
    sketch = _Sketch(p.sockets * per_socket)
    sockets = [sketch.switch() for _ in range(p.sockets)]
    for socket in range(p.sockets):
        sketch.groups[f"socket{socket}"] = tuple(
            range(socket * per_socket, (socket + 1) * per_socket)
        )
        for index in range(p.switches_per_socket):
            switch = sketch.switch()
            sketch.link(switch, sockets[socket], p.uplink_gb_per_s, p.latency_ns)
            first = socket * per_socket + index * p.devices_per_switch
            for device in range(first, first + p.devices_per_switch):
                sketch.link(device, switch, p.device_gb_per_s, p.latency_ns)
        for other in range(socket):
            sketch.link(sockets[socket], sockets[other], p.socket_gb_per_s, p.socket_latency_ns)
    return sketch.done()


class Island(_Parameters):
    """Devices on one switch, each with a link to the backbone."""

    name: str
    devices: Count
    switch_gb_per_s: Speed
    switch_latency_ns: Delay
    backbone_gb_per_s: Speed
    backbone_latency_ns: Delay


class Islands(_Parameters):
    """Groups that differ in size and speed, joined by one switch."""

    islands: Annotated[list[Island], Field(min_length=1)]
    backbone_bisection_gb_per_s: Limit = 0


def islands(p: Islands) -> Network:
    """Devices are numbered island by island."""
    sketch = _Sketch(sum(island.devices for island in p.islands))
    backbone = sketch.switch(p.backbone_bisection_gb_per_s)
    first = 0
    for island in p.islands:
        switch = sketch.switch()
        members = range(first, first + island.devices)
        for device in members:
            sketch.link(device, switch, island.switch_gb_per_s, island.switch_latency_ns)
            sketch.link(device, backbone, island.backbone_gb_per_s, island.backbone_latency_ns)
        sketch.groups[island.name] = tuple(members)
        first += island.devices
    return sketch.done()


GENERATORS: dict[str, tuple[type[BaseModel], Callable[[Any], Network]]] = {
    "rails": (Rails, rails),
    "fat_tree": (FatTree, fat_tree),
    "pcie": (Pcie, pcie),
    "islands": (Islands, islands),
}
