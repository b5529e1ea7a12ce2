"""Frames of a replication link (docs/reference/formats/link.md).

A frame is a type byte, a u32 length and a body: msgpack for control, a lane number and batches as stored for DATA.
Frames of one connection and direction pass through one streaming zstd context, flushed at each send, so that small
sends compress against what went before. Every length and ratio that a peer can choose is bounded.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec
import zstandard

from protocols.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from protocols.batch import BatchHeader, Buffer, verify
from protocols.errors import Corrupt, Truncated

PROTOCOL_VERSION = 1
_FRAME = struct.Struct("<BI")
FRAME_HEADER_BYTES = _FRAME.size
_LANE = struct.Struct("<I")
FRAME_BYTES_MAX = 80 << 20
"""Longest frame body: the largest batch fits. A receiver names a smaller ``batch_bytes_max`` in WELCOME."""
LANES_MAX = 4096
STREAM_WINDOW_LOG_MAX = 23
"""Largest zstd window accepted from a peer: 8 MiB of memory per connection and direction."""
PENDING_BYTES_MAX = FRAME_BYTES_MAX + (32 << 20)
"""Most uncompressed bytes that a receiver holds before it takes frames out."""
_FEED_BYTES = 1024
"""Compressed bytes given to the decompressor at a time. A 4-byte block can stand for 128 KiB, so this bounds what one
call can allocate (32 MiB) before the total is looked at."""


class FrameType(IntEnum):
    """The numbers are on the wire. THROTTLE, PULL, CONFIG and PUBLISH are reserved for later releases."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    DATA = 4
    GAP = 5
    MARK = 6
    ACK = 7
    PING = 8
    PONG = 9
    THROTTLE = 10
    PULL = 11
    CONFIG = 12
    PUBLISH = 13


class RefuseCode(IntEnum):
    """Why a hub does not take a link. The numbers are on the wire."""

    VERSION = 1
    UNAUTHORISED = 2
    IDENTITY_CONFLICT = 3
    BAD_HELLO = 4
    OVERLOADED = 5


class HelloLane(msgspec.Struct, frozen=True):
    """A lane that the sender offers; later frames call it ``lane``."""

    lane: int
    stream: str
    ranges: list[tuple[int, int]]
    """What the sender's log holds now."""
    topics: list[str] = []
    """The stream's topic patterns, from which the table takes its named columns."""


class Hello(msgspec.Struct, frozen=True):
    """First frame of the sender."""

    version: int
    tenant: str
    edge: str
    log_id: int
    epoch: int
    """Proposed; persisted by the sender before it is sent. The receiver takes only a higher one than it knows."""
    lanes: list[HelloLane]
    clock: int
    """Sender's wall clock, ns."""
    software: str


class WelcomeLane(msgspec.Struct, frozen=True):
    """What the receiver holds of a lane, gaps included: nothing in ``ranges`` need be sent."""

    lane: int
    ranges: list[tuple[int, int]]


class Welcome(msgspec.Struct, frozen=True):
    """First frame of the receiver, when it takes the link."""

    version: int
    cluster_id: str
    lanes: list[WelcomeLane]
    window_bytes: int
    """Bytes of DATA frames that may be on the way without an ACK."""
    batch_bytes_max: int
    clock: int
    software: str


class Refuse(msgspec.Struct, frozen=True):
    """Instead of WELCOME, or at any later time, before the receiver closes: why, and what to do."""

    code: int
    message: str
    advice: str


class Data(msgspec.Struct, frozen=True):
    """Batches of one lane as stored, oldest first."""

    lane: int
    batches: Buffer


class Gap(msgspec.Struct, frozen=True):
    """Records [first, end) of a lane can never come (reason: ``protocols.segment.GapReason``)."""

    lane: int
    first: int
    end: int
    reason: int


class LaneMark(msgspec.Struct, frozen=True):
    """All records the lane took in up to ``time`` are below ``seq``."""

    lane: int
    time: int
    seq: int


class Ack(msgspec.Struct, frozen=True):
    """``ranges`` of a lane are durable at the receiver (records or gap notices): the sender may forget them."""

    lane: int
    ranges: list[tuple[int, int]]


class Ping(msgspec.Struct, frozen=True):
    """``sent`` is the asker's monotonic clock, ns; it comes back in the PONG."""

    sent: int


class Pong(msgspec.Struct, frozen=True):
    """Answer to a PING, with the answerer's wall clock for measuring the offset."""

    sent: int
    clock: int


Frame = Hello | Welcome | Refuse | Data | Gap | LaneMark | Ack | Ping | Pong

