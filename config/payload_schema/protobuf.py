"""Definitions of Protobuf: descriptor sets, as ``protoc --include_imports --descriptor_set_out`` writes them, and their
messages as fields of the model.

A descriptor set is itself a message of Protobuf (descriptor.proto), so that no parser of `.proto` files is needed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.config.payload_schema.paths import STEPS_MAX, Path, format_path

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
                told = {inside: each for inside, _, each in wire_fields(_bytes(value))}
                symbols.setdefault(_signed(told.get(2, 0)), _text(told.get(1, b"")))
        self._enums[space + name] = symbols

    def resolve(self) -> None:
        """Find the types that fields name, which may stand in later messages."""
        for message in self.messages.values():
            for each in message.fields.values():
                if each.kind in {MESSAGE, GROUP}:
                    each.message = self.messages.get(each.of)
                    if each.message is None:
                        raise ValueError(f"the descriptor set lacks message {each.of}: write it with --include_imports")
                elif each.kind == ENUM:
                    each.symbols = self._enums.get(each.of, {})


def _field(data: bytes, *, is_proto3: bool) -> ProtoField:
    told: dict[int, int | bytes] = {number: value for number, _, value in wire_fields(data)}
    kind, repeated = told.get(5, 0), told.get(4) == 3
    if not isinstance(kind, int) or not DOUBLE <= kind <= SINT64:
        raise ValueError(f"the descriptor set has a field of type {kind!r}, which is none")
    has_default = is_proto3 and not repeated and kind not in {MESSAGE, GROUP} and 9 not in told
    number, name, of = told.get(3, 0), _text(told.get(1, b"")), _text(told.get(6, b""))
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


def protobuf_fields(root: ProtoMessage) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the places of a message that can be columns, with the settings of their fields; None for one that
    cannot."""
    yield from _fields(root, (), frozenset())


def _fields(message: ProtoMessage, path: Path, above: frozenset[str]) -> Iterator[tuple[Path, dict[str, Any] | None]]:
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
            yield from _fields(each.message, place, above | {message.name})


def column_type(each: ProtoField) -> str | None:
    """Return the type of a column for a field; None if there is none."""
    if each.message is not None:
        found = "timestamp" if each.message.name == TIMESTAMP else None
    else:
        found = _COLUMNS.get(each.kind, "int")
    return f"array<{found}>" if found and each.repeated else found
