"""Types of AMQP 1.0 as bytes, and back (part 1 of the specification).

Proton has a codec too, but it keeps only the last of several data sections of a message. This one has the types in the
sections of a message and in the frames before ``open``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from weft.protocols.amqp.decimals import DECIMAL64, write_decimal
from weft.protocols.amqp.typed_values import (
    Char,
    Encoded,
    Float32,
    Int8,
    Int16,
    Int32,
    Int64,
    Opaque,
    Symbol,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from weft.protocols.amqp.typed_values import Milliseconds as Timestamp
from weft.protocols.amqp.typed_values import Timestamp as Seconds
from weft.protocols.errors import Corrupt

__all__ = [
    "DEPTH_MAX", "Array", "Decoded", "Described", "Opaque", "Symbol", "Timestamp", "decode", "described", "encode",
    "encode_map", "fields", "symbols", "ubyte", "uint", "ulong",
]  # fmt: skip

DEPTH_MAX: Final = 32
"""Deepest nesting of lists, maps, arrays and described values."""
EMPTY_ELEMENTS_MAX: Final = 1024
"""Longest array with elements of zero bytes: a few bytes could encode billions of them."""

Decoded = tuple[Any, int]
"""A value, and the offset of the next one."""


class Described(NamedTuple):
    """A value with a descriptor, which defines its meaning."""

    descriptor: Any
    value: Any


class Array(list[Any]):
    """Values of an array, and its encoded bytes: a list would lose their common type."""

    __slots__ = ("encoded",)

    def __init__(self, values: list[Any], encoded: bytes) -> None:
        super().__init__(values)
        self.encoded = encoded


# --- decoding


def decode(data: bytes, at: int = 0, depth: int = 0) -> Decoded:
    """Decode one value.

    Raises:
        Corrupt: there is no value, or it is nested too deeply.
    """
    if depth > DEPTH_MAX:
        raise Corrupt(f"values nested more than {DEPTH_MAX} deep")
    try:
        code = data[at]
        if code == 0:
            descriptor, at = decode(data, at + 1, depth + 1)
            value, at = decode(data, at, depth + 1)
            return Described(descriptor, value), at
        return _body(code, data, at + 1, depth)
    except (IndexError, struct.error):
        raise Corrupt("a value ends before it is whole") from None


def _body(code: int, data: bytes, at: int, depth: int) -> Decoded:
    simple = _SIMPLE.get(code)
    if simple is not None:
        return simple(data, at)
    if code in _COMPOUND:
        return _COMPOUND[code](code, data, at, depth)
    raise Corrupt(f"there is no type with the code {code:#04x}")


def _constant(value: Any) -> Callable[[bytes, int], Decoded]:
    return lambda _, at: (value, at)


def _fixed(layout: str, kind: Callable[[Any], Any] | None = None) -> Callable[[bytes, int], Decoded]:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)
    if kind is None:
        return lambda data, at: (unpack(data, at)[0], at + width)
    return lambda data, at: (kind(unpack(data, at)[0]), at + width)


def _opaque(code: int, width: int) -> Callable[[bytes, int], Decoded]:
    return lambda data, at: (Opaque(code, _cut(data, at, width)), at + width)


def _cut(data: bytes, at: int, length: int) -> bytes:
    found = data[at : at + length]
    if len(found) != length:
        raise Corrupt(f"a value of {length} bytes has {len(found)}")
    return found


def _variable(width: int, kind: Callable[[bytes], Any]) -> Callable[[bytes, int], Decoded]:
    def short(data: bytes, at: int) -> Decoded:
        end = at + 1 + data[at]
        return kind(_cut(data, at + 1, data[at])), end

    def long(data: bytes, at: int) -> Decoded:
        length = int.from_bytes(_cut(data, at, 4), "big")
        return kind(_cut(data, at + 4, length)), at + 4 + length

    return short if width == 1 else long


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Corrupt("a text is not in UTF-8") from None


def _symbol(data: bytes) -> Symbol:
    try:
        return Symbol(data.decode("ascii"))
    except UnicodeDecodeError:
        raise Corrupt("a symbol is not in ASCII") from None


def _char(code: int) -> Char:
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise Corrupt(f"{code:#x} is no character")
    return Char(chr(code))


def _boolean(byte: int) -> bool:
    if byte > 1:
        raise Corrupt(f"{byte} is no boolean")
    return bool(byte)


_SIMPLE: dict[int, Callable[[bytes, int], Decoded]] = {
    0x40: _constant(None), 0x41: _constant(True), 0x42: _constant(False), 0x43: _constant(UInt32(0)),
    0x44: _constant(UInt64(0)), 0x50: _fixed(">B", UInt8), 0x51: _fixed(">b", Int8), 0x52: _fixed(">B", UInt32),
    0x53: _fixed(">B", UInt64), 0x54: _fixed(">b", Int32), 0x55: _fixed(">b"), 0x56: _fixed(">B", _boolean),
    0x60: _fixed(">H", UInt16), 0x61: _fixed(">h", Int16), 0x70: _fixed(">I", UInt32), 0x71: _fixed(">i", Int32),
    0x72: _fixed(">f", Float32), 0x73: _fixed(">I", _char), 0x74: _opaque(0x74, 4), 0x80: _fixed(">Q", UInt64),
    0x81: _fixed(">q"), 0x82: _fixed(">d"), 0x83: _fixed(">q", Timestamp), 0x84: _opaque(0x84, 8),
    0x94: _opaque(0x94, 16), 0x98: lambda data, at: (UUID(bytes=_cut(data, at, 16)), at + 16),
    0xA0: _variable(1, bytes), 0xB0: _variable(4, bytes), 0xA1: _variable(1, _text), 0xB1: _variable(4, _text),
    0xA3: _variable(1, _symbol), 0xB3: _variable(4, _symbol),
}  # fmt: skip


def _sizes(data: bytes, at: int, width: int) -> tuple[int, int, int]:
    """Return the end of a compound value, the number of its elements, and the offset of the first."""
    size = int.from_bytes(_cut(data, at, width), "big")
    if size < width or at + width + size > len(data):
        raise Corrupt(f"a value of {size} bytes has {len(data) - at - width}")
    return at + width + size, int.from_bytes(data[at + width : at + 2 * width], "big"), at + 2 * width


def _list(code: int, data: bytes, at: int, depth: int) -> Decoded:
    if code == 0x45:
        return [], at
    end, count, at = _sizes(data, at, 1 if code == 0xC0 else 4)
    if count > end - at:
        raise Corrupt(f"a list of {count} values in {end - at} bytes")
    found = []
    for _ in range(count):
        value, at = decode(data, at, depth + 1)
        found.append(value)
    return found, _ends(at, end)


def _map(code: int, data: bytes, at: int, depth: int) -> Decoded:
    end, count, at = _sizes(data, at, 1 if code == 0xC1 else 4)
    if count % 2 or count > end - at:
        raise Corrupt(f"a map of {count} keys and values in {end - at} bytes")
    found: dict[Any, Any] = {}
    for _ in range(count // 2):
        key, at = decode(data, at, depth + 1)
        value, at = decode(data, at, depth + 1)
        try:
            found[key] = value
        except TypeError:
            raise Corrupt("a map with a key that is a list or a map") from None
    return found, _ends(at, end)


def _array(code: int, data: bytes, at: int, depth: int) -> Decoded:
    begin = at - 1
    end, count, at = _sizes(data, at, 1 if code == 0xE0 else 4)
    descriptor, is_described = None, data[at] == 0
    if is_described:
        descriptor, at = decode(data, at + 1, depth + 1)
    element = data[at]
    at += 1
    if count > max(end - at, EMPTY_ELEMENTS_MAX):
        raise Corrupt(f"an array of {count} values in {end - at} bytes")
    found = []
    for _ in range(count):
        value, at = _body(element, data, at, depth + 1)
        found.append(Described(descriptor, value) if is_described else value)
    return Array(found, data[begin : _ends(at, end)]), end


def _ends(at: int, end: int) -> int:
    if at != end:
        raise Corrupt(f"a value ends {abs(end - at)} bytes {'before' if at < end else 'after'} the place it names")
    return end


_COMPOUND: dict[int, Callable[[int, bytes, int, int], Decoded]] = {
    0x45: _list, 0xC0: _list, 0xD0: _list, 0xC1: _map, 0xD1: _map, 0xE0: _array, 0xF0: _array
}  # fmt: skip


# --- encoding


def encode(value: Any) -> bytes:
    """Encode a value: integers as ``long``, floats as ``double``. The caller encodes values of other types.

    Raises:
        TypeError: AMQP has no type for it.
    """
    if value is None:
        return b"\x40"
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"AMQP has no type for {type(value).__name__}")
    return encoder(value)


def ubyte(value: int) -> bytes:
    """Encode a ``ubyte``."""
    return bytes((0x50, value))


def uint(value: int) -> bytes:
    """Encode a ``uint``."""
    if value < 256:
        return bytes((0x52, value)) if value else b"\x43"
    return b"\x70" + value.to_bytes(4, "big")


def ulong(value: int) -> bytes:
    """Encode a ``ulong``."""
    if value < 256:
        return bytes((0x53, value)) if value else b"\x44"
    return b"\x80" + value.to_bytes(8, "big")


def symbols(names: list[str]) -> bytes:
    """Encode an array of symbols."""
    body = b"\xb3" + b"".join(len(name).to_bytes(4, "big") + name.encode("ascii") for name in names)
    return b"\xf0" + (len(body) + 4).to_bytes(4, "big") + len(names).to_bytes(4, "big") + body


def fields(encoded: list[bytes]) -> bytes:
    """Encode a list of encoded values, such as the fields of a section, without the nulls at its end."""
    while encoded and encoded[-1] == b"\x40":
        encoded.pop()
    if not encoded:
        return b"\x45"
    return _sized(0xC0, 0xD0, len(encoded), b"".join(encoded))


def described(code: int, encoded: bytes) -> bytes:
    """Encode a value with a descriptor of one byte."""
    return bytes((0, 0x53, code)) + encoded


def encode_map(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Encode a map of encoded keys and values."""
    return _sized(0xC1, 0xD1, 2 * len(pairs), b"".join(key + value for key, value in pairs))


