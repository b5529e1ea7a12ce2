"""The receiving end of a link: a machine without I/O. It accepts a sender's batches, and acknowledges durable ones.

Its owner gives it bytes (``receive_data``) and time (``handle_timeout``; monotonic nanoseconds), answers HELLO with
``welcome`` or ``refuse`` and each lane with ``lane_opened`` or ``close_lane``, and calls ``acknowledge`` for committed
ranges, and only for those. Every value that a sender can choose is checked or bounded. A sender that breaks a rule gets
a REFUSE, which ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Set
from enum import Enum
from itertools import takewhile

from weft.protocols.batch import BatchHeader, RecordTooLong
from weft.protocols.chunk_index import PAIR_FLAGS, GapRange, LaneFlag
from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.protocols.lane import NAME_RULE, Lane, valid_name
from weft.protocols.link import (
    BEATS,
    DATA_HEAD,
    FEATURES,
    KNOWN_LANE_FLAGS,
    LANES_MAX,
    PAIR,
    PROTOCOL_VERSION,
    Canary,
    CanaryBack,
    Clock,
    ConfigState,
    Data,
    DownOpen,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Gap,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    LaneOrigins,
    LastWords,
    Marks,
    NodeReport,
    Outcomes,
    PairReport,
    Ping,
    Pong,
    PullState,
    Refuse,
    RefuseCode,
    Welcome,
    split_batches,
)
from weft.protocols.ranges import RangeSet
from weft.protocols.topics import InvalidTopic, check_pattern
from weft.replication import flow_control as bounds
from weft.replication.events import (
    BatchesReceived,
    ClockReceived,
    ConnectionLost,
    Fault,
    GapReceived,
    HelloReceived,
    LaneClosedReceived,
    LaneOpenReceived,
    MarksReceived,
    OriginsReceived,
    ReceiverEvent,
    RecordRefused,
    with_newest_marks,
)
from weft.replication.flow_control import Acks, ReceiverSettings, SentBatches, checked_ranges, window_cost
from weft.replication.liveness import Liveness, PeerClock

# Rules for a HELLO and a LANE_OPEN before a hub relies on them.

SOFTWARE_CHARACTERS_MAX = 256
TOPICS_BYTES_MAX = 64 << 10
"""Longest topic patterns of one lane, together."""
REASON_CHARACTERS_MAX = 300
"""Longest part of a refusal about a pattern, which it quotes."""


def check_hello(hello: Hello) -> None:
    """Check every part of a HELLO that a hub relies on.

    Raises:
        UnsupportedVersion: it is of another protocol version.
        Corrupt: a name is not valid; the message names it.
    """
    if hello.version != PROTOCOL_VERSION:
        raise UnsupportedVersion(
            f"it speaks link protocol {hello.version}, this hub {PROTOCOL_VERSION}: upgrade the older one"
        )
    _check_names(("tenant", hello.tenant), ("edge", hello.edge))
    if len(hello.software) > SOFTWARE_CHARACTERS_MAX:
        raise Corrupt(f"a software name of {len(hello.software)} characters")


def check_opening(opening: LaneOpen, features: Collection[str]) -> None:
    """Check the names, flags and topic patterns of a LANE_OPEN.

    Args:
        features: those of this receiver.

    Raises:
        UnsupportedVersion: it has flags of a later release.
        Corrupt: a name, a flag or a pattern is not valid; the message names it.
    """
    _check_names(("tenant", opening.tenant), ("edge", opening.edge), ("stream", opening.stream))
    # A flag changes what the lane's records mean, so one of a later release is refused and not passed over.
    unknown = opening.flags & ~int(KNOWN_LANE_FLAGS)
    if unknown:
        raise UnsupportedVersion(f"lane flags {unknown:#x} of a later release")
    if opening.flags & PAIR_FLAGS and PAIR not in features:
        raise Corrupt(f"the lane flags {LaneFlag(opening.flags)!r}, which only the peer of a pair takes")
    # An epoch fences other owners. A relay that brought one could end the owner's own link.
    if opening.flags & LaneFlag.RELAY and opening.epoch:
        raise Corrupt(f"a relay claims no epoch, this one claims {opening.epoch}")
    size = sum(map(len, opening.topics))
    if size > TOPICS_BYTES_MAX:
        raise Corrupt(f"topic patterns of {size} characters for one stream; at most {TOPICS_BYTES_MAX} are possible")
    try:
        for topic in opening.topics:
            check_pattern(topic)
    except InvalidTopic as error:
        raise Corrupt(str(error)[:REASON_CHARACTERS_MAX]) from error


def _check_names(*names: tuple[str, str]) -> None:
    for what, name in names:
        if not valid_name(name):
            raise Corrupt(f"{what} name {name[:80]!r}: expected {NAME_RULE}")


def lane_refusal(
    opening: LaneOpen, identity: Lane, opened: Set[Lane], features: Collection[str]
) -> tuple[RefuseCode, str] | None:
    """Return the reason to refuse a lane; the link's other lanes are not affected.

    Args:
        opened: the lanes that the link has.
        features: those of this receiver.
    """
    try:
        check_opening(opening, features)
    except UnsupportedVersion as error:
        return RefuseCode.VERSION, str(error)
    except Corrupt as error:
        return RefuseCode.BAD_HELLO, str(error)
    if identity in opened:
        return RefuseCode.BAD_HELLO, f"lane {identity} is open already on this link"
    if len(opened) >= LANES_MAX:
        return RefuseCode.OVERLOADED, f"the link has {LANES_MAX} lanes, the most that it may have"
    return None


BEAT_LOOK_S = 0.5
"""Interval of the looks at which a link may get a beat."""
_LOOK_NS = int(BEAT_LOOK_S * 1_000_000_000)
QUIET_LOOKS = 3
"""Looks in a row at which an edge waits and hears nothing, until it gets a beat: it hears something within 1 to 1.5 s.
Most commits are quicker, and their acknowledgements spare the beat."""

_DONE, _new = object(), tuple.__new__
_SAME_RELEASE = "run the same release on edge and hub; if they do, report this as a fault of the edge"


class _State(Enum):
    STARTED = 1
    GREETED = 2
    OPEN = 3
    CLOSED = 4


_STARTED, _GREETED, _OPEN, _CLOSED = _State  # an enum finds its members slowly


def _nothing() -> Generator[None]:
    yield from ()


class _Lane:
    """A lane that the sender opened."""

    __slots__ = ("done", "identity")

    def __init__(self, identity: Lane) -> None:
        self.identity = identity
        self.done = RangeSet()
        """Acknowledged ranges."""


class Receiver:
    """The receiving machine of one connection.

    Args:
        cluster_id: identity of this hub, for the sender.
        wall_clock: ns since 1970, for WELCOME and PONG.
        now: monotonic ns, as everywhere in this class.
        in_turns: process a message in turns: the owner checks ``is_busy`` after each. Otherwise at once.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        cluster_id: str,
        software: str,
        wall_clock: Callable[[], int],
        now: int,
        *,
        in_turns: bool = False,
    ) -> None:
        self._settings, self._wall_clock, self._now = settings, wall_clock, now
        self._cluster_id, self._software = cluster_id, software
        self._state = _STARTED
        self.closed = False
        """True once the connection is over; ``data_to_send`` may still hold the REFUSE with the reason."""
        self._encoder, self._decoder = FrameEncoder(small=True), FrameDecoder()
        self._decoder.allow_data(0)  # before WELCOME
        self._in_turns = in_turns
        self._work: Generator[None] = _nothing()
        self.is_busy = False
        """True while a message is not processed to its end: call ``process_more``."""
        self.unchecked: list[tuple[BatchHeader, memoryview]] = []
        """Batches that the owner has to check (``batch.check``) before it calls ``process_more``; the check may take
        long."""
        self.live = Liveness(settings.ping_interval, settings.silence, wall_clock, now, only_silent=True)
        """The peer's silence. The owner pauses it while it does not read."""
        self._hello_due = now + settings.hello_timeout
        self._lanes: dict[int, _Lane] = {}
        self._opened: set[int] = set()
        """Lanes that the owner has accepted."""
        self._identities: set[Lane] = set()
        self._last_lane = -1
        """Largest number of any lane so far. A smaller number that is not open belongs to a closed lane."""
        self._in_flight = SentBatches()
        self._acks = Acks()
        self._answers: list[Frame] = []
        self._proof: tuple[int, int] | None = None
        """Number of a canary, and the time of sending at which its answer would not have waited."""
        self.peer_features: frozenset[str] = frozenset()
        """Features that the sender announced. Frames of other features are not sent."""
        self._events: list[ReceiverEvent] = []
        self._quiet_looks, self._looked = 0, now
        self._spent = 0  # in the present turn, which short messages share
        self.control_cost = 0  # of frames that the window does not count; the owner takes it and sets it to 0

    @property
    def peer_clock(self) -> PeerClock | None:
        """Return the sender's wall clock, as measured."""
        return self.live.peer_clock

    @property
    def record_bytes_max(self) -> int:
        """Return the bound for the owner's checks of ``unchecked``."""
        return self._settings.record_bytes_max

    @property
    def unacked_bytes(self) -> int:
        """Return the bytes of batches that were received and not acknowledged, as the window counts them."""
        return self._in_flight.bytes

    @property
    def window_is_half_used(self) -> bool:
        """Return whether the sender has little room left before it has to wait for an acknowledgement."""
        return 2 * self._in_flight.bytes >= self._settings.window_bytes

    # -- the owner's side

    def welcome(self) -> None:
        """Accept the link. Lanes are answered one by one."""
        if self._state is not _GREETED:
            return
        settings = self._settings
        self._answers.append(
            Welcome(
                PROTOCOL_VERSION,
                self._cluster_id,
                settings.window_bytes,
                settings.batch_bytes_max,
                self._wall_clock(),
                self._software,
                [*FEATURES, *settings.features],
                settings.mark_interval,
                settings.record_bytes_max,
            )
        )
        self._state = _OPEN
        self._decoder.allow_data(max(settings.batch_bytes_max, bounds.DATA_FRAME_BYTES) + DATA_HEAD.size)

    def refuse(self, code: RefuseCode, message: str, advice: str, url: str = "") -> None:
        """Refuse the link, now or later, and close. The sender sends unacknowledged batches again."""
        if self.closed:
            return
        self._close()
        # Nothing else is said: an acknowledgement after the refusal could be of another history.
        self._answers = [Refuse(PROTOCOL_VERSION, code, message, advice, url)]

    def lane_opened(self, lane: int, held: RangeSet) -> None:
        """Accept a lane; records in ``held`` are durable here already. Do nothing if it was closed meanwhile."""
        known = self._lanes.get(lane)
        if self.closed or known is None:
            return
        if lane in self._opened:
            raise ValueError(f"lane {lane} is open already")
        self._opened.add(lane)
        known.done.update(held)
        self._answers.append(LaneOpened(lane, list(held)))

    def close_lane(self, lane: int, code: RefuseCode, message: str, advice: str) -> None:
        """Close one lane and keep the link. Its frames in flight are dropped."""
        if self.closed or not self._forget(lane):
            return
        self._answers.append(LaneClosed(lane, code, message, advice))

    def acknowledge(self, lane: int, ranges: RangeSet) -> None:
        """Acknowledge that ``ranges`` of ``lane`` are durable. Ranges may be acknowledged again.

        The set is kept: it must not be changed afterwards.
        """
        known = self._lanes.get(lane)
        # The lane may have been closed while its records were being committed. They are stored, and the next opening
        # says so.
        if self._state is not _OPEN or known is None:
            return
        done, pairs = known.done, list(ranges)
        done.update(pairs)
        for first, end in pairs:
            self._in_flight.settle(lane, first, end, done)
        self._acks.add(lane, ranges)

    def send_frame(self, frame: Frame) -> None:
        """Send a frame of a feature that the sender announced, if the link is open."""
        self._answers += [frame] if self._state is _OPEN else []

    def prove(self, number: int, waited: int, now: int) -> None:
        """Answer a canary with the next PONG: a chunk, begun ``waited`` ns after it, is durable now."""
        # A store that does not answer may delay the beginning, too: that is no wait for others.
        self._proof = number, now - min(waited, self._settings.mark_interval)

    def beat(self, now: int) -> bool:
        """Look whether the sender waits for something, and queue a sign of life if it has heard nothing for
        ``QUIET_LOOKS``; return whether there is one to send. The owner calls this each ``BEAT_LOOK_S``."""
        # A loop that is busy looks more seldom, and its edges wait as well.
        missed, self._looked = (now - self._looked) // _LOOK_NS, now
        # While the owner does not read, the sender's data wait unseen, and its PINGs behind them.
        is_awaited = self._in_flight.bytes or self.live.is_paused or len(self._lanes) > len(self._opened)
        if not is_awaited or self._state is not _OPEN or BEATS not in self.peer_features:
            self._quiet_looks = 0
            return False
        self._quiet_looks += missed + 1 if missed > 1 else 1
        if self._quiet_looks < QUIET_LOOKS:
            return False
        self._now = now
        self.live.beat()
        return True

    def _forget(self, lane: int) -> bool:
        """Forget a lane that is closed; return whether it was not closed before."""
        if (known := self._lanes.pop(lane, None)) is None:
            return False
        self._opened.discard(lane)
        self._identities.remove(known.identity)
        self._in_flight.forget(lane)
        self._acks.forget(lane)
        return True

    # -- the network's side

    def receive_data(self, data: bytes, now: int) -> None:
        """Process one message from the sender. Never raises for the peer's input: the outcome is an event."""
        if self.closed:
            return
        self._now, self._work = now, self._take_message(data)
        self.live.heard(now)
        self.process_more()

    def process_more(self, error: CodecError | None = None) -> None:
        """Process more of the message, for one turn.

        Args:
            error: the error of a check of ``unchecked``.
        """
        try:
            # An error goes to the place that asked for the check, which knows whether it is the lane's alone.
            step = next(self._work, _DONE) if error is None else self._work.throw(error)
            self.is_busy = not self.closed and step is not _DONE
        except StopIteration:
            self.is_busy = False
        except UnsupportedVersion as failure:
            self._blame(f"the edge runs a later release: {failure}", RefuseCode.VERSION)
        except CodecError as failure:
            code = RefuseCode.BAD_HELLO if self._state is _STARTED else RefuseCode.PROTOCOL_ERROR
            self._blame(f"the edge broke the link protocol: {failure}", code)
        if self.closed:
            self.is_busy, self.unchecked, self._work = False, [], _nothing()
            self._decoder.clear()

    def _take_message(self, data: bytes) -> Generator[None]:
        """Process a message, with a stop at each place where the owner has something to do."""
        yield from self._decoder.unpack(data, in_turns=self._in_turns)
        opened = self._opened
        for frame in self._decoder.unpacked():
            if isinstance(frame, Data) and (frame.lane in opened or self._known(frame.lane)):
                batches = split_batches(frame.batches)
                cost = window_cost(batches)
                # A body that decompresses to much holds up the process's other links. It is checked in a thread, one at
                # a time.
                is_long = cost > bounds.CHECKED_AT_ONCE_BYTES and self._in_turns
                try:
                    self._in_flight.admit(frame.lane, batches, cost, self._settings, not is_long)
                    if is_long:
                        self.unchecked = batches
                        yield
                        self.unchecked = []
                    self._events.append(_new(BatchesReceived, (frame.lane, batches)))
                except RecordTooLong as error:
                    self.unchecked = []
                    self._refuse_record(frame.lane, batches, error)
            else:
                if not isinstance(frame, Data):
                    self._receive(frame)
                    if self.closed:
                        return
                # Frames without records cost the window nothing, but the hub time: a flood of gaps or openings is
                # charged to its edge.
                self.control_cost += (cost := bounds.control_cost(frame, self._decoder.frame_bytes))
            self._spent += cost
            # One message may hold thousands of frames. The other links of the process get their turn between them.
            if self._spent >= bounds.TURN_COST and self._in_turns:
                self._spent = 0
                yield
        if self._decoder.holds_part:
            # Edges send whole frames only. Keeping parts would let many links hold memory with a few bytes each: 24 of
            # them held 2.4 GB.
            raise Corrupt("a message ends inside a frame")

    def _refuse_record(self, lane: int, batches: list[tuple[BatchHeader, memoryview]], error: RecordTooLong) -> None:
        """Close a lane at a record that is too long. What came before it is taken."""
        if lane not in self._lanes:
            return  # it was closed while its batches were checked
        # The check ended at the batch with the record: those behind it are not checked.
        sound = [*takewhile(lambda each: not each[0].base_seq <= error.seq < each[0].end_seq, batches)]
        if sound:
            self._events.append(BatchesReceived(lane, sound))
        self._events.append(RecordRefused(lane, str(error)))
        message = f"stream {self._lanes[lane].identity.stream}: {error}"
        self.close_lane(lane, RefuseCode.OVERLOADED, message, bounds.RAISE_RECORD)

    def _receive(self, frame: Frame) -> None:
        if self._state is _STARTED:
            if not isinstance(frame, Hello):
                raise Corrupt(f"the first frame must be HELLO, got {type(frame).__name__}")
            self._greet(frame)
            return
        match frame:
            case Ping() | Pong():
                self.live.receive(frame, self._now)
            case Gap():
                if self._known(frame.lane):
                    self._events.append(GapReceived(frame.lane, GapRange(frame.first, frame.end, frame.reason)))
            case Marks() | LastWords():
                if lanes := [pair for pair in frame.lanes if pair[0] in self._opened or self._known(pair[0])]:
                    last = isinstance(frame, LastWords)
                    renamed_to = frame.renamed_to if isinstance(frame, LastWords) else ""
                    if renamed_to and not valid_name(renamed_to):
                        raise Corrupt("LAST_WORDS names no edge")
                    self._events.append(MarksReceived(frame.time, lanes, last, renamed_to))
            case LaneOpen():
                self._open(frame)
            case LaneClosed():
                if self._known(frame.lane, opening=True) and self._forget(frame.lane):
                    self._events.append(LaneClosedReceived(frame.lane, frame.message))
            case LaneOrigins():
                if self._known(frame.lane, opening=True):
                    self._events.append(OriginsReceived(frame))
            case Clock():
                self._events.append(ClockReceived(frame))
            case ConfigState() | DownOpen() | Outcomes() | PullState() | Canary() | NodeReport() | PairReport() if (
                self._state is _OPEN
            ):
                self._events.append(frame)
            case _:
                raise Corrupt(f"{type(frame).__name__} is not expected while the link is {self._state.name}")

    def _greet(self, hello: Hello) -> None:
        check_hello(hello)
        self.peer_features = frozenset(hello.features)
        self._state = _GREETED
        self._events.append(HelloReceived(hello))

    def _open(self, opening: LaneOpen) -> None:
        number = opening.lane
        # Numbers only rise, so a frame of a closed lane can be dropped without asking which opening it belonged to.
        if number <= self._last_lane:
            raise Corrupt(f"lane number {number} again: {self._last_lane} was opened before")
        self._last_lane = number
        # An edge that never reads could otherwise fill the hub's memory with its answers.
        if len(self._answers) > LANES_MAX:
            raise Corrupt(f"{len(self._answers)} answers wait, and the edge opens lanes without reading them")
        checked_ranges(opening.ranges)
        identity = Lane(opening.tenant, opening.edge, opening.log_id, opening.stream)
        if (refusal := lane_refusal(opening, identity, self._identities, self._settings.features)) is not None:
            self._answers.append(LaneClosed(number, *refusal, _SAME_RELEASE))
            return
        self._lanes[number] = _Lane(identity)
        self._identities.add(identity)
        self._events.append(LaneOpenReceived(opening))

    def _known(self, number: int, *, opening: bool = False) -> bool:
        """Return whether the lane is open; False if it was closed while a frame of it was in flight."""
        is_there = number in self._lanes
        if is_there and (opening or number in self._opened):
            return True
        # On the way when the lane was closed, which is no fault of the sender.
        if not is_there and number <= self._last_lane:
            return False
        raise Corrupt(f"lane {number} is not open")

    def _blame(self, reason: str, code: RefuseCode) -> None:
        self.refuse(code, reason, _SAME_RELEASE)
        self._events.append(ConnectionLost(Fault.PEER, reason))

    # -- output

    def events(self) -> list[ReceiverEvent]:
        """Return the events since the last call, in order. Of each lane only the newest mark is left."""
        events, self._events = self._events, []
        return with_newest_marks(events) if len(events) > 1 else events

    @property
    def has_to_answer(self) -> bool:
        """Return whether ``data_to_send`` would return something besides ACKs, which may wait for others."""
        return bool(self._answers) or (self.live.owes and not self.closed)

    def data_to_send(self) -> bytes:
        """Return the next message for the sender, empty when there is none now. Waiting ACKs are joined per lane."""
        frames, self._answers = self._answers, []
        if not self.closed:
            # A packet of its own would cost as much as the PONG. ``_now`` is the time of the PING.
            if self._proof is not None and self.live.owes:
                (number, base), self._proof = self._proof, None
                frames.append(CanaryBack(number, max(0, self._now - base)))
            frames += self.live.frames()
        frames += self._acks.take()
        if not frames:
            return b""
        self._quiet_looks = 0
        return self._encoder.encode(frames)

    # -- time

    def deadline(self) -> int | None:
        """Return the time for the next call of ``handle_timeout``; None once closed."""
        if self.closed:
            return None
        return min(self.live.deadline(), self._hello_due) if self._state is _STARTED else self.live.deadline()

    def handle_timeout(self, now: int) -> None:
        """Let time pass up to ``now``; harmless when nothing was due."""
        if self.closed:
            return
        self._now = now
        lost = self.live.handle_timeout(now)
        if lost is None and self._state is _STARTED and now >= self._hello_due:
            lost = ConnectionLost(Fault.PEER, "timed out waiting for HELLO")
        if lost is not None:
            self._close()
            self._events.append(lost)

    def _close(self) -> None:
        self._state, self.closed = _CLOSED, True
        self._acks.clear()
