"""Prices collectives on the cluster's links with the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group, LinkSpec
from llmsim.core import Int64, Provenance
from llmsim.costs import AttentionCost, CostRequest, OpCost
from llmsim.lowering.network.all_to_all import Exchanges, Ports, broadcasts_ps, ports_of
from llmsim.lowering.network.topology import Priced, RoutedLinks, Routes
from llmsim.model import AllToAll, Collective, Layout, Operator

KINDS = {
    "all_reduce": engine.CollectiveKind.ALL_REDUCE,
    "all_gather": engine.CollectiveKind.ALL_GATHER,
    "reduce_scatter": engine.CollectiveKind.REDUCE_SCATTER,
    "send": engine.CollectiveKind.ALL_GATHER,
    "all_to_all": engine.CollectiveKind.ALL_TO_ALL,
    "broadcast": engine.CollectiveKind.ALL_GATHER,
}
"""A send needs no kind of its own, the engine runs it as a transfer; nor do broadcasts, which have
a duration.
"""
NETWORKS = {
    "congestion-unaware": engine.NetworkKind.CONGESTION_UNAWARE,
    "congestion-aware": engine.NetworkKind.CONGESTION_AWARE,
    "fair-share": engine.NetworkKind.FAIR_SHARE,
}
Network = Literal["analytical", "congestion-unaware", "congestion-aware", "fair-share"]
"""`analytical`: congestion-unaware on nominal links, as in LLMServingSim, and fair-share on a
topology's.
"""


@dataclass(frozen=True)
class DomainLinks:
    """The links of a group, or of all members of its data-parallel domain: one full mesh per
    dimension.

    Dimensions, innermost first, as in LLMServingSim: tensor-parallel ranks, pipeline stages (if
    there are several), data-parallel ranks (likewise). Each takes its entry of the file's lists,
    the last one where they end before; data-parallel ranks on several nodes take the last one in
    any case, which is between nodes.
    """

    layout: Layout
    members: int
    spec: LinkSpec
    network: str
    nodes: int = 1
    """On how many the members are, evenly."""

    def link(self, op: Collective) -> tuple[int, int]:
        """(bytes/s, latency in ps) of the links that it crosses; of the farther ones where there
        are two kinds.
        """
        if op.among == "stages":
            return self._entry(1)
        return (
            self._entry(self._members_dimension)
            if op.among in ("members", "everyone")
            else self._entry(0)
        )

    @property
    def inside(self) -> tuple[int, int]:
        """(bytes/s, latency in ps) of the links between data-parallel ranks on one node."""
        return self._entry(0 if self.nodes > 1 else self._members_dimension)

    @property
    def dimensions(self) -> tuple[tuple[int, int, int], ...]:
        """(devices, bytes/s, ps) of each: all devices of the domain, one member's stage first, then
        its others.
        """
        dimensions = [(self.layout.stage_ranks, *self._entry(0))]
        if self.layout.pp > 1:
            dimensions.append((self.layout.pp, *self._entry(1)))
        if self.members > 1:
            dimensions.append((self.members, *self._entry(self._members_dimension)))
        return tuple(dimension for dimension in dimensions if dimension[0] > 1) or tuple(
            dimensions[:1]
        )

    def price(self, op: Collective, sizes: Int64, stage: int) -> Priced:
        """For each size (bytes > 0): ring algorithm, alone on the links, all ranks starting
        together, in any stage.
        """
        where = f"on links of {self.link(op)[0] / 1e9:g} GB/s"
        if op.collective == "broadcast":
            return Priced(broadcasts_ps(op, sizes, self), f"engine, broadcasts in turn {where}")
        if (
            op.collective == "send"
        ):  # one message, as each rank of an all-gather of two halves sends
            sizes = sizes * 2
        how = "message" if op.collective == "send" else f"ring {op.collective}"
        return Priced(
            self._ring(op.collective, self.layout.ranks(op.among), self.link(op), sizes),
            f"engine, {how} {where}",
        )

    def context_gather(self, ranks: int, sizes: Int64) -> Int64:
        """ps of a ring that gathers so many bytes from ranks of one stage."""
        return self._ring("all_gather", ranks, self._entry(0), sizes)

    def exchange(self, op: Collective, stage: int) -> Ports:
        """The ports of an exchange of tokens, in any stage."""
        return ports_of(self.layout, op, self.nodes, self.inside, self.link(op))

    def _ring(self, collective: str, ranks: int, link: tuple[int, int], sizes: Int64) -> Int64:
        topology, kind = engine.Topology.fully_connected(ranks, *link), KINDS[collective]
        site = engine.CollectiveSite(
            topology,
            list(range(ranks)),
            kind,
            engine.Algorithm.RING,
            network=NETWORKS[self.network],
        )
        return np.asarray(engine.isolated_durations(site, sizes), np.int64)

    def config(self, specs: Sequence["_native.CollectiveSpec"]) -> "_native.ExpandedConfig":
        """How the engine runs the domain's nodes."""
        return _native.ExpandedConfig(
            _native.mesh(list(self.dimensions)), NETWORKS[self.network], specs, self.members
        )

    @property
    def must_expand(self) -> str:
        """Every link is between two ranks alone, and members are alike: folded
        evaluation is exact.
        """
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """No notes: every price of a mesh is exact."""
        return ()

    @property
    def _members_dimension(self) -> int:
        return (
            len(self.spec.bandwidth_bytes_per_s) - 1 if self.nodes > 1 else 1 + (self.layout.pp > 1)
        )

    def _entry(self, dimension: int) -> tuple[int, int]:
        index = min(dimension, len(self.spec.bandwidth_bytes_per_s) - 1)
        return self.spec.bandwidth_bytes_per_s[index], self.spec.latency_ps[index]


