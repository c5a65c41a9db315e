"""Prices collectives as NCCL plans them, by where their ranks are."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, permutations
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim._native import engine
from llmsim.core import Int64
from llmsim.costs.nccl.constants import machine_of
from llmsim.costs.nccl.plans import Chosen, Place, Way, choose, choose_vllm
from llmsim.costs.nccl.protocols import PHASES, Machine
from llmsim.costs.nccl.quick_reduce import QuickReduce
from llmsim.costs.nccl.stated_links import on_link
from llmsim.model import Collective, Hardware

if TYPE_CHECKING:
    from llmsim.config.topology.file import TopologySpec

PS_PER_US = 1_000_000
Scope = Literal["nowhere", "between servers", "own links", "everywhere"]
"""Where NCCL's plans price collectives: `--collective-costs` links, auto or measured, auto on cards
that are joined by a link for each pair (there inside servers with such links, too), nccl.
"""
SCOPES: dict[str, Scope] = {"links": "nowhere", "nccl": "everywhere"}
FITS_WITHIN = 10
"""Links within a tenth of the data sheet's rate are those that the constants are of."""
MOST_COMPARED = 72
"""Devices of which every pair is compared: an NVLink domain."""
NODE_GROUP = "node"
"""Groups `node0`, `node1`, ... of a topology are its servers."""


class ServerLinks(Struct, frozen=True):
    """Servers that no topology describes: how many devices the links inside one join, and a
    device's network card.
    """

    devices: int
    card_bytes_per_s: int
    from_sheet: bool
    """The card is the data sheet's, since the cluster file says nothing of the network between."""


class NcclModel(Struct, frozen=True, eq=False):
    """The collective library of a group's devices; immutable."""

    machine: Machine
    scope: Scope
    graph_tokens: int
    """Steps of at most so many tokens replay a CUDA graph."""
    servers: ServerLinks | None = None
    quick: QuickReduce | None = None
    """vLLM's quick all-reduce, where the engine is started with it."""

    def on_links(self, bytes_per_s: float) -> "NcclModel":
        """The same library on links of another rate inside the server."""
        scaled = self.machine.scaled(bytes_per_s / 1e9, self.machine.name)
        return replace(self, machine=scaled)

    def on_stated_links(self, bytes_per_s: int, latency_ps: int) -> "NcclModel":
        """The same library on the links that a cluster file states inside the server."""
        return replace(self, machine=on_link(self.machine, bytes_per_s, latency_ps))

    def on_routes(self, bytes_per_s: float) -> "NcclModel":
        """The same library where two devices are joined at another rate: a device with a link for
        each peer has that of all of them, and no more than its own.
        """
        links = self.machine.pair_links
        if links == 1:
            return self.on_links(bytes_per_s)
        return self.on_links(min(self.machine.link_gb_per_s * 1e9, links * bytes_per_s))

    def plans_inside(self, joined_at: Callable[[int], bool]) -> bool:
        """Whether it plans collectives inside a server; `joined_at` says whether every two ranks
        are joined alike at a rate.
        """
        if self.scope == "own links":
            return joined_at(int(self.machine.link_gb_per_s * 1e9 / self.machine.pair_links))
        return self.scope == "everywhere"

    def price(self, op: Collective, sizes: Int64, places: Sequence[Place]) -> tuple[Int64, str]:
        """(picoseconds by size, the source of the numbers): of the slowest of the places."""
        priced = [self._at(op, sizes, place) for place in places]
        us = np.maximum.reduce([one.us for one in priced])
        slowest = max(range(len(priced)), key=lambda at: (float(priced[at].us[-1]), -at))
        ps = np.ceil(us * PS_PER_US).astype(np.int64)
        plans = ", ".join(priced[slowest].used)
        where = described(places[slowest])
        return ps, f"NCCL model of {self.machine.name}, {op.collective} by {plans} {where}"

    def ways(self, op: Collective, units: int, places: Sequence[Place]) -> list[tuple[int, Way]]:
        """(from how many units on, plan) of a collective of 1 to so many units, at the place where
        the largest takes longest.
        """
        return _ways(self.machine, self.graph_tokens, self.quick, op, units, tuple(places))

    def at_each(self, op: Collective, units: int, place: Place) -> Chosen:
        """The plan of each number of units from 1 on."""
        sizes = np.arange(1, units + 1, dtype=np.int64) * op.collective_bytes_per_token
        return self._at(op, sizes, place)

    def _at(self, op: Collective, sizes: Int64, place: Place) -> Chosen:
        vectors = sizes.astype(np.float64)
        if place.nodes > 1 or op.collective != "all_reduce" or op.among != "tp":
            return choose(self.machine, op.collective, vectors, place)
        graph = choose_vllm(self.machine, vectors, place.ranks, eager=False)
        eager = choose_vllm(self.machine, vectors, place.ranks, eager=True)
        replayed = sizes <= self.graph_tokens * op.collective_bytes_per_token
        own = Chosen(np.where(replayed, graph.us, eager.us), graph.ways, graph.which)
        return (
            own if self.quick is None else self.quick.over(own, self.machine, vectors, place.ranks)
        )


@lru_cache(maxsize=1024)
def _ways(
    machine: Machine,
    graph_tokens: int,
    quick: QuickReduce | None,
    op: Collective,
    units: int,
    places: tuple[Place, ...],
) -> list[tuple[int, Way]]:
    """Groups that are alike ask the same."""
    library = NcclModel(machine, "everywhere", graph_tokens, quick=quick)
    chosen = [library.at_each(op, units, place) for place in places]
    slowest = max(chosen, key=lambda one: float(one.us[-1]))
    return [(first + 1, way) for first, way in slowest.runs()]


