"""What a sender does with time: the hub's clock, patience, pings, marks, and the window."""

from __future__ import annotations

import sys
from types import FrameType
from zoneinfo import ZoneInfo

import pytest

from tests.replication.model import WALL, ModelHub, ModelLog, Pair, Peer, welcome
from weft.protocols.chunk_index import Mark
from weft.protocols.link import (
    BEATS,
    CANARY,
    FEATURES,
    Ack,
    Canary,
    CanaryBack,
    Data,
    Frame,
    FrameEncoder,
    LaneOpened,
    Marks,
    Ping,
    Pong,
    Welcome,
)
from weft.replication.events import ConnectionLost, Fault, ReadRequest
from weft.replication.flow_control import SenderSettings, SendWindow
from weft.replication.liveness import SECOND, CanaryWatch, Proof
from weft.replication.policy import BudgetCount, BudgetRule, PolicyRules, SendPolicy, StreamWindows
from weft.replication.sender import Sender


def test_the_hubs_clock_is_measured(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(*welcome(), now=40)
    clock = peer.sender.liveness.peer_clock
    assert clock is not None
    assert clock.error == 20
    peer.sender.handle_timeout(45 * SECOND)
    (ping,) = [frame for frame in peer.heard() if isinstance(frame, Ping)]
    ahead = 250
    peer.say(Pong(ping.sent, WALL + 45 * SECOND + 1 + ahead), now=45 * SECOND + 2)
    clock = peer.sender.liveness.peer_clock
    assert clock is not None
    assert clock.error == 1
    assert clock.offset(46 * SECOND, WALL + 46 * SECOND) == ahead


def test_a_hub_that_pings_and_acknowledges_nothing_is_left(log: ModelLog) -> None:
    peer = Peer(log, SenderSettings(ack_timeout=30 * SECOND))
    peer.say(*welcome())
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    peer.heard()
    for second in range(1, 31):
        peer.say(Ping(second), now=second * SECOND)
        peer.sender.handle_timeout(second * SECOND)
        assert peer.sender.closed == (second == 30)
        peer.heard()
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert "acknowledged none for 30 s" in lost.reason


def test_a_hub_that_acknowledges_something_or_has_nothing_to_acknowledge_is_kept(log: ModelLog) -> None:
    peer = Peer(log, SenderSettings(ack_timeout=30 * SECOND, silence=1000 * SECOND))
    peer.say(*welcome())
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    peer.heard()
    peer.sender.handle_timeout(29 * SECOND)
    peer.say(Ack(1, [(0, 5)]), now=29 * SECOND)
    peer.heard()
    peer.sender.handle_timeout(58 * SECOND)
    assert not peer.sender.closed
    peer.say(Ack(1, [(0, 10)]), now=58 * SECOND)
    peer.heard()
    peer.sender.handle_timeout(500 * SECOND)
    assert not peer.sender.closed


def test_a_ping_takes_the_marks_of_idle_lanes_along(log: ModelLog) -> None:
    peer = Peer(log, SenderSettings(mark_interval=60 * SECOND, ping_interval=45 * SECOND))
    peer.say(*welcome((0, 10)))
    peer.heard()
    messages = []
    for second in range(1, 181):
        for lane in peer.sender.stale_lanes(second * SECOND):
            peer.sender.offer(lane, log.state(lane)._replace(mark=Mark(WALL + second, log.ends[lane])))
        peer.sender.handle_timeout(second * SECOND)
        if frames := peer.heard():
            messages.append((second, [type(frame) for frame in frames]))
            peer.say(Pong(second * SECOND, WALL), now=second * SECOND)
    assert messages == [(second, [Ping, Marks]) for second in (45, 90, 135, 180)]


def test_a_commit_costs_the_same_with_any_number_of_idle_lanes() -> None:
    """Counted in what is looked at, not in time."""

    def looked_at(lanes: int) -> int:
        log = ModelLog({key: f"s{key}" for key in range(1, lanes + 1)})
        sender = Sender(log.hello(), 1, SenderSettings(), lambda: WALL, 0, high_watermark=log.high_watermark)
        encoder = FrameEncoder()
        for lane in log.lanes():
            sender.open_lane(lane, log.state(lane.lane))
        while sender.data_to_send():
            pass
        taken = Welcome(1, "cluster", 1 << 20, 1 << 20, WALL, "test")
        sender.receive_data(encoder.encode([taken, *(LaneOpened(key, []) for key in log.streams)]), 0)
        sender.events()
        sender.named_ends()
        sender.data_to_send()
        calls = 0

        def count(frame: FrameType, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        log.append(1, 3)
        state, batches = log.state(1), log.read_now(1, 0, 1 << 20)
        sys.setprofile(count)
        try:
            sender.offer(1, state)
            sender.events()
            sender.feed(1, batches)
            assert sender.named_ends() == {1: 3}
            sender.data_to_send()
            sender.deadline()
        finally:
            sys.setprofile(None)
        return calls

    assert looked_at(500) == looked_at(2)


def test_the_window_follows_the_rate_of_acknowledgements() -> None:
    def settled(bytes_per_second: int, delay_s: int) -> int:
        window = SendWindow()
        window.allow(8 << 20)
        for second in range(120):
            window.sent(1, second, second * SECOND, was_empty=second == 0)
            window.was_full()
            taken = min(window.bytes, bytes_per_second)
            window.acknowledged(taken, 1, second, second + 1, (second + delay_s) * SECOND)
        return window.bytes

    assert settled(5_000, 1) == 64 << 10
    assert settled(100_000, 1) in range(300_000, 500_000)
    assert settled(50_000_000, 1) == 8 << 20
    assert settled(50_000_000, 5) == 8 << 20, "a hub that commits rarely is not a slow link"


def test_a_sender_with_little_to_send_keeps_its_window() -> None:
    window = SendWindow()
    window.allow(8 << 20)
    for second in range(0, 600, 60):
        window.sent(1, second, second * SECOND, was_empty=True)
        window.acknowledged(100, 1, second, second + 1, (second + 1) * SECOND)
    assert window.bytes == 256 << 10


def test_a_silent_hub_is_lost_at_the_deadline_that_was_named(log: ModelLog) -> None:
    peer = Peer(log, SenderSettings(silence=20 * SECOND))
    peer.say(*welcome())
    now = 0
    while not peer.sender.closed:
        now = peer.sender.deadline() or now
        peer.sender.handle_timeout(now)
        peer.heard()
    assert now == 20 * SECOND
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.NETWORK


def test_marks_of_idle_lanes_go_once_an_interval_in_one_frame(log: ModelLog) -> None:
    peer = Peer(log, SenderSettings(mark_interval=60 * SECOND, ping_interval=500 * SECOND, silence=900 * SECOND))
    peer.say(*welcome((0, 10)))
    peer.heard()
    sent = []
    for second in range(1, 181):
        now = second * SECOND
        for lane in peer.sender.stale_lanes(now):
            peer.sender.offer(lane, log.state(lane)._replace(mark=Mark(WALL + now, log.ends[lane])))
        peer.sender.handle_timeout(now)
        sent += [(second, frame) for frame in peer.heard() if not isinstance(frame, Ping)]
    assert sent == [(second, Marks(WALL + second * SECOND, [(1, 10), (2, 0)])) for second in (60, 120, 180)]


def test_marks_ride_with_the_data_and_follow_it_within_a_second(log: ModelLog) -> None:
    peer = Peer(log, SenderSettings(mark_interval=60 * SECOND))
    peer.say(*welcome((0, 10)))
    peer.heard()

    def message(now: int) -> list[type[Frame]]:
        for lane in peer.sender.stale_lanes(now):
            peer.sender.offer(lane, log.state(lane))
        peer.sender.handle_timeout(now)
        for event in peer.sender.events():
            if isinstance(event, ReadRequest):
                peer.sender.feed(event.lane, log.read_now(*event))
        return [type(frame) for frame in peer.heard()]

    for at, expected in ((SECOND, [Data, Marks]), (SECOND * 3 // 2, [Data])):
        log.append(1, 5)
        peer.sender.offer(1, log.state(1))
        assert message(at) == expected
    assert peer.sender.deadline() == 2 * SECOND
    assert message(2 * SECOND) == [Marks]
    assert message(3 * SECOND) == []


# --- Beats: a hub that says nothing while it has data is left in seconds, and a slow one is not


def beating(log: ModelLog, *features: str, round_trip: int = 0) -> Peer:
    """Return a link with data in flight, whose hub took it at ``round_trip``."""
    peer = Peer(log, SenderSettings(beat_timeout=3 * SECOND, ack_timeout=30 * SECOND))
    peer.say(*greeting(*features), LaneOpened(1, []), LaneOpened(2, []), now=round_trip)
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    peer.heard()
    return peer


def lost_at(peer: Peer, now: int = 0, *, step: int = SECOND // 2, until: int = 200 * SECOND) -> int:
    """Let time pass without a word of the hub; return when the link was given up."""
    while not peer.sender.closed and now < until:
        now += step
        peer.sender.handle_timeout(now)
        peer.heard()
    return now


def test_a_hub_that_has_data_and_says_nothing_is_left_after_three_looks(log: ModelLog) -> None:
    peer = beating(log, BEATS)
    assert lost_at(peer) == 3 * SECOND
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.NETWORK
    assert "silent for 3 s" in lost.reason


def test_a_hub_that_beats_has_the_whole_ack_timeout(log: ModelLog) -> None:
    peer = beating(log, BEATS)
    for second in range(1, 30):
        peer.say(Pong(0, WALL), now=second * SECOND)
        peer.sender.handle_timeout(second * SECOND)
        assert not peer.sender.closed
        peer.heard()
    peer.sender.handle_timeout(30 * SECOND)
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert "acknowledged none for 30 s" in lost.reason


def test_a_hub_of_the_release_before_which_sends_no_beats_is_waited_for(log: ModelLog) -> None:
    assert lost_at(beating(log)) == 30 * SECOND


def test_no_beat_is_missed_where_nothing_is_awaited(log: ModelLog) -> None:
    peer = beating(log, BEATS)
    peer.say(Ack(1, [(0, 10)]), now=SECOND)
    peer.heard()
    assert lost_at(peer, SECOND, until=100 * SECOND) == 100 * SECOND
    assert not peer.sender.closed


def test_beats_of_a_slow_line_have_six_round_trips(log: ModelLog) -> None:
    assert lost_at(beating(log, BEATS, round_trip=2 * SECOND), 2 * SECOND) == 2 * SECOND + 6 * 2 * SECOND


def test_a_sender_that_was_suspended_reads_before_it_gives_a_hub_up(log: ModelLog) -> None:
    peer = beating(log, BEATS)
    peer.sender.handle_timeout(29 * SECOND)
    assert not peer.sender.closed, "it may have been told long ago, and has not read it"
    peer.say(Ack(1, [(0, 10)]), now=29 * SECOND)
    peer.heard()
    assert lost_at(peer, 29 * SECOND, until=60 * SECOND) == 60 * SECOND


# --- What an edge knows of the hub's store: proofs by what is acknowledged anyway, and canaries where nothing is


SETTINGS = SenderSettings(ping_interval=45 * SECOND)
HUB_WAITS = 60 * SECOND
IDLE = ModelLog({1: "telemetry", 2: "alarms"})
ZONE = ZoneInfo("UTC")
SPENT = PolicyRules(budget=BudgetRule(1000, 1, ZONE))
SHUT = PolicyRules(schedule=(StreamWindows(("*",), (), ZONE),))


def greeting(*features: str) -> list[Frame]:
    return [Welcome(1, "cluster", 1 << 20, 1 << 20, WALL, "test", list(features), HUB_WAITS if features else 0)]


def answered(peer: Peer, until: int, *, since: int = 1) -> list[tuple[int, list[Frame]]]:
    """Let seconds pass on an idle link, whose PINGs are answered. Return the messages of the sender."""
    messages = []
    for second in range(since, until):
        now = second * SECOND
        for lane in peer.sender.stale_lanes(now):
            peer.sender.offer(lane, IDLE.state(lane)._replace(mark=Mark(WALL + now, 0)))
        peer.sender.handle_timeout(now)
        if frames := peer.heard():
            messages.append((second, frames))
            peer.say(*(Pong(frame.sent, WALL + now) for frame in frames if isinstance(frame, Ping)), now=now)
    return messages


def asked(messages: list[tuple[int, list[Frame]]]) -> list[tuple[int, int]]:
    return [(second, frame.number) for second, frames in messages for frame in frames if isinstance(frame, Canary)]


@pytest.fixture
def peer() -> Peer:
    """A link without records, whose lanes the hub opened after 2 s."""
    peer = Peer(IDLE, SETTINGS)
    opened: list[Frame] = [LaneOpened(1, []), LaneOpened(2, [])]
    peer.say(*greeting(CANARY), *opened, now=2 * SECOND)
    return peer


def test_the_first_lane_that_the_hub_opens_proves_its_store_and_a_later_one_does_not(peer: Peer) -> None:
    assert peer.sender.canary.proof == Proof(0, 2 * SECOND, 2 * SECOND)
    again = ModelLog({3: "late"})
    peer.sender.open_lane(again.lanes()[0], again.state(3))
    peer.heard()
    peer.say(LaneOpened(3, []), now=90 * SECOND)
    assert peer.sender.canary.proof == Proof(0, 2 * SECOND, 2 * SECOND), "its epoch may be durable since the first"


def test_an_acknowledgement_of_records_proves_the_store(log: ModelLog) -> None:
    peer = Peer(log, SETTINGS)
    peer.say(*welcome())
    peer.sender.handle_timeout(30 * SECOND)
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    peer.heard()
    peer.say(Ack(1, [(0, 10)]), now=31 * SECOND)
    assert peer.sender.canary.proof == Proof(30 * SECOND, SECOND, 31 * SECOND)


def test_an_idle_link_asks_each_five_minutes_with_a_ping_and_never_alone(peer: Peer) -> None:
    messages = answered(peer, 600)
    assert asked(messages) == [(315, 1)], "300 s after the first proof, with the next PING"
    frames = next(frames for second, frames in messages if second == 315)
    assert [type(frame) for frame in frames] == [Ping, Marks, Canary], "behind the marks, which the hub writes anyway"
    seconds = [second for second, _ in messages if second > 1]
    assert seconds == list(range(45, 600, 45)), "and no message is for it alone"


def test_the_round_trip_is_without_what_the_hub_let_wait(peer: Peer) -> None:
    assert asked(answered(peer, 316)) == [(315, 1)]
    peer.say(CanaryBack(1, 44 * SECOND), now=360 * SECOND)
    assert peer.sender.canary.proof == Proof(315 * SECOND, SECOND, 360 * SECOND)
    assert asked(answered(peer, 700, since=360)) == [(675, 2)], "300 s after the answer, with the next PING"
    peer.say(CanaryBack(2, 10**18), now=720 * SECOND)
    assert peer.sender.canary.proof == Proof(675 * SECOND, 0, 720 * SECOND), "what a hub says may be wrong"


def test_records_answer_for_a_canary(log: ModelLog) -> None:
    peer = Peer(log, SETTINGS)
    peer.say(*greeting(CANARY), LaneOpened(1, [(0, 10)]), LaneOpened(2, []))
    for second in range(1, 1000):
        peer.sender.handle_timeout(second * SECOND)
        if second % 100 == 0:
            log.append(1, 1)
            peer.sender.offer(1, log.state(1))
            peer.sender.events()
            peer.sender.feed(1, log.read_now(1, log.ends[1] - 1, 1 << 20))
        assert not any(isinstance(frame, Canary) for frame in peer.heard())
        peer.say(Ack(1, [(0, log.ends[1])]), now=second * SECOND + 1)


def test_a_hub_that_answers_pings_and_no_canary_is_overdue(peer: Peer) -> None:
    watch, liveness = peer.sender.canary, peer.sender.liveness
    assert asked(answered(peer, 316)) == [(315, 1)]
    answered(peer, 404, since=316)
    assert watch.overdue(liveness.answered) is None, "the hub may let it wait for 60 s, and has 30 s for the commit"
    answered(peer, 406, since=404)
    assert watch.overdue(liveness.answered) == 315 * SECOND
    assert asked(answered(peer, 1000, since=406)) == [(630, 2), (945, 3)], "it is asked again, and no more often"
    assert watch.overdue(liveness.answered) == 315 * SECOND
    peer.say(CanaryBack(2, 0), now=1000 * SECOND)
    assert watch.overdue(liveness.answered) == 315 * SECOND, "late answers are those of another time"
    peer.say(CanaryBack(3, 0), now=1001 * SECOND)
    assert watch.overdue(liveness.answered) is None


def test_a_hub_that_answers_nothing_is_not_overdue_but_silent(peer: Peer) -> None:
    assert asked(answered(peer, 316)) == [(315, 1)]
    for second in range(316, 436):
        peer.sender.handle_timeout(second * SECOND)
        peer.heard()
        assert peer.sender.canary.overdue(peer.sender.liveness.answered) is None
    assert isinstance(peer.sender.events()[-1], ConnectionLost)


def test_a_hub_of_the_release_before_is_not_asked_and_its_proof_ages() -> None:
    peer = Peer(IDLE, SETTINGS)
    peer.say(*greeting(), LaneOpened(1, []), LaneOpened(2, []), now=SECOND)
    assert peer.sender.canary.is_fresh(300 * SECOND)
    assert asked(answered(peer, 1000)) == []
    assert not peer.sender.canary.is_fresh(301 * SECOND)
    assert peer.sender.canary.overdue(peer.sender.liveness.answered) is None


def test_an_answer_to_a_question_that_was_not_asked_ends_the_link(peer: Peer) -> None:
    assert isinstance(peer.say(CanaryBack(1, 0))[-1], ConnectionLost)


@pytest.mark.parametrize(("rules", "is_paused"), [(PolicyRules(), True), (SPENT, False), (SHUT, False)])
def test_a_canary_goes_while_data_waits_by_the_links_policy(rules: PolicyRules, is_paused: bool) -> None:
    """As PINGs do, it holds nothing up and is held up by nothing."""
    log = ModelLog({1: "telemetry"})
    policy = SendPolicy(rules, is_paused=is_paused, count=BudgetCount({"2023-11-01": 1000}))
    pair = Pair(log, hub := ModelHub(), sending=SETTINGS, policy=policy)
    pair.settle()
    log.append(1, 10)
    seen: list[Canary] = []
    for second in range(1, 400):
        pair.advance(second * SECOND)
        pair.settle()
        for event in pair.events:
            if isinstance(event, Canary) and event not in seen:
                seen.append(event)
                pair.receiver.prove(event.number, 0, pair.now)
    assert seen == [Canary(1)]
    assert not hub.records.get(1)
    assert policy.why_held()
    proof = pair.sender.canary.proof
    assert proof is not None
    assert (proof.sent, proof.took) == (315 * SECOND, 0)


def test_a_proof_older_than_the_newest_adds_nothing() -> None:
    watch = CanaryWatch(300 * SECOND, 30 * SECOND, 0)
    watch.proves(50, 100)
    watch.proves(20, 200)
    watch.proves(None, 300)
    assert watch.proof == Proof(50, 50, 100)


def test_both_ends_of_this_release_announce_the_feature() -> None:
    assert CANARY in FEATURES
