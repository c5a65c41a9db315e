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
from llmsim.lowering.routed import Priced, RoutedLinks, Routes
from llmsim.model import Layout, Operator

KINDS = {
    "all_reduce": engine.CollectiveKind.ALL_REDUCE,
    "all_gather": engine.CollectiveKind.ALL_GATHER,
    "reduce_scatter": engine.CollectiveKind.REDUCE_SCATTER,
    "send": engine.CollectiveKind.ALL_GATHER,
}
"""A send needs no kind of its own; the engine runs it as a transfer."""
NETWORKS = {
    "congestion-unaware": engine.NetworkKind.CONGESTION_UNAWARE,
    "congestion-aware": engine.NetworkKind.CONGESTION_AWARE,
    "fair-share": engine.NetworkKind.FAIR_SHARE,
}
Network = Literal["analytical", "congestion-unaware", "congestion-aware", "fair-share"]
"""`analytical`: congestion-unaware on nominal links, as in LLMServingSim, and fair-share on a topology's."""


@dataclass(frozen=True)
class DomainLinks:
    """The links of a group, or of all members of its data-parallel domain: one full mesh per dimension.

    Dimensions, innermost first, as in LLMServingSim: tensor-parallel ranks, pipeline stages (if there are several),
    data-parallel ranks (likewise). Each takes its entry of the file's lists, the last one where they end before;
    data-parallel ranks on several nodes take the last one in any case, which is between nodes.
    """

    layout: Layout
    members: int
    spec: LinkSpec
    network: str
    spans_nodes: bool = False

    def ranks(self, op: Operator) -> int:
        """How many devices a collective is among."""
        if op.collective == "send":
            return 2
        return self.members if op.feature == "gathered" else self.layout.tp

    def link(self, op: Operator) -> tuple[int, int]:
        """(bytes/s, latency in ps) of the links that it crosses."""
        if op.collective == "send":
            return self._entry(1)
        return self._entry(self._members_dimension) if op.feature == "gathered" else self._entry(0)

    def mesh(self) -> "engine.Topology":
        """All devices of the domain; those of one member's stage come first, then its other stages."""
        dimensions = [(self.layout.tp, *self._entry(0))]
        if self.layout.pp > 1:
            dimensions.append((self.layout.pp, *self._entry(1)))
        if self.members > 1:
            dimensions.append((self.members, *self._entry(self._members_dimension)))
        return _native.mesh([dimension for dimension in dimensions if dimension[0] > 1] or dimensions[:1])

    def price(self, op: Operator, sizes: Int64, stage: int) -> Priced:
        """For each size (bytes > 0): ring algorithm, alone on the links, all ranks starting together, in any stage."""
        ranks, link = self.ranks(op), self.link(op)
        topology = engine.Topology.fully_connected(ranks, *link)
        if op.collective == "send":  # one message, as each rank of an all-gather of two halves sends
            sizes = sizes * 2
        site = engine.CollectiveSite(
            topology, list(range(ranks)), KINDS[op.collective], engine.Algorithm.RING, network=NETWORKS[self.network]
        )
        how = "message" if op.collective == "send" else f"ring {op.collective}"
        ps = np.asarray(engine.isolated_durations(site, sizes), np.int64)
        return Priced(ps, f"engine, {how} on links of {link[0] / 1e9:g} GB/s")

    def config(self, specs: Sequence["_native.CollectiveSpec"]) -> "_native.ExpandedConfig":
        """How the engine runs the domain's nodes."""
        return _native.ExpandedConfig(self.mesh(), NETWORKS[self.network], specs, self.members)

    @property
    def must_expand(self) -> str:
        """Every link is between two ranks alone, and members are alike: folded evaluation is exact."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing to say."""
        return ()

    @property
    def _members_dimension(self) -> int:
        return len(self.spec.bandwidth_bytes_per_s) - 1 if self.spans_nodes else 1 + (self.layout.pp > 1)

    def _entry(self, dimension: int) -> tuple[int, int]:
        index = min(dimension, len(self.spec.bandwidth_bytes_per_s) - 1)
        return self.spec.bandwidth_bytes_per_s[index], self.spec.latency_ps[index]


def links_of(
    deployment: Deployment, routes: Routes | None, group: Group, layout: Layout, members: int, network: Network
) -> DomainLinks | RoutedLinks:
    """What the collectives of a group, or of its data-parallel domain, run on."""
    if routes is None:
        nominal = "congestion-unaware" if network == "analytical" else network
        return DomainLinks(layout, members, deployment.link, nominal, group.dp_spans_nodes)
    kind = NETWORKS["fair-share" if network == "analytical" else network]
    domain = routes.domain(deployment, group) if members > 1 else routes.placed.devices[group.index]
    return RoutedLinks(layout, members, routes, domain, kind, KINDS)


def expanded_config(
    operators: Sequence[Operator],
    costs: Sequence[OpCost | AttentionCost],
    linked: Sequence[str],
    links: DomainLinks | RoutedLinks,
) -> "_native.ExpandedConfig":
    """What the engine needs to run the program's collectives: as messages those of `linked`, others by their tables."""
    of_name = {op.name: op for op in operators if op.kind == "collective"}
    specs = []
    for index, cost in enumerate(costs):
        if cost.name in of_name:
            op = of_name[cost.name]
            size = op.collective_bytes_per_token if cost.name in linked else 0
            specs.append(_native.CollectiveSpec(index, KINDS[op.collective], size))
    return links.config(specs)


@dataclass(frozen=True, eq=False)
class LinkedCosts:
    """Collectives that no table prices."""

    of_stage: tuple[tuple[OpCost, ...], ...]
    as_messages: tuple[str, ...]
    """Operators whose tables are what the engine's messages take, at every size."""


def link_collective_costs(
    operators: Sequence[Operator], request: CostRequest, linked: Sequence[str], links: DomainLinks | RoutedLinks
) -> LinkedCosts:
    """Cost tables of the collectives that no table prices, for every pipeline stage."""
    stages: list[tuple[OpCost, ...]] = []
    sampled: set[str] = set()
    nominal: tuple[OpCost, ...] | None = None
    for stage in range(links.layout.pp):
        if nominal is not None:
            stages.append(nominal)
            continue
        costs = []
        for op in operators:
            if op.kind != "collective" or op.name not in linked:
                continue
            if op.collective == "send" and stage + 1 == links.layout.pp > 1:
                continue  # the last stage hands nothing on
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
                    feature=op.feature if op.feature in ("sequences", "gathered") else "tokens",
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
