"""One iteration made concrete: every operator of every rank as a node, with when it runs and what it depends on.

Of a group with pipeline stages or data-parallel ranks in lock-step it is the iteration of all of them: device t + R
(s + S m) is rank t of R in stage s of S of member m, as in the core. Nothing runs before it, and links are free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmsim import _native
from llmsim.config.errors import NotYetError
from llmsim.export.step_rows import Item, Row, in_order, rows_of
from llmsim.lowering import LoweredGroup
from llmsim.lowering.collectives import DomainLinks
from llmsim.lowering.routed import RoutedLinks
from llmsim.model import Layout

PS_PER_US = 1_000_000


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
class GraphNode:
    """One execution of one operator on one rank; times in ps, bytes per rank."""

    node: int
    """Unique among all ranks."""
    rank: int
    name: str
    kind: str
    """"compute", "attention", "collective", "send" or "receive"."""
    layer: int
    """From 0 within its part; 0 in the prologue and the head."""
    part: int
    start_ps: int
    """After the start of the iteration."""
    duration_ps: int
    flops: int
    bytes_moved: int
    """Read and written, weights included; of a collective the tensor's size, of a message its own."""
    power_class: str
    collective: str
    on_links: bool
    """A collective or message that the links price: its duration here is that of the engine's default rules."""
    provenance: str
    source: str
    depends_on: tuple[int, ...]
    group: tuple[int, ...] = ()
    """Ranks of a collective; sender and receiver of a message."""

    @property
    def end_ps(self) -> int:
        """After the start of the iteration."""
        return self.start_ps + self.duration_ps


@dataclass(frozen=True)
class OnTopology:
    """The cluster's network, and where on it the ranks are."""

    file: Mapping[str, Any]
    """A topology file (`llmsim.config.topology`)."""
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

    NotYetError where weights or attention are elsewhere, and where a drafter's passes are part of the step.
    """
    domain = [groups[index] for index in batch.members]
    first = domain[0]
    if first.draft is not None:
        raise NotYetError(
            f"group {first.info.index} has a drafter with a model; graphs of steps with its passes are not exported by "
            "this version: leave the speculative_config out, or say the method ngram"
        )
    if first.offload is not None:
        raise NotYetError(
            f"group {group} keeps weights or attention outside of its devices; graphs of steps whose copies run ahead"
            " of their operators are not exported by this version"
        )
    padded = padded_tokens(first, batch.items)
    rows = [
        rows_of(lowered, items, tokens, sum(padded), batch.step)
        for lowered, items, tokens in zip(domain, batch.items, padded, strict=True)
    ]
    maker = _Maker(first.layout, len(domain), rows)
    info = groups[group].info
    place = batch.members.index(group)
    return IterationGraph(
        info.index,
        info.model_name,
        info.hardware,
        maker.ranks,
        batch.iteration,
        batch.items[place],
        padded[place],
        tuple(maker.nodes()),
        batch.members,
        batch.items,
        first.links.dimensions,
        _on_topology(first.links),
    )


def _on_topology(links: DomainLinks | RoutedLinks) -> OnTopology | None:
    if not isinstance(links, RoutedLinks):
        return None
    spec = links.routes.placed.spec
    return OnTopology(spec.as_file(), spec.num_devices(), tuple(links.domain), links.network_name)


def padded_tokens(lowered: LoweredGroup, batches: Sequence[Sequence[Item]]) -> list[int]:
    """What each member computes: alone the next captured graph's size; together all that of the largest, if all have
    one, else nobody pads (as the core combines them)."""
    graphs = [lowered.program.rank_graph(list(items)) for items in batches]
    if len(graphs) == 1:
        return [graphs[0][2]]
    mode = min((graph[0] for graph in graphs), key=lambda one: one.value)
    most = max(graph[1] for graph in graphs)
    if mode == _native.GraphMode.NONE:
        return [tokens for _, tokens, _ in graphs]
    return [lowered.program.padded(most, mode)] * len(graphs)


class _Maker:
    """Makes the nodes of a domain in the order of time, rank by rank within an operator."""

    def __init__(self, layout: Layout, members: int, rows: Sequence[Sequence[Row]]) -> None:
        self._layout, self._members, self._rows = layout, members, rows
        self._each, self._stages = layout.stage_ranks, layout.pp
        self.ranks = self._each * self._stages * members
        self._count = 0
        self._before: list[tuple[int, ...]] = [()] * self.ranks
        self._at = [0] * members

    def nodes(self) -> Iterator[GraphNode]:
        """All of them."""
        for stage in range(self._stages):
            yield from self._stage(stage)

    def _rank(self, member: int, stage: int, device: int) -> int:
        return device + self._each * (stage + self._stages * member)

    def _stage(self, stage: int) -> Iterator[GraphNode]:
        """Members run alike; those that lack what an operator works on, such as sequences, leave it out."""
        together = False
        for step in zip(*(in_order([row for row in rows if row.stage == stage]) for rows in self._rows), strict=True):
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
                    yield self._node(self._rank(member, stage, device), mine, layer, self._at[member])
                self._at[member] += mine.duration_ps(layer)

    def _meet(self, stage: int) -> None:
        """All members wait for the slowest."""
        self._at = [max(self._at)] * self._members
        for device in range(self._each):
            ranks = [self._rank(member, stage, device) for member in range(self._members)]
            everyone = tuple(node for rank in ranks for node in self._before[rank])
            for rank in ranks:
                mine = self._before[rank]
                self._before[rank] = (*mine, *(node for node in everyone if node not in mine))

    def _hand_over(self, stage: int, step: Sequence[tuple[Row, int]]) -> Iterator[GraphNode]:
        for member, (row, layer) in enumerate(step):
            for device in range(self._each):
                rank, next_rank = (self._rank(member, at, device) for at in (stage, stage + 1))
                sent = self._node(rank, row, layer, self._at[member], group=(rank, next_rank))
                self._before[next_rank] = (sent.node,)
                yield sent
                end = sent.end_ps
                yield self._node(next_rank, row.received(), layer, end, group=(rank, next_rank))
            self._at[member] += row.duration_ps(layer)

    def _node(self, rank: int, row: Row, layer: int, start_ps: int, group: tuple[int, ...] | None = None) -> GraphNode:
        node = GraphNode(
            self._count, rank, row.name, row.kind, layer, row.part, start_ps, row.duration_ps(layer), row.flops,
            row.bytes_moved, row.power_class, row.collective, row.on_links, row.provenance, row.source,
            self._before[rank], self._group(rank, row) if group is None else group,
        )  # fmt: skip
        self._before[rank] = (self._count,)
        self._count += 1
        return node

    def _group(self, rank: int, row: Row) -> tuple[int, ...]:
        """The ranks that do a collective together."""
        if row.kind != "collective":
            return ()
        member, stage, device = (
            rank // (self._each * self._stages),
            rank // self._each % self._stages,
            rank % self._each,
        )
        if row.among in ("members", "everyone"):
            devices = range(self._each) if row.among == "everyone" else (device,)
            return tuple(self._rank(m, stage, d) for m in range(self._members) for d in devices)
        size, stride = self._layout.ranks(row.among), self._layout.stride(row.among)
        first = device // (size * stride) * size * stride + device % stride
        return tuple(self._rank(member, stage, first + i * stride) for i in range(size))
