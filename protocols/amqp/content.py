"""Content: a method with properties and a body, in as many frames as needed (section 4.2.6)."""

from __future__ import annotations

import struct
from typing import Final

from weft.protocols.amqp.errors import AmqpError, ReplyCode
from weft.protocols.amqp.frames import BODY, END, HEADER, OVERHEAD_BYTES
from weft.protocols.amqp.properties import BASIC

_CONTENT = struct.Struct(">HHQ")
"""Class, weight, body size."""
CONTENT_HEAD_BYTES: Final = _CONTENT.size
COPIED_BYTES_MAX = 2048
"""Size up to which copying a body is cheaper than a part of its own."""
_HEAD = struct.Struct(">BHIHHQ")
_BODY_HEAD = struct.Struct(">BHI")


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
