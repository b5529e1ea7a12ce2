"""The window of a sender: it follows the rate of acknowledgements."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.speed import slowness, uncollected
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Origin, OriginKind
from weft.protocols.link import (
    COPIES_MAX,
    FEATURES,
    FUNCTIONS_MAX,
    PAIR_REPORT,
    PROTOCOL_VERSION,
    REPORT,
    Ack,
    Canary,
    CanaryBack,
    Clock,
    ConfigDesired,
    ConfigState,
    CopyReport,
    Data,
    DownOpen,
    Frame,
    FrameEncoder,
    FrameType,
    FunctionReport,
    Gap,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    LaneOrigins,
    LastWords,
    Marks,
    MessageOutcome,
    Messages,
    NodeReport,
    Outcomes,
    PairReport,
    Ping,
    Pong,
    Pulls,
    PullState,
    Refuse,
    RefuseCode,
    Throttled,
    Welcome,
)
from weft.protocols.ranges import RangeSet
from weft.replication.flow_control import (
    COUNTS_INTERVAL,
    INTERVAL,
    START_BYTES,
    TROUBLE_INTERVAL,
    LatestReport,
    ReceiverSettings,
    ReportRide,
    SendWindow,
    SentBatch,
    SentBatches,
    checked_ranges,
)
from weft.replication.liveness import SECOND
from weft.replication.receiver import Receiver

COMMIT = SECOND // 4
MOST = 8 << 20


def test_a_hub_that_acknowledges_all_at_once_gets_as_much_as_it_can_take() -> None:
    """Each commit acknowledges everything on the way, so no period is ever longer than a commit."""
    window, now = SendWindow(), 0
    window.allow(MOST)
    for _ in range(4):
        window.sent(1, 99, now, was_empty=True)
        window.was_full()
        now += COMMIT
        window.acknowledged(window.bytes, 1, 0, 100, now)
    window.sent(1, 99, now, was_empty=True)
    assert window.bytes == MOST


def test_one_batch_longer_than_the_window_lets_it_grow() -> None:
    window, now = SendWindow(), 0
    window.allow(MOST)
    for _ in range(3):
        window.sent(1, 99, now, was_empty=True)
        now += COMMIT
        window.acknowledged(2 * START_BYTES, 1, 0, 100, now)
    window.sent(1, 99, now, was_empty=True)
    assert window.bytes > 8 * START_BYTES


def test_a_sender_that_has_little_to_send_learns_nothing() -> None:
    window, now = SendWindow(), 0
    window.allow(MOST)
    for _ in range(10):
        window.sent(1, 99, now, was_empty=True)
        now += COMMIT
        window.acknowledged(1000, 1, 0, 100, now)
    assert window.bytes == START_BYTES


def test_a_lane_that_was_closed_is_measured_no_more() -> None:
    """Its acknowledgement never comes. Without another probe the window would stay as it is for good."""
    window, now = SendWindow(), 0
    window.allow(MOST)
    window.sent(1, 99, now, was_empty=True)
    window.forget(2)  # another lane's end changes nothing
    window.forget(1)
    window.sent(3, 7, now, was_empty=False)
    window.was_full()
    now += COMMIT
    window.acknowledged(2 * START_BYTES, 3, 0, 8, now)
    window.sent(3, 9, now, was_empty=True)
    assert window.bytes > START_BYTES


# --- Bytes on the way and ranges from the wire


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12))))
def test_bytes_are_freed_exactly_when_every_record_of_a_batch_was_acknowledged(acks: list[tuple[int, int]]) -> None:
    in_flight = SentBatches()
    batches = [SentBatch(first, first + 5, 100, first) for first in range(0, 40, 5)]
    for each in batches:
        in_flight.add(1, *each)
    covered = RangeSet()
    for first, length in acks:
        covered.add(first, first + length)
        in_flight.settle(1, first, first + length, covered)
        assert in_flight.bytes == sum(100 for batch in batches if not covered.covers(batch.first, batch.end))


def test_one_batch_may_be_longer_than_the_window() -> None:
    in_flight = SentBatches()
    assert in_flight.room(1000, window_bytes=10)
    in_flight.add(1, 0, 1, 1000, 0)
    assert not in_flight.room(1, window_bytes=10)
    assert in_flight.oldest_time() == 0


@pytest.mark.parametrize("pairs", [[(5, 9), (1, 3)], [(3, 3)], [(4, 2)], [(0, 5), (3, 9)], [(-1, 2)]])
def test_ranges_that_do_not_ascend_are_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(Corrupt):
        checked_ranges(pairs)


def test_more_ranges_than_allowed_are_refused() -> None:
    with pytest.raises(Corrupt, match="at most 2"):
        checked_ranges([(0, 1), (2, 3), (4, 5)], 2)


class _Counted(list[SentBatch]):
    """Batches of which each one that is looked at counts."""

    looks = 0

    def __iter__(self) -> Iterator[SentBatch]:
        for each in super().__iter__():
            self.looks += 1
            yield each


def test_ranges_that_were_acknowledged_before_look_at_no_batch_in_flight() -> None:
    """A hub acknowledges all ranges of a lane again at each commit, and a hostile edge has many of both."""
    in_flight = SentBatches()
    for first in range(10_000, 11_000):
        in_flight.add(1, first, first + 1, 100, 0)
    flight = in_flight._lanes[1]
    flight.entries = entries = _Counted(flight.entries)
    covered = RangeSet((first, first + 1) for first in range(0, 2_000, 2))
    for first, end in covered:
        in_flight.settle(1, first, end, covered)
    assert (entries.looks, len(in_flight)) == (0, 1_000)
    covered.add(2_000, 11_000)
    in_flight.settle(1, 2_000, 11_000, covered)
    assert (len(in_flight), in_flight.bytes) == (0, 0)


# --- What a frame costs the hub is paid for: by its bytes on the wire, or where it compresses, by what is charged for
# it
#
# The window charges records, and the budget of a token everything else (``Receiver.control_cost``). A frame that is
# neither has to cost little for each byte that its sender pays.


WIRE_S_MAX = 0.001
"""Longest processor time for each KiB on the wire, on the machine of the budgets."""
UNIT_S_MAX = 60e-9
"""Longest processor time for each unit of cost, with which the budget of a token (2 Mi a second) is an eighth of a
core at most. What handlers do for a frame comes to that."""
END_S_MAX = 0.001
"""Longest processor time for the end of a link, since its sender pays for another one."""
LANES = 1_000
TRIES = 5
HELLO = Hello(PROTOCOL_VERSION, "default", "press-1", 1, 1, 0, "test")
RANGES = [(2 * at, 2 * at + 1) for at in range(2_000)]
ORIGINS = [Origin(1 + at, OriginKind.FUNCTION, f"clean-{at}", "1", b"hash") for at in range(200)]
COPIES = [CopyReport("t" * 64, "e" * 64, 1 << 63, 1 << 62, is_vouched=True, records=1 << 63)] * COPIES_MAX
FUNCTIONS = [FunctionReport(f"s{at}", "where", 1, 1, 1, "e" * 160) for at in range(FUNCTIONS_MAX)]


def small_batch(seq: int) -> bytes:
    columns = batch.columns_from_lists(struct.pack("<q", 1), [b"k"], [b"1"])
    return batch.encode(1, seq, columns, ClockReading(1, 1, ClockState.SYNCED))


def opening(lane: int) -> LaneOpen:
    return LaneOpen(lane, "default", "press-1", 1, f"s{lane}", 1, [], ["plant/{line}/{machine}/telemetry"])


Frames = Callable[[int], list[Frame]]
"""Frames of a message of a link with ``LANES`` open lanes. The argument is 0, 1, ... for each message."""
SENT: dict[FrameType, Frames] = {
    FrameType.HELLO: lambda _: [HELLO],  # the second one ends the link, as do all that only hubs send
    FrameType.WELCOME: lambda _: [Welcome(1, "c", 1, 1, 0, "s", [], 1)],
    FrameType.REFUSE: lambda _: [Refuse(1, RefuseCode.CLOSED, "m" * 1_000, "a")],
    FrameType.DATA: lambda n: [Data(1, small_batch(2_000 * n + at)) for at in range(2_000)],
    FrameType.GAP: lambda n: [Gap(1, 2 * at, 2 * at + 1, 1 + at % 2) for at in range(2_000 * n, 2_000 * n + 2_000)],
    FrameType.MARK: lambda n: [Marks(8 * n + at, [(lane, 0) for lane in range(LANES)]) for at in range(8)],
    FrameType.LAST_WORDS: lambda n: [LastWords(8 * n + at, [(lane, 0) for lane in range(LANES)]) for at in range(8)],
    FrameType.ACK: lambda _: [Ack(1, RANGES)],
    FrameType.PING: lambda n: [Ping(2_000 * n + at) for at in range(2_000)],
    FrameType.PONG: lambda n: [Pong(2_000 * n + at, 1) for at in range(2_000)],
    FrameType.LANE_OPEN: lambda n: [opening(LANES + 200 * n + at) for at in range(200)],
    FrameType.LANE_OPENED: lambda _: [LaneOpened(1, RANGES)],
    FrameType.LANE_CLOSED: lambda n: [LaneClosed(100 * n + at, RefuseCode.CLOSED, "", "") for at in range(100)],
    FrameType.CLOCK: lambda n: [Clock(1, 2_000 * n + at, 1, 1, 1) for at in range(2_000)],
    FrameType.ORIGINS: lambda _: [LaneOrigins(1, ORIGINS)],
    FrameType.PULLS: lambda _: [Pulls([])],
    FrameType.PULL_STATE: lambda _: [PullState("a", 1, 1, RANGES[:200], 1, 1, 0) for _ in range(10)],
    FrameType.DOWN_OPEN: lambda n: [DownOpen(at) for at in range(2_000 * n, 2_000 * n + 2_000)],
    FrameType.MESSAGES: lambda _: [Messages([])],
    FrameType.OUTCOMES: lambda _: [Outcomes([MessageOutcome(at, 1, 1) for at in range(60)]) for _ in range(20)],
    FrameType.CONFIG_DESIRED: lambda _: [ConfigDesired(1, "0" * 16, [])],
    FrameType.CONFIG_STATE: lambda _: [ConfigState(1, "0" * 16, 1, "x" * 200, 1, "0" * 16) for _ in range(500)],
    FrameType.CANARY: lambda n: [Canary(2_000 * n + at) for at in range(2_000)],
    FrameType.CANARY_BACK: lambda _: [CanaryBack(1, 1)],
    FrameType.THROTTLED: lambda _: [Throttled(1, 1, "x")],
    FrameType.PAIR_REPORT: lambda n: [PairReport([(100 * n + at, None)], COPIES) for at in range(100)],
    FrameType.NODE_REPORT: lambda n: [NodeReport(100 * n + at, 1, 1, 1, 1, FUNCTIONS, 0) for at in range(100)],
}
RESERVED = {FrameType.THROTTLE, FrameType.PULL, FrameType.CONFIG, FrameType.PUBLISH}


def test_every_frame_has_its_flood() -> None:
    assert set(SENT) | RESERVED == set(FrameType), "a new frame needs an example here: what costs the hub most of it?"


class Link:
    """A hub's end, and an edge that sends whatever it likes."""

    def __init__(self) -> None:
        settings = ReceiverSettings(window_bytes=1 << 30)
        self.receiver = Receiver(settings, "cluster", "test", lambda: 0, 0, in_turns=True)
        self._encoder = FrameEncoder(1)
        self.take(self.encoded([HELLO]))
        self.receiver.welcome()
        self.take(self.encoded([opening(lane) for lane in range(LANES)]))
        for lane in range(LANES):
            self.receiver.lane_opened(lane, RangeSet())
        self.charged()

    def encoded(self, frames: list[Frame]) -> bytes:
        return self._encoder.encode(frames)

    def take(self, message: bytes) -> float:
        """Take a message. Return its processor time."""
        receiver = self.receiver
        began = time.thread_time()
        receiver.receive_data(message, 0)
        receiver.events()
        while receiver.is_busy:
            receiver.process_more()
            receiver.events()
        return time.thread_time() - began

    def charged(self) -> int:
        """The cost since the last call, in the window and beside it."""
        in_flight, self._in_flight = getattr(self, "_in_flight", 0), self.receiver.unacked_bytes
        cost, self.receiver.control_cost = self.receiver.control_cost, 0
        return cost + self._in_flight - in_flight


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.name)
def test_a_frame_costs_little_or_is_charged(kind: FrameType) -> None:
    link, best, numbers = Link(), float("inf"), count()
    with uncollected():
        for _ in range(TRIES):
            if link.receiver.closed:
                link = Link()
            message = link.encoded(SENT[kind](next(numbers)))
            taken_s = link.take(message) / slowness()
            paid_s = len(message) / 1024 * WIRE_S_MAX + link.charged() * UNIT_S_MAX
            paid_s += END_S_MAX if link.receiver.closed else 0.0
            best = min(best, taken_s / paid_s)
            if best < 1:
                return
    raise AssertionError(f"{kind.name} takes {best:.1f} times the processor time that it pays for")


