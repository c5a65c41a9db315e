"""When the nodes of a step ran in its run: others on shared links slowed its collectives, copies
and rows, copies ran ahead of it, and stages and members of a lock-step group were busy with the
step before.
"""

from __future__ import annotations

from dataclasses import replace

from llmsim.export.step_graph.core_nodes import CoreTimes
from llmsim.export.step_graph.graph import IterationGraph, Round
from llmsim.export.step_graph.nodes import LAUNCH
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.export.step_graph.transfers import behind_attention

EXCHANGES = ("collective", "send")
"""Kinds of nodes that ranks of a stage do with others."""


def in_run(graph: IterationGraph, batch: Round) -> IterationGraph:
    """The graph with each node when it ran in the run.

    What crosses shared links lasts as long as it did, copies begin when they did, which may be
    before the step, and stages of a pipeline and members of a lock-step group begin when they were
    done with other batches. All else follows what it waits for. KV of a layer leaves when its
    attention has ended. The same graph where nothing of that was so.
    """
    starts_ps = [start for start, _ in batch.times_ps]
    if len(set(starts_ps)) == 1 and not any(one.of_nodes for one in batch.spans):
        return graph
    times = CoreTimes(graph.core, graph.stages, batch.spans, starts_ps)
    ends: dict[int, int] = {}
    lost: dict[int, int | None] = {}
    nodes = []
    for node in graph.nodes:
        if node.kind in KV_KINDS:
            nodes.append(node)
            continue
        place = graph.places[node.node]
        start_ps = node.start_ps + times.ends_ps[place.number] - graph.core[place.number].end_ps
        duration_ps, lost_ps = node.duration_ps, node.lost_ps
        span = times.span(place.number, place.device)
        if node.kind == "receive":
            lost_ps = lost[node.depends_on[0]]
        elif span is not None:
            start_ps, duration_ps = span[0], span[1] - span[0]
            lost_ps = duration_ps - node.duration_ps
        before_ps = max((ends[one] for one in node.depends_on), default=0)
        lost[node.node], ends[node.node] = lost_ps, start_ps + duration_ps
        nodes.append(
            node.changed(
                start_ps=start_ps,
                duration_ps=duration_ps,
                lost_ps=lost_ps,
                late_ps=start_ps - before_ps,
            )
        )
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
        moved = node.changed(start_ps=start_ps, depends_on=before)
        ends[node.node] = moved.end_ps
        kept.append(moved)
    return replace(graph, nodes=tuple(kept))


def lost_in_exchanges_ps(graph: IterationGraph, batch: Round) -> int:
    """By how much others on shared links made the collectives and hand-overs of a step longer; of
    several members, the one that lost most.
    """
    times = CoreTimes(graph.core, graph.stages, batch.spans, [one for one, _ in batch.times_ps])
    lost_ps = [0] * len(batch.members)
    for node in graph.nodes:
        if node.kind not in EXCHANGES:
            continue
        place = graph.places[node.node]
        span = times.span(place.number, place.device)
        if span is not None and place.device == 0:
            member = graph.core[place.number].unit // graph.stages
            lost_ps[member] += span[1] - span[0] - node.duration_ps
    return max(lost_ps)
