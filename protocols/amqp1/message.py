"""Messages of AMQP 1.0: their sections as bytes, and back (part 3, section 3.2)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from weft.protocols.amqp1 import types
from weft.protocols.amqp1.types import Symbol, Timestamp, decode, described, encode
from weft.protocols.errors import Corrupt

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
    "amqp:header:list": HEADER, "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS, "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES, "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE, "amqp:amqp-value:*": VALUE, "amqp:footer:map": FOOTER,
}  # fmt: skip
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
    (str, bytes, int, UUID), (bytes,), (str,), (str,), (str,), (str, bytes, int, UUID), (str,), (str,),
    (int,), (int,), (str,), (int,), (str,),
)  # fmt: skip


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
            body = _body(code, value, data[begin:end], data[at:end])
            if kind and (kind != body.kind or kind not in ("data", "sequence")):
                raise Corrupt("a message with bodies of several kinds")
            kind = body.kind
            parts.append(body.payload)
        elif code == HEADER:
            _header(message, value)
        elif code == PROPERTIES:
            message.properties = _properties(value)
        elif not isinstance(value, dict):
            raise Corrupt(f"section {code:#04x} is no map")
        elif code == MESSAGE_ANNOTATIONS:
            message.annotations = value
        elif code == APPLICATION_PROPERTIES:
            if not all(isinstance(key, str) for key in value):
                raise Corrupt("an application property whose name is no text")
            message.application = value
        elif code == FOOTER:
            message.footer = value
        at = end
    if kind:
        message.body = Body(kind, parts[0] if len(parts) == 1 else b"".join(parts))
    return message


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


def _body(code: int, value: Any, section: bytes, encoded: bytes) -> Body:
    if code == DATA:
        if not isinstance(value, bytes):
            raise Corrupt("a data section that is no binary")
        return Body("data", value)
    if code == SEQUENCE:
        if not isinstance(value, list):
            raise Corrupt("a sequence that is no list")
        return Body("sequence", section)
    if type(value) is str:
        return Body("string", value.encode())
    if isinstance(value, bytes):
        return Body("binary", value)
    return Body("value", encoded)


def _header(message: Message, value: Any) -> None:
    if not isinstance(value, list):
        raise Corrupt("a header that is no list")
    durable, priority, ttl, first, count = (*value, None, None, None, None, None)[:5]
    if not all(each is None or isinstance(each, int) for each in (durable, priority, ttl, first, count)):
        raise Corrupt("a header with values of other types")
    message.durable, message.first_acquirer = bool(durable), bool(first)
    message.priority, message.ttl_ms, message.delivery_count = priority, ttl, count or 0


def _properties(value: Any) -> Properties:
    if not isinstance(value, list) or len(value) > _FIELDS:
        raise Corrupt("properties that are no list of 13 fields")
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
        b"\x40" if message.priority is None else types.ubyte(message.priority),
        b"\x40" if message.ttl_ms is None else types.uint(message.ttl_ms),
        b"\x41" if message.first_acquirer else b"\x40",
        types.uint(message.delivery_count) if message.delivery_count else b"\x40",
    ]
    parts = [described(HEADER, types.fields(header))]
    if message.annotations:
        pairs = [(encode(key), encode(value)) for key, value in message.annotations.items()]
        parts.append(described(MESSAGE_ANNOTATIONS, types.encode_map(pairs)))
    if message.properties is not NO_PROPERTIES:
        parts.append(described(PROPERTIES, _encode_properties(message.properties)))
    if message.application:
        pairs = [(encode(key), encode(value)) for key, value in message.application.items()]
        parts.append(described(APPLICATION_PROPERTIES, types.encode_map(pairs)))
    parts += _body_parts(message.body)
    if message.footer:
        pairs = [(encode(key), encode(value)) for key, value in message.footer.items()]
        parts.append(described(FOOTER, types.encode_map(pairs)))
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
    return types.fields(
        [
            _identifier(found.message_id), encode(found.user_id), encode(found.to), encode(found.subject),
            encode(found.reply_to), _identifier(found.correlation_id), _symbol(found.content_type),
            _symbol(found.content_encoding), _time(found.absolute_expiry_time), _time(found.creation_time),
            encode(found.group_id),
            b"\x40" if found.group_sequence is None else types.uint(found.group_sequence & 0xFFFF_FFFF),
            encode(found.reply_to_group_id),
        ]
    )  # fmt: skip


def _identifier(value: Any) -> bytes:
    if isinstance(value, int):
        return types.ulong(value) if value >= 0 else encode(str(int(value)))
    return encode(value)


def _symbol(value: str | None) -> bytes:
    return encode(None if value is None else Symbol(value.encode("ascii", "replace").decode()))


def _time(value: int | None) -> bytes:
    return encode(None if value is None else Timestamp(value))
