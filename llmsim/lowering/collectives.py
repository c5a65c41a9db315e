"""Prices collectives on the cluster's links with the engine."""

from collections.abc import Sequence

import numpy as np

from llmsim import _native
from llmsim._native import engine
from llmsim.config import LinkSpec
from llmsim.core import Provenance
from llmsim.costs import CostRequest, OpCost
from llmsim.model import Operator

KINDS = {"all_reduce": engine.CollectiveKind.ALL_REDUCE, "all_gather": engine.CollectiveKind.ALL_GATHER}
NETWORKS = {
    "congestion-unaware": engine.NetworkKind.CONGESTION_UNAWARE,
    "congestion-aware": engine.NetworkKind.CONGESTION_AWARE,
}


def group_topology(devices: int, link: LinkSpec) -> "engine.Topology":
    """A group's own links, a full mesh as LLMServingSim assumes; dimension 0 of the file is inside a group."""
    return engine.Topology.fully_connected(devices, link.bandwidth_bytes_per_s[0], link.latency_ps[0])


def expanded_config(
    operators: Sequence[Operator],
    costs: Sequence[OpCost | None],
    on_links: bool,
    topology: "engine.Topology",
    network: str,
) -> "_native.ExpandedConfig":
    """What the engine needs to run the program's collectives, as messages or after their measured durations."""
    of_name = {op.name: op for op in operators if op.kind == "collective"}
    specs = []
    for index, cost in enumerate(costs):
        if cost is not None and cost.name in of_name:
            op = of_name[cost.name]
            size = op.collective_bytes_per_token if on_links else 0
            specs.append(_native.CollectiveSpec(index, KINDS[op.collective], size))
    return _native.ExpandedConfig(topology, NETWORKS[network], specs)


def link_collective_costs(
    operators: Sequence[Operator], request: CostRequest, devices: int, link: LinkSpec, network: str
) -> tuple[OpCost, ...]:
    """Cost tables of the collectives: ring algorithm, alone on the group's links, all ranks starting together."""
    topology = group_topology(devices, link)
    costs = []
    for op in operators:
        if op.kind != "collective":
            continue
        site = engine.CollectiveSite(
            topology, list(range(devices)), KINDS[op.collective], engine.Algorithm.RING, network=NETWORKS[network]
        )
        last = request.counts(op.feature)
        sizes = np.arange(1, last + 1, dtype=np.int64) * op.collective_bytes_per_token
        ps = np.concatenate([np.zeros(1, np.int64), engine.isolated_durations(site, sizes)])
        costs.append(
            OpCost(
                name=op.name,
                part=op.part,
                repeat=op.repeat,
                feature="tokens" if op.feature == "tokens" else "sequences",
                ps=ps,
                provenance=np.full(last + 1, Provenance.ANALYTIC, np.uint8),
                source=f"engine, ring {op.collective} on links of {link.bandwidth_bytes_per_s[0] / 1e9:g} GB/s",
            )
        )
    return tuple(costs)
