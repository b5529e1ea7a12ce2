"""Formats of payloads, opened step by step, as far as fields need it, within bounds; and misfits, worded for people."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from weft.bounds.cbor import UNDEFINED, CborDecoder, CborError
from weft.config.payload_schema import languages as proto
from weft.config.payload_schema.languages import AvroType, ProtoField, ProtoMessage, parse_avro, parse_descriptors
from weft.config.payload_schema.model import DEFINED, FieldType, PayloadSchema, SchemaFormat
from weft.config.units import quoted
from weft.protocols.payloads import NESTING_MAX, PAYLOAD_BYTES_MAX, nests_at_most

# Misfits: differences between a payload and its schema, worded for people, within bounds.

MISFITS_MAX = 16
"""Maximum number of misfits named in a row: a payload of another schema would otherwise name each of 256 fields."""
MORE = "..."
"""Key of the number of further misfits."""
PAYLOAD = "payload"
"""Key of a payload that cannot be read as a whole. No field has this name."""
MISSING = "required, and missing"
NUMBER_CHARACTERS_MAX = 40
REASON_CHARACTERS_MAX = 240
"""Longest reason: reasons of libraries may repeat the payload."""

_WORDS = {
    "bool": "true or false",
    "int": "a whole number of 64 bits",
    "float": "a number of 64 bits",
    "string": "text",
    "binary": "bytes",
    "base64": "text in base64",
    "timestamp": "a time as text in ISO 8601",
    "local_timestamp": "a time without a zone or offset as text in ISO 8601",
    "date": "a day as text in ISO 8601",
    "array": "an array",
}


class Misfit(Exception):
    """A value that does not fit its column. The text is the reason."""


class Unreadable(Exception):
    """A payload, or a part of one, that is not of its format. The text is the reason."""


def expected(kind: FieldType, value: Any) -> Misfit:
    """Return the misfit of a value of the wrong type."""
    if kind.unit is not None:
        what = "a day" if kind.name == "date" else "a time"
        words = f"{what} as a number of {kind.unit} since 1970"
    elif kind.name == "decimal":
        words = f"a number of at most {kind.digits} digits, {kind.scale} of them after the point"
    else:
        words = _WORDS[kind.name]
    return Misfit(f"expected {words}, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as text for a misfit, shortened if it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple | set | frozenset):
        return f"an array of {len(value)}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= NUMBER_CHARACTERS_MAX else f"{text[:NUMBER_CHARACTERS_MAX]}..."


class RowMisfits:
    """Misfits of one row, by field. At most ``MISFITS_MAX`` are kept; the rest is counted."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._more = 0

    def add(self, name: str, reason: str) -> None:
        """Record why a field does not fit."""
        if len(self.reasons) < MISFITS_MAX:
            self.reasons[name] = reason[:REASON_CHARACTERS_MAX]
        else:
            self._more += 1

    def items(self) -> list[tuple[str, str]]:
        """Return the entries of the column."""
        more = [(MORE, f"and {self._more} more")] if self._more else []
        return [*self.reasons.items(), *more]


# Values from payloads in Avro's binary encoding (Apache Avro 1.12, "Binary Encoding"), within bounds.
#
# A reader is made of closures, one for each type of the schema. Each takes the payload and a place in it, and returns
# the value and the place behind it. Every length is compared with what is left, and an array has no more items than
# the payload has bytes: fastavro and Avro's own reader take a count of 2^60 empty items at its word.

Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""Function of payload, place and depth that returns the value and the place behind it."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_ENDS = "it ends within a value"
VALUES_MIN = 256
VALUES_PER_BYTE = 16
"""Maximum number of values of a payload, for each of its bytes, beyond ``VALUES_MIN``. Nulls, and records of nulls,
take no bytes: a schema of 60 records, each with two of the one before, would have 2^60 values in an empty payload."""


