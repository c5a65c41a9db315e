"""When the nodes of a step ran in its run, where others on shared links slowed its collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmsim.export.step_graph.graph import IterationGraph, Round
from llmsim.export.step_graph.nodes import GraphNode
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.lowering import LoweredGroup
from llmsim.lowering.program import PARTS

Place = tuple[int, int, str, int]
"""Rank, part, name and layer."""


def in_run(graph: IterationGraph, groups: Sequence[LoweredGroup], batch: Round) -> IterationGraph:
    """The graph with each collective as long as it was in the run, and all behind it as much later.

    The same graph where no collective was on shared links, and for several pipeline stages.
    """
    lasted_ps = _lasted_ps(graph, groups, batch)
    if not lasted_ps:
        return graph
    ends: dict[int, int] = {}
    alone: dict[int, int] = {node.node: node.end_ps for node in graph.nodes}
    nodes = []
    for node in graph.nodes:
        later_ps = 0
        if node.kind not in KV_KINDS and node.depends_on:
            before = max(alone[one] for one in node.depends_on)
            later_ps = max(ends[one] for one in node.depends_on) - before
        moved = replace(
            node,
            start_ps=node.start_ps + later_ps,
            duration_ps=lasted_ps.get(node.node, node.duration_ps),
        )
        ends[node.node] = moved.end_ps
        nodes.append(moved)
    return replace(graph, nodes=tuple(nodes))


def _lasted_ps(
    graph: IterationGraph, groups: Sequence[LoweredGroup], batch: Round
) -> dict[int, int]:
    """How long nodes on shared links were in the run, by number."""
    domain = [groups[index] for index in batch.members]
    if domain[0].layout.pp > 1 or not batch.exchanges:
        return {}
    each = graph.ranks // len(domain)
    layers: dict[Place, list[GraphNode]] = defaultdict(list)
    for node in graph.nodes:
        if node.kind == "collective":
            layers[node.rank, node.part, node.name, node.layer].append(node)
    found: dict[int, int] = {}
    for member, (lowered, exchanges) in enumerate(zip(domain, batch.exchanges, strict=True)):
        ranks = range(member * each, (member + 1) * each)
        for (part, name, layer), lengths_ps in _by_layer(lowered, exchanges).items():
            for rank in ranks:
                nodes = layers[rank, part, name, layer]
                found |= {node.node: ps for node, ps in zip(nodes, lengths_ps, strict=True)}
    return found


def _by_layer(
    lowered: LoweredGroup, exchanges: Mapping[int, Sequence[int]]
) -> dict[tuple[int, str, int], list[int]]:
    """(part, name, layer) -> how long the operators of that name took there, in their order."""
    found: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for op in sorted(exchanges):
        placed = lowered.placed[op]
        for layer, ps in enumerate(exchanges[op]):
            found[PARTS[placed.part], placed.cost.name, layer].append(ps)
    return found
