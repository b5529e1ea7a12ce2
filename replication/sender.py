"""The sending end of a link: a machine without I/O. It offers the log's lanes and sends the ranges that the receiver
lacks.

Its owner gives it bytes (``receive_data``), time (``handle_timeout``; monotonic nanoseconds), the log's state
(``offer``) and requested batches (``feed``), and reads its events and messages. The protocol is
docs/reference/formats/link.md; a record counts as delivered only when an ACK (or the WELCOME) names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import zstandard

from weft.protocols.batch import (
    BatchHeader,
    ClockState,
    RecordTooLong,
    check_records,
    decode_columns,
    decode_header,
    merge,
    mergeable,
)
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.protocols.lane import Lane
from weft.protocols.link import (
    BEATS,
    LAST_WORDS,
    PEERS,
    PROTOCOL_VERSION,
    Ack,
    CanaryBack,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    LaneClosed,
    LaneOpened,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Throttled,
    Welcome,
)
from weft.protocols.ranges import Range, RangeSet
from weft.replication.events import (
    Acked,
    ConnectionLost,
    Fault,
    LaneEnded,
    LaneTaken,
    ReadRequest,
    Refusal,
    SenderEvent,
    Unreadable,
    Welcomed,
    of_another_cluster,
    rolled_back,
    unfit_receiver,
)
from weft.replication.flow_control import (
    RAISE_RECORD,
    LatestReport,
    ReportRide,
    SenderSettings,
    SendWindow,
    SentBatches,
    checked_ranges,
    window_cost,
)
from weft.replication.liveness import SECOND, AckPatience, BeatWatch, CanaryWatch, Liveness
from weft.replication.policy import SendPolicy, Throttle
from weft.replication.sender_lanes import LinkLaneState, MarkSchedule, SenderLane, SenderLanes
from weft.replication.source import LaneSnapshot, OfferedLane

# Outgoing batches: merged when they are many and small, held back by the window.

MESSAGE_BYTES = 256 << 10
"""Bytes of DATA in one message, or one batch if that is longer: a message costs the event loop a few ms."""

_NO_AGE = (1 << 63) - 1
Read = tuple[BatchHeader, bytes]


class _Waiting(NamedTuple):
    lane: int
    header: BatchHeader
    data: bytes


class TooLong(Exception):
    """A batch, or a record in it, is longer than the receiver takes."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


