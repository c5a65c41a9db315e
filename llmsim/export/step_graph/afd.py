"""The nodes of a step whose attention and FFN are on devices apart, from those of the core.

Rows are nodes of their own: `m2n_send` while they leave a device, `m2n_receive` while they come to
one, and again, of no bytes, until the last of them is there. Lanes of the batch have rows of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from msgspec.structs import replace

from llmsim import _native
from llmsim.core import FEATURES
from llmsim.export.step_graph.core_nodes import CoreNode, CorePlace
from llmsim.export.step_graph.nodes import LAUNCH, M2N_RECEIVE, M2N_SEND, GraphNode, Ranks
from llmsim.export.step_graph.rows import Item, Row, placed_row
from llmsim.export.step_graph.streams import (
    HOST_WORK,
    DraftPass,
    Drafts,
    StepNodes,
    add_passes,
    draft_passes,
    drafter_of,
    host_row,
)
from llmsim.lowering import LoweredGroup
from llmsim.model import Layout

Role = _native.NodeRole
MOVES = {
    Role.M2N_SEND: M2N_SEND,
    Role.M2N_RECEIVE: M2N_RECEIVE,
    Role.M2N_LATENCY: M2N_RECEIVE,
}
Ends = list[tuple[int, ...]]
"""By device of a stage: the nodes that stand for the end of a node of the core."""


@dataclass(frozen=True)
class Sides:
    """The devices of attention members, then of FFN members; each member's stage by stage."""

    each: tuple[int, ...]
    """Of each member: devices of a stage."""
    stages: int
    attention: int
    """Members that attend: the first ones."""

    @property
    def count(self) -> int:
        """All devices."""
        return sum(self.each) * self.stages

    def first_of(self, member: int) -> int:
        """The first device of a member."""
        return sum(self.each[:member]) * self.stages

    def number(self, member: int, stage: int, device: int) -> int:
        """Of one device."""
        return self.first_of(member) + self.each[member] * stage + device


