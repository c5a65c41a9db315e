"""Which ranks are done with their part of a collective, or have a message, before the others.

In a run ranks go on together when the last of them is done. On the routes of a topology, which are
of unequal length, the network that reads traces lets each rank go on by itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cached_property

from llmsim._native import engine
from llmsim.config.cluster_file.loading import parse_json
from llmsim.config.topology.file import parse_topology
from llmsim.export.step_graph.graph import IterationGraph
from llmsim.export.step_graph.nodes import GraphNode
from llmsim.lowering.network.algorithms import KINDS
from llmsim.lowering.network.base import NETWORKS, NO_INCAST

PPM_PER_PERCENT = 10_000
Groups = tuple[tuple[int, ...], ...]
Place = tuple[int, int, str, int]
"""Node of the core, part, name and layer."""


class RanksApart:
    """Says how long each rank of a graph waits for the others behind what they do together."""

    def __init__(self, graph: IterationGraph) -> None:
        self._graph = graph
        self._ends_ps: dict[tuple[str, int, Groups], dict[int, int]] = {}

    def behind_ps(self, node: GraphNode) -> int:
        """How much later than the rank itself the last one is done, of a collective that links
        price or of the receipt of a message; alone on the links.
        """
        topology = self._graph.topology
        if topology is None:
            return 0
        sent = node if node.kind != "receive" else self._graph.nodes[node.depends_on[0]]
        ends_ps = self._ends_of(sent)
        mine = topology.devices[node.rank]
        return max(ends_ps.values()) - ends_ps[mine]

    def _ends_of(self, node: GraphNode) -> dict[int, int]:
        """Device -> when it is done, after the start that all ranks of the core's node have."""
        assert self._graph.topology is not None, "the caller looked"
        devices = self._graph.topology.devices
        groups = tuple(
            tuple(devices[rank] for rank in group) for group in self._together[self._place(node)]
        )
        place = node.collective, node.bytes_moved, groups
        if place not in self._ends_ps:
            self._ends_ps[place] = self._simulated(node, groups)
        return self._ends_ps[place]

    @cached_property
    def _together(self) -> dict[Place, list[tuple[int, ...]]]:
        """Where a collective or message stands -> the groups of ranks that do it at once."""
        found: dict[Place, dict[tuple[int, ...], None]] = defaultdict(dict)
        for node in self._graph.nodes:
            if node.kind in ("collective", "send"):
                found[self._place(node)][node.group] = None
        return {place: list(groups) for place, groups in found.items()}

    def _place(self, node: GraphNode) -> Place:
        """A drafter's passes, which are one node of the core, are parts of their own."""
        number = self._graph.places[node.node].number
        return number, node.part, node.name, node.layer

    def _simulated(self, node: GraphNode, groups: Groups) -> dict[int, int]:
        topology = self._graph.topology
        assert topology is not None, "the caller looked"
        sends = node.kind == "send"
        words = self._graph.implementations.get(node.collective, ("ring",))
        together = engine.ConcurrentDurations(
            self._network,
            NETWORKS[topology.network],
            list(map(list, groups)),
            None if sends else KINDS[node.collective],  # type: ignore[index]
            engine.AlgorithmChoice.parse(words[0]),
            _incast(topology.incast),
        )
        ends = together.ends_ps(traced_bytes(node))
        return {
            device: end_ps
            for group, ends_ps in zip(groups, ends, strict=True)
            for device, end_ps in list(zip(group, ends_ps, strict=True))[sends:]
        }

    @cached_property
    def _network(self) -> engine.Topology:
        assert self._graph.topology is not None, "the caller looked"
        text = json.dumps(self._graph.topology.file)
        network: engine.Topology = parse_topology(parse_json(text, "topology")).build(engine)
        return network


def traced_bytes(node: GraphNode) -> int:
    """The bytes with which the network that reads traces prices a collective or a message: of an
    all-gather as often one rank's share, in whole bytes, as it has ranks.
    """
    if node.collective != "all_gather":
        return node.bytes_moved
    return shared_bytes(node) * len(node.group)


def shared_bytes(node: GraphNode) -> int:
    """One rank's input of an all-gather, which Chakra has where we have the whole tensor."""
    return -(-node.bytes_moved // len(node.group))


def _incast(described: str) -> engine.Incast:
    if not described:
        return NO_INCAST
    buffer_bytes, burst_bytes, percent = map(int, described.split(":"))
    return engine.Incast(buffer_bytes, burst_bytes, percent * PPM_PER_PERCENT)
