"""What is left of a cluster file once everything symbolic is resolved: integers in bytes, bytes/s and picoseconds."""

from dataclasses import dataclass

from llmsim.config.engine_args import EngineArgs


@dataclass(frozen=True)
class MemorySpec:
    """One memory: capacity, streaming bandwidth, latency of an access."""

    capacity_bytes: int
    bandwidth_bytes_per_s: int
    latency_ps: int


@dataclass(frozen=True)
class LinkSpec:
    """Links of the network: one entry per dimension of the file's list, innermost first; both of equal length."""

    bandwidth_bytes_per_s: tuple[int, ...]
    latency_ps: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One host: its memory, if declared, and the indices of its groups."""

    index: int
    host_memory: MemorySpec | None
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Group:
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
    dp_group: str | None
    pd_type: str | None
    memory: MemorySpec
    """Of each device."""
    engine: EngineArgs


@dataclass(frozen=True)
class Deployment:
    """A resolved cluster; immutable. Groups are numbered node by node, in the order of the file."""

    cluster_path: str
    nodes: tuple[Node, ...]
    groups: tuple[Group, ...]
    link: LinkSpec
