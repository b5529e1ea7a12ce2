"""Messages of Sparkplug B (Sparkplug 3.0, section 6.4), for the runtime of protobuf.

The description is written here instead of generated: it has all fields that are read and written, and the parser skips
other fields (metadata, extensions) without an object for each.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "weft.sparkplug"
_TYPES = {"uint32": 13, "uint64": 4, "float": 2, "double": 1, "bool": 8, "string": 9, "bytes": 12}
"""Type -> its number in a description. Any other name is a message's."""

_SCALARS = ("int uint32", "long uint64", "float float", "double double", "boolean bool", "string string")


def _scalars(first: int) -> dict[int, str]:
    return {first + at: f"={kind.replace(' ', '_value ')}" for at, kind in enumerate(_SCALARS)}


MESSAGES: dict[str, dict[int, str]] = {
    "Payload": {1: "timestamp uint64", 2: "*metrics Metric", 3: "seq uint64"},
    "Metric": {
        1: "name string",
        2: "alias uint64",
        3: "timestamp uint64",
        4: "datatype uint32",
        5: "is_historical bool",
        6: "is_transient bool",
        7: "is_null bool",
        9: "properties PropertySet",
        **_scalars(10),
        16: "=bytes_value bytes",
        17: "=dataset_value DataSet",
        18: "=template_value Template",
    },
    "DataSet": {1: "num_of_columns uint64", 2: "*columns string", 3: "*types uint32", 4: "*rows Row"},
    "Row": {1: "*elements Element"},
    "Element": _scalars(1),
    "Template": {
        1: "version string",
        2: "*metrics Metric",
        3: "*parameters Parameter",
        4: "template_ref string",
        5: "is_definition bool",
    },
    "Parameter": {1: "name string", 2: "type uint32", **_scalars(3)},
    "PropertySet": {1: "*keys string", 2: "*values Property"},
    "Property": {
        1: "type uint32",
        2: "is_null bool",
        **_scalars(3),
        9: "=propertyset_value PropertySet",
        10: "=propertysets_value PropertySetList",
    },
    "PropertySetList": {1: "*propertyset PropertySet"},
}
"""Message -> number of a field -> its name and type; ``*`` for a list, ``=`` for a value
of which at most one is set."""


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="weft_sparkplug_b.proto", package=_PACKAGE, syntax="proto2")
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, field in fields.items():
            name, type_ = field.lstrip("*=").split()
            described = message.field.add(name=name, number=number, label=3 if field[0] == "*" else 1)
            if type_ in _TYPES:
                described.type = _TYPES[type_]
            else:
                described.type, described.type_name = 11, f".{_PACKAGE}.{type_}"
            if field[0] == "=":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                described.oneof_index = 0
    return file


def _payload_class() -> Any:
    pool = descriptor_pool.DescriptorPool()  # not the one of the process, where another library may have the same names
    pool.Add(_described())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Payload"))


Payload: Any = _payload_class()
"""Class of payloads."""
