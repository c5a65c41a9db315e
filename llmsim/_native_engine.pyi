"""
Execution graphs on a simulated network: topologies, collectives, streams, contention.
"""

from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class EngineError(Exception):
    pass

class InvalidGraph(EngineError):
    pass

class InvalidTopology(EngineError):
    pass

class OutOfRange(EngineError):
    pass

class OutOfMemory(EngineError):
    pass

class Stalled(EngineError):
    pass

class NotFoldable(EngineError):
    pass

class TopologyKind(enum.Enum):
    RING = 0

    SWITCH = 1

    FULLY_CONNECTED = 2

class Topology:
    """Devices and full-duplex links; latency is per link; immutable."""

    @staticmethod
    def ring(num_devices: int, bandwidth_bytes_per_s: int, latency_ps: int) -> Topology: ...

    @staticmethod
    def switch(num_devices: int, bandwidth_bytes_per_s: int, latency_ps: int) -> Topology: ...

    @staticmethod
    def fully_connected(num_devices: int, bandwidth_bytes_per_s: int, latency_ps: int) -> Topology: ...

    @staticmethod
    def grid(dimensions: Sequence[tuple[TopologyKind, int, int, int, int]]) -> Topology:
        """
        From (kind, size, bytes/s, latency ps, bisection bytes/s or 0) per dimension, 0 fastest.
        """

    @property
    def num_devices(self) -> int: ...

    @property
    def num_links(self) -> int: ...

    def links(self) -> list[tuple[int, int]]:
        """
        Ends (from, to) of every directed link, in the order of the counters; switches follow the devices.
        """

    def link_speeds(self) -> list[tuple[int, int]]:
        """(bytes/s, latency ps) of every directed link."""

    def route(self, from_device: int, to_device: int) -> list[int]:
        """Numbers of the links of a route, in order."""

    def hops(self, arg0: int, arg1: int, /) -> int: ...

class TopologyBuilder:
    """
    Devices 0 .. n - 1, then switches, joined by full-duplex links; build() seals it.
    """

    def __init__(self, num_devices: int, devices_relay: bool = False) -> None: ...

    def add_switch(self, bisection_bytes_per_s: int = 0, spread: int = 0) -> int:
        """
        Its number; bisection 0: does not block; spread 0: equal routes by hash, else destination / spread.
        """

    def add_link(self, a: int, b: int, bandwidth_bytes_per_s: int, latency_ps: int) -> int:
        """Number c of the cable: links 2c (a to b) and 2c + 1."""

    def add_route(self, vertices: Sequence[int]) -> None: ...

    def build(self) -> Topology: ...

class NetworkKind(enum.Enum):
    CONGESTION_UNAWARE = 0

    CONGESTION_AWARE = 1

    FAIR_SHARE = 2

class TierSharing(enum.Enum):
    NETWORK = 0

    FIFO = 1

def one_per_device(num_devices: int) -> list[int]: ...

def one_per_node(num_devices: int, devices_per_node: int) -> list[int]: ...

def one_for_all(num_devices: int) -> list[int]: ...

class Tier:
    """
    A kind of memory; see model/memory/memory.h. 4294967295 in instance_of: out of reach.
    """

    def __init__(self, name: str, instance_of: Sequence[int], read_bytes_per_s: int, write_bytes_per_s: int = 0, latency_ps: int = 0, capacity_bytes: int = 0, channels: int = 1, sharing: TierSharing = TierSharing.NETWORK, port_of: Sequence[int] = [], port_bytes_per_s: int = 0, held_by: Sequence[int] = []) -> None: ...

class MemorySystem:
    """The tiers of one topology."""

    @staticmethod
    def make(topology: Topology, tiers: Sequence[Tier]) -> MemorySystem: ...

    @property
    def num_links(self) -> int:
        """Its channels and ports follow the topology's links in the counters."""

    def place(self, tier: int, instance: int) -> int:
        """Row of the tier counters."""

class CollectiveKind(enum.Enum):
    ALL_REDUCE = 0

    ALL_GATHER = 1

    REDUCE_SCATTER = 2

    ALL_TO_ALL = 3

    BROADCAST = 4

    REDUCE = 5

    GATHER = 6

    SCATTER = 7

    BARRIER = 8

class Algorithm(enum.Enum):
    RING = 0

    DIRECT = 1

    MEASURED = 2

    HALVING_DOUBLING = 3

    DOUBLE_BINARY_TREE = 4

    IN_SWITCH = 5

    CUSTOM = 6

    BRUCK = 7

class AlgorithmChoice:
    """An algorithm as files name it: ring, oneRing, direct4."""

    @staticmethod
    def parse(word: str) -> AlgorithmChoice: ...

    @property
    def algorithm(self) -> Algorithm: ...

    @property
    def flat(self) -> bool:
        """Over all devices at once."""

    @property
    def window(self) -> int:
        """Messages that a rank may have in flight; 0: any number."""

    @property
    def name(self) -> str: ...

    @property
    def in_step(self) -> bool:
        """On equal links of their own, ranks that start together end together."""

    @property
    def on_switch(self) -> bool:
        """Needs a switch that all ranks hang on."""

    def can(self, kind: CollectiveKind) -> bool:
        """Whether it has messages for a kind of collective."""

