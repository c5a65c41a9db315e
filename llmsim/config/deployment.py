"""What is left of a cluster file once everything symbolic is resolved: integers in bytes, bytes/s
and picoseconds.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import count
from typing import Literal

from msgspec import Struct

from llmsim.config.cluster_file.instance import Placements
from llmsim.config.cluster_file.power import AcceleratorPower, NodePowerSpec, PoolPowerSpec
from llmsim.config.engine.args import EngineArgs
from llmsim.config.machine.host_links import DevicePlace, HostLink, HostLinks
from llmsim.config.topology.placement import PlacedTopology


class MemorySpec(Struct, frozen=True):
    """One memory: capacity, streaming bandwidth, latency of an access."""

    capacity_bytes: int
    bandwidth_bytes_per_s: int
    latency_ps: int


class StorageSpec(Struct, frozen=True):
    """Storage: capacity, bandwidths, and operations that are under way at once, each after its
    latency.
    """

    capacity_bytes: int
    read_bytes_per_s: int
    write_bytes_per_s: int
    read_latency_ps: int
    write_latency_ps: int
    queue_depth: int


ASSUMED_LINK_LATENCY_NS = 1000
"""Of links inside a server, which no data sheet states: the latency that a file means by the links
of the data sheet.
"""


class LinkSpec(Struct, frozen=True):
    """Links of the network: one entry per dimension of the file's list, innermost first; both of
    equal length.
    """

    bandwidth_bytes_per_s: tuple[int, ...]
    latency_ps: tuple[int, ...]

    def latency_of(self, dimension: int) -> int:
        """Latency of a dimension's links, ps; the last entry stands for all dimensions that are not
        given.
        """
        return self.latency_ps[min(dimension, len(self.latency_ps) - 1)]


class Processors(Struct, frozen=True):
    """What a node computes with beside its accelerators: a data sheet of one socket, and how many
    there are.
    """

    hardware: str
    sockets: int


class Node(Struct, frozen=True):
    """One host: its memory and its power, if declared, and the indices of its groups."""

    index: int
    host_memory: MemorySpec | None
    groups: tuple[int, ...]
    power: NodePowerSpec | None = None
    pim: str | None = None
    """Part file of its memory, if that computes."""
    pim_table: str | None = None
    """Times of attention there, in place of those that follow from the part."""
    price_per_hour: float = 0.0
    """USD, beside the devices' prices."""
    storage: StorageSpec | None = None
    processors: Processors | None = None
    """None: the file does not say what they are, and no operator runs there."""
    host_link: HostLink | None = None
    """None: devices reach the host by their ports to each other, dimension 1 of `link_bw`."""


class PoolSpec(Struct, frozen=True):
    """The cluster's CXL pool of so many devices; `mem_size` of the file is the capacity of all, as
    LLMServingSim's code reads it (its documentation says per device), `mem_bw` and `mem_latency`
    are each device's.
    """

    devices: int
    device: MemorySpec

    @property
    def whole(self) -> MemorySpec:
        """All devices as one memory, interleaved."""
        one = self.device
        return MemorySpec(
            one.capacity_bytes * self.devices,
            one.bandwidth_bytes_per_s * self.devices,
            one.latency_ps,
        )


class Offloading(Struct, frozen=True):
    """What an instance keeps outside of its devices, and how."""

    placement: Placements | None = None
    local_reads: bool = False
    """Reads of weights take at least what the file's npu_mem allows."""
    attention: bool = False
    """Decodes attend in the node's memory."""
    sub_batches: Literal["never", "shorter", "always"] = "never"
    """Two halves of a batch alternate between the devices and the memory: never, where it is
    shorter, or always.
    """
    weight_buffers: int = 2
    """Layers whose copied weights fit the device at once."""
    expert_prefetch: Literal["layer", "touched", "demand"] = "layer"
    expert_cache: float = 0.0
    """Share of the offloaded experts that stays on the device."""
    operator_devices: tuple[tuple[str, str], ...] = ()
    """(operator or class of operators, class of device), as the file gives them."""


class Economics(Struct, frozen=True):
    """Facts of the cluster's location; None where the file does not say."""

    grid_g_per_kwh: float | None = None
    electricity_price_per_kwh: float | None = None


