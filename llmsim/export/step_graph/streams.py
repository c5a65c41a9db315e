"""The nodes of an iteration, rank by rank, from those of the core's step graph.

What a run times, what `--exact` gives to the engine and what is exported is this one
graph. Nothing ran before, so the first copies start with the step, and links are the step's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmsim import _native
from llmsim.core import FEATURES
from llmsim.export.step_graph.core_nodes import CoreNode, CorePlace
from llmsim.export.step_graph.nodes import LAUNCH, GraphNode, Ranks
from llmsim.export.step_graph.rows import (
    Item,
    Row,
    attended,
    padded_tokens,
    placed_row,
    rows_of,
)
from llmsim.export.step_graph.transfers import KV_OF_PROMPTS
from llmsim.lowering import LoweredGroup
from llmsim.lowering.offload.placement import DEVICE, HOST
from llmsim.lowering.program import PARTS
from llmsim.model import Attention

PIM = "pim"
Role = _native.NodeRole
MOVES: dict[_native.NodeRole, tuple[str, str]] = {
    Role.TO_HOST: ("activations", f"{DEVICE} -> {HOST}"),
    Role.FROM_HOST: ("activations", f"{HOST} -> {DEVICE}"),
    Role.QUERIES: ("queries", f"{DEVICE} -> {PIM}"),
    Role.RESULTS: ("results", f"{PIM} -> {DEVICE}"),
    Role.CONTEXT: ("earlier KV", f"{PIM} -> {DEVICE}"),
    Role.PROMPTS: (KV_OF_PROMPTS, f"{DEVICE} -> {PIM}"),
}
"""What copies beside those of weights are called, and their way."""
Items = tuple[Item, ...]


Ends = list[tuple[int, ...]]
"""By device of a stage: the nodes that stand for the end of a node of the core."""


@dataclass(frozen=True)
class StepNodes:
    """The nodes of a step, and what they come from."""

    nodes: tuple[GraphNode, ...]
    places: tuple[CorePlace, ...]
    """Of each node."""
    core: tuple[CoreNode, ...]
    activities: Sequence[Mapping[str, Any]]
    """What the step counts for each member (`Simulation.activity`)."""


@dataclass(frozen=True)
class Drafts:
    """What the drafter of a group proposes at the end of a step."""

    after: int = 0
    """Drafts of each sequence."""
    first_passes: int = 0
    """Of the drafter before this step; and the others."""
    next_passes: int = 0


@dataclass(frozen=True)
class DraftPass:
    """A pass of a drafter."""

    ps: int
    nodes: list[CoreNode]
    rows: list[Row]


def step_nodes(
    domain: Sequence[LoweredGroup],
    batches: Sequence[Items],
    rows: Sequence[Sequence[Row]],
    step: int,
    drafts: Sequence[Drafts] = (),
    adapters: Sequence[Sequence[int]] = (),
    slowed_ps: Sequence[int] = (),
) -> StepNodes:
    """The nodes of the run's step of that number; `rows` are each member's operators, and
    `slowed_ps` what the power limit added to each of its stages (none: nothing).
    """
    first = domain[0]
    offload = None if first.offload is None else first.offload.native
    proposed = drafts if first.draft is not None else ()
    passes = [
        draft_passes(lowered, items, one)
        for lowered, items, one in zip(domain, batches, proposed, strict=False)
    ]
    found, halves, counted = _native.step_nodes(
        first.program,
        offload,
        [list(items) for items in batches],
        step,
        **drafter_of(first, proposed),
        adapters=[list(one) for one in adapters],
        slowed_ps=list(slowed_ps),
    )
    lanes = [[(items, mine)] for items, mine in zip(batches, rows, strict=True)]
    for half in range(2 if halves else 0):
        _add_half(lanes, domain, [tuple(pair[half]) for pair in halves])
    core = [CoreNode(*one) for one in found]
    ranks = _Ranks(first, len(domain), lanes, passes)
    nodes = ranks.nodes(core)
    scheduled = [sum(item[0] for item in items) for items in batches]
    activities = [
        {**one, "scheduled_tokens": tokens} for one, tokens in zip(counted, scheduled, strict=True)
    ]
    return StepNodes(nodes, tuple(ranks.places), tuple(core), activities)


def drafter_of(group: LoweredGroup, proposed: Sequence[Drafts]) -> dict[str, Any]:
    """The drafter, what each member proposes, and its passes before; nothing where none drafts."""
    if group.draft is None or not proposed:
        return {}
    return {
        "drafter": group.draft.native,
        "drafts_after": [one.after for one in proposed],
        "first_passes": proposed[0].first_passes,
        "next_passes": proposed[0].next_passes,
    }


def draft_passes(lowered: LoweredGroup, items: Items, drafts: Drafts) -> list[DraftPass]:
    """The passes of a group's drafter at the end of a step."""
    draft = lowered.draft
    assert draft is not None, "the caller looked"
    found = _native.draft_nodes(
        draft.native, list(items), drafts.after, drafts.first_passes, drafts.next_passes
    )
    passes = []
    for is_first, batch, place, ps, nodes in found:
        counts = dict(zip(FEATURES, place, strict=True))
        operators = draft.placed[0 if is_first else 1]
        rows = [placed_row(placed, counts, batch, draft.linked) for placed in operators]
        named = [row.changed(name=f"draft {row.name}") for row in rows]
        passes.append(DraftPass(ps, [CoreNode(*one) for one in nodes], named))
    return passes


