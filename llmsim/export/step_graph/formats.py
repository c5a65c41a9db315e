"""Writes an iteration's graph as JSON, DOT or GraphML, and makes a networkx graph of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec
from msgspec.structs import asdict

from llmsim.core import AJ_PER_J
from llmsim.export.step_graph.graph import IterationGraph
from llmsim.export.step_graph.nodes import LAUNCH, M2N_RECEIVE, M2N_SEND, PS_PER_US, GraphNode
from llmsim.export.step_graph.rows import Item
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.lowering.energy.step import PARTS
from llmsim.lowering.network.base import MeshDescription, TopologyDescription

ATTRIBUTES = {
    "rank": "int",
    "name": "string",
    "kind": "string",
    "layer": "int",
    "start_us": "double",
    "duration_us": "double",
    "flops": "long",
    "bytes": "long",
    "power_class": "string",
    "collective": "string",
    "provenance": "string",
    "source": "string",
    "device": "string",
    "route": "string",
    "half": "int",
    "device_id": "string",
    "power_w": "double",
    "energy_j": "double",
    "compute_j": "double",
    "memory_j": "double",
    "link_j": "double",
    "lost_us": "double",
}
"""Of a node in GraphML and networkx -> its type."""
COLORS = {
    "compute": "#dbe9f6",
    "attention": "#fde8c8",
    "collective": "#e3d7f0",
    "send": "#d9ead3",
    "receive": "#d9ead3",
    "copy": "#eeeeee",
    LAUNCH: "#f6d5d5",
    **dict.fromkeys((M2N_SEND, M2N_RECEIVE, *KV_KINDS), "#cfe8e4"),
}
ELSEWHERE = {"cpu": "#f6d5d5", "pim": "#f6e3a1"}
"""Of what other devices than the rank's own run."""


def as_json(graph: IterationGraph, nodes: Sequence[GraphNode]) -> str:
    """One object: the iteration, its batch, and a list of nodes, one in a line; times in ps."""
    apart = ("nodes", "items", "batches", "network", "implementations", "energy", "places", "core")
    about = {name: value for name, value in vars(graph).items() if name not in apart}
    match graph.network:
        case MeshDescription(dimensions=dimensions):
            about |= {"dimensions": dimensions, "topology": None}
        case TopologyDescription() as described:
            about |= {"dimensions": (), "topology": asdict(described)}

    def shown(items: Sequence[Item]) -> list[dict[str, int]]:
        names = ("tokens", "computed_before", "drafts")
        return [dict(zip(names, item, strict=False)) for item in items]

    batches = [shown(items) for items in graph.batches]
    about |= {"duration_ps": graph.duration_ps, "items": shown(graph.items), "batches": batches}
    about["energy"] = [
        None if one is None else {**asdict(one), "total_aj": one.total_aj} for one in graph.energy
    ]
    head = json.dumps(about, indent=1).removesuffix("\n}")
    encode = msgspec.json.Encoder().encode
    rows = ",\n  ".join(
        encode({**msgspec.structs.asdict(node), **_joules(node)}).decode() for node in nodes
    )
    return f'{head},\n "nodes": [\n  {rows}\n ]\n}}\n'


def as_dot(graph: IterationGraph, nodes: Sequence[GraphNode], *, every_layer: bool = False) -> str:
    """One box per operator with device, duration and bytes; identical layers once, with their
    number.
    """
    shown = list(nodes) if every_layer else [node for node in nodes if node.layer == 0]
    counts = _repeats(nodes)
    title = f"{graph.model} on {graph.ranks} x {graph.hardware}, {graph.called}: "
    title += f"{len(graph.items)} sequences, {graph.padded_tokens} tokens, {_us(graph.duration_ps)}"
    lines = ["digraph iteration {", f"  label={_quoted(title)}; labelloc=t; rankdir=TB;"]
    lines.append('  node [shape=box, style=filled, fontname="Helvetica", fontsize=10];')
    for rank in sorted({node.rank for node in shown}):
        lines.append(f"  subgraph cluster_{rank} {{ label={_quoted(f'rank {rank}')};")
        for node in (node for node in shown if node.rank == rank):
            times = "" if every_layer or counts[node.node] == 1 else f" x {counts[node.node]}"
            text = (
                f"{node.name}{times}\\n{_where(graph, node)}: {_us(node.duration_ps)}, "
                f"{_size(node.bytes_moved)}"
            )
            color = ELSEWHERE.get(node.device, COLORS[node.kind])
            lines.append(f"    n{node.node} [label={_quoted(text)}, fillcolor={_quoted(color)}];")
        lines.append("  }")
    lines += [f"  n{before} -> n{node};" for before, node in _order(nodes, shown)]
    for left, right in _meetings(shown):
        lines.append(f"  n{left.node} -> n{right.node} [dir=both, style=dashed, constraint=false];")
    return "\n".join([*lines, "}"]) + "\n"


def _where(graph: IterationGraph, node: GraphNode) -> str:
    """The device that a node keeps busy."""
    if node.device == "npu":
        return f"{graph.hardware} {node.rank}" + (f", half {node.half}" if node.half else "")
    return node.route or node.device


