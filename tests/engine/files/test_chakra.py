"""Chakra files through our reader and writer, equal to the protobuf library; damaged files end in
sentences.
"""

import gzip
import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import HANGS_S

from engine import chakra_file as ck
from engine.command import REPOSITORY

SCHEMA = REPOSITORY / "astra-sim" / "formats" / "chakra" / "et_def.proto"
SCALARS = ["double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"]
SCALARS += ["fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"]


def _field(line: str, file: Any) -> Any:
    """One field of a message of the schema, as a descriptor; None for other lines."""
    proto = pytest.importorskip("google.protobuf.descriptor_pb2")
    found = re.fullmatch(r"\s*(repeated )?(\w+) (\w+) = (\d+);", line)
    if found is None:
        return None
    made = proto.FieldDescriptorProto(name=found[3], number=int(found[4]))
    made.label = made.LABEL_REPEATED if found[1] else made.LABEL_OPTIONAL
    if found[2] in SCALARS:
        made.type = getattr(made, f"TYPE_{found[2].upper()}")
    else:
        made.type = (
            made.TYPE_ENUM
            if found[2] in [enum.name for enum in file.enum_type]
            else made.TYPE_MESSAGE
        )
        made.type_name = f".{file.package}.{found[2]}"
    return made


def _fields(body: str, file: Any) -> list[Any]:
    return [
        made for line in re.findall(r"[^;]*;", body) if (made := _field(line, file)) is not None
    ]


def _body(text: str, begin: int) -> str:
    """What stands between the brace before `begin` and its partner."""
    depth, end = 1, begin
    while depth > 0:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[begin : end - 1]


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    """Message classes of our schema file, made by the protobuf library without its compiler."""
    proto = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    text = re.sub(r"//.*", "", SCHEMA.read_text())
    file = proto.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, body in re.findall(r"enum (\w+) \{(.*?)\n?\}", text, re.S):
        enum = file.enum_type.add(name=name)
        for value, number in re.findall(r"(\w+) = (\d+);", body):
            enum.value.add(name=value, number=int(number))
    for start in re.finditer(r"message (\w+) \{", text):
        message = file.message_type.add(name=start[1])
        body = _body(text, start.end())
        choice = re.search(r"oneof value \{(.*?)\}", body, re.S)
        if choice is not None:
            message.oneof_decl.add(name="value")
            body = body.replace(choice[0], "")
        message.field.extend(_fields(body, file))
        for made in _fields(choice[1] if choice is not None else "", file):
            made.oneof_index = 0
            message.field.append(made)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "AttributeProto")
    return {
        n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{n}"))
        for n in names
    }


def _value(rng: random.Random, scalar: str) -> Any:
    if scalar == "bool":
        return rng.random() < 0.5
    if scalar == "double":
        return rng.choice([0.0, -1.5, 1e300, rng.random(), float("inf")])
    if scalar == "float":
        return rng.choice([0.0, 0.5, -2.25, 1024.125, 3.4e38])
    if scalar == "string":
        return rng.choice(["", "tp", 'a"b\\c', "Größe \n"])
    if scalar == "bytes":
        return rng.randbytes(rng.randrange(6))
    bits = 64 if scalar.endswith("64") else 32
    low, high = (
        (0, 2**bits - 1)
        if scalar.startswith(("u", "fixed"))
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return rng.choice([0, 1, low, high, rng.randint(low, high)])


def _attribute(rng: random.Random, made: Any) -> None:
    made.name = rng.choice(["", "comm_size", "x"])
    made.doc_string = rng.choice(["", "doc"])
    scalar = rng.choice([*SCALARS, ""])
    if scalar == "":
        return
    if rng.random() < 0.5:
        setattr(made, f"{scalar}_val", _value(rng, scalar))
    else:
        values = getattr(made, f"{scalar}_list")
        values.SetInParent()
        values.values.extend(_value(rng, scalar) for _ in range(rng.randrange(4)))


def _random_file(rng: random.Random, messages: dict[str, Any]) -> list[Any]:
    metadata = messages["GlobalMetadata"](version="0.0.4")
    for _ in range(rng.randrange(3)):
        _attribute(rng, metadata.attr.add())
    nodes = []
    for _ in range(rng.randrange(1, 6)):
        node = messages["Node"](
            id=_value(rng, "uint64") or 1, name=_value(rng, "string"), type=rng.randrange(8)
        )
        node.ctrl_deps.extend(_value(rng, "uint64") for _ in range(rng.randrange(3)))
        node.data_deps.extend(_value(rng, "uint64") for _ in range(rng.randrange(3)))
        node.start_time_micros, node.duration_micros = _value(rng, "uint64"), _value(rng, "uint64")
        if rng.random() < 0.5:
            node.inputs.values = _value(rng, "string")
            node.inputs.SetInParent()
        if rng.random() < 0.5:
            node.outputs.types = _value(rng, "string")
            node.outputs.SetInParent()
        for _ in range(rng.randrange(5)):
            _attribute(rng, node.attr.add())
        nodes.append(node)
    return [metadata, *nodes]


def _framed(records: list[Any]) -> bytes:
    return b"".join(
        ck.varint(len(raw)) + raw for raw in (record.SerializeToString() for record in records)
    )


def _tool(command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(command), *arguments], capture_output=True, text=True, timeout=HANGS_S, check=False
    )


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_protobuf_are_read_and_written_alike(
    command: Path, tmp_path: Path, messages: dict[str, Any], packed: bool
) -> None:
    """All encodings: the copy has the very bytes of protobuf's own writer, and the JSON is
    protobuf's own JSON.
    """
    from google.protobuf import json_format

    for seed in range(30):
        records = _random_file(random.Random(seed), messages)
        source, target = tmp_path / "a.et", tmp_path / "b.et"
        raw = _framed(records)
        source.write_bytes(gzip.compress(raw) if packed else raw)
        done = _tool(command, "copy", str(source), str(target))
        if packed and "no zlib" in done.stderr:
            pytest.skip("this build has no zlib")
        assert done.returncode == 0, done.stderr
        assert target.read_bytes() == raw
        shown = json.loads(_tool(command, "to-json", str(source)).stdout)
        for record, got in zip(records, shown, strict=True):
            assert json_format.ParseDict(got, type(record)()) == record


