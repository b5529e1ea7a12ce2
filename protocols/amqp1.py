"""AMQP 1.0 as bytes: its types (part 1 of the specification), the sections of messages (part 3), and what comes
before a client's `open` (part 5)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from weft.protocols.amqp.typed_values import (
    DECIMAL64,
    Char,
    Encoded,
    Float32,
    Int8,
    Int16,
    Int32,
    Int64,
    Milliseconds,
    Opaque,
    Symbol,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    write_decimal,
)
from weft.protocols.amqp.typed_values import Milliseconds as Timestamp
from weft.protocols.amqp.typed_values import Timestamp as Seconds
from weft.protocols.errors import Corrupt

# Types of AMQP 1.0 as bytes, and back (part 1 of the specification).
#
# Proton has a codec too, but it keeps only the last of several data sections of a message. This one has the types in
# the sections of a message and in the frames before ``open``.

__all__ = [
    "DEPTH_MAX",
    "Array",
    "Decoded",
    "Described",
    "Opaque",
    "Symbol",
    "Timestamp",
    "decode",
    "described",
    "encode",
    "encode_map",
    "fields",
    "symbols",
    "ubyte",
    "uint",
    "ulong",
]

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
        raise Corrupt(f"{code:#x} is not a character")
    return Char(chr(code))


def _boolean(byte: int) -> bool:
    if byte > 1:
        raise Corrupt(f"{byte} is not a boolean")
    return bool(byte)


_SIMPLE: dict[int, Callable[[bytes, int], Decoded]] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt32(0)),
    0x44: _constant(UInt64(0)),
    0x50: _fixed(">B", UInt8),
    0x51: _fixed(">b", Int8),
    0x52: _fixed(">B", UInt32),
    0x53: _fixed(">B", UInt64),
    0x54: _fixed(">b", Int32),
    0x55: _fixed(">b"),
    0x56: _fixed(">B", _boolean),
    0x60: _fixed(">H", UInt16),
    0x61: _fixed(">h", Int16),
    0x70: _fixed(">I", UInt32),
    0x71: _fixed(">i", Int32),
    0x72: _fixed(">f", Float32),
    0x73: _fixed(">I", _char),
    0x74: _opaque(0x74, 4),
    0x80: _fixed(">Q", UInt64),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _fixed(">q", Timestamp),
    0x84: _opaque(0x84, 8),
    0x94: _opaque(0x94, 16),
    0x98: lambda data, at: (UUID(bytes=_cut(data, at, 16)), at + 16),
    0xA0: _variable(1, bytes),
    0xB0: _variable(4, bytes),
    0xA1: _variable(1, _text),
    0xB1: _variable(4, _text),
    0xA3: _variable(1, _symbol),
    0xB3: _variable(4, _symbol),
}


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
    0x45: _list,
    0xC0: _list,
    0xD0: _list,
    0xC1: _map,
    0xD1: _map,
    0xE0: _array,
    0xF0: _array,
}


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


def _seconds_bytes(seconds: int) -> bytes:
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
    Seconds: lambda value: _seconds_bytes(int(value)),
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


# Messages of AMQP 1.0: their sections as bytes, and back (part 3, section 3.2).

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_NAMES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
"""Descriptors as symbols, which mean the same as the numbers."""
_FIELDS: Final = 13


class Body(NamedTuple):
    """Content of a message."""

    kind: str
    """``data``; ``string`` or ``binary`` for an ``amqp-value`` of that type; ``value`` and ``sequence`` for all
    others."""
    payload: bytes
    """Joined data; text in UTF-8; the encoded value for ``value``, the encoded sections for ``sequence``."""


class Properties(msgspec.Struct, kw_only=True, frozen=True):
    """Properties of a message; None for missing ones (section 3.2.4)."""

    message_id: Any = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    """Milliseconds since 1970."""
    creation_time: int | None = None
    """Likewise."""
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


NO_PROPERTIES: Final = Properties()
_TYPES: Final[tuple[tuple[type, ...], ...]] = (
    (str, bytes, int, UUID),
    (bytes,),
    (str,),
    (str,),
    (str,),
    (str, bytes, int, UUID),
    (str,),
    (str,),
    (int,),
    (int,),
    (str,),
    (int,),
    (str,),
)


class Message(msgspec.Struct, kw_only=True):
    """A message in its parts. Delivery annotations are only for the next node, and are dropped."""

    durable: bool = False
    priority: int | None = None
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0
    annotations: dict[Any, Any] = {}
    """Message annotations."""
    properties: Properties = NO_PROPERTIES
    application: dict[Any, Any] = {}
    """Application properties."""
    body: Body = Body("data", b"")
    footer: dict[Any, Any] = {}


def decode_message(data: bytes) -> Message:
    """Decode a message.

    Raises:
        Corrupt: it is not a message.
    """
    message, at, parts, kind = Message(), 0, [], ""
    while at < len(data):
        begin = at
        code, at = _section(data, at)
        value, end = decode(data, at, 1)
        if code in (DATA, SEQUENCE, VALUE):
            body = _section_body(code, value, data[begin:end], data[at:end])
            if kind and (kind != body.kind or kind not in ("data", "sequence")):
                raise Corrupt("a message with bodies of several kinds")
            kind = body.kind
            parts.append(body.payload)
        elif code == HEADER:
            _header(message, value)
        elif code == PROPERTIES:
            message.properties = _properties(value)
        elif not isinstance(value, dict):
            raise Corrupt(f"section {code:#04x} is not a map")
        elif code == MESSAGE_ANNOTATIONS:
            message.annotations = value
        elif code == APPLICATION_PROPERTIES:
            if not all(isinstance(key, str) for key in value):
                raise Corrupt("an application property whose name is not a string")
            message.application = value
        elif code == FOOTER:
            message.footer = value
        at = end
    if kind:
        message.body = Body(kind, parts[0] if len(parts) == 1 else b"".join(parts))
    return message


def split_message(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the sections before the body of a message, and its payload; None where the message is not made of plain
    sections with one data section at the end. What the sections mean is not checked: ``decode_message`` does."""
    at, size = 0, len(data)
    try:
        while data[at] == 0 and data[at + 1] == 0x53:
            code, kind, values = data[at + 2], data[at + 3], at + 4
            if kind in _SHORT_KINDS:
                end = values + 1 + data[values]
                begin = values + 1
            elif kind in _LONG_KINDS:
                end = values + 4 + int.from_bytes(data[values : values + 4], "big")
                begin = values + 4
            elif kind == 0x45:  # a list without values
                begin = end = values
            else:
                return None
            if code == DATA:
                return (data[:at], data[begin:end]) if end == size and kind in _BINARY_KINDS else None
            at = end
    except IndexError:
        pass
    return None


