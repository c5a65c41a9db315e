"""The cluster file as one frozen model, in the file's own units; `resolve` turns it into a
deployment.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from llmsim.config.cluster_file.devices import CxlMemory, Host, HostLink, Storage
from llmsim.config.cluster_file.dialect import check_expert_ranks
from llmsim.config.cluster_file.instance import Instance, Placement
from llmsim.config.cluster_file.json_positions import Location
from llmsim.config.cluster_file.layouts import (
    LayoutInstance,
    LayoutInstances,
    LayoutNode,
    Reconfiguration,
    Switch,
    check_layouts,
    devices_of,
)
from llmsim.config.cluster_file.loading import (
    Document,
    LayoutDocument,
    parse_text,
    read_text,
)
from llmsim.config.constraints import broken_rule
from llmsim.config.engine.options import EngineOptions
from llmsim.config.fields import (
    BandwidthPerDimension,
    CarbonPerKwh,
    LatencyPerDimension,
    Name,
    PositiveCount,
    PricePerKwh,
    Section,
    SloClass,
    TargetMs,
)


class Node(Host):
    """One host with its instances."""

    num_instances: PositiveCount | None = Field(
        default=None, description="Length of instances, as a check."
    )
    instances: tuple[Instance, ...] = Field(
        max_length=1 << 16,
        strict=False,
        description="Model instances that begin on this node; none where an instance of a node "
        "before has all of its devices (nnodes).",
    )

    @model_validator(mode="after")
    def _count_matches(self) -> Self:
        if self.num_instances not in (None, len(self.instances)):
            raise broken_rule(
                "num_instances",
                f"is {self.num_instances}, but instances has {len(self.instances)} entries",
            )
        return self


class LatencyTargets(Section):
    """What the requests of a class shall take at most."""

    ttft_ms: TargetMs | None = Field(default=None, description="Time to first token.")
    tpot_ms: TargetMs | None = Field(default=None, description="Time per output token.")
    e2el_ms: TargetMs | None = Field(default=None, description="Latency to the last token.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.limits_ps() == ():
            raise broken_rule((), "states no target; give ttft_ms, tpot_ms or e2el_ms")
        return self

    def limits_ps(self) -> tuple[tuple[str, int], ...]:
        """(latency, ps) of every target."""
        stated = (("ttft", self.ttft_ms), ("tpot", self.tpot_ms), ("e2el", self.e2el_ms))
        return tuple((name, round(ms * 10**9)) for name, ms in stated if ms is not None)


MOST_BUFFER_BYTES = 1 << 40


class Incast(Section):
    """What bursts of many senders cost at a port of a topology's switches."""

    buffer_bytes: int = Field(
        ge=1, le=MOST_BUFFER_BYTES, description="What a switch holds for one port, in bytes."
    )
    burst_bytes: int = Field(
        ge=1,
        le=MOST_BUFFER_BYTES,
        description="What a message brings before its sender slows down, in bytes.",
    )
    efficiency_percent: int = Field(
        ge=1, le=100, description="What is left of the link for bytes beyond the buffer."
    )

    @model_validator(mode="after")
    def _one_sender_fits(self) -> Self:
        if self.burst_bytes > self.buffer_bytes:
            raise broken_rule(
                "burst_bytes",
                f"is {self.burst_bytes}, more than buffer_bytes {self.buffer_bytes}; one sender "
                "alone has to fit the buffer",
            )
        return self


