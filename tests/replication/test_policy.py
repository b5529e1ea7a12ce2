"""Policies of links: what goes next, when, how fast, and how much in a month."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.replication.model import LongLog, ModelHub, ModelLog, Pair
from tests.replication.test_sender import LANES, Replication
from weft.protocols.batch import BatchHeader
from weft.protocols.link import Throttled
from weft.protocols.ranges import RangeSet
from weft.replication.events import BatchesReceived, GapReceived, HelloReceived, LaneOpenReceived, ReadRequest
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import (
    HOLES_MAX,
    PERIODS_MAX,
    BudgetCount,
    BudgetRule,
    DayWindow,
    Order,
    PolicyRules,
    SendPolicy,
    StreamWindows,
    TokenBucket,
    Transfers,
    period_of,
    reserve,
)
from weft.replication.receiver import Receiver
from weft.replication.sender import Sender

# --- Which lane and record comes next, on connections of a log in memory with a hub in memory


FRESH = PolicyRules(order=Order.FRESH_FIRST, history_share=0.25)
WINDOW = ReceiverSettings(window_bytes=4000)
READS = SenderSettings(merge_bytes_max=0, read_bytes=700, mark_interval=SECOND)


class Line:
    """A pair whose hub commits one message at a time, as a slow line brings them."""

    def __init__(self, log: ModelLog, rules: PolicyRules, hub: ModelHub | None = None) -> None:
        self.log, self.hub = log, hub or ModelHub()
        self.policy = SendPolicy(rules)
        self.now = 0
        self.connect()

    def connect(self, epoch: int = 1) -> None:
        self.pair = Pair(
            self.log, self.hub, epoch=epoch, sending=READS, receiving=WINDOW, policy=self.policy, now=self.now
        )
        self.pair.pump_sender()
        self.pair.deliver_up()
        self.pair.deliver_down()

    def step(self) -> list[tuple[int, int, int]]:
        """One message up and what it brought, as (lane, first, end); its acknowledgement down."""
        self.pair.pump_sender()
        self.pair.deliver_up()
        headers: list[tuple[int, BatchHeader]] = []
        while self.pair.uncommitted:
            event = self.pair.uncommitted[0]
            if isinstance(event, BatchesReceived):
                headers += [(self.pair.lanes[event.lane], header) for header, _ in event.batches]
            self.pair.acknowledge()
        self.pair.deliver_down()
        return [(lane, header.base_seq, header.end_seq) for lane, header in headers]

    def drain(self, steps: int = 2000) -> list[tuple[int, int, int]]:
        found = []
        for _ in range(steps):
            found += self.step()
            if all(self.log.safe[lane].covers(0, self.log.ends[lane]) for lane in self.log.streams):
                break
        assert set(self.hub.stored.values()) == {1}
        return found


def test_new_records_go_before_those_that_waited_and_both_arrive_once() -> None:
    log = LongLog({1: "telemetry"})
    for _ in range(200):
        log.append(1, 10)
    line = Line(log, FRESH)
    line.step()
    late = []
    for _ in range(20):
        first = log.ends[1]
        log.append(1, 10)
        for steps in range(1, 40):
            if any(begin >= first for _, begin, _ in line.step()):
                late.append(steps)
                break
    assert len(late) == 20
    assert max(late) <= 8  # not the 200 batches before them
    assert not line.pair.marks.get(1) or line.pair.marks[1][-1].seq <= 2000
    line.drain()
    line.pair.advance(line.pair.now + 2 * SECOND)
    line.drain()
    assert line.hub.held(1) == RangeSet([(0, log.ends[1])])
    assert line.pair.marks[1][-1].seq == log.ends[1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_history_gets_its_share_while_new_records_fill_the_line(share: float) -> None:
    log = LongLog({1: "telemetry"})
    log.append_many(1, 3000, 10)
    line = Line(log, PolicyRules(order=Order.FRESH_FIRST, history_share=share))
    line.step()
    sent = {True: 0, False: 0}
    for step in range(350):
        for _ in range(12):
            log.append(1, 10)
        for _, first, end in line.step():
            if step >= 100:
                sent[first < 30_000] += end - first
    assert sent[True] / sum(sent.values()) == pytest.approx(share, abs=0.08)


def test_a_lane_that_keeps_losing_its_connection_has_few_holes() -> None:
    log = LongLog({1: "telemetry"})
    for _ in range(50):
        log.append(1, 10)
    line = Line(log, PolicyRules(order=Order.FRESH_FIRST, history_share=0.1))
    for epoch in range(2, 30):
        for _ in range(30):
            log.append(1, 10)
        line.connect(epoch)
        for _ in range(3):
            log.append(1, 10)
            line.step()
        assert len(RangeSet(line.hub.held(1).missing(0, log.ends[1]))) <= HOLES_MAX + 1
    line.drain(20_000)
    assert line.hub.held(1) == RangeSet([(0, log.ends[1])])


def test_streams_share_the_line_by_priority_and_the_least_still_moves() -> None:
    log = LongLog({1: "alarms", 2: "bulk-a", 7: "other"})
    for lane in log.streams:
        log.append_many(lane, 1000, 10)
    line = Line(log, PolicyRules(priorities=(("alarms", 40), ("bulk*", 2))))
    had = dict.fromkeys(log.streams, 0)
    for _ in range(250):
        for lane, first, end in line.step():
            had[lane] += end - first
    assert had[1] / had[7] == pytest.approx(4, rel=0.2)
    assert had[7] / had[2] == pytest.approx(5, rel=0.3)


def test_a_shut_stream_waits_with_its_marks_until_its_window_opens() -> None:
    log = LongLog({1: "telemetry", 2: "bulk-a"})
    for lane in log.streams:
        log.append(lane, 10)
    zone = ZoneInfo("UTC")
    # WALL is 2023-11-14 22:13:20 UTC.
    shut = StreamWindows(("bulk*",), (DayWindow(time(22, 20), time(22, 30)),), zone)
    line = Line(log, PolicyRules(schedule=(shut,)))
    for _ in range(5):
        line.step()
    assert line.hub.held(1).end == 10
    assert not line.hub.held(2)
    assert 2 not in line.pair.marks
    assert "the schedule shuts bulk*; a window opens at 2023-11-14 22:20 UTC" in line.policy.why_held()
    deadline = line.pair.sender.deadline()
    assert deadline is not None
    assert deadline <= 60 * SECOND
    for _ in range(8):
        line.pair.advance(line.pair.now + 50 * SECOND)
        line.pair.settle()
    for _ in range(5):
        line.step()
    assert line.hub.held(2).end == 10
    assert not line.policy.why_held()
    assert line.pair.marks[2][-1].seq == 10


def test_a_changed_policy_counts_at_once_on_the_open_connection() -> None:
    log = LongLog({1: "telemetry", 2: "alarms"})
    line = Line(log, PolicyRules())
    for _ in range(100):
        log.append(1, 10)
    line.step()
    line.policy.adopt(FRESH)
    line.step()
    line.step()
    log.append(1, 10)
    assert any(first >= 1000 for _ in range(12) for _, first, _ in line.step())
    line.policy.is_paused = True
    line.pair.settle()
    held = line.hub.held(1).count()
    log.append(2, 5)
    line.pair.settle()
    assert not line.hub.held(2)
    assert "weft link resume" in line.policy.why_held()
    line.policy.is_paused = False
    line.policy.adopt(PolicyRules())
    line.drain()
    assert line.hub.held(1).count() > held
    assert line.hub.held(2).end == 5


@settings(max_examples=25, deadline=None)
@given(st.integers(2000, 200_000), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_a_rate_is_kept_and_everything_arrives(rate: int, counts: list[int]) -> None:
    log = LongLog({1: "telemetry"}, size=200)
    for count in counts:
        log.append(1, count)
    line = Line(log, PolicyRules(rate=rate))
    for _ in range(2000):
        sent = line.pair.sent_bytes
        line.step()
        if line.pair.sent_bytes == sent:
            line.pair.advance(line.pair.now + SECOND // 10)
        assert line.pair.sent_bytes <= rate * (line.pair.now + SECOND) / SECOND + 8000
        if log.safe[1].covers(0, log.ends[1]):
            break
    assert line.hub.held(1) == RangeSet([(0, log.ends[1])])


def test_transfers_are_apart_and_take_all_that_waits() -> None:
    log = LongLog({1: "telemetry", 2: "alarms"})
    line = Line(log, PolicyRules(every=10 * SECOND))
    messages = []
    for _ in range(400):
        log.append(1, 1)
        before = line.hub.held(1).end
        line.pair.settle()
        if line.hub.held(1).end > before:
            messages.append((line.pair.now // SECOND, line.hub.held(1).end == log.ends[1]))
        line.pair.advance(line.pair.now + SECOND // 10)
    assert [at for at, _ in messages] == [0, 10, 20, 30]
    assert all(whole for _, whole in messages)


# --- Sender and receiver against each other under any policy, which changes while they run


WINDOWS = StreamWindows(
    ("a*", "machine*"),
    (DayWindow(time(22, 13, 20), time(22, 13, 24)), DayWindow(time(22, 13, 27), time(22, 14))),
    ZoneInfo("UTC"),
)
"""The model's clock begins at 22:13:20."""
policies = st.builds(
    PolicyRules,
    order=st.sampled_from([Order.FRESH_FIRST, Order.FRESH_FIRST, Order.STRICT]),
    history_share=st.sampled_from([0.1, 0.5, 0.9]),
    priorities=st.sampled_from([(), (("alarms", 100), ("machine*", 1))]),
    rate=st.sampled_from([0, 0, 3000]),
    every=st.sampled_from([0, 0, 2 * SECOND]),
    schedule=st.sampled_from([(), (WINDOWS,)]),
)


