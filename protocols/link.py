"""Frames of a replication link (docs/reference/formats/link.md).

A frame is a type byte, a u32 length and a body: msgpack for control, a lane number and stored batches for DATA.
``protocols.link`` makes messages of frames. Every length that a peer can choose is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated

import msgspec
import zstandard
from msgspec import Meta

from weft.protocols.batch import HEADER_BYTES, BatchHeader, Buffer, decode_header
from weft.protocols.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from weft.protocols.chunk_index import PAIR_FLAGS, EdgeName, LaneFlag
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.lane import Origin
from weft.protocols.ranges import U32, U64, Epoch, Nanoseconds, Ranges, Seq, Topics, unpack

# Frames of the feature ``canary``: a question that the hub answers when its store has taken something since
# (docs/reference/formats/link.md).

CANARY = "canary"


class Canary(msgspec.Struct, frozen=True, array_like=True):
    """A question of the edge: is a chunk durable that was begun after this frame came?"""

    number: U32
    """Larger than that of every question before on this connection."""


class CanaryBack(msgspec.Struct, frozen=True, array_like=True):
    """The hub's answer, which goes with its next PONG: such a chunk is durable in the shard of the edge."""

    number: U32
    """Number of the newest question for which this is so."""
    waited: U64
    """Time for which the hub let the question wait for a chunk, and the answer for a message, ns."""


# Frames of the feature ``CONFIG``: the configuration that a hub wants for an edge, and the edge's answer.

TEXT_CHARACTERS_MAX = 24 << 10
"""Longest text of one layer."""
LAYERS_MAX = 17
"""Maximum number of layers: those of an edge's groups, and its own."""
CONFIG_REASON_CHARACTERS_MAX = 500
_Digest = Annotated[str, Meta(max_length=32)]


class ConfigLayer(msgspec.Struct, frozen=True, array_like=True):
    """Settings that are laid over those of the edge's file and of the layers before."""

    name: Annotated[str, Meta(max_length=160)]
    """``group NAME`` or ``edge NAME``, for people."""
    version: U64
    """Number of the entry of the cluster log that declared it."""
    text: Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
    """YAML."""


class ConfigDesired(msgspec.Struct, frozen=True, array_like=True):
    """The configuration that the hub wants for the edge; without layers, that of the edge's file alone."""

    version: U64
    """The highest version of its layers, for people; 0 without any."""
    digest: _Digest
    """``digest_of`` its layers; empty without any."""
    layers: Annotated[list[ConfigLayer], Meta(max_length=LAYERS_MAX)]


class ConfigOutcome(IntEnum):
    """Outcomes of a desired configuration at an edge. The numbers are on the wire."""

    NONE = 0
    """The edge has only its file, and was asked for nothing else."""
    TRIAL = 1
    """In force, and not confirmed yet."""
    CONFIRMED = 2
    REFUSED = 3
    """The edge did not apply it; ``reason`` says why."""
    ROLLED_BACK = 4
    """Applied, and taken back; ``reason`` says why."""


class ConfigState(msgspec.Struct, frozen=True, array_like=True):
    """The edge's statement about the last desired configuration, at the start of a link and after each change."""

    version: U64
    digest: _Digest
    outcome: U32
    """``ConfigOutcome``, or a later release's number."""
    reason: Annotated[str, Meta(max_length=CONFIG_REASON_CHARACTERS_MAX)]
    active_version: U64
    """Version of the hub's configuration that is in force; 0 for none."""
    active_digest: _Digest


def digest_of(layers: Sequence[ConfigLayer]) -> str:
    """Return the digest by which both ends name a configuration; empty without layers."""
    return blake2b(msgspec.msgpack.encode(list(layers)), digest_size=8).hexdigest() if layers else ""


def desired_of(layers: Sequence[ConfigLayer]) -> ConfigDesired:
    """Return the frame with some layers."""
    return ConfigDesired(max((layer.version for layer in layers), default=0), digest_of(layers), list(layers))


# Frames of the feature ``down``: messages from a hub to an edge's local topics, and what became of them
# (docs/reference/formats/link.md).
#
# A hub sends messages only after DOWN_OPEN. It sends a message again on each connection until it has an outcome, so
# the edge has to recognise those that it has stored.

