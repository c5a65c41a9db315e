"""Prices exchanges of tokens between data-parallel ranks that no ring describes: rows to experts,
broadcasts in turn.

A rank has one port of the domain's link each way, to the ranks of its node and (where there are
several) one to those of others. Tokens are spread evenly over the ranks that send; how many rows a
rank receives follows from the experts that the tokens chose, which are the same draws that load the
experts (costs/experts). An exchange lasts as long as the
 busiest port, and a latency for each round of SLOTS tokens per rank. Over several nodes, "rank"
 rows (DeepEP's
high-throughput kernels) cross the network once for each (token, node), to the rank with the
sender's number, which hands them on inside the node meanwhile; "expert" rows go straight to their
rank.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Int64, Provenance
from llmsim.costs import CostRequest, OpCost
from llmsim.costs.experts.load_sampling import (
    LayerDraws,
    SampledTable,
    each_layer,
    rank_loads,
    token_axis,
)
from llmsim.model import AllToAll, Collective, Layout
from llmsim.model.operator import Rows
from llmsim.model.parallel.expert_parallel import hit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PS_PER_S = 10**12


class Ports(Struct, frozen=True):
    """Between whom rows travel: `ranks` on `nodes`, with links (bytes/s, ps) inside a node and
    between nodes.
    """

    ranks: int
    nodes: int
    inside: tuple[int, int]
    between: tuple[int, int]

    @property
    def per_node(self) -> int:
        """Ranks of one node."""
        return self.ranks // self.nodes

    @property
    def where(self) -> str:
        """Over what, for the source of the numbers."""
        near = f"over ports of {self.inside[0] / 1e9:g} GB/s"
        return near + (
            f" in a node, {self.between[0] / 1e9:g} GB/s between {self.nodes} nodes"
            * (self.nodes > 1)
        )

    def key(self, rows: Rows) -> tuple[object, ...]:
        """What `loads` depends on besides the rows."""
        return (self.ranks, self.nodes)

    def even(self, rows: Rows, each: "Busiest") -> "Busiest":
        """What decides how long it takes, where all ranks and all nodes get as many rows."""
        return each

    def loads(self, rows: Rows, to_rank: Floats, to_node: Floats) -> "Busiest":
        """What decides how long it takes, from the rows of each rank and node (in the
        last axis).
        """
        return Busiest(to_rank.max(axis=-1), to_node.max(axis=-1))

    def rounds(self, rows: Rows, tokens: Floats) -> Floats:
        """How often a latency passes."""
        return np.ceil(tokens / self.ranks / rows.slots) if rows.slots else np.minimum(tokens, 1.0)

    def _two_stages(self, rows: Rows) -> bool:
        return rows.per == "rank" and self.nodes > 1

    def ps(self, rows: Rows, tokens: Floats, busiest: "Busiest") -> Int64:
        """ps of an exchange at so many tokens of all ranks."""
        near, far = (self.per_node - 1) / self.ranks, (self.ranks - self.per_node) / self.ranks
        two_stages = self._two_stages(rows)
        # As much leaves an average rank as reaches it, and no rank has less to receive than the
        # average at most.
        inside = busiest.rank * ((self.per_node - 1) / self.per_node if two_stages else near)
        slowest = inside * rows.row_bytes / self.inside[0]
        if self.nodes > 1:
            outside = (busiest.node / self.per_node if two_stages else busiest.rank) * far
            slowest = np.maximum(slowest, outside * rows.row_bytes / self.between[0])
        latency = (
            self.inside[1]
            if self.nodes == 1
            else self.between[1] + (self.inside[1] if two_stages else 0)
        )
        return np.asarray(
            np.ceil(slowest * PS_PER_S) + self.rounds(rows, tokens) * latency, np.int64
        )


class Busiest(Struct, frozen=True, eq=False):
    """Rows that the rank and the node with the most of them get, of their own tokens, too; on
    routes `rank` is of links (`llmsim.lowering.network.topology_all_to_all`).
    """

    rank: Floats
    node: Floats


class ChosenExchange(Ports, frozen=True, eq=False):
    """Rows that an algorithm of the engine exchanges: every block is as large as those for the rank
    that gets most, and a round of slots is a collective of its own.
    """

    durations: Callable[[Int64], Int64]
    """ps of an all-to-all in which each rank sends so many bytes, its own part included."""
    how: str

    @property
    def where(self) -> str:
        """The algorithm and its links, for the source of the numbers."""
        return self.how

    def ps(self, rows: Rows, tokens: Floats, busiest: "Busiest") -> Int64:
        """ps of an exchange at so many tokens of all ranks."""
        rounds = np.maximum(self.rounds(rows, tokens), 1.0)
        sizes = np.ceil(busiest.rank * rows.row_bytes / rounds).astype(np.int64)
        ps = rounds.astype(np.int64) * self.durations(sizes)
        return np.asarray(np.where(tokens > 0, ps, 0), np.int64)


def ports_of(
    layout: Layout, op: Collective, nodes: int, inside: tuple[int, int], between: tuple[int, int]
) -> Ports:
    """The ports of an exchange. InputError where nodes have unequal numbers of ranks."""
    check_even(layout, op, nodes)
    return Ports(layout.ranks(op.among), nodes, inside, between)


def check_even(layout: Layout, op: Collective, nodes: int) -> None:
    """InputError where nodes have unequal numbers of the ranks of an exchange."""
    ranks = layout.ranks(op.among)
    if ranks % nodes:
        raise InputError(
            f"{ranks} ranks exchange tokens on {nodes} nodes; all2all_backend {layout.exchange} "
            "needs as many on each"
        )


class Exchanges:
    """Prices a domain's all-to-alls over the tokens of all ranks: even ones, or drawn as the
    experts' loads are.

    What goes to the experts comes back: both ways share what was drawn.
    """

    def __init__(self, request: CostRequest) -> None:
        self._request = request
        self._drawn: dict[tuple[object, ...], Busiest] = {}

    def cost(self, op: AllToAll, ports: Ports) -> OpCost:
        """Of one execution, by the tokens of all ranks."""
        rows, last = op.rows, self._request.counts(op.feature)
        assert rows is not None, "an all-to-all says what it sends"
        counts = np.arange(last + 1, dtype=np.float64)
        ps = ports.ps(rows, counts, ports.even(rows, even_rows(rows, op, ports, counts)))
        ps[0] = 0
        return OpCost(
            name=op.name,
            part=op.part,
            repeat=op.repeat,
            feature="gathered",
            ps=ps,
            provenance=np.full(last + 1, Provenance.ANALYTIC, np.uint8),
            source=f"{self._request.layout.exchange} {op.name} {ports.where}",
            sampled=None
            if self._request.expert_routing.balanced
            else self._table(op, rows, ports, last),
        )

    def _table(self, op: AllToAll, rows: Rows, ports: Ports, last: int) -> SampledTable:
        key = (
            rows.per,
            op.repeat,
            op.experts_total,
            op.topk,
            op.expert_groups,
            last,
            ports.key(rows),
        )
        if key not in self._drawn:
            self._drawn[key] = self._draw(op, rows, ports, last)
        axis = token_axis(last)
        ps = ports.ps(rows, axis.astype(np.float64), self._drawn[key])
        routing = self._request.expert_routing
        return SampledTable(axis, ps, routing.seed, int(Provenance.ANALYTIC), routing.in_order)

    def _draw(self, op: AllToAll, rows: Rows, ports: Ports, last: int) -> Busiest:
        """Shapes (layers, draws, counts of tokens)."""
        routing, placement = self._request.expert_routing, self._request.expert_placement
        draws = each_layer(routing, op, last, placement)
        found = [
            ports.loads(rows, *drawn_rows(rows, one, ports, token_axis(last), op)) for one in draws
        ]
        return Busiest(np.stack([one.rank for one in found]), np.stack([one.node for one in found]))


def even_rows(rows: Rows, op: AllToAll, ports: Ports, tokens: Floats) -> Busiest:
    """Expected rows under an even router, at each count of tokens."""
    if rows.per == "expert":
        each = op.topk / ports.ranks * tokens
        return Busiest(each, each * ports.per_node)
    held = op.experts_total // ports.ranks
    return Busiest(tokens * hit(op, held), tokens * hit(op, held * ports.per_node))


def drawn_rows(
    rows: Rows, draws: LayerDraws, ports: Ports, tokens: Ints, op: AllToAll
) -> tuple[Floats, Floats]:
    """Rows for each rank and node in the draws of one layer, shapes (draws, counts of tokens, ranks
    or nodes).
    """
    if rows.per == "expert":
        pairs, _ = rank_loads(draws.counts, draws.slots, ports.ranks)
        return pairs, pairs.reshape(*pairs.shape[:-1], ports.nodes, -1).sum(axis=-1)
    expert, _ = draws.slots
    copies, each = np.bincount(expert, minlength=draws.counts.shape[-1])[expert], tokens[:, None]
    taken = np.minimum(1.0, draws.counts[..., expert] / copies / each)
    group = expert // (draws.counts.shape[-1] // len(draws.of_groups))
    missed = [
        _missed_groups(taken, places, group, draws.of_groups, op)
        for places in (ports.ranks, ports.nodes)
    ]
    return each * (1.0 - missed[0]), each * (1.0 - missed[1])


def _missed_groups(taken: Floats, places: int, group: Ints, likely: Floats, op: AllToAll) -> Floats:
    """Share of the tokens that choose none of a place's experts, where they choose groups of
    experts first.

    Of a group that the place has experts of, a token misses those that it did not choose, and of
    the others those that choose none of its experts. Groups exclude each other like experts do.
    """
    chosen = op.expert_groups[1]
    if chosen == len(likely):
        return _missed(taken, places, op.topk, taken.shape[-1])
    there = group.reshape(places, -1)
    apart, none = np.ones((*taken.shape[:-1], places)), np.ones(places)
    share = np.zeros(places)
    for number, probability in enumerate(likely.tolist()):
        mine = group == number
        there_taken = np.where(mine, taken / max(probability, 1e-12), 0.0).clip(0.0, 1.0)
        within = _missed(there_taken, places, op.topk, taken.shape[-1] * chosen // len(likely))
        has = (there == number).any(axis=1)
        apart *= np.where(has, 1.0 - probability + probability * within, 1.0)
        none *= np.where(has, 1.0 - probability, 1.0)
        share += has * probability / chosen
    sampled = _none_of(share, len(likely), chosen)
    return np.asarray(
        apart * np.divide(sampled, none, out=np.ones_like(none), where=none > sampled)
    )


def _missed(taken: Floats, places: int, topk: int, total: int) -> Floats:
    """Share of the tokens that choose none of a place's experts, each taken by a given share of
    them, of `total`.

    A token takes `topk` different experts, so that choices exclude each other: the share is at most
    what independent ones would give. Successive draws without replacement give it exactly where all
    experts are alike; the lower counts.
    """
    mine = taken.reshape(*taken.shape[:-1], places, -1)
    apart, share = (1.0 - mine).prod(axis=-1), mine.sum(axis=-1) / topk
    return np.asarray(np.minimum(apart, _none_of(share, total, topk)))


def _none_of(share: Floats, total: int, draws: int) -> Floats:
    """Probability that none of so many draws without replacement takes what has a share of all that
    is drawn.
    """
    missed = np.ones_like(share)
    for before in range(draws):
        missed *= np.maximum(0.0, 1.0 - share * total / (total - before))
    return missed