class Outbox:
    """The batches of one read of the log, and those in flight. It holds no others."""

    def __init__(self, compression_level: int, policy: SendPolicy | None = None) -> None:
        self._policy = policy
        if policy is not None:
            policy.throttle = None  # a hub's word is for its connection
        self.window = SendWindow()
        self.batch_bytes_max = 0
        self.record_bytes_max = 0
        self._compressor = zstandard.ZstdCompressor(level=compression_level)
        self._in_flight = SentBatches()
        self._waiting: deque[_Waiting] = deque()
        self._background: set[int] = set()
        """Lanes whose records are old because they were asked for, and not because the link is slow."""
        self._timed: tuple[int, int, int, int] | None = None
        """(lane, last number, time of the first record, time of sending) of a batch in flight, whose way is timed."""
        self._arrived: int | None = None
        self._proved: int | None = None

    @property
    def unacked_bytes(self) -> int:
        """Return the bytes in flight, as ``window_cost`` counts them."""
        return self._in_flight.bytes

    @property
    def room(self) -> int:
        """Return the bytes worth reading now: the rest of the window, or 0 while batches wait for it."""
        return 0 if self._waiting else max(0, self.window.bytes - self._in_flight.bytes)

    def throttle(self, throttled: Throttled, now: int) -> None:
        """Follow the hub's request for a slower pace. Without a policy, the hub slows the link by reading later."""
        if self._policy is not None:
            self._policy.throttle = Throttle(throttled, now) if throttled.reason or throttled.wait else None

    def read_bytes(self, usual: int) -> int:
        """Return the bytes of the next read: what is read is sent before everything that comes later."""
        most = min(usual, self.room)
        if self._policy is None or not self._policy.keeps_queue_short:
            return most
        return self._policy.message_bytes(most)

    def oldest_time(self) -> int | None:
        """Return the wall clock time of the oldest record that waits or is in flight, ns."""
        waiting = min((self._time(item.lane, item.header) for item in self._waiting), default=None)
        oldest = min((time for time in (waiting, self._in_flight.oldest_time()) if time is not None), default=None)
        return None if oldest == _NO_AGE else oldest

    def _time(self, lane: int, header: BatchHeader) -> int:
        return _NO_AGE if lane in self._background else header.first_time

    def first_waiting(self, lane: int) -> int | None:
        """Return the oldest record of ``lane`` that waits for the window."""
        return min((item.header.base_seq for item in self._waiting if item.lane == lane), default=None)

    def waiting(self, lane: int) -> RangeSet:
        """Return the records of ``lane`` that wait for the window."""
        return RangeSet(
            sorted((item.header.base_seq, item.header.end_seq) for item in self._waiting if item.lane == lane)
        )

    def merged(self, found: Sequence[Read], bytes_max: int) -> list[Read]:
        """Merge runs of small neighbours into one batch each, up to ``bytes_max`` uncompressed; keep all others as
        stored."""
        # A merged batch must still be accepted by the hub and fit the window.
        limit = min(bytes_max, self.batch_bytes_max, self.window.bytes)
        if self._policy is not None:
            limit = self._policy.message_bytes(limit)
        runs: list[list[Read]] = []
        size = 0
        for header, batch in found:
            size += header.raw_length
            # After an outage the log has one batch per commit, and a hub pays for each batch. A merged one is
            # compressed once, as a whole.
            if runs and size <= limit and mergeable(runs[-1][-1][0], header):
                runs[-1].append((header, batch))
            else:
                runs.append([(header, batch)])
                size = header.raw_length
        return [run[0] if len(run) == 1 else self._merge(run) for run in runs]

    def take(self, lane: SenderLane, seq: int, batches: Sequence[bytes], merge_bytes_max: int) -> Range | None:
        """Queue the result of a read of a lane from ``seq`` on.

        Returns:
            The range that the log holds but did not return; it is skipped.

        Raises:
            TooLong: the receiver does not take the first new one.
            CodecError: one is damaged.
        """
        found = [(decode_header(batch), batch) for batch in batches]
        start = next((header.base_seq for header, _ in found if header.end_seq > seq), None)
        skipped = lane.skip(seq, start)
        # A read begins with the batch that holds ``seq``, which may have been sent already.
        # What the receiver has may lie in the middle of a read; only whole batches of it are left out, since a hub
        # trims overlaps by numbers.
        new = [(header, batch) for header, batch in found if not lane.sent.covers(header.base_seq, header.end_seq)]
        for number, (header, batch) in enumerate(self.merged(new, merge_bytes_max)):
            if (error := self._too_long(header, batch)) is not None:
                if number:
                    break  # those before it are sent; the next read begins with it
                raise error
            lane.claim(header.base_seq, header.end_seq)
            lane.read_bytes += len(batch)
            if header.origin:
                lane.name_origin(header.origin)
            # The hub corrects such times when it writes the chunk, so the notice has to be there before the records.
            if header.clock is not ClockState.SYNCED:
                lane.name_boot(header.boot_id)
            if lane.offered.is_background:
                self._background.add(lane.key)
            self.put(lane.key, header, batch)
        return skipped

    def _too_long(self, header: BatchHeader, batch: bytes) -> TooLong | None:
        if len(batch) > self.batch_bytes_max:
            return TooLong(
                f"the batch at seq {header.base_seq} has {len(batch)} bytes, the hub's limit is {self.batch_bytes_max}",
                "raise the hub's limits.batch",
            )
        if header.raw_length > self.record_bytes_max > 0:
            try:
                check_records(decode_columns(batch, header), header.base_seq, self.record_bytes_max)
            except RecordTooLong as error:
                return TooLong(str(error), RAISE_RECORD)
        return None

    def _merge(self, run: list[Read]) -> Read:
        batch = merge([batch for _, batch in run], self._compressor)
        return decode_header(batch), batch

    def put(self, lane: int, header: BatchHeader, data: bytes) -> None:
        """Queue a batch, which is sent as soon as the window allows, after the waiting ones."""
        self._waiting.append(_Waiting(lane, header, data))

    def next_message(self, now: int) -> list[tuple[int, bytes]]:
        """Return the (lane, batches) of the next message's DATA frames; the batches count as in flight."""
        found: list[tuple[int, bytes]] = []
        batches: list[bytes] = []
        current = total = 0
        # On a slow link a long message would keep a PING waiting for minutes.
        message_bytes = min(MESSAGE_BYTES, self.window.bytes // 4)
        if self._policy is not None:
            # Data wait, but PINGs do not: a link in a quiet hour must not look dead to the hub.
            if self._policy.is_held:
                return found
            self.window.ahead = self._policy.ahead
            message_bytes = self._policy.message_bytes(message_bytes)
            if self._waiting:
                self._policy.begins()
        while self._waiting:
            lane, header, data = self._waiting[0]
            cost = window_cost([(header, data)])
            # In bytes before compression, because that is what the hub holds. On the wire a batch of equal records is
            # nothing.
            if not self._in_flight.room(cost, self.window.bytes):
                self.window.was_full()
                break
            if total and total + len(data) > message_bytes:
                break
            self._waiting.popleft()
            self.window.sent(lane, header.end_seq - 1, now, was_empty=not self._in_flight.bytes)
            self._in_flight.add(lane, header.base_seq, header.end_seq, cost, self._time(lane, header))
            # One record at a time is followed from its time to its acknowledgement, which is enough for a figure and
            # costs nothing per record.
            if self._timed is None and lane not in self._background:
                self._timed = lane, header.end_seq - 1, header.first_time, now
            total += len(data)
            if batches and lane != current:
                found.append((current, b"".join(batches)))
                batches = []
            current = lane
            batches.append(data)
        if batches:
            found.append((current, b"".join(batches)))
        return found

    def settle(self, lane: int, first: int, end: int, covered: RangeSet, now: int) -> None:
        """Note that ``[first, end)`` of ``lane`` was acknowledged; ``covered`` holds all acknowledged ranges."""
        before = self._in_flight.bytes
        self._in_flight.settle(lane, first, end, covered)
        self.window.acknowledged(before - self._in_flight.bytes, lane, first, end, now)
        if self._timed is not None and self._timed[0] == lane and first <= self._timed[1] < end:
            # An acknowledgement comes after a commit, so it proves the store as well as any probe does.
            (_, _, self._arrived, self._proved), self._timed = self._timed, None

    def take_arrived(self) -> int | None:
        """Return the wall clock time of a record acknowledged since the last call, if its way was timed; ns."""
        arrived, self._arrived = self._arrived, None
        return arrived

    def take_proved(self) -> int | None:
        """Return the monotonic time at which records acknowledged since the last call were sent, if they were timed."""
        proved, self._proved = self._proved, None
        return proved

    def forget(self, lane: int) -> None:
        """Drop the waiting batches of a closed lane, and count its sent ones as no longer in flight."""
        self._waiting = deque(item for item in self._waiting if item.lane != lane)
        self._in_flight.forget(lane)
        self._background.discard(lane)
        self.window.forget(lane)
        if self._timed is not None and self._timed[0] == lane:
            self._timed = None

    def clear(self) -> None:
        """Drop everything: the connection is over."""
        self._waiting.clear()


GAPS_PER_MESSAGE, OPENINGS_PER_MESSAGE = 1024, 64


class _State(Enum):
    GREETING = 1
    OPEN = 2
    CLOSED = 3


class Sender:
    """The sender of one connection; a new connection gets a new machine.

    Calls and events identify lanes by the source's numbers; their numbers on the link are internal.

    Args:
        hello: the first frame.
        epoch: epoch of the sender's own lanes, durable before the machine is made.
        wall_clock: ns since 1970, for answering the receiver's PING.
        now: monotonic ns, as everywhere in this class.
        high_watermark: (cluster id, lane) -> result of ``LogSource.high_watermark`` when the lane is accepted.
        policy: of the link, kept across connections; None sends everything at once, the oldest records first.
    """

    def __init__(
        self,
        hello: Hello,
        epoch: int,
        settings: SenderSettings,
        wall_clock: Callable[[], int],
        now: int,
        *,
        high_watermark: Callable[[str, int], int],
        policy: SendPolicy | None = None,
    ) -> None:
        self._settings, self._high_watermark = settings, high_watermark
        self._identity = hello.tenant, hello.edge, hello.log_id
        self._epoch, self._now, self._state = epoch, now, _State.GREETING
        self._encoder = FrameEncoder(settings.compression_level)
        self._decoder, self._lanes = FrameDecoder(), SenderLanes(policy)
        self.liveness = Liveness(settings.ping_interval, settings.silence, wall_clock, now)
        """Timers of this end, with the receiver's answers."""
        self._hello: Hello | None = hello
        self._hello_sent, self._welcome_due = now, now + settings.welcome_timeout
        self._marks = MarkSchedule(settings.mark_interval, now)
        self.patience = AckPatience(settings.ack_timeout)
        """Patience of this connection. The owner may restart it before ``handle_timeout`` ends it."""
        self.beats = BeatWatch(settings.beat_timeout)
        """Silence of the hub. The owner may end it before ``handle_timeout`` looks."""
        self.canary = CanaryWatch(settings.canary_interval, settings.canary_patience, now)
        self._reports = ReportRide(settings.report or LatestReport(), now)
        self._outbox = Outbox(settings.compression_level, policy)
        self._answers: list[Frame] = []
        self._reading: ReadRequest | None = None
        self._events: list[SenderEvent] = []
        self.peer_features: frozenset[str] = frozenset()
        """Features that the receiver announced. Frames of other features are not sent."""
        self.welcome: Welcome | None = None
        """The hub's WELCOME: an owner may take the epochs of its lanes from the clock in it."""
        self.cluster_id = ""
        """Cluster id of the hub, after it accepted the link."""
        self.expected: frozenset[type[Frame]] = frozenset()
        """Frames of features that the owner takes, as events."""

    @property
    def connected(self) -> bool:
        """Return whether the link is accepted and not lost."""
        return self._state is _State.OPEN

    @property
    def closed(self) -> bool:
        """Return whether the connection is over."""
        return self._state is _State.CLOSED

    @property
    def unacked_bytes(self) -> int:
        """Return the DATA bytes in flight; at most the window (or one batch)."""
        return self._outbox.unacked_bytes

    def oldest_pending_time(self) -> int | None:
        """Return the wall clock time of the oldest record that was read and not acknowledged, ns."""
        return self._outbox.oldest_time()

    @property
    def round_trip(self) -> int:
        """Return the last measured time from a question to the hub's answer, ns; 0 before the first."""
        last = self.liveness.last_answer
        return 0 if last is None else 2 * last.error

    @property
    def opening(self) -> list[int]:
        """Return the lanes that the receiver has not answered: offer their state again before each message from it."""
        return self._lanes.opening

    def known(self, lane: int) -> tuple[RangeSet, RangeSet]:
        """Return the receiver's known ranges of ``lane``, and the numbers sent to it as gaps."""
        return self._lanes[lane].safe, self._lanes[lane].reported

    def named_ends(self) -> dict[int, int]:
        """Return, by lane, one past the highest number that the next message may name, for lanes where it has grown.

        The owner calls ``LogSource.prepare_to_send`` with it and asks again, until it is empty, before it sends a
        message.
        """
        return self._lanes.take_named_ends()

    # -- the owner's side

    def open_lane(self, offered: OfferedLane, state: LaneSnapshot) -> None:
        """Offer a lane; ``LaneTaken`` or ``LaneEnded`` answers. Raise ``ValueError`` when it is offered already."""
        identity = offered.identity or Lane(*self._identity, offered.stream)
        self._answers.append(self._lanes.add(SenderLane(offered, identity, self._epoch, state)))

    def close_lane(self, lane: int) -> None:
        """Withdraw a lane; its batches in flight count as not sent."""
        if (closed := self._lanes.remove(lane)) is not None:
            self._answers.append(closed)
        self._drop(lane)

    def _drop(self, lane: int) -> None:
        self._outbox.forget(lane)
        self._marks.forget(lane)

    def offer(self, lane: int, state: LaneSnapshot) -> None:
        """Update the log's state of a lane. Call it after commits that touched it, and for ``stale_lanes``."""
        if lane in self._lanes:
            (known := self._lanes[lane]).offer(state)
            if known.state is LinkLaneState.OPEN:
                self._lanes.touch(known)

    def stale_lanes(self, now: int) -> list[int]:
        """Return the lanes whose marks are due at ``now``: offer their present state first."""
        return self._marks.stale(self._lanes.open(), now, all_due=self.liveness.ping_is_due(now))

    def send_clocks(self, clocks: Sequence[Frame]) -> None:
        """Send clock notices, before any later batch. All marks are due again: the last ones had a wrong time."""
        self._answers[:0] = clocks
        self._marks.make_all_due()

    def send_frame(self, frame: Frame) -> None:
        """Send a frame of a feature that the receiver announced, if the link is open."""
        self._answers += [frame] if self.connected else []

    def end(self, renamed_to: str = "") -> bool:
        """Send the last word of each lane after everything before it; return whether that is done. The log must no
        longer change.

        Args:
            renamed_to: the name under which the log continues, if that is another.
        """
        # A node that stops in good order says up to where its streams are complete. Otherwise completeness would stand
        # at its last mark until it returns.
        return LAST_WORDS not in self.peer_features or self._marks.end(self._lanes.open(), renamed_to)

    def feed(self, lane: int, batches: Sequence[bytes]) -> None:
        """Answer the ``ReadRequest`` with batches of ``lane`` as stored, ascending; empty if there are none."""
        request, self._reading = self._reading, None
        if request is None or request.lane != lane:
            raise ValueError(f"nothing was asked of lane {lane}")
        known = self._lanes.get_open(lane)
        if self._state is not _State.OPEN or known is None:
            return
        try:
            if skipped := self._outbox.take(known, request.seq, batches, self._settings.merge_bytes_max):
                self._events.append(Unreadable(lane, *skipped))
            self._lanes.names_more(known)
            self._answers[:0] = known.explanations()  # before the batches
        except TooLong as error:
            self._give_up(known, str(error), error.advice)
        except CodecError as error:
            self._give_up(known, f"the log gave a damaged batch near seq {request.seq}: {error}", "look at the disk")

    def _give_up(self, lane: SenderLane, message: str, advice: str) -> None:
        """Close a lane that cannot continue on this side."""
        message = f"stream {lane.identity.stream}: {message}"
        self._answers.append(LaneClosed(lane.number, RefuseCode.CLOSED, message, advice))
        self._lane_ended(lane, RefuseCode.CLOSED, message, advice, by_peer=False)

    def _lane_ended(self, lane: SenderLane, code: int, message: str, advice: str, *, by_peer: bool = True) -> None:
        """Note that a lane is closed. The link continues as long as it has another one.

        An edge's own lanes share its identity: a conflict in one is a conflict of the link. Lanes that are relayed are
        many owners': the link stays up for the next one, unless this hub node cannot work at all.
        """
        self._lanes.close(lane, self._now + self._settings.lane_retry)
        self._drop(lane.key)
        is_relayed = bool(lane.offered.flags & LaneFlag.RELAY)
        # An edge's lanes share one identity, so another owner of one of them is an owner of all.
        conflict = code == RefuseCode.IDENTITY_CONFLICT and not is_relayed
        stays = lane.offered.is_background or (is_relayed and code != RefuseCode.UNAVAILABLE)
        # Every other reason concerns one lane. The link stays for the others, and tries the next URL only when none is
        # left.
        if conflict or (self._lanes.all_closed and not stays):
            self._close(Refusal(code, message, advice, by_peer))
            return
        self._events.append(LaneEnded(lane.key, code, message, advice))

    def has_sent(self, lane: int) -> bool:
        """Return whether a lane is open, and all its offered records were sent on this connection."""
        known = self._lanes.get_open(lane)
        return known is not None and known.wanted() is None and self._outbox.first_waiting(lane) is None

    # -- the network's side

    def receive_data(self, data: bytes, now: int) -> None:
        """Process one message from the receiver. Never raises for the peer's input: the outcome is an event."""
        if self._state is _State.CLOSED:
            return
        self._now = now
        self.liveness.heard(now)
        self.beats.heard(now, self.round_trip)
        try:
            for frame in self._decoder.decode(data):
                self._receive(frame)
                if self.closed:
                    return
        except UnsupportedVersion as error:
            message = f"the hub runs a later release: {error}"
            self._close(Refusal(RefuseCode.VERSION, message, "upgrade this node", by_peer=False))
        except CodecError as error:
            self._close(ConnectionLost(Fault.PEER, f"the hub broke the link protocol: {error}"))

    def _receive(self, frame: Frame) -> None:
        match frame:
            case Ack() if self._state is _State.OPEN:
                if (lane := self._lanes.numbered(frame.lane)) is not None and lane.state is LinkLaneState.OPEN:
                    self._acknowledge(lane, checked_ranges(frame.ranges))
            case Ping() | Pong():
                self.liveness.receive(frame, self._now)
            case CanaryBack() if self._state is _State.OPEN:
                self.canary.answered(frame, self._now)
            case Throttled() if self._state is _State.OPEN:
                self._outbox.throttle(frame, self._now)
            # Possible in every state: a hub may refuse before it answers HELLO, and while it shuts down.
            case Refuse():
                self._close(Refusal(frame.code, frame.message, frame.advice, url=frame.url))
            case Welcome() if self._state is _State.GREETING:
                self._welcome(frame)
            case LaneOpened() if self._state is _State.OPEN:
                if (lane := self._lanes.numbered(frame.lane)) is not None:
                    self._opened(lane, checked_ranges(frame.ranges))
            case LaneClosed() if self._state is _State.OPEN:
                if (lane := self._lanes.numbered(frame.lane)) is not None:
                    self._lane_ended(lane, frame.code, frame.message, frame.advice)
            case _ if self._state is _State.OPEN and type(frame) in self.expected:
                self._events.append(frame)
            case _:
                # A frame that is ignored could be one that the other end relies on. Ending the link shows the fault
                # where it is.
                raise Corrupt(f"{type(frame).__name__} is not expected while the link is {self._state.name}")

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION:
            raise UnsupportedVersion(f"it speaks link protocol {welcome.version}, this node {PROTOCOL_VERSION}")
        # Another store behind the same name holds other records. Sending there would release records that the expected
        # store never gets.
        if self._settings.cluster_id not in ("", welcome.cluster_id):
            self._close(of_another_cluster(welcome.cluster_id, self._settings.cluster_id))
            return
        if (unfit := unfit_receiver(welcome.features, self._settings.demands)) is not None:
            self._close(unfit)
            return
        self._state, self.welcome = _State.OPEN, welcome
        self.cluster_id, self.peer_features = welcome.cluster_id, frozenset(welcome.features)
        self.canary.welcome(welcome)
        self.beats.is_on = BEATS in self.peer_features
        self._reports.welcome(welcome)
        # WELCOME carries the hub's clock, so an edge without a clock has the time before its first batch.
        self.liveness.sample(self._hello_sent, welcome.clock, self._now)
        window_bytes = min(welcome.window_bytes, self._settings.window_bytes)
        self._outbox.window.allow(window_bytes, self._settings.window_start_bytes)
        self._outbox.batch_bytes_max = welcome.batch_bytes_max
        self._outbox.record_bytes_max = welcome.record_bytes_max
        self._events.append(Welcomed(welcome.cluster_id, window_bytes))

    def _opened(self, lane: SenderLane, held: RangeSet) -> None:
        if lane.state is not LinkLaneState.OPENING:
            raise Corrupt(f"lane {lane.number} is opened twice")
        if not lane.offered.continues_hub:
            # Others may have passed on what this log sent to them, and only what was sent to none is amiss.
            hub = "" if PEERS in self.peer_features else self.cluster_id
            high_watermark = min(lane.end, self._high_watermark(hub, lane.key))
            # The hub has numbers that this log never sent: the data directory is an older copy of itself. Continuing
            # would give the same numbers to other records, which the hub would drop as repeats.
            if held.end > high_watermark:
                self._close(rolled_back(lane.identity.stream, held.end, high_watermark))
                return
        self._lanes.opened(lane, held)
        self.patience.answered(self._now)
        self.canary.opened(lane.number, self._now)
        self._marks.opened(lane.key)
        self._events.append(LaneTaken(lane.key))
        if len(held):
            # What the hub holds from before counts as acknowledged, so an edge whose acknowledgements were lost frees
            # its disk at once.
            self._events.append(Acked(lane.key, held.copy(), by_opening=True))

    def _acknowledge(self, lane: SenderLane, ranges: RangeSet) -> None:
        known = lane.safe.count()
        lane.acknowledge(ranges)
        for first, end in ranges:
            self._outbox.settle(lane.key, first, end, lane.safe, self._now)
        self.patience.answered(self._now)
        self.canary.proves(self._outbox.take_proved(), self._now)
        self._events.append(Acked(lane.key, ranges, False, lane.safe.count() - known, self._outbox.take_arrived()))

    # -- output

    def events(self) -> list[SenderEvent]:
        """Return the events since the last call, in order; the last is a ``ReadRequest`` if the machine needs data."""
        if (request := self._next_read()) is not None:
            self._reading = request
            self._events.append(request)
        events, self._events = self._events, []
        return events

    def _next_read(self) -> ReadRequest | None:
        # One read at a time. Reading further ahead than the window would fill memory with batches that cannot be sent.
        if self._state is not _State.OPEN or self._reading is not None or self._outbox.room <= 0:
            return None
        if (wanted := self._lanes.next_wanted()) is None:
            return None
        lane, seq = wanted
        return ReadRequest(lane.key, seq, self._outbox.read_bytes(self._settings.read_bytes))

    def data_to_send(self) -> bytes:
        """Return the next message for the receiver, empty when there is none now. Send messages in order, or not at
        all."""
        if self._state is _State.CLOSED:
            return b""
        frames: list[Frame] = []
        if self._hello is not None:
            frames, self._hello, self._hello_sent = [self._hello], None, self._now
        frames += self.liveness.frames()
        # A limited number in each message: each offer may have many ranges.
        frames += self._answers[:OPENINGS_PER_MESSAGE]
        del self._answers[:OPENINGS_PER_MESSAGE]
        if self._state is _State.OPEN:
            # Gaps go before marks: a mark above an unexplained number would be held back at the hub.
            reading = None if self._reading is None else self._reading.lane
            frames += self._lanes.take_gap_frames(GAPS_PER_MESSAGE, self._outbox.waiting, reading)
            for key, batches in self._outbox.next_message(self._now):
                self._marks.sent_data(key)
                frames.append(Data(self._lanes[key].number, batches))
            self._marks.begin(self._lanes.open(), self._now)
            frames += self._marks.take_frames(self._lanes, self._outbox.first_waiting)
            # Lanes that wait for their opening count as well, because the hub answers them only after a commit.
            is_awaited = bool(self._outbox.unacked_bytes or self._lanes.opening)
            self.patience.awaits(is_awaited, self._now)
            self.beats.awaits(is_awaited, self._now, self.round_trip)
        frames += self.canary.rides(frames, self._now)
        frames += self._reports.rides(frames, self._now)
        return self._encoder.encode(frames) if frames else b""

    def deadline(self) -> int | None:
        """Return the time for the next call of ``handle_timeout``; None once closed."""
        if self._state is _State.CLOSED:
            return None
        if self._state is _State.GREETING:
            return min(self.liveness.deadline(), self._welcome_due)
        maybe = (
            self._lanes.next_retry,
            self._lanes.hold_ends,
            self.patience.deadline,
            self.beats.deadline,
            self._reports.deadline,
        )
        return min(self.liveness.deadline(), self._marks.deadline, *(due for due in maybe if due is not None))

    def handle_timeout(self, now: int) -> None:
        """Let time pass up to ``now``; harmless when nothing was due."""
        if self._state is _State.CLOSED:
            return
        self._now = now
        pings = self.liveness.ping_is_due(now)
        lost = self.liveness.handle_timeout(now) or self.beats.handle_timeout(now, self.round_trip)
        if lost is not None:
            self._close(lost)
        elif self._state is _State.GREETING and now >= self._welcome_due:
            self._close(ConnectionLost(Fault.PEER, "the hub did not answer HELLO in time"))
        elif self._state is _State.OPEN:
            # PONGs still come from a hub whose store hangs. Only acknowledgements show that it works, and another node
            # of the hub may be well.
            if self.patience.is_over(now):
                waited = f"acknowledged none for {self._settings.ack_timeout / SECOND:g} s"
                self._close(ConnectionLost(Fault.PEER, f"the hub accepted data and {waited}; look at the hub's store"))
                return
            self._marks.begin(self._lanes.open(), now, all_due=pings)
            self._answers += self._lanes.offer_again(now)

    def _close(self, event: SenderEvent) -> None:
        self._state = _State.CLOSED
        self._outbox.clear()
        self._events.append(event)
