"""The sending end of a link: a machine without I/O. It offers what the log holds and sends what the receiver lacks.

Its owner gives it bytes (``receive_data``), time (``handle_timeout``; monotonic nanoseconds), the log's state
(``offer``) and requested batches (``feed``), and takes events and messages out of it. The protocol is
docs/reference/formats/link.md; nothing counts as delivered before an ACK (or the WELCOME) names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.link import (
    PROTOCOL_VERSION,
    Ack,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
)
from weft.protocols.ranges import RangeSet
from weft.replication.accounting import RANGES_MAX, checked_ranges
from weft.replication.events import (
    Acked,
    ConnectionLost,
    Fault,
    ReadRequest,
    Refusal,
    SenderEvent,
    Unreadable,
    Welcomed,
)
from weft.replication.liveness import SECOND, Liveness, PeerClock
from weft.replication.outbox import Outbox
from weft.replication.sender_lane import SenderLane
from weft.replication.source import LaneSnapshot

GAPS_PER_MESSAGE = 1024


@dataclass(frozen=True)
class SenderSettings:
    """Settings of a sender. Durations in nanoseconds."""

    window_bytes: int = 8 << 20
    """Maximum number of DATA bytes on the way without an ACK; the receiver may allow less."""
    read_bytes: int = 1 << 20
    """Bytes of one read of the log; at most this much waits in memory, besides one batch."""
    merge_bytes_max: int = 256 << 10
    """Uncompressed size up to which waiting neighbours are sent as one batch. 0: never."""
    mark_interval: int = SECOND
    ping_interval: int = 5 * SECOND
    silence: int = 20 * SECOND
    """Silence after which a peer counts as lost."""
    welcome_timeout: int = 60 * SECOND
    compression_level: int = 3
    """Compression level of the connection's zstd stream."""


class _State(Enum):
    GREETING = 1
    OPEN = 2
    CLOSED = 3