def test_unpacked_lists_and_unknown_fields_are_read(command: Path, tmp_path: Path) -> None:
    record = (
        ck.field(1, 7)
        + ck.field(3, ck.COMP)
        + ck.field(4, 5)
        + ck.field(4, 6)
        + ck.field(99, b"new")
        + ck.field(98, 1)
    )
    path = tmp_path / "a.et"
    path.write_bytes(ck.trace([]) + ck.varint(len(record)) + record)
    shown = json.loads(_tool(command, "to-json", str(path)).stdout)
    assert shown[1] == {"id": "7", "type": "COMP_NODE", "ctrl_deps": ["5", "6"]}


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        ([ck.node(2, ck.COMP, [99])], "node 2 depends on node 99, which is not in the file"),
        ([ck.node(2, ck.COMP, [3]), ck.node(3, ck.COMP, [2])], "a cycle"),
        ([], "no nodes"),
        (
            [ck.node(2, ck.COLL, comm_type=0, comm_size="big")],
            'node 2 (COMM_COLL "n2"): comm_size is a string_val',
        ),
        ([ck.node(2, ck.COLL, comm_size=5)], "comm_type is missing"),
        ([ck.node(2, ck.COLL, comm_type=1, comm_size=5)], "no REDUCE"),
        ([ck.node(2, ck.COLL, comm_type=0, comm_size=5, pg_name="tp")], 'pg_name is "tp"'),
        ([ck.node(2, ck.COLL, comm_type=0, comm_size=5, pg_name="8")], "no comm group"),
        (
            [ck.node(2, ck.SEND, comm_size=5, comm_dst=9, comm_tag=0)],
            "comm_dst is 9; NPUs are 0 to 1",
        ),
        ([ck.node(2, ck.SEND, comm_size=5, comm_dst=0, comm_tag=0)], "the NPU of the file itself"),
        ([ck.node(2, ck.LOAD, tensor_size=5)], "NO_MEMORY_EXPANSION"),
        ([ck.node(2, 9)], "node type 9 does not exist"),
    ],
)
def test_wrong_nodes_are_named(
    command: Path, tmp_path: Path, nodes: list[bytes], part: str
) -> None:
    from engine.command import run_case

    case = ck.write_case(tmp_path / "case", [nodes, [ck.node(1, ck.COMP)]], ck.network("Ring", 2))
    result = run_case(command, case, tmp_path)
    assert result.exit_code == 2
    assert part in result.errors
    assert "workload.0.et" in result.errors or "NPU 0, node 2" in result.errors


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_end_in_a_sentence(
    command: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Cut off, changed or lengthened anywhere: an array of JSON or one sentence, never a crash."""
    raw = bytearray(
        ck.trace(
            [
                ck.node(1, ck.COMP, micros=3),
                ck.node(2, ck.COLL, [1], comm_type=0, involved_dim=[True]),
            ]
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "a.et"
    path.write_bytes(
        bytes(raw[: data.draw(st.integers(0, len(raw)))]) + data.draw(st.binary(max_size=4))
    )
    done = subprocess.run(
        [str(command), "to-json", str(path)], capture_output=True, timeout=HANGS_S, check=False
    )
    assert done.returncode in (0, 2), done.stderr
    assert done.returncode == 0 or done.stderr.startswith(b"error: ")
