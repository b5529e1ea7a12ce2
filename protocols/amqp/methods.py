"""Methods: a peer's requests, with fields in the order and of the types of the specification.

``pamqp`` has every class and method; its commands are the values that are read and written. Fields are read here: in
one pass, with errors that have a reply code, and a refusal of strings that are not UTF-8.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from pamqp import commands
from pamqp.base import Frame as Method

from weft.protocols.amqp.frames import METHOD, AmqpError, ReplyCode, frame
from weft.protocols.amqp.typed_values import (
    Float32,
    Int8,
    Int16,
    Int64,
    Milliseconds,
    Opaque,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    read_decimal,
)

# Field tables: named values of many types (section 4.2.5.5, with the types of RabbitMQ and its clients).
#
# They are read in one pass, with a bound on the nesting of tables. Values are Python's and those of ``typed_values``:
# ``Timestamp`` for type ``T``, ``Int8`` and so on for integers of a type that ``write_table`` would not choose. Long
# strings that are not UTF-8 are ``bytes``, like byte arrays.

DEPTH_MAX = 16
"""Maximum nesting of tables and arrays. Deeper ones are refused, independently of the stack's depth."""
VALUES_MAX = 16_384
"""Maximum number of values in a table, including nested ones. A frame has room for 131,072 empty ones, which take 20 ms
to read, and as long again to store."""
NAME_BYTES_MAX = 255
SCALE_MAX = 255
_MANTISSA = range(-(1 << 31), 1 << 31)
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)

FieldValue = Any
"""``None``, ``bool``, ``int``, ``float``, ``str``, ``bytes``, ``Decimal``, of ``typed_values``, a list or a dict of
them."""
FieldTable = dict[str, FieldValue]


def _long(value: int) -> int:
    return Int64(value) if value in _INT32 else value


_FIXED: Mapping[int, tuple[struct.Struct, Callable[[Any], FieldValue]]] = {
    ord(letter): (struct.Struct(">" + code), make)
    for letter, code, make in (
        ("t", "B", bool),
        ("b", "b", Int8),
        ("B", "B", UInt8),
        ("s", "h", Int16),
        ("U", "h", Int16),
        ("u", "H", UInt16),
        ("I", "i", int),
        ("i", "I", UInt32),
        ("l", "q", _long),
        ("L", "q", _long),
        ("f", "f", Float32),
        ("d", "d", float),
        ("T", "Q", Timestamp),
    )
}
"""Types of one length."""
_LONG_STRING, _BYTES, _TABLE, _ARRAY, _VOID, _DECIMAL = b"SxFAVD"
_U32 = struct.Struct(">I")
_DECIMAL_VALUE = struct.Struct(">Bi")
_DOUBLE = struct.Struct(">d")


def read_table(data: bytes, at: int, end: int, depth: int = 0, room: list[int] | None = None) -> tuple[FieldTable, int]:
    """Return the table with its length at ``at``, and its end. If a name comes twice, the last value counts.

    Args:
        end: end of the bytes that may hold the table.
        room: the number of values still allowed, for a table in another one.

    Raises:
        AmqpError: it is not well formed, or has too many values.
    """
    at, last = _span(data, at, end, depth)
    room = [VALUES_MAX] if room is None else room
    found: FieldTable = {}
    while at < last:
        room[0] -= 1
        if room[0] < 0:
            raise _too_many()
        start = at + 1
        at = start + data[at]
        if at >= last:
            raise _malformed("a name passes the end of its table")
        found[_text(data[start:at], "the name of a field")], at = _read_value(data, at, last, depth, room)
    return found, at


def read_text(data: bytes, at: int, end: int, what: str) -> tuple[str, int]:
    """Return the short string at ``at``, and its end.

    Raises:
        AmqpError: it is not well formed, or not UTF-8.
    """
    if at >= end or at + 1 + data[at] > end:
        raise _malformed(f"{what} passes the end of its frame")
    start = at + 1
    at = start + data[at]
    return _text(data[start:at], what), at


def write_text(text: str, what: str = "a short string") -> bytes:
    """Return a short string. Raises ``ValueError`` for one that is too long."""
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"{what} has {len(data)} bytes; 255 are possible")
    return bytes((len(data),)) + data


def write_table(table: Mapping[str, FieldValue]) -> bytes:
    """Return a table with its length. Raises ``ValueError`` for a value that a table cannot hold."""
    body = b"".join(write_text(name, "the name of a field") + _write_value(value) for name, value in table.items())
    return _U32.pack(len(body)) + body


def _span(data: bytes, at: int, end: int, depth: int) -> tuple[int, int]:
    if depth > DEPTH_MAX:
        raise _malformed(f"tables and arrays are nested more than {DEPTH_MAX} deep")
    if at + 4 > end:
        raise _malformed("a table has no length")
    (size,) = _U32.unpack_from(data, at)
    at += 4
    if at + size > end:
        raise _malformed("a table passes the end of what contains it")
    return at, at + size


