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
from typing import TYPE_CHECKING, Literal

from llmsim.config.errors import InputError
from llmsim.config.reading import MAX_WHOLE_BYTES, file_bytes, too_large

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

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BOOL_VAL, _BOOL_LIST, _UINT64_VAL, _STRING_VAL = 27, 28, 13, 29
_SIGNED = (7, 9)  # int32_val, int64_val
_ZIGZAG = (15, 17)  # sint32_val, sint64_val


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
    try:
        with Path(path).open("wb") as file:
            file.write(_framed(_field(1, b"0.0.4")))
            for node in nodes:
                file.write(_framed(_encode(node)))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from None


def _unpacked(path: Path, packed: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            data = stream.read(MAX_WHOLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); expected a Chakra trace") from None
    if len(data) > MAX_WHOLE_BYTES:
        raise too_large(path)
    return data


def read_trace(path: Path | str) -> Iterator[TraceNode]:
    """The nodes of a file, plain or gzip, one at a time; InputError when it is damaged."""
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
        except (IndexError, UnicodeDecodeError):
            raise InputError(f"{path}: record {number} is damaged or cut off") from None


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


def _put_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _put_varint(number << 3) + _put_varint(value)
    return _put_varint(number << 3 | _BYTES) + _put_varint(len(value)) + value


def _framed(record: bytes) -> bytes:
    return _put_varint(len(record)) + record


def _encode_attribute(name: str, value: Value) -> bytes:
    head = _field(1, name.encode())
    if isinstance(value, bool):
        return head + _field(_BOOL_VAL, int(value))
    if isinstance(value, int):
        return head + _field(_UINT64_VAL, value)
    if isinstance(value, str):
        return head + _field(_STRING_VAL, value.encode())
    return head + _field(_BOOL_LIST, _field(1, bytes(value)))


def _encode(node: TraceNode) -> bytes:
    scalars = ((1, node.id), (2, node.name.encode()), (3, NODE_TYPES.index(node.type)))
    record = b"".join(
        _field(number, value) for number, value in scalars if value
    )  # protobuf leaves out defaults
    for number, parents in ((4, node.ctrl_deps), (5, node.data_deps)):
        if parents:
            record += _field(number, b"".join(map(_put_varint, parents)))
    if node.duration_micros:
        record += _field(7, node.duration_micros)
    return record + b"".join(
        _field(10, _encode_attribute(*item)) for item in node.attributes.items()
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
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


def _fields(record: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(record):
        tag, at = _varint(record, at)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(record, at)
        else:
            size, at = (
                _varint(record, at)
                if kind == _BYTES
                else ({_FIXED64: 8, _FIXED32: 4}.get(kind, -1), at)
            )
            if size < 0 or at + size > len(record):
                raise IndexError
            value, at = record[at : at + size], at + size
        yield tag >> 3, value


def _packed(value: int | bytes) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _decode(record: bytes) -> TraceNode:
    node = TraceNode(0, "", "INVALID")
    for number, value in _fields(record):
        if number in (4, 5):
            (node.ctrl_deps if number == 4 else node.data_deps).extend(_packed(value))
        elif isinstance(value, bytes):
            if number == 2:
                node.name = value.decode()
            elif number == 10:
                name, decoded = _decode_attribute(value)
                if decoded is not None:
                    node.attributes.setdefault(name, decoded)
        elif number == 1:
            node.id = value
        elif number == 3:
            node.type = NODE_TYPES[value]
        elif number == 7:
            node.duration_micros = value
    return node


def _decode_attribute(record: bytes) -> tuple[str, Value | None]:
    name, found = "", None
    for number, value in _fields(record):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number >= 3:
            found = _value(number, value)
    return name, found


def _value(number: int, value: int | bytes) -> Value | None:
    if number == _STRING_VAL and isinstance(value, bytes):
        return value.decode()
    if number == _BOOL_LIST and isinstance(value, bytes):
        return tuple(
            bool(flag) for key, part in _fields(value) if key == 1 for flag in _packed(part)
        )
    if number in (19, 21, 23, 25) and isinstance(
        value, bytes
    ):  # fixed32, fixed64 and the signed ones
        return int.from_bytes(value, "little", signed=number in (23, 25))
    if not isinstance(value, int):
        return None
    if number == _BOOL_VAL:
        return bool(value)
    if number in _SIGNED:
        return value - (1 << 64) if value >> 63 else value
    if number in _ZIGZAG:
        return value >> 1 ^ -(value & 1)
    return value if number in (11, _UINT64_VAL) else None