class ReplicationWithPolicy(Replication):
    """The same promises hold as without a policy: all of it, once, and no mark claims what a hole lacks."""

    @initialize(
        window=st.sampled_from([600, 3000, 1 << 20]),
        merge=st.sampled_from([0, 1500]),
        read=st.integers(1, 2000),
        rules=policies,
    )
    def start(self, window: int, merge: int, read: int, rules: PolicyRules) -> None:
        self.receiving = ReceiverSettings(window_bytes=window)
        self.sending = SenderSettings(merge_bytes_max=merge, read_bytes=read, mark_interval=SECOND)
        self.log, self.hub = ModelLog(LANES), ModelHub()
        self.policy = SendPolicy(rules)
        self.epoch = self.now = 0
        self.connect(greeted=True)

    @rule(rules=policies)
    def the_policy_changes(self, rules: PolicyRules) -> None:
        assert self.policy is not None
        self.policy.adopt(rules)

    @rule(is_paused=st.booleans())
    def an_operator_pauses(self, is_paused: bool) -> None:
        assert self.policy is not None
        self.policy.is_paused = is_paused

    @invariant()
    def there_are_few_holes(self) -> None:
        for lane, held in self.hub.records.items():
            lost = self.log.gap_list[lane]
            # A lost range parts a hole in two, and each cut connection may leave one more on the way.
            assert len(held) <= HOLES_MAX + 2 + len(lost) + self.epoch

    seconds_to_drain = 30

    def settle(self) -> None:
        assert self.policy is not None
        self.policy.is_paused = False
        self.policy.adopt(PolicyRules(self.policy.rules.order, rate=3000, every=2 * SECOND))
        super().settle()