SloClasses = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""Latency targets of classes of requests: (class, ((latency, ps), ...))."""


class AfdRole(Struct, frozen=True):
    """What a group does under attention-FFN disaggregation, and with whom."""

    name: str
    """Of the afd_group."""
    domain: Literal["attention", "ffn"]
    lanes: int
    """Micro-batches of a batch."""
    dispatch: Literal["dense", "routed"]
    attention: tuple[int, ...] = ()
    """Indices of the groups that run attention, in order."""
    ffn: tuple[int, ...] = ()
    """Indices of the groups that run FFNs, in order."""
    row_copies: int = 1
    """Ranks of an attention group that hold the same rows between its layers: the tensor-parallel
    ones, unless sequence parallelism gives each of them rows of its own.
    """


class Group(Struct, frozen=True):
    """One model serving group: an instance of the cluster file."""

    index: int
    node: int
    field_path: str
    """`nodes[0].instances[1]`, for messages."""
    model_name: str
    hardware: str
    num_devices: int
    tp: int
    pp: int
    ep: int | None
    """Expert-parallel ranks; None: not given, the model decides."""
    ffn_tp: int | None
    """Ranks over which an FFN is cut, where the file lays it out apart from the attention."""
    pcp: int
    """Ranks that share the tokens of prompts (prefill context parallelism)."""
    pp_layers: tuple[int, ...] | None
    """Layers of each pipeline stage; None: as even as the engine makes it."""
    dp_group: str | None
    dp: int
    """Members of the dp_group; 1 without one."""
    dp_nodes: int
    """On how many nodes the members of its dp_group are."""
    pd_type: str | None
    """Whether it computes prompts or answers alone; of an attention group "decode" where another
    instance computes its prompts, of an FFN group None.
    """
    memory: MemorySpec
    """Of each device."""
    engine: EngineArgs
    offloading: Offloading = Offloading()
    price_per_device_hour: float | None = None
    """USD; None: the data sheet's, if it has one."""
    memory_from_sheet: tuple[str, ...] = ()
    """Keys of npu_mem that the file leaves to the device's data sheet."""
    peer_to_peer: bool | None = None
    """Whether its devices reach each other's memory; None: not given, any measured table serves."""
    whole_experts_asked: bool = False
    """Whether the file asks for whole experts on each rank, under vLLM's name."""
    afd: AfdRole | None = None
    """None: the group runs whole layers."""
    nnodes: int = 1
    """Nodes that share its devices evenly in the order of the ranks, `node` and the next ones."""

    @property
    def devices_on_node(self) -> int:
        """Devices that it has on each of its nodes."""
        return self.num_devices // self.nnodes

    @property
    def nodes(self) -> range:
        """Numbers of the nodes that its devices are on."""
        return range(self.node, self.node + self.nnodes)

    @property
    def role(self) -> str | None:
        """`pd_type` as the cluster file has it."""
        return self.pd_type if self.afd is None else self.afd.domain


class Disaggregation(Struct, frozen=True):
    """How prompts' KV goes from prefill to decode groups (docs/explanation/disaggregation.md)."""

    how: str = "whole"
    """When the prefill has ended; "chunked": a chunk of the prompt when its step has; "layerwise":
    while the prefill runs, layer by layer.
    """
    push: bool = False
    """The decode group reserves before the prefill, which then writes; else it is told afterwards,
    and reads.
    """

    @property
    def chunked(self) -> bool:
        """By chunks of prompts."""
        return self.how == "chunked"

    @property
    def layerwise(self) -> bool:
        """Layer by layer."""
        return self.how == "layerwise"


BETWEEN_GROUPS, BETWEEN_NODES = 1, 2
"""Dimensions of the cluster file's link list."""


class Deployment(Struct, frozen=True, dict=True):
    """A resolved cluster; immutable. Groups are numbered node by node, in the order of the file."""

    cluster_path: str
    nodes: tuple[Node, ...]
    groups: tuple[Group, ...]
    link: LinkSpec
    economics: Economics = Economics()
    pool: PoolSpec | None = None
    pool_power: PoolPowerSpec | None = None
    storage: StorageSpec | None = None
    """Reached by every node over its network cards."""
    disaggregation: Disaggregation | None = None
    """None: no group has a role of its own."""
    topology: PlacedTopology | None = None
    """None: `link` says all."""
    slo_classes: SloClasses = ()
    devices_per_node: int | None = None
    """Of layouts, whose groups may span nodes: devices lie on nodes in order. None: each group is
    on its node."""

    def devices_on(self, node: int) -> int:
        """Devices of all groups on a node."""
        return sum(group.devices_on_node for group in self.groups if node in group.nodes)

    def node_of(self, group: Group, rank: int, number: int) -> int:
        """The node of a group's rank, which is device `number` of the cluster."""
        each = self.devices_per_node
        return group.node + rank // group.devices_on_node if each is None else number // each

    @cached_property
    def device_places(self) -> tuple[tuple[DevicePlace, ...], ...]:
        """By group and rank, the node of the device and its number there."""
        numbers, on_node = count(), Counter[int]()
        places = []
        for group in self.groups:
            mine = []
            for rank in range(group.num_devices):
                node = self.node_of(group, rank, next(numbers))
                mine.append((node, on_node[node]))
                on_node[node] += 1
            places.append(tuple(mine))
        return tuple(places)

    @cached_property
    def host_links(self) -> HostLinks:
        """Which link each device takes to what is below it."""
        rates, latencies = self.link.bandwidth_bytes_per_s, self.link.latency_ps
        at = min(BETWEEN_GROUPS, len(rates) - 1)
        stated = {node.index: node.host_link for node in self.nodes if node.host_link is not None}
        return HostLinks(stated, HostLink(rates[at], latencies[at]), self.device_places)

    def tiers_take_ports(self, nodes: Iterable[int]) -> bool:
        """Whether KV below the devices takes their ports to each other: not where all nodes have a
        `host_link`, and no storage is behind the network cards.
        """
        return self.storage is not None or not self.host_links.apart(nodes)

    def accelerator_power(self, group: Group) -> AcceleratorPower | None:
        """What the group's devices draw; None where their node does not say."""
        power = self.nodes[group.node].power
        return None if power is None else power.accelerators[group.hardware]
