"""The operators of one member's program at one batch: how long each takes, what it computes and
moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmsim import _native
from llmsim.core import FEATURES, Provenance
from llmsim.costs import AttentionCost
from llmsim.export.step_graph.record import Record
from llmsim.lowering import LoweredGroup
from llmsim.lowering.network.collective_costs import runs_as_messages
from llmsim.lowering.program import PARTS, Placed
from llmsim.model import Attention, Collective, Embedding, Operator, StateSpace
from llmsim.model.operator import Among

Item = tuple[int, ...]
"""(tokens, computed before) of one sequence of a batch, and how many of the tokens are drafts, if
any are.
"""
OPTIONAL = tuple(feature for feature in FEATURES if feature not in ("tokens", "gathered"))
"""Features that a batch may have none of; what works on them is then left out."""


class Row(Record, frozen=True, gc=False):
    """An operator of the program at this batch, on one rank."""

    name: str
    kind: str
    part: int
    flops: int
    bytes_moved: int
    power_class: str
    collective: str
    among: Among
    on_links: bool
    absent: bool
    provenance: str
    source: str
    caches: bool = False
    """KV of its layer, or a state, is there when it has ended."""

    def received(self) -> Row:
        """The other end of a message: there when it is there."""
        return self.changed(name="stage_receive", kind="receive", flops=0)


def rows_of(
    lowered: LoweredGroup,
    items: Sequence[Item],
    padded: int,
    gathered: int,
    adapters: Sequence[int] = (),
) -> list[Row]:
    """The rows of a batch, in the program's order; `adapters`: what it has of LoRA adapters, as in
    a schedule's `adapter_use`.
    """
    place = lowered.program.place(list(items), padded, gathered, list(adapters))
    counts = dict(zip(FEATURES, place, strict=True))
    linked = lowered.linked
    return [placed_row(placed, counts, items, linked) for placed in lowered.placed]


def placed_row(
    placed: Placed, counts: Mapping[str, int], items: Sequence[Item], linked: Sequence[str]
) -> Row:
    """The row of an operator; `linked` names the collectives that links price."""
    op = placed.operator
    on_links = isinstance(op, Collective) and runs_as_messages(op, linked)
    return _row(placed, counts, items, on_links)


def padded_tokens(lowered: LoweredGroup, batches: Sequence[Sequence[Item]]) -> list[int]:
    """What each member computes: alone the next captured graph's size; together all that of the
    largest, if all have one, else nobody pads (as the core combines them).
    """
    graphs = [lowered.program.rank_graph(list(items)) for items in batches]
    if len(graphs) == 1:
        return [graphs[0][2]]
    mode = min((graph[0] for graph in graphs), key=lambda one: one.value)
    most = max(graph[1] for graph in graphs)
    if mode == _native.GraphMode.NONE:
        return [tokens for _, tokens, _ in graphs]
    return [lowered.program.padded(most, mode)] * len(graphs)


def _row(
    placed: Placed,
    counts: Mapping[str, int],
    items: Sequence[Item],
    on_links: bool,
) -> Row:
    cost, op = placed.cost, placed.operator
    row = Row(
        name=cost.name,
        kind="compute",
        part=PARTS[placed.part],
        flops=0,
        bytes_moved=0,
        power_class="compute",
        collective="",
        among="tp",
        on_links=on_links,
        absent=False,
        provenance="",
        source=cost.source,
    )
    if isinstance(cost, AttentionCost):
        assert isinstance(op, Attention), "the cost is an attention's"
        flops, moved = attended(op, items)
        return row.changed(
            kind="attention",
            flops=flops,
            bytes_moved=moved,
            power_class=op.power_class,
            caches=True,
        )
    count = counts[cost.feature]
    row = row.changed(
        provenance=Provenance(int(cost.provenance[count])).name.lower(),
        absent=cost.feature in OPTIONAL and count == 0,
    )
    if op is None:  # a cost of the source as a whole, such as a gap between kernels
        return row
    row = row.changed(power_class=op.power_class, caches=isinstance(op, StateSpace))
    units = op.units_of(count)
    if not isinstance(op, Collective):
        return row.changed(flops=op.flops_per_token * units, bytes_moved=_moved(op, units))
    kind = "send" if op.collective == "send" else "collective"
    moved = op.collective_bytes_per_token * units
    return row.changed(kind=kind, bytes_moved=moved, collective=op.collective, among=op.among)


def attended(op: Attention, items: Sequence[Item]) -> tuple[int, int]:
    """Flops and bytes of one layer; a new token sees what was before it and itself."""
    flops = 0
    for new, before, *drafts in items:
        decode = op.decode_flops_per_context_token if new == 1 or drafts else 0
        flops += (decode or op.flops_per_context_token) * (new * before + new * (new + 1) // 2)
    moved = op.kv_bytes_per_context_token * sum(item[0] + item[1] for item in items)
    return flops, moved + op.write_bytes_per_token * sum(item[0] for item in items)


def _moved(op: Operator, units: int) -> int:
    """Bytes of one execution; weights once, but of a table only the rows that are looked up."""
    weights = 0 if isinstance(op, Embedding) else op.weight_bytes
    return weights + units * (op.read_bytes_per_token + op.write_bytes_per_token)