class Sender:
    """One connection's worth of sending; a new connection gets a new machine.

    Args:
        hello: what to say first. Its epoch must be durable before the machine is made.
        states: what the log has of each of the hello's lanes.
        wall_clock: ns since 1970, for answering the receiver's PING.
        now: monotonic ns, as everywhere in this class.
        high_watermark: (cluster id, lane) -> what ``LogSource.high_watermark`` says when the WELCOME has come.
    """

    def __init__(
        self,
        hello: Hello,
        states: Mapping[int, LaneSnapshot],
        settings: SenderSettings,
        wall_clock: Callable[[], int],
        now: int,
        *,
        high_watermark: Callable[[str, int], int],
    ) -> None:
        self._settings = settings
        self._high_watermark = high_watermark
        self._streams = {lane.lane: lane.stream for lane in hello.lanes}
        self._now = now
        self._state = _State.GREETING
        self._encoder = FrameEncoder(settings.compression_level)
        self._decoder = FrameDecoder()
        self._live = Liveness(settings.ping_interval, settings.silence, wall_clock, now)
        self._lanes = {lane.lane: SenderLane(lane.lane, states[lane.lane]) for lane in hello.lanes}
        self._turn = deque(self._lanes)
        self._hello: Hello | None = hello
        self._hello_sent = now
        self._welcome_due = now + settings.welcome_timeout
        self._next_marks = now
        self._outbox = Outbox(settings.compression_level)
        self._reading: ReadRequest | None = None
        self._events: list[SenderEvent] = []
        self.cluster_id = ""
        """Cluster id of the hub, once it took the link."""

    @property
    def connected(self) -> bool:
        """Return whether the receiver took the link and it is not lost."""
        return self._state is _State.OPEN

    @property
    def closed(self) -> bool:
        """Return whether the connection is over."""
        return self._state is _State.CLOSED

    @property
    def peer_clock(self) -> PeerClock | None:
        """Return the receiver's wall clock, as measured; None before the first answer."""
        return self._live.peer_clock

    @property
    def unacked_bytes(self) -> int:
        """Return the DATA bytes on the way; at most the window (or one batch)."""
        return self._outbox.unacked_bytes

    def oldest_pending_time(self) -> int | None:
        """Return the wall clock time of the oldest record that was read and is not acknowledged, ns."""
        return self._outbox.oldest_time()

    def safe(self, lane: int) -> RangeSet:
        """Return the receiver's known ranges of ``lane``, including gaps. Do not change them."""
        return self._lanes[lane].safe

    def named_ends(self) -> dict[int, int]:
        """Return, by lane, one past the highest number that the next message may name.

        The owner calls ``LogSource.prepare_to_send`` with it before it sends the message.
        """
        return {number: lane.named_end() for number, lane in self._lanes.items()}

    # -- the owner's side

    def offer(self, lane: int, state: LaneSnapshot) -> None:
        """Update the log's state of a lane. Call it after commits, and whenever ``handle_timeout`` was due."""
        self._lanes[lane].offer(state)

    def feed(self, lane: int, batches: Sequence[bytes]) -> None:
        """Answer the ``ReadRequest`` with batches of ``lane`` as stored, ascending; none when there are none."""
        request, self._reading = self._reading, None
        if request is None or request.lane != lane:
            raise ValueError(f"nothing was asked of lane {lane}")
        if self._state is not _State.OPEN:
            return
        try:
            self._take(self._lanes[lane], request.seq, batches)
        except CodecError as error:
            self._lose(Fault.LOCAL, f"the log gave a damaged batch of lane {lane} near seq {request.seq}: {error}")

    def _take(self, lane: SenderLane, seq: int, batches: Sequence[bytes]) -> None:
        found = [(decode_header(batch), batch) for batch in batches]
        start = next((header.base_seq for header, _ in found if header.end_seq > seq), None)
        skipped = lane.skip(seq, start)
        if skipped is not None:
            self._events.append(Unreadable(lane.number, *skipped))
        new = [(header, batch) for header, batch in found if not lane.sent.covers(header.base_seq, header.end_seq)]
        for header, batch in self._outbox.merged(new, self._settings.merge_bytes_max):
            if len(batch) > self._outbox.batch_bytes_max:
                self._lose(
                    Fault.LOCAL,
                    f"the batch at seq {header.base_seq} of lane {lane.number} has {len(batch)} bytes, the hub takes "
                    f"{self._outbox.batch_bytes_max}: raise the hub's limits.batch",
                )
                return
            lane.claim(header.base_seq, header.end_seq)
            self._outbox.put(lane.number, header, batch)

    # -- the network's side

    def receive_data(self, data: bytes, now: int) -> None:
        """Take one message from the receiver. Never raises for the peer's input: the outcome is an event."""
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
            self._lose(Fault.PEER, f"the hub broke the link protocol: {error}")

    def _receive(self, frame: Frame) -> None:
        match frame:
            case Ping() | Pong():
                self._live.receive(frame, self._now)
            case Refuse():
                self._close(Refusal(frame.code, frame.message, frame.advice))
            case Welcome() if self._state is _State.GREETING:
                self._welcome(frame)
            case Ack() if self._state is _State.OPEN:
                self._acknowledge(frame)
            case _:
                raise Corrupt(f"{type(frame).__name__} is not expected while the link is {self._state.name}")

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION or welcome.window_bytes <= 0 or welcome.batch_bytes_max <= 0:
            raise Corrupt(f"a WELCOME of version {welcome.version}, window {welcome.window_bytes}")
        left = RANGES_MAX
        for offered in welcome.lanes:
            lane = self._known(offered.lane)
            held = checked_ranges(offered.ranges, left)
            left -= len(held)
            high_watermark = min(lane.end, self._high_watermark(welcome.cluster_id, offered.lane))
            if held.end > high_watermark:
                self._close(_rolled_back(self._streams[offered.lane], held.end, high_watermark))
                return
            lane.welcome(held)
        self._state = _State.OPEN
        self.cluster_id = welcome.cluster_id
        self._live.sample(self._hello_sent, welcome.clock, self._now)
        self._outbox.window_bytes = min(welcome.window_bytes, self._settings.window_bytes)
        self._outbox.batch_bytes_max = welcome.batch_bytes_max
        self._events.append(Welcomed(welcome.cluster_id, self._outbox.window_bytes))
        self._events += [
            Acked(lane.number, lane.safe.copy(), by_welcome=True) for lane in self._lanes.values() if len(lane.safe)
        ]

    def _acknowledge(self, ack: Ack) -> None:
        lane = self._known(ack.lane)
        ranges = checked_ranges(ack.ranges)
        if ranges.end > lane.end:
            raise Corrupt(f"an ACK up to seq {ranges.end} of lane {ack.lane}, which ends at {lane.end}")
        known = lane.safe.count()
        lane.acknowledge(ranges)
        for first, end in ranges:
            self._outbox.settle(ack.lane, first, end, lane.safe)
        self._events.append(Acked(ack.lane, ranges, newly=lane.safe.count() - known))

    def _known(self, number: int) -> SenderLane:
        if number not in self._lanes:
            raise Corrupt(f"lane {number} was never offered")
        return self._lanes[number]

    # -- what comes out

    def events(self) -> list[SenderEvent]:
        """Return the events since the last call, in order; the last is a ``ReadRequest`` when the machine needs
        data."""
        request = self._next_read()
        if request is not None:
            self._reading = request
            self._events.append(request)
        events, self._events = self._events, []
        return events

    def _next_read(self) -> ReadRequest | None:
        room = self._outbox.room
        if self._state is not _State.OPEN or self._reading is not None or room <= 0:
            return None
        for _ in range(len(self._turn)):
            number = self._turn[0]
            self._turn.rotate(-1)
            seq = self._lanes[number].wanted()
            if seq is not None:
                return ReadRequest(number, seq, min(self._settings.read_bytes, room))
        return None

    def data_to_send(self) -> bytes:
        """Return the next message for the receiver, empty when there is none now. Send messages in order, or not at
        all."""
        frames: list[Frame] = []
        if self._state is _State.GREETING and self._hello is not None:
            frames.append(self._hello)
            self._hello = None
            self._hello_sent = self._now
        if self._state is not _State.CLOSED:
            frames += self._live.frames()
        if self._state is _State.OPEN:
            frames += self._gap_frames()
            frames += self._outbox.data_frames()
            frames += self._mark_frames()
        return self._encoder.encode(frames) if frames else b""

    def _gap_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        for lane in self._lanes.values():
            frames += lane.gap_frames(GAPS_PER_MESSAGE - len(frames))
        return frames

    def _mark_frames(self) -> list[Frame]:
        due = (lane for lane in self._lanes.values() if lane.mark_due)
        return [mark for lane in due if (mark := lane.mark_frame(self._outbox.first_waiting(lane.number))) is not None]

    # -- time

    def deadline(self) -> int | None:
        """Return the time for the next call of ``handle_timeout``; None once closed."""
        if self._state is _State.CLOSED:
            return None
        if self._state is _State.GREETING:
            return min(self._live.deadline(), self._welcome_due)
        return min(self._live.deadline(), self._next_marks)

    def handle_timeout(self, now: int) -> None:
        """Let time pass up to ``now``; harmless when nothing was due."""
        if self._state is _State.CLOSED:
            return
        self._now = now
        lost = self._live.handle_timeout(now)
        if lost is not None:
            self._close(lost)
        elif self._state is _State.GREETING and now >= self._welcome_due:
            self._lose(Fault.PEER, "the hub did not answer HELLO in time")
        elif self._state is _State.OPEN and now >= self._next_marks:
            self._next_marks = now + self._settings.mark_interval
            for lane in self._lanes.values():
                lane.mark_due = True

    def _lose(self, fault: Fault, reason: str) -> None:
        self._close(ConnectionLost(fault, reason))

    def _close(self, event: SenderEvent) -> None:
        self._state = _State.CLOSED
        self._outbox.clear()
        self._events.append(event)


def _rolled_back(stream: str, end: int, high_watermark: int) -> Refusal:
    return Refusal(
        RefuseCode.IDENTITY_CONFLICT,
        f"the hub holds records of stream {stream} up to seq {end}, but this log gave it none beyond "
        f"{high_watermark}. The log was restored from an old copy, or its disk lost acknowledged records",
        "stop the node, keep its data directory aside and start with an empty one, which gets a new log id. "
        "`weft edge query` reads the records that only the old one has",
        by_peer=False,
    )