def sides_of(domain: Sequence[LoweredGroup], attention: int) -> Sides:
    """The devices of the groups of a domain."""
    stages = domain[0].layout.pp
    return Sides(tuple(one.info.num_devices // stages for one in domain), stages, attention)


def afd_nodes(
    domain: Sequence[LoweredGroup],
    config: _native.AfdConfig,
    batches: Sequence[tuple[Item, ...]],
    step: int,
    sides: Sides,
    drafts: Sequence[Drafts] = (),
) -> StepNodes:
    """The nodes of the run's step of that number."""
    proposed = drafts[: sides.attention] if domain[0].draft is not None else ()
    passes = [
        draft_passes(lowered, items, one)
        for lowered, items, one in zip(domain, batches, proposed, strict=False)
    ]
    found, lanes, counted = _native.afd_nodes(
        config,
        [one.program for one in domain],
        [list(items) for items in batches],
        step,
        **drafter_of(domain[0], proposed),
    )
    rows = [
        [_rows(lowered, *one) for lowered, one in zip(domain, lane, strict=True)] for lane in lanes
    ]
    builder = _Builder(domain, sides, rows, passes)
    core = [CoreNode(*one) for one in found]
    nodes = builder.nodes(core)
    scheduled = [sum(item[0] for item in items) for items in batches]
    activities = [
        {**one, "scheduled_tokens": tokens} for one, tokens in zip(counted, scheduled, strict=True)
    ]
    return StepNodes(nodes, tuple(builder.places), tuple(core), activities)


def _rows(lowered: LoweredGroup, items: Sequence[Item], place: Sequence[int]) -> list[Row]:
    counts: Mapping[str, int] = dict(zip(FEATURES, place, strict=True))
    rows = [placed_row(placed, counts, items, ()) for placed in lowered.placed]
    return [row.changed(on_links=False) for row in rows]


class _Builder:
    """Turns nodes of the core into nodes of ranks; those that do nothing are left out, with what
    they wait for kept.
    """

    def __init__(
        self,
        domain: Sequence[LoweredGroup],
        sides: Sides,
        rows: Sequence[Sequence[Sequence[Row]]],
        passes: Sequence[Sequence[DraftPass]],
    ) -> None:
        self._domain, self._sides, self._rows, self._passes = domain, sides, rows, passes
        self._made: list[GraphNode] = []
        self.places: list[CorePlace] = []
        """Of each node that was made."""

    def nodes(self, found: Sequence[CoreNode]) -> tuple[GraphNode, ...]:
        """All of them, in the order of each stream."""
        ends: list[Ends] = []
        last: dict[tuple[int, int], list[int]] = {}
        for number, one in enumerate(found):
            before = [*one.after, *last.get((one.unit, one.stream), [])]
            if one.stream >= 0:
                last[one.unit, one.stream] = [number]
            if one.role == Role.M2N_LATENCY:  # on no stream: where its rows have come in
                one = one._replace(unit=found[one.after[-1]].unit)
            ends.append(self._add(number, one, self._waits(one, before, found, ends)))
        return tuple(self._made)

    def _member(self, unit: int) -> tuple[int, int]:
        return divmod(unit, self._sides.stages)

    def _waits(
        self,
        one: CoreNode,
        before: Sequence[int],
        found: Sequence[CoreNode],
        ends: Sequence[Ends],
    ) -> Ends:
        """What each device waits for: the same device of its member, and all devices of others."""
        member, _ = self._member(one.unit)
        each = self._sides.each[member]
        waits: Ends = []
        for device in range(each):
            mine: list[int] = []
            for index in before:
                own = self._member(found[index].unit)[0] == member
                meets = Role.MEET in (one.role, found[index].role)
                sets = ends[index] if meets or not own else [ends[index][device]]
                mine += [node for nodes in sets for node in nodes]
            waits.append(tuple(dict.fromkeys(mine)))
        return waits

    def _add(self, number: int, one: CoreNode, waits: Ends) -> Ends:
        member, _ = self._member(one.unit)
        if one.role == Role.DRAFTS:
            return add_passes(self._passes[member], one, waits, partial(self._add_row, number))
        row = self._row(one, member)
        return waits if row is None else self._add_row(number, one, row, waits)

    def _add_row(self, number: int, one: CoreNode, row: Row, waits: Ends) -> Ends:
        """The same on all devices of a stage."""
        member, stage = self._member(one.unit)
        found: Ends = []
        for device, before in enumerate(waits):
            rank = self._sides.number(member, stage, device)
            together = self._together(member, stage, device, row)
            self.places += [CorePlace(number, device)] * (2 if row.kind == "send" else 1)
            if row.kind == "send":
                ends = (rank, self._sides.number(member, stage + 1, device))
                sent = self._append(one, row, rank, before, ends)
                found.append((self._append(one, row.received(), ends[1], (sent,), ends),))
            else:
                found.append((self._append(one, row, rank, before, together),))
        return found

    def _row(self, one: CoreNode, member: int) -> Row | None:
        """What the node does, as an operator; None: nothing."""
        if one.role in HOST_WORK:
            return host_row(one.role) if one.ps else None
        if one.role in MOVES:
            return self._moved(one, member) if one.ps or one.num_bytes else None
        if one.role != Role.OPERATOR:
            return None
        row = self._rows[one.lane - 1][member][one.op]
        return None if row.absent or (one.ps == 0 and row.kind == "attention") else row

    def _moved(self, one: CoreNode, member: int) -> Row:
        attends, out = member < self._sides.attention, one.role == Role.M2N_SEND
        other = "FFN" if attends else "attention"
        name = f"rows to {other}" if out else f"rows from {other}"
        if one.role == Role.M2N_LATENCY:
            name = f"last {name}"
        return host_row(Role.LAUNCH).changed(
            name=name, kind=MOVES[one.role], part=1, power_class="link",
            bytes_moved=0 if one.role == Role.M2N_LATENCY else one.num_bytes,
        )  # fmt: skip

    def _together(self, member: int, stage: int, device: int, row: Row) -> tuple[int, ...]:
        """The ranks that do a collective together; FFN devices of other rows are columns of
        tensor-parallel ranks.
        """
        if row.kind != "collective":
            return ()
        layout: Layout = replace(self._domain[member].layout, stage_layers=())
        columns = Ranks(layout, self._sides.each[member] // layout.stage_ranks)
        first = self._sides.number(member, stage, 0)
        return tuple(first + rank for rank in columns.together(device, row))

    def _append(
        self, one: CoreNode, row: Row, rank: int, waits: tuple[int, ...], group: tuple[int, ...]
    ) -> int:
        lasts = 0 if row.kind == "receive" else one.ps
        device = {LAUNCH: "cpu"}.get(row.kind, "link" if one.role in MOVES else "npu")
        self._made.append(
            GraphNode(
                node=len(self._made), rank=rank, name=row.name, kind=row.kind,
                layer=max(one.execution, 0), part=row.part, start_ps=one.end_ps - lasts,
                duration_ps=lasts, flops=row.flops, bytes_moved=row.bytes_moved,
                power_class=row.power_class, collective=row.collective, on_links=False,
                provenance=row.provenance, source=row.source, depends_on=waits, group=group,
                device=device, route=self._route(one), half=one.lane if len(self._rows) > 1 else 0,
            )
        )  # fmt: skip
        return self._made[-1].node

    def _route(self, one: CoreNode) -> str:
        if one.role not in MOVES:
            return ""
        attends = self._member(one.unit)[0] < self._sides.attention
        here, there = ("attention", "ffn") if attends else ("ffn", "attention")
        ends = (here, there) if one.role == Role.M2N_SEND else (there, here)
        return " -> ".join(ends)


def member_of_ranks(sides: Sides) -> list[tuple[int, int]]:
    """Of each rank: its member, and its number there."""
    sizes = [one * sides.stages for one in sides.each]
    firsts = [0, *accumulate(sizes)]
    return [
        (member, rank - first)
        for member, (first, size) in enumerate(zip(firsts, sizes, strict=False))
        for rank in range(first, first + size)
    ]
