"""Topologies that ASTRA-sim's network files cannot say, as full meshes that are as fast.

ASTRA-sim's networks have one rate and one latency per dimension. A full mesh has a link for each
pair of ranks, so that messages do not share any: its rate is what a message gets on the routes
while all others of its collective are under way, and its latency is what a message takes beside
that. What still takes another time there keeps the time that the run has for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from llmsim._native import engine
from llmsim.config.deployment import LinkSpec
from llmsim.core import Int64
from llmsim.export.step_graph.graph import IterationGraph
from llmsim.export.step_graph.nodes import GraphNode
from llmsim.export.step_graph.ranks_apart import traced_bytes
from llmsim.lowering import LoweredGroup
from llmsim.lowering.network.base import MeshDescription, NetworkView
from llmsim.lowering.network.mesh import MeshView
from llmsim.lowering.network.topology import TopologyView
from llmsim.model import Collective
from llmsim.model.layout import Among
from llmsim.model.operator import collective

SIZES_BYTES = np.array([64 << 10, 64 << 20], np.int64)
"""Of a tensor: between them times on the routes are taken as linear."""
UNIT_RATE, UNIT_LATENCY_PS = 10**9, 10**6
PS_PER_S = 10**12
SHARE_OFF = 1000
"""Times are equal that differ by this part of the longer one, or by a nanosecond a rank."""
PS_PER_NS = 1000


@dataclass
class FittedMesh:
    """A full mesh for the collectives and messages of a domain, and what it does not price."""

    view: TopologyView
    operators: Sequence[Collective]
    """By the names of the nodes that they are in graphs."""
    kept: dict[str, None] = field(default_factory=dict)
    """Names of collectives and messages that kept the run's own times in some step."""
    _known: dict[tuple[str, int, int], bool] = field(default_factory=dict, repr=False)

    @cached_property
    def mesh(self) -> MeshView:
        """The mesh, whose dimensions are ranks of a stage, stages, and members."""
        links = [self._link(op) for op in _probes(self.view)] or [(UNIT_RATE, UNIT_LATENCY_PS)]
        if self.view.layout.stage_ranks == 1:
            links.insert(0, links[0])
        return _mesh(self.view, links)

    @property
    def description(self) -> MeshDescription:
        """The mesh as traces have it."""
        return self.mesh.description

    @property
    def note(self) -> str:
        """A sentence on what the mesh assumes."""
        sizes = " and ".join(
            f"{size} ranks by {rate / 1e9:.4g} GB/s and {latency_ps / PS_PER_NS:g} ns"
            for size, rate, latency_ps in self.description.dimensions
        )
        name = self.view.routes.placed.spec.name
        said = f"its network files do not say topology {name}, so that a full mesh joins {sizes}"
        if self.kept:
            said += (
                f"; the run's own times stand for {', '.join(self.kept)}, which would differ there"
            )
        return said

    def applied(self, graph: IterationGraph) -> IterationGraph:
        """The graph on the mesh; nodes that would take another time there have known durations."""
        sent = {node.node: node for node in graph.nodes if node.kind == "send"}
        nodes = []
        for node in graph.nodes:
            of = node
            if node.kind == "receive":
                of = next(sent[one] for one in node.depends_on if one in sent)
            if of.kind in ("collective", "send") and not self._fits(graph, of):
                self.kept[of.name] = None
                node = node.changed(told=True)
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes), network=self.description)

    def _fits(self, graph: IterationGraph, node: GraphNode) -> bool:
        """Whether the mesh gives the node its time in the graph."""
        if node.kind == "collective" and not node.on_links:
            return True  # of known duration anyway
        everyone = len(node.group) == graph.ranks
        if everyone and len(self.description.dimensions) > 1:
            return False  # ASTRA-sim runs it dimension by dimension
        key = node.name, node.bytes_moved, node.duration_ps
        if key not in self._known:
            self._known[key] = self._equal(node)
        return self._known[key]

    def _equal(self, node: GraphNode) -> bool:
        op = next((op for op in self.operators if op.name == node.name), None)
        if op is None or op.collective == "broadcast":
            return False
        there_ps = int(self.mesh.price(op, np.array([traced_bytes(node)], np.int64), 0).ps[0])
        off_ps = abs(there_ps - node.duration_ps)
        return off_ps <= max(there_ps // SHARE_OFF, PS_PER_NS * len(node.group))

    def _link(self, op: Collective) -> tuple[int, int]:
        """(bytes/s, latency in ps) with which a mesh gives the collective the times that it has on
        the routes.

        On a mesh a collective of B bytes takes a x latency + b x B / rate; both numbers are those
        of a mesh of known links.
        """
        small, large = self._on_routes(op)
        instant = _mesh(self.view, [(UNIT_RATE, 0)]).price(op, SIZES_BYTES, 0).ps
        late = _mesh(self.view, [(UNIT_RATE, UNIT_LATENCY_PS)]).price(op, SIZES_BYTES, 0).ps
        moved = int(instant[1] - instant[0])  # b (B1 - B0) / UNIT_RATE
        rate = max(1, round(UNIT_RATE * moved / max(1, large - small)))
        messages = (int(late[0]) - int(instant[0])) / UNIT_LATENCY_PS
        waits_ps = small - int(instant[0]) * UNIT_RATE / rate
        return rate, max(0, round(waits_ps / max(1, messages)))

    def _on_routes(self, op: Collective) -> tuple[int, int]:
        """The times of both sizes in the stage where the larger one takes longest."""
        routes = replace(self.view, nccl=None)
        last = self.view.layout.pp - (op.collective == "send")
        times: list[Int64] = [routes.price(op, SIZES_BYTES, stage).ps for stage in range(last)]
        slowest = max(times, key=lambda ps: int(ps[1]))
        return int(slowest[0]), int(slowest[1])


def fitted_mesh(lowered: LoweredGroup) -> FittedMesh | None:
    """The mesh of a group and its members; None where there is no topology."""
    if not isinstance(lowered.links, TopologyView):
        return None
    drafts = () if lowered.draft is None else lowered.draft.operators
    named = [
        op
        for operators in (lowered.operators, *drafts)
        for op in operators
        if isinstance(op, Collective)
    ]
    return FittedMesh(lowered.links, named)


def _mesh(view: NetworkView, links: Sequence[tuple[int, int]]) -> MeshView:
    """A mesh for a domain, with (bytes/s, latency in ps) by dimension."""
    rates, latencies_ps = zip(*links, strict=True)
    return MeshView(
        layout=view.layout,
        members=view.members,
        network=engine.NetworkKind.CONGESTION_UNAWARE,
        algorithms=view.algorithms,
        nodes=1,
        nccl=None,
        spec=LinkSpec(rates, latencies_ps),
    )


def _probes(view: TopologyView) -> list[Collective]:
    """A collective in each dimension: of the ranks of a stage, between stages, between members."""
    layout = view.layout
    inside: Among = "tp" if layout.tp > 1 or layout.prefill_context == 1 else "pcp"
    found = []
    if layout.stage_ranks > 1:
        found.append(collective("probe", "all_reduce", inside, 1, part="layer", repeat=1))
    if layout.pp > 1:
        found.append(collective("probe", "send", "stages", 1, part="layer", repeat=1))
    if view.members > 1:
        found.append(collective("probe", "all_gather", "members", 1, part="layer", repeat=1))
    return found
