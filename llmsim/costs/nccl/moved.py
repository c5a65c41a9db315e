"""What each of NCCL's plans moves: between whom, and which part of the vector.

A plan is a list of parts that start together. Every flow of a part carries the same share of the
vector, as nccl-tests counts it. `k` ranks are on `n` servers, with `p` ranks on each:

- ring: all ranks of a server, then the next server, on p channels that begin at different ranks. A
  flow to the next server carries one channel, neighbours inside a server all but one;
- tree: two binary trees of the servers, each for half of the vector, by p channels. Inside a server
  channels are chains, up and down;
- NVLS, NVLSTree and CollNet: a rank sends its part of all of the vector up to the switch, and what
  it has reduced once more for the switch to multicast: 1 + 1 / p of the vector. A ring of
  neighbours loads the ranks' links as much;
- CollNet between servers: up to the switches and down again, by p cards;
- PAT: a binomial tree for each rank, whose farthest messages are sent first (Jeaugey, "PAT: a new
  algorithm for all-gather and reduce-scatter operations at scale", 2025);
- all-to-all with PXN: a row for another server first goes to the rank on the receiver's rail;
- vLLM's one-shot all-reduce sends the vector to all others, its two-shot one and its quick one a
  part to each, twice.

Where every two ranks of a server have a link of their own, many channels take all of these links.

LL and LL128 send flags beside the data. The quick all-reduce quantises blocks of 32 numbers, and
sends a scale of 16 bits with each.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations

from msgspec import Struct

from llmsim.costs.nccl.plans import Way
from llmsim.costs.nccl.protocols import MULTIMEM, NVLS, ONE_SHOT, PHASES, QUICK, TWO_SHOT

Pair = tuple[int, int]
Server = Sequence[int]
"""Its ranks, in the order of their rails."""
WIRE = {
    "LL": Fraction(2),
    "LL128": Fraction(16, 15),
    "INT8": Fraction(17, 32),
    "INT6": Fraction(13, 32),
    "INT4": Fraction(9, 32),
    "INT3": Fraction(7, 32),
}
"""Bytes on the wire for one of data; 1 elsewhere."""


class Part(Struct, frozen=True):
    """Flows of equal bytes."""

    flows: tuple[Pair, ...]
    """(sender, receiver)."""
    share: Fraction
    """Of the vector, that each flow carries."""


def moved(way: Way, kind: str, servers: Sequence[Server]) -> tuple[Part, ...]:
    """The parts of a collective whose ranks are on these servers, by the plan that was chosen."""
    wire = WIRE.get(way.protocol, Fraction(1))
    shares: dict[Pair, Fraction] = {}
    for flow, share in _flows(way.algorithm, kind, servers):
        shares[flow] = shares.get(flow, Fraction(0)) + share * wire
    if way.over_pairs:
        shares = _over_pairs(shares, servers)
    by_share: dict[Fraction, list[Pair]] = {}
    for flow, share in shares.items():
        by_share.setdefault(share, []).append(flow)
    return tuple(Part(tuple(flows), share) for share, flows in by_share.items())


def _over_pairs(shares: dict[Pair, Fraction], servers: Sequence[Server]) -> dict[Pair, Fraction]:
    """What is sent inside each server, over the links of all its pairs evenly."""
    server_of = {rank: at for at, server in enumerate(servers) for rank in server}
    spread = {}
    inside = [Fraction(0)] * len(servers)
    for (sender, receiver), share in shares.items():
        if server_of[sender] == server_of[receiver]:
            inside[server_of[sender]] += share
        else:
            spread[sender, receiver] = share
    for server, share in zip(servers, inside, strict=True):
        pairs = list(permutations(server, 2)) if share else []
        spread |= dict.fromkeys(pairs, share / len(pairs)) if pairs else {}
    return spread


def together(collectives: Iterable[tuple[Part, ...]]) -> tuple[Part, ...]:
    """The parts of collectives that run at once."""
    flows: dict[Fraction, list[Pair]] = {}
    for parts in collectives:
        for part in parts:
            flows.setdefault(part.share, []).extend(part.flows)
    return tuple(Part(tuple(pairs), share) for share, pairs in flows.items())


def _flows(algorithm: str, kind: str, servers: Sequence[Server]) -> Iterator[tuple[Pair, Fraction]]:
    ranks = sum(len(server) for server in servers)
    if algorithm in (ONE_SHOT, TWO_SHOT, QUICK):
        share = Fraction(1) if algorithm == ONE_SHOT else Fraction(2, ranks)
        yield from ((pair, share) for pair in permutations(servers[0], 2))
    elif algorithm in (NVLS, MULTIMEM, "NVLSTree", "CollNet"):
        yield from _reduced_by_switches(servers)
        if algorithm == "NVLSTree":
            yield from _trees(servers)
        elif algorithm == "CollNet":
            yield from _rails(servers, Fraction(1))
    elif algorithm == "tree":
        yield from _chains(servers)
        yield from _trees(servers)
    elif algorithm == "PAT":
        for (sender, receiver), share in _binomial([server[0] for server in servers]):
            gathers = kind == "all_gather"
            yield (sender, receiver) if gathers else (receiver, sender), share
    elif algorithm == "PXN" or kind == "all_to_all":
        yield from _exchange(servers, ranks)
    else:
        volume = PHASES[kind] * Fraction(ranks - 1, ranks)
        yield from _rails(servers, volume)
        yield from _neighbours(servers, volume)


def _per_server(servers: Sequence[Server]) -> int:
    """Channels between servers: ranks of the server that has the fewest."""
    return min(len(server) for server in servers)


def _rails(servers: Sequence[Server], volume: Fraction) -> Iterator[tuple[Pair, Fraction]]:
    """From each server to the next, on every rail."""
    if len(servers) == 1:
        return
    channels = _per_server(servers)
    for here, there in zip(servers, [*servers[1:], servers[0]], strict=True):
        yield from ((pair, volume / channels) for pair in zip(here, there, strict=False))


def _ring(server: Server) -> list[Pair]:
    if len(server) == 1:
        return []
    return list(zip(server, [*server[1:], server[0]], strict=True))


def _neighbours(servers: Sequence[Server], volume: Fraction) -> Iterator[tuple[Pair, Fraction]]:
    """Of the ring, whose channels leave a server behind their last rank there."""
    alone = len(servers) == 1
    for server in servers:
        crossed = volume if alone else volume * Fraction(len(server) - 1, len(server))
        yield from ((pair, crossed) for pair in _ring(server))


def _chains(servers: Sequence[Server]) -> Iterator[tuple[Pair, Fraction]]:
    for server in servers:
        share = Fraction(len(server) - 1, len(server))
        for a, b in _ring(server):
            yield (a, b), share
            yield (b, a), share


def _reduced_by_switches(servers: Sequence[Server]) -> Iterator[tuple[Pair, Fraction]]:
    for server in servers:
        share = 1 + Fraction(1, len(server))
        yield from ((pair, share) for pair in _ring(server))


def _trees(servers: Sequence[Server]) -> Iterator[tuple[Pair, Fraction]]:
    """Up and down the edges of both trees, on every rail."""
    number = len(servers)
    channels = _per_server(servers)
    second = servers[::-1] if number % 2 == 0 else [*servers[1:], servers[0]]
    for order in (servers, second):  # a server that others hang on in one is a leaf of the other
        for at in range(1, number):
            for a, b in zip(order[at], order[parent_of(at, number)], strict=False):
                yield (a, b), Fraction(1, 2 * channels)
                yield (b, a), Fraction(1, 2 * channels)


def parent_of(at: int, number: int) -> int:
    """The parent of a node that is not the root, in the binary tree whose leaves are odd."""
    low = at & -at
    parent = (at ^ low) | (low << 1)
    return parent if parent < number else at ^ low


def _binomial(ranks: Sequence[int]) -> Iterator[tuple[Pair, Fraction]]:
    number = len(ranks)
    distance = 1
    while distance < number:
        blocks = (number - 1 + distance) // (2 * distance)
        for at, rank in enumerate(ranks):
            yield (rank, ranks[(at + distance) % number]), Fraction(blocks, number)
        distance *= 2


def _exchange(servers: Sequence[Server], ranks: int) -> Iterator[tuple[Pair, Fraction]]:
    """Rows to every rank. Those for a rank of another server go over the rail of the receiver."""
    row = Fraction(1, ranks)
    channels = _per_server(servers)
    for here in servers:
        yield from ((pair, row) for pair in permutations(here, 2))
        for there in servers:
            if there is here:
                continue
            for at, receiver in enumerate(there):
                relay = here[at % channels]
                yield from (((sender, relay), row) for sender in here if sender != relay)
                yield (relay, receiver), row * len(here)