def _order(nodes: Sequence[GraphNode], shown: Sequence[GraphNode]) -> list[tuple[int, int]]:
    """Edges: of one stream each rank's nodes in turn; of several, what each shown node waits for,
    later layers standing for the first one.
    """
    launches = {node.node for node in shown if node.kind == LAUNCH}
    kernels = [node for node in shown if node.kind != LAUNCH]
    if all(node.device == "npu" for node in kernels):
        return _in_turn(kernels) + _behind(launches, kernels)
    return _waits(nodes, shown)


def _behind(launches: Collection[int], kernels: Sequence[GraphNode]) -> list[tuple[int, int]]:
    """From the host's launches to the kernels that wait for them."""
    return [
        (before, node.node) for node in kernels for before in node.depends_on if before in launches
    ]


def _waits(nodes: Sequence[GraphNode], shown: Sequence[GraphNode]) -> list[tuple[int, int]]:
    """What each shown node waits for, once; what is not shown is the first layer's like it."""
    boxes = {node.node for node in shown}
    stands_for = {one: kept for kept, alike in _alike(nodes).items() for one in alike}
    stands_for |= {box: box for box in boxes}
    edges: dict[tuple[int, int], None] = {}
    for node in shown:
        for before in node.depends_on:
            box = stands_for.get(before)
            if box in boxes and box != node.node:
                edges[box, node.node] = None
    return list(edges)


def _in_turn(shown: Sequence[GraphNode]) -> list[tuple[int, int]]:
    """Each rank's nodes, one after the other."""
    of_rank: dict[int, list[int]] = {}
    for node in shown:
        of_rank.setdefault(node.rank, []).append(node.node)
    return [pair for mine in of_rank.values() for pair in pairwise(mine)]


def _repeats(nodes: Sequence[GraphNode]) -> dict[int, int]:
    """Node of layer 0 -> in how many layers its operator runs."""
    return {node: len(members) for node, members in _alike(nodes).items()}


def _alike(nodes: Sequence[GraphNode]) -> dict[int, list[int]]:
    """Node of layer 0 -> those of all layers, by its turn among those of its name."""
    found: dict[tuple[int, int, str, int], list[int]] = {}
    turn: dict[tuple[int, int, str, int], int] = {}
    for node in nodes:
        name = f"{node.name} {node.half}"
        place = (node.rank, node.part, name, node.layer)
        turn[place] = turn.get(place, 0) + 1
        found.setdefault((node.rank, node.part, name, turn[place]), []).append(node.node)
    return {members[0]: members for members in found.values()}


def _meetings(nodes: Sequence[GraphNode]) -> list[tuple[GraphNode, GraphNode]]:
    """Neighbouring ranks of each collective, and the ends of each message."""
    by_turn: dict[tuple[int, tuple[int, ...], int], GraphNode] = {}
    turns: dict[tuple[int, tuple[int, ...]], int] = {}
    pairs = []
    for node in nodes:
        if len(node.group) < 2:
            continue
        place = (node.rank, node.group)
        turn = turns[place] = turns.get(place, 0) + 1
        by_turn[node.rank, node.group, turn] = node
        before = node.group[node.group.index(node.rank) - 1]
        if (before, node.group, turn) in by_turn and before != node.rank:
            pairs.append((by_turn[before, node.group, turn], node))
    return pairs


def attributes(node: GraphNode) -> dict[str, Any]:
    """A node's attributes, by the names of `ATTRIBUTES`."""
    own = {
        "start_us": node.start_ps / PS_PER_US,
        "duration_us": node.duration_ps / PS_PER_US,
        "bytes": node.bytes_moved,
        "lost_us": (node.lost_ps or 0) / PS_PER_US,
        **_joules(node),
    }
    return {name: own[name] if name in own else getattr(node, name) for name in ATTRIBUTES}


def _joules(node: GraphNode) -> dict[str, float]:
    parts = {f"{name}_j": getattr(node, f"{name}_aj") / AJ_PER_J for name in PARTS}
    return {"power_w": node.power_w, "energy_j": node.energy_aj / AJ_PER_J, **parts}


def as_graphml(graph: IterationGraph, nodes: Sequence[GraphNode]) -> str:
    """GraphML, as networkx, Gephi and yEd read it."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
    ]
    lines += [
        f'  <key id="{n}" for="node" attr.name="{n}" attr.type="{kind}"/>'
        for n, kind in ATTRIBUTES.items()
    ]
    lines.append(f'  <graph id={quoteattr(graph.called)} edgedefault="directed">')
    for node in nodes:
        data = "".join(
            f'<data key="{name}">{escape(str(v))}</data>' for name, v in attributes(node).items()
        )
        lines.append(f'    <node id="n{node.node}">{data}</node>')
    for node in nodes:
        lines += [
            f'    <edge source="n{before}" target="n{node.node}"/>' for before in node.depends_on
        ]
    return "\n".join([*lines, "  </graph>", "</graphml>"]) + "\n"


def to_networkx(graph: IterationGraph) -> Any:
    """A networkx.DiGraph of all ranks, nodes by their number."""
    import networkx

    result = networkx.DiGraph(model=graph.model, hardware=graph.hardware, iteration=graph.iteration)
    for node in graph.nodes:
        result.add_node(node.node, **attributes(node))
    result.add_edges_from((before, node.node) for node in graph.nodes for before in node.depends_on)
    return result


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _us(ps: int) -> str:
    return f"{ps / PS_PER_US:.2f} us"


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} B"