# --- When a sender tells of its disk and functions: with messages that go anyway, seldom, and only what people would
# want to know


HOT = FunctionReport("hot", "where", 1000, 10, 0, "")
WELL = NodeReport(500 << 20, 1 << 30, 500 << 20, 2000, 86_400, [HOT], 0)
MESSAGE: list[Frame] = [Ping(1)]


@dataclass
class Connection:
    """A connection whose owner changes what it tells of itself."""

    latest: LatestReport
    ride: ReportRide
    now: int = 0

    def sends(self, report: NodeReport, after: int = 0, message: list[Frame] = MESSAGE) -> list[Frame]:
        """Let time pass, and send a message; return what goes with it."""
        self.now += after
        self.latest.report = report
        return self.ride.rides(message, self.now)


def connection(features: tuple[str, ...] = FEATURES) -> Connection:
    latest = LatestReport()
    made = Connection(latest, ReportRide(latest, 0))
    made.ride.welcome(Welcome(1, "c", 1, 1, 0, "weft", list(features)))
    return made


def test_a_report_goes_with_a_message_and_makes_none() -> None:
    link = connection()
    assert link.sends(WELL, message=[]) == []
    assert link.sends(WELL) == [WELL]
    assert link.sends(WELL, 86_400 * SECOND) == [], "an idle node has nothing to say"


