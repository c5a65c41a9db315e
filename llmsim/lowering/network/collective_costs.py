"""Prices the collectives that no table prices, on the network that they take."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim import _native
from llmsim._native import engine
from llmsim.config import Deployment, Group
from llmsim.config.deployment import ASSUMED_LINK_LATENCY_NS
from llmsim.config.engine.args import EngineArgs
from llmsim.config.errors import InputError
from llmsim.core import PS_PER_NS, Provenance
from llmsim.costs import AttentionCost, CostRequest, OpCost
from llmsim.costs.nccl.quick_reduce import QuickReduce
from llmsim.costs.nccl.stated_links import LinksOfFile, StatedLink
from llmsim.lowering.network.algorithms import KINDS, algorithms_of
from llmsim.lowering.network.all_to_all import Exchanges
from llmsim.lowering.network.base import NETWORKS, Network, NetworkView
from llmsim.lowering.network.mesh import MeshView, on_each_node, servers_beside
from llmsim.lowering.network.nccl import NcclModel, nccl_model
from llmsim.lowering.network.topology import Routes, TopologyView
from llmsim.model import AllToAll, Collective, Hardware, Layout, Operator
from llmsim.model.layout import Among

ASSUMED_LINK_LATENCY_PS = ASSUMED_LINK_LATENCY_NS * PS_PER_NS
RANKS_IN_A_SERVER: tuple[Among, ...] = ("tp", "dcp", "pcp", "members", "everyone")
"""Among whom there are measured times."""


def network_view(
    deployment: Deployment,
    routes: Routes | None,
    group: Group,
    layout: Layout,
    members: int,
    network: Network,
    library: NcclModel | None = None,
) -> NetworkView:
    """The network of a group, or of its data-parallel domain.

    The `library` plans no collectives where an option names a network model. InputError for an
    algorithm of collectives that is unknown, or not possible there.
    """
    algorithms, nodes = algorithms_of(group.engine), group.dp_nodes
    nccl = library
    if library is not None and network != "analytical":
        nccl = replace(library, scope="nowhere")
    if routes is None:
        kind = NETWORKS["congestion-unaware" if network == "analytical" else network]
        each = on_each_node(group)
        return MeshView(layout, members, kind, algorithms, nodes, nccl, deployment.link, each)
    kind = NETWORKS["fair-share" if network == "analytical" else network]
    if routes.placed.incast is not None and kind != engine.NetworkKind.FAIR_SHARE:
        raise InputError(
            f"incast of the cluster file: --network-backend is {network}, where messages have no "
            "rates; incast needs analytical or fair-share"
        )
    domain = routes.domain(deployment, group) if members > 1 else routes.placed.devices[group.index]
    return TopologyView(layout, members, kind, algorithms, nodes, nccl, routes, domain)


def library_of(
    deployment: Deployment, group: Group, request: CostRequest, collectives: str
) -> NcclModel | None:
    """The collective library of a group's devices; None without a data sheet."""
    if request.hardware is None:
        return None
    model = nccl_model(request.hardware, group.engine.cuda_graph_sizes, collectives)
    return replace(
        model,
        servers=servers_beside(deployment.link, request.hardware, group),
        quick=_quick_reduce(group.engine, request.dtypes.activation),
    )


def _quick_reduce(engine: EngineArgs, dtype: str) -> QuickReduce | None:
    """The quick all-reduce of an engine; None where it is off."""
    quantization = engine.quick_reduce_quantization
    if quantization in (None, "NONE"):
        return None
    casts = engine.quick_reduce_cast_bf16_to_fp16 is not False
    return QuickReduce(
        quantization,
        "bfloat16" if dtype == "bf16" and not casts else "float16",
        engine.quick_reduce_min_size_bytes_mb,
        engine.quick_reduce_max_size_bytes_mb,
        engine.quick_reduce_quantization_min_size_kb,
    )


def unmeasured_ranks(
    deployment: Deployment,
    routes: Routes | None,
    group: Group,
    layout: Layout,
    members: int,
    hardware: Hardware | None,
) -> tuple[Among, ...]:
    """Among whom the links are not those of the measured machine: those of a topology may differ,
    and without one those of a stage that the file puts on several nodes do.
    """
    several = [among for among in RANKS_IN_A_SERVER if layout.ranks(among) > 1]
    if routes is None:
        return tuple(several) if layout.stage_ranks > group.devices_on_node else ()
    if hardware is None:
        return tuple(several)
    view = network_view(deployment, routes, group, layout, members, "analytical")
    assert isinstance(view, TopologyView)
    rate = hardware.intra_node_link_bytes_per_s
    return tuple(among for among in several if not view.fits(among, rate))


def links_of_file(
    view: NetworkView, hardware: Hardware | None, meant: "MeantRates", collectives: str
) -> LinksOfFile:
    """The links of the cluster file among the ranks of a group, for measured times.

    Those of a topology are judged by its routes, and `--collective-costs measured` asks for the
    times as they are.
    """
    if not isinstance(view, MeshView) or hardware is None or collectives == "measured":
        return LinksOfFile(heeded=False)
    own = hardware.intra_node_link_bytes_per_s
    found = []
    for among in RANKS_IN_A_SERVER:
        bytes_per_s, latency_ps = view.entry(view.dimension_among(among))
        link = StatedLink(among, meant.rate_of(own, bytes_per_s), latency_ps)
        of_sheet = (link.bytes_per_s, link.latency_ps) == (own, ASSUMED_LINK_LATENCY_PS)
        if view.layout.ranks(among) > 1 and not of_sheet:
            found.append(link)
    return LinksOfFile(tuple(found))


class MeantRates(Struct, frozen=True):
    """Rates of the links of all devices of a cluster file, which states one number for them.

    A number from the slowest to the fastest data sheet states what each sheet does; a slower or a
    faster one changes all of them.
    """

    slowest: int
    fastest: int

    @classmethod
    def of(cls, sheets: Iterable[Hardware | None]) -> "MeantRates":
        """Of the devices with a data sheet."""
        rates = [one.intra_node_link_bytes_per_s for one in sheets if one is not None]
        return cls(min(rates, default=1), max(rates, default=1))

    def rate_of(self, own: int, stated: int) -> int:
        """What a stated rate means for a device whose data sheet has its own."""
        nearest = min(max(stated, self.slowest), self.fastest)
        return own * stated // nearest


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


class LinkedCosts(Struct, frozen=True, eq=False):
    """Collectives that no table prices."""

    of_stage: tuple[tuple[OpCost, ...], ...]
    as_messages: tuple[str, ...]
    """Operators whose tables are what the engine's messages take, at every size."""
    planned: tuple[str, ...] = ()
    """Operators that a model of NCCL has priced, for which the engine has no messages."""


def link_collective_costs(
    operators: Sequence[Operator],
    request: CostRequest,
    linked: Sequence[str],
    view: NetworkView,
) -> LinkedCosts:
    """Cost tables of the collectives that no table prices, for every pipeline stage."""
    stages: list[tuple[OpCost, ...]] = []
    sampled: set[str] = set()
    planned: set[str] = set()
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
            if priced.planned:
                planned.add(op.name)
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
    tables = planned | sampled if view.exact() else planned
    messages = tuple(name for name in linked if name not in tables)
    return LinkedCosts(tuple(stages), messages, tuple(sorted(planned)))
