"""The copies of weights that steps of a group make, operator by operator, and the buffers that they
need.

A copy takes latency + bytes / rate. Alone, the ranks of a stage copy at once and share the memory
evenly; where others may use the same links the core gives every copy its share at the time
(docs/explanation/memory.md).
"""

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from llmsim import _native
from llmsim.config import Deployment, Group
from llmsim.config.errors import NotYetError
from llmsim.core import Int64
from llmsim.costs import OpCost
from llmsim.costs.experts.load_sampling import Placement, SampledTable, touched_table
from llmsim.costs.experts.routing import ExpertRouting
from llmsim.costs.source import AttentionCost
from llmsim.lowering.offload.placement import DEVICE, Execution, Where, memory_at
from llmsim.lowering.program import PARTS
from llmsim.model import Embedding, Moe, Operator
from llmsim.power.traffic import Copied
from llmsim.power.traffic import weight_bytes as bytes_touched


class OperatorCopies(Struct, eq=False):
    """Of one operator of a stage, bytes of one rank; `ahead` by execution, `by_batch` by its
    feature.
    """

    ahead: list[int] = field(default_factory=list)
    ahead_from: list[int] = field(default_factory=list)
    by_batch: list[int] = field(default_factory=list)
    by_batch_from: int = 0
    demand: bool = False


class StageCopies(Struct, frozen=True, eq=False):
    """All copies of a group; `operators[stage][position]`."""

    places: tuple[str, ...]
    """The memories that copies come from, in the order of the core's sources."""
    operators: tuple[tuple[OperatorCopies, ...], ...]
    moved: tuple[Copied, ...]
    buffer_bytes: tuple[int, ...]
    """By stage: of each device, where copies go to."""
    depth: int


def copies_of(where: Where, tables: dict[str, int]) -> StageCopies:
    """`tables` says how far a table over each feature reaches. NotYetError where experts are in
    several memories.
    """
    found = tuple(tuple(OperatorCopies() for _ in operators) for operators in where.stages)
    places: dict[str, int] = {}
    moved: list[Copied] = []
    windows: list[dict[int, int]] = [
        {} for _ in where.stages
    ]  # by stage: bytes that one place of the step copies
    policy = where.group.offloading.expert_prefetch
    for execution in where.executions():
        place, op = where.of(execution), execution.op
        if place == DEVICE or op.name in where.hosted:
            continue
        source = places.setdefault(place, len(places))
        entry = found[execution.stage][execution.position]
        if isinstance(op, Embedding) or (isinstance(op, Moe) and policy != "layer"):
            rows = _by_batch(
                where, op, tables["tokens" if isinstance(op, Embedding) else op.feature]
            )
            _need_one_place(where, execution, place)
            entry.by_batch, entry.by_batch_from = rows.tolist(), source
            entry.demand = policy == "demand" and isinstance(op, Moe)
            moved.append(Copied(place, op.feature, rows, isinstance(op, Moe)))
            size = int(rows.max(initial=0))
        else:
            size = where.bytes_there(op)
            entry.ahead = entry.ahead or [0] * op.repeat
            entry.ahead_from = entry.ahead_from or [0] * op.repeat
            entry.ahead[execution.number], entry.ahead_from[execution.number] = size, source
            moved.append(Copied(place, "", np.array([size], np.int64)))
        number = {"prologue": -1, "layer": execution.layer}.get(op.part, 1 << 20)
        windows[execution.stage][number] = windows[execution.stage].get(number, 0) + size
    depth = where.group.offloading.weight_buffers
    return StageCopies(
        tuple(places), found, _summed(moved), tuple(_buffers(one, depth) for one in windows), depth
    )


def _buffers(sizes_of: dict[int, int], depth: int) -> int:
    """The most that `depth` places in a row copy; the first ones of the next step follow the last
    one of this.
    """
    sizes = [sizes_of[number] for number in sorted(sizes_of)]
    around = sizes + sizes[: depth - 1]
    windows = [sum(around[first : first + min(depth, len(sizes))]) for first in range(len(sizes))]
    return max(windows, default=0)


def _summed(moved: Sequence[Copied]) -> tuple[Copied, ...]:
    sums: dict[tuple[str, str, bool], Int64] = {}
    for one in moved:
        key = (one.place, one.feature, one.experts)
        sums[key] = sums[key] + one.rows if key in sums else one.rows
    return tuple(
        Copied(place, feature, rows, experts) for (place, feature, experts), rows in sums.items()
    )


def _by_batch(where: Where, op: Operator, last: int) -> Int64:
    """Bytes that an execution copies at each count: rows of a table, experts that the
    tokens touch.
    """
    counts = np.arange(last + 1, dtype=np.int64)
    if isinstance(op, Embedding):
        return counts * op.write_bytes_per_token
    share = 1.0 - where.group.offloading.expert_cache
    return np.ceil(bytes_touched(op, counts) * share).astype(np.int64)


