"""The messages of Chakra execution traces as protobuf classes, those of
`astra-sim/formats/chakra/et_def.proto`.

They are made when the module is loaded, from the same names and numbers, so that no version of
protobuf's compiler has to fit the installed library.
`tests/engine/bindings/test_llm_graphs.py` compares them with the file.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "llmsim.chakra"
KINDS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32"),
    *("fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Kinds of an attribute's value: the n-th from 0 has the field 3 + 2 n, and its list the next."""
FIRST_VALUE = 3
Field = descriptor_pb2.FieldDescriptorProto
NODE: dict[str, tuple[int, str, bool]] = {
    "id": (1, "uint64", False),
    "name": (2, "string", False),
    "type": (3, "int32", False),
    "ctrl_deps": (4, "uint64", True),
    "data_deps": (5, "uint64", True),
    "start_time_micros": (6, "uint64", False),
    "duration_micros": (7, "uint64", False),
    "inputs": (8, "IOInfo", False),
    "outputs": (9, "IOInfo", False),
    "attr": (10, "AttributeProto", True),
}
"""Field of a node -> its number, its type, and whether it is repeated. The type of a node is an
enumeration, which is an int32 on the wire.
"""
OTHERS: dict[str, dict[str, tuple[int, str, bool]]] = {
    "IOInfo": {
        "values": (1, "string", False),
        "shapes": (2, "string", False),
        "types": (3, "string", False),
    },
    "GlobalMetadata": {"version": (1, "string", False), "attr": (2, "AttributeProto", True)},
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="llmsim/chakra.proto", package=PACKAGE, syntax="proto3"
    )
    for kind in KINDS:
        _message(file, f"{kind.capitalize()}List", {"values": (1, kind, True)})
    attribute = _message(
        file, "AttributeProto", {"name": (1, "string", False), "doc_string": (2, "string", False)}
    )
    attribute.oneof_decl.add(name="value")
    for place, kind in enumerate(KINDS):
        number = FIRST_VALUE + 2 * place
        _field(attribute, f"{kind}_val", number, kind).oneof_index = 0
        _field(attribute, f"{kind}_list", number + 1, f"{kind.capitalize()}List").oneof_index = 0
    for name, fields in {**OTHERS, "Node": NODE}.items():
        _message(file, name, fields)
    return file


def _message(
    file: descriptor_pb2.FileDescriptorProto, name: str, fields: dict[str, tuple[int, str, bool]]
) -> descriptor_pb2.DescriptorProto:
    message = file.message_type.add(name=name)
    for field, (number, kind, repeated) in fields.items():
        _field(message, field, number, kind, repeated=repeated)
    return message


def _field(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: str,
    *,
    repeated: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    field = message.field.add(
        name=name,
        number=number,
        label=Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL,
    )
    if kind in KINDS:
        field.type = getattr(Field, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    return field


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:
    found = _pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(found)


Node = _class("Node")
GlobalMetadata = _class("GlobalMetadata")
AttributeProto = _class("AttributeProto")
