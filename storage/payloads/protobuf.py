"""Values from payloads of Protobuf's wire format, within bounds: every length is compared with what is left, messages
are at most 128 deep in each other, and the fields of all of them together are at most ``FIELDS_MAX``."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from weft.config.payload_schema import protobuf as proto
from weft.config.payload_schema.protobuf import ProtoField, ProtoMessage
from weft.protocols.payloads import NESTING_MAX
from weft.storage.payloads.misfits import Unreadable

FIELDS_MAX = 1 << 17
"""Maximum number of fields of all messages of a payload, those that it does not send included: two bytes are a message
with the defaults of all its fields. So many take 3 to 40 ms, and some ten megabytes."""
_ENDS = "it ends within a value"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIXED = {
    proto.DOUBLE: struct.Struct("<d"), proto.FLOAT: struct.Struct("<f"), proto.FIXED64: struct.Struct("<Q"),
    proto.FIXED32: struct.Struct("<I"), proto.SFIXED32: struct.Struct("<i"), proto.SFIXED64: struct.Struct("<q"),
}  # fmt: skip
_VARINT, _SIXTY_FOUR, _LENGTH, _GROUP, _GROUP_END, _THIRTY_TWO = range(6)
Convert = Callable[[int], Any]


class ProtobufDecoder:
    """A decoder of payloads of one message."""

    def __init__(self, root: ProtoMessage) -> None:
        self._root = root
        self._defaults: dict[ProtoMessage, _Defaults] = {}

    def decode(self, payload: bytes) -> Any:
        """Return the fields of a payload by name. Those that proto3 does not send have the defaults of their types.

        Raises:
            Unreadable: it is no such message.
        """
        try:
            return _Messages(payload, self._defaults).message(self._root, 0, len(payload), 0, {})
        except (IndexError, struct.error):
            raise Unreadable(_ENDS) from None
        except UnicodeDecodeError:
            raise Unreadable("it has text that is not UTF-8") from None


class _Defaults(NamedTuple):
    """Values of fields that a payload does not send."""

    singles: dict[str, Any]
    repeated: list[ProtoField]
    """Each message gets lists and maps of its own, which grow."""

    @classmethod
    def of(cls, message: ProtoMessage) -> _Defaults:
        fields = message.fields.values()
        singles = {each.name: _default(each) for each in fields if each.has_default and not each.repeated}
        return cls(singles, [each for each in fields if each.repeated])


class _Messages:
    """The messages of one payload."""

    def __init__(self, data: bytes, defaults: dict[ProtoMessage, _Defaults]) -> None:
        self._data = data
        self._defaults = defaults
        self._fields_left = FIELDS_MAX

    def message(self, message: ProtoMessage, at: int, end: int, depth: int, into: dict[str, Any]) -> Any:
        """Return the fields of a message, joined with those before it in ``into``."""
        if depth > NESTING_MAX:
            raise Unreadable(f"its messages are more than {NESTING_MAX} deep in each other")
        data, fields = self._data, message.fields
        self._fields_left -= len(fields)
        if self._fields_left < 0:
            raise Unreadable(f"its messages have more than {FIELDS_MAX} fields together, with those that have defaults")
        while at < end:
            key, at = _varint(data, at, end)
            each, wire = fields.get(key >> 3), key & 7
            if each is None or wire in {_GROUP, _GROUP_END}:
                at = _skip(data, at, end, wire, depth)
            elif wire == _LENGTH:
                size, at = _varint(data, at, end)
                if size > end - at:
                    raise Unreadable(_ENDS)
                self._take_length(each, at, at + size, depth, into)
                at += size
            else:
                value, at = _single(each, data, at, end, wire)
                if each.repeated:
                    into.setdefault(each.name, []).append(value)
                else:
                    into[each.name] = value
        defaults = self._defaults.get(message) or self._defaults.setdefault(message, _Defaults.of(message))
        made = {**defaults.singles, **into}
        for each in defaults.repeated:
            if each.name not in made:
                made[each.name] = _default(each)
        return _time(made) if message.name == proto.TIMESTAMP else made

    def _take_length(self, each: ProtoField, at: int, end: int, depth: int, into: dict[str, Any]) -> None:
        """Take a value with a length: text, bytes, a message, or numbers packed one behind the other."""
        if each.message is not None:
            if each.message.is_map_entry:
                entry = self.message(each.message, at, end, depth + 1, {})
                into.setdefault(each.name, {})[str(entry.get("key"))] = entry.get("value")
            elif each.repeated:
                into.setdefault(each.name, []).append(self.message(each.message, at, end, depth + 1, {}))
            else:
                # A message that comes twice is one: its fields are joined.
                before = into.get(each.name)
                joined = before if isinstance(before, dict) else {}
                into[each.name] = self.message(each.message, at, end, depth + 1, joined)
            return
        if each.kind in {proto.STRING, proto.BYTES}:
            value = self._data[at:end]
            found = value.decode() if each.kind == proto.STRING else value
            if each.repeated:
                into.setdefault(each.name, []).append(found)
            else:
                into[each.name] = found
            return
        values = into.setdefault(each.name, []) if each.repeated else []
        wire = _wire_of(each.kind)
        while at < end:
            value, at = _single(each, self._data, at, end, wire)
            values.append(value)
        if not each.repeated and values:
            into[each.name] = values[-1]


def _wire_of(kind: int) -> int:
    fixed = _FIXED.get(kind)
    return _VARINT if fixed is None else _SIXTY_FOUR if fixed.size == 8 else _THIRTY_TWO


def _single(each: ProtoField, data: bytes, at: int, end: int, wire: int) -> tuple[Any, int]:
    fixed = _FIXED.get(each.kind)
    if wire != _wire_of(each.kind) or each.message is not None or each.kind in {proto.STRING, proto.BYTES}:
        raise Unreadable(f"field {each.name} has wire type {wire}, which is none of its type")
    if fixed is not None:
        if fixed.size > end - at:
            raise Unreadable(_ENDS)
        return fixed.unpack_from(data, at)[0], at + fixed.size
    number, at = _varint(data, at, end)
    if each.kind == proto.ENUM:
        number = _signed(number)
        return each.symbols.get(number, str(number)), at
    return _CONVERT[each.kind](number), at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        if at > end:
            raise Unreadable(_ENDS)
        return byte, at
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise Unreadable("it has a number of more than 64 bits")
    if at > end:
        raise Unreadable(_ENDS)
    return number & 0xFFFF_FFFF_FFFF_FFFF, at


def _skip(data: bytes, at: int, end: int, wire: int, depth: int) -> int:
    """Return the place behind a value of a field that the message does not have."""
    if wire == _VARINT:
        return _varint(data, at, end)[1]
    if wire == _GROUP:
        if depth > NESTING_MAX:
            raise Unreadable(f"its groups are more than {NESTING_MAX} deep in each other")
        while True:
            key, at = _varint(data, at, end)
            if key & 7 == _GROUP_END:
                return at
            at = _skip(data, at, end, key & 7, depth + 1)
    size = {_SIXTY_FOUR: 8, _THIRTY_TWO: 4}.get(wire, -1)
    if wire == _LENGTH:
        size, at = _varint(data, at, end)
    if size < 0:
        raise Unreadable(f"it has wire type {wire}, which is none")
    if size > end - at:
        raise Unreadable(_ENDS)
    return at + size


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _signed_32(number: int) -> int:
    number &= 0xFFFF_FFFF
    return number - (1 << 32) if number >> 31 else number


_CONVERT: dict[int, Convert] = {
    proto.INT64: _signed, proto.INT32: _signed_32, proto.UINT64: int, proto.BOOL: bool,
    proto.UINT32: lambda number: number & 0xFFFF_FFFF,
    proto.SINT32: lambda number: _signed_32((number >> 1) ^ -(number & 1)),
    proto.SINT64: lambda number: (number >> 1) ^ -(number & 1),
}  # fmt: skip


def _default(each: ProtoField) -> Any:
    if each.repeated:
        return {} if each.message is not None and each.message.is_map_entry else []
    if each.kind == proto.ENUM:
        return each.symbols.get(0, "0")
    return {proto.STRING: "", proto.BYTES: b"", proto.BOOL: False, proto.DOUBLE: 0.0, proto.FLOAT: 0.0}.get(
        each.kind, 0
    )


def _time(fields: dict[str, Any]) -> Any:
    try:
        return _EPOCH + timedelta(seconds=fields["seconds"], microseconds=fields["nanos"] // 1000)
    except (OverflowError, KeyError):
        return fields  # no time of the years 1 to 9999: it fits no column
