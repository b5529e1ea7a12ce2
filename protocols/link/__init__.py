"""Frames of a replication link (docs/reference/formats/link.md).

A frame is a type byte, a u32 length and a body: msgpack for control, a lane number and stored batches for DATA.
``protocols.link.stream`` makes messages of frames. Every length that a peer can choose is bounded.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.protocols.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from weft.protocols.batch import Buffer
from weft.protocols.chunk_index.footer import LaneFlag
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.fields import U32, U64, Epoch, Nanoseconds, Ranges, Seq, Topics, unpack
from weft.protocols.link.canary import CANARY, Canary, CanaryBack
from weft.protocols.link.configuration import ConfigDesired, ConfigState
from weft.protocols.link.down import DOWN, DownOpen, Messages, Outcomes
from weft.protocols.link.pull import PULL, Pulls, PullState
from weft.protocols.link.report import REPORT, NodeReport
from weft.protocols.link.throttle import THROTTLE, Throttled
from weft.protocols.origin import Origin

PROTOCOL_VERSION = 1
FRAME_HEAD = struct.Struct("<BI")
FRAME_HEADER_BYTES = FRAME_HEAD.size
_LANE = struct.Struct("<I")
DATA_HEAD = struct.Struct("<BII")
"""Head of a frame that is DATA, and its lane."""
DATA_BYTES_MIN = _LANE.size + BATCH_HEADER_BYTES
"""Shortest body of a DATA frame."""
FRAME_BYTES_MAX = 80 << 20
"""Longest frame body: the largest batch fits. A receiver names a smaller ``batch_bytes_max`` in WELCOME."""
CONTROL_BYTES_MAX = 4 << 20
"""Longest body of any frame other than DATA. Unpacked, small integers and ranges take some twenty times their bytes."""
LANES_MAX = 4096
"""Maximum number of lanes that are open on a link at one time."""
BATCHES_MAX = 2048
"""Maximum number of batches in one DATA frame: a receiver reads all their headers without a pause."""
FEATURES_MAX = 64
ACKNOWLEDGED_MAX = 16
"""Maximum number of hubs whose acknowledged ranges are in a LANE_OPEN."""
ACKNOWLEDGED_RANGES_MAX = 64
"""Maximum number of these ranges for each hub."""
ORIGINS_MAX = 4096
"""Maximum number of origins that one lane may name."""
LAST_WORDS = "last-words"
CONFIG = "config"
PEERS = "peers"
"""Feature of a hub alone: other clusters relay to it what they get from the sender, so it may hold records that this
sender never sent to it. It has no frames."""
FEATURES: tuple[str, ...] = (LAST_WORDS, CONFIG, DOWN, PULL, CANARY, THROTTLE, REPORT)
"""Features that this release announces. A frame of a feature is sent only to a peer that announced it too."""


class FrameType(IntEnum):
    """The numbers are on the wire. THROTTLE, PULL, CONFIG and PUBLISH are reserved; numbers from 128 on belong to
    features, which a peer has to announce first."""

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
    LANE_OPEN = 14
    LANE_OPENED = 15
    LANE_CLOSED = 16
    CLOCK = 17
    ORIGINS = 18
    LAST_WORDS = 128
    PULLS = 130
    PULL_STATE = 131
    DOWN_OPEN = 133
    MESSAGES = 134
    OUTCOMES = 135
    CONFIG_DESIRED = 136
    CONFIG_STATE = 137
    CANARY = 140
    CANARY_BACK = 141
    THROTTLED = 142
    NODE_REPORT = 143


class RefuseCode(IntEnum):
    """Reasons to refuse a link or to close a lane. The numbers are on the wire."""

    VERSION = 1
    UNAUTHORISED = 2
    IDENTITY_CONFLICT = 3
    BAD_HELLO = 4
    OVERLOADED = 5
    PROTOCOL_ERROR = 6
    REDIRECT = 7
    UNAVAILABLE = 8
    CLOSED = 9


KNOWN_LANE_FLAGS = LaneFlag.PARTIAL | LaneFlag.RELAY
Size = Annotated[int, Meta(ge=1, le=FRAME_BYTES_MAX * LANES_MAX)]
"""A number of bytes that a peer grants; 0 would stop the link."""
Features = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=FEATURES_MAX)]
_Told = Annotated[list[tuple[Seq, Seq]], Meta(max_length=ACKNOWLEDGED_RANGES_MAX)]
Acknowledged = Annotated[list[tuple[str, _Told]], Meta(max_length=ACKNOWLEDGED_MAX)]
Origins = Annotated[list[Origin], Meta(max_length=ORIGINS_MAX)]


class Hello(msgspec.Struct, frozen=True):
    """First frame of the sender: its identity. Lanes follow, each with an identity of its own."""

    version: U32
    tenant: str
    edge: str
    log_id: U64
    boot: U64
    """Boot id of the sender's machine, as in its batches."""
    clock: Nanoseconds
    """Sender's wall clock, ns."""
    software: str
    features: Features = []
    stay: bool = False
    """True when the sender could not reach the node that an earlier REFUSE named: this node must serve it."""
    is_synchronised: bool = False
    """True while a time source keeps the sender's wall clock right, by its kernel's word."""


