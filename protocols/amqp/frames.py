"""Frames: type, channel, size, payload, end octet (section 2.3.5 of the specification)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from weft.protocols.amqp.errors import AmqpError, ReplyCode

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
HEAD_BYTES: Final = 7
OVERHEAD_BYTES: Final = 8
"""Bytes of a frame beside its payload."""
FRAME_BYTES_MIN: Final = 4096
"""Longest frame that every peer must accept (``frame-min-size``)."""
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
END: Final = b"\xce"
_HEAD = struct.Struct(">BHI")


class Frame(NamedTuple):
    """One frame."""

    kind: int
    channel: int
    payload: bytes


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame's bytes."""
    return _HEAD.pack(kind, channel, len(payload)) + payload + END


def frame_end(data: bytes | bytearray, at: int, frame_bytes_max: int) -> int | None:
    """Return the end of the frame at ``at``, perhaps beyond ``data``; None while its head is incomplete.

    Raises:
        AmqpError: it is longer than allowed.
    """
    if len(data) - at < HEAD_BYTES:
        return None
    size = int.from_bytes(data[at + 3 : at + 7], "big")
    if size > frame_bytes_max - OVERHEAD_BYTES:
        raise AmqpError(
            ReplyCode.FRAME_ERROR, f"a frame of {size + OVERHEAD_BYTES} bytes; {frame_bytes_max} are agreed on"
        )
    return at + OVERHEAD_BYTES + size


def read_frame(data: bytes, at: int, frame_bytes_max: int) -> tuple[Frame, int] | None:
    """Return the frame at ``at`` and its end; None while it is incomplete.

    Raises:
        AmqpError: it is longer than allowed, or lacks the end octet.
    """
    end = frame_end(data, at, frame_bytes_max)
    if end is None or end > len(data):
        return None
    if data[end - 1] != FRAME_END:
        raise AmqpError(ReplyCode.FRAME_ERROR, f"a frame ends with octet {data[end - 1]:#04x}, not with 0xce")
    kind, channel, _ = _HEAD.unpack_from(data, at)
    return Frame(kind, channel, data[at + HEAD_BYTES : end - 1]), end