class Cluster(Section):
    """A serving cluster; immutable. Made by `load_cluster`, which remembers the file for later
    errors.
    """

    schema_uri: str | None = Field(
        default=None, alias="$schema", description="For editors; ignored."
    )
    description: str | None = Field(default=None, description="For people; ignored.")
    num_nodes: PositiveCount | None = Field(
        default=None, description="Length of nodes, as a check."
    )
    link_bw_gb_per_s: BandwidthPerDimension = Field(
        alias="link_bw",
        description=(
            "Bandwidth of a device's link; a list gives one value per network dimension, "
            "innermost first."
        ),
    )
    link_latency_ns: LatencyPerDimension = Field(
        alias="link_latency",
        description=(
            "Latency of a link; a list gives one value per network dimension, innermost first."
        ),
    )
    host_link: HostLink | None = Field(
        default=None, description="Link between devices and hosts of nodes that give none."
    )
    nodes: tuple[Node, ...] = Field(
        default=(), min_length=1, max_length=1 << 16, strict=False, description="The hosts."
    )
    layouts: dict[Name, LayoutInstances] | None = Field(
        default=None,
        description="In place of nodes: instances over the same devices, of which one layout "
        "serves at a time.",
    )
    node: LayoutNode | None = Field(
        default=None,
        description="What every host of the layouts is; without it all devices are on one.",
    )
    initial: Name | None = Field(
        default=None, description="The layout that serves first; the first one if not given."
    )
    switch: tuple[Switch, ...] = Field(
        default=(), max_length=1024, strict=False, description="When another layout takes over."
    )
    decide: Name | None = Field(
        default=None,
        description="A class in Python that decides which layout serves, such as "
        "my_module:MyReconfigure; the switches come first.",
    )
    reconfiguration: Reconfiguration | None = Field(
        default=None, description="What a switch of layouts costs."
    )
    topology: Name | None = Field(
        default=None,
        description="A topology file (beside this file), or a bundled network by name: collectives "
        "and hand-over take its routes.",
    )
    incast: Incast | None = Field(
        default=None,
        description="What bursts of many senders cost at a port of the topology's switches.",
    )
    cxl_mem: CxlMemory | None = Field(default=None, description="CXL memory pool.")
    storage: Storage | None = Field(
        default=None,
        description="Storage that every node reaches over its network cards (NVMe over fabrics).",
    )
    grid_g_per_kwh: CarbonPerKwh | None = Field(
        default=None,
        alias="grid_gco2_per_kwh",
        description="Carbon of one kWh at the cluster's location.",
    )
    electricity_price_per_kwh: PricePerKwh | None = Field(
        default=None,
        description="Price of one kWh, where it is not contained in the prices per hour.",
    )
    kv_transfer: Literal["whole", "chunked", "layerwise"] | None = Field(
        default=None,
        description="Between instances of pd_type prefill and decode: whole prompts, chunks of "
        "them, or layer by layer as they are computed.",
    )
    kv_transfer_mode: Literal["pull", "push"] | None = Field(
        default=None,
        description="Whether the decode instance reads when the prefill has ended, or reserves "
        "before it and is written to.",
    )
    slo_classes: dict[SloClass, LatencyTargets] = Field(
        default_factory=dict,
        max_length=256,
        description="Latency targets of each class of requests (slo_class of the trace); "
        "--goodput wins over them.",
    )
    engine: EngineOptions = Field(
        default_factory=EngineOptions.model_construct,
        description=(
            "Engine options of every instance; the command line and the instance win over them."
        ),
    )

    _document: Document = PrivateAttr(default_factory=lambda: Document("<cluster>", "", None))

    @property
    def path(self) -> str:
        """The name of the file, for messages."""
        return self._document.name

    def plain(self) -> dict[str, Any]:
        """The file's keys and values, without comments; a copy."""
        fields: dict[str, Any] = copy.deepcopy(self._document.data)
        return fields

    def position(self, location: Location) -> str:
        """`file:line: field.path` of a field of this cluster, for the head of an error."""
        return self._document.position(location)

    def instances(self) -> Iterator[tuple[Location, Instance]]:
        """Every instance with its position, node by node."""
        for i, node in enumerate(self.nodes):
            for j, instance in enumerate(node.instances):
                yield ("nodes", i, "instances", j), instance

    @model_validator(mode="after")
    def _nodes_or_layouts(self) -> Self:
        if self.layouts is None:
            if not self.nodes:
                raise broken_rule("nodes", "is missing; give at least one node with instances")
            for key in ("node", "initial", "switch", "decide", "reconfiguration"):
                if getattr(self, key):
                    raise broken_rule(key, "is given, but the cluster has no layouts; add them")
            return self
        if self.nodes:
            raise broken_rule("nodes", "is given beside layouts, which take its place; keep one")
        check_layouts(self.layouts, self.initial, self.switch)
        return self

    @model_validator(mode="after")
    def _count_matches(self) -> Self:
        if self.num_nodes not in (None, len(self.nodes)):
            raise broken_rule(
                "num_nodes", f"is {self.num_nodes}, but nodes has {len(self.nodes)} entries"
            )
        return self

    @model_validator(mode="after")
    def _nodes_of_instances_exist(self) -> Self:
        reached = 0
        for i, node in enumerate(self.nodes):
            if not node.instances and i >= reached:
                raise broken_rule(
                    ("nodes", i, "instances"),
                    "is empty, and no instance of a node before reaches this one; give it an "
                    "instance, or one before it more nnodes",
                )
            for j, instance in enumerate(node.instances):
                nodes = instance.nnodes or 1
                if i + nodes > len(self.nodes):
                    raise broken_rule(
                        ("nodes", i, "instances", j, "nnodes"),
                        f"is {nodes}, but the file has {len(self.nodes) - i} nodes from this one "
                        "on; add nodes without instances behind it",
                    )
                reached = max(reached, i + nodes)
        return self

    @model_validator(mode="after")
    def _one_value_per_dimension(self) -> Self:
        widths = {len(self.link_bw_gb_per_s), len(self.link_latency_ns)} - {1}
        if len(widths) > 1:
            raise broken_rule(
                "link_latency",
                f"has {len(self.link_latency_ns)} entries, but link_bw has "
                f"{len(self.link_bw_gb_per_s)}; "
                "give one for each network dimension, or a single number for all",
            )
        return self

    @model_validator(mode="after")
    def _incast_has_a_topology(self) -> Self:
        if self.incast is not None and self.topology is None:
            raise broken_rule(
                "incast",
                "is given, but the cluster names no topology, whose switches have the buffers; "
                "add that",
            )
        return self

    @model_validator(mode="after")
    def _topology_devices_have_a_topology(self) -> Self:
        for location, instance in self.instances():
            for key in ("topology_devices", "topology_group"):
                if self.topology is None and getattr(instance, key) is not None:
                    raise broken_rule(
                        (*location, key), "is given, but the cluster names no topology; add that"
                    )
        return self

    @model_validator(mode="after")
    def _cxl_devices_exist(self) -> Self:
        for location, placement in placements(self):
            for name in Placement.model_fields:
                where = getattr(placement, name)
                if where is not None and where.startswith("cxl:"):
                    self._require_cxl_device((*location, name), where)
        return self

    def _require_cxl_device(self, location: Location, where: str) -> None:
        if self.cxl_mem is None:
            raise broken_rule(
                location,
                f'is "{where}", but the cluster has no cxl_mem; declare the pool, or say "npu"',
            )
        count = self.cxl_mem.num_devices
        if int(where.removeprefix("cxl:")) >= count:
            raise broken_rule(
                location,
                f'is "{where}", but cxl_mem has num_devices {count}: "cxl:0" to "cxl:{count - 1}"',
            )

    @model_validator(mode="after")
    def _data_parallel_groups_agree(self) -> Self:
        first: dict[str, tuple[Location, Instance]] = {}
        members: dict[str, int] = {}
        for location, instance in self.instances():
            if instance.dp_group is None:
                continue
            members[instance.dp_group] = members.get(instance.dp_group, 0) + 1
            if (
                instance.layout
                != first.setdefault(instance.dp_group, (location, instance))[1].layout
            ):
                raise broken_rule(
                    (*location, "dp_group"),
                    f'is "{instance.dp_group}", whose first member has other tp_size, pp_size or '
                    "ep_size; "
                    "members of a dp_group must agree on all three",
                )
        for group, (location, instance) in first.items():
            if instance.ep_size is not None:
                _check_expert_ranks_at(location, instance, members[group])
        return self