def algorithm_words() -> list[str]:
    """The names of the algorithms that files may ask for."""

class CollectiveShape:
    """
    Dimensions with an algorithm each, pieces, root, sizes per pair, windows.
    """

    def __init__(self, dims: Sequence[int] = [], algorithms: Sequence[Algorithm] = [], pieces: int = 1, root: int = 0, pair_units: Sequence[int] | None = None, topology: Topology | None = None, windows: Sequence[int] = []) -> None: ...

class Schedule:
    """The messages of a custom collective."""

    @staticmethod
    def custom(num_ranks: int, denominator: int, messages: Sequence[tuple[int, int, int, int, Sequence[int]]]) -> Schedule:
        """
        Messages (from rank, to rank, first unit, units, those that have to arrive before); a unit is the call's bytes / denominator.
        """

    @property
    def num_ranks(self) -> int: ...

    @property
    def num_messages(self) -> int: ...

class NodeKind(enum.IntEnum):
    COMPUTE = 0

    COLLECTIVE = 1

    TRANSFER = 2

    SEND = 3

    RECV = 4

    MEMORY_LOAD = 5

    MEMORY_STORE = 6

class Stream(enum.IntEnum):
    COMPUTE = 0

    COMM = 1

    COPY_IN = 2

    COPY_OUT = 3

    PIM = 4

    HOST = 5

    NONE = 6

class MeasuredTable:
    """Measured durations of a collective by size; interpolates."""

    def __init__(self, num_bytes: Sequence[int], duration_ps: Sequence[int]) -> None: ...

    def at(self, num_bytes: int) -> int: ...

class ExecutionGraph:
    """One iteration made concrete; immutable; made by GraphBuilder."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_devices(self) -> int: ...

    @property
    def amounts(self) -> object:
        """A copy of the durations (ps) and sizes (bytes), one int64 per node."""

    def describe(self, arg: int, /) -> str: ...

class GraphBuilder:
    """Collects nodes; build() checks them and returns a sealed graph."""

    def __init__(self, num_devices: int) -> None: ...

    def add_group(self, devices: Sequence[int]) -> int: ...

    def add_plan(self, kind: CollectiveKind, algorithm: Algorithm, group: int, table: MeasuredTable | None = None, shape: CollectiveShape | None = None, schedule: Schedule | None = None) -> int: ...

    def compute(self, device: int, duration_ps: int, parents: Sequence[int] = [], stream: Stream = Stream.COMPUTE, power_class: int = 0) -> int: ...

    def collective(self, device: int, plan: int, call: int, num_bytes: int, parents: Sequence[int] = [], stream: Stream = Stream.COMM) -> int: ...

    def transfer(self, from_device: int, to_device: int, num_bytes: int, parents: Sequence[int] = [], stream: Stream = Stream.COPY_OUT) -> int: ...

    def add(self, kind: NodeKind, stream: Stream, device: int, amount: int, peer: int, call: int, parents: Sequence[int] = []) -> int: ...

    def add_columns(self, kind: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stream: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], device: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], amount: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], peer: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], call: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], parent_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def with_ids(self, ids: Sequence[int]) -> None: ...

    def clear(self) -> None: ...

    def build(self) -> ExecutionGraph: ...

class Engine:
    """
    Owns the clock and the links; graphs can be submitted at any time. Not for two threads at once.
    """

    def __init__(self, topology: Topology, network: NetworkKind = NetworkKind.CONGESTION_AWARE, endpoint_delay_ps: int = 0, rate_quantum_ppm: int = 0, quantum_above_flows: int = 65536, memory: MemorySystem | None = None) -> None:
        """
        Fair share: a rate quantum of 0 is exact, see fair_share_counters()['deferred'].
        """

    def submit(self, graph: ExecutionGraph, at_ps: int, amounts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> int:
        """
        Number of the submission; `amounts` (int64 per node: ps or bytes) replace the graph's for this run.
        """

    def advance(self) -> tuple[int, int] | None:
        """
        (graph, end_ps) of the next completion, or None when no graph is in flight.
        """

    def advance_until(self, limit_ps: int) -> tuple[int, int] | None: ...

    def run(self) -> int:
        """Runs everything; the last end, ps."""

    def times(self, graph: int) -> tuple[object, object]:
        """(start_ps, end_ps), one int64 per node, of a finished graph."""

    def release(self, graph: int) -> None: ...

    def idle_until(self, at_ps: int) -> None:
        """Moves the clock where nothing happens until then."""

    def next_event_ps(self) -> int | None: ...

    @property
    def now_ps(self) -> int: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def num_events(self) -> int: ...

    def cancel(self, graph: int) -> None:
        """Drops a graph or transfer in flight."""

    def transfer(self, from_device: int, to_device: int, num_bytes: int, at_ps: int) -> int:
        """
        One message without a graph; reported by advance under the number returned.
        """

    def access(self, tier: int, device: int, num_bytes: int, store: bool, at_ps: int) -> int:
        """A load from a memory tier, or a store to it, without a graph."""

    def reserve(self, tier: int, device: int, num_bytes: int) -> None: ...

    def free(self, tier: int, device: int, num_bytes: int) -> None: ...

    def tier_counters(self) -> dict:
        """
        Columns by place: loads, stores, waiting_ps, peak_waiting, used_bytes, peak_used_bytes.
        """

    def energy_nj(self, class_mw: Sequence[int], idle_mw: int = 0, link_fj_per_byte: Sequence[int] = []) -> dict:
        """Energy up to now_ps: dict of class_nj, idle_nj, link_nj, total_nj."""

    def fair_share_counters(self) -> dict:
        """
        flows in motion; solves, flows they visited, and re-solves that the quantum deferred (0: exact).
        """

    def link_counters(self) -> dict:
        """
        Columns by link, now: bytes, messages, busy_ps, queue_ps, peak_queue_ps, peak_messages.
        """

    def device_counters(self) -> dict:
        """busy_ps[device, stream] and class_ps[device, power class]."""

class Incast:
    """What bursts of many senders cost at a switch's port."""

    def __init__(self, buffer_bytes: int = 0, burst_bytes: int = 0, efficiency_ppm: int = 1000000) -> None:
        """
        buffer_bytes: what a switch holds for a port; 0: bursts cost nothing. burst_bytes: what a sender sends before it slows down. efficiency_ppm: what is left of the link for bytes beyond the buffer.
        """