def described(place: Place) -> str:
    """Where a collective runs, for the source of its times."""
    if place.nodes == 1:
        return f"among {place.ranks} in a server"
    return (
        f"among {place.ranks} on {place.nodes} servers, {place.card_gb_per_s:.4g} GB/s of network "
        "cards a rank"
    )


def nccl_model(hardware: Hardware, graph_sizes: Sequence[int], collectives: str) -> NcclModel:
    """The library of a device."""
    machine = machine_of(hardware)
    in_pairs = machine.pair_links > 1 and collectives == "auto"
    scope = SCOPES.get(collectives, "own links" if in_pairs else "between servers")
    return NcclModel(machine, scope, max(graph_sizes, default=0))


def is_planned(op: Collective) -> bool:
    """Whether NCCL has plans for this kind of collective."""
    return op.collective in PHASES


class Servers(Struct, frozen=True, eq=False, dict=True):
    """Which server of a topology each device is in, and what joins them."""

    native: "engine.Topology"
    node_of: dict[int, int]
    reducing_network: bool

    @cached_property
    def _speeds(self) -> list[tuple[int, int]]:
        """(bytes/s, latency in ps) by link."""
        return list(self.native.link_speeds())

    def nodes(self, devices: Iterable[int]) -> list[int]:
        """The servers of some devices, in the order of their numbers."""
        return sorted({self.node_of[device] for device in devices})

    def place(self, group: Sequence[int], at_once: Collection[Sequence[int]]) -> Place:
        """Where a collective of some devices is, while those of `at_once` (itself among them) share
        the network.
        """
        nodes = self.nodes(group)
        if len(nodes) == 1:
            return Place(len(group), 1, len(group))
        speeds = self._speeds
        crossing: Counter[int] = Counter()
        for other in at_once:
            for flow in self.rails(other):
                crossing.update(self.native.route(*flow))
        leaving: Counter[int] = Counter()
        hop_ps = 0
        for flow in self.rails(group):
            links = self.native.route(*flow)
            leaving[self.node_of[flow[0]]] += min(speeds[one][0] // crossing[one] for one in links)
            hop_ps = max(hop_ps, sum(speeds[one][1] for one in links))
        fewest = min(Counter(self.node_of[device] for device in group).values())
        card = min(leaving.values()) / fewest
        hop_us = hop_ps / PS_PER_US
        return Place(len(group), len(nodes), fewest, card / 1e9, hop_us, self.reducing_network)

    def inside_bytes_per_s(self, group: Sequence[int]) -> float:
        """The slowest link between two devices of one server; inf where each has one of them."""
        speeds = self._speeds
        slowest = inf
        for members in self._by_node(group).values():
            for a, b in pairwise(members):
                rates = [speeds[one][0] for one in self.native.route(a, b)]
                slowest = min(slowest, *rates)
        return slowest

    def _by_node(self, group: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {node: [] for node in self.nodes(group)}
        for device in sorted(group):
            found[self.node_of[device]].append(device)
        return found

    def rails(self, group: Sequence[int]) -> list[tuple[int, int]]:
        """(from, to) of each rail between servers: device i of one to device i of the next; none in
        one server.
        """
        members = list(self._by_node(group).values())
        if len(members) == 1:
            return []
        after = [*members[1:], members[0]]
        return [
            flow
            for here, there in zip(members, after, strict=True)
            for flow in zip(here, there, strict=False)  # a larger server has rails to spare
        ]


def servers_of(spec: "TopologySpec", native: "engine.Topology") -> Servers | None:
    """The servers of a topology, whose groups `node0`, `node1`, ... say which devices they hold;
    None where it has no such groups, or a device is in none.
    """
    node_of: dict[int, int] = {}
    for name, devices in spec.groups.items():
        number = name.removeprefix(NODE_GROUP)
        if name != number and number.isdecimal():
            node_of |= dict.fromkeys(devices, int(number))
    if len(node_of) < spec.num_devices():
        return None
    return Servers(native, node_of, spec.reducing_network)


def ring_bytes_per_s(native: "engine.Topology", devices: Sequence[int]) -> float:
    """What a link carries of each message of a ring in the order of the devices' numbers, the
    slowest of all.
    """
    order = sorted(devices)
    crossing = Counter(
        link
        for pair in zip(order, [*order[1:], order[0]], strict=True)
        for link in native.route(*pair)
    )
    speeds = native.link_speeds()
    return min(speeds[link][0] / count for link, count in crossing.items())


def about(bytes_per_s: int, known: int) -> bool:
    """Whether links have a known rate, within a tenth."""
    return abs(bytes_per_s - known) * FITS_WITHIN <= known


def alike_and_fast(native: "engine.Topology", devices: Sequence[int], bytes_per_s: int) -> bool:
    """Whether every two of the devices are joined alike, at a rate within a tenth of the given one:
    then times that were measured on links of that rate fit them.

    Of many devices the first with all others, and neighbours, stand for all pairs.
    """
    speeds = native.link_speeds()
    pairs = (
        permutations(devices, 2)
        if len(devices) <= MOST_COMPARED
        else [*((devices[0], other) for other in devices[1:]), *pairwise(devices)]
    )
    first = None
    for pair in pairs:
        links = native.route(*pair)
        slowest = min(speeds[one][0] for one in links)
        found = (len(links), slowest, sum(speeds[one][1] for one in links))
        if first is None:
            first = found
        if found != first or not about(slowest, bytes_per_s):
            return False
    return first is not None
