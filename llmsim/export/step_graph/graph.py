"""One iteration made concrete: every operator of every rank as a node, with when it runs and what
it depends on.

Of a group with pipeline stages or data-parallel ranks in lock-step it is the iteration of all of
them: device t + R (s + S m) is rank t of R in stage s of S of member m, as in the core. Nothing
runs before it, and links are free. KV that moved in the run meanwhile is in the graph, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from llmsim import _native
from llmsim.config.errors import InputError
from llmsim.export.step_graph.afd import afd_nodes, member_of_ranks, sides_of
from llmsim.export.step_graph.core_nodes import CoreNode, CorePlace, Span, StepSpans
from llmsim.export.step_graph.energy import with_energy
from llmsim.export.step_graph.nodes import GraphNode, Ranks
from llmsim.export.step_graph.rows import Item, padded_tokens, rows_of
from llmsim.export.step_graph.streams import Drafts, StepNodes, step_nodes
from llmsim.export.step_graph.transfers import Window, is_waited_for, kv_nodes
from llmsim.lowering import LoweredGroup
from llmsim.lowering.energy.accounting import Accounting
from llmsim.lowering.energy.step import StepEnergy
from llmsim.lowering.network.base import MeshDescription, TopologyDescription
from llmsim.lowering.network.cluster_network import ClusterNetwork


@dataclass(frozen=True)
class Round:
    """The batches that run together in one iteration."""

    iteration: int | None
    """None: the group whose step it is joins with a dummy."""
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
    spans: tuple[StepSpans, ...] = field(repr=False, default=())
    """Of each member: when its nodes ran whose times the step alone does not tell."""
    drafts: tuple[Drafts, ...] = ()
    """Of each member: what its drafter proposes at the end of the step."""
    ends_before_ps: tuple[int, ...] = ()
    """When each member's step before has ended; none: before this one has begun."""
    adapters: tuple[tuple[int, ...], ...] = ()
    """Of each member: what it has of LoRA adapters, as in a schedule's `adapter_use`."""
    afd: _native.AfdConfig | None = field(repr=False, default=None)
    """How attention members, the first ones, and FFN members run it together; None: all run whole
    layers.
    """
    attention_members: int = 0

    @property
    def exchanges(self) -> tuple[Mapping[int, tuple[Span, ...]], ...]:
        """Of each member: operator of its program -> start and end of each of its executions, in ps
        of the run, for collectives and hand-overs on shared links.
        """
        return tuple(one.exchanges for one in self.spans)

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
    iteration: int | None
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
    devices: tuple[int, ...] = ()
    """Devices of a stage of each member, where members differ."""
    places: tuple[CorePlace, ...] = field(repr=False, default=())
    """Of each node but KV, by its number: where it comes from."""
    core: tuple[CoreNode, ...] = field(repr=False, default=())
    """The core's nodes of the step."""

    @property
    def called(self) -> str:
        """The step as titles name it."""
        return "a dummy" if self.iteration is None else f"iteration {self.iteration}"

    @property
    def topology(self) -> TopologyDescription | None:
        """The cluster's topology; None where the network is a mesh per dimension."""
        return self.network if isinstance(self.network, TopologyDescription) else None

    def of_rank(self, rank: int) -> tuple[GraphNode, ...]:
        """The nodes of one rank."""
        return tuple(node for node in self.nodes if node.rank == rank)

    @property
    def duration_ps(self) -> int:
        """From the start to the end of the last node that the step waits for: KV may be on its way
        longer.
        """
        return max((node.end_ps for node in self.nodes if is_waited_for(node)), default=0)

    @property
    def units(self) -> list[int]:
        """Of each rank: its stage of its member, counted over all members."""
        members = len(self.members)
        devices = self.devices or (self.ranks // (members * self.stages),) * members
        return [
            member * self.stages + stage
            for member, each in enumerate(devices)
            for stage in range(self.stages)
            for _ in range(each)
        ]

    def unit_ends_ps(self) -> tuple[int, ...]:
        """When each stage of each member is done, with its hand-over to the next stage; the last
        one with what the member's end waits for, which may be launches of others.
        """
        units = self.units
        awaiting: dict[int, list[int]] = defaultdict(list)
        for one in self.core:
            if one.role == _native.NodeRole.END:
                for number in self._awaited(one):
                    awaiting[number].append(one.unit)
        ends_ps = [0] * (len(self.members) * self.stages)
        for node in filter(is_waited_for, self.nodes):
            others = awaiting.get(self.places[node.node].number, ()) if awaiting else ()
            for unit in (units[node.rank], *others):
                ends_ps[unit] = max(ends_ps[unit], node.end_ps)
        return tuple(ends_ps)

    def _awaited(self, node: CoreNode) -> Iterator[int]:
        """Numbers of the core's nodes that one waits for, past those where members meet."""
        for number in node.after:
            before = self.core[number]
            if before.role == _native.NodeRole.MEET:
                yield from self._awaited(before)
            else:
                yield number

    def member_ends_ps(self) -> tuple[int, ...]:
        """When each member is done."""
        ends_ps = self.unit_ends_ps()
        return tuple(
            max(ends_ps[first : first + self.stages])
            for first in range(0, len(ends_ps), self.stages)
        )


def refuse_without_steps(groups: Sequence[LoweredGroup], group: int) -> None:
    """InputError for a group that computes FFNs for others: its steps are in their graphs."""
    if groups[group].layout.domain == "ffn":
        others = [one.info.index for one in groups if one.layout.domain == "attention"]
        raise InputError(
            f"group {group} computes FFNs for attention groups, and is in the graphs of their "
            f"steps; choose one of these, such as group {others[0]}",
            field="group",
            value=group,
        )


@dataclass(frozen=True)
class _Made:
    """What members that run whole layers, or attention and FFN members, make of a step."""

    step: StepNodes
    padded_tokens: Sequence[int]
    places: Sequence[tuple[int, int]]
    """Of each rank: its member, and its number there."""
    network: MeshDescription | TopologyDescription
    devices: tuple[int, ...] = ()


def _whole_layers(domain: Sequence[LoweredGroup], batch: Round) -> _Made:
    first = domain[0]
    padded = padded_tokens(first, batch.items)
    adapters = batch.adapters or ((),) * len(domain)
    rows = [
        rows_of(lowered, items, tokens, sum(padded), own)
        for lowered, items, tokens, own in zip(domain, batch.items, padded, adapters, strict=True)
    ]
    slowed_ps = [one.slowed_ps for one in batch.spans]
    step = step_nodes(
        domain, batch.items, rows, batch.step, batch.drafts, batch.adapters, slowed_ps
    )
    each = first.layout.stage_ranks * first.layout.pp
    places = [divmod(rank, each) for rank in range(Ranks(first.layout, len(domain)).count)]
    return _Made(step, padded, places, first.links.description)


def _apart(domain: Sequence[LoweredGroup], batch: Round) -> _Made:
    """Of attention and FFN members. All of their nodes last as long as in the core, so that the
    network of the graph has nothing to price.
    """
    assert batch.afd is not None, "the caller looked"
    sides = sides_of(domain, batch.attention_members)
    step = afd_nodes(domain, batch.afd, batch.items, batch.step, sides, batch.drafts)
    padded = [
        padded_tokens(one, [items])[0] for one, items in zip(domain, batch.items, strict=True)
    ]
    network = domain[0].links.description
    if isinstance(network, TopologyDescription):
        devices = [one.links.description for one in domain]
        placed = [one.devices for one in devices if isinstance(one, TopologyDescription)]
        network = replace(network, devices=tuple(device for own in placed for device in own))
    else:
        network = MeshDescription(((sides.count, *network.dimensions[0][1:]),))
    places = member_of_ranks(sides)
    return _Made(step, padded, places, network, sides.each)


def iteration_graph(groups: Sequence[LoweredGroup], group: int, batch: Round) -> IterationGraph:
    """The graph of the iteration that `group` is part of."""
    domain = [groups[index] for index in batch.members]
    first = domain[0]
    made = _whole_layers(domain, batch) if batch.afd is None else _apart(domain, batch)
    nodes, energy = with_energy(
        made.step.nodes,
        batch.accounting,
        batch.members,
        made.step.activities,
        batch.busy_ps,
        made.places,
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
        ranks=len(made.places),
        iteration=batch.iteration,
        items=batch.items[place],
        padded_tokens=made.padded_tokens[place],
        nodes=nodes,
        members=batch.members,
        batches=batch.items,
        network=made.network,
        implementations=first.links.algorithms.words,
        energy=energy,
        stages=first.layout.pp,
        devices=made.devices,
        places=made.step.places,
        core=made.step.core,
    )
