"""What each device holds of a model's weights, in layouts of the same devices.

A device holds the layers of its stage, of every dense matrix the interval of its tensor-parallel
rank, and of the experts its share: some of them whole, or a slice of each. Norms, routers, and
projections to a latent are whole on every rank. With attention and FFN on different devices each
holds its side's matrices alone. What a placement keeps in host memory or in a pool, it does not
hold.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from msgspec import Struct

from llmsim.config import Group
from llmsim.lowering.energy.accounting import run_by
from llmsim.lowering.offload.placement import DEVICE, Where
from llmsim.lowering.parallel_layout import stage_operators
from llmsim.lowering.types import LoweredGroup
from llmsim.model import Attention, Layout, Moe, Operator, operators
from llmsim.model.parallel.sharding import layout_problem

if TYPE_CHECKING:
    from llmsim.lowering.switches.layouts import LayoutPlan

Interval = tuple[Fraction, Fraction]
FFN_BLOCKS = ("mlp", "latent_in", "latent_out", "experts", "shared_experts")
"""Blocks of operators whose weights the FFN's devices hold, beside those of the experts."""
FIRST, LAST = "first", "last"
"""Sides of what is before the first layer, and behind the last one."""


class Piece(Struct, frozen=True):
    """Weights of some layers that are cut alike: all of a side, or those of one operator."""

    name: str
    side: str
    layers: range
    size: int
    """Bytes of each layer on a rank."""
    share: Fraction = Fraction(1)
    """What of it is on the device: a part of the experts, where others are elsewhere."""
    whole: bool = False
    """Whether every rank has all of it, such as norms."""

    @property
    def key(self) -> tuple[str, str, bool]:
        """Pieces of two layouts with the same key are of the same weights."""
        return self.side, self.name, self.whole


class Shard(Struct, frozen=True):
    """What the devices of one group hold, by stage."""

    tp: int
    stage_ranks: int
    stages: tuple[range, ...]
    """Layers of each stage."""
    pieces: tuple[Piece, ...]
    expert_ranks: int
    """Shares of the experts, some of them whole: over `expert_ranks` groups of ranks."""
    expert_slices: int
    """Slices of each expert's width in such a group."""
    ffn_ranks: int
    """Ranks over which a dense FFN is cut."""
    member: int = 0

    def in_stage(self, piece: Piece, stage: int) -> range:
        """The piece's layers that a stage has."""
        if piece.side == FIRST:
            return piece.layers if stage == 0 else range(0)
        if piece.side == LAST:
            return piece.layers if stage == len(self.stages) - 1 else range(0)
        return _common_layers(piece.layers, self.stages[stage])

    def bytes_of(self, stage: int) -> int:
        """What a rank of the stage holds."""
        return int(
            sum(len(self.in_stage(one, stage)) * one.size * one.share for one in self.pieces)
        )

    @property
    def total(self) -> int:
        """What a rank of the stage that holds most has."""
        return max(self.bytes_of(stage) for stage in range(len(self.stages)))

    def cut_of(self, side: str, rank: int) -> tuple[Interval, ...]:
        """The part of every matrix of a side that a rank has: one interval, and a second one of the
        widths of experts.
        """
        place = self.member * self.stage_ranks + rank
        if side == "ffn":
            return (_cut(place, self.ffn_ranks),)
        if side == "experts":
            in_domain = place % (self.expert_ranks * self.expert_slices)
            share, width = divmod(in_domain, self.expert_slices)
            return _cut(share, self.expert_ranks), _cut(width, self.expert_slices)
        return (_cut(rank, self.tp),)


class Holder(Struct, frozen=True):
    """A kind of rank: what it holds is the same in every replica."""

    shard: Shard
    stage: int
    rank: int

    @property
    def bytes(self) -> int:
        """What it holds."""
        return self.shard.bytes_of(self.stage)

    def held_of(self, new: "Holder") -> int:
        """Bytes of the other's shard that this one holds."""
        mine, found = defaultdict(list), Fraction(0)
        for piece in self.shard.pieces:
            mine[piece.key].append(piece)
        for piece in new.shard.pieces:
            layers = new.shard.in_stage(piece, new.stage)
            for own in mine[piece.key] if layers else ():
                shared = _common_layers(layers, self.shard.in_stage(own, self.stage))
                if shared:
                    part = Fraction(1) if piece.whole else self._share_of(new, piece.side)
                    cut = part * min(piece.share, own.share)
                    found += len(shared) * piece.size * cut
        return int(found)

    def _share_of(self, new: "Holder", side: str) -> Fraction:
        """Of the other's part of a side's matrices, what this one has."""
        share = Fraction(1)
        cuts = new.shard.cut_of(side, new.rank), self.shard.cut_of(side, self.rank)
        for theirs, own in zip(*cuts, strict=True):
            share *= _common(theirs, own) / (theirs[1] - theirs[0])
        return share


def keeps_elsewhere(plan: "LayoutPlan") -> bool:
    """Whether some weights are in host memory or in the pool."""
    wheres = [one.offload.where for one in plan.lowered.groups if one.offload is not None]
    return any(
        where.bytes_elsewhere(stage) for where in wheres for stage in range(len(where.stages))
    )