class AvroDecoder:
    """A decoder of payloads of one schema."""

    def __init__(self, root: AvroType) -> None:
        self._made: dict[int, Reader] = {}
        self._left = 0
        """Number of values that the payload may still have."""
        self._root = self._reader(root)

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises:
            Unreadable: it is not of the schema.
        """
        self._left = VALUES_MIN + VALUES_PER_BYTE * len(payload)
        try:
            value, at = self._root(payload, 0, 0)
        except (IndexError, struct.error):
            raise Unreadable(_ENDS) from None
        except UnicodeDecodeError:
            raise Unreadable("it has text that is not UTF-8") from None
        if at != len(payload):
            raise Unreadable(f"the value ends at byte {at}, and there are {len(payload) - at} more")
        return value

    def _reader(self, kind: AvroType) -> Reader:
        if (known := self._made.get(id(kind))) is not None:
            return known
        if kind.kind in _SIMPLE and kind.logical != "decimal":
            return _SIMPLE[kind.kind]

        def later(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            return self._made[id(kind)](data, at, depth)

        self._made[id(kind)] = later  # for a type within itself
        self._made[id(kind)] = getattr(self, f"_{kind.kind}")(kind)
        return self._made[id(kind)]

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Unreadable("it has too many values without bytes")

    def _record(self, kind: AvroType) -> Reader:
        fields = [(each.name, self._reader(each.type)) for each in kind.fields]

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            self._take(len(fields))
            value = {}
            for name, field in fields:
                value[name], at = field(data, at, depth + 1)
            return value, at

        return read

    def _union(self, kind: AvroType) -> Reader:
        branches = [self._reader(each) for each in kind.inside]

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            branch, at = _long(data, at, 0)
            if not 0 <= branch < len(branches):
                raise Unreadable(f"it has branch {branch} of a union of {len(branches)}")
            return branches[branch](data, at, depth + 1)

        return read

    def _array(self, kind: AvroType) -> Reader:
        item = self._reader(kind.inside[0])

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            values: list[Any] = []
            while True:
                count, at = _block(data, at, len(values))
                if not count:
                    return values, at
                self._take(count)
                for _ in range(count):
                    value, at = item(data, at, depth + 1)
                    values.append(value)

        return read

    def _map(self, kind: AvroType) -> Reader:
        item = self._reader(kind.inside[0])

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            values: dict[str, Any] = {}
            while True:
                count, at = _block(data, at, len(values))
                if not count:
                    return values, at
                self._take(count)
                for _ in range(count):
                    name, at = _string(data, at, 0)
                    values[name], at = item(data, at, depth + 1)

        return read

    def _enum(self, kind: AvroType) -> Reader:
        symbols = kind.symbols

        def read(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
            number, at = _long(data, at, 0)
            if not 0 <= number < len(symbols):
                raise Unreadable(f"it has symbol {number} of an enum of {len(symbols)}")
            return symbols[number], at

        return read

    def _fixed(self, kind: AvroType) -> Reader:
        size = kind.size

        def read(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
            if at + size > len(data):
                raise Unreadable(_ENDS)
            return data[at : at + size], at + size

        return _as_decimal(read, kind.scale) if kind.logical == "decimal" else read

    def _bytes(self, kind: AvroType) -> Reader:
        return _as_decimal(_bytes, kind.scale)


def _as_decimal(read: Reader, scale: int) -> Reader:
    def decimal(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        value, at = read(data, at, depth)
        if len(value) > 32:
            raise Unreadable(f"a decimal has {len(value)} bytes; at most 32 are decoded")
        return Decimal(int.from_bytes(value, signed=True)).scaleb(-min(scale, 100)), at

    return decimal


def _check_depth(depth: int) -> None:
    if depth > NESTING_MAX:
        raise Unreadable(f"its values are more than {NESTING_MAX} deep in each other")


def _block(data: bytes, at: int, before: int) -> tuple[int, int]:
    """Return the number of items of the next block, and where it begins."""
    count, at = _long(data, at, 0)
    if count < 0:  # a size in bytes follows, by which readers may skip the block
        count = -count
        _, at = _long(data, at, 0)
    if before + count > len(data):
        raise Unreadable(f"it has {before + count} items in {len(data)} bytes; at most one for each byte is decoded")
    return count, at


def _null(_data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return None, at


def _boolean(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return data[at] != 0, at + 1


def _long(data: bytes, at: int, _depth: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise Unreadable("it has a number of more than 64 bits")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at


def _float(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _bytes(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    size, at = _long(data, at, 0)
    if not 0 <= size <= len(data) - at:
        raise Unreadable(_ENDS)
    return data[at : at + size], at + size


def _string(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    value, at = _bytes(data, at, 0)
    return value.decode(), at


_SIMPLE: dict[str, Reader] = {
    "null": _null,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


# Values from payloads of Protobuf's wire format, within bounds: every length is compared with what is left, messages
# are at most 128 deep in each other, and the fields of all of them together are at most ``FIELDS_MAX``.

FIELDS_MAX = 1 << 17
"""Maximum number of fields of all messages of a payload, those that it does not send included: two bytes are a message
with the defaults of all its fields. So many take 3 to 40 ms, and some ten megabytes."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIXED = {
    proto.DOUBLE: struct.Struct("<d"),
    proto.FLOAT: struct.Struct("<f"),
    proto.FIXED64: struct.Struct("<Q"),
    proto.FIXED32: struct.Struct("<I"),
    proto.SFIXED32: struct.Struct("<i"),
    proto.SFIXED64: struct.Struct("<q"),
}
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
    proto.INT64: _signed,
    proto.INT32: _signed_32,
    proto.UINT64: int,
    proto.BOOL: bool,
    proto.UINT32: lambda number: number & 0xFFFF_FFFF,
    proto.SINT32: lambda number: _signed_32((number >> 1) ^ -(number & 1)),
    proto.SINT64: lambda number: (number >> 1) ^ -(number & 1),
}


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