DOWN = "down"
MESSAGE_BYTES_MAX = 256 << 10
"""Longest payload of a message."""
TOPIC_CHARACTERS_MAX = 1024
REASON_CHARACTERS_MAX = 300
IN_FLIGHT_MAX = 64
"""Maximum number of messages, and of outcomes, in one frame, and of messages without an outcome on a connection."""
IN_FLIGHT_BYTES_MAX = 1 << 20
"""Maximum bytes of payload of the messages without an outcome on a connection."""


class OutcomeKind(IntEnum):
    """Outcomes of a message at an edge. The numbers are on the wire and in logs."""

    PUBLISHED = 1
    """It is in the edge's log, and its subscribers get it from there."""
    EXPIRED = 2
    """Its time was over before the edge could store it. It is not published."""
    REFUSED = 3
    """The edge does not take it: the reason says why."""
    UNKNOWN = 4
    """The edge's log knows later messages and nothing of this one: it was stored too long ago, or never."""
    WAITING = 5
    """The edge has no room for it yet: the reason says why. Another outcome follows."""


class DownOpen(msgspec.Struct, frozen=True, array_like=True):
    """An edge's readiness for messages on this connection."""

    next: Seq
    """One past the highest number of a message of this hub that the edge has an outcome of; 0 without one."""


class DownMessage(msgspec.Struct, frozen=True, array_like=True):
    """One message for local topics of the edge."""

    number: Seq
    """Number of the message among those of the cluster to this edge, ascending."""
    accepted: Nanoseconds
    """Time at which the hub accepted it, ns since 1970 by its clock: later than that of each earlier message."""
    left: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """Time until it expires, ns. Relative, because the edge's clock may be wrong; 0 if it has expired."""
    topic: Annotated[str, Meta(max_length=TOPIC_CHARACTERS_MAX)]
    payload: Annotated[bytes, Meta(max_length=MESSAGE_BYTES_MAX)]
    qos: Annotated[int, Meta(ge=0, le=1)] = 1


class Messages(msgspec.Struct, frozen=True, array_like=True):
    """Messages in the order of their numbers."""

    messages: Annotated[list[DownMessage], Meta(max_length=IN_FLIGHT_MAX)]


class MessageOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one message. Durable at the edge, except for WAITING."""

    number: Seq
    accepted: Nanoseconds
    """The message's own, so that a number that a restored store gives again is recognised."""
    outcome: U32
    """An ``OutcomeKind``, or a later release's number."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""


class Outcomes(msgspec.Struct, frozen=True, array_like=True):
    """Outcomes of messages, which the hub need not send again."""

    outcomes: Annotated[list[MessageOutcome], Meta(max_length=IN_FLIGHT_MAX)]


# Frames of the feature ``pull``: windows of records that a hub asks of an edge, and the edge's answers
# (docs/reference/formats/link.md).
#
# The hub names all pulls that are to run, so that a frame that was lost with its connection changes nothing: what it
# no longer names has ended. The records come on a lane of their stream that the edge opens as PARTIAL.

PULL = "pull"
PULLS_MAX = 8
"""Maximum number of pulls of one edge at a time."""
PULL_RANGES_MAX = 256
"""Maximum number of ranges of sequence numbers that the records of a pull lie in."""
PULL_ID_CHARACTERS_MAX = 32


class PullStage(IntEnum):
    """Stages of a pull at an edge. The numbers are on the wire."""

    SENDING = 1
    """The edge has found the records: the ranges name them, those that the hub has included."""
    DONE = 2
    """The hub acknowledged all records of the ranges that the edge still has."""
    REFUSED = 3
    """The edge sends none, or none any more: the reason says why."""
    WAITING = 4
    """The edge cannot send for now: the reason says why."""


class PullRequest(msgspec.Struct, frozen=True, array_like=True):
    """A window of one stream's records."""

    id: Annotated[str, Meta(min_length=1, max_length=PULL_ID_CHARACTERS_MAX)]
    stream: Annotated[str, Meta(max_length=64)]
    first: Nanoseconds
    """Beginning of the window by the edge's clock, ns since 1970."""
    end: Nanoseconds
    """End of the window, which does not belong to it."""
    bytes_max: U64
    """Bytes of stored batches beyond which the edge refuses."""


