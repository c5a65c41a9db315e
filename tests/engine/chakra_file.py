"""A few lines that write Chakra files and case folders, independent of the engine and
of protobuf.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

INVALID, METADATA, LOAD, STORE, COMP, SEND, RECV, COLL = 0, 1, 2, 3, 4, 5, 6, 7
ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = range(8)
REDUCE_SCATTER_BLOCK, BARRIER = 8, 9


def varint(value: int) -> bytes:
    """An unsigned LEB128 varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    """One field: an int as a varint, bytes length-delimited."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


Value = int | str | bool | list[bool] | list[str]


def attribute(name: str, value: Value) -> bytes:
    """An AttributeProto: bool_val, int64_val, string_val, bool_list or string_list."""
    head = field(1, name.encode())
    if isinstance(value, bool):
        return head + field(27, int(value))
    if isinstance(value, int):
        return head + field(9, value % 2**64)
    if isinstance(value, str):
        return head + field(29, value.encode())
    if value and isinstance(value[0], str):
        return head + field(30, b"".join(field(1, str(text).encode()) for text in value))
    return head + field(28, field(1, bytes(map(bool, value))))


def node(
    node_id: int,
    node_type: int,
    deps: Sequence[int] = (),
    micros: int = 0,
    ctrl_deps: Sequence[int] = (),
    **attributes: Value,
) -> bytes:
    """The record of a node, its length in front; `deps` are data dependencies."""
    record = field(1, node_id) + field(2, f"n{node_id}".encode()) + field(3, node_type)
    if ctrl_deps:
        record += field(4, b"".join(varint(dep) for dep in ctrl_deps))
    if deps:
        record += field(5, b"".join(varint(dep) for dep in deps))
    if micros:
        record += field(7, micros)
    for name, value in {"is_cpu_op": False, **attributes}.items():
        record += field(10, attribute(name, value))
    return varint(len(record)) + record


def trace(nodes: Sequence[bytes]) -> bytes:
    """A file: metadata and nodes."""
    metadata = field(1, b"0.0.4")
    return varint(len(metadata)) + metadata + b"".join(nodes)


def write_case(
    folder: Path,
    traces: Sequence[Sequence[bytes]],
    network: dict[str, Any],
    system: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    groups: dict[str, list[int]] | None = None,
) -> Path:
    """A folder with the corpus's file names; `traces` has one list of nodes per NPU."""
    folder.mkdir(parents=True, exist_ok=True)
    for npu, nodes in enumerate(traces):
        (folder / f"workload.{npu}.et").write_bytes(trace(nodes))
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    defaults = {f"{kind}-implementation": ["ring"] for kind in kinds}
    base = {"preferred-dataset-splits": 1, "local-mem-bw": 1600, "endpoint-delay": 10, **defaults}
    (folder / "system.json").write_text(json.dumps({**base, **(system or {})}))
    (folder / "network.yml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in network.items())
    )
    (folder / "memory.json").write_text(
        json.dumps(memory or {"memory-type": "NO_MEMORY_EXPANSION"})
    )
    if groups is not None:
        (folder / "comm_group.json").write_text(json.dumps(groups))
    return folder


def network(
    shape: str, npus: int, gb_per_s: float = 50.0, latency_ns: float = 500.0
) -> dict[str, Any]:
    """A network of one dimension."""
    return {
        "topology": [shape],
        "npus_count": [npus],
        "bandwidth": [gb_per_s],
        "latency": [latency_ns],
    }
