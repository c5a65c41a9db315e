"""When the nodes of a step ran in its run: others on shared links slowed its collectives, and
stages and members of a lock-step group were busy with the step before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmsim.export.step_graph.graph import IterationGraph, Round, Span
from llmsim.export.step_graph.nodes import LAUNCH, GraphNode, Ranks
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.export.step_graph.transfers import behind_attention
from llmsim.lowering import LoweredGroup
from llmsim.lowering.program import PARTS

Place = tuple[int, int, str, int]
"""Stage, part, name and layer."""


def in_run(graph: IterationGraph, groups: Sequence[LoweredGroup], batch: Round) -> IterationGraph:
    """The graph with each collective as long as it was in the run, and all behind it as much later.

    Stages of a pipeline, and members of a lock-step group, begin when they did in the run, where
    they were busy with other batches; hand-overs do so, too. KV of a layer leaves when its
    attention has ended. The same graph where nothing of that was so.
    """
    spans = exchange_spans(graph, groups, batch)
    begins = _Begins(graph, groups, batch)
    if not spans and not begins.of_stage:
        return graph
    ends: dict[int, int] = {}
    lost: dict[int, int | None] = {}
    alone: dict[int, int] = {node.node: node.end_ps for node in graph.nodes}
    nodes = []
    for node in graph.nodes:
        if node.kind in KV_KINDS:
            nodes.append(node)
            continue
        start_ps, duration_ps = node.start_ps, node.duration_ps
        if node.depends_on:
            before = max(alone[one] for one in node.depends_on)
            start_ps += max(ends[one] for one in node.depends_on) - before
        span = spans.get(node.node)
        late_ps = begins.of(node, start_ps, span) - start_ps
        if span is not None:
            duration_ps = span[1] - span[0]
            lost[node.node] = duration_ps - node.duration_ps
        elif node.kind == "receive":
            lost[node.node] = lost.get(node.depends_on[0])
        moved = replace(
            node,
            start_ps=start_ps + late_ps,
            duration_ps=duration_ps,
            lost_ps=lost.get(node.node),
            late_ps=late_ps,
        )
        ends[node.node] = moved.end_ps
        nodes.append(moved)
    return replace(graph, nodes=behind_attention(nodes))


def without_launches(graph: IterationGraph) -> IterationGraph:
    """The graph of a step whose kernels are launched in no time; what waited is earlier."""
    alone: dict[int, int] = {node.node: node.end_ps for node in graph.nodes}
    ends: dict[int, int] = {}
    kept = []
    for node in graph.nodes:
        if node.kind == LAUNCH:
            continue
        before = tuple(one for one in node.depends_on if one in ends)
        start_ps = node.start_ps
        if before:
            start_ps -= max(alone[one] for one in node.depends_on)
            start_ps += max(ends[one] for one in before)
        moved = replace(node, start_ps=start_ps, depends_on=before)
        ends[node.node] = moved.end_ps
        kept.append(moved)
    return replace(graph, nodes=tuple(kept))


class _Begins:
    """When nodes of stages and of members of a lock-step group begin, in ps of the step: each began
    when it had ended the step before.
    """

    def __init__(self, graph: IterationGraph, groups: Sequence[LoweredGroup], batch: Round) -> None:
        first = groups[batch.members[0]]
        self._units, self._stages = graph.units, graph.stages
        self._origin_ps = min(start for start, _ in batch.times_ps)
        self.of_stage: tuple[tuple[int, ...], ...] = ()
        """By member; none where all begin with the step, or copies may run ahead of it."""
        if first.offload is not None:
            return
        if any(batch.stage_starts_ps):
            self.of_stage = batch.stage_starts_ps
        elif any(start != self._origin_ps for start, _ in batch.times_ps):
            self.of_stage = tuple((start,) for start, _ in batch.times_ps)

    def of(self, node: GraphNode, start_ps: int, span: Span | None) -> int:
        """Of a node that what is before it would let begin at `start_ps`."""
        if not self.of_stage or node.kind == "receive":
            return start_ps
        if span is not None:
            return span[0] - self._origin_ps
        member, stage = divmod(self._units[node.rank], self._stages)
        if node.kind == LAUNCH:
            stage = 0  # the host launches all stages
        starts = self.of_stage[member]
        if stage >= len(starts):
            return start_ps  # behind the first stage, whose start is known
        return max(start_ps, starts[stage] - self._origin_ps)


def lost_in_exchanges_ps(
    graph: IterationGraph, groups: Sequence[LoweredGroup], batch: Round
) -> int:
    """By how much others on shared links made the collectives and hand-overs of a step longer; of
    several members, the one that lost most.
    """
    spans = exchange_spans(graph, groups, batch)
    ranks = Ranks(groups[batch.members[0]].layout, len(batch.members))
    lost_ps = [0] * len(batch.members)
    for node in graph.nodes:
        if node.node in spans and ranks.device(node.rank) == 0:
            start_ps, end_ps = spans[node.node]
            lost_ps[ranks.place(node.rank)[0]] += end_ps - start_ps - node.duration_ps
    return max(lost_ps)


def exchange_spans(
    graph: IterationGraph, groups: Sequence[LoweredGroup], batch: Round
) -> dict[int, Span]:
    """When nodes on shared links ran in the run, by number."""
    if not any(batch.exchanges):
        return {}
    domain = [groups[index] for index in batch.members]
    ranks = Ranks(domain[0].layout, len(domain))
    nodes: dict[tuple[int, Place], list[GraphNode]] = defaultdict(list)
    for node in graph.nodes:
        if node.kind in ("collective", "send"):
            _, stage = ranks.place(node.rank)
            nodes[node.rank, (stage, node.part, node.name, node.layer)].append(node)
    found: dict[int, Span] = {}
    for member, (lowered, exchanges) in enumerate(zip(domain, batch.exchanges, strict=True)):
        for place, spans in _by_place(lowered, exchanges).items():
            for device in range(ranks.layout.stage_ranks):
                mine = nodes[ranks.number(member, place[0], device), place]
                found |= {node.node: span for node, span in zip(mine, spans, strict=True)}
    return found


def _by_place(
    lowered: LoweredGroup, exchanges: Mapping[int, Sequence[Span]]
) -> dict[Place, list[Span]]:
    """When the operators of a name ran in a layer of a stage, in their order."""
    found: dict[Place, list[Span]] = defaultdict(list)
    for op in sorted(exchanges):
        placed = lowered.placed[op]
        for layer, span in enumerate(exchanges[op]):
            found[placed.stage, PARTS[placed.part], placed.cost.name, layer].append(span)
    return found
