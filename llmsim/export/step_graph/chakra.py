"""Writes an iteration's graph as Chakra execution traces, one per rank, with the files that
ASTRA-sim wants beside.

Compute and collectives of known duration are COMP nodes, copies are MEM_LOAD and MEM_STORE nodes.
Chakra counts in whole microseconds: the attribute `duration_ps`, which default rules read, has the
exact time. Collectives and messages that links price are COMM nodes with their bytes, so that the
network of the simulator prices them. Ranks start what they do together when the slowest is there:
what the others wait is a node of its own.

The traces have the part of copies and of KV that moves in the step, so that they end with it. The
network that reads them has no other traffic. What that cost a collective or a message in
the run is a COMP node of its own behind it, `contention`. Members of a lock-step group meet each
other, too: what links price there is a COMP node as long as in the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmsim.export.chakra import COLLECTIVES, NodeType, TraceNode, Value, write_trace
from llmsim.export.network_file import network_file
from llmsim.export.step_graph.graph import IterationGraph
from llmsim.export.step_graph.nodes import LAUNCH, M2N_RECEIVE, M2N_SEND, PS_PER_US, GraphNode
from llmsim.export.step_graph.ranks_apart import RanksApart, shared_bytes
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.export.step_graph.transfers import KV_RECALL, KV_RECEIVE
from llmsim.lowering.network.base import MeshDescription, TopologyDescription
from llmsim.lowering.offload.placement import DEVICE, HOST

SMALLEST_NETWORK = 2
"""Devices of the smallest network that ASTRA-sim builds."""
STREAMS = {"cpu": "host", "pim": "pim", "link": "copy_in"}
"""A node's device -> the engine's stream that it keeps busy."""
PS_PER_NS = 1000
AJ_PER_NJ = 10**9
MESSAGE = ("send", "receive")
"""Kinds of the two ends of a message."""
Groups = dict[tuple[int, ...], int]
"""Ranks of a group that needs a name -> its number."""


def rounded_us(node: GraphNode) -> int:
    """Whole microseconds, halves up."""
    return _whole_us(node.duration_ps)


def _whole_us(ps: int) -> int:
    return (ps + PS_PER_US // 2) // PS_PER_US


FLAT = ("ring", "direct", "halvingDoubling")
"""Algorithms that system files may have over all devices as one dimension."""


def groups_of(graph: IterationGraph) -> Groups:
    """The groups of ranks that are named in a file of their own, by first use; on a topology all
    are.
    """
    everyone = tuple(range(graph.ranks)) if graph.topology is None else ()
    found = dict.fromkeys(
        node.group
        for node in graph.nodes
        if node.kind == "collective" and left_to_network(graph, node) and node.group != everyone
    )
    return {group: number for number, group in enumerate(found, start=1)}


def left_to_network(graph: IterationGraph, node: GraphNode) -> bool:
    """Whether the network that reads the traces prices a collective or message: with what other
    traffic cost it behind it, it takes the time of the run.
    """
    if node.told or (not node.on_links and node.kind not in MESSAGE):
        return False
    if _has_no_flat_form(graph, node):
        return False
    return node.lost_ps is None or (len(graph.members) == 1 and node.lost_ps >= 0)


def _several_dimensions(graph: IterationGraph) -> bool:
    """Whether the topology's file has dimensions, one after the other of which a collective of all
    its devices would run. In the run such a collective is a flat one, as all others are.
    """
    return graph.topology is not None and len(graph.topology.file.get("dimensions", ())) > 1


def _over_all(word: str) -> str:
    """The algorithm over all devices as one dimension: `ring` is `oneRing`."""
    return f"one{word[0].upper()}{word[1:]}" if word.startswith(FLAT) else word


def _has_no_flat_form(graph: IterationGraph, node: GraphNode) -> bool:
    """Whether the engine has no name for a node's algorithm over all devices at once."""
    if node.kind != "collective" or not _several_dimensions(graph):
        return False
    assert graph.topology is not None
    words = graph.implementations.get(node.collective, ("ring",))
    flat = all(word.startswith(FLAT) for word in words)
    return not flat and len(node.group) == graph.topology.num_devices