class Welcome(msgspec.Struct, frozen=True):
    """First frame of the receiver, when it accepts the link."""

    version: U32
    cluster_id: str
    window_bytes: Size
    """Bytes of DATA frames that may be in flight without an ACK."""
    batch_bytes_max: Size
    clock: Nanoseconds
    software: str
    features: Features = []
    mark_interval: U64 = 0
    """Longest time for which the receiver lets marks and canaries wait for a chunk, ns; 0 if it does not say."""


class Refuse(msgspec.Struct, frozen=True):
    """A refusal, instead of WELCOME or at any later time, before the receiver closes: the reason, and advice."""

    version: U32
    """Newest protocol version that the receiver speaks."""
    code: U32
    message: str
    advice: str
    url: str = ""
    """With REDIRECT, the node that serves this edge."""


class LaneOpen(msgspec.Struct, frozen=True, array_like=True):
    """An offer of a lane, which later frames name by its number."""

    lane: U32
    """Larger than the number of every lane opened before on this connection."""
    tenant: str
    edge: str
    log_id: U64
    stream: str
    epoch: Epoch
    """Epoch that the sender proposes, after it persisted it; 0 with ``LaneFlag.RELAY``."""
    ranges: Ranges
    """Ranges of the sender's log at this moment."""
    topics: Topics = []
    """The stream's topic patterns, from which the table takes its named columns."""
    payload: U32 = 0
    """Declared kind of the stream's payloads: ``protocols.payloads.PayloadKind``, or a later release's number."""
    flags: U32 = 0
    """``LaneFlag``."""
    origins: Origins = []
    """Origins that the lane's batches name."""
    acknowledged: Acknowledged = []
    """(cluster id, ranges): records that hubs acknowledged to the sender. A hub without some of its own lost them."""


class LaneOpened(msgspec.Struct, frozen=True, array_like=True):
    """The receiver's acceptance of a lane. The sender need not send the records in ``ranges``."""

    lane: U32
    ranges: Ranges


class LaneClosed(msgspec.Struct, frozen=True, array_like=True):
    """The end of one lane on this connection, sent by either side; the other lanes continue."""

    lane: U32
    code: U32
    message: str
    advice: str


class Data(msgspec.Struct, frozen=True):
    """Batches of one lane as stored, oldest first."""

    lane: int
    batches: Buffer


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """A statement that records [first, end) of a lane will not come (reason: ``protocols.segment.GapReason``)."""

    lane: U32
    first: Seq
    end: Seq
    reason: U32

    def __post_init__(self) -> None:
        """Refuse an empty or inverted range, from a peer (``Corrupt``) or from this node (``ValueError``)."""
        if self.first >= self.end:
            raise ValueError(f"a gap [{self.first}, {self.end}) holds no records")


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """A statement that all records that each of these lanes received up to ``time`` are below its number."""

    time: Nanoseconds
    lanes: Annotated[list[tuple[U32, Seq]], Meta(max_length=LANES_MAX)]
    """(lane, seq)"""


class LastWords(msgspec.Struct, frozen=True, array_like=True):
    """Marks of a sender that stops: it appends nothing more to the lanes before it opens them again. Belongs to the
    feature ``LAST_WORDS``."""

    time: Nanoseconds
    lanes: Annotated[list[tuple[U32, Seq]], Meta(max_length=LANES_MAX)]
    """(lane, seq)"""


class Ack(msgspec.Struct, frozen=True, array_like=True):
    """A statement that ``ranges`` of a lane are durable at the receiver (records or gap notices): the sender may forget
    them."""

    lane: U32
    ranges: Ranges


class Ping(msgspec.Struct, frozen=True, array_like=True):
    """A request for a PONG. ``sent`` is the sender's monotonic clock, ns, which the PONG returns."""

    sent: Nanoseconds


