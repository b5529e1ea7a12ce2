"""Content: a method with properties and a body, in as many frames as needed (section 4.2.6); properties as headers
of a record, and back."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from weft.protocols.amqp.frames import BODY, END, HEADER, METHOD, OVERHEAD_BYTES, AmqpError, ReplyCode
from weft.protocols.amqp.methods import FieldTable, read_table, text_or_bytes, write_table
from weft.protocols.amqp.typed_values import TYPES, Kind, as_header, from_header, kinds_header, kinds_of
from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs, HeaderValue
from weft.protocols.message_headers import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    EXPIRES,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    SENT,
    SUBJECT,
    USER_ID,
    own_name,
    stored_name,
)

# Properties of content: from a content header to the headers of a record, and back.
#
# docs/reference/message-headers.md has the table of names. A field of ``headers`` keeps its name, and its type if a
# record's header has that type; ``amqp.types`` has the other types (``typed_values``), so that a client of AMQP gets
# the same values as were sent.

APP_ID: Final = "amqp.app-id"
CLUSTER_ID: Final = "amqp.cluster-id"
EXPIRATION: Final = "amqp.expiration"
"""Milliseconds as the publisher wrote them; ``weft.expires`` has the resulting time."""

FIELDS_MAX: Final = HEADER_PAIRS_MAX - 24
"""Maximum number of fields of ``headers`` in one message: beside the other headers, a record has no room for more."""
BASIC: Final = 60
EXPIRATION_MS_MAX: Final = (1 << 32) - 1
_SECOND_NS = 1_000_000_000
_MS_NS = 1_000_000
_INT64_MAX = (1 << 63) - 1
_FLAGS = struct.Struct(">H")
_MORE_FLAGS = 0b11
"""Bits without a property: one means that another word of flags follows, the other is unused."""


class ContentHeaders(NamedTuple):
    """Properties as headers of a record."""

    headers: HeaderPairs
    expires_ms: int | None
    """Milliseconds that the message may wait; None for no limit."""
    user_id: str | None
    """User name that the publisher claims."""

    def at(self, now_ns: int) -> HeaderPairs:
        """Return the headers of a message that arrives now."""
        if self.expires_ms is None:
            return self.headers
        return (*self.headers, (EXPIRES, min(now_ns + self.expires_ms * _MS_NS, _INT64_MAX)))


def _short(data: bytes, at: int, name: str) -> tuple[bytes, int]:
    if at >= len(data) or at + 1 + data[at] > len(data):
        raise _malformed(f"{name} passes the end of the content header")
    start = at + 1
    end = start + data[at]
    return data[start:end], end


def _text(data: bytes, at: int, name: str) -> tuple[HeaderValue, int]:
    value, at = _short(data, at, name)
    try:
        return value.decode(), at
    except UnicodeDecodeError:
        raise _malformed(f"{name} is not valid UTF-8") from None


def _identifier(data: bytes, at: int, name: str) -> tuple[HeaderValue, int]:
    value, at = _short(data, at, name)
    return text_or_bytes(value), at


def _octet(data: bytes, at: int, name: str) -> tuple[HeaderValue, int]:
    if at >= len(data):
        raise _malformed(f"{name} passes the end of the content header")
    return data[at], at + 1


def _time(data: bytes, at: int, name: str) -> tuple[HeaderValue, int]:
    if at + 8 > len(data):
        raise _malformed(f"{name} passes the end of the content header")
    return min(int.from_bytes(data[at : at + 8], "big"), _INT64_MAX // _SECOND_NS) * _SECOND_NS, at + 8


_Read = Callable[[bytes, int, str], tuple[HeaderValue, int]]
_PROPERTIES: tuple[tuple[int, str, str, _Read], ...] = (
    (1 << 15, CONTENT_TYPE, "content-type", _text),
    (1 << 14, CONTENT_ENCODING, "content-encoding", _text),
    (1 << 13, "", "headers", _text),
    (1 << 12, DELIVERY_MODE, "delivery-mode", _octet),
    (1 << 11, PRIORITY, "priority", _octet),
    (1 << 10, CORRELATION_ID, "correlation-id", _identifier),
    (1 << 9, REPLY_TO, "reply-to", _text),
    (1 << 8, EXPIRATION, "expiration", _text),
    (1 << 7, MESSAGE_ID, "message-id", _identifier),
    (1 << 6, SENT, "timestamp", _time),
    (1 << 5, SUBJECT, "type", _text),
    (1 << 4, USER_ID, "user-id", _text),
    (1 << 3, APP_ID, "app-id", _text),
    (1 << 2, CLUSTER_ID, "cluster-id", _text),
)
"""(bit, name of the header, name of the property, reader), in the order of the wire. ``headers`` is read apart."""
_FIELDS_BYTES_KNOWN_MAX = 256
"""Longest table of ``headers`` whose decoded fields are cached."""
_BITS = {name: bit for bit, name, _, _ in _PROPERTIES}
_HEADERS_BIT = 1 << 13


def read_properties(data: bytes) -> ContentHeaders:
    """Return the properties of a content header, from its flags on.

    Raises:
        AmqpError: it is not well formed, or a value is not valid: an expiration that is not a number of milliseconds,
            or too many fields.
    """
    if len(data) < 2:
        raise _malformed("a content header without flags")
    (flags,) = _FLAGS.unpack_from(data)
    if flags & _MORE_FLAGS:
        raise _malformed("a content header with flags of unknown properties")
    at = 2
    pairs: list[tuple[str, HeaderValue]] = []
    expires_ms = user_id = None
    for bit, name, called, read in _present(flags):
        if bit == _HEADERS_BIT:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            fields = data[at:end]
            pairs += _short_fields(fields) if len(fields) <= _FIELDS_BYTES_KNOWN_MAX else _fields(fields)
            at = end
            continue
        value, at = read(data, at, called)
        pairs.append((name, value))
        if name == EXPIRATION:
            expires_ms = _milliseconds(str(value))
        elif name == USER_ID:
            user_id = str(value)
    if at != len(data):
        raise _malformed(f"{len(data) - at} octets behind the properties")
    return ContentHeaders(tuple(pairs), expires_ms, user_id)


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[tuple[int, str, str, _Read], ...]:
    """Return the properties that a message with these flags has."""
    return tuple(each for each in _PROPERTIES if flags & each[0])


def _fields(data: bytes) -> tuple[tuple[str, HeaderValue], ...]:
    """Return the headers in a table, which is all of ``data``."""
    table, _ = read_table(data, 0, len(data))
    return tuple(_stored(table))


_short_fields = lru_cache(maxsize=256)(_fields)
"""The same with a cache, for equal tables in messages with different other properties."""


def write_properties(headers: HeaderPairs, now_ns: int = 0) -> bytes:
    """Return flags and properties for a record's headers. Headers without a counterpart in AMQP are left out.

    Args:
        now_ns: present time, for the remaining wait of a message from another protocol that expires.
    """
    if not headers:
        return b"\0\0"
    flags, parts, own = 0, dict[int, bytes](), list[tuple[str, HeaderValue]]()
    for name, value in headers:
        bit = _BITS.get(name)
        if bit is not None and name:
            data = _written(name, value)
            if data is not None:
                flags |= bit
                parts[bit] = data
        elif name == EXPIRES and type(value) is int and _BITS[EXPIRATION] not in parts:
            left_ms = max(0, min((value - now_ns) // _MS_NS, EXPIRATION_MS_MAX))
            parts[_BITS[EXPIRATION]] = _sized(str(left_ms).encode())
            flags |= _BITS[EXPIRATION]
        elif own_name(name) is not None:
            own.append((name, value))
    if own:
        table = _write_own(own, kinds_of(headers))
        if table is not None:
            flags |= _HEADERS_BIT
            parts[_HEADERS_BIT] = table
    return _FLAGS.pack(flags) + b"".join(parts[bit] for bit in sorted(parts, reverse=True))


# --- fields of `headers`


def _stored(table: FieldTable) -> Iterable[tuple[str, HeaderValue]]:
    if len(table) > FIELDS_MAX:
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED, f"{len(table)} fields in headers; a message may have {FIELDS_MAX}"
        )
    kinds: dict[str, Kind] = {}
    for name, value in table.items():
        stored = stored_name(name)
        plain, kind = as_header(value)
        if kind is not None:
            kinds[stored] = kind
        yield stored, plain
    yield from kinds_header(kinds)


def _write_own(own: list[tuple[str, HeaderValue]], kinds: Mapping[str, Kind]) -> bytes | None:
    """Return the field table of headers by their stored names."""
    table: FieldTable = {(own_name(name) or name): from_header(value, kinds.get(name)) for name, value in own}
    try:
        return write_table(table)
    except (ValueError, struct.error):
        # A field table cannot hold a name or value of another protocol: send the other headers without it.
        possible: FieldTable = {}
        for name, value in table.items():
            try:
                write_table({name: value})
            except (ValueError, struct.error):
                continue
            possible[name] = value
        return write_table(possible) if possible else None


# --- single properties


def _milliseconds(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > EXPIRATION_MS_MAX:
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f"expiration {text!r} is not a number of milliseconds from 0 to {EXPIRATION_MS_MAX}",
        )
    return int(text)


def _written(name: str, value: HeaderValue) -> bytes | None:
    """Return a property; None for a value of another type, which another protocol may have stored."""
    if name == SENT:
        is_time = type(value) is int and value >= 0
        return (int(value) // _SECOND_NS).to_bytes(8, "big") if is_time else None  # type: ignore[arg-type]
    if name in (DELIVERY_MODE, PRIORITY):
        return bytes((min(value, 255),)) if type(value) is int and value >= 0 else None
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, str):
        data = value.encode()
    elif type(value) is int:  # a message-id of AMQP 1.0
        data = str(value).encode()
    else:
        return None
    return _sized(data) if len(data) <= 255 else None


def _sized(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def _malformed(reason: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, reason)


# Content: a method with properties and a body, in as many frames as needed (section 4.2.6).

_CONTENT = struct.Struct(">HHQ")
"""Class, weight, body size."""
CONTENT_HEAD_BYTES: Final = _CONTENT.size
COPIED_BYTES_MAX = 2048
"""Size up to which copying a body is cheaper than a part of its own."""
_HEAD = struct.Struct(">BHIHHQ")
_BODY_HEAD = struct.Struct(">BHI")
_SIZE, _BODY_SIZE, _TAG = struct.Struct(">Q"), struct.Struct(">I"), struct.Struct(">Q?")


def read_content_header(payload: bytes) -> tuple[int, bytes]:
    """Return the size of the body, and the properties from their flags on.

    Raises:
        AmqpError: it is not well formed, or of another class than basic.
    """
    if len(payload) < CONTENT_HEAD_BYTES + 2:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, "a content header is shorter than its fields")
    class_id, weight, size = _CONTENT.unpack_from(payload)
    if class_id != BASIC:
        # "[...] the server MUST raise a connection exception with reply code 501 (frame error)", 4.2.6.1.
        raise AmqpError(ReplyCode.FRAME_ERROR, f"a content header of class {class_id}; content is of class {BASIC}")
    if weight:
        raise AmqpError(ReplyCode.FRAME_ERROR, f"a content header of weight {weight}; it must be 0")
    return size, payload[CONTENT_HEAD_BYTES:]


def write_content(channel: int, properties: bytes, body: bytes, frame_bytes_max: int) -> bytes:
    """Return header and body frames of a message.

    Args:
        properties: from their flags on.
        frame_bytes_max: longest frame that the peer accepts.
    """
    return b"".join(content_parts(channel, properties, body, frame_bytes_max))


def content_parts(channel: int, properties: bytes, body: bytes, frame_bytes_max: int) -> list[bytes | memoryview]:
    """Return header and body frames in parts, with views of a long body, which may be for many consumers."""
    size = len(body)
    head = _HEAD.pack(HEADER, channel, CONTENT_HEAD_BYTES + len(properties), BASIC, 0, size) + properties + END
    piece = frame_bytes_max - OVERHEAD_BYTES
    if size <= COPIED_BYTES_MAX and size <= piece:
        return [head + _BODY_HEAD.pack(BODY, channel, size) + body + END if size else head]
    parts: list[bytes | memoryview] = []
    view = memoryview(body)
    for at in range(0, size, piece):
        part = view[at : at + piece]
        parts += (head + _BODY_HEAD.pack(BODY, channel, len(part)), part)
        head = END
    parts.append(END)
    return parts


class DeliveryForm:
    """Frames of deliveries that differ only in tag, flag and body.

    Args:
        head: basic.deliver up to its delivery tag.
        origin: what follows its flag.
        properties: from their flags on.
        frame_bytes_max: longest frame that the peer accepts.
    """

    __slots__ = (
        "_after",
        "_before",
        "_body",
        "_channel",
        "_frame_bytes_max",
        "_origin",
        "_pack",
        "_properties",
        "short_max",
    )

    def __init__(self, channel: int, head: bytes, origin: bytes, properties: bytes, frame_bytes_max: int) -> None:
        self._before = _BODY_HEAD.pack(METHOD, channel, len(head) + _TAG.size + len(origin)) + head
        self._origin = origin + END
        head_frame = _HEAD.pack(HEADER, channel, CONTENT_HEAD_BYTES + len(properties), BASIC, 0, 0)
        self._after = origin + END + head_frame[: -_SIZE.size]
        self._body = properties + END + _BODY_HEAD.pack(BODY, channel, 0)[: -_BODY_SIZE.size]
        layout = f">{len(self._before)}sQ?{len(self._after)}sQ{len(self._body)}sI"
        self._pack = struct.Struct(layout).pack
        self._channel, self._properties, self._frame_bytes_max = channel, properties, frame_bytes_max
        self.short_max = min(COPIED_BYTES_MAX, frame_bytes_max - OVERHEAD_BYTES)
        """Length of a body up to which ``write`` serves."""

    def write(self, tag: int, body: bytes, *, redelivered: bool) -> bytes:
        """Return method and content of a delivery."""
        size = len(body)
        found: bytes = self._pack(self._before, tag, redelivered, self._after, size, self._body, size)
        return found + body + END if size else found[: -_BODY_HEAD.size]

    def parts(self, tag: int, body: bytes, *, redelivered: bool) -> list[bytes | memoryview]:
        """Return them in parts, as ``content_parts`` does."""
        content = content_parts(self._channel, self._properties, body, self._frame_bytes_max)
        return [self._before + _TAG.pack(tag, redelivered) + self._origin, *content]


# Routing keys beside the one of basic.publish: the fields ``CC`` and ``BCC`` of ``headers``, an extension of
# RabbitMQ.
#
# Both are arrays of text. Consumers see ``CC``, but not ``BCC``.

SEEN: Final = "CC"
UNSEEN: Final = "BCC"
KEYS_MAX: Final = 256
"""Maximum number of further keys of one message: each is a look-up of its own."""
KEY_BYTES_MAX: Final = 255
"""Longest key: a short string."""


def read_further_keys(headers: HeaderPairs) -> tuple[tuple[str, ...], HeaderPairs]:
    """Return the further keys of a message, and its headers without those hidden from consumers.

    Raises:
        AmqpError: they are not lists of text, too long, or too many.
    """
    by_name = dict(headers)
    if SEEN not in by_name and UNSEEN not in by_name:
        return (), headers
    types = dict(kinds_of(headers))
    keys = tuple(key for name in (SEEN, UNSEEN) if name in by_name for key in _list(by_name[name], types, name))
    if len(keys) > KEYS_MAX:
        raise _invalid(f"CC and BCC have {len(keys)} keys; a message may have {KEYS_MAX}")
    if UNSEEN not in by_name:
        return keys, headers
    types.pop(UNSEEN, None)
    left = [pair for pair in headers if pair[0] not in {UNSEEN, TYPES}]
    return keys, (*left, *kinds_header(types))


def _list(value: object, types: dict[str, Any], name: str) -> list[str]:
    found = json.loads(str(value)) if types.get(name) == "A" else None
    if not isinstance(found, list) or not all(isinstance(key, str) for key in found):
        raise _invalid(f"the header {name} must be an array of routing keys as text")
    if any(len(key.encode()) > KEY_BYTES_MAX for key in found):
        raise _invalid(f"a routing key in the header {name} has more than {KEY_BYTES_MAX} bytes")
    return found


def _invalid(reason: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, reason)
