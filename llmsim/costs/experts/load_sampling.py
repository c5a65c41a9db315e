"""Draws which experts the tokens of a step load, places experts on ranks, and prices the slowest
rank, before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from llmsim.core import Int64
from llmsim.costs.experts.routing import ExpertRouting, Floats

if TYPE_CHECKING:
    from llmsim.costs.hardware_limits import PeakRates
    from llmsim.model import AllToAll, Moe

Ints = NDArray[np.int64]
Price = Callable[[Floats, Floats], Floats]
"""(token, expert) pairs of a rank, experts that they touch -> microseconds; arrays of one shape."""

Groups = tuple[int, int]
"""Groups of experts, and how many of them a token chooses first."""
ALL: Groups = (1, 1)

DRAWS = 16
"""Samples for each layer and token count; a step takes one of them per layer by a counter."""
ONE_BY_ONE = 16
"""So many tokens choose their experts each for itself; what comes beyond is drawn together."""
NEVER = 1e-100
"""No step chooses an expert with so small a share."""
NEWTON_STEPS = 100
"""More than any popularity needs: the steps converge quadratically, and at least double a scale
that is too small.
"""
COARSE = 2.0**40
"""Steps of a probability: its last bits are the processor's."""


class SampledTable(Struct, frozen=True, eq=False):
    """The slowest rank's time of the experts: ps [layer, draw, token count], linear between
    `tokens`.
    """

    tokens: Int64
    ps: Int64
    seed: int
    provenance: int
    in_order: bool = False
    """Samples are a recording: a step takes the one of its number, not one that is drawn."""


class Placement(Struct, frozen=True):
    """Which rank holds which expert. `redundant` copies go to the experts with the highest load
    (vLLM's EPLB).
    """

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