_BINARY_KINDS: Final = frozenset((0xA0, 0xB0))
_SHORT_KINDS: Final = frozenset((0xA0, 0xC0, 0xC1))
_LONG_KINDS: Final = frozenset((0xB0, 0xD0, 0xD1))
"""Types of sections by the width of their length: binary, list and map."""


def _section(data: bytes, at: int) -> tuple[int, int]:
    if data[at : at + 2] == b"\0\x53" and at + 2 < len(data):
        code, at = data[at + 2], at + 3
    else:
        if data[at] != 0:
            raise Corrupt("a section without a descriptor")
        code, at = decode(data, at + 1, 1)
        code = _NAMES.get(code, 0) if isinstance(code, Symbol) else code
    if not isinstance(code, int) or not HEADER <= code <= FOOTER:
        raise Corrupt(f"a message has no section {code!r}")
    return code, at


def _section_body(code: int, value: Any, section: bytes, encoded: bytes) -> Body:
    if code == DATA:
        if not isinstance(value, bytes):
            raise Corrupt("a data section that is not binary")
        return Body("data", value)
    if code == SEQUENCE:
        if not isinstance(value, list):
            raise Corrupt("a sequence that is not a list")
        return Body("sequence", section)
    if type(value) is str:
        return Body("string", value.encode())
    if isinstance(value, bytes):
        return Body("binary", value)
    return Body("value", encoded)