# Payloads opened step by step, as far as fields need it: the exact way, for payloads with a misfit.
#
# Parts without a field are only checked for syntax, so a row's misfits do not depend on the columns that are read.

INDEXES_MAX = 64
"""Maximum number of a message's indexes, one for each message that it is declared in."""
Values = tuple[list[Any], int]
"""Values of payloads, and the number of those that cannot be decoded."""
_JSON = msgspec.json.Decoder()
TOO_DEEP = f"its arrays and objects are more than {NESTING_MAX} deep in each other"


class Format(Protocol):
    """A format of payloads."""

    def root(self, payload: bytes) -> Any:
        """Return a whole payload as a part.

        Raises:
            Unreadable: it is not of the format, too long or too deep.
        """

    def opened(self, part: Any) -> Any:
        """Return a part as an object or array of parts, or as a plain value.

        Raises:
            Unreadable: the part has a value that cannot be decoded.
        """

    def plain(self, part: Any) -> Any:
        """Return a part for a field: the items of an array are opened too.

        Raises:
            Unreadable: as ``opened``.
        """


def check_length(payload: bytes) -> None:
    """Refuse a payload that is empty or too long.

    Raises:
        Unreadable: it is.
    """
    if not payload:
        raise Unreadable("it is empty")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise Unreadable(f"it has {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are decoded")


class JsonParts:
    """JSON (RFC 8259). If an object has a name twice, the last value counts."""

    def __init__(self) -> None:
        self._syntax = msgspec.json.Decoder(msgspec.Raw)
        self._object = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._array = msgspec.json.Decoder(list[msgspec.Raw])
        # Decimals keep all digits, which a float would round before a decimal column gets them.
        self._single = msgspec.json.Decoder(float_hook=Decimal)
        self._items = msgspec.json.Decoder(list[Any], float_hook=Decimal)

    def root(self, payload: bytes) -> Any:
        """Return a payload that is JSON in UTF-8."""
        check_length(payload)
        try:
            payload.decode()
            if not nests_at_most(NESTING_MAX, payload):
                raise Unreadable(TOO_DEEP)
            return self._syntax.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"it is not JSON: {error}") from None

    def opened(self, part: Any) -> Any:
        """Return an object or array of parts, or a value; numbers with a fraction or exponent are decimals."""
        return self._decoded(part, self._array)

    def plain(self, part: Any) -> Any:
        """Return a value, or an array of values: decoded at once, which takes a tenth of the time of each by itself."""
        return self._decoded(part, self._items)

    def _decoded(self, part: Any, array: msgspec.json.Decoder[Any]) -> Any:
        text = bytes(part)
        first = text.lstrip(b" \t\r\n")[:1]
        decoder = self._object if first == b"{" else array if first == b"[" else self._single
        try:
            return decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, ArithmeticError):
            # The syntax is valid, so it is a number of thousands of digits, or a text with half a surrogate pair.
            raise Unreadable("expected a number or text that a column can hold") from None