def _check_expert_ranks_at(location: Location, instance: Instance, dp: int) -> None:
    assert instance.ep_size is not None
    try:
        check_expert_ranks(instance.ep_size, dp, instance.layout.tp)
    except PydanticCustomError as error:
        context: dict[str, Any] = error.context or {}
        raise broken_rule((*location, *context["field"]), context["sentence"]) from None


def placements(cluster: Cluster) -> Iterator[tuple[Location, Placement]]:
    """Every placement entry of the cluster with its position."""
    for location, instance in cluster.instances():
        if instance.placement is None:
            continue
        base = (*location, "placement")
        yield (*base, "default"), instance.placement.default
        for i, block in enumerate(instance.placement.blocks):
            yield (*base, "blocks", i), block
        for name, layer in instance.placement.layers.items():
            yield (*base, "layers", name), layer


def load_cluster(path: Path | str) -> Cluster:
    """Reads a cluster file of either dialect; InputError names file, line, field, value and what
    would have worked.
    """
    return parse_cluster(read_text(Path(path)), str(path))


def parse_cluster(text: str, name: str = "<cluster>") -> Cluster:
    """`load_cluster` for a JSON or YAML text; `name` stands for the file in errors."""
    document = parse_text(text, name)
    try:
        cluster = Cluster.model_validate(document.data)
    except ValidationError as error:
        from llmsim.config.problems import (
            input_error,
        )  # builds the schema: only needed when there is an error

        raise input_error(error, document) from None
    cluster._document = document
    return cluster if cluster.layouts is None else serving(cluster, first_layout(cluster))


def first_layout(cluster: Cluster) -> str:
    """The layout that serves first."""
    assert cluster.layouts is not None
    return cluster.initial or next(iter(cluster.layouts))


def places_of(cluster: Cluster, layout: str) -> list[tuple[Location, LayoutInstance]]:
    """Every instance of a layout, in order of their devices, and where the file describes it."""
    assert cluster.layouts is not None
    return [
        (("layouts", layout, i), instance)
        for i, instance in enumerate(cluster.layouts[layout])
        for _ in range(instance.count)
    ]


def serving(cluster: Cluster, layout: str) -> Cluster:
    """The cluster while a layout serves: its instances in order of their devices, each on the node
    that has its first one.
    """
    places = places_of(cluster, layout)
    devices = sum(devices_of(instance) for _, instance in places)
    each = cluster.node.devices if cluster.node is not None else devices
    on: list[list[tuple[Location, LayoutInstance]]] = [[] for _ in range(-(-devices // each))]
    first = 0
    for place in places:
        on[first // each].append(place)
        first += devices_of(place[1])
    nodes = tuple(_layout_node(cluster, [instance for _, instance in here]) for here in on)
    copied = cluster.model_copy(update={"nodes": nodes})
    document = cluster._document
    copied._document = LayoutDocument(
        document.name,
        document.text,
        document.data,
        document.lines,
        tuple(tuple(at for at, _ in here) for here in on),
    )
    return copied


def _layout_node(cluster: Cluster, instances: list[LayoutInstance]) -> Node:
    host = cluster.node or Host()
    given = {name: getattr(host, name) for name in Host.model_fields}
    return Node.model_construct(num_instances=None, instances=tuple(instances), **given)
