"""What a sender does with time: the hub's clock, patience, pings, marks, and the window."""

from __future__ import annotations

import sys
from types import FrameType

from tests.replication.model import WALL, ModelLog
from tests.replication.peer import Peer, welcome
from weft.protocols.chunk_index import Mark
from weft.protocols.link import Ack, Data, Frame, FrameEncoder, LaneOpened, Marks, Ping, Pong, Welcome
from weft.replication.events import ConnectionLost, Fault, ReadRequest
from weft.replication.flow_control import SenderSettings, SendWindow
from weft.replication.liveness import SECOND
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
