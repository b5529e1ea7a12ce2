"""The receiving end of a link: a machine without I/O. It takes what a sender offers and acknowledges what became
durable.

Its owner gives it bytes (``receive_data``) and time (``handle_timeout``; monotonic nanoseconds), answers HELLO with
``welcome`` or ``refuse``, and calls ``acknowledge`` for committed ranges, and only for those. Everything that a sender
can choose is checked or bounded. A sender that breaks a rule gets a REFUSE, and the connection is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from weft.protocols.chunk import GapRange, Mark
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.link import (
    PROTOCOL_VERSION,
    Ack,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Gap,
    Hello,
    LaneMark,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
    WelcomeLane,
    check_batch,
    split_batches,
)
from weft.protocols.ranges import RangeSet
from weft.replication.accounting import SentBatch, SentBatches
from weft.replication.events import (
    BatchesReceived,
    ConnectionLost,
    Fault,
    GapReceived,
    HelloReceived,
    MarkReceived,
    ReceiverEvent,
)
from weft.replication.greeting import check_hello
from weft.replication.liveness import SECOND, Liveness, PeerClock

RANGES_PER_ACK = 4096
ACKS_PER_MESSAGE = 64


@dataclass(frozen=True)
class ReceiverSettings:
    """Settings of a receiver. Durations in nanoseconds."""

    window_bytes: int = 8 << 20
    """Maximum number of DATA bytes that a sender may have on the way without an ACK (one batch may always go)."""
    batch_bytes_max: int = 16 << 20
    ping_interval: int = 5 * SECOND
    silence: int = 20 * SECOND
    """Silence after which a peer counts as lost."""
    compression_level: int = 1
    """Compression level of the ACKs' zstd stream."""


class _State(Enum):
    STARTED = 1
    GREETED = 2
    OPEN = 3
    CLOSED = 4