def in_step(graph: IterationGraph) -> IterationGraph:
    """The graph with the part of each node that is in the step: copies may have begun before it,
    and KV may be on its way longer.
    """
    last_ps = graph.duration_ps
    if all(node.start_ps >= 0 and node.end_ps <= last_ps for node in graph.nodes):
        return graph
    ends: dict[int, int] = {}
    nodes = []
    for node in graph.nodes:
        start_ps, end_ps = (min(max(0, one), last_ps) for one in (node.start_ps, node.end_ps))
        before_ps = max((ends[one] for one in node.depends_on), default=0)
        late_ps = node.late_ps if node.kind in KV_KINDS else start_ps - before_ps
        ends[node.node] = end_ps
        nodes.append(
            node.changed(start_ps=start_ps, duration_ps=end_ps - start_ps, late_ps=late_ps)
        )
    return replace(graph, nodes=tuple(nodes))


def rounded_ends_ps(graph: IterationGraph) -> dict[int, int]:
    """When each node ends if what is not on links takes whole microseconds, as strict rules read
    it.
    """
    ends: dict[int, int] = {}
    for node in graph.nodes:
        start = max((ends[before] for before in node.depends_on), default=0)
        duration = node.duration_ps if node.on_links else rounded_us(node) * PS_PER_US
        ends[node.node] = start + node.late_ps + duration
    return ends


def trace_of(
    graph: IterationGraph,
    rank: int,
    groups: Groups,
    ends_ps: dict[int, int],
    apart: RanksApart,
) -> list[TraceNode]:
    """The nodes of one rank, numbered from 0, and what it waits for other members before they go on
    together.
    """
    trace = _RankTrace(graph, groups, ends_ps, apart)
    for node in graph.of_rank(rank):
        trace.add(node)
    return trace.nodes


class _RankTrace:
    """The trace of one rank, node by node."""

    def __init__(
        self, graph: IterationGraph, groups: Groups, ends_ps: dict[int, int], apart: RanksApart
    ) -> None:
        self.nodes: list[TraceNode] = []
        self._apart = apart
        self._graph, self._groups, self._devices = graph, groups, _devices(graph)
        self._whole = (True,) * _dimensions(graph)
        self._exact_ps = {node.node: node.end_ps for node in graph.nodes}
        self._rounded_ps = ends_ps
        self._place: dict[int, int] = {}
        """Node of the graph -> of the trace: the last of those that stand for it."""

    def add(self, node: GraphNode) -> None:
        """Appends a node, with a wait before it and what other traffic cost it behind it; nothing
        for what the host had done before the step.
        """
        if node.kind == LAUNCH and node.end_ps == 0:
            return
        by_network = left_to_network(self._graph, node)
        after = self._waits(node, by_network=by_network)
        lost_ps = (node.lost_ps or 0) if by_network else 0
        alone = node
        if node.kind == "collective":
            alone = node.changed(duration_ps=node.duration_ps - lost_ps)
        kind, us, attributes = _form(alone, self._groups, self._devices, by_network=by_network)
        if "involved_dim" in attributes:
            attributes["involved_dim"] = self._whole
        attributes |= {"device_id": node.device_id, "power_class": node.power_class}
        if node.energy_aj:
            attributes["energy_nj"] = round(node.energy_aj / AJ_PER_NJ)
        last = self._append(f"{node.name} {node.layer}", kind, us, after, attributes)
        if by_network and node.kind in ("collective", "receive"):  # a message: at its other end
            last = self._behind(f"wait {node.layer}", self._apart.behind_ps(node), last)
            last = self._behind(f"contention {node.layer}", lost_ps, last)
        self._place[node.node] = last

    def _waits(self, node: GraphNode, *, by_network: bool) -> list[int]:
        """What a node waits for in the trace."""
        mine = [before for before in node.depends_on if before in self._place]
        after = [self._place[before] for before in mine]
        if node.kind == "receive" and by_network:
            return after  # a message is received when it is there, whatever else is waited for
        waited_ps = _waited_ps(node, mine, self._exact_ps)
        if waited_ps <= 0:
            return after
        us = max(0, _waited_ps(node, mine, self._rounded_ps)) // PS_PER_US
        if node.device == "link":  # copies, and rows of lanes, wait side by side
            return [self._append(f"wait {node.layer}", "MEM_LOAD", 0, after, _known(waited_ps))]
        known = _known(waited_ps) | _stream(node)
        return [self._append(f"wait {node.layer}", "COMP", us, after, known)]

    def _behind(self, name: str, duration_ps: int, last: int) -> int:
        """Time that a rank does nothing in behind a node; the last node then."""
        if duration_ps == 0:
            return last
        return self._append(name, "COMP", _whole_us(duration_ps), [last], _known(duration_ps))

    def _append(
        self, name: str, kind: NodeType, us: int, after: list[int], attributes: dict[str, Value]
    ) -> int:
        number = len(self.nodes)
        known: dict[str, Value] = {"is_cpu_op": False, **attributes}
        self.nodes.append(TraceNode(number, name, kind, us, after, [], known))
        return number


