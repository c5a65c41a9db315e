"""The plans that NCCL chooses between for a collective of any place and size, and their times.

Inside a server these are the measured protocols. Between servers rings, trees and reducing switches
go over the network cards of all ranks at once (one rail each), in the order of the topology:

- ring: every GPU of a server, then the next server; the vector crosses each card 2 (k - 1) / k
  times a share of 1 / cards, for k ranks;
- tree: a chain in each server, two binary trees between servers that share the vector. A server
  receives twice the vector at most, and once where there are two servers;
- NVLSTree: the switch of the server reduces and multicasts, trees between servers;
- CollNet: the switches between servers reduce too (SHARP), each byte crosses a card once;
- PAT: a binomial tree of all-gather and reduce-scatter, where every server has one rank;
- all-to-all: with PXN rows leave through the GPU on the receiver's rail, so that a card sends one
  message to each server.
"""

from collections.abc import Iterable, Iterator
from math import ceil, inf, log2

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.costs.nccl.protocols import (
    CUSTOM,
    NVLS,
    PHASES,
    Floats,
    Machine,
    Protocol,
    protocol_times,
)

CARD_SHARE = 0.94
"""Of a card's line rate, 47 of 50 GB/s of NDR (NVIDIA/nccl-tests#290: 46 to 48)."""
LL128_SHARE = 0.92
"""Of a card's rate: 120 of 128 bytes are data (NCCL, src/graph/tuning.cc)."""
LL_SHARE = 0.5
"""Of a card's rate: four of eight bytes are data."""
TREE_SHARE = 0.92
"""Of the bandwidth inside the server that trees reach (NCCL, src/graph/tuning.cc)."""
SHARP_SHARE = 0.85
"""Of the cards' rate that CollNet reaches on GPUs since H100 (NCCL, src/graph/tuning.cc)."""
RING_HOP_US = {"LL": 2.7, "LL128": 4.0, "Simple": 14.0}
TREE_HOP_US = {"LL": 5.0, "LL128": 8.5, "Simple": 28.0}
NVLS_TREE_HOP_US, COLLNET_US = 14.0, 31.0
"""What a message between servers takes beside the wire (NCCL, src/graph/tuning.cc)."""
CUSTOM_RANKS = (2, 4, 6, 8)
"""Numbers of ranks among which vLLM 0.24 takes its own all-reduces (custom_all_reduce.py); 0.33 has
16 on the nodes of one NVLink domain, too.
"""
POST_US = {"LL": 1.0, "LL128": 1.0, "Simple": 3.0}
"""The least between two messages of a ring that also crosses the network (NCCL, as above)."""
CARD_RATES = {"LL": LL_SHARE, "LL128": LL128_SHARE, "Simple": 1.0}


class Place(Struct, frozen=True):
    """Where the ranks of a collective are."""

    ranks: int
    nodes: int = 1
    per_node: int = 0
    """Ranks of the node that has the fewest; the same as `ranks` on one node."""
    card_gb_per_s: float = inf
    """What one rank's share of its node's network cards carries, at line rate, in one direction."""
    hop_us: float = 0.0
    """Latency of the route between two nodes."""
    reducing_network: bool = False
    """Whether switches between nodes reduce (SHARP)."""

    @property
    def cards_gb_per_s(self) -> float:
        """What all cards of a node carry together, by what NCCL reaches."""
        return self.per_node * self.card_gb_per_s * CARD_SHARE


class Way(Struct, frozen=True):
    """What a plan is called: an algorithm, and the protocol of its messages."""

    algorithm: str
    protocol: str = ""
    library: str = ""
    """Whose kernel it is, where it is not NCCL's."""
    over_pairs: bool = False
    """Its channels take the links of all pairs inside a server evenly; else neighbours' links."""

    @property
    def name(self) -> str:
        """As tables and sources of costs print it."""
        return " ".join(word for word in (self.library, self.algorithm, self.protocol) if word)


class Plan(Struct, frozen=True, eq=False):
    """One way to run a collective, and its microseconds by size."""

    way: Way
    us: Floats

    @property
    def name(self) -> str:
        """What the plan is called."""
        return self.way.name