class Pong(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a PING, with the answerer's wall clock for measuring the offset."""

    sent: Nanoseconds
    clock: Nanoseconds


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """A finding about the clock of one boot, as stored in a chunk (``protocols.chunk.ClockUpdate``)."""

    log_id: U64
    boot: U64
    monotonic: Nanoseconds
    offset: Nanoseconds
    """Time minus the boot's monotonic clock, ns."""
    error: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """``offset`` is right within this."""


class LaneOrigins(msgspec.Struct, frozen=True, array_like=True):
    """Further origins that the batches of an open lane name from now on."""

    lane: U32
    origins: Origins


_Control = (
    Hello | Welcome | Refuse | Gap | Marks | Ack | Ping | Pong
    | LaneOpen | LaneOpened | LaneClosed | Clock | LaneOrigins | LastWords | ConfigDesired | ConfigState
    | DownOpen | Messages | Outcomes | Pulls | PullState | Canary | CanaryBack | Throttled | NodeReport
)  # fmt: skip
Frame = Data | _Control

_CONTROL: dict[FrameType, type[_Control]] = {
    FrameType.HELLO: Hello,
    FrameType.WELCOME: Welcome,
    FrameType.REFUSE: Refuse,
    FrameType.GAP: Gap,
    FrameType.MARK: Marks,
    FrameType.ACK: Ack,
    FrameType.PING: Ping,
    FrameType.PONG: Pong,
    FrameType.LANE_OPEN: LaneOpen,
    FrameType.LANE_OPENED: LaneOpened,
    FrameType.LANE_CLOSED: LaneClosed,
    FrameType.CLOCK: Clock,
    FrameType.ORIGINS: LaneOrigins,
    FrameType.LAST_WORDS: LastWords,
    FrameType.CONFIG_DESIRED: ConfigDesired,
    FrameType.CONFIG_STATE: ConfigState,
    FrameType.DOWN_OPEN: DownOpen,
    FrameType.MESSAGES: Messages,
    FrameType.OUTCOMES: Outcomes,
    FrameType.PULLS: Pulls,
    FrameType.PULL_STATE: PullState,
    FrameType.CANARY: Canary,
    FrameType.CANARY_BACK: CanaryBack,
    FrameType.THROTTLED: Throttled,
    FrameType.NODE_REPORT: NodeReport,
}
_TYPE_OF = {kind: number for number, kind in _CONTROL.items()}
_DECODERS: dict[int, msgspec.msgpack.Decoder[_Control]] = {
    number: msgspec.msgpack.Decoder(kind) for number, kind in _CONTROL.items()
}
_ENCODE = msgspec.msgpack.Encoder().encode


class _Greeting(msgspec.Struct, frozen=True):
    version: U32


_GREETING = msgspec.msgpack.Decoder(_Greeting)


def encode_frame(frame: Frame) -> bytes:
    """Encode one frame, uncompressed.

    Raises:
        ValueError: longer than ``decode_frame`` accepts.
    """
    if isinstance(frame, Data):
        length = _LANE.size + len(frame.batches)
        _check_length(FrameType.DATA, length, ValueError)
        return b"".join((FRAME_HEAD.pack(FrameType.DATA, length), _LANE.pack(frame.lane), frame.batches))
    number, body = _TYPE_OF[type(frame)], _ENCODE(frame)
    if len(body) > CONTROL_BYTES_MAX:
        _check_length(number, len(body), ValueError)
    return FRAME_HEAD.pack(number, len(body)) + body


def _check_length(number: int, length: int, error: type[ValueError]) -> None:
    limit = FRAME_BYTES_MAX if number == FrameType.DATA else CONTROL_BYTES_MAX
    if length > limit:
        raise error(f"a {FrameType(number).name} frame of {length} bytes; the limit is {limit}")


def decode_frame(data: Buffer, offset: int = 0) -> tuple[Frame, int]:
    """Decode the frame at ``offset``.

    Returns:
        The frame and the offset after it. A DATA frame's batches are a view of ``data``.

    Raises:
        Truncated: the frame is not complete yet.
        UnsupportedVersion: a type of frame, or a greeting, of a later release.
        Corrupt: a length over the type's limit, or a body that does not fit the type.
    """
    if len(data) - offset < FRAME_HEADER_BYTES:
        raise Truncated("a frame header is not complete")
    number, length = FRAME_HEAD.unpack_from(data, offset)
    if number != FrameType.DATA and number not in _DECODERS:
        raise UnsupportedVersion(f"a frame of type {number}, which this release does not know")
    _check_length(number, length, Corrupt)
    start, end = offset + FRAME_HEADER_BYTES, offset + FRAME_HEADER_BYTES + length
    if end > len(data):
        raise Truncated("a frame body is not complete")
    body = memoryview(data)[start:end]
    if number == FrameType.DATA:
        if length < DATA_BYTES_MIN:
            raise Corrupt(f"a DATA frame of {length} bytes holds no batch")
        return Data(_LANE.unpack_from(body)[0], body[_LANE.size :]), end
    try:
        return unpack(_DECODERS[number], body, f"a {FrameType(number).name} frame"), end
    except Corrupt as error:
        if number in (FrameType.HELLO, FrameType.WELCOME):
            _refuse_later_version(body, error)
        raise


def _refuse_later_version(body: Buffer, cause: Corrupt) -> None:
    """Distinguish a greeting of a later protocol, whose other fields may be anything, from a damaged one."""
    try:
        version = unpack(_GREETING, memoryview(body), "a greeting").version
    except Corrupt:
        return
    if version > PROTOCOL_VERSION:
        raise UnsupportedVersion(f"the peer speaks link protocol {version}") from cause