AddAlike = Callable[[CoreNode, Row, Ends], Ends]
"""Adds the same node on all ranks of a stage, behind what each of them waits for."""


def add_passes(passes: Sequence[DraftPass], one: CoreNode, waits: Ends, add: AddAlike) -> Ends:
    """A drafter's passes, one after the other on all ranks of the stage."""
    start_ps = one.end_ps - one.ps
    for number, found in enumerate(passes, start=1):
        begins = waits
        launched: Ends = [()] * len(waits)
        for node in found.nodes:
            here = node._replace(unit=one.unit, end_ps=start_ps + node.end_ps)
            if node.role == Role.LAUNCH:
                launched = add(here, host_row(node.role, "draft ", number), begins)
            elif node.role == Role.OPERATOR and not found.rows[node.op].absent:
                row = found.rows[node.op]
                row = row.changed(part=row.part + number * len(PARTS))
                waits = add(here, row, waits)
        waits = [(*ends, *host) for ends, host in zip(waits, launched, strict=True)]
        start_ps += found.ps
    return waits


Lane = tuple[Items, Sequence[Row]]
"""A batch, or one of its halves, and the operators of the program at that batch."""


def _add_half(
    lanes: Sequence[list[Lane]], domain: Sequence[LoweredGroup], parts: Sequence[Items]
) -> None:
    """Adds one half of each member's batch; halves pad each for itself."""
    padded = [padded_tokens(domain[0], [items])[0] for items in parts]
    for member, (items, tokens) in enumerate(zip(parts, padded, strict=True)):
        lanes[member].append((items, rows_of(domain[member], items, tokens, sum(padded))))


PREPARATION = "preparation"
HOST_WORK = {Role.PREPARE: PREPARATION, Role.LAUNCH: "launches"}
"""What the host does for a stage's step."""
POWER_LIMIT = "power limit"
"""What the clock of the card's power limit adds to a stage's step."""


def host_row(role: _native.NodeRole, prefix: str = "", number: int = 0) -> Row:
    """What the host does for a step, or for a drafter's pass of that number."""
    return _time_alone(prefix + HOST_WORK[role], LAUNCH, number)


def _time_alone(name: str, kind: str, number: int = 0) -> Row:
    """What takes time and does no work of the model."""
    return Row(
        name=name,
        kind=kind,
        part=number * len(PARTS),
        flops=0,
        bytes_moved=0,
        power_class="compute",
        collective="",
        among="tp",
        on_links=False,
        absent=False,
        provenance="",
        source="",
    )