def _known(duration_ps: int) -> dict[str, Value]:
    """Attributes of a node that does nothing for so long."""
    return {"num_ops": 0, "tensor_size": 0, "duration_ps": duration_ps}


def _waited_ps(node: GraphNode, mine: list[int], ends_ps: Mapping[int, int]) -> int:
    """By how much later than the rank itself the node starts: others that it waits for are there so
    much later, or its devices have been busy.
    """
    if len(node.depends_on) == len(mine):
        return node.late_ps
    latest = max(ends_ps[before] for before in node.depends_on)
    return latest + node.late_ps - max((ends_ps[before] for before in mine), default=0)


def _stream(node: GraphNode) -> dict[str, Value]:
    """Where a node runs that another device than the rank's own runs: the engine's stream, and
    ASTRA-sim's slot of the processor.
    """
    if node.device == "npu":
        return {}
    return {"engine_stream": STREAMS[node.device], "is_cpu_op": node.device == HOST}


def _form(
    node: GraphNode, groups: Groups, devices: Sequence[int], *, by_network: bool
) -> tuple[NodeType, int, dict[str, Value]]:
    """(type, microseconds, attributes) of a node."""
    if node.kind in MESSAGE and by_network:
        sends = node.kind == "send"
        end: dict[str, Value] = (
            {"comm_dst": devices[node.group[1]]} if sends else {"comm_src": devices[node.group[0]]}
        )
        return (
            "COMM_SEND" if sends else "COMM_RECV",
            0,
            {**end, "comm_size": node.bytes_moved, "comm_tag": 0},
        )
    if node.kind == "collective" and by_network:
        size = shared_bytes(node) if node.collective == "all_gather" else node.bytes_moved
        number = groups.get(node.group)
        whole: dict[str, Value] = (
            {"involved_dim": (True,)} if number is None else {"pg_name": str(number)}
        )
        return (
            "COMM_COLL",
            0,
            {"comm_type": COLLECTIVES.index(node.collective.upper()), "comm_size": size, **whole},
        )
    lasts: dict[str, Value] = {"tensor_size": node.bytes_moved, "duration_ps": node.duration_ps}
    if node.kind in KV_KINDS:
        # Without a layer that it waits for, it counts from the start of the step.
        lasts["duration_ps"] = node.end_ps - (node.start_ps if node.depends_on else 0)
        kind: NodeType = "MEM_LOAD" if node.kind in (KV_RECEIVE, KV_RECALL) else "MEM_STORE"
        return kind, 0, {**lasts, "start_ps": node.start_ps, "route": node.route}
    if node.kind in (M2N_SEND, M2N_RECEIVE):
        kind = "MEM_STORE" if node.kind == M2N_SEND else "MEM_LOAD"
        return kind, 0, {**lasts, "route": node.route}
    if node.kind == "copy":
        loads = node.route.endswith(f" {DEVICE}")
        return "MEM_LOAD" if loads else "MEM_STORE", 0, {**lasts, "route": node.route}
    return "COMP", rounded_us(node), {"num_ops": node.flops, **lasts, **_stream(node)}


