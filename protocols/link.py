"""Frames of a replication link (docs/reference/formats/link.md).

A frame is a type byte, a u32 length and a body: msgpack for control, a lane number and batches as stored for DATA.
Frames of one connection and direction pass through one streaming zstd context, flushed at each send, so that small
sends compress against what went before. Every length and ratio that a peer can choose is bounded.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated

import msgspec
import zstandard
from msgspec import Meta

from weft.protocols.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from weft.protocols.batch import BatchHeader, Buffer, decode_columns, decode_header, verify
from weft.protocols.errors import Corrupt, Truncated
from weft.protocols.fields import U32, U64, Epoch, Nanoseconds, Ranges, Seq, Topics, unpack

PROTOCOL_VERSION = 1
_FRAME = struct.Struct("<BI")
FRAME_HEADER_BYTES = _FRAME.size
_LANE = struct.Struct("<I")
FRAME_BYTES_MAX = 80 << 20
"""Longest frame body: the largest batch fits. A receiver names a smaller ``batch_bytes_max`` in WELCOME."""
CONTROL_BYTES_MAX = 4 << 20
"""Longest body of any frame but DATA. Unpacked, small integers and ranges take some twenty times their bytes."""
FRAMES_MAX = 16_384
"""Maximum number of frames in one message."""
LANES_MAX = 4096
STREAM_WINDOW_LOG_MAX = 23
"""Largest zstd window accepted from a peer: 8 MiB of memory per connection and direction."""
PENDING_BYTES_MAX = FRAME_BYTES_MAX + (32 << 20)
"""Maximum number of uncompressed bytes that a receiver holds before it takes frames out."""
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
    """Reasons of a hub to refuse a link. The numbers are on the wire."""

    VERSION = 1
    UNAUTHORISED = 2
    IDENTITY_CONFLICT = 3
    BAD_HELLO = 4
    OVERLOADED = 5
    PROTOCOL_ERROR = 6


Size = Annotated[int, Meta(ge=1, le=FRAME_BYTES_MAX * LANES_MAX)]
"""A number of bytes that a peer grants; none would stop the link."""


class HelloLane(msgspec.Struct, frozen=True):
    """A lane that the sender offers; later frames call it ``lane``."""

    lane: U32
    stream: str
    ranges: Ranges
    """Ranges of the sender's log at this moment."""
    topics: Topics = []
    """The stream's topic patterns, from which the table takes its named columns."""
    payload: U32 = 0
    """Declared kind of the stream's payloads: ``protocols.payloads.PayloadKind``, or a later release's number."""


class Hello(msgspec.Struct, frozen=True):
    """First frame of the sender."""

    version: U32
    tenant: str
    edge: str
    log_id: U64
    epoch: Epoch
    """Epoch that the sender proposes, and persisted before. The receiver takes only a higher one than it knows."""
    lanes: Annotated[list[HelloLane], Meta(max_length=LANES_MAX)]
    clock: Nanoseconds
    """Sender's wall clock, ns."""
    software: str


class WelcomeLane(msgspec.Struct, frozen=True):
    """The receiver's part of a lane, including gaps: the sender need not send anything in ``ranges``."""

    lane: U32
    ranges: Ranges


class Welcome(msgspec.Struct, frozen=True):
    """First frame of the receiver, when it takes the link."""

    version: U32
    cluster_id: str
    lanes: Annotated[list[WelcomeLane], Meta(max_length=LANES_MAX)]
    window_bytes: Size
    """Bytes of DATA frames that may be on the way without an ACK."""
    batch_bytes_max: Size
    clock: Nanoseconds
    software: str


class Refuse(msgspec.Struct, frozen=True):
    """A refusal, in place of WELCOME or at any later time, before the receiver closes: why, and what to do."""

    code: U32
    message: str
    advice: str


class Data(msgspec.Struct, frozen=True):
    """Batches of one lane as stored, oldest first."""

    lane: int
    batches: Buffer