def _header(message: Message, value: Any) -> None:
    if not isinstance(value, list):
        raise Corrupt("a header that is not a list")
    durable, priority, ttl, first, count = (*value, None, None, None, None, None)[:5]
    if not all(each is None or isinstance(each, int) for each in (durable, priority, ttl, first, count)):
        raise Corrupt("a header with values of other types")
    message.durable, message.first_acquirer = bool(durable), bool(first)
    message.priority, message.ttl_ms, message.delivery_count = priority, ttl, count or 0


def _properties(value: Any) -> Properties:
    if not isinstance(value, list) or len(value) > _FIELDS:
        raise Corrupt("properties that are not a list of at most 13 fields")
    for each, allowed in zip(value, _TYPES, strict=False):
        if each is not None and (not isinstance(each, allowed) or isinstance(each, bool)):
            raise Corrupt(f"a property of type {type(each).__name__}")
    return Properties(**dict(zip(Properties.__struct_fields__, value, strict=False)))


def encode_message(message: Message) -> bytes:
    """Encode a message."""
    return b"".join(message_parts(message))


def message_parts(message: Message) -> list[bytes]:
    """Encode a message in parts; one of them is its body's payload, not copied."""
    header = [
        b"\x41" if message.durable else b"\x40",
        b"\x40" if message.priority is None else ubyte(message.priority),
        b"\x40" if message.ttl_ms is None else uint(message.ttl_ms),
        b"\x41" if message.first_acquirer else b"\x40",
        uint(message.delivery_count) if message.delivery_count else b"\x40",
    ]
    parts = [described(HEADER, fields(header))]
    if message.annotations:
        pairs = [(encode(key), encode(value)) for key, value in message.annotations.items()]
        parts.append(described(MESSAGE_ANNOTATIONS, encode_map(pairs)))
    if message.properties is not NO_PROPERTIES:
        parts.append(described(PROPERTIES, _encode_properties(message.properties)))
    if message.application:
        pairs = [(encode(key), encode(value)) for key, value in message.application.items()]
        parts.append(described(APPLICATION_PROPERTIES, encode_map(pairs)))
    parts += _body_parts(message.body)
    if message.footer:
        pairs = [(encode(key), encode(value)) for key, value in message.footer.items()]
        parts.append(described(FOOTER, encode_map(pairs)))
    return parts


def _body_parts(body: Body) -> list[bytes]:
    if body.kind == "sequence":
        return [body.payload]
    if body.kind == "value":
        return [described(VALUE, b""), body.payload]
    short, long = (0xA1, 0xB1) if body.kind == "string" else (0xA0, 0xB0)
    size = len(body.payload)
    head = bytes((short, size)) if size < 256 else bytes((long,)) + size.to_bytes(4, "big")
    return [described(VALUE if body.kind in ("string", "binary") else DATA, head), body.payload]


def _encode_properties(found: Properties) -> bytes:
    return fields(
        [
            _identifier(found.message_id),
            encode(found.user_id),
            encode(found.to),
            encode(found.subject),
            encode(found.reply_to),
            _identifier(found.correlation_id),
            _symbol_bytes(found.content_type),
            _symbol_bytes(found.content_encoding),
            _timestamp_bytes(found.absolute_expiry_time),
            _timestamp_bytes(found.creation_time),
            encode(found.group_id),
            b"\x40" if found.group_sequence is None else uint(found.group_sequence & 0xFFFF_FFFF),
            encode(found.reply_to_group_id),
        ]
    )


def _identifier(value: Any) -> bytes:
    if isinstance(value, int):
        return ulong(value) if value >= 0 else encode(str(int(value)))
    return encode(value)


def _symbol_bytes(value: str | None) -> bytes:
    return encode(None if value is None else Symbol(value.encode("ascii", "replace").decode()))


