"""Prices exchanges of tokens between data-parallel ranks that no ring describes: rows to experts, broadcasts in turn.

A rank has one port of the domain's link each way, to the ranks of its node and (where there are several) one to those
of others. Tokens are spread evenly over the ranks that send; how many rows a rank receives follows from the experts
that the tokens chose, which are the same draws that load the experts (costs/expert_loads.py). An exchange lasts as long
as the busiest port, and a latency for each round of SLOTS tokens per rank. Over several nodes, "rank" rows (DeepEP's
high-throughput kernels) cross the network once for each (token, node), to the rank with the sender's number, which
hands them on inside the node meanwhile; "expert" rows go straight to their rank.
"""

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.config.errors import InputError
from llmsim.core import Int64, Provenance
from llmsim.costs import CostRequest, OpCost
from llmsim.costs.expert_loads import DrawnTable, each_draw, empty_table, rank_loads, token_axis
from llmsim.model import Layout, Operator
from llmsim.model.rank import Rows

if TYPE_CHECKING:
    from llmsim.lowering.collectives import DomainLinks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PS_PER_S = 10**12


@dataclass(frozen=True)
class Ports:
    """Between whom rows travel: `ranks` on `nodes`, with links (bytes/s, ps) inside a node and between nodes."""

    ranks: int
    nodes: int
    inside: tuple[int, int]
    between: tuple[int, int]

    @property
    def per_node(self) -> int:
        """Ranks of one node."""
        return self.ranks // self.nodes

    def ps(self, rows: Rows, tokens: Floats, to_rank: Floats, to_node: Floats) -> Int64:
        """ps of an exchange; rows for each rank (..., ranks) and node (..., nodes), of their own tokens, too."""
        near, far = (self.per_node - 1) / self.ranks, (self.ranks - self.per_node) / self.ranks
        two_stages = rows.per == "rank" and self.nodes > 1
        inside = to_rank * ((self.per_node - 1) / self.per_node if two_stages else near)
        outside = np.zeros_like(inside)
        if self.nodes > 1:
            outside = np.repeat(to_node / self.per_node, self.per_node, axis=-1) if two_stages else to_rank
            outside = outside * far
        busiest = np.zeros(inside.shape[:-1])
        for count, (bytes_per_s, _) in ((inside, self.inside), (outside, self.between)):
            # As much leaves an average rank as reaches it, and no rank has less to receive than the average at most.
            busiest = np.maximum(busiest, count.max(axis=-1) * rows.row_bytes / bytes_per_s)
        rounds = np.ceil(tokens / self.ranks / rows.slots) if rows.slots else np.minimum(tokens, 1.0)
        latency = self.inside[1] if self.nodes == 1 else self.between[1] + (self.inside[1] if two_stages else 0)
        return np.asarray(np.ceil(busiest * PS_PER_S) + rounds * latency, np.int64)


def ports_of(layout: Layout, op: Operator, nodes: int, inside: tuple[int, int], between: tuple[int, int]) -> Ports:
    """The ports of an exchange. InputError where nodes have unequal numbers of ranks."""
    ranks = layout.ranks(op.among)
    if ranks % nodes:
        raise InputError(
            f"{ranks} ranks exchange tokens on {nodes} nodes; all2all_backend {layout.exchange} needs as many on each"
        )
    return Ports(ranks, nodes, inside, between)


def exchange_cost(op: Operator, request: CostRequest, ports: Ports) -> OpCost:
    """Cost of an all-to-all over the tokens of all ranks: an even one, or drawn as the experts' loads are."""
    rows, last = op.rows, request.counts(op.feature)
    assert rows is not None, "an all-to-all says what it sends"
    counts = np.arange(last + 1, dtype=np.float64)
    ps = ports.ps(rows, counts, *even_rows(rows, op, ports, counts))
    ps[0] = 0
    how = f"{request.layout.exchange} {op.name} over ports of {ports.inside[0] / 1e9:g} GB/s"
    if ports.nodes > 1:
        how += f" in a node, {ports.between[0] / 1e9:g} GB/s between {ports.nodes} nodes"
    return OpCost(
        name=op.name,
        part=op.part,
        repeat=op.repeat,
        feature="gathered",
        ps=ps,
        provenance=np.full(last + 1, Provenance.ANALYTIC, np.uint8),
        source=how,
        drawn=None if request.expert_routing.balanced else _drawn(op, rows, ports, request, last),
    )