_CONTROL: dict[FrameType, type[Hello | Welcome | Refuse | Gap | LaneMark | Ack | Ping | Pong]] = {
    FrameType.HELLO: Hello,
    FrameType.WELCOME: Welcome,
    FrameType.REFUSE: Refuse,
    FrameType.GAP: Gap,
    FrameType.MARK: LaneMark,
    FrameType.ACK: Ack,
    FrameType.PING: Ping,
    FrameType.PONG: Pong,
}
_TYPE_OF = {kind: number for number, kind in _CONTROL.items()}
_DECODERS = {number: msgspec.msgpack.Decoder(kind) for number, kind in _CONTROL.items()}


def encode_frame(frame: Frame) -> bytes:
    """One frame, uncompressed."""
    if isinstance(frame, Data):
        head = _FRAME.pack(FrameType.DATA, _LANE.size + len(frame.batches)) + _LANE.pack(frame.lane)
        return b"".join((head, frame.batches))
    body = msgspec.msgpack.encode(frame)
    return _FRAME.pack(_TYPE_OF[type(frame)], len(body)) + body


def decode_frame(data: Buffer, offset: int = 0) -> tuple[Frame, int]:
    """Decode the frame at ``offset``.

    Returns:
        The frame and the offset behind it. A DATA frame's batches are a view of ``data``.

    Raises:
        Truncated: the frame is not complete yet.
        Corrupt: an unknown type, a length over ``FRAME_BYTES_MAX``, or a body that is not what the type says.
    """
    if len(data) - offset < FRAME_HEADER_BYTES:
        raise Truncated("a frame header is not complete")
    number, length = _FRAME.unpack_from(data, offset)
    if length > FRAME_BYTES_MAX:
        raise Corrupt(f"a frame of {length} bytes; the limit is {FRAME_BYTES_MAX}")
    start, end = offset + FRAME_HEADER_BYTES, offset + FRAME_HEADER_BYTES + length
    if number != FrameType.DATA and number not in _DECODERS:
        raise Corrupt(f"a frame of unknown type {number}")
    if end > len(data):
        raise Truncated("a frame body is not complete")
    body = memoryview(data)[start:end]
    if number == FrameType.DATA:
        if length < _LANE.size + BATCH_HEADER_BYTES:
            raise Corrupt(f"a DATA frame of {length} bytes holds no batch")
        return Data(_LANE.unpack_from(body)[0], body[_LANE.size :]), end
    try:
        return _DECODERS[FrameType(number)].decode(body), end
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a {FrameType(number).name} frame does not decode: {error}") from error


def split_batches(batches: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """The batches of a DATA frame, each verified.

    Raises:
        Corrupt: one of them is damaged, or the frame ends inside one.
    """
    view = memoryview(batches)
    found = []
    at = 0
    while at < len(view):
        try:
            header = verify(view, at)
        except Truncated as error:
            raise Corrupt(f"a DATA frame ends inside a batch: {error}") from error
        found.append((header, view[at : at + header.length]))
        at += header.length
    return found


class FrameEncoder:
    """Frames of one direction of a connection to compressed bytes, one flush per call."""

    def __init__(self, level: int = 3) -> None:
        self._context = zstandard.ZstdCompressor(level=level).compressobj()

    def encode(self, frames: list[Frame]) -> bytes:
        """One message for the wire that holds ``frames``; the peer can decode it without waiting for more."""
        packed = [self._context.compress(encode_frame(frame)) for frame in frames]
        packed.append(self._context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        return b"".join(packed)


class FrameDecoder:
    """Compressed bytes of one direction of a connection to frames."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << STREAM_WINDOW_LOG_MAX)
        self._context = decompressor.decompressobj()
        self._pending = bytearray()

    def decode(self, data: bytes) -> list[Frame]:
        """The frames that are complete now, in order.

        Raises:
            Corrupt: not a zstd stream, or a frame is invalid. The connection cannot go on.
        """
        try:
            for at in range(0, len(data), _FEED_BYTES):
                self._pending += self._context.decompress(data[at : at + _FEED_BYTES])
                if len(self._pending) > PENDING_BYTES_MAX:
                    raise Corrupt(f"the link's stream expands past {PENDING_BYTES_MAX} bytes in one message")
        except zstandard.ZstdError as error:
            raise Corrupt(f"the link's compressed stream is damaged: {error}") from error
        if len(self._pending) < FRAME_HEADER_BYTES:
            return []
        ready = bytes(self._pending)
        frames: list[Frame] = []
        at = 0
        try:
            while True:
                frame, at = decode_frame(ready, at)
                frames.append(frame)
        except Truncated:
            self._pending = bytearray(ready[at:])
        return frames