def _read_value(data: bytes, at: int, end: int, depth: int, room: list[int]) -> tuple[FieldValue, int]:
    kind = data[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        form, make = fixed
        if at + form.size > end:
            raise _malformed("a value passes the end of its table")
        return make(form.unpack_from(data, at)[0]), at + form.size
    if kind in (_LONG_STRING, _BYTES):
        if at + 4 > end:
            raise _malformed("a string has no length")
        start = at + 4
        at = start + int(_U32.unpack_from(data, at)[0])
        if at > end:
            raise _malformed("a string passes the end of its table")
        return (data[start:at] if kind == _BYTES else text_or_bytes(data[start:at])), at
    if kind == _VOID:
        return None, at
    if kind == _TABLE:
        return read_table(data, at, end, depth + 1, room)
    if kind == _ARRAY:
        return _read_array(data, at, end, depth + 1, room)
    if kind == _DECIMAL:
        if at + _DECIMAL_VALUE.size > end:
            raise _malformed("a decimal passes the end of its table")
        scale, mantissa = _DECIMAL_VALUE.unpack_from(data, at)
        return Decimal((int(mantissa < 0), tuple(map(int, str(abs(mantissa)))), -scale)), at + _DECIMAL_VALUE.size
    raise _malformed(f"a field has the unknown type {bytes((kind,))!r}")


def _read_array(data: bytes, at: int, end: int, depth: int, room: list[int]) -> tuple[list[FieldValue], int]:
    at, last = _span(data, at, end, depth)
    found: list[FieldValue] = []
    while at < last:
        room[0] -= 1
        if room[0] < 0:
            raise _too_many()
        value, at = _read_value(data, at, last, depth, room)
        found.append(value)
    return found, at


def text_or_bytes(data: bytes) -> str | bytes:
    """Return a long string: text if it is UTF-8, else bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _malformed(f"{what} is not valid UTF-8") from None


def _too_many() -> AmqpError:
    return _malformed(f"a table has more than {VALUES_MAX} values, with those of tables and arrays in it")


def _malformed(reason: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, reason)


def _write_value(value: FieldValue) -> bytes:
    if isinstance(value, str):
        data = value.encode()
        return b"S" + _U32.pack(len(data)) + data
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, Timestamp | Milliseconds):
        seconds = value if isinstance(value, Timestamp) else value // 1000
        return b"T" + int(seconds).to_bytes(8, "big") if 0 <= seconds < 1 << 64 else _write_value(str(int(seconds)))
    typed = _TYPED.get(type(value))
    if typed is not None:
        letter, form = typed
        return letter + form.pack(value)
    if isinstance(value, int):
        if isinstance(value, UInt64) and value >= 1 << 63:
            return _write_value(str(int(value)))  # there is no type for it
        return _write_integer(int(value))  # for a subclass of int, ``in`` would compare with every number of the range
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if value is None:
        return b"V"
    if isinstance(value, bytes | bytearray):
        return b"x" + _U32.pack(len(value)) + value
    if isinstance(value, Mapping):
        return b"F" + write_table(value)
    if isinstance(value, Decimal):
        return b"D" + _write_decimal(value)
    if isinstance(value, Opaque):
        return _write_opaque(value)
    if isinstance(value, UUID):
        return _write_value(str(value))
    if isinstance(value, Sequence):
        body = b"".join(map(_write_value, value))
        return b"A" + _U32.pack(len(body)) + body
    raise ValueError(f"a field table cannot hold a {type(value).__name__}")


_TYPED: Mapping[type, tuple[bytes, struct.Struct]] = {
    cls: (letter, struct.Struct(">" + code))
    for cls, letter, code in (
        (Int8, b"b", "b"),
        (UInt8, b"B", "B"),
        (Int16, b"s", "h"),
        (UInt16, b"u", "H"),
        (UInt32, b"i", "I"),
        (Int64, b"l", "q"),
        (Float32, b"f", "f"),
    )
}
"""Types of a publisher's choice, for which ``_write_integer`` and the like would choose another."""


def _write_opaque(value: Opaque) -> bytes:
    """Write a decimal of AMQP 1.0, as text if 32 bits have no room for it."""
    number = read_decimal(value.code, value.data)
    try:
        return _write_value(value.data if number is None else number)
    except ValueError:
        return _write_value(str(number))


def _write_integer(value: int) -> bytes:
    # Among the types that can hold it, choose one that every client knows: some clients lack the unsigned and short
    # ones.
    if value in _INT32:
        return b"I" + value.to_bytes(4, "big", signed=True)
    if value in _INT64:
        return b"l" + value.to_bytes(8, "big", signed=True)
    raise ValueError(f"{value} has more than 64 bits")


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not exponent >= -SCALE_MAX:
        raise ValueError(f"{value} is not a decimal of AMQP")
    mantissa = int("".join(map(str, digits))) * (-1 if sign else 1)
    if exponent > 0:
        mantissa, exponent = (mantissa * 10**exponent if exponent < 10 else 1 << 32), 0
    if mantissa not in _MANTISSA:
        raise ValueError(f"{value} has more than 32 bits")
    return _DECIMAL_VALUE.pack(-exponent, mantissa)


__all__ = ["CLASSES", "METHODS", "Method", "commands", "name_of", "read_method", "write_method"]

METHODS: Mapping[int, Any] = commands.INDEX_MAPPING
"""Class << 16 | method -> type of the method."""
CLASSES = frozenset(index >> 16 for index in METHODS)
"""Numbers of the classes that exist."""
_INDEX = struct.Struct(">I")
_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": _INDEX,
    "longlong": struct.Struct(">Q"),
}


