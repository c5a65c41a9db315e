"""What a switch of layouts does to weights: who sends what to whom, and how long that takes.

What a device needs after a switch and does not hold, it gets from a device that holds it: one of
its server, if there is one, else the replicas take turns. What no device holds, it loads from its
host. All move at once, so the busiest port says how long that takes; what a device keeps is copied
once inside its memory.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from llmsim.config import Deployment
from llmsim.config.cluster_file.layouts import Reconfiguration
from llmsim.config.units import gb_per_s_to_bytes_per_s
from llmsim.core import PS_PER_S
from llmsim.lowering.network.topology import Routes, routes_of
from llmsim.lowering.switches.weight_shards import (
    Holder,
    holders_by_group,
    keeps_elsewhere,
    largest_shard,
)

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlan

HOST_GB_PER_S = 50.0
"""At which a device loads weights from its host where the cluster file does not say."""
DEFAULT_SERVER = 8
"""Devices of a server where the data sheet does not say."""


class WeightMoves(Struct, frozen=True):
    """What a switch moves between devices before the new layout holds its weights."""

    links_bytes: int = 0
    """Over the links inside servers, all devices together."""
    network_bytes: int = 0
    """Between servers."""
    kept_bytes: int = 0
    """What devices hold already, and copy to its new place."""
    busiest_ps: int = 0
    """Of the busiest port."""
    copy_ps: int = 0
    """Of the device that copies most."""
    host_bytes: int = 0
    """What devices load from their hosts."""
    by_group: tuple[Mapping[str, int], ...] = ()
    """Of each group of the new layout, what moves for its devices, by fields of
    `llmsim.core.Traffic`.
    """

    @property
    def time_ps(self) -> int:
        """Both, one after the other."""
        return self.busiest_ps + self.copy_ps


def moves_between(cost: Reconfiguration, before: "LayoutPlan", after: "LayoutPlan") -> WeightMoves:
    """What a switch moves, as the cluster file says it."""
    host_bytes_per_s = host_rate(cost, after.deployment)
    if cost.weights == "links":
        return weight_moves(before, after, host_bytes_per_s)
    return WeightMoves() if cost.weights == "cached" else _from_hosts(after, host_bytes_per_s)


def host_rate(cost: Reconfiguration, deployment: Deployment) -> int:
    """Bytes/s at which each device loads weights while all do."""
    if cost.host_gb_per_s is not None:
        return gb_per_s_to_bytes_per_s(cost.host_gb_per_s)
    links = deployment.host_links.stated.values()
    rates = (link.bandwidth_bytes_per_s // link.devices_per_link for link in links)
    return min(rates, default=gb_per_s_to_bytes_per_s(HOST_GB_PER_S))


def weights_ps(cost: Reconfiguration, moves: WeightMoves) -> int:
    """How long a switch moves weights; a fixed cost contains it."""
    return 0 if cost.fixed_s is not None else moves.time_ps


def _from_hosts(after: "LayoutPlan", bytes_per_s: int) -> WeightMoves:
    """Every device loads its shard from its host."""
    holders = holders_by_group(after, by_operator=keeps_elsewhere(after))
    sizes = [sum(one.bytes for one in of_group) for of_group in holders]
    return WeightMoves(
        busiest_ps=_ps(largest_shard(after), bytes_per_s),
        host_bytes=sum(sizes),
        by_group=tuple({"host_bytes": size, "memory_bytes": size} for size in sizes),
    )


def _ps(count: int, per_s: int) -> int:
    return -(-count * PS_PER_S // per_s)


class _Ports:
    """Bytes over the links of each device, by whether they leave its server."""

    def __init__(self, plan: "LayoutPlan") -> None:
        self.server, link, card = rates(plan)
        self._rates = {True: link, False: card}
        self._latency_of = plan.deployment.link.latency_of
        self._carried: dict[tuple[bool, int, str], int] = defaultdict(int)
        self.moved: dict[bool, int] = {True: 0, False: 0}
        """Bytes by whether both devices are in one server."""
        self.by_device: dict[int, Counter[str]] = defaultdict(Counter)
        """What moves for each device, by fields of `llmsim.core.Traffic`."""

    def near(self, source: int, target: int) -> bool:
        """Whether two devices are in one server."""
        return source // self.server == target // self.server

    def nearest(self, sources: Sequence[int], target: int) -> Sequence[int]:
        """Those from which a device gets bytes first."""
        return [one for one in sources if self.near(one, target)] or sources

    def _count(self, source: int, target: int, count: int) -> None:
        """Inside a server the sender has the links' bytes; else both ends have their cards'."""
        near = self.near(source, target)
        self.moved[near] += count
        for device in (source, target):
            self.by_device[device]["memory_bytes"] += count
            if not near:
                self.by_device[device]["nic_bytes"] += count
        if near:
            self.by_device[source]["link_bytes"] += count

    def keep(self, device: int, count: int) -> None:
        """Adds what a device reads and writes again in its own memory."""
        self.by_device[device]["memory_bytes"] += 2 * count

    def load(self, device: int, count: int) -> None:
        """Adds what a device loads from its host."""
        self.by_device[device]["memory_bytes"] += count
        self.by_device[device]["host_bytes"] += count

    def move(self, source: int, target: int, count: int) -> None:
        """Adds a flow between two devices."""
        near = self.near(source, target)
        self._count(source, target, count)
        self._carried[near, source, "out"] += count
        self._carried[near, target, "in"] += count

    def busiest_ps(self) -> int:
        """Of the busiest port, with the latency of a transfer; 0: nothing moves."""
        if not self._carried:
            return 0
        times = (_ps(count, self._rates[near]) for (near, *_), count in self._carried.items())
        return max(times) + self._latency_of(99 if self.moved[False] else 0)


class _RoutedPorts(_Ports):
    """The same over the routes of a topology."""

    def __init__(self, plan: "LayoutPlan", routes: Routes) -> None:
        super().__init__(plan)
        self._routes = routes
        placed = routes.placed.devices
        self._devices = [device for ranks in placed for device in ranks]
        self._on: dict[int, int] = defaultdict(int)
        self._latency_ps = 0

    def _route(self, source: int, target: int) -> list[int]:
        return list(self._routes.native.route(self._devices[source], self._devices[target]))

    def nearest(self, sources: Sequence[int], target: int) -> Sequence[int]:
        """Those with the fewest links between."""
        hops = {one: len(self._route(one, target)) for one in sources}
        fewest = min(hops.values())
        return [one for one in sources if hops[one] == fewest]

    def move(self, source: int, target: int, count: int) -> None:
        """Adds a flow to each link of its route."""
        self._count(source, target, count)
        route = self._route(source, target)
        for link in route:
            self._on[link] += count
        latency = sum(self._routes.speeds[link][1] for link in route)
        self._latency_ps = max(self._latency_ps, latency)

    def busiest_ps(self) -> int:
        """Of the busiest link, with the latency of the longest route."""
        times = (_ps(count, self._routes.speeds[link][0]) for link, count in self._on.items())
        return max(times, default=0) + self._latency_ps


def rates(plan: "LayoutPlan") -> tuple[int, int, int]:
    """Devices of a server, bytes/s of a device's link inside it, and of its network card."""
    sheet = plan.lowered.groups[0].hardware
    link = plan.deployment.link.bandwidth_bytes_per_s
    card = link[-1] if len(link) > 1 else 0
    if not card:
        card = (sheet.network_card_bytes_per_s if sheet is not None else None) or link[0]
    return devices_per_server(plan), link[0], card


