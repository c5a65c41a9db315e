"""Prices exchanges of rows and broadcasts on the routes of a topology: by the link that has the
most to carry.

As on nominal links (exchange.py), where a rank's ports are the only links: there the two agree.
Every sender has an even share of the tokens; a link carries the rows of all senders and receivers
whose route crosses it, and the exchange lasts as long as the link that needs longest for its rows,
and the longest route's latency for each round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from llmsim.core import Int64
from llmsim.lowering.network.all_to_all import PS_PER_S, Busiest, Floats, Ports
from llmsim.model.operator import Rows

if TYPE_CHECKING:
    from llmsim.lowering.network.topology import Routes

Pair = tuple[int, int]
"""Places of a sender and a receiver among the ranks."""


class Crossed(Struct, frozen=True, eq=False):
    """The links that an exchange crosses, in the first axis."""

    by_rank: Floats
    """How often a row of each rank crosses the link."""
    by_node: Floats
    """The same of each node."""
    bytes_per_s: Floats
    queued: Floats
    """Flows in the queue of a switch that the link leaves; 0 for a link that leaves a device."""


class RoutedPorts(Ports, frozen=True, eq=False, dict=True):
    """Ranks that exchange rows over a topology; `inside` and `between` have the slowest link and
    longest latency.
    """

    routes: Routes
    runs: tuple[tuple[int, ...], ...]
    """Devices by rank of each exchange that runs at the same time."""

    @property
    def where(self) -> str:
        """Over what, for the source of the numbers."""
        slowest = min(self.inside[0], self.between[0])
        return f"over routes of {self.routes.placed.spec.name}, slowest link {slowest / 1e9:g} GB/s"

    def key(self, rows: Rows) -> tuple[object, ...]:
        """What `loads` depends on besides the rows."""
        return (self.runs, self.nodes, rows.back, rows.row_bytes)

    def even(self, rows: Rows, each: Busiest) -> Busiest:
        """Seconds that the busiest link needs, where all ranks and all nodes get as many rows."""
        links = self._by_link(rows)
        by_rank, by_node = links.by_rank, links.by_node
        carried = np.multiply.outer(each.rank, by_rank.sum(axis=1)) + np.multiply.outer(
            each.node, by_node.sum(axis=1)
        )
        return Busiest(self._longest(carried * rows.row_bytes, links), each.node)

    def loads(self, rows: Rows, to_rank: Floats, to_node: Floats) -> Busiest:
        """Seconds that the busiest link needs, from the rows of each rank and node."""
        links = self._by_link(rows)
        carried = to_rank @ links.by_rank.T + to_node @ links.by_node.T
        return Busiest(self._longest(carried * rows.row_bytes, links), to_node.max(axis=-1))

    def _longest(self, num_bytes: Floats, links: Crossed) -> Floats:
        """Seconds that the busiest link needs for its bytes (in the last axis). What bursts leave
        beyond a switch's buffer passes at a part of the link's speed.
        """
        seconds = num_bytes / links.bytes_per_s
        incast = self.routes.placed.incast
        if incast is not None:
            bursts = np.minimum(num_bytes, links.queued * incast.burst_bytes)
            beyond = np.maximum(bursts - incast.buffer_bytes, 0)
            lost = beyond * (100 / incast.efficiency_percent - 1)
            seconds = seconds * (1 + lost / np.maximum(bursts, 1))
        return np.asarray(seconds.max(axis=-1))

    def ps(self, rows: Rows, tokens: Floats, busiest: Busiest) -> Int64:
        """ps of an exchange at so many tokens of all ranks."""
        latency = self.between[1] if self.nodes > 1 else self.inside[1]
        if self._two_stages(rows):
            latency += self.inside[1]
        return np.asarray(
            np.ceil(busiest.rank * PS_PER_S) + self.rounds(rows, tokens) * latency, np.int64
        )

    def _by_link(self, rows: Rows) -> Crossed:
        """The links, and what crosses them."""
        return self._staged[rows.back] if self._two_stages(rows) else self._straight[rows.back]

    @cached_property
    def _straight(self) -> tuple[Crossed, ...]:
        """Every sender sends its share of a rank's rows there; to the experts, and back."""
        pairs = [(i, j) for i in range(self.ranks) for j in range(self.ranks) if i != j]
        return tuple(self._table(pairs, self.ranks, [], back=back) for back in (False, True))

    @cached_property
    def _staged(self) -> tuple[Crossed, ...]:
        """Rows cross to the rank with the sender's number on the other node, and are handed on
        inside it.
        """
        each = self.per_node
        near: list[Pair] = []
        far: list[Pair] = []
        for rank in range(self.ranks):
            own, place = divmod(rank, each)
            inside = range(own * each, (own + 1) * each)
            near += [(rank, other) for other in inside if other != rank]
            far += [(rank, node * each + place) for node in range(self.nodes) if node != own]
        return tuple(self._table(near, each, far, back=back) for back in (False, True))

    def _table(
        self, pairs: Sequence[Pair], senders: int, far: Sequence[Pair], *, back: bool
    ) -> Crossed:
        """Of `pairs` each sender has one of `senders` shares of the receiver's rows; of `far` a
        share of its node's.
        """
        counts: Counter[tuple[int, int]] = Counter()
        flows: Counter[int] = Counter()
        for devices in self.runs:
            for columns, some in ((0, pairs), (self.ranks, far)):
                for i, j in some:
                    column = j if columns == 0 else columns + j // self.per_node
                    a, b = (devices[j], devices[i]) if back else (devices[i], devices[j])
                    route = self.routes.native.route(a, b)
                    counts.update((link, column) for link in route)
                    flows.update(route)
        links = {link: at for at, link in enumerate(sorted({link for link, _ in counts}))}
        table = np.zeros((len(links), self.ranks + self.nodes + 2))
        for (link, column), crossing in counts.items():
            table[links[link], column] = crossing / (senders if column < self.ranks else self.ranks)
        for link, at in links.items():
            table[at, -2] = self.routes.speeds[link][0]
            table[at, -1] = flows[link] if link in self.routes.queues else 0
        table = np.unique(table, axis=0)  # many links carry the same
        return Crossed(
            table[:, : self.ranks], table[:, self.ranks : -2], table[:, -2], table[:, -1]
        )