def _need_one_place(where: Where, execution: Execution, place: str) -> None:
    for other in where.executions():
        same = (other.stage, other.position) == (execution.stage, execution.position)
        if same and where.of(other) != place:
            raise NotYetError(
                f"the weights of {execution.op.name} are in several memories, which runs only with "
                "expert_prefetch layer"
            )


def sources_of(
    deployment: Deployment, group: Group, copies: StageCopies, places: dict[str, int], ranks: int
) -> list["_native.CopySource"]:
    """The core's sources; `places` are the memories' numbers on the network (none: -1), `ranks`
    copy at once.
    """
    port = deployment.host_links.port(group.index, ranks)
    sources = []
    for place in copies.places:
        memory = memory_at(deployment, group.node, place)
        rate = min(port.rate_q16, (memory.bandwidth_bytes_per_s << 16) // ranks)
        sources.append(
            _native.CopySource(
                memory.latency_ps + port.latency_ps, rate, places.get(place, -1), port.latency_ps
            )
        )
    return sources


def positions_in_program(
    stages: Sequence[Sequence[Operator]], costs: Sequence[OpCost | AttentionCost]
) -> list[tuple[int, int] | None]:
    """Of each operator of the program: its stage and position there; None for what no operator of
    the model stands for.

    The program lists stages one after the other, and in each the parts in order
    (`llmsim.lowering.program`).
    """
    expected = [
        (stage, position)
        for stage, operators in enumerate(stages)
        for position in sorted(
            range(len(operators)), key=lambda position: PARTS[operators[position].part]
        )
    ]
    found: list[tuple[int, int] | None] = []
    for cost in costs:
        stage, position = expected[0] if expected else (0, 0)
        if expected and stages[stage][position].name == cost.name:
            found.append(expected.pop(0))
        else:
            found.append(None)
    assert not expected, "every operator of the model is in the program"
    return found


class Uneven(Struct, frozen=True):
    """Which experts tokens choose, where that is not even."""

    routing: ExpertRouting
    placement: Placement


def weight_streaming(
    copies: StageCopies,
    stages: Sequence[Sequence[Operator]],
    costs: Sequence[OpCost | AttentionCost],
    sources: list["_native.CopySource"],
    uneven: Uneven,
    cached: float,
) -> "_native.WeightStreaming":
    """The copies by operator of the program; experts of drawn loads copy what the same
    draws touch.
    """
    native, none = _native.WeightStreaming(), OperatorCopies()
    where = positions_in_program(stages, costs)
    entries: list[OperatorCopies] = []
    sampled: list[_native.SampledCostTable | None] = []
    run: dict[int, int] = {}
    for cost, place in zip(costs, where, strict=True):
        if place is None:
            entries.append(none)
            sampled.append(None)
            continue
        stage, number = place
        entry = copies.operators[stage][number]
        entries.append(entry)
        if not entry.by_batch or not _is_drawn(cost):
            sampled.append(None)
            continue
        op = stages[stage][number]
        assert isinstance(op, Moe), "only costs of experts are sampled"
        layers_before = run.get(id(cost), 0)
        sampled.append(_drawn_bytes(op, cost, uneven, cached, layers_before))
        run[id(cost)] = layers_before + op.repeat
    native.sources = sources
    native.ahead = [entry.ahead for entry in entries]
    native.ahead_from = [entry.ahead_from for entry in entries]
    native.by_batch = [entry.by_batch for entry in entries]
    native.by_batch_from = [entry.by_batch_from for entry in entries]
    native.demand = [entry.demand for entry in entries]
    native.sampled = sampled if any(one is not None for one in sampled) else []
    native.buffers = copies.depth
    return native


def _is_drawn(cost: OpCost | AttentionCost) -> TypeGuard[OpCost]:
    """Whether every step draws the loads of the operator's experts."""
    return isinstance(cost, OpCost) and cost.sampled is not None


def _drawn_bytes(
    op: Moe, cost: OpCost, uneven: Uneven, cached: float, first_layer: int
) -> "_native.SampledCostTable":
    """Bytes of the experts that the rank with the most of them touches, in the samples that price
    the operator.
    """
    table = cost.sampled
    assert table is not None, "the caller looked"
    whole = replace(op, repeat=cost.repeat)  # all stages draw from the whole model's table
    touched: SampledTable = touched_table(
        uneven.routing, whole, int(table.tokens[-1]), uneven.placement
    )
    expert = op.weight_bytes / op.held * (1.0 - cached)
    size = np.ceil(touched.ps * expert).astype(np.int64)
    layers, draws, _ = size.shape
    return _native.SampledCostTable(
        touched.tokens,
        layers,
        draws,
        np.ascontiguousarray(size).ravel(),
        touched.seed,
        touched.provenance,
        first_layer,
        touched.in_order,
    )