def test_a_hub_of_an_earlier_release_gets_none_and_a_node_without_one_sends_none() -> None:
    assert connection(tuple(each for each in FEATURES if each != REPORT)).sends(WELL) == []
    assert connection().ride.rides(MESSAGE, 0) == []


def test_a_change_of_a_pair_is_told_at_once_and_then_at_most_every_while() -> None:
    link, alone = connection(), PairReport([(5, None)], [])
    link.latest.pair = PairReport([], [])
    assert link.sends(WELL) == [WELL, link.latest.pair]
    link.latest.pair = alone
    assert link.sends(WELL, INTERVAL) == [alone]
    link.latest.pair = PairReport([(5, 9)], [])
    assert link.sends(WELL, INTERVAL // 2) == []
    assert link.sends(WELL, INTERVAL) == [link.latest.pair]
    old = connection(tuple(each for each in FEATURES if each != PAIR_REPORT))
    old.latest.pair = alone
    assert old.sends(WELL) == [WELL]


CHANGED = {
    "a fiftieth of the budget was filled": {"used_bytes": WELL.used_bytes + (22 << 20)},
    "space was freed": {"free_bytes": WELL.free_bytes + (22 << 20)},
    "another budget": {"budget_bytes": 2 << 30},
    "an outage may last half as long": {"outage_seconds": 43_200},
    "the log is full": {"outage_seconds": 0},
    "nothing comes in": {"outage_seconds": None, "bytes_per_second": 0},
    "a function has an error": {"functions": [msgspec.structs.replace(HOT, errors=1)]},
    "a function has gone": {"functions": []},
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
def test_what_changed_is_told_once_in_half_a_minute(changed: dict[str, object]) -> None:
    link, other = connection(), msgspec.structs.replace(WELL, **changed)
    assert link.sends(WELL) == [WELL]
    assert link.sends(other, INTERVAL - 1) == []
    assert link.sends(other, 1) == [other]
    assert link.sends(other, COUNTS_INTERVAL) == []


def test_a_trouble_of_a_function_is_told_without_a_message_once_in_some_seconds() -> None:
    link = connection()
    failed, other = (
        msgspec.structs.replace(WELL, functions=[msgspec.structs.replace(HOT, last_error=why)])
        for why in ("no file", "no model")
    )
    assert link.sends(WELL) == [WELL]
    assert link.ride.deadline is None
    assert link.sends(failed, TROUBLE_INTERVAL - 1, message=[]) == []
    assert link.ride.deadline == TROUBLE_INTERVAL
    assert link.sends(failed, 1, message=[]) == [failed]
    assert link.sends(WELL, TROUBLE_INTERVAL, message=[]) == [WELL], "its end is told as soon"
    assert link.sends(failed, INTERVAL, message=[]) == [failed], "at once: the report before is old"
    assert link.sends(other, INTERVAL - 1, message=[]) == [], "another reason waits for a message"
    assert link.sends(other, 1) == [other]
    flapping = [link.sends((WELL, other)[n % 2], SECOND, message=[]) for n in range(60)]
    assert sum(map(len, flapping)) <= 60 * SECOND // TROUBLE_INTERVAL


@pytest.mark.parametrize("same", [{"used_bytes": WELL.used_bytes + (20 << 20)}, {"outage_seconds": 100_000}])
def test_what_changed_a_little_is_not_told(same: dict[str, object]) -> None:
    link = connection()
    assert link.sends(WELL) == [WELL]
    assert link.sends(msgspec.structs.replace(WELL, **same), 10 * INTERVAL) == []


def test_small_changes_are_told_once_they_add_up() -> None:
    link = connection()
    reported = sum(
        len(link.sends(msgspec.structs.replace(WELL, used_bytes=n << 20), INTERVAL)) for n in range(500, 1000, 5)
    )
    assert 15 <= reported <= 25, "a half of the budget was filled"


def test_rows_of_functions_are_told_every_five_minutes_while_some_come() -> None:
    link = connection()
    assert link.sends(WELL) == [WELL]
    more = msgspec.structs.replace(WELL, functions=[msgspec.structs.replace(HOT, rows_in=1001)])
    assert link.sends(more, COUNTS_INTERVAL - 1) == []
    assert link.sends(more, 1) == [more]
    assert link.sends(more, COUNTS_INTERVAL) == []


def test_a_long_outage_is_no_news_however_much_longer_it_becomes() -> None:
    link, month = connection(), 30 * 86_400
    long = msgspec.structs.replace(WELL, outage_seconds=month)
    assert link.sends(long) == [long]
    assert link.sends(msgspec.structs.replace(WELL, outage_seconds=100 * month), INTERVAL) == []