class ConcurrentDurations:
    """
    Collectives, one a group, or messages, that start together on a network of their own.
    """

    def __init__(self, topology: Topology, network: NetworkKind, groups: Sequence[Sequence[int]], kind: CollectiveKind | None = None, algorithm: AlgorithmChoice = ..., incast: Incast = ...) -> None:
        """kind None: a message from each group's first device to its second."""

    @property
    def num_simulated(self) -> int:
        """
        Messages, at each of their ends, that one size is simulated with; 0: none.
        """

    def durations_ps(self, num_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
        """From the common start until the last end, for each size."""

    def ends_ps(self, num_bytes: int) -> list[list[int]]:
        """
        By group and device, when it is done with its part, after the common start; of a message, both of its ends when it is there.
        """

def broadcasts_in_turn(topology: Topology, groups: Sequence[Sequence[int]], num_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """
    Durations (ps) of every rank's share in turn, along a chain that passes pieces on.
    """

class CollectiveSite:
    """Where a collective runs and how, for all sizes."""

    def __init__(self, topology: Topology, group: Sequence[int], kind: CollectiveKind, algorithm: Algorithm, table: MeasuredTable | None = None, network: NetworkKind = NetworkKind.CONGESTION_AWARE, endpoint_delay_ps: int = 0, shape: CollectiveShape | None = None, schedule: Schedule | None = None) -> None: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def linear(self) -> bool: ...

def isolated_duration(site: CollectiveSite, num_bytes: int) -> int:
    """
    Duration (ps) of a collective on links of its own when all ranks start together.
    """

def isolated_durations(site: CollectiveSite, num_bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """The same for an int64 array of sizes."""

class MapForm(enum.Enum):
    SCALAR = 0

    CIRCULANT = 1

    MATRIX = 2

    SIMULATED = 3

class CollectiveMap:
    """Ends from starts: end[i] = max over j of start[j] + weight(i, j)."""

    @staticmethod
    def isolated(site: CollectiveSite, num_bytes: int) -> CollectiveMap: ...

    @property
    def form(self) -> MapForm: ...

    @property
    def linear(self) -> bool: ...

    @property
    def simultaneous_ps(self) -> int: ...

    def weight_ps(self, end_rank: int, start_rank: int) -> int: ...

    def apply(self, starts_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object: ...

class ChainItem:
    @staticmethod
    def compute(durations_ps: Sequence[int]) -> ChainItem:
        """One duration for all ranks, or one per rank."""

    @staticmethod
    def collective(site: int, num_bytes: int) -> ChainItem: ...

class Chain:
    """
    Blocks (repeat, items) of compute and collectives that one group runs in order.
    """

    def __init__(self, sites: Sequence[CollectiveSite], blocks: Sequence[tuple[int, Sequence[ChainItem]]]) -> None: ...

class FoldedChain:
    """A chain compiled to max-plus maps; equal to expanded_ends."""

    def __init__(self, chain: Chain) -> None: ...

    @property
    def linear(self) -> bool: ...

    @property
    def num_ranks(self) -> int: ...

    def ends(self, starts_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object: ...

def expanded_ends(chain: Chain, starts_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """
    Ends of all ranks when every rank's nodes run in an engine of their own.
    """

def expand(chain: Chain, start_offsets_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> ExecutionGraph:
    """The chain as a graph: node = position * ranks + rank."""
