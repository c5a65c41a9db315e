"""One iteration made concrete: every operator of every rank as a node, with what it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmsim.config.errors import NotYetError
from llmsim.core import Provenance
from llmsim.costs import AttentionCost
from llmsim.lowering import LoweredGroup
from llmsim.lowering.program import PARTS
from llmsim.model import Operator

Item = tuple[int, int]
"""(tokens, computed before) of one sequence of a batch."""
PS_PER_US = 1_000_000


@dataclass(frozen=True)
class GraphNode:
    """One execution of one operator on one rank; times in ps, bytes per rank."""

    node: int
    """Unique among all ranks."""
    rank: int
    name: str
    kind: str
    """"compute", "attention" or "collective"."""
    layer: int
    """From 0 within its part; 0 in the prologue and the head."""
    part: int
    duration_ps: int
    flops: int
    bytes_moved: int
    """Read and written, weights included; of a collective the tensor's size."""
    power_class: str
    collective: str
    on_links: bool
    """A collective that the links price: its duration here is that of the engine's default rules."""
    provenance: str
    source: str
    depends_on: tuple[int, ...]


@dataclass(frozen=True)
class IterationGraph:
    """The nodes of one iteration of one group, rank by rank in execution order."""

    group: int
    model: str
    hardware: str
    ranks: int
    iteration: int
    items: tuple[Item, ...]
    padded_tokens: int
    nodes: tuple[GraphNode, ...] = field(repr=False)

    def of_rank(self, rank: int) -> tuple[GraphNode, ...]:
        """The nodes of one rank."""
        return tuple(node for node in self.nodes if node.rank == rank)

    @property
    def duration_ps(self) -> int:
        """Of one rank's chain, which is the iteration's: ranks do the same at the same time."""
        return sum(node.duration_ps for node in self.of_rank(0))


@dataclass(frozen=True)
class _Row:
    """An operator of the program at this batch."""

    name: str
    kind: str
    part: int
    repeat: int
    duration_ps: int
    flops: int
    bytes_moved: int
    power_class: str
    collective: str
    on_links: bool
    provenance: str
    source: str


def iteration_graph(lowered: LoweredGroup, iteration: int, items: Sequence[Item]) -> IterationGraph:
    """The graph of a batch on a group. Raises NotYetError for groups of several stages or members."""
    layout = lowered.layout
    if layout.pp > 1 or layout.dp > 1:
        raise NotYetError(
            f"group {lowered.info.index} has {layout.pp} pipeline stages and {layout.dp} data-parallel ranks; graphs of"
            " steps that overlap or wait for others are not exported by this version"
        )
    rows = _rows(lowered, items)
    nodes: list[GraphNode] = []
    ranks, previous = lowered.layout.tp, [-1] * lowered.layout.tp
    for row, layer in _in_order(rows):
        for rank in range(ranks):
            node = len(nodes)
            nodes.append(
                GraphNode(
                    node, rank, row.name, row.kind, layer, row.part, row.duration_ps, row.flops, row.bytes_moved,
                    row.power_class, row.collective, row.on_links, row.provenance, row.source,
                    () if previous[rank] < 0 else (previous[rank],),
                )
            )  # fmt: skip
            previous[rank] = node
    info = lowered.info
    tokens = sum(item[0] for item in items)
    return IterationGraph(
        info.index,
        info.model_name,
        info.hardware,
        ranks,
        iteration,
        tuple(items),
        _padded(lowered, tokens),
        tuple(nodes),
    )


def _in_order(rows: Sequence[_Row]) -> list[tuple[_Row, int]]:
    """Operators of one part repeat together, layer by layer; a row stops after its own number of layers."""
    ordered = []
    for part in sorted({row.part for row in rows}):
        mine = [row for row in rows if row.part == part]
        ordered += [(row, layer) for layer in range(max(r.repeat for r in mine)) for row in mine if layer < row.repeat]
    return ordered


def _padded(lowered: LoweredGroup, tokens: int) -> int:
    """As the program pads: to the next captured graph."""
    return next((size for size in sorted(lowered.engine.cuda_graph_sizes) if size >= tokens), tokens)


def _rows(lowered: LoweredGroup, items: Sequence[Item]) -> list[_Row]:
    """The program's operators in order, each matched with the model's operator of the same name and turn."""
    sequences, computed = len(items), _padded(lowered, sum(item[0] for item in items))
    turns: dict[str, int] = {}
    attention_ps = lowered.program.attention_ps(list(items))
    rows = []
    for cost in lowered.program_costs:
        if isinstance(cost, AttentionCost):
            kind, index = cost, [one.name for one in lowered.costs.attentions].index(cost.name)
            shape = next(op for op in lowered.operators if op.name == kind.name)
            pairs = sum(q * k + q * (q + 1) // 2 for q, k in items)
            kv = sum(k + q for q, k in items)
            moved = shape.kv_bytes_per_context_token * kv + shape.write_bytes_per_token * sum(q for q, _ in items)
            rows.append(
                _Row(kind.name, "attention", PARTS["layer"], kind.repeat, attention_ps[index],
                     shape.flops_per_context_token * pairs, moved, shape.power_class, "", False, "", kind.source)
            )  # fmt: skip
            continue
        turn = turns.get(cost.name, 0)
        turns[cost.name] = turn + 1
        named = [op for op in lowered.operators if op.name == cost.name]
        count = min(sequences, len(cost.ps) - 1) if cost.feature == "sequences" else computed
        duration_ps, mark = int(cost.ps[count]), Provenance(int(cost.provenance[count])).name.lower()
        if not named:  # a cost of the source as a whole, such as a gap between kernels
            rows.append(
                _Row(cost.name, "compute", PARTS[cost.part], cost.repeat, duration_ps, 0, 0, "compute", "", False, mark,
                     cost.source)
            )  # fmt: skip
            continue
        op = named[min(turn, len(named) - 1)]
        together = op.kind == "collective"
        moved = op.collective_bytes_per_token * count if together else _moved(op, count)
        rows.append(
            _Row(cost.name, "collective" if together else "compute", PARTS[cost.part], cost.repeat, duration_ps,
                 op.flops_per_token * count, moved, op.power_class, op.collective,
                 together and cost.name in lowered.costs.link_collectives, mark, cost.source)
        )  # fmt: skip
    return rows


def _moved(op: Operator, count: int) -> int:
    """Bytes of one execution; weights once, but of a table only the rows that are looked up."""
    weights = 0 if op.kind == "embedding" else op.weight_bytes
    return weights + count * (op.read_bytes_per_token + op.write_bytes_per_token)
