"""Draws which experts the tokens of a step load, places experts on ranks, and prices the slowest rank, before a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.costs.expert_routing import ExpertRouting, Floats

if TYPE_CHECKING:
    from llmsim.costs.light import Light
    from llmsim.model import Operator

Ints = NDArray[np.int64]
Price = Callable[[Floats, Floats], Floats]
"""(token, expert) pairs of a rank, experts that they touch -> microseconds; arrays of one shape."""

DRAWS = 16
"""Samples for each layer and token count; a step takes one of them per layer by a counter."""
ONE_BY_ONE = 16
"""Up to so many tokens every token chooses its experts for itself; more are drawn together."""


@dataclass(frozen=True, eq=False)
class DrawnTable:
    """The slowest rank's time of the experts: ps [layer, draw, token count], linear between `tokens`."""

    tokens: Int64
    ps: Int64
    seed: int
    provenance: int


@dataclass(frozen=True)
class Placement:
    """Which rank holds which expert. `redundant` copies go to the experts with the highest load (vLLM's EPLB)."""

    ranks: int = 1
    redundant: int = 0
    balanced: bool = False
    """Experts are packed by their load (EPLB); else in the order of `strategy`."""
    strategy: str = "linear"


def token_axis(last: int) -> Int64:
    """Two points per doubling up to `last` tokens."""
    points = {1, last}
    value = 2
    while value < last:
        points |= {value, min(value + value // 2, last)}
        value *= 2
    return np.array(sorted(points), dtype=np.int64)


def draw_counts(popularity: Floats, topk: int, tokens: int, draws: int, rng: np.random.Generator) -> Ints:
    """Tokens that each expert gets, shape (draws, experts): each token takes `topk` different experts.

    Few tokens choose one by one (the Gumbel trick: successive sampling without replacement); for many, the probability
    that a token takes an expert is 1 - exp(-t popularity) with t such that the sum is topk: successive sampling in the
    limit of many experts; counts are multinomial, at most one per token.
    """
    experts = len(popularity)
    if tokens <= ONE_BY_ONE:
        with np.errstate(divide="ignore"):
            keys = np.log(popularity) + rng.gumbel(size=(draws, tokens, experts))
        chosen = np.argpartition(-keys, topk - 1, axis=2)[:, :, :topk].reshape(draws, -1)
        counts = np.zeros((draws, experts), dtype=np.int64)
        np.add.at(counts, (np.arange(draws)[:, None], chosen), 1)
        return counts
    inclusion = inclusion_probability(popularity, topk)
    drawn = rng.multinomial(tokens * topk, inclusion / inclusion.sum(), size=draws)
    return np.asarray(np.minimum(drawn, tokens), dtype=np.int64)


def inclusion_probability(popularity: Floats, topk: int) -> Floats:
    """Of each expert, for one token; their sum is topk (at most the number of experts that can be chosen at all)."""
    topk = min(topk, int(np.count_nonzero(popularity)))
    if topk == np.count_nonzero(popularity):
        return np.asarray((popularity > 0).astype(np.float64))
    low, high = 0.0, 1.0
    while np.sum(-np.expm1(-high * popularity)) < topk:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.sum(-np.expm1(-middle * popularity)) < topk else (low, middle)
    return np.asarray(-np.expm1(-high * popularity))


def in_turn(experts: int, topk: int, tokens: int) -> Ints:
    """Round robin: token t takes the experts t * topk, t * topk + 1, ...; shape (1, experts)."""
    whole, rest = divmod(tokens * topk, experts)
    return (whole + (np.arange(experts) < rest)).astype(np.int64)[None]


def place(popularity: Floats, placement: Placement) -> tuple[Ints, Ints]:
    """(expert, copy number) of every slot, rank after rank, each with the same number of slots."""
    experts = len(popularity)
    copies = np.ones(experts, dtype=np.int64)
    for _ in range(placement.redundant):
        copies[int(np.argmax(popularity / copies))] += 1
    slots = [(expert, copy) for expert in range(experts) for copy in range(copies[expert])]
    per_rank = len(slots) // placement.ranks
    if placement.balanced or placement.redundant:
        slots = _packed(slots, popularity / copies, placement.ranks, per_rank)
    elif placement.strategy == "round_robin":
        slots = [slots[rank + placement.ranks * i] for rank in range(placement.ranks) for i in range(per_rank)]
    array = np.array(slots, dtype=np.int64)
    return array[:, 0], array[:, 1]


def _packed(slots: list[tuple[int, int]], load: Floats, ranks: int, per_rank: int) -> list[tuple[int, int]]:
    """The fullest slot first, each to the rank with the least load that has room (EPLB's balanced packing)."""
    held: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    sums = np.zeros(ranks)
    for slot in sorted(slots, key=lambda slot: (-load[slot[0]], slot)):
        open_ranks = [rank for rank in range(ranks) if len(held[rank]) < per_rank]
        rank = min(open_ranks, key=lambda rank: (sums[rank], rank))
        held[rank].append(slot)
        sums[rank] += load[slot[0]]
    return [slot for rank in held for slot in rank]


def rank_loads(counts: Ints, slots: tuple[Ints, Ints], ranks: int) -> tuple[Floats, Floats]:
    """(pairs, touched experts) of every rank, shapes (..., ranks); the copies of an expert share its tokens evenly."""
    expert, copy = slots
    copies = np.bincount(expert, minlength=counts.shape[-1])
    tokens = counts[..., expert]
    whole, rest = np.divmod(tokens, copies[expert])
    mine = whole + (copy < rest)
    shape = (*counts.shape[:-1], ranks, -1)
    return mine.reshape(shape).sum(axis=-1).astype(np.float64), (mine > 0).reshape(shape).sum(axis=-1).astype(
        np.float64
    )


def curve_price(op: Operator, ps: Int64, light: Light | None) -> Price:
    """From the times of evenly loaded ranks: those at as many pairs, times the ratio of the two rooflines.

    At T tokens a rank with its share of the experts has T topk local / total pairs on the experts that T random tokens
    touch; with other touched experts the bytes of their weights differ, the operations do not.
    """
    us = ps / 1e6
    counts = np.arange(len(us), dtype=np.float64)
    slope = max(0.0, float(us[-1] - us[-2])) if len(us) > 2 else 0.0
    tokens_per_pair = op.experts_total / (op.topk * op.experts_local)
    expert_bytes = op.weight_bytes / op.experts_local
    pair_flops = op.flops_per_token * tokens_per_pair
    peak = light.peak(op.weight_dtype) if light is not None else 0

    def work(pairs: Floats, touched: Floats) -> Floats:
        assert light is not None, "the caller looked"
        memory = touched * expert_bytes / light.memory_bandwidth_bytes_per_s
        return np.asarray(np.maximum(memory, pairs * pair_flops / peak if peak else 0.0))

    def price(pairs: Floats, touched: Floats) -> Floats:
        tokens = pairs * tokens_per_pair
        even = np.interp(tokens, counts, us) + slope * np.maximum(0.0, tokens - counts[-1])
        if light is not None:
            expected = op.experts_local * (1.0 - (1.0 - op.topk / op.experts_total) ** tokens)
            own, other = work(pairs, touched), work(pairs, np.maximum(expected, 1e-9))
            even = even * np.divide(own, other, out=np.ones_like(own), where=other > 0)
        return np.where(pairs > 0, even, 0.0)

    return price


def each_draw(
    routing: ExpertRouting, layers: int, experts: int, topk: int, last: int, placement: Placement
) -> Iterator[tuple[int, int, int, Ints, tuple[Ints, Ints]]]:
    """(layer, index on the axis of tokens, tokens, counts (draws, experts), slots): the same in every call."""
    popularity = routing.popularity(layers, experts)
    draws = number_of_draws(routing, len(popularity))
    for layer in range(layers):
        slots = place(popularity[:, layer].mean(axis=0), placement)
        for index, tokens in enumerate(token_axis(last).tolist()):
            rng = np.random.default_rng([routing.seed, layer, index])
            if routing.name == "RR":
                counts = in_turn(experts, topk, tokens)
            else:
                share = -(-draws // len(popularity))
                parts = [draw_counts(row, topk, tokens, share, rng) for row in popularity[:, layer]]
                counts = np.concatenate(parts)[:draws]
            yield layer, index, tokens, counts, slots


def number_of_draws(routing: ExpertRouting, snapshots: int) -> int:
    """Samples for each layer and token count."""
    return 1 if routing.name == "RR" else max(DRAWS, snapshots)


def empty_table(routing: ExpertRouting, layers: int, experts: int, last: int) -> Ints:
    """Room for the times of all draws: [layer, draw, token count]."""
    draws = number_of_draws(routing, len(routing.popularity(layers, experts)))
    return np.empty((layers, draws, len(token_axis(last))), dtype=np.int64)


def drawn_table(
    routing: ExpertRouting, layers: int, experts: int, topk: int, last: int, placement: Placement, price: Price,
    provenance: int,
) -> tuple[DrawnTable, float]:  # fmt: skip
    """The table of a model's MoE layers, and how far the fullest rank is above the mean at 1,024 tokens or `last`."""
    ps = empty_table(routing, layers, experts, last)
    fullest = np.zeros(layers)
    for layer, index, tokens, counts, slots in each_draw(routing, layers, experts, topk, last, placement):
        pairs, touched = rank_loads(counts, slots, placement.ranks)
        ps[layer, :, index] = np.floor(price(pairs, touched).max(axis=-1) * 1e6 + 0.5)
        if tokens <= min(1024, last):
            fullest[layer] = float((pairs.max(axis=-1) / pairs.mean(axis=-1)).mean())
    return DrawnTable(token_axis(last), ps, routing.seed, provenance), float(fullest.mean())


def touched_table(
    routing: ExpertRouting, layers: int, experts: int, topk: int, last: int, placement: Placement
) -> DrawnTable:
    """Experts that the rank with the most of them touches, in the very draws of `drawn_table`; `ps` are experts."""
    counts = empty_table(routing, layers, experts, last)
    for layer, index, _, drawn, slots in each_draw(routing, layers, experts, topk, last, placement):
        counts[layer, :, index] = rank_loads(drawn, slots, placement.ranks)[1].max(axis=-1)
    return DrawnTable(token_axis(last), counts, routing.seed, 0)