def holders_by_group(plan: "LayoutPlan", *, by_operator: bool) -> list[list[Holder]]:
    """What each device of each group holds, in the order of the devices.

    `by_operator`: in pieces of each operator, which may lie anywhere; else of a layer's sides.
    """
    found: list[list[Holder]] = []
    members: dict[str, int] = defaultdict(int)
    pieces: dict[int, tuple[Piece, ...]] = {}
    shards: dict[tuple[int, int], Shard] = {}
    kinds: dict[tuple[int, int, int], Holder] = {}
    for group, lowered in zip(plan.deployment.groups, plan.lowered.groups, strict=True):
        member = 0
        if group.dp_group is not None and lowered.layout.dp > 1:
            member = members[group.dp_group]
            members[group.dp_group] += 1
        program = id(lowered.operators)
        if program not in pieces:
            pieces[program] = _of_operators(group, lowered) if by_operator else _of_sides(lowered)
        key = (program, member)
        if key not in shards:
            shards[key] = _shard(lowered, pieces[program], member)
        shard = shards[key]
        found.append([])
        for stage in range(len(shard.stages)):
            for rank in range(shard.stage_ranks):
                kind = (id(shard), stage, rank)
                found[-1].append(kinds.setdefault(kind, Holder(shard, stage, rank)))
    return found


def largest_shard(plan: "LayoutPlan") -> int:
    """Bytes of weights of the device that holds most."""
    holders = holders_by_group(plan, by_operator=keeps_elsewhere(plan))
    return max(one.shard.total for of_group in holders for one in of_group)


def _shard(group: LoweredGroup, pieces: tuple[Piece, ...], member: int) -> Shard:
    layout, stages, start = group.layout, [], 0
    for count in layout.stage_layers or (group.model.num_layers,):
        stages.append(range(start, start + count))
        start += count
    return Shard(
        layout.tp,
        group.info.num_devices // len(stages),
        tuple(stages),
        pieces,
        layout.ep,
        max(1, layout.tp * layout.dp // layout.ep),
        layout.ffn_ranks,
        member,
    )


def _of_sides(group: LoweredGroup) -> tuple[Piece, ...]:
    """All layers alike: means over those that differ."""
    layers = group.model.num_layers
    run = run_by(group)
    per_layer = [op for op in run if op.part == "layer"]
    covered = sum(op.repeat for op in per_layer if isinstance(op, Attention)) or layers
    whole = _whole_on_ranks(group)
    held: dict[tuple[str, bool], int] = defaultdict(int)
    for op in run:
        held[_side_of(op), op.name in whole] += op.weight_bytes * op.repeat
    found = []
    for (side, is_whole), size in held.items():
        is_end = side in (FIRST, LAST)
        each, of = (size, range(1)) if is_end else (size // covered, range(layers))
        if each:
            found.append(Piece(side, side, of, each, whole=is_whole))
    return tuple(found)


def _whole_on_ranks(group: LoweredGroup) -> frozenset[str]:
    """Names of the operators whose weights each tensor-parallel rank has whole: their bytes are
    those of one rank alone, however many share the model.
    """
    model = group.model
    ranks = range(2, model.num_attention_heads + 1)
    splits = (layout for tp in ranks if not layout_problem(model, layout := Layout(tp=tp)))
    split = next(splits, None)
    if split is None:  # no layout cuts anything
        return frozenset()
    alone, shared = (_bytes_by_name(group, layout) for layout in (Layout(), split))
    return frozenset(name for name, size in alone.items() if shared.get(name) == size)


def _bytes_by_name(group: LoweredGroup, layout: Layout) -> Counter[str]:
    found: Counter[str] = Counter()
    for op in operators(group.model, layout, group.dtypes):
        found[op.name] += op.weight_bytes * op.repeat
    return found


def _of_operators(group: Group, lowered: LoweredGroup) -> tuple[Piece, ...]:
    """What is on the devices, operator by operator, as far as layers that follow each other are
    alike.
    """
    plan = lowered.offload
    if plan is not None:
        where = plan.where
    else:
        stages = stage_operators(lowered.model, lowered.layout, lowered.dtypes)
        where = Where(group, lowered.model, lowered.layout, stages)
    whole = _whole_on_ranks(lowered)
    layers: dict[tuple[str, str, int, Fraction], Counter[int]] = defaultdict(Counter)
    for execution in where.executions():
        op = execution.op
        if lowered.layout.domain == "ffn" and isinstance(op, Attention):
            continue
        here = op.weight_bytes
        if where.of(execution) != DEVICE:
            here -= where.bytes_there(op)
        side = _side_of(op)
        layer = execution.number if side in (FIRST, LAST) else execution.layer
        if here:
            share = Fraction(here, op.weight_bytes)
            layers[op.name, side, op.weight_bytes, share][layer] += 1
    return tuple(
        Piece(name, side, run, times * size, share, name in whole)
        for (name, side, size, share), counted in layers.items()
        for times in sorted({*counted.values()})
        for run in _runs([layer for layer, count in counted.items() if count == times])
    )


def _runs(numbers: list[int]) -> Iterator[range]:
    """Numbers that follow each other."""
    ordered = sorted(numbers)
    first = ordered[0]
    for number, following in zip(ordered, [*ordered[1:], None], strict=True):
        if following != number + 1:
            yield range(first, number + 1)
            first = following if following is not None else first


def _side_of(op: Operator) -> str:
    """The part of a layer that an operator's weights belong to, or the end of the model."""
    if op.part != "layer":
        return LAST if op.part == "head" else FIRST
    if isinstance(op, Moe):
        return "experts"
    if op.block == "router":  # of attention's devices, where rows are routed before they travel
        return "router"
    return "ffn" if op.block in FFN_BLOCKS else "attention"


def _cut(rank: int, ranks: int) -> Interval:
    return Fraction(rank % ranks, ranks), Fraction(rank % ranks + 1, ranks)


def _common(a: Interval, b: Interval) -> Fraction:
    return max(Fraction(0), min(a[1], b[1]) - max(a[0], b[0]))


def _common_layers(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))
