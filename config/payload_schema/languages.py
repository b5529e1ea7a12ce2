"""Schemas in other languages (Avro, Protobuf, JSON Schema) as fields of the model."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from weft.config.payload_schema.paths import STEPS_MAX, FieldPath, format_path

# Schemas of Avro (Apache Avro 1.12, "Schema Declaration"): parsed, and as fields of the model.

TYPES_MAX = 4096
"""Maximum number of types of a schema."""
DEPTH_MAX = 64
"""Maximum depth of types in each other, as they are written; a type may refer to itself by its name."""
FIXED_BYTES_MAX = 1 << 20
Place = tuple[FieldPath, dict[str, Any] | str | None]
"""A place in payloads, and the settings of its field; or the reason why it cannot be a column, None if its type is."""
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_AVRO_TIMES = {
    f"{prefix}timestamp-{word}": f"{name}({unit})"
    for prefix, name in (("", "timestamp"), ("local-", "local_timestamp"))
    for word, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}
_AVRO_TYPES = {
    "boolean": "bool",
    "int": "int",
    "long": "int",
    "float": "float",
    "double": "float",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}


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
    if kind.logical in _AVRO_TIMES and kind.kind == "long":
        return _AVRO_TIMES[kind.logical]
    if kind.logical == "date" and kind.kind == "int":
        return "date(d)"
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
        raise ValueError(f"name the message of the payloads: the descriptor set has {shown}")
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
"""Maximum number of references, and of schemas in `allOf`, `anyOf` and `oneOf`, that lead into each other."""
PLACES_MAX = 4096
PARTS_MAX = 1 << 16
"""Maximum number of schemas, properties and listed values that a JSON Schema is put together from, each as often as it
is referred to."""
_COUNTED = ("properties", "required", "enum", "type")
_NULL = "null"
_NOTHING = frozenset({_NULL})
_TYPES = {"boolean": "bool", "integer": "int", "number": "float"}
_TEXTS = {"date-time": "timestamp", "date": "date", "date-time-local": "local_timestamp"}
"""Formats of text that have a type: those of the specification, and one of the registry of OpenAPI."""
_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    NoneType: _NULL,
    list: "array",
    dict: "object",
}
_WORDS = ("description", "title", "unit", "x-unit")


def json_schema_fields(schema: dict[str, Any]) -> Iterator[Place]:
    """Yield the places that can be columns, with the settings of their fields; for others the reason, or None.

    Raises:
        ValueError: a reference leads nowhere in the schema or in a circle, or the schema is too large.
    """
    for number, found in enumerate(_JsonSchemaReader(schema).places([schema], (), is_required=False)):
        if number >= PLACES_MAX:
            raise ValueError(f"the JSON Schema has more than {PLACES_MAX} places")
        yield found


@dataclass(eq=False)
class _Whole:
    """Values as a JSON Schema describes them, with all that it refers to and is composed of."""

    kinds: frozenset[str] | None = None
    """Types that values may have; None if nothing is said of them."""
    properties: dict[str, list[Any]] = field(default_factory=dict)
    """Properties of objects, each with the schemas that all hold for it."""
    required: set[str] = field(default_factory=set)
    items: list[Any] = field(default_factory=list)
    """Schemas that all hold for the items of an array."""
    text: str | None = None
    """Type of the column if values are text; None if nothing is said of them."""
    words: dict[str, str] = field(default_factory=dict)
    """Description and unit."""
    unknown: list[str] = field(default_factory=list)
    """Reasons why there may be more to it."""

    def narrow(self, other: _Whole) -> None:
        """Take another schema that holds as well. What this one says of text and words comes first."""
        self.kinds = _both(self.kinds, other.kinds)
        for name, schemas in other.properties.items():
            self.properties.setdefault(name, []).extend(schemas)
        self.required |= other.required
        self.items += other.items
        self.text = self.text or other.text
        self.words = other.words | self.words
        self.unknown += other.unknown


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    # A whole number is a number.
    is_whole = any("integer" in here and "number" in there for here, there in ((one, other), (other, one)))
    return (one & other) | {"integer"} if is_whole else one & other


def _any_of(branches: list[_Whole]) -> _Whole:
    """Return what holds if one of several schemas does."""
    values = [each for each in branches if each.kinds != _NOTHING]
    if len(values) == 1:
        # The usual optional value: `anyOf: [{type: number}, {type: "null"}]`.
        (found,) = values
        nulls = [each for each in branches if each is not found]
        found.kinds = found.kinds | _NOTHING if nulls and found.kinds is not None else found.kinds
        return found
    found = _Whole(unknown=[reason for each in values for reason in each.unknown])
    kinds = [each.kinds for each in branches]
    found.kinds = None if None in kinds else frozenset().union(*(each for each in kinds if each is not None))
    of_name: dict[str, list[Any]] = {}
    for each in values:
        for name, inside in each.properties.items():
            of_name.setdefault(name, []).append({"allOf": inside})
    for name, of_each in of_name.items():
        found.properties[name] = of_each if len(of_each) == 1 else [{"anyOf": of_each}]
    if values and all(each.required for each in values):
        found.required = set.intersection(*(each.required for each in values))
    if values and all(each.items for each in values):
        found.items = [{"anyOf": [{"allOf": each.items} for each in values]}]
    texts = {each.text for each in values if each.kinds is None or "string" in each.kinds}
    # Text that is a time in one branch alone is text.
    found.text = "string" if len(texts) > 1 else next(iter(texts), None)
    return found


class _JsonSchemaReader:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._parts = 0

    def places(self, written: list[Any], path: FieldPath, *, is_required: bool) -> Iterator[Place]:
        """Yield the places within schemas that all hold for one place."""
        schema = self._all_of(written, 0)
        kinds = schema.kinds
        if schema.properties and (kinds is None or "object" in kinds):
            if len(path) >= STEPS_MAX:
                yield path, None
                return
            for reason in schema.unknown:
                yield path, reason
            is_there = not path or (is_required and _NULL not in (kinds or ()))
            for name, inside in schema.properties.items():
                # What is required within something optional may be missing with it.
                yield from self.places(inside, (*path, name), is_required=is_there and name in schema.required)
            return
        # An object without properties is a place: references that name each other and end in one would give none.
        type_ = self._type(schema)
        if type_ is None:
            yield path, schema.unknown[0] if schema.unknown else None
            return
        settings: dict[str, Any] = {"type": type_, "from": format_path(path)}
        if is_required and _NULL not in (kinds or ()):
            settings["required"] = True
        unit = schema.words.get("unit", schema.words.get("x-unit"))
        text = schema.words.get("description", schema.words.get("title"))
        settings |= {"unit": unit[:64]} if unit else {}
        yield path, settings | ({"description": text[:1024]} if text else {})

    def _type(self, schema: _Whole, *, is_item: bool = False) -> str | None:
        kinds = (schema.kinds or _NOTHING) - _NOTHING
        if kinds == {"integer", "number"}:
            return "float"
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        if kind == "array":
            item = self._type(self._all_of(schema.items, 0), is_item=True) if schema.items and not is_item else None
            return f"array<{item}>" if item else None
        return schema.text or "string" if kind == "string" else _TYPES.get(kind)

    def _all_of(self, written: list[Any], depth: int) -> _Whole:
        """Return what schemas say that all hold."""
        found = self._whole(written[0], depth) if written else _Whole()
        for each in written[1:]:
            found.narrow(self._whole(each, depth))
        return found

    def _whole(self, written: Any, depth: int) -> _Whole:
        if depth > REFERENCES_MAX:
            raise ValueError(f"JSON Schema: more than {REFERENCES_MAX} references in each other, or in a circle")
        found = _Whole()
        if not isinstance(written, dict):
            self._count(1)
            return found
        parts = (written.get(name) for name in _COUNTED)
        self._count(1 + sum(len(each) for each in parts if isinstance(each, dict | list)))
        properties, required = written.get("properties"), written.get("required")
        if isinstance(properties, dict):
            found.properties = {name: [inside] for name, inside in properties.items()}
        if isinstance(required, list):
            found.required = {name for name in required if isinstance(name, str)}
        found.kinds, found.text = _kinds(written), _text_type(written)
        found.items = [written["items"]] if "items" in written else []
        found.words = {name: text for name in _WORDS if isinstance(text := written.get(name), str)}
        if isinstance(reference := written.get("$ref"), str):
            self._narrow(found, self._referred(reference, depth))
        for each in _schemas(written, "allOf"):
            self._narrow(found, self._whole(each, depth + 1))
        for name in ("anyOf", "oneOf"):
            if branches := _schemas(written, name):
                self._narrow(found, _any_of([self._whole(each, depth + 1) for each in branches]))
        return found

    def _narrow(self, found: _Whole, other: _Whole) -> None:
        self._count(len(other.required) + sum(map(len, other.properties.values())))
        found.narrow(other)

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > PARTS_MAX:
            raise ValueError(f"the JSON Schema has more than {PARTS_MAX} parts, counting what it refers to each time")

    def _referred(self, reference: str, depth: int) -> _Whole:
        shown = reference[:80]
        if reference != "#" and not reference.startswith("#/"):
            # Only what needs it is lost: catalogues of schemas refer to common parts at addresses of theirs.
            return _Whole(unknown=[f"{shown} is not within this file. Write it into `$defs`"])
        found: Any = self._root
        for step in reference.split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ValueError(f"JSON Schema: there is no {shown}")
        return self._whole(found, depth + 1)


def _schemas(written: dict[str, Any], name: str) -> list[Any]:
    found = written.get(name)
    return found if isinstance(found, list) else []


def _kinds(written: dict[str, Any]) -> frozenset[str] | None:
    """Return the types that values may have, of those that a schema itself names; None if it names none."""
    named = written.get("type")
    kinds = {each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}
    values = (
        written["enum"] if isinstance(written.get("enum"), list) else [written["const"]] if "const" in written else []
    )
    if not kinds and values:
        kinds = {_KINDS[type(each)] for each in values}
    # OpenAPI 3.0 has its own way to say that a value may be null.
    return frozenset({*kinds, _NULL} if kinds and written.get("nullable") is True else kinds) or None


def _text_type(written: dict[str, Any]) -> str | None:
    if written.get("contentEncoding") == "base64":
        return "binary"
    named = written.get("format")
    return _TEXTS.get(named) if isinstance(named, str) else None