class Pulls(msgspec.Struct, frozen=True, array_like=True):
    """All pulls that are to run at the edge, in their order. Others have ended."""

    pulls: Annotated[list[PullRequest], Meta(max_length=PULLS_MAX)]


class PullState(msgspec.Struct, frozen=True, array_like=True):
    """The edge's answer to a pull, and each change of it."""

    id: Annotated[str, Meta(max_length=PULL_ID_CHARACTERS_MAX)]
    stage: U32
    """A ``PullStage``, or a later release's number."""
    log_id: U64
    ranges: Annotated[list[tuple[Seq, Seq]], Meta(max_length=PULL_RANGES_MAX)]
    """Sequence numbers of the records in the window, [first, end), ascending."""
    records: U64
    bytes: U64
    """Bytes of their stored batches."""
    kept_from: Nanoseconds
    """Time of the oldest record that the edge keeps of the stream; 0 if it keeps none."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""


# The frame of the feature ``throttle``: a hub slows a link whose tenant is at its quota
# (docs/reference/formats/link.md).

THROTTLE = "throttle"
WAIT_NS_MAX = 3_600_000_000_000
"""Longest wait of one frame, ns: a sender that hears no more of the hub continues after it."""


class Throttled(msgspec.Struct, frozen=True, array_like=True):
    """The hub's request to send no data and no gap notice for some time. A later frame replaces it, with any wait.

    What is sent nevertheless is taken, and counts against the quota: nothing is refused.
    """

    wait: Annotated[int, Meta(ge=0, le=WAIT_NS_MAX)]
    """Time from the frame's arrival on, ns; 0: data may be sent at once."""
    bytes_per_second: U64
    """Bytes of stored batches a second that the link can expect to send, for the size of its messages; 0 if unknown."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
    """The quota, for people; empty when it is over."""


# A pairing: an edge gets a token by a code that an operator reads out at the hub (docs/reference/formats/link.md).

PAIR_PATH = "/v1/pair"
PAIR_BODY_BYTES_MAX = 1024
CODE_CHARACTERS = 12
"""60 bits: too many to guess one while it counts, at the hub's port and beside its hash in the store."""
CODE_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's: no letter is taken for a digit."""
_SPOKEN = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})


class PairRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of a request. The edge has made its token by itself: only the hash leaves the machine."""

    code: Annotated[str, Meta(max_length=64)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Hash of the token."""
    tenant: Annotated[str, Meta(max_length=64)] | None = None
    edge: Annotated[str, Meta(max_length=64)] | None = None
    """The edge for which the asking machine holds itself; None if it does not know yet."""


class PairAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The edge whose links the token opens from now on."""

    tenant: str
    edge: str
    token: str
    """Name of the token."""
    until: str | None
    """Moment at which the token ends; None for no end."""


def code_of(numbers: bytes) -> str:
    """Return the code for as many random bytes as it has characters, in groups of four."""
    letters = "".join(CODE_ALPHABET[each % len(CODE_ALPHABET)] for each in numbers[:CODE_CHARACTERS])
    return "-".join(letters[at : at + 4] for at in range(0, CODE_CHARACTERS, 4))


def spoken(code: str) -> str:
    """Return a code as it is hashed, however a person wrote it: ``k7qf 9xdm 2rpt`` is `K7QF9XDM2RPT`."""
    return code.upper().translate(_SPOKEN)


# The frame of the feature ``report``: what an edge says of its disk and its functions, for people
# (docs/reference/formats/link.md).

REPORT = "report"
FUNCTIONS_MAX = 32
"""Maximum number of derived streams in a report."""
NAME_CHARACTERS_MAX = 64
ERROR_CHARACTERS_MAX = 160


class FunctionReport(msgspec.Struct, frozen=True, array_like=True):
    """The functions of one derived stream, with figures since the edge started."""

    stream: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """The derived stream."""
    kinds: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    """Names of the functions in their order, such as ``where, window``; cut where they are many."""
    rows_in: U64
    rows_out: U64
    errors: U64
    """Rows that were rejected, and restarts of the functions after an error."""
    last_error: Annotated[str, Meta(max_length=ERROR_CHARACTERS_MAX)]
    """Sentence about what is wrong with them at present; empty if nothing is."""


class NodeReport(msgspec.Struct, frozen=True, array_like=True):
    """The state of an edge's disk and functions. A later report replaces it. Nothing is acknowledged or decided by it.

    The bytes are those of the log and its budget, not of the file system.
    """

    used_bytes: U64
    budget_bytes: U64
    free_bytes: U64
    """Bytes left for records that no hub has yet."""
    bytes_per_second: U64 | None
    """Growth of the log in the last hour; None if that is not known yet."""
    outage_seconds: U64 | None
    """Time for which the free bytes last at that rate; 0 if the log is full or has stopped, None if nothing comes in or
    the rate is not known yet."""
    functions: Annotated[list[FunctionReport], Meta(max_length=FUNCTIONS_MAX)]
    functions_more: U32
    """Number of derived streams that the report leaves out."""


# The frame of the feature ``pair-report``: what an edge says of its pair, for people.

PAIR_REPORT = "pair-report"
TIMES_ALONE_MAX = 8
"""Maximum number of times with one disk in a report."""
COPIES_MAX = 8
"""Maximum number of copies in a report."""


class CopyReport(msgspec.Struct, frozen=True, array_like=True):
    """An edge's copy of the log of its peer, which is away."""

    tenant: EdgeName
    edge: EdgeName
    """Name of the peer."""
    log_id: U64
    complete_to: Nanoseconds | None
    """Time by the peer's clock up to which the copy and the hubs have all that it took in; None if it is unknown."""
    is_vouched: bool
    """True if they have all that it acknowledged, until whenever it was."""
    records: U64
    """Number of records of the copy that no hub is known to have."""


class PairReport(msgspec.Struct, frozen=True, array_like=True):
    """The state of an edge's pair, by its own word. A later report replaces it. Nothing is decided by it."""

    alone: Annotated[list[tuple[Nanoseconds, Nanoseconds | None]], Meta(max_length=TIMES_ALONE_MAX)]
    """Latest times in which records that it acknowledged had one disk, as (from, until) by its clock, ascending. The
    last one has no end while it lasts."""
    copies: Annotated[list[CopyReport], Meta(max_length=COPIES_MAX)]


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
"""Maximum number of origins in one frame."""
LAST_WORDS = "last-words"
CONFIG = "config"
PAIR = "pair"
"""Feature of a node alone that keeps a copy of its peer's log: its acknowledgements are not a hub's. It has no
frames."""
ENCRYPTED = "encrypted"
"""Feature of such a node whose disk is encrypted. It has no frames."""
PEERS = "peers"
"""Feature of a hub alone: other clusters relay to it what they get from the sender, so it may hold records that this
sender never sent to it. It has no frames."""
BEATS = "beats"
"""Feature of a hub that sends a PONG now and then while the sender waits for a commit. It has no frames."""
FEATURES: tuple[str, ...] = (LAST_WORDS, CONFIG, DOWN, PULL, CANARY, THROTTLE, REPORT, PAIR_REPORT, BEATS)
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
    # Lanes open one by one, each with an identity and an epoch: a stream that is added, or a shard in trouble, ends no
    # other lane. A lane's number is given once, so a frame on the way when its lane closed can be dropped.
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
    PAIR_REPORT = 144


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


KNOWN_LANE_FLAGS = LaneFlag.PARTIAL | LaneFlag.RELAY | PAIR_FLAGS
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
    record_bytes_max: U64 = 0
    """Longest record that the receiver takes, by ``batch.check_records``; 0 if it does not say."""


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
    renamed_to: EdgeName = ""
    """The name under which the log continues, if it never opens these lanes again."""


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
    Hello
    | Welcome
    | Refuse
    | Gap
    | Marks
    | Ack
    | Ping
    | Pong
    | LaneOpen
    | LaneOpened
    | LaneClosed
    | Clock
    | LaneOrigins
    | LastWords
    | ConfigDesired
    | ConfigState
    | DownOpen
    | Messages
    | Outcomes
    | Pulls
    | PullState
    | Canary
    | CanaryBack
    | Throttled
    | NodeReport
    | PairReport
)
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
    FrameType.PAIR_REPORT: PairReport,
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