class _Ranks:
    """Turns nodes of the core into nodes of ranks; those that do nothing are left out, with what
    they wait for kept.
    """

    def __init__(
        self,
        group: LoweredGroup,
        members: int,
        lanes: Sequence[Sequence[tuple[Items, Sequence[Row]]]],
        passes: Sequence[Sequence[DraftPass]],
    ) -> None:
        self._group, self._plan, self._lanes = group, group.offload, lanes
        self._passes = passes
        self._ranks = Ranks(group.layout, members)
        self._each, self._stages = group.layout.stage_ranks, group.layout.pp
        self._made: list[GraphNode] = []
        self.places: list[CorePlace] = []
        """Of each node that was made."""

    def nodes(self, found: Sequence[CoreNode]) -> tuple[GraphNode, ...]:
        """All of them, in the order of each stream."""
        ends: list[Ends] = []
        last: dict[tuple[int, int], int] = {}
        for number, one in enumerate(found):
            place = (one.unit, one.stream)
            before = [*one.after, *([last[place]] if place in last else [])]
            if one.stream >= 0:
                last[place] = number
            met = [index for index in before if found[index].role == Role.MEET]
            alone = [index for index in before if index not in met]
            meets = one.role == Role.MEET
            waits = [self._waits(ends, alone, met, device, meets) for device in range(self._each)]
            ends.append(self._add(number, one, waits))
        return tuple(self._made)

    @staticmethod
    def _waits(
        ends: Sequence[Ends], alone: Sequence[int], met: Sequence[int], device: int, meets: bool
    ) -> tuple[int, ...]:
        """What a rank waits for by itself, in order; then what the members do that it meets."""
        mine = [node for index in alone for node in ends[index][device]]
        if not meets:
            mine = sorted(mine)
        return tuple(dict.fromkeys([*mine, *(n for index in met for n in ends[index][device])]))

    def _add_alike(self, number: int, one: CoreNode, row: Row, waits: Ends) -> Ends:
        """The same on all ranks of a stage."""
        member, stage = divmod(one.unit, self._stages)
        found: Ends = []
        for device, before in enumerate(waits):
            rank = self._ranks.number(member, stage, device)
            together = self._ranks.together(rank, row)
            found.append((self._append(number, one, row, rank, before, together),))
        return found

    def _add(self, number: int, one: CoreNode, waits: Ends) -> Ends:
        if one.role == Role.DRAFTS:
            passes = self._passes[one.unit // self._stages]
            return add_passes(passes, one, waits, partial(self._add_alike, number))
        row = self._row(one)
        if row is None:
            return waits
        if row.kind != "send":
            return self._add_alike(number, one, row, waits)
        member, stage = divmod(one.unit, self._stages)
        found: Ends = []
        for device in range(self._each):
            rank = self._ranks.number(member, stage, device)
            ends = (rank, self._ranks.number(member, stage + 1, device))
            sent = self._append(number, one, row, rank, waits[device], ends)
            got = self._append(number, one, row.received(), ends[1], (sent,), ends)
            found.append((got,))
        return found

    def _append(
        self,
        number: int,
        one: CoreNode,
        row: Row,
        rank: int,
        waits: tuple[int, ...],
        group: tuple[int, ...],
    ) -> int:
        """A node of a rank, of the core's node of that number."""
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
            caches=row.caches,
        )
        self._made.append(node)
        self.places.append(CorePlace(number, self._ranks.device(rank)))
        return node.node

    def _device(self, one: CoreNode) -> str:
        if one.role == Role.IN_MEMORY:
            return PIM
        if one.role in HOST_WORK:
            return HOST
        if one.role == Role.SLOWED:
            return DEVICE
        if one.role != Role.OPERATOR:
            return "link"
        return HOST if one.stream == _native.DeviceStream.HOST.value else DEVICE

    def _route(self, one: CoreNode) -> str:
        if one.role != Role.COPY:
            return MOVES[one.role][1] if one.role in MOVES else ""
        assert self._plan is not None, "a step without an offload plan copies nothing"
        weights = self._plan.native.weights
        ahead = weights.ahead[one.op] if one.op < len(weights.ahead) else []
        whole = one.execution < len(ahead) and ahead[one.execution] > 0
        source = (
            weights.ahead_from[one.op][one.execution] if whole else weights.by_batch_from[one.op]
        )
        return f"{self._plan.copies.places[source]} -> {DEVICE}"

    def _row(self, one: CoreNode) -> Row | None:
        """What the node does, as an operator; None: nothing."""
        if one.role in (Role.BEGIN, Role.RECEIVE, Role.MEET, Role.END):
            return None
        if one.role in HOST_WORK:
            return host_row(one.role) if one.ps else None
        if one.role == Role.SLOWED:
            return _time_alone(POWER_LIMIT, "compute") if one.ps else None
        items, rows = self._lanes[one.unit // self._stages][one.lane]
        row = rows[one.op]
        if one.role in MOVES:
            return self._copy(row, MOVES[one.role][0], one.num_bytes)
        if one.role == Role.COPY:
            return self._copy(row, f"weights of {row.name}", one.num_bytes)
        if row.kind == "attention" and self._plan is not None and self._plan.pim is not None:
            in_memory = self._plan.pim.part.name if one.role == Role.IN_MEMORY else None
            return self._attention(row, one.op, items, in_memory)
        return None if row.absent else row

    def _attention(self, row: Row, number: int, items: Items, in_memory: str | None) -> Row | None:
        """The share of a batch that attends in the memory of that name, decodes, or on the device,
        prompts; None: nothing does.
        """
        mine = [item for item in items if (item[0] == 1) == (in_memory is not None)]
        if not mine:
            return None
        op = self._group.placed[number].operator
        assert isinstance(op, Attention), "the row is an attention's"
        flops, moved = attended(op, mine)
        if in_memory is not None:
            row = row.changed(provenance="", source=in_memory, power_class="memory")
        return row.changed(flops=flops, bytes_moved=moved)

    @staticmethod
    def _copy(row: Row, name: str, num_bytes: int) -> Row | None:
        """A copy of so many bytes; None: of none."""
        if num_bytes == 0:
            return None
        return row.changed(
            name=name,
            kind="copy",
            flops=0,
            bytes_moved=num_bytes,
            power_class="link",
            collective="",
            on_links=False,
            provenance="",
            source="",
            caches=False,
        )
