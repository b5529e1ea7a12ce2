"""Which lane and record comes next, on connections of a log in memory with a hub in memory."""

from __future__ import annotations

from datetime import time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.long_log import LongLog
from tests.replication.model import ModelHub, ModelLog, Pair
from weft.protocols.batch import BatchHeader
from weft.protocols.ranges import RangeSet
from weft.replication.events import BatchesReceived
from weft.replication.flow_control import ReceiverSettings, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import HOLES_MAX, DayWindow, Order, PolicyRules, SendPolicy, StreamWindows

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