# The first bytes of maps and arrays (MessagePack specification, "Overview").
_MAPS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_OPENING = _MAPS | _ARRAYS
_NOT_OPENING = bytes(set(range(256)) - _OPENING)


class MsgpackParts:
    """MessagePack. Timestamps (extension -1) are times, other extensions fit no column."""

    def __init__(self) -> None:
        self._syntax = msgspec.msgpack.Decoder(msgspec.Raw)
        self._object = msgspec.msgpack.Decoder(dict[str | int, msgspec.Raw])
        self._array = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._single = msgspec.msgpack.Decoder()
        self._items = msgspec.msgpack.Decoder(list[Any])

    def root(self, payload: bytes) -> Any:
        """Return a payload that is one value in MessagePack."""
        check_length(payload)
        try:
            if not opens_few(payload) and _too_deep(payload, self.opened):
                raise Unreadable(TOO_DEEP)
            return self._syntax.decode(payload)
        except RecursionError:
            raise Unreadable(TOO_DEEP) from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(f"it is not MessagePack: {error}") from None

    def opened(self, part: Any) -> Any:
        """Return an object or array of parts, or a value."""
        return self._decoded(part, self._array)

    def plain(self, part: Any) -> Any:
        """Return a value, or an array of values, decoded at once."""
        return self._decoded(part, self._items)

    def _decoded(self, part: Any, array: msgspec.msgpack.Decoder[Any]) -> Any:
        data = bytes(part)
        decoder = self._object if data[0] in _MAPS else array if data[0] in _ARRAYS else self._single
        try:
            return decoder.decode(data)
        except msgspec.ValidationError:
            raise Unreadable("expected names that are text or integers") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, TypeError) as error:
            raise Unreadable(f"expected a value that can be decoded: {error}") from None


def opens_few(payload: bytes) -> bool:
    """Return whether the payload has too few bytes of maps and arrays of MessagePack to be nested too deeply."""
    return len(payload) <= NESTING_MAX or len(payload.translate(None, _NOT_OPENING)) <= NESTING_MAX


def _too_deep(payload: bytes, opened: Callable[[Any], Any]) -> bool:
    """Return whether maps and arrays are nested more than ``NESTING_MAX`` deep. It walks level by level, without
    recursion."""
    level: list[Any] = [payload]
    for _ in range(NESTING_MAX + 1):
        inside: list[Any] = []
        for part in level:
            value = opened(part)
            inside += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        level = [part for part in inside if memoryview(part)[0] in _OPENING]
        if not level:
            return False
    return True


class CborParts:
    """CBOR (RFC 8949), decoded as a whole: see ``bounds.cbor`` for its tags."""

    def __init__(self) -> None:
        self._decoder = CborDecoder(NESTING_MAX)

    def root(self, payload: bytes) -> Any:
        """Return the value of a payload."""
        check_length(payload)
        try:
            return self._decoder.decode(payload)
        except CborError as error:
            raise Unreadable(str(error)) from None

    def opened(self, part: Any) -> Any:
        """Return the value; ``undefined`` is null."""
        return None if type(part) is UNDEFINED else part

    def plain(self, part: Any) -> Any:
        """Return the value; ``undefined`` is null within an array, too."""
        value = self.opened(part)
        return [self.opened(each) for each in value] if isinstance(value, list) else value