class Receiver:
    """The receiving machine of one connection.

    Args:
        cluster_id: tells the sender which hub this is.
        wall_clock: ns since 1970, for WELCOME and PONG.
        now: monotonic ns, as everywhere in this class.
    """

    def __init__(
        self, settings: ReceiverSettings, cluster_id: str, software: str, wall_clock: Callable[[], int], now: int
    ) -> None:
        self._settings = settings
        self._cluster_id = cluster_id
        self._software = software
        self._wall_clock = wall_clock
        self._now = now
        self._state = _State.STARTED
        self._encoder = FrameEncoder(settings.compression_level)
        self._decoder = FrameDecoder()
        self._live = Liveness(settings.ping_interval, settings.silence, wall_clock, now)
        self._hello_due = now + settings.silence
        self._lanes: dict[int, RangeSet] = {}
        """Acknowledged ranges of each lane."""
        self._in_flight = SentBatches()
        self._acks: dict[int, RangeSet] = {}
        self._answers: list[Frame] = []
        self._events: list[ReceiverEvent] = []

    @property
    def closed(self) -> bool:
        """Return whether the connection is over; ``data_to_send`` may still hold the REFUSE that says why."""
        return self._state is _State.CLOSED

    @property
    def peer_clock(self) -> PeerClock | None:
        """Return the sender's wall clock, as measured."""
        return self._live.peer_clock

    @property
    def unacked_bytes(self) -> int:
        """Return the DATA bytes received and not acknowledged."""
        return self._in_flight.bytes

    # -- the owner's side

    def welcome(self, lanes: Sequence[WelcomeLane]) -> None:
        """Take the link: ``lanes`` names what is durable here already of the lanes in HELLO."""
        if self._state is not _State.GREETED:
            return
        for lane in lanes:
            if lane.lane not in self._lanes:
                raise ValueError(f"lane {lane.lane} is not in the HELLO")
            self._lanes[lane.lane].update(lane.ranges)
        settings = self._settings
        self._answers.append(
            Welcome(
                PROTOCOL_VERSION, self._cluster_id, list(lanes), settings.window_bytes, settings.batch_bytes_max,
                self._wall_clock(), self._software,
            )
        )  # fmt: skip
        self._state = _State.OPEN

    def refuse(self, code: RefuseCode, message: str, advice: str) -> None:
        """Refuse the link, now or later, and close. The sender sends again what was not acknowledged."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        self._acks.clear()
        self._answers = [Refuse(code, message, advice)]

    def acknowledge(self, lane: int, ranges: RangeSet) -> None:
        """Acknowledge that ``ranges`` of ``lane`` are durable. Ranges may be acknowledged again."""
        if self._state is not _State.OPEN:
            return
        done = self._lanes[lane]
        done.update(ranges)
        for first, end in ranges:
            self._in_flight.settle(lane, first, end, done)
        self._acks.setdefault(lane, RangeSet()).update(ranges)

    def pause(self) -> None:
        """Note that the owner stops reading from the network: the peer's silence means nothing until ``resume``."""
        self._live.pause()

    def resume(self, now: int) -> None:
        """Note that the owner reads again."""
        self._live.resume(now)

    # -- the network's side

    def receive_data(self, data: bytes, now: int) -> None:
        """Take one message from the sender. Never raises for what the peer sent: the outcome is an event."""
        if self._state is _State.CLOSED:
            return
        self._now = now
        self._live.heard(now)
        try:
            for frame in self._decoder.decode(data):
                self._receive(frame)
                if self.closed:
                    return
        except CodecError as error:
            code = RefuseCode.BAD_HELLO if self._state is _State.STARTED else RefuseCode.PROTOCOL_ERROR
            self._blame(f"the edge broke the link protocol: {error}", code)

    def _receive(self, frame: Frame) -> None:
        if self._state is _State.STARTED:
            if not isinstance(frame, Hello):
                raise Corrupt(f"the first frame must be HELLO, got {type(frame).__name__}")
            self._greet(frame)
            return
        match frame:
            case Ping() | Pong():
                self._live.receive(frame, self._now)
            case Data() if self._state is _State.OPEN:
                self._take(frame)
            case Gap() if self._state is _State.OPEN:
                self._known(frame.lane)
                self._events.append(GapReceived(frame.lane, GapRange(frame.first, frame.end, frame.reason)))
            case LaneMark() if self._state is _State.OPEN:
                self._known(frame.lane)
                self._events.append(MarkReceived(frame.lane, Mark(frame.time, frame.seq)))
            case _:
                raise Corrupt(f"{type(frame).__name__} is not expected while the link is {self._state.name}")

    def _greet(self, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            self._blame(
                f"the edge speaks link protocol {hello.version}, this hub {PROTOCOL_VERSION}: upgrade the older one",
                RefuseCode.VERSION,
            )
            return
        check_hello(hello)
        self._lanes = {lane.lane: RangeSet() for lane in hello.lanes}
        self._state = _State.GREETED
        self._events.append(HelloReceived(hello))

    def _take(self, data: Data) -> None:
        self._known(data.lane)
        batches = split_batches(data.batches)
        for header, batch in batches:
            if header.stream != data.lane:
                raise Corrupt(f"a batch of lane {header.stream} in a DATA frame of lane {data.lane}")
            if len(batch) > self._settings.batch_bytes_max:
                raise Corrupt(f"a batch of {len(batch)} bytes; WELCOME allows {self._settings.batch_bytes_max}")
            if not self._in_flight.room(len(batch), self._settings.window_bytes):
                raise Corrupt(f"more than the window of {self._settings.window_bytes} bytes without an ACK")
            check_batch(batch)
            self._in_flight.add(data.lane, SentBatch(header.base_seq, header.end_seq, len(batch), header.first_time))
        self._events.append(BatchesReceived(data.lane, batches))

    def _known(self, lane: int) -> None:
        if lane not in self._lanes:
            raise Corrupt(f"lane {lane} is not in the HELLO")

    def _blame(self, reason: str, code: RefuseCode) -> None:
        self.refuse(
            code, reason, "run the same release on edge and hub; if they do, report this as a fault of the edge"
        )
        self._events.append(ConnectionLost(Fault.PEER, reason))

    # -- what comes out

    def events(self) -> list[ReceiverEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> bytes:
        """Return the next message for the sender, empty when there is none now. ACKs that wait are joined per lane."""
        frames, self._answers = self._answers, []
        if self._state is not _State.CLOSED:
            frames += self._live.frames()
        frames += self._ack_frames()
        return self._encoder.encode(frames) if frames else b""

    def _ack_frames(self) -> list[Frame]:
        """Return up to ``ACKS_PER_MESSAGE`` frames; the next message has the rest."""
        frames: list[Frame] = []
        while self._acks and len(frames) < ACKS_PER_MESSAGE:
            lane = next(iter(self._acks))
            pairs = list(self._acks.pop(lane))
            frames.append(Ack(lane, pairs[:RANGES_PER_ACK]))
            if len(pairs) > RANGES_PER_ACK:
                self._acks[lane] = RangeSet(pairs[RANGES_PER_ACK:])
        return frames

    # -- time

    def deadline(self) -> int | None:
        """Return the time for the next call of ``handle_timeout``; None once closed."""
        if self._state is _State.CLOSED:
            return None
        return min(self._live.deadline(), self._hello_due) if self._state is _State.STARTED else self._live.deadline()

    def handle_timeout(self, now: int) -> None:
        """Let time pass up to ``now``; harmless when nothing was due."""
        if self._state is _State.CLOSED:
            return
        self._now = now
        lost = self._live.handle_timeout(now)
        if lost is None and self._state is _State.STARTED and now >= self._hello_due:
            lost = ConnectionLost(Fault.PEER, "no HELLO came in time")
        if lost is not None:
            self._state = _State.CLOSED
            self._acks.clear()
            self._events.append(lost)