class Gap(msgspec.Struct, frozen=True):
    """A statement that records [first, end) of a lane can never come (reason: ``protocols.segment.GapReason``)."""

    lane: U32
    first: Seq
    end: Seq
    reason: U32

    def __post_init__(self) -> None:
        """Refuse an empty or inverted range, from a peer (``Corrupt``) or from us (``ValueError``)."""
        if self.first >= self.end:
            raise ValueError(f"a gap [{self.first}, {self.end}) holds no records")


class LaneMark(msgspec.Struct, frozen=True):
    """A statement that all records the lane received up to ``time`` are below ``seq``."""

    lane: U32
    time: Nanoseconds
    seq: Seq


class Ack(msgspec.Struct, frozen=True):
    """A statement that ``ranges`` of a lane are durable at the receiver (records or gap notices): the sender may forget
    them."""

    lane: U32
    ranges: Ranges


class Ping(msgspec.Struct, frozen=True):
    """``sent`` is the asker's monotonic clock, ns; it comes back in the PONG."""

    sent: Nanoseconds


class Pong(msgspec.Struct, frozen=True):
    """Answer to a PING, with the answerer's wall clock for measuring the offset."""

    sent: Nanoseconds
    clock: Nanoseconds


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
    """Encode one frame, uncompressed.

    Raises:
        ValueError: longer than ``decode_frame`` takes.
    """
    if isinstance(frame, Data):
        length = _LANE.size + len(frame.batches)
        _check_length(FrameType.DATA, length, ValueError)
        return b"".join((_FRAME.pack(FrameType.DATA, length), _LANE.pack(frame.lane), frame.batches))
    body = msgspec.msgpack.encode(frame)
    _check_length(_TYPE_OF[type(frame)], len(body), ValueError)
    return _FRAME.pack(_TYPE_OF[type(frame)], len(body)) + body


def _check_length(number: int, length: int, error: type[ValueError]) -> None:
    limit = FRAME_BYTES_MAX if number == FrameType.DATA else CONTROL_BYTES_MAX
    if length > limit:
        raise error(f"a {FrameType(number).name} frame of {length} bytes; the limit is {limit}")


def decode_frame(data: Buffer, offset: int = 0) -> tuple[Frame, int]:
    """Decode the frame at ``offset``.

    Returns:
        The frame and the offset behind it. A DATA frame's batches are a view of ``data``.

    Raises:
        Truncated: the frame is not complete yet.
        Corrupt: an unknown type, a length over the type's limit, or a body that is not what the type says.
    """
    if len(data) - offset < FRAME_HEADER_BYTES:
        raise Truncated("a frame header is not complete")
    number, length = _FRAME.unpack_from(data, offset)
    if number != FrameType.DATA and number not in _DECODERS:
        raise Corrupt(f"a frame of unknown type {number}")
    _check_length(number, length, Corrupt)
    start, end = offset + FRAME_HEADER_BYTES, offset + FRAME_HEADER_BYTES + length
    if end > len(data):
        raise Truncated("a frame body is not complete")
    body = memoryview(data)[start:end]
    if number == FrameType.DATA:
        if length < _LANE.size + BATCH_HEADER_BYTES:
            raise Corrupt(f"a DATA frame of {length} bytes holds no batch")
        return Data(_LANE.unpack_from(body)[0], body[_LANE.size :]), end
    return unpack(_DECODERS[FrameType(number)], body, f"a {FrameType(number).name} frame"), end


