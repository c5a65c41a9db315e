"""Prices collectives on the cluster's links with the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmsim import _native
from llmsim._native import engine
from llmsim.config import LinkSpec
from llmsim.core import Int64, Provenance
from llmsim.costs import AttentionCost, CostRequest, OpCost
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
}


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

    def durations(self, op: Operator, sizes: Int64) -> Int64:
        """ps for each size (bytes > 0): ring algorithm, alone on the links, all ranks starting together."""
        ranks, link = self.ranks(op), self.link(op)
        topology = engine.Topology.fully_connected(ranks, *link)
        if op.collective == "send":  # one message, as each rank of an all-gather of two halves sends
            sizes = sizes * 2
        site = engine.CollectiveSite(
            topology, list(range(ranks)), KINDS[op.collective], engine.Algorithm.RING, network=NETWORKS[self.network]
        )
        return np.asarray(engine.isolated_durations(site, sizes), np.int64)

    @property
    def _members_dimension(self) -> int:
        return len(self.spec.bandwidth_bytes_per_s) - 1 if self.spans_nodes else 1 + (self.layout.pp > 1)

    def _entry(self, dimension: int) -> tuple[int, int]:
        index = min(dimension, len(self.spec.bandwidth_bytes_per_s) - 1)
        return self.spec.bandwidth_bytes_per_s[index], self.spec.latency_ps[index]


def expanded_config(
    operators: Sequence[Operator], costs: Sequence[OpCost | AttentionCost], linked: Sequence[str], links: DomainLinks
) -> "_native.ExpandedConfig":
    """What the engine needs to run the program's collectives, as messages or after their measured durations."""
    of_name = {op.name: op for op in operators if op.kind == "collective"}
    specs = []
    for index, cost in enumerate(costs):
        if cost.name in of_name:
            op = of_name[cost.name]
            size = op.collective_bytes_per_token if cost.name in linked else 0
            specs.append(_native.CollectiveSpec(index, KINDS[op.collective], size))
    return _native.ExpandedConfig(links.mesh(), NETWORKS[links.network], specs, links.members)


def link_collective_costs(
    operators: Sequence[Operator], request: CostRequest, linked: Sequence[str], links: DomainLinks
) -> tuple[OpCost, ...]:
    """Cost tables of the collectives that no table prices."""
    costs = []
    for op in operators:
        if op.kind != "collective" or op.name not in linked:
            continue
        last = request.counts(op.feature)
        sizes = np.arange(1, last + 1, dtype=np.int64) * op.collective_bytes_per_token
        ps = np.concatenate([np.zeros(1, np.int64), links.durations(op, sizes)])
        how = "message" if op.collective == "send" else f"ring {op.collective}"
        costs.append(
            OpCost(
                name=op.name,
                part=op.part,
                repeat=op.repeat,
                feature=op.feature if op.feature in ("sequences", "gathered") else "tokens",
                ps=ps,
                provenance=np.full(last + 1, Provenance.ANALYTIC, np.uint8),
                source=f"engine, {how} on links of {links.link(op)[0] / 1e9:g} GB/s",
            )
        )
    return tuple(costs)