def draw_counts(
    popularity: Floats,
    topk: int,
    tokens: Sequence[int],
    draws: int,
    rng: np.random.Generator,
    groups: Groups = ALL,
) -> Ints:
    """Tokens that each expert gets among the first so many (ascending), shape (draws, len(tokens),
    experts).

    Each token takes `topk` different experts, of the groups that it chose before. The first tokens
    choose one by one (an exponential race: successive sampling without replacement). The others are
    drawn together: the probability that a token takes an expert is 1 - exp(-t popularity) with t
    such that the sum is topk, successive sampling in the limit of many experts; their counts are
    multinomial, at most one per token. A draw only grows with its tokens, so that what lies between
    two counts of tokens can be interpolated.
    """
    experts, points = len(popularity), np.asarray(tokens, dtype=np.int64)
    alone = np.minimum(points, ONE_BY_ONE)
    one_by_one = int(alone.max(initial=0))
    with np.errstate(divide="ignore"):
        finish = rng.standard_exponential(size=(draws, one_by_one, experts)) / popularity
        if groups[1] < groups[0]:
            together = rng.standard_exponential(size=(draws, one_by_one, groups[0])) / _of_groups(
                popularity, groups
            )
            others = np.argpartition(together, groups[1] - 1, axis=2)[:, :, groups[1] :]
            by_group = finish.reshape(draws, one_by_one, groups[0], -1)
            np.put_along_axis(by_group, others[..., None], np.inf, axis=2)
    first = np.argpartition(finish, topk - 1, axis=2)[:, :, :topk]
    chosen = np.zeros((draws, one_by_one, experts), dtype=np.int64)
    np.put_along_axis(chosen, first, 1, axis=2)
    counts = chosen.cumsum(axis=1)[:, alone - 1]
    together_tokens = np.diff(points - alone, prepend=0)
    if together_tokens.any():
        share = inclusion_probability(
            popularity, topk, np.repeat(group_probability(popularity, groups), experts // groups[0])
        )
        # Processors differ in the last bit of exp, and that bit can choose another algorithm of the
        # binomial distribution.
        coarse = np.rint(share * COARSE)
        more = rng.multinomial(
            np.broadcast_to(together_tokens * topk, (draws, len(points))), coarse / coarse.sum()
        )
        counts += more.cumsum(axis=1)
    return np.asarray(np.minimum(counts, points[:, None]))


def _of_groups(popularity: Floats, groups: Groups) -> Floats:
    return np.asarray(popularity.reshape(groups[0], -1).sum(axis=1))


def group_probability(popularity: Floats, groups: Groups) -> Floats:
    """That a token chooses each of the groups."""
    return inclusion_probability(_of_groups(popularity, groups), groups[1])


def inclusion_probability(popularity: Floats, topk: int, reached: Floats | None = None) -> Floats:
    """Of each expert, for one token; their sum is topk (at most the number of experts that can be
    chosen at all).

    `reached`: the probability that the token may choose the expert, whose group it chose; None:
    always.
    """
    possible = np.where(popularity > NEVER, 1.0 if reached is None else reached, 0.0)
    if topk >= possible.sum() - 1e-9:
        return np.asarray(possible)
    scale, wanted = 1.0, float(topk)
    for _ in range(
        NEWTON_STEPS
    ):  # the sum is concave in the scale: from below, Newton's steps never overshoot
        missed = possible * np.exp(-scale * popularity)
        lacking = wanted - float((possible - missed).sum())
        scale += lacking / float((popularity * missed).sum())
        if abs(lacking) < 1e-9 * wanted:
            break
    return np.asarray(-possible * np.expm1(-scale * popularity))


def in_turn(experts: int, topk: int, tokens: int) -> Ints:
    """Round robin: token t takes the experts t * topk, t * topk + 1, ...; shape (1, experts)."""
    whole, rest = divmod(tokens * topk, experts)
    return (whole + (np.arange(experts) < rest)).astype(np.int64)[None]


def recorded_counts(shares: Floats, topk: int, tokens: Sequence[int]) -> Ints:
    """Tokens that each expert gets of so many, by the recorded shares of each step; shape (steps,
    tokens, experts).

    topk x tokens rows in proportion to the shares, rounded along the experts so that nothing is
    lost; no expert gets more than one row of a token: what exceeds that goes to the others in
    proportion.
    """
    wanted = shares * topk
    for _ in range(shares.shape[1]):
        over = wanted >= 1.0
        left = topk - over.sum(axis=1, keepdims=True)
        below = np.where(over, 0.0, shares)
        total = below.sum(axis=1, keepdims=True)
        again = np.where(
            over, 1.0, below * np.divide(left, total, out=np.zeros_like(total), where=total > 0)
        )
        if np.array_equal(again >= 1.0, over):
            wanted = again
            break
        wanted = again
    exact = np.minimum(wanted, 1.0)[:, None, :] * np.asarray(tokens, dtype=np.float64)[:, None]
    return np.diff(np.floor(exact.cumsum(axis=2) + 0.5), axis=2, prepend=0.0).astype(np.int64)


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
        slots = [
            slots[rank + placement.ranks * i]
            for rank in range(placement.ranks)
            for i in range(per_rank)
        ]
    array = np.array(slots, dtype=np.int64)
    return array[:, 0], array[:, 1]


def _packed(
    slots: list[tuple[int, int]], load: Floats, ranks: int, per_rank: int
) -> list[tuple[int, int]]:
    """The fullest slot first, each to the rank with the least load that has room (EPLB's balanced
    packing).
    """
    held: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    sums = np.zeros(ranks)
    for slot in sorted(slots, key=lambda slot: (-load[slot[0]], slot)):
        rank = int(np.argmin(sums))  # of equal ones the first
        held[rank].append(slot)
        sums[rank] = sums[rank] + load[slot[0]] if len(held[rank]) < per_rank else np.inf
    return [slot for rank in held for slot in rank]


def rank_loads(counts: Ints, slots: tuple[Ints, Ints], ranks: int) -> tuple[Floats, Floats]:
    """(pairs, touched experts) of every rank, shapes (..., ranks); the copies of an expert share
    its tokens evenly.
    """
    expert, copy = slots
    copies = np.bincount(expert, minlength=counts.shape[-1])
    tokens = counts[..., expert]
    whole, rest = np.divmod(tokens, copies[expert])
    mine = whole + (copy < rest)
    shape = (*counts.shape[:-1], ranks, -1)
    return mine.reshape(shape).sum(axis=-1).astype(np.float64), (mine > 0).reshape(shape).sum(
        axis=-1
    ).astype(np.float64)


def curve_price(op: Moe, ps: Int64, peak_rates: PeakRates | None) -> Price:
    """From the times of evenly loaded ranks: those at as many pairs, times the ratio of the two
    rooflines.

    At T tokens a rank with its share of the experts has T topk local / total pairs on the experts
    that T random tokens touch; with other touched experts the bytes of their weights differ, the
    operations do not.
    """
    us = ps / 1e6
    counts = np.arange(len(us), dtype=np.float64)
    slope = max(0.0, float(us[-1] - us[-2])) if len(us) > 2 else 0.0
    tokens_per_pair = op.tokens_per_pair
    expert_bytes = op.weight_bytes / op.held
    pair_flops = op.flops_per_token * tokens_per_pair
    peak = peak_rates.peak(op.weight_dtype) if peak_rates is not None else 0

    def work(pairs: Floats, touched: Floats) -> Floats:
        assert peak_rates is not None, "the caller looked"
        memory = touched * expert_bytes / peak_rates.memory_bandwidth_bytes_per_s
        return np.asarray(np.maximum(memory, pairs * pair_flops / peak if peak else 0.0))

    def price(pairs: Floats, touched: Floats) -> Floats:
        tokens = pairs * tokens_per_pair
        even = np.interp(tokens, counts, us) + slope * np.maximum(0.0, tokens - counts[-1])
        if peak_rates is not None:
            expected = np.maximum(op.touched(tokens), 1e-9)
            own, other = work(pairs, touched), work(pairs, expected)
            even = even * np.divide(own, other, out=np.ones_like(own), where=other > 0)
        return np.where(pairs > 0, even, 0.0)

    return price


class LayerDraws(Struct, frozen=True, eq=False):
    """What the tokens of steps load in one MoE layer."""

    layer: int
    counts: Ints
    """Tokens of each expert: (draws, counts of tokens on `token_axis`, experts)."""
    slots: tuple[Ints, Ints]
    """Which expert, and which copy of it, is in each place (`place`)."""
    of_groups: Floats
    """Probability that a token chooses each group."""


def each_layer(
    routing: ExpertRouting, op: Moe | AllToAll, last: int, placement: Placement
) -> Iterator[LayerDraws]:
    """The draws of every layer of experts, or of an exchange of their tokens, up to `last` tokens:
    the same in every call.
    """
    layers, experts, topk, groups = op.repeat, op.experts_total, op.topk, op.expert_groups
    popularity, axis = routing.popularity(layers, experts), token_axis(last).tolist()
    snapshots = len(popularity)
    for layer in range(layers):
        if routing.in_order:
            counts = recorded_counts(popularity[:, layer], topk, axis)
        elif routing.name == "RR":
            counts = np.stack([in_turn(experts, topk, tokens) for tokens in axis], axis=1)
        else:
            rng, draws = (
                np.random.default_rng([routing.seed, layer]),
                number_of_draws(routing, snapshots),
            )
            rows = popularity[:, layer]
            each = -(-draws // snapshots)
            counts = np.concatenate(
                [draw_counts(row, topk, axis, each, rng, groups) for row in rows]
            )[:draws]
        mean = popularity[:, layer].mean(axis=0)
        yield LayerDraws(layer, counts, place(mean, placement), group_probability(mean, groups))


def number_of_draws(routing: ExpertRouting, snapshots: int) -> int:
    """Samples for each layer and token count."""
    if routing.in_order:
        return snapshots
    return 1 if routing.name == "RR" else max(DRAWS, snapshots)


def sampled_table(
    routing: ExpertRouting,
    op: Moe,
    last: int,
    placement: Placement,
    price: Price,
    provenance: int,
) -> tuple[SampledTable, float]:
    """The table of a model's MoE layers, and how far the fullest rank is above the mean at 1,024
    tokens or `last`.
    """
    axis = token_axis(last)
    shown = int(np.searchsorted(axis, min(1024, last), side="right")) - 1
    ps, fullest = [], []
    for pairs, touched in _kernel_loads(routing, op, last, placement):
        ps.append(_fullest_ps((pairs, touched), price))
        fullest.append(float((pairs[:, shown].max(axis=-1) / pairs[:, shown].mean(axis=-1)).mean()))
    return SampledTable(axis, np.stack(ps), routing.seed, provenance, routing.in_order), float(
        np.mean(fullest)
    )


def _fullest_ps(loads: tuple[Floats, Floats], price: Price) -> Int64:
    """What the slowest rank takes, by draws and tokens."""
    return np.asarray(np.floor(price(*loads).max(axis=-1) * 1e6 + 0.5), np.int64)


LAYERS_DRAWN = 4
"""Layers whose draws the expectation over a router without preferences is taken from."""


def fullest_ratio(op: Moe, last: int, placement: Placement, price: Price) -> Floats:
    """By tokens 0..last: the expected time of the fullest rank, where all experts are equally
    likely, as a multiple of that of a rank with the expected load; at least 1.
    """
    counts = token_axis(last).astype(np.float64)
    even = price(counts / op.tokens_per_pair, op.touched(counts)) * 1e6
    loads = _uniform_loads(replace(op, repeat=LAYERS_DRAWN), last, placement)
    fullest = np.stack([_fullest_ps(one, price) for one in loads]).mean(axis=(0, 1))
    ratio = np.divide(fullest, even, out=np.ones_like(even), where=even > 0)
    return np.asarray(np.interp(np.arange(last + 1), counts, np.maximum(ratio, 1.0)))


@lru_cache(maxsize=8)
def _uniform_loads(op: Moe, last: int, placement: Placement) -> tuple[tuple[Floats, Floats], ...]:
    """`_kernel_loads` where all experts are equally likely, which no constant of a machine changes:
    a fit or a search prices them again and again.
    """
    routing = ExpertRouting("RAND", label="UNIFORM")
    return tuple(_kernel_loads(routing, op, last, placement))


def _kernel_loads(
    routing: ExpertRouting, op: Moe, last: int, placement: Placement
) -> Iterator[tuple[Floats, Floats]]:
    """(pairs, touched experts) of every rank for each layer, shapes (draws, tokens, ranks), with
    the shared experts in the same kernel, which every token takes.
    """
    tokens = token_axis(last)[:, None]
    for one in each_layer(routing, op, last, placement):
        pairs, touched = rank_loads(one.counts, one.slots, placement.ranks)
        yield pairs + op.always * tokens, touched + op.always * (tokens > 0)


def touched_table(routing: ExpertRouting, op: Moe, last: int, placement: Placement) -> SampledTable:
    """Experts that the rank with the most of them touches, in the very draws of `drawn_table`; `ps`
    are experts.
    """
    loads = _kernel_loads(routing, op, last, placement)
    touched = [touched.max(axis=-1) for _, touched in loads]
    return SampledTable(
        token_axis(last), np.stack(touched).astype(np.int64), routing.seed, 0, routing.in_order
    )