def even_rows(rows: Rows, op: Operator, ports: Ports, tokens: Floats) -> tuple[Floats, Floats]:
    """Expected rows for each rank and node under an even router, shapes (..., 1 port stands for all)."""
    if rows.per == "expert":
        each = op.topk / ports.ranks * tokens
        return np.repeat(each[..., None], ports.ranks, axis=-1), np.repeat(
            each[..., None] * ports.per_node, ports.nodes, axis=-1
        )
    total = op.experts_total

    def hit(experts: int) -> float:
        return 1 - comb(total - experts, op.topk) / comb(total, op.topk)

    held = total // ports.ranks
    return (
        np.repeat((tokens * hit(held))[..., None], ports.ranks, axis=-1),
        np.repeat((tokens * hit(held * ports.per_node))[..., None], ports.nodes, axis=-1),
    )


def drawn_rows(rows: Rows, counts: Ints, slots: tuple[Ints, Ints], ports: Ports, tokens: int) -> tuple[Floats, Floats]:
    """Rows for each rank and node, from the tokens of each expert, shape (draws, experts)."""
    pairs, _ = rank_loads(counts, slots, ports.ranks)
    if rows.per == "expert":
        return pairs, pairs.reshape(*pairs.shape[:-1], ports.nodes, -1).sum(axis=-1)
    expert, _ = slots
    taken = np.minimum(1.0, counts[..., expert] / np.bincount(expert, minlength=counts.shape[-1])[expert] / tokens)
    each = float(counts.sum(axis=-1).flat[0]) / tokens
    return (
        tokens * (1.0 - _missed(taken, ports.ranks, each)),
        tokens * (1.0 - _missed(taken, ports.nodes, each)),
    )


def _missed(taken: Floats, places: int, topk: float) -> Floats:
    """Share of the tokens that choose none of a place's experts, each taken by a given share of the tokens.

    A token takes `topk` different experts, so that choices exclude each other: the share is at most what independent
    ones would give. Successive draws without replacement give it exactly where all experts are alike; the lower counts.
    """
    mine = taken.reshape(*taken.shape[:-1], places, -1)
    apart, share, total = (1.0 - mine).prod(axis=-1), mine.sum(axis=-1) / max(topk, 1.0), taken.shape[-1]
    drawn = np.ones_like(apart)
    for before in range(round(topk)):
        drawn *= np.maximum(0.0, 1.0 - share * total / (total - before))
    return np.asarray(np.minimum(apart, drawn))


def _drawn(op: Operator, rows: Rows, ports: Ports, request: CostRequest, last: int) -> DrawnTable:
    routing, placement = request.expert_routing, request.expert_placement
    ps = empty_table(routing, op.repeat, op.experts_total, last)
    draws = each_draw(routing, op.repeat, op.experts_total, op.topk, last, placement)
    for layer, index, tokens, counts, slots in draws:
        to_rank, to_node = drawn_rows(rows, counts, slots, ports, tokens)
        ps[layer, :, index] = ports.ps(rows, np.array(float(tokens)), to_rank, to_node)
    return DrawnTable(token_axis(last), ps, routing.seed, int(Provenance.ANALYTIC))


def broadcasts_ps(op: Operator, sizes: Int64, links: "DomainLinks") -> Int64:
    """Each rank's share in turn, along a chain that passes pieces on as they come."""
    ranks, (bytes_per_s, latency_ps) = links.layout.ranks(op.among), links.link(op)
    share = -(-sizes // ranks)
    return np.asarray(
        ranks * (np.ceil(share / bytes_per_s * PS_PER_S).astype(np.int64) + (ranks - 1) * latency_ps), np.int64
    )
