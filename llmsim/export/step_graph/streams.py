"""The nodes of an iteration that keeps something elsewhere: what runs on which device, and what is
copied when.

The core lays such a step out on streams (docs/explanation/memory.md); here each of its nodes
becomes one of every rank. Nothing ran before, so the first copies start with the step, and links
are the step's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmsim import _native
from llmsim.export.step_graph.nodes import GraphNode, Ranks
from llmsim.export.step_graph.rows import Item, Row, attended, padded_tokens, rows_of
from llmsim.lowering import LoweredGroup
from llmsim.lowering.offload.placement import DEVICE, HOST
from llmsim.lowering.offload.plan import OffloadPlan

PIM = "pim"
Role = _native.NodeRole
MOVES: dict[_native.NodeRole, tuple[str, str]] = {
    Role.TO_HOST: ("activations", f"{DEVICE} -> {HOST}"),
    Role.FROM_HOST: ("activations", f"{HOST} -> {DEVICE}"),
    Role.QUERIES: ("queries", f"{DEVICE} -> {PIM}"),
    Role.RESULTS: ("results", f"{PIM} -> {DEVICE}"),
    Role.CONTEXT: ("earlier KV", f"{PIM} -> {DEVICE}"),
    Role.PROMPTS: ("KV of prompts", f"{DEVICE} -> {PIM}"),
}
"""What copies beside those of weights are called, and their way."""
Items = tuple[Item, ...]


@dataclass(frozen=True)
class _Stream:
    """A node of the core, of all ranks of a stage."""

    unit: int
    stream: int
    role: _native.NodeRole
    op: int
    execution: int
    lane: int
    ps: int
    end_ps: int
    num_bytes: int
    after: list[int]


def offloaded_nodes(
    domain: Sequence[LoweredGroup],
    batches: Sequence[Items],
    rows: Sequence[Sequence[Row]],
    step: int,
) -> tuple[GraphNode, ...]:
    """The nodes of the run's step of that number; `rows` are each member's operators
    at its batch.
    """
    first = domain[0]
    plan = first.offload
    assert plan is not None, "the caller looked"
    described, halves = _native.describe_offloaded_step(
        first.program, plan.native, [list(items) for items in batches], step
    )
    lanes = [[(items, mine)] for items, mine in zip(batches, rows, strict=True)]
    for half in range(2) if halves else ():
        parts = [tuple(pair[half]) for pair in halves]
        padded = [padded_tokens(first, [items])[0] for items in parts]
        for member, (items, tokens) in enumerate(zip(parts, padded, strict=True)):
            lanes[member].append((items, rows_of(domain[member], items, tokens, sum(padded), step)))
    return _Streams(first, plan, len(domain), lanes).nodes([_Stream(*one) for one in described])


class _Streams:
    """Turns nodes of streams into nodes of ranks; those that do nothing are left out, with what
    they wait for kept.
    """

    def __init__(
        self,
        group: LoweredGroup,
        plan: OffloadPlan,
        members: int,
        lanes: Sequence[Sequence[tuple[Items, Sequence[Row]]]],
    ) -> None:
        self._group, self._plan, self._lanes = group, plan, lanes
        self._weights = plan.native.weights
        self._ranks = Ranks(group.layout, members)
        self._each, self._stages = group.layout.stage_ranks, group.layout.pp
        self._made: list[GraphNode] = []

    def nodes(self, streams: Sequence[_Stream]) -> tuple[GraphNode, ...]:
        """All of them, in the order of each stream."""
        ends: list[
            list[tuple[int, ...]]
        ] = []  # of each node of the core and device: what stands for it
        last: dict[tuple[int, int], int] = {}
        for number, one in enumerate(streams):
            place = (one.unit, one.stream)
            before = [*one.after, *([last[place]] if place in last else [])]
            last[place] = number
            waits = [
                tuple(sorted({node for index in before for node in ends[index][device]}))
                for device in range(self._each)
            ]
            ends.append(self._add(one, waits))
        return tuple(self._made)

    def _add(self, one: _Stream, waits: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        row = self._row(one)
        if row is None:
            return waits
        member, stage = divmod(one.unit, self._stages)
        found: list[tuple[int, ...]] = []
        for device in range(self._each):
            rank = self._ranks.number(member, stage, device)
            if row.kind != "send":
                found.append(
                    (self._append(one, row, rank, waits[device], self._ranks.together(rank, row)),)
                )
                continue
            ends = (rank, self._ranks.number(member, stage + 1, device))
            sent = self._append(one, row, rank, waits[device], ends)
            found.append((self._append(one, row.received(), ends[1], (sent,), ends),))
        return found

    def _append(
        self, one: _Stream, row: Row, rank: int, waits: tuple[int, ...], group: tuple[int, ...]
    ) -> int:
        lasts = 0 if row.kind == "receive" else one.ps
        node = GraphNode(
            len(self._made),
            rank,
            row.name,
            row.kind,
            max(one.execution, 0),
            row.part,
            one.end_ps - lasts,
            lasts,
            row.flops,
            row.bytes_moved,
            row.power_class,
            row.collective,
            row.on_links,
            row.provenance,
            row.source,
            waits,
            group,
            self._device(one),
            self._route(one),
            one.lane,
        )
        self._made.append(node)
        return node.node

    def _device(self, one: _Stream) -> str:
        if one.role == Role.IN_MEMORY:
            return PIM
        if one.role != Role.OPERATOR:
            return "link"
        return HOST if one.stream == _native.DeviceStream.HOST.value else DEVICE

    def _route(self, one: _Stream) -> str:
        if one.role != Role.COPY:
            return MOVES[one.role][1] if one.role in MOVES else ""
        ahead = self._weights.ahead[one.op] if one.op < len(self._weights.ahead) else []
        whole = one.execution < len(ahead) and ahead[one.execution] > 0
        source = (
            self._weights.ahead_from[one.op][one.execution]
            if whole
            else self._weights.by_batch_from[one.op]
        )
        return f"{self._plan.copies.places[source]} -> {DEVICE}"

    def _row(self, one: _Stream) -> Row | None:
        """What the node does, as an operator; None: nothing."""
        if one.role in (Role.BEGIN, Role.END):
            return None
        items, rows = self._lanes[one.unit // self._stages][one.lane]
        row = rows[one.op]
        if one.role == Role.COPY or one.role in MOVES:
            name = f"weights of {row.name}" if one.role == Role.COPY else MOVES[one.role][0]
            return self._copy(row, name, one.num_bytes) if one.num_bytes else None
        if self._plan.pim is None or row.kind != "attention":
            return None if row.absent else row
        there = one.role == Role.IN_MEMORY
        mine = [item for item in items if (item[0] == 1) == there]
        op = self._group.placed[one.op].operator
        assert op is not None, "attention is an operator of the model"
        flops, moved = attended(op, mine)
        row = (
            replace(row, provenance="", source=self._plan.pim.part.name, power_class="memory")
            if there
            else row
        )
        return replace(row, flops=flops, bytes_moved=moved) if mine else None

    @staticmethod
    def _copy(row: Row, name: str, num_bytes: int) -> Row:
        return replace(
            row,
            name=name,
            kind="copy",
            flops=0,
            bytes_moved=num_bytes,
            power_class="link",
            collective="",
            on_links=False,
            provenance="",
            source="",
        )