def devices_per_server(plan: "LayoutPlan") -> int:
    """As the cluster file or the data sheet says."""
    sheet = plan.lowered.groups[0].hardware
    known = (sheet.link_domain_devices if sheet is not None else None) or DEFAULT_SERVER
    return plan.deployment.devices_per_node or known


def weight_moves(before: "LayoutPlan", after: "LayoutPlan", host_bytes_per_s: int) -> WeightMoves:
    """Who sends what to whom so that every device holds its shard of `after`."""
    by_operator = keeps_elsewhere(before) or keeps_elsewhere(after)
    old = _all(holders_by_group(before, by_operator=by_operator))
    new = _all(holders_by_group(after, by_operator=by_operator))
    replicas: dict[int, list[int]] = defaultdict(list)
    kinds: dict[int, Holder] = {}
    for device, holder in enumerate(old):
        replicas[id(holder)].append(device)
        kinds[id(holder)] = holder
    common: dict[tuple[int, int], int] = {}
    routes = routes_of(after.deployment)
    ports = _Ports(after) if routes is None else _RoutedPorts(after, routes)
    rounding = len(kinds)  # each of them may hold a fraction of a byte more than is counted
    kept, most_kept, most_lacked, turn = 0, 0, 0, 0
    for device, holder in enumerate(new):
        need = holder.bytes
        own = _held(common, old[device], holder)
        kept, most_kept = kept + own, max(most_kept, own)
        ports.keep(device, own)
        need -= own
        for kind, source in sorted(kinds.items(), key=lambda one: replicas[one[0]][0]):
            if need <= 0:
                break
            count = 0 if source is old[device] else _held(common, source, holder)
            count = min(count, need)
            if not count:
                continue
            need -= count
            choices = ports.nearest(replicas[kind], device)
            ports.move(choices[turn % len(choices)], device, count)
        if by_operator and need > rounding:
            ports.load(device, need)
            most_lacked = max(most_lacked, need)
        turn += 1
    same = before is after or all(a == b for a, b in zip(old, new, strict=True))
    by_group = [] if same else _by_group(after, ports)
    memory = after.lowered.groups[0].memory_bytes_per_s
    return WeightMoves(
        ports.moved[True],
        ports.moved[False],
        kept,
        max(ports.busiest_ps(), _ps(most_lacked, host_bytes_per_s)),
        0 if same else _ps(2 * most_kept, memory),
        sum(one["host_bytes"] for one in ports.by_device.values()),
        tuple(by_group),
    )


def _all(holders: Iterable[list[Holder]]) -> list[Holder]:
    return [one for of_group in holders for one in of_group]


def _by_group(plan: "LayoutPlan", ports: _Ports) -> list[Counter[str]]:
    found, first = [], 0
    for group in plan.lowered.groups:
        devices = range(first, first + group.info.num_devices)
        found.append(sum((ports.by_device[device] for device in devices), Counter[str]()))
        first += group.info.num_devices
    return found


def _held(common: dict[tuple[int, int], int], old: Holder, new: Holder) -> int:
    key = (id(old), id(new))
    if key not in common:
        common[key] = old.held_of(new)
    return common[key]
