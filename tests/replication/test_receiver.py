"""What a sender may not do to a hub."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.model import WALL, make_batch
from weft.protocols.link import (
    Ack,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Gap,
    Hello,
    HelloLane,
    LaneMark,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
    WelcomeLane,
)
from weft.protocols.ranges import RangeSet
from weft.replication.events import BatchesReceived, ConnectionLost, Fault, HelloReceived, ReceiverEvent
from weft.replication.liveness import SECOND
from weft.replication.receiver import Receiver, ReceiverSettings

HELLO = Hello(1, "default", "edge-1", 99, 1, [HelloLane(1, "telemetry", [(0, 10)]), HelloLane(2, "alarms", [])], 0, "t")


class Peer:
    """A receiver and the frames that go in and out of it."""

    def __init__(self, settings: ReceiverSettings | None = None, now: int = 0) -> None:
        self.receiver = Receiver(settings or ReceiverSettings(), "cluster", "test", lambda: WALL, now)
        self._encoder, self._decoder = FrameEncoder(), FrameDecoder()
        self.now = now

    def say(self, *frames: Frame) -> list[ReceiverEvent]:
        self.receiver.receive_data(self._encoder.encode(list(frames)), self.now)
        return self.receiver.events()

    def heard(self) -> list[Frame]:
        frames: list[Frame] = []
        while data := self.receiver.data_to_send():
            frames += self._decoder.decode(data)
        return frames

    def opened(self) -> Peer:
        self.say(HELLO)
        self.receiver.welcome([WelcomeLane(1, [(0, 4)])])
        assert isinstance(self.heard()[0], Welcome)
        return self

    def assert_refused(self, events: list[ReceiverEvent], code: RefuseCode, word: str) -> None:
        lost = events[-1]
        assert isinstance(lost, ConnectionLost)
        assert lost.fault is Fault.PEER
        assert self.receiver.closed
        refusal = self.heard()[-1]
        assert isinstance(refusal, Refuse)
        assert refusal.code == code
        assert word in refusal.message
        assert refusal.advice
        assert self.receiver.deadline() is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tenant": "../etc"}, "tenant"),
        ({"edge": ""}, "edge"),
        ({"lanes": [HelloLane(1, "Bad Name", [])]}, "stream"),
        ({"lanes": [HelloLane(1, "a", []), HelloLane(1, "b", [])]}, "twice"),
        ({"lanes": [HelloLane(1, "a", []), HelloLane(2, "a", [])]}, "twice"),
        ({"lanes": [HelloLane(5000, "a", [])]}, "below"),
        ({"lanes": [HelloLane(1, "a", [(4, 9), (1, 2)])]}, "ascending"),
        ({"software": "x" * 1000}, "software"),
    ],
)
def test_a_hello_that_cannot_be_is_refused_with_its_reason(change: dict[str, object], word: str) -> None:
    peer = Peer()
    events = peer.say(msgspec.structs.replace(HELLO, **change))
    peer.assert_refused(events, RefuseCode.BAD_HELLO, word)


def test_another_protocol_version_is_refused_as_such() -> None:
    peer = Peer()
    peer.assert_refused(peer.say(msgspec.structs.replace(HELLO, version=2)), RefuseCode.VERSION, "upgrade")


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Ping(1)], RefuseCode.BAD_HELLO),
        ([HELLO, HELLO], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, Data(1, make_batch(1, 0, 1))], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, LaneMark(1, 5, 5)], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, Ack(1, [(0, 1)])], RefuseCode.PROTOCOL_ERROR),
    ],
)
def test_frames_out_of_turn_are_refused(frames: list[Frame], code: RefuseCode) -> None:
    peer = Peer()
    peer.assert_refused(peer.say(*frames), code, "protocol")


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        (Data(3, make_batch(3, 0, 1)), "lane 3"),
        (Data(1, make_batch(2, 0, 1)), "lane 2"),
        (Data(1, make_batch(1, 0, 1)[:-1] + b"?"), "checksum"),
        (Data(1, make_batch(1, 0, 1)[:-1]), "inside a batch"),
        (Data(1, make_batch(1, 0, 9, 200)), "WELCOME allows 1000"),
        (Gap(9, 0, 1, 1), "lane 9"),
        (LaneMark(9, 0, 1), "lane 9"),
        (Welcome(1, "c", [], 1, 1, 0, "t"), "not expected"),
    ],
)
def test_frames_that_break_a_rule_are_refused(frame: Frame, word: str) -> None:
    peer = Peer(ReceiverSettings(batch_bytes_max=1000)).opened()
    peer.assert_refused(peer.say(frame), RefuseCode.PROTOCOL_ERROR, word)


def test_a_batch_that_is_too_long_costs_no_decoding() -> None:
    """Its claim is refused before its body is looked at, which is garbage here."""
    batch = bytearray(make_batch(1, 4, 50))
    batch[-1] ^= 1
    peer = Peer(ReceiverSettings(batch_bytes_max=1000)).opened()
    peer.assert_refused(peer.say(Data(1, bytes(batch))), RefuseCode.PROTOCOL_ERROR, "WELCOME allows 1000")
    peer = Peer(ReceiverSettings(window_bytes=1000)).opened()
    peer.assert_refused(
        peer.say(Data(1, make_batch(1, 4, 1)), Data(1, bytes(batch))), RefuseCode.PROTOCOL_ERROR, "window"
    )


def test_a_sender_that_ignores_the_window_is_refused() -> None:
    batch = make_batch(1, 4, 1)
    peer = Peer(ReceiverSettings(window_bytes=2 * len(batch))).opened()
    assert [type(event) for event in peer.say(Data(1, batch), Data(1, make_batch(1, 5, 1)))] == [BatchesReceived] * 2
    peer.receiver.acknowledge(1, RangeSet([(4, 5)]))
    assert not isinstance(peer.say(Data(1, make_batch(1, 6, 1)))[-1], ConnectionLost)
    peer.assert_refused(peer.say(Data(1, make_batch(1, 7, 1))), RefuseCode.PROTOCOL_ERROR, "window")


def test_acks_that_wait_are_joined() -> None:
    peer = Peer().opened()
    peer.receiver.acknowledge(1, RangeSet([(4, 6)]))
    peer.receiver.acknowledge(2, RangeSet([(0, 1)]))
    peer.receiver.acknowledge(1, RangeSet([(6, 8), (10, 11)]))
    assert peer.heard() == [Ack(1, [(4, 8), (10, 11)]), Ack(2, [(0, 1)])]


def test_an_ack_with_many_ranges_is_cut_into_frames() -> None:
    peer = Peer().opened()
    ranges = RangeSet((at, at + 1) for at in range(0, 20_000, 2))
    peer.receiver.acknowledge(1, ranges)
    acks = peer.heard()
    assert len(acks) == 3
    assert RangeSet(part for ack in acks if isinstance(ack, Ack) for part in ack.ranges) == ranges


def test_ping_is_answered_with_the_wall_clock_and_only_the_newest_is_owed() -> None:
    peer = Peer().opened()
    for sent in range(1000):
        peer.say(Ping(sent))
    assert peer.heard() == [Pong(999, WALL)]


def test_silence_ends_the_link_but_not_while_the_owner_does_not_read() -> None:
    peer = Peer().opened()
    peer.receiver.pause()
    peer.receiver.handle_timeout(100 * SECOND)
    assert not peer.receiver.closed
    assert [type(frame) for frame in peer.heard()] == [Ping]
    peer.receiver.resume(100 * SECOND)
    peer.receiver.handle_timeout(119 * SECOND)
    assert not peer.receiver.closed
    peer.receiver.handle_timeout(120 * SECOND)
    (lost,) = peer.receiver.events()
    assert isinstance(lost, ConnectionLost)
    assert lost.fault is Fault.NETWORK


def test_a_peer_that_never_says_hello_is_closed() -> None:
    peer = Peer()
    deadline = 0
    while not peer.receiver.closed:
        peer.receiver.receive_data(b"", deadline)
        deadline = peer.receiver.deadline() or 0
        peer.receiver.handle_timeout(deadline)
    assert deadline == 20 * SECOND


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_garbage_closes_the_link_and_nothing_else(messages: list[bytes], opened: bool) -> None:
    peer = Peer()
    if opened:
        peer.opened()
    for message in messages:
        peer.receiver.receive_data(message, 1)
    for event in peer.receiver.events():
        assert isinstance(event, ConnectionLost | HelloReceived | BatchesReceived)
    peer.receiver.data_to_send()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_never_taken_for_data(position: int, flip: int) -> None:
    message = bytearray(FrameEncoder().encode([HELLO, Data(1, make_batch(1, 4, 20))]))
    message[position % len(message)] ^= flip
    peer = Peer()
    peer.receiver.receive_data(bytes(message), 1)
    assert not any(isinstance(event, BatchesReceived) for event in peer.receiver.events())


def test_a_message_that_expands_without_end_is_refused() -> None:
    peer = Peer()
    bomb = zstandard.ZstdCompressor().compress(bytes(512 << 20))
    assert len(bomb) < 100_000
    peer.receiver.receive_data(bomb, 1)
    assert peer.receiver.closed
