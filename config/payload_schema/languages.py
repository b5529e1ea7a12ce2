"""Schemas in other languages (Avro, Protobuf, JSON Schema) as fields of the model."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.config.payload_schema.paths import STEPS_MAX, FieldPath, format_path

# Schemas of Avro (Apache Avro 1.12, "Schema Declaration"): parsed, and as fields of the model.

TYPES_MAX = 4096
"""Maximum number of types of a schema."""
DEPTH_MAX = 64
"""Maximum depth of types in each other, as they are written; a type may refer to itself by its name."""
FIXED_BYTES_MAX = 1 << 20
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_UNITS = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}
_AVRO_TYPES = {"boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float", "string": "string",
          "enum": "string", "bytes": "binary", "fixed": "binary"}  # fmt: skip


@dataclass(eq=False)
class AvroType:
    """A type of a schema."""

    kind: str
    """One of ``PRIMITIVES``, ``record``, ``enum``, ``array``, ``map``, ``union`` or ``fixed``."""
    fields: list[AvroField] = field(default_factory=list)
    inside: list[AvroType] = field(default_factory=list)
    """The branches of a union; the items of an array or a map."""
    symbols: list[str] = field(default_factory=list)
    size: int = 0
    """Bytes of a fixed."""
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    doc: str | None


def parse_avro(text: str) -> AvroType:
    """Return the type of a schema in JSON.

    Raises:
        ValueError: it is not a schema of Avro.
    """
    try:
        written = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a schema of Avro in JSON: {error}") from None
    return _AvroReader().type(written, "", 0)


class _AvroReader:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._count = 0

    def type(self, written: Any, space: str, depth: int) -> AvroType:
        self._count += 1
        if self._count > TYPES_MAX or depth > DEPTH_MAX:
            raise ValueError(f"the schema of Avro has more than {TYPES_MAX} types, or {DEPTH_MAX} in each other")
        if isinstance(written, str):
            if written in PRIMITIVES:
                return AvroType(written)
            named = self._named.get(written if "." in written else _full(written, space)) or self._named.get(written)
            if named is None:
                raise ValueError(f"there is no type {written[:80]!r} of Avro, and none before it has this name")
            return named
        if isinstance(written, list):
            return AvroType("union", inside=[self.type(each, space, depth + 1) for each in written])
        if not isinstance(written, dict):
            raise ValueError(f"expected a type of Avro, got {str(written)[:80]}")
        return self._object(written, space, depth)

    def _object(self, written: dict[str, Any], space: str, depth: int) -> AvroType:
        kind = written.get("type")
        if kind not in {"record", "error", "enum", "fixed", "array", "map", *PRIMITIVES}:
            return self.type(kind, space, depth + 1)
        made = AvroType("record" if kind == "error" else kind)
        made.logical = written.get("logicalType") if isinstance(written.get("logicalType"), str) else None
        made.precision, made.scale = _number(written, "precision"), _number(written, "scale")
        if kind in {"array", "map"}:
            made.inside = [self.type(written.get("items" if kind == "array" else "values"), space, depth + 1)]
        if kind in {"record", "error", "enum", "fixed"}:
            name = written.get("name")
            if not isinstance(name, str):
                raise ValueError(f"a {kind} of Avro has no name")
            space = name.rpartition(".")[0] or str(written.get("namespace") or space)
            self._named[name if "." in name else _full(name, space)] = made
        if kind == "fixed":
            made.size = _number(written, "size")
            if made.size > FIXED_BYTES_MAX:
                raise ValueError(f"a fixed of Avro has {made.size} bytes, at most {FIXED_BYTES_MAX} are decoded")
        if kind == "enum":
            made.symbols = [str(each) for each in _list(written, "symbols")]
        for each in _list(written, "fields") if kind in {"record", "error"} else ():
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise ValueError(f"a field of record {written['name']} of Avro has no name")
            doc = each.get("doc")
            inside = self.type(each.get("type"), space, depth + 1)
            made.fields.append(AvroField(each["name"], inside, doc if isinstance(doc, str) else None))
        return made


def _full(name: str, space: str) -> str:
    return f"{space}.{name}" if space else name


def _number(written: dict[str, Any], name: str) -> int:
    found = written.get(name, 0)
    if type(found) is not int or not 0 <= found < 1 << 31:
        raise ValueError(f"{name} of Avro: expected a number, got {str(found)[:80]}")
    return found


def _list(written: dict[str, Any], name: str) -> list[Any]:
    found = written.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} of Avro: expected a list, got {str(found)[:80]}")
    return found


def avro_fields(root: AvroType) -> Iterator[tuple[FieldPath, dict[str, Any] | None]]:
    """Yield the places of a schema that can be columns, with the settings of their fields; None for one that cannot."""
    yield from _avro_fields(root, (), None, set())


def _avro_fields(
    kind: AvroType, path: FieldPath, doc: str | None, above: set[int]
) -> Iterator[tuple[FieldPath, dict[str, Any] | None]]:
    if kind.kind == "union":
        branches = [each for each in kind.inside if each.kind != "null"]
        if len(branches) != 1:
            yield path, None
            return
        kind = branches[0]
    if kind.kind == "record":
        # A record within itself has no end. One without fields is a place: callers bound the places that they take.
        if id(kind) in above or len(path) >= STEPS_MAX or not kind.fields:
            yield path, None
            return
        for each in kind.fields:
            yield from _avro_fields(each.type, (*path, each.name), each.doc, above | {id(kind)})
        return
    settings: dict[str, Any] = {"type": avro_column_type(kind), "from": format_path(path)}
    if settings["type"] is None:
        yield path, None
        return
    yield path, settings | ({"description": doc[:1024]} if doc else {})


def avro_column_type(kind: AvroType) -> str | None:
    """Return the type of a column for values of a type; None if there is none."""
    if kind.kind == "array":
        item = avro_column_type(kind.inside[0])
        return None if item is None or item.startswith("array") else f"array<{item}>"
    if kind.logical in _UNITS and kind.kind == "long":
        return f"timestamp({_UNITS[kind.logical]})"
    if kind.logical == "decimal" and kind.kind in {"bytes", "fixed"} and 1 <= kind.precision <= 38:
        return f"decimal({kind.precision},{min(kind.scale, kind.precision)})"
    return _AVRO_TYPES.get(kind.kind)


# Definitions of Protobuf: descriptor sets, as ``protoc --include_imports --descriptor_set_out`` writes them, and
# their messages as fields of the model.
#
# A descriptor set is itself a message of Protobuf (descriptor.proto), so that no parser of `.proto` files is needed.

MESSAGES_MAX = 4096
"""Maximum number of messages and enums of a descriptor set."""
NESTING_MAX = 64
"""Maximum depth of messages that are declared in each other."""
TIMESTAMP = "google.protobuf.Timestamp"
DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING, GROUP, MESSAGE, BYTES, UINT32, ENUM = range(1, 15)
SFIXED32, SFIXED64, SINT32, SINT64 = range(15, 19)
"""Types of fields, by their numbers in descriptor.proto."""
_COLUMNS = {DOUBLE: "float", FLOAT: "float", BOOL: "bool", STRING: "string", BYTES: "binary", ENUM: "string"}
_ENDS = "the descriptor set ends within a field: it is damaged, or none"


@dataclass(eq=False)
class ProtoField:
    """A field of a message."""

    name: str
    number: int
    kind: int
    repeated: bool
    has_default: bool
    """A missing value is the default of its type: proto3 does not send it."""
    of: str
    """Name of its message or enum."""
    message: ProtoMessage | None = None
    symbols: dict[int, str] = field(default_factory=dict)


@dataclass(eq=False)
class ProtoMessage:
    """A message."""

    name: str
    fields: dict[int, ProtoField] = field(default_factory=dict)
    is_map_entry: bool = False


def parse_descriptors(definition: str, message: str | None = None) -> ProtoMessage:
    """Return a message of a descriptor set in base64.

    Args:
        message: its name with the package; None takes the only one of the last file.

    Raises:
        ValueError: it is no descriptor set, or does not have the message.
    """
    try:
        data = base64.b64decode(definition, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected a descriptor set of Protobuf in base64, as `weft hub schema set` makes it") from None
    parser = _ProtoReader()
    last: list[str] = []
    for number, _, value in wire_fields(data):
        if number == 1 and isinstance(value, bytes):
            last = parser.file(value)
    parser.resolve()
    if message is None and len(last) != 1:
        shown = ", ".join(sorted(last)[:10]) or "none"
        raise ValueError(f"say which message the payloads are: the descriptor set has {shown}")
    found = parser.messages.get(message or last[0])
    if found is None:
        shown = ", ".join(sorted(parser.messages)[:10]) or "none"
        raise ValueError(f"the descriptor set has no message {message}; it has {shown}")
    return found


def wire_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, wire type, value) of the fields of a message of descriptor.proto, which has no groups.

    Raises:
        ValueError: the data is no message.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
            if wire == 2:
                size, at = _varint(data, at)
            if size < 0 or size > end - at:
                raise ValueError(_ENDS)
            value, at = data[at : at + size], at + size
        yield key >> 3, wire, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 70:
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
        shift += 7
    raise ValueError(_ENDS)


class _ProtoReader:
    def __init__(self) -> None:
        self.messages: dict[str, ProtoMessage] = {}
        self._enums: dict[str, dict[int, str]] = {}

    def file(self, data: bytes) -> list[str]:
        """Take a FileDescriptorProto. Return the names of its messages."""
        fields = list(wire_fields(data))
        package = next((_text(value) for number, _, value in fields if number == 2), "")
        is_proto3 = any(number == 12 and value == b"proto3" for number, _, value in fields)
        space = f"{package}." if package else ""
        names = []
        for number, _, value in fields:
            if number == 4:
                names.append(self._message(_bytes(value), space, 0, is_proto3=is_proto3))
            elif number == 5:
                self._enum(_bytes(value), space)
        return names

    def _message(self, data: bytes, space: str, depth: int, *, is_proto3: bool) -> str:
        fields = list(wire_fields(data))
        made = ProtoMessage(space + next((_text(value) for number, _, value in fields if number == 1), ""))
        if len(self.messages) >= MESSAGES_MAX or depth > NESTING_MAX:
            raise ValueError(f"a descriptor set has at most {MESSAGES_MAX} messages, and {NESTING_MAX} in each other")
        self.messages[made.name] = made
        for number, _, value in fields:
            if number == 2:
                each = _field(_bytes(value), is_proto3=is_proto3)
                made.fields[each.number] = each
            elif number == 3:
                self._message(_bytes(value), f"{made.name}.", depth + 1, is_proto3=is_proto3)
            elif number == 4:
                self._enum(_bytes(value), f"{made.name}.")
            elif number == 7:
                made.is_map_entry = any(option == 7 and flag == 1 for option, _, flag in wire_fields(_bytes(value)))
        return made.name

    def _enum(self, data: bytes, space: str) -> None:
        if len(self._enums) >= MESSAGES_MAX:
            raise ValueError(f"the descriptor set has more than {MESSAGES_MAX} enums")
        name, symbols = "", dict[int, str]()
        for number, _, value in wire_fields(data):
            if number == 1:
                name = _text(value)
            elif number == 2:
                fields = {inside: each for inside, _, each in wire_fields(_bytes(value))}
                symbols.setdefault(_signed(fields.get(2, 0)), _text(fields.get(1, b"")))
        self._enums[space + name] = symbols

    def resolve(self) -> None:
        """Find the types that fields name, which may be in later messages."""
        for message in self.messages.values():
            for each in message.fields.values():
                if each.kind in {MESSAGE, GROUP}:
                    each.message = self.messages.get(each.of)
                    if each.message is None:
                        raise ValueError(f"the descriptor set lacks message {each.of}: write it with --include_imports")
                elif each.kind == ENUM:
                    each.symbols = self._enums.get(each.of, {})


def _field(data: bytes, *, is_proto3: bool) -> ProtoField:
    fields: dict[int, int | bytes] = {number: value for number, _, value in wire_fields(data)}
    kind, repeated = fields.get(5, 0), fields.get(4) == 3
    if not isinstance(kind, int) or not DOUBLE <= kind <= SINT64:
        raise ValueError(f"the descriptor set has a field of type {kind!r}, which is none")
    has_default = is_proto3 and not repeated and kind not in {MESSAGE, GROUP} and 9 not in fields
    number, name, of = fields.get(3, 0), _text(fields.get(1, b"")), _text(fields.get(6, b""))
    if not isinstance(number, int):
        raise ValueError(f"the descriptor set has a field {name} without a number")
    return ProtoField(name, number, kind, repeated, has_default, of.removeprefix("."))


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(_ENDS)
    return value


def _signed(value: int | bytes) -> int:
    number = value if isinstance(value, int) else 0
    return number - (1 << 64) if number >> 63 else number


def protobuf_fields(root: ProtoMessage) -> Iterator[tuple[FieldPath, dict[str, Any] | None]]:
    """Yield the places of a message that can be columns, with the settings of their fields; None for one that
    cannot."""
    yield from _protobuf_fields(root, (), frozenset())


def _protobuf_fields(
    message: ProtoMessage, path: FieldPath, above: frozenset[str]
) -> Iterator[tuple[FieldPath, dict[str, Any] | None]]:
    # A message within itself has no end. One without fields counts as a place: types that name each other and end in it
    # have a number of ways to it that grows with each step, and callers bound the places that they take.
    if message.name in above or len(path) >= STEPS_MAX or not message.fields:
        yield path, None
        return
    for each in message.fields.values():
        place = (*path, each.name)
        kind = column_type(each)
        if kind is not None:
            yield place, {"type": kind, "from": format_path(place)}
        elif each.message is None or each.repeated:
            yield place, None
        else:
            yield from _protobuf_fields(each.message, place, above | {message.name})


def column_type(each: ProtoField) -> str | None:
    """Return the type of a column for a field; None if there is none."""
    if each.message is not None:
        found = "timestamp" if each.message.name == TIMESTAMP else None
    else:
        found = _COLUMNS.get(each.kind, "int")
    return f"array<{found}>" if found and each.repeated else found


# Schemas in JSON Schema (draft 2020-12 and those before it) as fields of the model.

REFERENCES_MAX = 64
"""Maximum number of references that follow each other."""
PLACES_MAX = 4096
_TYPES = {"boolean": "bool", "integer": "int", "number": "float", "string": "string"}


def json_schema_fields(schema: dict[str, Any]) -> Iterator[tuple[FieldPath, dict[str, Any] | None]]:
    """Yield the places that can be columns, with the settings of their fields; None for one that cannot.

    Raises:
        ValueError: a reference leads nowhere, or the schema is too large.
    """
    for number, found in enumerate(_schema_fields(schema, schema, (), is_required=False)):
        if number >= PLACES_MAX:
            raise ValueError(f"the JSON Schema has more than {PLACES_MAX} places")
        yield found


def _schema_fields(
    root: dict[str, Any], written: Any, path: FieldPath, *, is_required: bool
) -> Iterator[tuple[FieldPath, dict[str, Any] | None]]:
    schema = _resolved(root, written)
    kind = _kind(schema)
    properties = schema.get("properties")
    if isinstance(properties, dict) and kind in {None, "object"}:
        # An object without properties is a place: references that name each other and end in one would give none.
        if len(path) >= STEPS_MAX or not properties:
            yield path, None
            return
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        for name, inside in properties.items():
            # What is required within something optional may be missing with it.
            yield from _schema_fields(
                root, inside, (*path, name), is_required=name in names and (is_required or not path)
            )
        return
    type_ = _type(root, schema, kind)
    if type_ is None:
        yield path, None
        return
    settings: dict[str, Any] = {"type": type_, "from": format_path(path)} | ({"required": True} if is_required else {})
    unit = schema.get("unit", schema.get("x-unit"))
    text = schema.get("description", schema.get("title"))
    settings |= {"unit": unit[:64]} if isinstance(unit, str) and unit else {}
    yield path, settings | ({"description": text[:1024]} if isinstance(text, str) and text else {})


def _resolved(root: dict[str, Any], written: Any) -> dict[str, Any]:
    for _ in range(REFERENCES_MAX):
        if not isinstance(written, dict):
            return {}
        if not isinstance(reference := written.get("$ref"), str):
            return written
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(f"JSON Schema: {reference[:80]} is not within this file. Write it into `$defs`")
        found: Any = root
        for step in reference.split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ValueError(f"JSON Schema: there is no {reference[:80]}")
        written = {**found, **{name: value for name, value in written.items() if name != "$ref"}}
    raise ValueError("JSON Schema: its references lead in a circle")


def _kind(schema: dict[str, Any]) -> str | None:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        others = [each for each in kinds if each != "null"]
        # A whole number is a number.
        kinds = "number" if {*map(str, others)} == {"integer", "number"} else others[0] if len(others) == 1 else None
    return kinds if isinstance(kinds, str) else None


def _type(root: dict[str, Any], schema: dict[str, Any], kind: str | None) -> str | None:
    if kind == "string" and schema.get("format") == "date-time":
        return "timestamp"
    if kind == "string" and schema.get("contentEncoding") == "base64":
        return "binary"
    if kind == "array":
        items = _resolved(root, schema.get("items"))
        item = _type(root, items, _kind(items)) if _kind(items) != "array" else None
        return f"array<{item}>" if item else None
    values = schema.get("enum")
    if kind is None and isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return "string"
    return _TYPES.get(kind or "")