TestReplicationWithPolicy = ReplicationWithPolicy.TestCase
TestReplicationWithPolicy.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# --- An outage of nine hours at 1,000 messages a second, drained over a line of a megabyte a second by real machines


OUTAGE_S = 9 * 3600
LINE_BYTES = 1_000_000
"""Bytes that the line carries in a second, compressed."""


class CountingHub(ModelHub):
    """A hub that counts records by their numbers and does not look into them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.repeated = 0

    def commit(self, lane: int, event: BatchesReceived | GapReceived) -> RangeSet:
        assert isinstance(event, BatchesReceived)
        held, ranges = self.records.setdefault(lane, RangeSet()), RangeSet()
        for header, _ in event.batches:
            new = sum(end - first for first, end in held.missing(header.base_seq, header.end_seq))
            self.count, self.repeated = self.count + new, self.repeated + header.count - new
            held.add(header.base_seq, header.end_seq)
            ranges.add(header.base_seq, header.end_seq)
        return ranges


@pytest.mark.search(turns=4)
@pytest.mark.parametrize("order", list(Order))
def test_nine_hours_of_outage_drain_with_nothing_lost_or_doubled(
    order: Order, capsys: pytest.CaptureFixture[str]
) -> None:
    log, hub = LongLog({1: "telemetry"}, size=2), CountingHub()
    log.append_many(1, OUTAGE_S, 1000)
    policy = SendPolicy(PolicyRules(order=order, history_share=0.2))
    pair = Pair(log, hub, policy=policy)
    late_max = seconds = 0
    while not log.safe[1].covers(0, log.ends[1]) or seconds < 5:
        seconds += 1
        log.append(1, 1000)
        pair.advance(pair.now + SECOND)
        room = LINE_BYTES
        while room > 0:
            pair.pump_sender()
            if not pair.upward:
                break
            room -= len(pair.upward[0])
            pair.deliver_up()
            while pair.uncommitted:
                pair.acknowledge()
            pair.deliver_down()
        assert not pair.sender.closed
        if seconds > 5:
            end = log.safe[1].end
            late_max = max(late_max, log.ends[1] - end)
        for mark in pair.marks.get(1, [])[-1:]:
            assert hub.records[1].covers(0, mark.seq)
        pair.events.clear()
    assert hub.repeated == 0
    assert hub.count == log.ends[1]
    with capsys.disabled():
        print(f"\n{order}: {hub.count:,} records in {seconds} s, {pair.sent_bytes / hub.count:.1f} bytes each")
        print(f"the newest record at the hub was at most {late_max / 1000:.0f} s behind")
    if order is Order.FRESH_FIRST:
        assert late_max <= 2000


# --- Windows of local time, with the days on which clocks change


BERLIN = ZoneInfo("Europe/Berlin")


def windows(*pairs: tuple[str, str], days: set[int] | None = None, zone: ZoneInfo = BERLIN) -> StreamWindows:
    found = tuple(DayWindow(time.fromisoformat(begin), time.fromisoformat(end)) for begin, end in pairs)
    return StreamWindows(("bulk*",), found, zone, frozenset(days or range(7)))


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def open_minutes(entry: StreamWindows, day: str) -> list[str]:
    """The UTC times at which the windows open or shut in the two days around a midnight, by quarters of an hour."""
    found, before = [], False
    for quarter in range(-12 * 4, 36 * 4):
        at = utc(day) + quarter * 900 * SECOND
        is_open, until = entry.state(at)
        assert until > at
        if is_open != before:
            found.append(f"{datetime.fromtimestamp(at // SECOND, UTC):%dT%H:%M}")
        before = is_open
    return found


@pytest.mark.parametrize(
    ("day", "pair", "expected"),
    [
        ("2026-11-25", ("01:00", "05:00"), ["25T00:00", "25T04:00", "26T00:00", "26T04:00"]),
        ("2026-11-25", ("22:00", "02:00"), ["24T21:00", "25T01:00", "25T21:00", "26T01:00"]),
        ("2026-03-29", ("01:00", "05:00"), ["29T00:00", "29T03:00", "29T23:00", "30T03:00"]),  # three hours
        ("2026-10-25", ("01:00", "05:00"), ["24T23:00", "25T04:00", "26T00:00", "26T04:00"]),  # five
        ("2026-03-29", ("02:15", "02:45"), ["29T01:15", "29T01:45", "30T00:15", "30T00:45"]),  # skipped: 03:15 then
        ("2026-10-25", ("02:15", "02:45"), ["25T00:15", "25T01:45", "26T01:15", "26T01:45"]),  # to the second 02:45
        ("2026-03-29", ("02:30", "03:15"), ["29T01:00", "29T01:15", "30T00:30", "30T01:15"]),  # 03:00, at the jump
        ("2026-03-29", ("02:30", "03:30"), ["29T01:00", "29T01:30", "30T00:30", "30T01:30"]),
        ("2026-10-25", ("02:30", "03:15"), ["25T00:30", "25T02:15", "26T01:30", "26T02:15"]),
    ],
)
def test_a_window_opens_and_shuts_by_the_clock_on_the_wall(
    day: str, pair: tuple[str, str], expected: list[str]
) -> None:
    assert open_minutes(windows(pair), day) == expected


def test_days_are_those_on_which_a_window_begins() -> None:
    entry = windows(("22:00", "02:00"), days={4}, zone=ZoneInfo("UTC"))  # Friday
    assert open_minutes(entry, "2026-11-27") == ["27T22:00", "28T02:00"]
    assert entry.opens_at(utc("2026-11-28T03:00")) == utc("2026-12-04T22:00")


@given(
    st.lists(st.tuples(st.times(), st.times()), min_size=1, max_size=3),
    st.sets(st.integers(0, 6), min_size=1),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(0, 400 * 86_400),
)
def test_nothing_changes_before_the_time_that_is_named(
    pairs: list[tuple[time, time]], days: set[int], zone: str, offset: int
) -> None:
    entry = StreamWindows(
        ("*",),
        tuple(DayWindow(a.replace(microsecond=0), b.replace(microsecond=0)) for a, b in pairs),
        ZoneInfo(zone),
        frozenset(days),
    )
    at = utc("2026-01-01") + offset * SECOND
    is_open, until = entry.state(at)
    assert at < until <= at + timedelta(days=9).total_seconds() * SECOND
    for part in range(1, 5):
        assert entry.state(at + (until - at) * part // 5)[0] == is_open
    opens = entry.opens_at(at)
    assert entry.state(opens)[0]
    assert is_open == (opens == at)


# --- The pace of data: bytes in a second, and transfers apart from each other


@given(st.integers(1, 1 << 30), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 3 * SECOND)), max_size=40))
def test_no_more_than_the_rate_a_second_of_burst_and_one_message_are_sent(
    rate: int, messages: list[tuple[int, int]]
) -> None:
    bucket, now, sent = TokenBucket(rate, 0), 0, 0
    longest = max((size for size, _ in messages), default=0)
    for size, pause in messages:
        now = max(now + pause, bucket.refills_at())
        bucket.take(size, now)
        sent += size
        assert sent <= rate * (now + SECOND) / SECOND + longest + 1


def test_a_link_that_always_has_more_is_as_fast_as_its_rate() -> None:
    bucket, now, sent = TokenBucket(10_000, 0), 0, 0
    while now < 100 * SECOND:
        now = max(now, bucket.refills_at())
        bucket.take(700, now)
        sent += 700
    assert 0.98 <= sent / (10_000 * 101) <= 1.02


def test_a_transfer_begins_at_the_earliest_so_long_after_the_one_before_began() -> None:
    transfers = Transfers(10 * SECOND, 0)
    transfers.is_drained()
    assert transfers.opens_at == 0  # nothing was sent
    transfers.sent(2 * SECOND)
    transfers.sent(5 * SECOND)
    assert transfers.opens_at == 0  # it continues
    transfers.is_drained()
    assert transfers.opens_at == 12 * SECOND


# --- The month of a budget, and its count


KATHMANDU = ZoneInfo("Asia/Kathmandu")


@pytest.mark.parametrize(
    ("day", "zone", "at", "name", "end"),
    [
        (1, "UTC", "2026-11-25T12:00", "2026-11-01", "2026-12-01T00:00"),
        (1, "UTC", "2026-12-31T23:59", "2026-12-01", "2027-01-01T00:00"),
        (28, "UTC", "2026-02-27T12:00", "2026-01-28", "2026-02-28T00:00"),
        (15, "UTC", "2026-11-15T00:00", "2026-11-15", "2026-12-15T00:00"),
        (1, "Europe/Berlin", "2026-10-31T22:59", "2026-10-01", "2026-10-31T23:00"),
        (1, "Europe/Berlin", "2026-10-31T23:00", "2026-11-01", "2026-11-30T23:00"),
    ],
)
def test_a_month_begins_on_its_day_at_midnight_of_its_zone(day: int, zone: str, at: str, name: str, end: str) -> None:
    assert period_of(BudgetRule(1, day, ZoneInfo(zone)), utc(at)) == (name, utc(end))


@given(st.integers(1, 28), st.integers(0, 4_000_000_000))
def test_every_moment_is_in_one_month_that_ends_after_it(day: int, seconds: int) -> None:
    rule = BudgetRule(1, day, KATHMANDU)
    period = period_of(rule, seconds * SECOND)
    assert seconds * SECOND < period.end <= (seconds + 32 * 86_400) * SECOND
    assert period_of(rule, period.end - SECOND) == period
    assert period_of(rule, period.end).name > period.name


def test_a_clock_that_was_wrong_comes_back_to_the_count_of_its_month() -> None:
    rule, count = BudgetRule(1000, 1, ZoneInfo("UTC")), BudgetCount({"2026-11-01": 700})
    count.look(rule, utc("2026-11-25"))
    count.add(50)
    for year in range(2040, 2043):
        count.look(rule, utc(f"{year}-01-01"))
        assert count.used == 0
        count.add(1)
    count.look(rule, utc("2026-11-25"))
    assert count.used == 750
    for year in range(1970, 1990):
        count.look(rule, utc(f"{year}-01-01"))
    assert len(count.counts) == PERIODS_MAX


def test_what_keeps_the_link_alive_is_left_to_it() -> None:
    rule = BudgetRule(1_000_000, 1, ZoneInfo("UTC"))
    end = utc("2026-12-01")
    assert reserve(rule, end, utc("2026-11-30"), rate=2.0) == 2 * 86_400
    assert reserve(rule, end, end, rate=2.0) == 0
    assert reserve(rule, end, utc("2026-11-01"), rate=100.0) == 500_000


# --- A hub's request for a slower pace: data waits for the time that it names, and nothing else does


WHY = "tenant default has 1MiB a second, its quota"


class ThrottlePair:
    """A sender with a policy, and a receiver that takes everything."""

    def __init__(self, policy: SendPolicy) -> None:
        self.log, self.hub, self.policy, self.now = ModelLog({0: "telemetry"}), ModelHub(), policy, 0
        self.connect()

    def connect(self) -> None:
        self.sender = Sender(
            self.log.hello(),
            1,
            SenderSettings(),
            lambda: 0,
            self.now,
            high_watermark=self.log.high_watermark,
            policy=self.policy,
        )
        self.receiver = Receiver(ReceiverSettings(), "c", "test", lambda: 0, self.now)
        self.sender.open_lane(self.log.lanes()[0], self.log.state(0))
        self.go()

    def go(self) -> int:
        """Let both talk until neither has anything to say. Return the number of batches that came."""
        came = 0
        for _ in range(20):
            self.policy.look(self.now, self.now)
            for event in self.sender.events():
                if isinstance(event, ReadRequest):
                    self.sender.feed(event.lane, self.log.read_now(*event))
            if data := self.sender.data_to_send():
                self.receiver.receive_data(data, self.now)
            for heard in self.receiver.events():
                if isinstance(heard, HelloReceived):
                    self.receiver.welcome()
                elif isinstance(heard, LaneOpenReceived):
                    self.receiver.lane_opened(heard.opening.lane, RangeSet())
                elif isinstance(heard, BatchesReceived):
                    came += len(heard.batches)
            if back := self.receiver.data_to_send():
                self.sender.receive_data(back, self.now)
        return came

    def append(self) -> None:
        self.log.append(0, 1)
        self.sender.offer(0, self.log.state(0))


def test_data_waits_for_the_time_that_the_hub_names() -> None:
    pair = ThrottlePair(SendPolicy(PolicyRules()))
    pair.append()
    assert pair.go() == 1
    pair.receiver.send_frame(Throttled(2 * SECOND, 65_536, WHY))
    pair.go()
    pair.append()
    assert pair.go() == 0
    assert WHY in pair.policy.why_held()
    deadline = pair.policy.deadline()
    assert deadline == 2 * SECOND
    pair.now = deadline
    assert pair.go() == 1
    assert pair.policy.message_bytes(256 << 10) == 65_536 // 4
    assert WHY in pair.policy.why_held()  # still slow, though nothing waits at this moment
    pair.now += 11 * SECOND
    pair.policy.look(pair.now, pair.now)
    assert not pair.policy.why_held()


def test_the_hub_can_end_a_wait_and_a_new_connection_has_none() -> None:
    pair = ThrottlePair(SendPolicy(PolicyRules()))
    pair.receiver.send_frame(Throttled(600 * SECOND, 0, WHY))
    pair.go()
    pair.append()
    assert pair.go() == 0
    pair.receiver.send_frame(Throttled(0, 0, ""))
    assert pair.go() == 1
    assert not pair.policy.why_held()
    pair.receiver.send_frame(Throttled(600 * SECOND, 0, WHY))
    pair.go()
    pair.append()
    assert pair.go() == 0
    pair.connect()
    pair.go()
    assert not pair.policy.is_held