def split_batches(batches: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the batches of a DATA frame by their headers alone, so that their claims can be checked against limits
    before ``check_batch`` spends time and memory on them.

    Raises:
        UnsupportedVersion: a batch of a later format.
        Corrupt: a header is out of bounds, or the frame ends inside a batch.
    """
    view = memoryview(batches)
    found = []
    at = 0
    while at < len(view):
        try:
            header = decode_header(view, at)
        except Truncated as error:
            raise Corrupt(f"a DATA frame ends inside a batch: {error}") from error
        end = at + header.length
        if end > len(view):
            raise Corrupt(f"a DATA frame ends inside a batch: {len(view) - at} of its {header.length} bytes are there")
        found.append((header, view[at:end]))
        at = end
    return found


def check_batch(batch: memoryview) -> None:
    """Check a batch of a DATA frame to the last column.

    Raises:
        Corrupt: it is damaged or malformed.
    """
    # The checksum alone would not do: a receiver can never take back what it commits, and the table step would fail at
    # every attempt on a body that does not decode. It costs 50 ns a record.
    decode_columns(batch, verify(batch))


class FrameEncoder:
    """Encoder of one direction of a connection: frames to compressed bytes, one flush per call."""

    def __init__(self, level: int = 3) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(level)
        # The highest levels ask for windows that the peer would refuse.
        window_log = min(parameters.window_log, STREAM_WINDOW_LOG_MAX)
        parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=window_log)
        self._context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()

    def encode(self, frames: list[Frame]) -> bytes:
        """Encode ``frames`` as one message for the wire; the peer can decode it without waiting for more.

        Raises:
            ValueError: more than ``FRAMES_MAX`` frames, or one that is too long. Nothing was encoded.
        """
        if len(frames) > FRAMES_MAX:
            raise ValueError(f"a message of {len(frames)} frames; the limit is {FRAMES_MAX}")
        encoded = [encode_frame(frame) for frame in frames]
        packed = [self._context.compress(frame) for frame in encoded]
        packed.append(self._context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        return b"".join(packed)


class FrameDecoder:
    """Decoder of one direction of a connection: compressed bytes to frames."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << STREAM_WINDOW_LOG_MAX)
        self._context = decompressor.decompressobj()
        self._pending = bytearray()
        self._needed = FRAME_HEADER_BYTES
        """Number of pending bytes before which nothing is copied or decoded, so a slow frame costs linear time."""

    def decode(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now, in order. The batches of DATA frames are views of one copy.

        Raises:
            Corrupt: not a zstd stream, a frame is invalid, or the message exceeds ``PENDING_BYTES_MAX``,
                ``FRAMES_MAX`` or twice ``CONTROL_BYTES_MAX`` in control frames. The connection cannot go on.
        """
        self._decompress(data)
        if len(self._pending) < self._needed:
            return []
        ready = bytes(self._pending)
        frames: list[Frame] = []
        at = control_bytes = 0
        try:
            while True:
                frame, end = decode_frame(ready, at)
                control_bytes += 0 if isinstance(frame, Data) else end - at
                if len(frames) == FRAMES_MAX or control_bytes > 2 * CONTROL_BYTES_MAX:
                    raise Corrupt(f"more than {FRAMES_MAX} frames or {2 * CONTROL_BYTES_MAX} control bytes at once")
                frames.append(frame)
                at = end
        except Truncated:
            self._keep(memoryview(ready)[at:])
        return frames

    def _decompress(self, data: bytes) -> None:
        try:
            for at in range(0, len(data), _FEED_BYTES):
                self._pending += self._context.decompress(data[at : at + _FEED_BYTES])
                if len(self._pending) > PENDING_BYTES_MAX:
                    raise Corrupt(f"the link's stream expands past {PENDING_BYTES_MAX} bytes in one message")
                if self._context.eof:
                    raise Corrupt("the link's compressed stream ended before its connection")
        except zstandard.ZstdError as error:
            raise Corrupt(f"the link's compressed stream is damaged: {error}") from error

    def _keep(self, rest: memoryview) -> None:
        """Keep the start of an incomplete frame for the next call."""
        self._pending = bytearray(rest)
        self._needed = FRAME_HEADER_BYTES
        if len(rest) >= FRAME_HEADER_BYTES:
            self._needed += _FRAME.unpack_from(rest)[1]