def links_of(
    deployment: Deployment,
    routes: Routes | None,
    group: Group,
    layout: Layout,
    members: int,
    network: Network,
) -> DomainLinks | RoutedLinks:
    """What the collectives of a group, or of its data-parallel domain, run on."""
    if routes is None:
        nominal = "congestion-unaware" if network == "analytical" else network
        return DomainLinks(layout, members, deployment.link, nominal, group.dp_nodes)
    kind = NETWORKS["fair-share" if network == "analytical" else network]
    domain = routes.domain(deployment, group) if members > 1 else routes.placed.devices[group.index]
    return RoutedLinks(layout, members, routes, domain, kind, KINDS, group.dp_nodes)


def expanded_config(
    operators: Sequence[Operator],
    costs: Sequence[OpCost | AttentionCost],
    linked: Sequence[str],
    links: DomainLinks | RoutedLinks,
) -> "_native.ExpandedConfig":
    """What the engine needs to run the program's collectives: as messages those of `linked`, others
    by their tables.
    """
    of_name = {op.name: op for op in operators if isinstance(op, Collective)}
    specs = []
    for index, cost in enumerate(costs):
        if cost.name not in of_name:
            continue
        op = of_name[cost.name]
        inside = op.among in ("tp", "dcp", "pcp")
        specs.append(
            _native.CollectiveSpec(
                index,
                KINDS[op.collective],
                op.collective_bytes_per_token if runs_as_messages(op, linked) else 0,
                ranks=links.layout.ranks(op.among) if inside else 0,
                stride=links.layout.stride(op.among),
                everyone=op.among == "everyone",
            )
        )
    return links.config(specs)


def runs_as_messages(op: Collective, linked: Sequence[str]) -> bool:
    """Whether the engine runs a collective's messages; else it lasts as long as its table says.

    All ranks of all members form one ring, whose slowest hop paces it; on the mesh it would be
    uneven.
    """
    known = op.collective in ("all_to_all", "broadcast") or op.among == "everyone"
    return isinstance(op, Collective) and op.name in linked and not known


@dataclass(frozen=True, eq=False)
class LinkedCosts:
    """Collectives that no table prices."""

    of_stage: tuple[tuple[OpCost, ...], ...]
    as_messages: tuple[str, ...]
    """Operators whose tables are what the engine's messages take, at every size."""


def link_collective_costs(
    operators: Sequence[Operator],
    request: CostRequest,
    linked: Sequence[str],
    links: DomainLinks | RoutedLinks,
) -> LinkedCosts:
    """Cost tables of the collectives that no table prices, for every pipeline stage."""
    stages: list[tuple[OpCost, ...]] = []
    sampled: set[str] = set()
    nominal: tuple[OpCost, ...] | None = None
    exchanges = Exchanges(request)
    for stage in range(links.layout.pp):
        if nominal is not None:
            stages.append(nominal)
            continue
        costs = []
        for op in operators:
            if not isinstance(op, Collective) or op.name not in linked:
                continue
            if op.collective == "send" and stage + 1 == links.layout.pp > 1:
                continue  # the last stage hands nothing on
            if isinstance(op, AllToAll):
                costs.append(exchanges.cost(op, links.exchange(op, stage)))
                continue
            last = request.counts(op.feature)
            sizes = np.arange(1, last + 1, dtype=np.int64) * op.collective_bytes_per_token
            priced = links.price(op, sizes, stage)
            if priced.sampled:
                sampled.add(op.name)
            costs.append(
                OpCost(
                    name=op.name,
                    part=op.part,
                    repeat=op.repeat,
                    feature="tokens" if op.feature == "attention" else op.feature,
                    ps=np.concatenate([np.zeros(1, np.int64), priced.ps]),
                    provenance=np.full(last + 1, Provenance.ANALYTIC, np.uint8),
                    source=priced.source,
                )
            )
        stages.append(tuple(costs))
        if isinstance(links, DomainLinks):
            nominal = stages[-1]
    exact = linked if links.must_expand else [name for name in linked if name not in sampled]
    return LinkedCosts(tuple(stages), tuple(exact))
