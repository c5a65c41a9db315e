"""Chakra execution traces (`.et`): read, written, and as networkx graphs; field numbers as in the
published schema.

A file is a sequence of records, each with its length in front as a varint: GlobalMetadata, then
Nodes.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmsim.config.errors import InputError
from llmsim.config.files.reading import MAX_WHOLE_BYTES, file_bytes, too_large

if TYPE_CHECKING:
    import networkx

Value = int | bool | str | tuple[bool, ...]
NodeType = Literal[
    "INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL"
]
NODE_TYPES: tuple[NodeType, ...] = (
    "INVALID",
    "METADATA",
    "MEM_LOAD",
    "MEM_STORE",
    "COMP",
    "COMM_SEND",
    "COMM_RECV",
    "COMM_COLL",
)
COLLECTIVES = (
    *(
        "ALL_REDUCE",
        "REDUCE",
        "ALL_GATHER",
        "GATHER",
        "SCATTER",
        "BROADCAST",
        "ALL_TO_ALL",
        "REDUCE_SCATTER",
    ),
    *("REDUCE_SCATTER_BLOCK", "BARRIER"),
)
"""A collective's `comm_type` is its place here."""

VERSION = "0.0.4"
"""Of the traces that are written."""
READ = frozenset(
    f"{kind}_val"
    for kind in (
        *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
        *("sfixed32", "sfixed64", "bool", "string"),
    )
)
"""Kinds of values that a `TraceNode` keeps, beside lists of bools."""


@dataclass
class TraceNode:
    """A node; dependencies are ids. Values of other types than these (floats, lists of numbers) are
    not kept.
    """

    id: int
    name: str
    type: NodeType
    duration_micros: int = 0
    data_deps: list[int] = field(default_factory=list)
    ctrl_deps: list[int] = field(default_factory=list)
    attributes: dict[str, Value] = field(default_factory=dict)


def write_trace(path: Path | str, nodes: Iterable[TraceNode]) -> None:
    """One file, nodes in the given order; InputError when it cannot be written."""
    from llmsim.export.chakra_schema import GlobalMetadata

    try:
        with Path(path).open("wb") as file:
            file.write(_framed(GlobalMetadata(version=VERSION)))
            for node in nodes:
                file.write(_framed(_message(node)))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})", file=str(path)) from None


def _unpacked(path: Path, packed: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            data = stream.read(MAX_WHOLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read ({error}); expected a Chakra trace", file=str(path)
        ) from None
    if len(data) > MAX_WHOLE_BYTES:
        raise too_large(path)
    return data


def read_trace(path: Path | str) -> Iterator[TraceNode]:
    """The nodes of a file, plain or gzip, one at a time; InputError when it is damaged."""
    from google.protobuf.message import DecodeError

    data = file_bytes(Path(path), "a Chakra trace")
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(Path(path), data)
    at = 0
    for number in range(len(data)):
        if at == len(data):
            return
        try:
            length, at = _varint(data, at)
            record, at = data[at : at + length], at + length
            if at > len(data):
                raise IndexError
            if number > 0:
                yield _decode(record)
        except (IndexError, DecodeError):
            raise InputError(
                f"{path}: record {number} is damaged or cut off", file=str(path)
            ) from None


def to_networkx(nodes: Iterable[TraceNode]) -> "networkx.DiGraph":
    """A directed graph from parents to children: nodes by id with name, type, duration_micros and
    the attributes; edges with `kind` "data" or "control".
    """
    import networkx

    graph = networkx.DiGraph()
    for node in nodes:
        own = {"name": node.name, "type": node.type, "duration_micros": node.duration_micros}
        graph.add_node(node.id, **(node.attributes | own))
        graph.add_edges_from(((parent, node.id) for parent in node.ctrl_deps), kind="control")
        graph.add_edges_from(((parent, node.id) for parent in node.data_deps), kind="data")
    return graph


def _framed(message: Any) -> bytes:
    """A record: the message with its length in front, as a varint."""
    content: bytes = message.SerializeToString(deterministic=True)
    left, length = len(content), bytearray()
    while left >= 0x80:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes(length) + content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _message(node: TraceNode) -> Any:
    from llmsim.export.chakra_schema import Node

    message = Node(
        id=node.id,
        name=node.name,
        type=NODE_TYPES.index(node.type),
        ctrl_deps=node.ctrl_deps,
        data_deps=node.data_deps,
        duration_micros=node.duration_micros,
    )
    for name, value in node.attributes.items():
        attribute = message.attr.add(name=name)
        if isinstance(value, bool):
            attribute.bool_val = value
        elif isinstance(value, int):
            attribute.uint64_val = value
        elif isinstance(value, str):
            attribute.string_val = value
        else:
            attribute.bool_list.values.extend(value)
    return message


def _decode(record: bytes) -> TraceNode:
    from llmsim.export.chakra_schema import Node

    message = Node.FromString(record)
    if not 0 <= message.type < len(NODE_TYPES):
        raise IndexError
    node = TraceNode(
        message.id,
        message.name,
        NODE_TYPES[message.type],
        message.duration_micros,
        list(message.data_deps),
        list(message.ctrl_deps),
    )
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind in READ:
            node.attributes.setdefault(attribute.name, getattr(attribute, kind))
        elif kind == "bool_list":
            node.attributes.setdefault(attribute.name, tuple(attribute.bool_list.values))
    return node