def _timestamp_bytes(value: int | None) -> bytes:
    return encode(None if value is None else Milliseconds(value))


# Bytes before an AMQP 1.0 client's ``open``: protocol headers and SASL (part 5 of the specification).
#
# Proton checks a password while it handles its frame. A node checks passwords in threads, one after the other, so
# SASL is handled here, and the engine gets the connection afterwards.

AMQP: Final = b"AMQP\0\1\0\0"
"""Protocol header of AMQP 1.0."""
SASL: Final = b"AMQP\3\1\0\0"
"""Protocol header of the SASL layer before it."""
FRAME_BYTES_MAX: Final = 4096
"""Longest frame before the client has logged in. Each side must accept 512 bytes (section 5.3.1)."""
HEADER_BYTES: Final = 8

_INIT: Final = 0x41
_AMQP_FRAME, _SASL_FRAME = 0, 1


class SaslInit(NamedTuple):
    """The client's choice of a mechanism, with its first response."""

    mechanism: str
    response: bytes


class Plain(NamedTuple):
    """Response of the mechanism PLAIN (RFC 4616)."""

    username: str
    password: bytes


def frame_size(data: bytes | bytearray, at: int, size_max: int) -> int | None:
    """Return the length of the frame at ``data[at:]``; None while its length is incomplete.

    Raises:
        Corrupt: it is longer than ``size_max``, or shorter than its header.
    """
    if len(data) - at < 4:
        return None
    size = int.from_bytes(data[at : at + 4], "big")
    if not HEADER_BYTES <= size <= size_max:
        raise Corrupt(f"a frame of {size} bytes; expected {HEADER_BYTES} to {size_max}")
    return size


def sasl_init(frame: bytes) -> SaslInit:
    """Decode the only SASL frame of a client with these mechanisms.

    Raises:
        Corrupt: it is another frame, or not a frame.
    """
    offset = frame[4] * 4
    if frame[5] != _SASL_FRAME or offset < HEADER_BYTES or offset > len(frame):
        raise Corrupt("expected a SASL frame")
    value, _ = decode(frame, offset)
    if not isinstance(value, Described) or value.descriptor not in (_INIT, "amqp:sasl-init:list"):
        raise Corrupt("expected sasl-init")
    found: list[Any] = value.value if isinstance(value.value, list) else []
    mechanism, response = (*found, None, None)[:2]
    if not isinstance(mechanism, str) or not isinstance(response, bytes | None):
        raise Corrupt("sasl-init without a mechanism")
    return SaslInit(mechanism, response or b"")


def plain(response: bytes) -> Plain:
    """Decode user name and password.

    Raises:
        Corrupt: they do not have the form of PLAIN, or the client wants to act for another user.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or not parts[1]:
        raise Corrupt("a response of PLAIN has a user name and a password")
    try:
        other, username = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        raise Corrupt("a user name is not in UTF-8") from None
    if other not in ("", username):
        raise Corrupt("no user may act for another")
    return Plain(username, parts[2])


def mechanisms(names: list[str]) -> bytes:
    """Encode the frame that offers mechanisms."""
    return _frame(_SASL_FRAME, described(0x40, fields([symbols(names)])))


def outcome(code: int) -> bytes:
    """Encode the outcome of SASL: 0 for success, 1 for wrong credentials, 4 for a temporary error."""
    return _frame(_SASL_FRAME, described(0x44, fields([ubyte(code)])))


def refusal(container: str, condition: str, description: str) -> bytes:
    """Encode a protocol header, ``open`` and ``close`` with an error: for a connection without an engine."""
    opened = described(0x10, fields([encode(container)]))
    error = described(0x1D, fields([encode(Symbol(condition)), encode(description)]))
    return AMQP + _frame(_AMQP_FRAME, opened) + _frame(_AMQP_FRAME, described(0x18, fields([error])))


def _frame(kind: int, body: bytes) -> bytes:
    return (len(body) + HEADER_BYTES).to_bytes(4, "big") + bytes((2, kind, 0, 0)) + body