def routed_ports(routes: Routes, runs: Sequence[Sequence[int]], nodes: int) -> RoutedPorts:
    """The exchanges between the devices of each run, which are on so many nodes, in order and
    evenly.
    """
    ranks = len(runs[0])
    pairs = _pairs_by_nearness(runs, ranks // nodes)
    inside, between = _slowest(routes, pairs[True]), _slowest(routes, pairs[False])
    rate = min(one for one in (inside[0], between[0]) if one)
    inside, between = ((one[0] or rate, one[1]) for one in (inside, between))
    devices = tuple(tuple(run) for run in runs)
    return RoutedPorts(ranks, nodes, inside, between, routes, devices)


def _pairs_by_nearness(
    runs: Sequence[Sequence[int]], each: int
) -> Mapping[bool, list[tuple[int, int]]]:
    """Ordered pairs of devices of a run, by whether one of the nodes with `each` devices has
    both.
    """
    pairs: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for devices in runs:
        for i, j in permutations(range(len(devices)), 2):
            pairs[i // each == j // each].append((devices[i], devices[j]))
    return pairs


def _slowest(routes: Routes, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The least rate of all links, bytes per second, and the longest latency of a route, ps."""
    hops = [[routes.speeds[link] for link in routes.native.route(*pair)] for pair in pairs]
    if not hops:
        return 0, 0
    least_rate = min(rate for route in hops for rate, _ in route)
    longest_ps = max(sum(ps for _, ps in route) for route in hops)
    return least_rate, longest_ps
