"""Prices the collectives that no table prices, on the network that they take."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group
from llmsim.core import Provenance
from llmsim.costs import AttentionCost, CostRequest, OpCost
from llmsim.lowering.network.algorithms import KINDS, algorithms_of
from llmsim.lowering.network.all_to_all import Exchanges
from llmsim.lowering.network.base import NETWORKS, Network, NetworkView
from llmsim.lowering.network.mesh import MeshView
from llmsim.lowering.network.topology import Routes, TopologyView
from llmsim.model import AllToAll, Collective, Layout, Operator


def network_view(
    deployment: Deployment,
    routes: Routes | None,
    group: Group,
    layout: Layout,
    members: int,
    network: Network,
) -> NetworkView:
    """The network of a group, or of its data-parallel domain.

    InputError for an algorithm of collectives that is unknown, or not possible there.
    """
    algorithms, nodes = algorithms_of(group.engine), group.dp_nodes
    if routes is None:
        kind = NETWORKS["congestion-unaware" if network == "analytical" else network]
        return MeshView(layout, members, kind, algorithms, nodes, deployment.link)
    kind = NETWORKS["fair-share" if network == "analytical" else network]
    domain = routes.domain(deployment, group) if members > 1 else routes.placed.devices[group.index]
    return TopologyView(layout, members, kind, algorithms, nodes, routes, domain)


def collective_spec(
    view: NetworkView,
    index: int,
    op: Collective,
    bytes_per_unit: int,
    *,
    ranks: int = 0,
    stride: int = 1,
    everyone: bool = False,
    per_node: int = 0,
    far_bytes_per_unit: int = 0,
) -> "_native.CollectiveSpec":
    """How the core runs a collective or hand-over of a program, by its number in the program."""
    kind = KINDS.get(op.collective, engine.CollectiveKind.ALL_GATHER)
    return _native.CollectiveSpec(
        index,
        kind,
        bytes_per_unit,
        view.algorithm(op),
        ranks=ranks,
        stride=stride,
        everyone=everyone,
        per_node=per_node,
        far_bytes_per_unit=far_bytes_per_unit,
    )


def expanded_config(
    operators: Sequence[Operator],
    costs: Sequence[OpCost | AttentionCost],
    linked: Sequence[str],
    view: NetworkView,
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
            collective_spec(
                view,
                index,
                op,
                op.collective_bytes_per_token if runs_as_messages(op, linked) else 0,
                ranks=view.layout.ranks(op.among) if inside else 0,
                stride=view.layout.stride(op.among),
                everyone=op.among == "everyone",
            )
        )
    return view.config(specs)


def runs_as_messages(op: Collective, linked: Sequence[str]) -> bool:
    """Whether the engine runs a collective's messages; else it lasts as long as its table says.

    All ranks of all members form one ring, whose slowest hop paces it; on the mesh it would be
    uneven.
    """
    known = op.collective in ("all_to_all", "broadcast") or op.among == "everyone"
    return op.name in linked and not known


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
    view: NetworkView,
) -> LinkedCosts:
    """Cost tables of the collectives that no table prices, for every pipeline stage."""
    stages: list[tuple[OpCost, ...]] = []
    sampled: set[str] = set()
    nominal: tuple[OpCost, ...] | None = None
    exchanges = Exchanges(request)
    for stage in range(view.layout.pp):
        if nominal is not None:
            stages.append(nominal)
            continue
        costs = []
        for op in operators:
            if not isinstance(op, Collective) or op.name not in linked:
                continue
            if op.collective == "send" and stage + 1 == view.layout.pp > 1:
                continue  # the last stage hands nothing on
            if isinstance(op, AllToAll):
                costs.append(exchanges.cost(op, view.exchange(op, stage)))
                continue
            last = request.counts(op.feature)
            sizes = np.arange(1, last + 1, dtype=np.int64) * op.collective_bytes_per_token
            priced = view.price(op, sizes, stage)
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
        if view.stages_alike:
            nominal = stages[-1]
    exact = [name for name in linked if name not in sampled] if view.exact() else linked
    return LinkedCosts(tuple(stages), tuple(exact))