# Batches of a DATA frame: cut apart by their headers, and checked.


def split_batches(batches: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the batches of a DATA frame by only their headers, so that their claims can be checked against limits
    before ``batch.check`` spends time and memory on them.

    Raises:
        UnsupportedVersion: a batch of a later format.
        Corrupt: a header is out of bounds, or the frame ends inside a batch.
    """
    view = memoryview(batches)
    at, whole = 0, len(view)
    # Small batches come one in a frame, each of another lane.
    if whole >= HEADER_BYTES and (header := decode_header(view)).body_length == whole - HEADER_BYTES:
        return [(header, view)]
    found: list[tuple[BatchHeader, memoryview]] = []
    may_be_many = whole > BATCHES_MAX * HEADER_BYTES
    while at < whole:
        try:
            header = decode_header(view, at)
        except Truncated as error:
            raise Corrupt(f"a DATA frame ends inside a batch: {error}") from error
        end = at + HEADER_BYTES + header.body_length
        if end > whole:
            raise Corrupt(f"a DATA frame ends inside a batch: {whole - at} of {header.length} bytes")
        found.append((header, view[at:end]))
        at = end
        if may_be_many and len(found) > BATCHES_MAX:
            raise Corrupt(f"a DATA frame of more than {BATCHES_MAX} batches")
    return found


# The compressed stream of a link: frames to messages and back (docs/reference/formats/link.md, "Stream").
#
# Frames of one connection and direction pass through one streaming zstd context, flushed at each send, so that small
# sends compress against earlier ones. Every length and ratio that a peer can choose is bounded.

FRAMES_MAX = 16_384
"""Maximum number of frames in one message."""
STREAM_WINDOW_LOG_MAX = 17
"""Largest zstd window accepted from a peer: a hub holds one for each link. 2^21 would compress telemetry to 0.284
instead of 0.289 of its size, and take 2.7 MB a link instead of 0.4."""
SMALL_WINDOW_LOG = 10
PENDING_BYTES_MAX = FRAME_BYTES_MAX + (32 << 20)
"""Maximum number of uncompressed bytes that a receiver holds before it decodes frames."""
_JOIN_BYTES_MAX = 64 << 10
"""Bytes of frames that are joined so that the compressor is called once for all."""
_DATA = int(FrameType.DATA)
_FEED_BYTES, _FEED_BYTES_MIN = 256, 64
"""Compressed bytes given to the decompressor at a time: at first, and after a part that expands like a bomb. A 4-byte
block can stand for 128 KiB, so this bounds what one call can allocate (8 MiB, 2 MiB) and take: 9 ms. With 1,024 bytes
ordinary messages are decompressed in half the time, of 2.5 ms for a MiB, and a bomb takes 25 ms."""
_RATIO_MAX = 256
_BLOCK_BYTES = 128 << 10
"""Maximum output of one block, which may all come with its last byte (RFC 8878, section 3.1.1.2.4)."""
_UNPACKED_BYTES = 2 << 20
"""Bytes that are decompressed in a turn, in 3 ms; one call may produce more."""
_BLOCKS_AT_ONCE = _UNPACKED_BYTES // _BLOCK_BYTES
_BLOCKS_BYTES_MIN = 4 << 10
"""Least bytes of so many blocks: a loop over millions of empty ones would hold up the process's other links."""
_BLOCK_TYPE, _RLE = 0b110, 0b010


def _frame_header_bytes(data: bytes) -> int:
    """Return the bytes of the header of a zstd frame (RFC 8878, section 3.1.1.1); more than are there if it is none."""
    if data[:4] != zstandard.FRAME_HEADER or len(data) < 5:
        return len(data) + 1
    described = data[4]
    is_single = bool(described & 0b100000)
    return 6 - is_single + (0, 1, 2, 4)[described & 3] + (int(is_single), 2, 4, 8)[described >> 6]


class FrameEncoder:
    """Encoder of one direction of a connection: frames to compressed bytes, one flush per call.

    Args:
        level: compression level of zstd.
        small: use 30 kB of memory instead of 1 MB, for a direction that carries acknowledgements and no data.
    """

    def __init__(self, level: int = 3, *, small: bool = False) -> None:
        if small:
            parameters = zstandard.ZstdCompressionParameters(
                window_log=SMALL_WINDOW_LOG,
                chain_log=6,
                hash_log=6,
                search_log=1,
                min_match=4,
                strategy=zstandard.STRATEGY_FAST,
                compression_level=1,
            )
        else:
            # The size makes zstd choose tables that fit the window.
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, source_size=1 << STREAM_WINDOW_LOG_MAX, window_log=STREAM_WINDOW_LOG_MAX
            )
        self._context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()

    def encode(self, frames: list[Frame]) -> bytes:
        """Encode ``frames`` as one message for the wire; the peer can decode it without waiting for more.

        Raises:
            ValueError: more than ``FRAMES_MAX`` frames, or one that is too long. Nothing was encoded.
        """
        if len(frames) > FRAMES_MAX:
            raise ValueError(f"a message of {len(frames)} frames; the limit is {FRAMES_MAX}")
        encoded = [encode_frame(frame) for frame in frames]
        if sum(map(len, encoded)) <= _JOIN_BYTES_MAX:
            encoded = [b"".join(encoded)]
        packed = [self._context.compress(part) for part in encoded]
        packed.append(self._context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        return b"".join(packed)


class FrameDecoder:
    """Decoder of one direction of a connection: compressed bytes to frames."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << STREAM_WINDOW_LOG_MAX)
        self._context = decompressor.decompressobj()
        self._data_bytes_max, self._pending_bytes_max = FRAME_BYTES_MAX, PENDING_BYTES_MAX
        self.frame_bytes = 0
        """Bytes of the last frame that was not DATA."""
        self._pending = bytearray()
        self._whole = b""
        """The last message, decompressed, if nothing was pending before it."""
        self._is_in_step: bool | None = None
        """True if the stream so far ends with a whole block; None before its first byte."""
        self._needed = FRAME_HEADER_BYTES
        """Number of pending bytes below which nothing is copied or decoded, so that a slow frame costs linear time."""

    def allow_data(self, bytes_max: int) -> None:
        """Accept DATA frames up to this length, and messages with one of them and the maximum of control frames."""
        self._data_bytes_max, self._pending_bytes_max = bytes_max, bytes_max + 2 * CONTROL_BYTES_MAX

    def clear(self) -> None:
        """Drop the held bytes: no more will be decoded."""
        self._pending.clear()
        self._whole = b""

    @property
    def holds_part(self) -> bool:
        """Return whether the last message ended inside a frame."""
        return bool(self._pending)

    def decode(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now, in order. The batches of DATA frames are views of one copy.

        Raises:
            Corrupt: as ``frames``.
        """
        return list(self.frames(data))

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now, each decoded on demand. Read all of them before the next message.

        Raises:
            Corrupt: not a zstd stream, a frame is invalid, or the message exceeds ``PENDING_BYTES_MAX`` (or the lower
                bound of ``allow_data``), ``FRAMES_MAX`` or twice ``CONTROL_BYTES_MAX`` in control frames. The
                connection cannot continue.
        """
        for _ in self.unpack(data, in_turns=False):
            pass
        yield from self.unpacked()

    def unpacked(self) -> Iterator[Frame]:
        """Yield the frames of a message after ``unpack``. Raises as ``frames``."""
        ready, self._whole = self._whole, b""
        if not ready:
            if len(self._pending) < self._needed or self._lacks_data():
                return
            ready = bytes(self._pending)
            self._pending.clear()
        view, whole = memoryview(ready), len(ready)
        at = count = control_bytes = 0
        data_bytes_max = self._data_bytes_max
        try:
            while at < whole:
                if whole - at > DATA_HEAD.size and count < FRAMES_MAX:
                    number, length, lane = DATA_HEAD.unpack_from(ready, at)
                    end = at + FRAME_HEADER_BYTES + length
                    # Nearly all bytes are in such frames. ``decode_frame`` handles all others, and reports their
                    # errors.
                    if number == _DATA and DATA_BYTES_MIN <= length <= data_bytes_max and end <= whole:
                        count += 1
                        yield Data(lane, view[at + DATA_HEAD.size : end])
                        at = end
                        continue
                    if number == _DATA and length > data_bytes_max:
                        raise Corrupt(f"a DATA frame of {length} bytes; the limit is {data_bytes_max}")
                frame, end = decode_frame(ready, at)
                self.frame_bytes = end - at
                control_bytes += 0 if isinstance(frame, Data) else end - at
                if count == FRAMES_MAX or control_bytes > 2 * CONTROL_BYTES_MAX:
                    raise Corrupt(f"more than {FRAMES_MAX} frames or {2 * CONTROL_BYTES_MAX} control bytes at once")
                count += 1
                yield frame
                at = end
            self._needed = FRAME_HEADER_BYTES
        except Truncated:
            self._keep(view[at:])

    def unpack(self, data: bytes, *, in_turns: bool) -> Iterator[None]:
        """Decompress a message, in turns with a stop after each ``_UNPACKED_BYTES``.

        Raises:
            Corrupt: not a zstd stream, or the message expands beyond the bound.
        """
        try:
            at, feed, stop = 0, _FEED_BYTES, len(self._pending) + _UNPACKED_BYTES
            while at < len(data):
                size = self._next_blocks(data, at) or feed
                part = self._context.decompress(data[at : at + size] if at or size < len(data) else data)
                at += size
                if self._context.eof:
                    raise Corrupt("the link's compressed stream ended before its connection")
                if len(part) + len(self._pending) > self._pending_bytes_max:
                    raise Corrupt(f"the link's stream expands past {self._pending_bytes_max} bytes in one message")
                if at >= len(data) and not self._pending:
                    self._whole = part  # as nearly always, and without a copy
                    return
                self._pending += part
                if len(part) > _RATIO_MAX * feed + _BLOCK_BYTES:
                    feed = _FEED_BYTES_MIN
                if in_turns and len(self._pending) > stop:
                    stop = len(self._pending) + _UNPACKED_BYTES
                    yield
        except zstandard.ZstdError as error:
            raise Corrupt(f"the link's compressed stream is damaged: {error}") from error

    def _next_blocks(self, data: bytes, at: int) -> int:
        """Return the bytes of the blocks from ``at`` on that may be decompressed at once: whole ones, of which
        ``_BLOCKS_AT_ONCE`` expand to ``_UNPACKED_BYTES`` at most. 0 if that is not known."""
        if self._is_in_step is False:
            return 0
        # Edges end each message with a block (RFC 8878, section 3.1.1.2). A stream that once did not, or has blocks of
        # a few bytes only, is given to the decompressor byte by byte, and not looked at again.
        end = at if self._is_in_step else at + _frame_header_bytes(data)
        self._is_in_step = False
        for _ in range(_BLOCKS_AT_ONCE):
            head = int.from_bytes(data[end : end + 3], "little")
            end += 3 + (1 if head & _BLOCK_TYPE == _RLE else head >> 3)
            if end >= len(data):
                break
        self._is_in_step = end == len(data) or (end < len(data) and end - at >= _BLOCKS_BYTES_MIN)
        return end - at if self._is_in_step else 0

    def _lacks_data(self) -> bool:
        """Return whether only the start of a DATA frame is held. It may have 16 MiB, and is not copied."""
        if len(self._pending) < DATA_HEAD.size:
            return False
        number, length, _ = DATA_HEAD.unpack_from(self._pending)
        needed = FRAME_HEADER_BYTES + length
        if number != _DATA or length > self._data_bytes_max or len(self._pending) >= needed:
            return False
        self._needed = needed
        return True

    def _keep(self, rest: memoryview) -> None:
        """Keep the start of an incomplete frame for the next call."""
        self._pending = bytearray(rest)
        self._needed = FRAME_HEADER_BYTES
        if len(rest) >= FRAME_HEADER_BYTES:
            self._needed += FRAME_HEAD.unpack_from(rest)[1]