def _dimensions(graph: IterationGraph) -> int:
    """Of the network of the traces."""
    match graph.network:
        case MeshDescription(dimensions=dimensions):
            return max(1, sum(size > 1 for size, _, _ in dimensions))
        case TopologyDescription():
            return 1


def _devices(graph: IterationGraph) -> Sequence[int]:
    """The number of each rank on the network of the traces."""
    return range(graph.ranks) if graph.topology is None else graph.topology.devices


def write_chakra(graph: IterationGraph, ranks: list[int], folder: Path) -> list[Path]:
    """`workload.<device>.et` for each rank, and system, network, memory and group files of the
    domain; the paths.

    Collectives run by the algorithms that price them in the program. The network is the domain's
    own full meshes, on which rank and device are the same; of a cluster with a topology it is that
    one, and with all ranks its other devices have empty traces. A group of one device has a network
    of SMALLEST_NETWORK devices, of which the others have one node of no duration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = in_step(graph)
    groups, ends_ps, apart = groups_of(graph), rounded_ends_ps(graph), RanksApart(graph)
    devices = _devices(graph)
    traces = {devices[rank]: trace_of(graph, rank, groups, ends_ps, apart) for rank in ranks}
    if graph.topology is None and graph.ranks == 1:
        idle: dict[str, Value] = {"is_cpu_op": False, "num_ops": 0, "tensor_size": 0}
        traces[SMALLEST_NETWORK - 1] = [
            TraceNode(0, "idle", "COMP", attributes=idle)
        ]  # strict rules need a node
    if graph.topology is not None and len(ranks) == graph.ranks:
        traces |= {
            device: [] for device in range(graph.topology.num_devices) if device not in traces
        }
    written = []
    for device in sorted(traces):
        written.append(folder / f"workload.{device}.et")
        write_trace(written[-1], traces[device])
    texts = {
        **_network(graph),
        "memory.json": json.dumps(_memory(graph)) + "\n",
    }
    if groups:
        lists = {str(number): [devices[rank] for rank in group] for group, number in groups.items()}
        texts["comm_group.json"] = json.dumps(lists) + "\n"
    for name, text in texts.items():
        written.append(folder / name)
        written[-1].write_text(text)
    return written


def _memory(graph: IterationGraph) -> dict[str, str | int]:
    """The file of the memory beside the devices, at the rate of the step's largest copy."""
    copies = [node for node in graph.nodes if node.kind == "copy" and node.duration_ps]
    if not copies:
        return {"memory-type": "NO_MEMORY_EXPANSION"}
    largest = max(copies, key=lambda node: (node.bytes_moved, -node.node))
    gb_per_s = round(largest.bytes_moved * PS_PER_NS / largest.duration_ps)
    return {
        "memory-type": "PER_NPU_MEMORY_EXPANSION",
        "remote-mem-latency": 0,
        "remote-mem-bw": max(1, gb_per_s),
    }


def _network(graph: IterationGraph) -> dict[str, str]:
    """The files of the network and of the system, by name; arriving messages are reduced in the
    device's own memory.
    """
    match graph.network:
        case TopologyDescription(file=file):
            network, count = {"network.json": json.dumps(file, indent=1) + "\n"}, 1
        case MeshDescription(dimensions=dimensions, shape=shape):
            wide = [one for one in dimensions if one[0] > 1]
            meshes = wide or [(SMALLEST_NETWORK, *dimensions[0][1:])]
            network, count = {"network.yml": network_file(meshes, shape)}, len(meshes)
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    words = {kind: graph.implementations.get(kind, ("ring",)) for kind in kinds}
    if _several_dimensions(graph):
        words = {kind: tuple(map(_over_all, given)) for kind, given in words.items()}
    system = {
        "scheduling-policy": "LIFO", "endpoint-delay": 0, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1, "collective-optimization": "baseline",
        "local-mem-bw": graph.memory_bytes_per_s / 1e9,
        **{
            f"{kind.replace('_', '-')}-implementation": [
                given[min(dimension, len(given) - 1)] for dimension in range(count)
            ]
            for kind, given in words.items()
        },
    }  # fmt: skip
    return {"system.json": json.dumps(system, indent=2) + "\n", **network}