class Chosen(Struct, frozen=True, eq=False):
    """The fastest plan of each size."""

    us: Floats
    ways: tuple[Way, ...]
    which: NDArray[np.intp]
    """By size, the number of its plan in `ways`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all plans that were compared."""
        return tuple(way.name for way in self.ways)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the plans that some size takes, in the order of the sizes."""
        names = self.names
        return tuple(dict.fromkeys(names[at] for at in self.which.tolist()))

    def unless(self, plan: Plan) -> "Chosen":
        """The same, but the given plan for the sizes that it takes, however long it takes."""
        taken = np.isfinite(plan.us)
        us = np.where(taken, plan.us, self.us)
        return Chosen(us, (*self.ways, plan.way), np.where(taken, len(self.ways), self.which))

    def runs(self) -> list[tuple[int, Way]]:
        """(number of the first size, plan) of each run of sizes that take the same plan."""
        changes = np.flatnonzero(np.diff(self.which, prepend=-1))
        return [(int(at), self.ways[int(self.which[at])]) for at in changes]


def choose(machine: Machine, kind: str, sizes: Floats, place: Place) -> Chosen:
    """The fastest of NCCL's plans for each size in bytes, as nccl-tests counts them: the vector of
    an all-reduce, the output of an all-gather, the input of the others.
    """
    return _fastest(plans_of(machine, kind, sizes, place))


def choose_vllm(machine: Machine, sizes: Floats, ranks: int, *, eager: bool) -> Chosen:
    """vLLM's all-reduce inside a server: its own kernels where it takes them, else NCCL."""
    takes_own = ranks in CUSTOM_RANKS
    given = tuple(one for one in machine.custom if takes_own or one.name not in CUSTOM)
    protocols = given or machine.kinds["all_reduce"]
    ways = [_of_vllm(one) for one in protocols]
    times = protocol_times(protocols, "all_reduce", sizes, ranks)
    plans_ = (Plan(way, us) for way, us in zip(ways, times, strict=True))
    chosen = _fastest(_over_links(machine, plans_))
    if not eager or not machine.custom:
        return chosen
    return Chosen(machine.eager(chosen.us, sizes), chosen.ways, chosen.which)


def _of_vllm(protocol: Protocol) -> Way:
    """Kernels of its own, or NCCL's inside a server."""
    own = protocol.name in CUSTOM
    return Way(protocol.name, library="vLLM") if own else _inside_a_server(protocol)


def plans_of(machine: Machine, kind: str, sizes: Floats, place: Place) -> list[Plan]:
    """Every plan that is possible at the place."""
    return _over_links(machine, _plans(machine, kind, sizes, place))


def plans(machine: Machine, kind: str, sizes: Floats, place: Place) -> dict[str, Floats]:
    """Microseconds of every plan that is possible at the place, by its name."""
    return {plan.name: plan.us for plan in plans_of(machine, kind, sizes, place)}


def _over_links(machine: Machine, plans_: Iterable[Plan]) -> list[Plan]:
    """The plans, which say that they take a link of each pair where the machine has them."""
    over_pairs = machine.pair_links > 1
    return [Plan(replace(plan.way, over_pairs=over_pairs), plan.us) for plan in plans_]


def _fastest(plans_: list[Plan]) -> Chosen:
    times = np.array([plan.us for plan in plans_])
    which = times.argmin(axis=0)
    us = np.take_along_axis(times, which[None], axis=0)[0]
    return Chosen(us, tuple(plan.way for plan in plans_), which)


def _plans(machine: Machine, kind: str, sizes: Floats, place: Place) -> Iterator[Plan]:
    protocols = machine.kinds[kind]
    if place.nodes == 1:
        for one in protocols:
            yield Plan(_inside_a_server(one), one.us(kind, sizes, place.ranks))
        return
    if kind == "all_to_all":
        for one in protocols:
            yield Plan(Way("PXN", one.name), _all_to_all(one, sizes, place))
        return
    protocols = _leaving(machine, protocols, place)
    for one in protocols:
        if one.name in RING_HOP_US:
            yield Plan(Way("ring", one.name), _ring(one, kind, sizes, place))
    if kind == "all_reduce":
        yield from _trees(protocols, sizes, place)
    elif place.per_node == 1:
        simple = next(one for one in protocols if one.name == "Simple")
        yield Plan(Way("PAT"), _pat(simple, kind, sizes, place))


def _leaving(
    machine: Machine, protocols: tuple[Protocol, ...], place: Place
) -> tuple[Protocol, ...]:
    """The protocols on channels that leave their servers. Where every two ranks have a link of
    their own, a ring that leaves crosses one link less in the server than a ring that closes there,
    so that there are more of them: 8 for 7 among eight.
    """
    if machine.pair_links == 1 or place.per_node == 1:
        return protocols
    return tuple(one.scaled(place.per_node / (place.per_node - 1)) for one in protocols)


