"""What a hub may not do to an edge, and what an edge does with a log that disappoints it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.model import WALL, ModelHub, ModelLog, Pair, make_batch
from weft.protocols.batch import decode_header
from weft.protocols.link import (
    Ack,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Hello,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
    WelcomeLane,
    split_batches,
)
from weft.protocols.ranges import RangeSet
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
from weft.replication.liveness import SECOND
from weft.replication.sender import Sender, SenderSettings


class Peer:
    """A sender and the frames that go in and out of it."""

    def __init__(self, log: ModelLog, settings: SenderSettings | None = None) -> None:
        states = {lane: log.state(lane) for lane in log.streams}
        self.sender = Sender(
            log.hello(1), states, settings or SenderSettings(), lambda: WALL, 0, high_watermark=log.high_watermark
        )
        self._encoder, self._decoder = FrameEncoder(), FrameDecoder()
        assert isinstance(self.heard()[0], Hello)

    def say(self, *frames: Frame, now: int = 0) -> list[SenderEvent]:
        self.sender.receive_data(self._encoder.encode(list(frames)), now)
        return self.sender.events()

    def heard(self) -> list[Frame]:
        frames: list[Frame] = []
        while data := self.sender.data_to_send():
            frames += self._decoder.decode(data)
        return frames


def welcome(*lanes: WelcomeLane, window: int = 1 << 20, batch: int = 1 << 20) -> Welcome:
    return Welcome(1, "cluster", list(lanes), window, batch, WALL + 7, "test")


@pytest.fixture
def log() -> ModelLog:
    log = ModelLog({1: "telemetry", 2: "alarms"})
    log.append(1, 10)
    return log


def test_welcome_releases_what_is_held_and_asks_for_the_rest(log: ModelLog) -> None:
    events = Peer(log).say(welcome(WelcomeLane(1, [(0, 4)])))
    assert events[:2] == [Welcomed("cluster", 1 << 20), Acked(1, RangeSet([(0, 4)]), by_welcome=True)]
    assert isinstance(events[2], ReadRequest)
    assert events[2][:2] == (1, 4)


def test_a_hub_that_holds_more_than_the_log_ever_had_is_a_conflict(log: ModelLog) -> None:
    (event,) = Peer(log).say(welcome(WelcomeLane(1, [(0, 11)])))
    assert isinstance(event, Refusal)
    assert event.code == RefuseCode.IDENTITY_CONFLICT
    assert not event.by_peer
    assert "old copy" in event.message
    assert "start with an empty one, which gets a new log id" in event.advice


def test_a_hub_that_holds_more_than_it_was_ever_given_is_a_conflict(log: ModelLog) -> None:
    log.high_watermarks = {("cluster", 1): 4, ("another", 1): 0}
    (event,) = Peer(log).say(welcome(WelcomeLane(1, [(0, 5)])))
    assert isinstance(event, Refusal)
    assert event.code == RefuseCode.IDENTITY_CONFLICT
    assert "records of stream telemetry up to seq 5, but this log gave it none beyond 4" in event.message
    assert isinstance(Peer(log).say(welcome(WelcomeLane(1, [(0, 4)])))[0], Welcomed)


def test_what_the_next_message_may_name_is_told_before_gaps_too(log: ModelLog) -> None:
    log.lose(2, 4)
    peer = Peer(log)
    events = peer.say(welcome(WelcomeLane(1, [(0, 3)])))
    assert peer.sender.named_ends() == {1: 3, 2: log.ends[2]}
    (request,) = [event for event in events if isinstance(event, ReadRequest)]
    peer.sender.feed(1, log.read_now(*request))
    assert peer.sender.named_ends() == {1: 10, 2: log.ends[2]}
    peer.heard()
    assert peer.sender.named_ends() == {1: 10, 2: log.ends[2]}


@pytest.mark.parametrize(
    "frames",
    [
        [Ack(1, [(0, 1)])],
        [welcome(), welcome()],
        [welcome(WelcomeLane(9, []))],
        [welcome(), Ack(9, [(0, 1)])],
        [welcome(), Ack(1, [(0, 11)])],
        [welcome(), Ack(1, [(5, 6), (1, 2)])],
        [Welcome(2, "c", [], 1, 1, 0, "t")],
        [Data(1, make_batch(1, 0, 1))],
    ],
)
def test_a_hub_that_breaks_the_protocol_is_left(log: ModelLog, frames: list[Frame]) -> None:
    peer = Peer(log)
    lost = peer.say(*frames)[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.PEER
    assert peer.sender.closed
    assert peer.sender.data_to_send() == b""


def test_a_refusal_is_told_with_its_advice(log: ModelLog) -> None:
    assert Peer(log).say(Refuse(5, "too many", "wait")) == [Refusal(5, "too many", "wait")]


def test_a_batch_that_the_hub_does_not_take_is_told(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(welcome(batch=100))
    peer.sender.feed(1, log.read_now(1, 0, 1000))
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.LOCAL
    assert "limits.batch" in lost.reason


def test_records_that_the_log_lists_and_does_not_give_are_told_and_stepped_over(log: ModelLog) -> None:
    peer = Peer(log)
    log.append(1, 10)
    peer.sender.offer(1, log.state(1))
    peer.say(welcome())
    peer.sender.feed(1, [log.batches[1][1]])
    assert peer.sender.events() == [Unreadable(1, 0, 10)]
    (data,) = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert decode_header(data.batches).base_seq == 10


def test_a_log_that_gives_nothing_is_not_asked_for_ever(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(welcome())
    peer.sender.feed(1, [])
    assert peer.sender.events() == [Unreadable(1, 0, 10)]
    assert peer.sender.events() == []


def test_a_damaged_batch_from_the_log_ends_the_link_as_a_local_fault(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(welcome())
    peer.sender.feed(1, [b"not a batch at all" * 10])
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.LOCAL


def test_many_small_batches_go_as_one_and_a_live_one_as_stored() -> None:
    log = ModelLog({1: "telemetry"})
    for _ in range(200):
        log.append(1, 1)
    peer = Peer(log)
    peer.say(welcome())
    peer.sender.feed(1, log.read_now(1, 0, 1 << 20))
    (data,) = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert [header.count for header, _ in split_batches(data.batches)] == [200]
    log.append(1, 3)
    peer.sender.offer(1, log.state(1))
    peer.sender.events()
    peer.sender.feed(1, log.read_now(1, 200, 1 << 20))
    (data,) = [frame for frame in peer.heard() if isinstance(frame, Data)]
    assert bytes(data.batches) == log.batches[1][-1]


def test_lanes_take_turns() -> None:
    log = ModelLog({1: "telemetry", 2: "alarms"})
    for _ in range(6):
        log.append(1, 100)
        log.append(2, 100)
    pair = Pair(log, ModelHub(), sending=SenderSettings(read_bytes=1, merge_bytes_max=0))
    pair.settle()
    asked = [event.lane for event in pair.events if isinstance(event, ReadRequest)]
    assert asked == [1, 2] * 6


def test_the_hubs_clock_is_measured(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(welcome(), now=40)
    clock = peer.sender.peer_clock
    assert clock is not None
    assert clock.error == 20
    peer.sender.handle_timeout(5 * SECOND)
    (ping,) = [frame for frame in peer.heard() if isinstance(frame, Ping)]
    ahead = 250
    peer.say(Pong(ping.sent, WALL + 5 * SECOND + 1 + ahead), now=5 * SECOND + 2)
    clock = peer.sender.peer_clock
    assert clock is not None
    assert clock.error == 1
    assert clock.offset(6 * SECOND, WALL + 6 * SECOND) == ahead


def test_a_silent_hub_is_lost_at_the_deadline_that_was_named(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(welcome())
    now = 0
    while not peer.sender.closed:
        now = peer.sender.deadline() or now
        peer.sender.handle_timeout(now)
        peer.heard()
    assert now == 20 * SECOND
    lost = peer.sender.events()[-1]
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.NETWORK


def test_a_mark_goes_out_every_second_without_any_data(log: ModelLog) -> None:
    pair = Pair(log, ModelHub())
    pair.settle()
    before = len(pair.marks[2])
    for second in range(1, 6):
        pair.advance(second * SECOND)
        pair.settle()
    assert len(pair.marks[2]) == before + 5


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_garbage_ends_the_connection_and_nothing_else(messages: list[bytes], open_first: bool) -> None:
    log = ModelLog({1: "telemetry"})
    log.append(1, 3)
    peer = Peer(log)
    if open_first:
        peer.say(welcome())
    for message in messages:
        peer.sender.receive_data(message, 1)
    assert not any(isinstance(event, Acked) for event in peer.sender.events())
    peer.sender.data_to_send()


def test_an_ack_that_names_the_whole_lane_again_counts_only_what_is_new(log: ModelLog) -> None:
    peer = Peer(log)
    peer.say(welcome(WelcomeLane(1, [(0, 4)])))
    acked = [event for end in (6, 6, 9) for event in peer.say(Ack(1, [(0, end)])) if isinstance(event, Acked)]
    assert [event.newly for event in acked] == [2, 0, 3]
