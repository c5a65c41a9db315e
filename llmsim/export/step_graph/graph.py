"""One iteration made concrete: every operator of every rank as a node, with when it runs and what
it depends on.

Of a group with pipeline stages or data-parallel ranks in lock-step it is the iteration of all of
them: device t + R (s + S m) is rank t of R in stage s of S of member m, as in the core. Nothing
runs before it, and links are free. KV that moved in the run meanwhile is in the graph, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmsim.config.errors import NotYetError
from llmsim.export.step_graph.energy import with_energy
from llmsim.export.step_graph.nodes import GraphNode, Ranks
from llmsim.export.step_graph.rows import Item, padded_tokens, rows_of
from llmsim.export.step_graph.streams import Drafts, step_nodes
from llmsim.export.step_graph.transfers import KINDS as KV_KINDS
from llmsim.export.step_graph.transfers import Window, kv_nodes
from llmsim.lowering import LoweredGroup
from llmsim.lowering.energy.accounting import Accounting
from llmsim.lowering.energy.step import StepEnergy
from llmsim.lowering.network.base import MeshDescription, TopologyDescription
from llmsim.lowering.network.cluster_network import ClusterNetwork

Span = tuple[int, int]
"""Start and end, in ps of the run."""


@dataclass(frozen=True)
class Round:
    """The batches that run together in one iteration."""

    iteration: int
    step: int
    """Steps of these groups so far, this one included: dummies count, too."""
    members: tuple[int, ...]
    """Groups, in the order of their devices."""
    items: tuple[tuple[Item, ...], ...]
    """Of each member; none: it joins with a dummy of one token."""
    times_ps: tuple[tuple[int, int], ...]
    """When each member began and ended, in ps of the run."""
    accounting: Accounting
    """What devices and bytes draw."""
    transfers: Mapping[str, Any] = field(repr=False, default_factory=dict)
    """Those of the run so far, columns of `llmsim.columns.TransferColumns`; none: not recorded."""
    network: ClusterNetwork | None = field(repr=False, default=None)
    """What they move on; None: groups share nothing."""
    exchanges: tuple[Mapping[int, tuple[Span, ...]], ...] = field(repr=False, default=())
    """Of each member: operator of its program -> start and end of each of its executions, in ps of
    the run, for collectives and hand-overs on shared links.
    """
    stage_starts_ps: tuple[tuple[int, ...], ...] = ()
    """Of each member on shared links: when its stages began to work on the step; none with one."""
    drafts: tuple[Drafts, ...] = ()
    """Of each member: what its drafter proposes at the end of the step."""
    ends_before_ps: tuple[int, ...] = ()
    """When each member's step before has ended; none: before this one has begun."""

    @property
    def busy_ps(self) -> tuple[tuple[int, int], ...]:
        """Of each member: from when until when nothing but this step keeps its devices active.

        Steps of a pipeline overlap; the time of both is the earlier one's, as in the run's energy.
        """
        if not self.ends_before_ps:
            return self.times_ps
        ends = zip(self.times_ps, self.ends_before_ps, strict=True)
        return tuple((max(start, before), end) for (start, end), before in ends)


NO_NETWORK = MeshDescription(())


@dataclass(frozen=True)
class IterationGraph:
    """The nodes of one iteration of one domain, each rank's in execution order."""

    group: int
    model: str
    hardware: str
    memory_bytes_per_s: int
    """Of each device's own memory."""
    ranks: int
    iteration: int
    items: tuple[Item, ...]
    """The batch of `group`."""
    padded_tokens: int
    nodes: tuple[GraphNode, ...] = field(repr=False)
    members: tuple[int, ...] = ()
    batches: tuple[tuple[Item, ...], ...] = ()
    """Of each member."""
    network: MeshDescription | TopologyDescription = NO_NETWORK
    implementations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind of collective -> its algorithms by dimension; kinds that are absent run as rings."""
    energy: tuple[StepEnergy | None, ...] = ()
    """Of each member's step, without KV; None: its node does not say what it draws."""
    stages: int = 1
    """Pipeline stages of a member."""

    @property
    def topology(self) -> TopologyDescription | None:
        """The cluster's topology; None where the network is a mesh per dimension."""
        return self.network if isinstance(self.network, TopologyDescription) else None

    def of_rank(self, rank: int) -> tuple[GraphNode, ...]:
        """The nodes of one rank."""
        return tuple(node for node in self.nodes if node.rank == rank)

    @property
    def duration_ps(self) -> int:
        """From the first node to the end of the last one that is the step's own: KV of requests
        may be on its way longer.
        """
        return max((node.end_ps for node in self.nodes if node.kind not in KV_KINDS), default=0)

    def unit_ends_ps(self) -> tuple[int, ...]:
        """When each stage of each member is done, with its hand-over to the next stage."""
        share = self.ranks // (len(self.members) * self.stages)
        ends_ps = [0] * (self.ranks // share)
        for node in self.nodes:
            if node.kind not in KV_KINDS:
                unit = node.rank // share
                ends_ps[unit] = max(ends_ps[unit], node.end_ps)
        return tuple(ends_ps)

    def member_ends_ps(self) -> tuple[int, ...]:
        """When each member is done."""
        ends_ps = self.unit_ends_ps()
        return tuple(
            max(ends_ps[first : first + self.stages])
            for first in range(0, len(ends_ps), self.stages)
        )


def refuse_without_graph(lowered: LoweredGroup) -> None:
    """NotYetError for a group whose steps no graph holds."""
    if lowered.layout.domain:
        raise NotYetError(
            f"group {lowered.info.index} runs attention and FFN on devices apart; this version "
            "has no graphs of its steps, so choose another group"
        )


def iteration_graph(groups: Sequence[LoweredGroup], group: int, batch: Round) -> IterationGraph:
    """The graph of the iteration that `group` is part of; NotYetError where there is none."""
    domain = [groups[index] for index in batch.members]
    first = domain[0]
    refuse_without_graph(first)
    padded = padded_tokens(first, batch.items)
    rows = [
        rows_of(lowered, items, tokens, sum(padded))
        for lowered, items, tokens in zip(domain, batch.items, padded, strict=True)
    ]
    nodes, activities = step_nodes(domain, batch.items, rows, batch.step, batch.drafts)
    nodes, energy = with_energy(
        nodes, batch.accounting, batch.members, activities, batch.busy_ps, domain[0].layout
    )
    if batch.network is not None and len(batch.transfers.get("bytes", ())):
        starts, ends = zip(*batch.times_ps, strict=True)
        window = Window(min(starts), max(ends))
        nodes += kv_nodes(
            batch.transfers, batch.network, batch.members, window, nodes, batch.accounting
        )
    info = groups[group].info
    place = batch.members.index(group)
    return IterationGraph(
        group=info.index,
        model=info.model_name,
        hardware=info.hardware,
        memory_bytes_per_s=first.memory_bytes_per_s,
        ranks=Ranks(first.layout, len(domain)).count,
        iteration=batch.iteration,
        items=batch.items[place],
        padded_tokens=padded[place],
        nodes=nodes,
        members=batch.members,
        batches=batch.items,
        network=first.links.description,
        implementations=first.links.algorithms.words,
        energy=energy,
        stages=first.layout.pp,
    )