def _inside_a_server(protocol: Protocol) -> Way:
    return Way(NVLS) if protocol.name == NVLS else Way("ring", protocol.name)


def _ring(protocol: Protocol, kind: str, sizes: Floats, place: Place) -> Floats:
    phases, ranks = PHASES[kind], place.ranks
    volume = sizes * (phases * (ranks - 1.0) / ranks)
    cards = place.cards_gb_per_s * CARD_RATES[protocol.name]
    rate = min(_inside(protocol, place), cards)
    inside = phases * (ranks - place.nodes) * max(protocol.message_us, POST_US[protocol.name])
    between = phases * (place.nodes - 1) * (RING_HOP_US[protocol.name] + place.hop_us)
    start = protocol.floor_us + inside + between
    return start + volume / (rate * 1e3) + protocol.buffers_us(volume, sizes / ranks)


def _trees(protocols: tuple[Protocol, ...], sizes: Floats, place: Place) -> Iterator[Plan]:
    """Plans of an all-reduce that need fewer messages one after the other than a ring."""
    levels = ceil(log2(place.nodes))
    crossings = 1 if place.nodes == 2 else 2
    switch = next((one for one in protocols if one.name == NVLS), None)
    for one in protocols:
        if one.name not in TREE_HOP_US:
            continue
        cards = place.cards_gb_per_s * CARD_RATES[one.name] / crossings
        rate = TREE_SHARE * min(_inside(one, place) / 2, cards)
        hops = 2 * levels * (TREE_HOP_US[one.name] + place.hop_us)
        start = one.floor_us + 2 * (place.per_node - 1) * one.message_us + hops
        us = start + sizes / (rate * 1e3) + one.buffers_us(sizes, 0 * sizes)
        yield Plan(Way("tree", one.name), us)
    if switch is None or place.per_node < switch.fewest_ranks:
        return
    reduced = _reduced_gb_per_s(switch, place.per_node)
    start = switch.floor_us + 2 * levels * (NVLS_TREE_HOP_US + place.hop_us)
    rate = min(TREE_SHARE * reduced, place.cards_gb_per_s / crossings)
    us = start + sizes / (rate * 1e3) + switch.buffers_us(sizes, 0 * sizes)
    yield Plan(Way("NVLSTree"), us)
    if place.reducing_network:
        rate = min(reduced, SHARP_SHARE * place.cards_gb_per_s)
        start = switch.floor_us + COLLNET_US + place.hop_us
        us = start + sizes / (rate * 1e3) + switch.buffers_us(sizes, 0 * sizes)
        yield Plan(Way("CollNet"), us)


def _reduced_gb_per_s(switch: Protocol, ranks: int) -> float:
    """GB/s of the vector that the switch of a server reduces and multicasts."""
    return switch.rate_gb_per_s(ranks) / (2.0 * (ranks - 1) / ranks)


def _pat(simple: Protocol, kind: str, sizes: Floats, place: Place) -> Floats:
    volume = sizes * ((place.ranks - 1.0) / place.ranks)
    hops = ceil(log2(place.nodes)) * (RING_HOP_US["Simple"] + place.hop_us)
    times = simple.floor_us + hops + volume / (place.cards_gb_per_s * 1e3)
    return times + simple.buffers_us(volume, sizes / place.ranks)


def _all_to_all(protocol: Protocol, sizes: Floats, place: Place) -> Floats:
    """Cards carry what other nodes get; links inside carry what peers get, and hand over to the
    rail what leaves.
    """
    ranks, each = place.ranks, place.per_node
    far = sizes * ((ranks - each) / ranks)
    near = sizes * ((each - 1.0) / ranks) + far * ((each - 1.0) / each)
    share = CARD_RATES.get(protocol.name, 1.0)
    cards = far / (place.card_gb_per_s * CARD_SHARE * share * 1e3)
    links = near / (_inside(protocol, place) * 1e3)
    messages = protocol.message_us * (ranks - 1) + RING_HOP_US[protocol.name] + place.hop_us
    own = protocol.buffers_us(near, sizes / ranks)
    return protocol.floor_us + messages + np.maximum(cards, links) + own


def _inside(protocol: Protocol, place: Place) -> float:
    """GB/s of the links in a server; one rank in each server uses none."""
    return protocol.rate_gb_per_s(place.per_node) if place.per_node > 1 else inf