class DefinedParts:
    """Payloads that only a definition explains, decoded as a whole."""

    def __init__(self, decoder: AvroDecoder | ProtobufDecoder, framing: Callable[[bytes], bytes] | None) -> None:
        self._decoder, self._framing = decoder, framing

    def root(self, payload: bytes) -> Any:
        """Return the value of a payload."""
        # A message of Protobuf with nothing but defaults has no bytes.
        if payload or isinstance(self._decoder, AvroDecoder):
            check_length(payload)
        return self._decoder.decode(payload if self._framing is None else self._framing(payload))

    def opened(self, part: Any) -> Any:
        """Return the value."""
        return part

    def plain(self, part: Any) -> Any:
        """Return the value."""
        return part


def _defined(schema: PayloadSchema) -> DefinedParts:
    definition = schema.definition or ""
    if schema.format == "avro":
        framing = {"confluent": without_id, "single_object": without_fingerprint}.get(schema.framing or "")
        return DefinedParts(AvroDecoder(parse_avro(definition)), framing)
    root = parse_descriptors(definition, schema.message)
    return DefinedParts(ProtobufDecoder(root), without_message_indexes if schema.framing else None)


def parts_of(schema: PayloadSchema) -> Format:
    """Return a new reader of a schema's format."""
    if schema.format in DEFINED:
        return _defined(schema)
    kinds: dict[str, Callable[[], Format]] = {"json": JsonParts, "msgpack": MsgpackParts, "cbor": CborParts}
    return kinds[schema.format]()


def found(value: dict[Any, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the parts of an object under the names of fields. Names may be integers in CBOR and MessagePack (SenML,
    RFC 8428): ``"1"`` matches them too."""
    parts = {}
    for name in names:
        if name in value:
            parts[name] = value[name]
        elif name.isdecimal() and name.isascii() and (number := int(name)) in value:
            parts[name] = value[number]
    return parts


def without_id(payload: bytes) -> bytes:
    """Return a payload without 0 and the four bytes of a schema's id."""
    if len(payload) < 5 or payload[0] != 0:
        raise Unreadable("it does not begin with 0 and the id of a schema, as `framing: confluent` demands")
    return payload[5:]


def without_fingerprint(payload: bytes) -> bytes:
    """Return a payload without the ten bytes of Avro's single-object encoding."""
    if len(payload) < 10 or not payload.startswith(b"\xc3\x01"):
        raise Unreadable("it does not begin with C3 01 and a fingerprint, as `framing: single_object` demands")
    return payload[10:]


def without_message_indexes(payload: bytes) -> bytes:
    """Return a payload without a schema's id and the indexes of the message in its file."""
    rest = without_id(payload)
    count, at = _zigzag(rest, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise Unreadable(f"it has {count} indexes of a message, at most {INDEXES_MAX} are read")
    for _ in range(count):
        _, at = _zigzag(rest, at)
    return rest[at:]


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise Unreadable("it ends within the indexes of its message, as `framing: confluent` has them")


def whole_values(name: SchemaFormat) -> Callable[[Sequence[bytes]], Values]:
    """Return a decoder of some thousand payloads of a format at a time."""
    if name == "json":
        return _json_values
    return partial(_each, msgspec.msgpack.decode if name == "msgpack" else CborDecoder(NESTING_MAX).decode)


def _json_values(payloads: Sequence[bytes]) -> Values:
    try:
        # Lines of one text take two thirds of the time. A payload of several lines makes another number of values.
        values = _JSON.decode_lines(b"\n".join(payloads))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        values = []
    return (values, 0) if len(values) == len(payloads) else _each(_JSON.decode, payloads)


def _each(decode: Callable[[bytes], Any], payloads: Sequence[bytes]) -> Values:
    values: list[Any] = []
    for payload in payloads:
        try:
            values.append(decode(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
            continue
    return values, len(payloads) - len(values)
