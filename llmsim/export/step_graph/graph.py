"""One iteration made concrete: every operator of every rank as a node, with when it runs and what
it depends on.

Of a group with pipeline stages or data-parallel ranks in lock-step it is the iteration of all of
them: device t + R (s + S m) is rank t of R in stage s of S of member m, as in the core. Nothing
runs before it, and links are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmsim.config.errors import NotYetError
from llmsim.export.step_graph.nodes import GraphNode, Ranks
from llmsim.export.step_graph.rows import Item, Row, in_order, padded_tokens, rows_of
from llmsim.export.step_graph.streams import offloaded_nodes
from llmsim.lowering import LoweredGroup
from llmsim.lowering.network.mesh import DomainLinks
from llmsim.lowering.network.topology import RoutedLinks
from llmsim.model import Layout


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


@dataclass(frozen=True)
class OnTopology:
    """The cluster's network, and where on it the ranks are."""

    file: Mapping[str, Any]
    """A topology file (`llmsim.config.topology.file`)."""
    num_devices: int
    devices: tuple[int, ...]
    """Of each rank."""
    network: str
    """The command `astra-sim`'s name of how messages contend there."""


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
    dimensions: tuple[tuple[int, int, int], ...] = ()
    """Of the network: (devices, bytes/s, ps), the first varying fastest."""
    topology: OnTopology | None = None
    """Instead of dimensions."""

    def of_rank(self, rank: int) -> tuple[GraphNode, ...]:
        """The nodes of one rank."""
        return tuple(node for node in self.nodes if node.rank == rank)

    @property
    def duration_ps(self) -> int:
        """From the first node to the last one's end."""
        return max((node.end_ps for node in self.nodes), default=0)

    def member_ends_ps(self) -> tuple[int, ...]:
        """When each member's last stage is done."""
        share = self.ranks // len(self.members)
        return tuple(
            max(node.end_ps for node in self.nodes if node.rank // share == member)
            for member in range(len(self.members))
        )


def iteration_graph(groups: Sequence[LoweredGroup], group: int, batch: Round) -> IterationGraph:
    """The graph of the iteration that `group` is part of.

    NotYetError where a drafter's passes are part of the step.
    """
    domain = [groups[index] for index in batch.members]
    first = domain[0]
    if first.draft is not None:
        raise NotYetError(
            f"group {first.info.index} has a drafter with a model; graphs of steps with its "
            "passes are not exported by "
            "this version: leave the speculative_config out, or say the method ngram"
        )
    padded = padded_tokens(first, batch.items)
    rows = [
        rows_of(lowered, items, tokens, sum(padded), batch.step)
        for lowered, items, tokens in zip(domain, batch.items, padded, strict=True)
    ]
    if first.offload is not None:
        nodes = offloaded_nodes(domain, batch.items, rows, batch.step)
    else:
        nodes = tuple(_Maker(first.layout, len(domain), rows).nodes())
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
        dimensions=first.links.dimensions,
        topology=_on_topology(first.links),
    )


def _on_topology(links: DomainLinks | RoutedLinks) -> OnTopology | None:
    if not isinstance(links, RoutedLinks):
        return None
    spec = links.routes.placed.spec
    return OnTopology(spec.as_file(), spec.num_devices(), tuple(links.domain), links.network_name)


class _Maker:
    """Makes the nodes of a domain in the order of time, rank by rank within an operator."""

    def __init__(self, layout: Layout, members: int, rows: Sequence[Sequence[Row]]) -> None:
        self._members, self._rows = members, rows
        self._each, self._stages = layout.stage_ranks, layout.pp
        self._numbers = Ranks(layout, members)
        self.ranks = self._numbers.count
        self._count = 0
        self._before: list[tuple[int, ...]] = [()] * self.ranks
        self._at = [0] * members

    def nodes(self) -> Iterator[GraphNode]:
        """All of them."""
        for stage in range(self._stages):
            yield from self._stage(stage)

    def _stage(self, stage: int) -> Iterator[GraphNode]:
        """Members run alike; those that lack what an operator works on, such as sequences, leave it
        out.
        """
        together = False
        for step in zip(
            *(in_order([row for row in rows if row.stage == stage]) for rows in self._rows),
            strict=True,
        ):
            row, layer = step[0]
            if row.together and not together:
                self._meet(stage)
            together = row.together
            if row.kind == "send":
                yield from self._hand_over(stage, step)
                continue
            for member, (mine, _) in enumerate(step):
                if mine.absent:
                    continue
                for device in range(self._each):
                    yield self._node(
                        self._numbers.number(member, stage, device), mine, layer, self._at[member]
                    )
                self._at[member] += mine.duration_ps(layer)

    def _meet(self, stage: int) -> None:
        """All members wait for the slowest."""
        self._at = [max(self._at)] * self._members
        for device in range(self._each):
            ranks = [self._numbers.number(member, stage, device) for member in range(self._members)]
            everyone = tuple(node for rank in ranks for node in self._before[rank])
            for rank in ranks:
                mine = self._before[rank]
                self._before[rank] = (*mine, *(node for node in everyone if node not in mine))

    def _hand_over(self, stage: int, step: Sequence[tuple[Row, int]]) -> Iterator[GraphNode]:
        for member, (row, layer) in enumerate(step):
            for device in range(self._each):
                rank, next_rank = (
                    self._numbers.number(member, at, device) for at in (stage, stage + 1)
                )
                sent = self._node(rank, row, layer, self._at[member], group=(rank, next_rank))
                self._before[next_rank] = (sent.node,)
                yield sent
                end = sent.end_ps
                yield self._node(next_rank, row.received(), layer, end, group=(rank, next_rank))
            self._at[member] += row.duration_ps(layer)

    def _node(
        self, rank: int, row: Row, layer: int, start_ps: int, group: tuple[int, ...] | None = None
    ) -> GraphNode:
        node = GraphNode(
            self._count,
            rank,
            row.name,
            row.kind,
            layer,
            row.part,
            start_ps,
            row.duration_ps(layer),
            row.flops,
            row.bytes_moved,
            row.power_class,
            row.collective,
            row.on_links,
            row.provenance,
            row.source,
            self._before[rank],
            self._numbers.together(rank, row) if group is None else group,
        )
        self._before[rank] = (self._count,)
        self._count += 1
        return node