def _sized(short: int, long: int, count: int, body: bytes) -> bytes:
    if len(body) < 255 and count < 256:
        return bytes((short, len(body) + 1, count)) + body
    return bytes((long,)) + (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + body


def _binary(value: bytes) -> bytes:
    return bytes((0xA0, len(value))) + value if len(value) < 256 else b"\xb0" + len(value).to_bytes(4, "big") + value


def _string(value: str) -> bytes:
    data = value.encode()
    return bytes((0xA1, len(data))) + data if len(data) < 256 else b"\xb1" + len(data).to_bytes(4, "big") + data


def _encode_symbol(value: str) -> bytes:
    data = value.encode("ascii")
    return bytes((0xA3, len(data))) + data if len(data) < 256 else b"\xb3" + len(data).to_bytes(4, "big") + data


def _long(value: int) -> bytes:
    return b"\x55" + struct.pack(">b", value) if -128 <= value < 128 else b"\x81" + struct.pack(">q", value)


def _time(seconds: int) -> bytes:
    milliseconds = 1000 * seconds
    is_one = -(1 << 63) <= milliseconds < 1 << 63
    return b"\x83" + struct.pack(">q", milliseconds) if is_one else _string(str(seconds))


def _decimal(value: Decimal) -> bytes:
    """Encode a decimal of AMQP 0-9-1, which has fewer digits."""
    data = write_decimal(DECIMAL64, value)
    return _string(str(value)) if data is None else bytes((DECIMAL64,)) + data


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _long,
    float: lambda value: b"\x82" + struct.pack(">d", value),
    str: _string,
    bytes: _binary,
    Symbol: _encode_symbol,
    Timestamp: lambda value: b"\x83" + struct.pack(">q", value),
    UUID: lambda value: b"\x98" + value.bytes,
    Seconds: lambda value: _time(int(value)),
    Opaque: lambda value: bytes((value.code,)) + value.data,
    Decimal: _decimal,
    Encoded: bytes,
    Array: lambda value: value.encoded,
    Char: lambda value: b"\x73" + ord(value).to_bytes(4, "big"),
    Int8: lambda value: b"\x51" + struct.pack(">b", value),
    UInt8: ubyte,
    Int16: lambda value: b"\x61" + struct.pack(">h", value),
    UInt16: lambda value: b"\x60" + struct.pack(">H", value),
    Int32: lambda value: (
        b"\x54" + struct.pack(">b", value) if -128 <= value < 128 else b"\x71" + struct.pack(">i", value)
    ),
    UInt32: uint,
    Int64: _long,
    UInt64: ulong,
    Float32: lambda value: b"\x72" + struct.pack(">f", value),
    dict: lambda value: encode_map([(encode(key), encode(each)) for key, each in value.items()]),
    Described: lambda value: b"\0" + encode(value.descriptor) + encode(value.value),
}


def _encode_list(value: list[Any]) -> bytes:
    return b"\x45" if not value else _sized(0xC0, 0xD0, len(value), b"".join(map(encode, value)))


_ENCODERS[list] = _encode_list