def name_of(index: int) -> str:
    """Return a method's name as in the specification: ``queue.declare``; for unknown methods the numbers."""
    known = METHODS.get(index)
    if known is None:
        return f"{index >> 16}.{index & 0xFFFF}"
    return str(known.name).replace(".", " ").split()[0].lower() + "." + _dashed(str(known.name).split(".")[1])


def read_method(payload: bytes) -> Method:
    """Return the method in a frame's payload.

    Raises:
        AmqpError: there is no such method, or its fields are not well formed.
    """
    if len(payload) < _INDEX.size:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, "a method frame without class and method")
    (index,) = _INDEX.unpack_from(payload)
    known = METHODS.get(index)
    if known is None:
        what = "method" if index >> 16 in CLASSES else "class"
        code = ReplyCode.NOT_IMPLEMENTED if what == "method" else ReplyCode.COMMAND_INVALID
        raise AmqpError(code, f"there is no {what} {name_of(index)}", index)
    try:
        return _read_fields(known, payload)
    except AmqpError as error:
        error.method = index
        raise


def write_method(method: Method, channel: int) -> bytes:
    """Return a frame with a method. Field tables may hold what ``write_table`` can write."""
    parts = [_INDEX.pack(method.index)]
    bits = shift = 0
    for name, kind in _fields(method.index):
        value = getattr(method, name)
        if kind == "bit":
            bits |= bool(value) << shift
            shift += 1
            continue
        if shift:
            parts.append(bytes((bits,)))
            bits = shift = 0
        if kind == "shortstr":
            parts.append(write_text(value or "", name))
        elif kind == "longstr":
            data = value if isinstance(value, bytes) else (value or "").encode()
            parts.append(_INDEX.pack(len(data)) + data)
        elif kind == "table":
            parts.append(write_table(value or {}))
        else:
            parts.append(_INTEGERS[kind].pack(value))
    if shift:
        parts.append(bytes((bits,)))
    return frame(METHOD, channel, b"".join(parts))


@functools.cache
def _fields(index: int) -> tuple[tuple[str, str], ...]:
    known = METHODS[index]
    return tuple((name, known.amqp_type(name)) for name in known.attributes())


def _read_fields(known: Any, payload: bytes) -> Method:
    at, end = _INDEX.size, len(payload)
    values: dict[str, Any] = {}
    shift = 0
    for name, kind in _fields(known.index):
        if kind == "bit":
            if shift == 0:
                if at >= end:
                    raise _short(name)
                at += 1
            values[name] = bool(payload[at - 1] >> shift & 1)
            shift += 1
            continue
        shift = 0
        if kind == "shortstr":
            values[name], at = read_text(payload, at, end, name)
        elif kind == "table":
            values[name], at = read_table(payload, at, end)
        elif kind == "longstr":
            values[name], at = _read_long_string(payload, at, name)
        else:
            form = _INTEGERS[kind]
            if at + form.size > end:
                raise _short(name)
            values[name] = form.unpack_from(payload, at)[0]
            at += form.size
    if at != end:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, f"{end - at} octets behind the last field")
    method: Method = known.__new__(known)  # without pamqp's checks of values: Weft's have a reply code each
    for name, value in values.items():
        setattr(method, name, value)
    return method


def _read_long_string(payload: bytes, at: int, name: str) -> tuple[str | bytes, int]:
    if at + 4 > len(payload):
        raise _short(name)
    start = at + 4
    at = start + int(_INDEX.unpack_from(payload, at)[0])
    if at > len(payload):
        raise _short(name)
    return text_or_bytes(payload[start:at]), at


def _short(name: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, f"the field {name} passes the end of its frame")


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("-")
