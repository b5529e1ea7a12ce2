"""What a sender may not do to a hub."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.model import WALL, make_batch
from weft.protocols import batch
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.errors import Corrupt
from weft.protocols.link import (
    BEATS,
    PAIR,
    STREAM_WINDOW_LOG_MAX,
    Ack,
    Canary,
    CanaryBack,
    Clock,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Gap,
    Hello,
    LaneClosed,
    LaneOpen,
    LaneOpened,
    LastWords,
    Marks,
    Ping,
    Pong,
    Refuse,
    RefuseCode,
    Welcome,
    encode_frame,
)
from weft.protocols.ranges import RangeSet
from weft.replication.events import (
    BatchesReceived,
    ClockReceived,
    ConnectionLost,
    Fault,
    HelloReceived,
    LaneClosedReceived,
    LaneOpenReceived,
    MarksReceived,
    ReceiverEvent,
    RecordRefused,
)
from weft.replication.flow_control import ReceiverSettings
from weft.replication.liveness import SECOND
from weft.replication.receiver import Receiver

HELLO = Hello(1, "default", "edge-1", 99, 5, 0, "t")


def opening(lane: int, stream: str, flags: int = 0, epoch: int = 1) -> LaneOpen:
    return LaneOpen(lane, "default", "edge-1", 99, stream, epoch, [(0, 10)], ["a/+"], 0, flags)


TELEMETRY, ALARMS = opening(1, "telemetry"), opening(2, "alarms")


def raw_message(data: bytes) -> bytes:
    """Any bytes as the first message of a stream."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=STREAM_WINDOW_LOG_MAX)
    context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return context.compress(data) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


class Peer:
    """A receiver and the frames that go in and out of it."""

    def __init__(self, settings: ReceiverSettings | None = None, now: int = 0) -> None:
        self.receiver = Receiver(settings or ReceiverSettings(), "cluster", "test", lambda: WALL, now)
        self._encoder, self._decoder = FrameEncoder(), FrameDecoder()
        self.now = now

    def encoded(self, *frames: Frame) -> bytes:
        return self._encoder.encode(list(frames))

    def say(self, *frames: Frame) -> list[ReceiverEvent]:
        self.receiver.receive_data(self.encoded(*frames), self.now)
        return self.receiver.events()

    def heard(self) -> list[Frame]:
        frames: list[Frame] = []
        while data := self.receiver.data_to_send():
            frames += self._decoder.decode(data)
        return frames

    def opened(self, hello: Hello = HELLO) -> Peer:
        """Greeted, with both lanes open."""
        self.say(hello, TELEMETRY, ALARMS)
        self.receiver.welcome()
        self.receiver.lane_opened(1, RangeSet([(0, 4)]))
        self.receiver.lane_opened(2, RangeSet())
        welcome, *opened = self.heard()
        assert isinstance(welcome, Welcome)
        assert opened == [LaneOpened(1, [(0, 4)]), LaneOpened(2, [])]
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
    [({"tenant": "../etc"}, "tenant"), ({"edge": ""}, "edge"), ({"software": "x" * 1000}, "software")],
)
def test_a_hello_that_cannot_be_is_refused_with_its_reason(change: dict[str, object], word: str) -> None:
    peer = Peer()
    events = peer.say(msgspec.structs.replace(HELLO, **change))
    peer.assert_refused(events, RefuseCode.BAD_HELLO, word)


def test_another_protocol_version_is_refused_as_such() -> None:
    peer = Peer()
    peer.assert_refused(peer.say(msgspec.structs.replace(HELLO, version=2)), RefuseCode.VERSION, "upgrade")


def test_a_greeting_of_a_later_protocol_may_have_any_fields() -> None:
    peer = Peer()
    body = msgspec.msgpack.encode({"version": 2, "tenant": 7})
    peer.receiver.receive_data(raw_message(bytes([1]) + len(body).to_bytes(4, "little") + body), 0)
    peer.assert_refused(peer.receiver.events(), RefuseCode.VERSION, "protocol 2")


def test_features_of_a_later_release_are_heard_and_do_no_harm() -> None:
    peer = Peer()
    peer.say(msgspec.structs.replace(HELLO, features=["later"]))
    assert peer.receiver.peer_features == {"later"}


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Ping(1)], RefuseCode.BAD_HELLO),
        ([TELEMETRY], RefuseCode.BAD_HELLO),
        ([HELLO, HELLO], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, Data(1, make_batch(1, 0, 1))], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, TELEMETRY, Data(1, make_batch(1, 0, 1))], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, TELEMETRY, TELEMETRY], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, ALARMS, TELEMETRY], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, LaneOpen(1, "default", "e", 9, "s", 1, [(4, 9), (1, 2)])], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, Marks(5, [(1, 5)])], RefuseCode.PROTOCOL_ERROR),
        ([HELLO, LaneClosed(1, 9, "", "")], RefuseCode.PROTOCOL_ERROR),
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
        (Data(1, make_batch(1, 0, 1)[:-1] + b"?"), "checksum"),
        (Data(1, make_batch(1, 0, 1)[:-1]), "inside a batch"),
        (Data(1, make_batch(1, 0, 9, 200)), "WELCOME allows 1000"),
        (Gap(9, 0, 1, 1), "lane 9"),
        (Marks(0, [(1, 1), (9, 1)]), "lane 9"),
        (LaneOpened(1, []), "not expected"),
        (Welcome(1, "c", 1, 1, 0, "t"), "not expected"),
    ],
)
def test_frames_that_break_a_rule_are_refused(frame: Frame, word: str) -> None:
    peer = Peer(ReceiverSettings(batch_bytes_max=1000)).opened()
    peer.assert_refused(peer.say(frame), RefuseCode.PROTOCOL_ERROR, word)


def test_a_frame_that_this_release_does_not_know_is_answered_with_the_version_that_it_speaks() -> None:
    for number in (12, 127, 200, 255):
        peer = Peer()
        peer.receiver.receive_data(raw_message(encode_frame(HELLO) + bytes([number]) + bytes(4)), 0)
        peer.assert_refused(peer.receiver.events(), RefuseCode.VERSION, f"a frame of type {number}")


@pytest.mark.parametrize(
    ("lane", "code", "word"),
    [
        (opening(3, "Bad Name"), RefuseCode.BAD_HELLO, "stream name"),
        (opening(3, "telemetry"), RefuseCode.BAD_HELLO, "open already"),
        (opening(3, "s", flags=4), RefuseCode.VERSION, "later release"),
        (opening(3, "s", flags=LaneFlag.RELAY), RefuseCode.BAD_HELLO, "claims no epoch"),
        (opening(3, "s", flags=LaneFlag.UNCOMPARED), RefuseCode.BAD_HELLO, "only the peer of a pair"),
        (opening(3, "s", flags=LaneFlag.TWO_DISKS), RefuseCode.BAD_HELLO, "only the peer of a pair"),
    ],
)
def test_a_lane_that_cannot_be_is_closed_and_the_others_go_on(lane: LaneOpen, code: RefuseCode, word: str) -> None:
    peer = Peer().opened()
    assert peer.say(lane) == []
    (closed,) = peer.heard()
    assert isinstance(closed, LaneClosed)
    assert (closed.lane, closed.code) == (3, code)
    assert word in closed.message
    assert closed.advice
    (event,) = peer.say(Data(1, make_batch(1, 4, 1)))
    assert isinstance(event, BatchesReceived)


def test_the_peer_of_a_pair_takes_a_lane_that_was_not_compared() -> None:
    peer = Peer(ReceiverSettings(features=(PAIR,))).opened()
    assert peer.say(lane := opening(3, "s", flags=LaneFlag.UNCOMPARED)) == [LaneOpenReceived(lane)]


def test_what_is_on_the_way_of_a_closed_lane_is_dropped_and_frees_the_window() -> None:
    batch = make_batch(1, 4, 1)
    peer = Peer(ReceiverSettings(window_bytes=2 * len(batch))).opened()
    peer.say(Data(1, batch), Data(1, make_batch(1, 5, 1)))
    peer.receiver.close_lane(1, RefuseCode.UNAVAILABLE, "the store fails", "another node takes over")
    assert peer.receiver.unacked_bytes == 0
    assert peer.say(Data(1, make_batch(1, 6, 1)), Gap(1, 7, 8, 1), Marks(5, [(1, 8)])) == []
    peer.receiver.acknowledge(1, RangeSet([(4, 6)]))
    assert peer.heard() == [LaneClosed(1, RefuseCode.UNAVAILABLE, "the store fails", "another node takes over")]
    (event,) = peer.say(opening(3, "telemetry"))
    assert isinstance(event, LaneOpenReceived)


def test_a_lane_that_the_sender_closes_can_be_opened_again_under_another_number() -> None:
    peer = Peer().opened()
    assert peer.say(LaneClosed(1, RefuseCode.CLOSED, "done", "")) == [LaneClosedReceived(1, "done")]
    assert [type(event) for event in peer.say(LaneClosed(1, 9, "", ""), opening(3, "telemetry"))] == [LaneOpenReceived]
    peer.receiver.lane_opened(3, RangeSet())
    assert peer.heard() == [LaneOpened(3, [])]


def test_a_sender_that_opens_lanes_without_reading_the_answers_is_refused() -> None:
    peer = Peer().opened()
    events = peer.say(*(opening(number, "telemetry") for number in range(3, 6000)))
    peer.assert_refused(events, RefuseCode.PROTOCOL_ERROR, "without reading")


def test_batches_carry_the_number_of_their_log_and_frames_that_of_the_link() -> None:
    (event,) = Peer().opened().say(Data(2, make_batch(77, 0, 1)))
    assert isinstance(event, BatchesReceived)
    assert event.lane == 2


def test_a_clock_is_told() -> None:
    clock = Clock(99, 5, 1000, -7, 3)
    assert Peer().opened().say(clock) == [ClockReceived(clock)]


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


def beats(peer: Peer, looks: int, first: int = 1) -> list[int]:
    """Return the looks at which the edge gets a beat, and nothing else."""
    found = []
    for look in range(first, first + looks):
        found += [look] if peer.receiver.beat(look) else []
        assert peer.heard() == ([Pong(0, WALL)] if look in found else [])
    return found


def test_an_edge_whose_records_wait_hears_a_beat_at_the_third_quiet_look_and_so_on() -> None:
    peer = Peer().opened(msgspec.structs.replace(HELLO, features=[BEATS]))
    assert beats(peer, 9) == [], "it waits for nothing"
    peer.say(Data(1, make_batch(0, 4, 6)))
    assert beats(peer, 9) == [3, 6, 9]
    assert beats(peer, 2) == []
    peer.receiver.acknowledge(1, RangeSet([(4, 5)]))
    assert peer.heard()
    assert beats(peer, 3) == [3], "an acknowledgement of a part is a word like others"
    peer.receiver.acknowledge(1, RangeSet([(5, 10)]))
    assert peer.heard()
    assert beats(peer, 9) == []


def test_a_hub_that_is_busy_beats_in_time() -> None:
    """Its loop takes 1.15 s a step, so it looks as often."""
    peer = Peer().opened(msgspec.structs.replace(HELLO, features=[BEATS]))
    peer.say(Data(1, make_batch(0, 4, 6)))
    for look in range(1, 4):
        assert peer.receiver.beat(int(1.15 * look * SECOND))
        assert peer.heard() == [Pong(0, WALL)]


def test_an_edge_whose_lane_waits_or_whose_hub_does_not_read_hears_beats() -> None:
    peer = Peer().opened(msgspec.structs.replace(HELLO, features=[BEATS]))
    peer.receiver.live.pause()
    assert beats(peer, 6) == [3, 6]
    peer.receiver.live.resume(6)
    assert beats(peer, 6) == []
    peer.say(opening(3, "waits"))
    assert beats(peer, 6) == [3, 6]


def test_an_edge_of_the_release_before_gets_no_beats() -> None:
    peer = Peer().opened()
    peer.say(Data(1, make_batch(0, 4, 6)))
    assert beats(peer, 9) == []


def test_silence_ends_the_link_but_not_while_the_owner_does_not_read() -> None:
    peer = Peer(ReceiverSettings(silence=20 * SECOND)).opened()
    peer.receiver.live.pause()
    peer.receiver.handle_timeout(100 * SECOND)
    assert not peer.receiver.closed
    assert [type(frame) for frame in peer.heard()] == [Ping]
    peer.receiver.live.resume(100 * SECOND)
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
        assert isinstance(event, ConnectionLost | HelloReceived | BatchesReceived | LaneOpenReceived)
    peer.receiver.data_to_send()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_never_taken_for_data(position: int, flip: int) -> None:
    message = bytearray(FrameEncoder().encode([HELLO, TELEMETRY, Data(1, make_batch(1, 4, 20))]))
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


# --- taking a message in turns


def in_turns() -> Peer:
    peer = Peer()
    peer.receiver = Receiver(ReceiverSettings(), "cluster", "test", lambda: WALL, 0, in_turns=True)
    return peer.opened()


def batch_of(first: int, payload: bytes) -> bytes:
    columns = batch.columns_from_lists(bytes(8), [b"k"], [payload])
    return batch.encode(1, first, columns, batch.ClockReading(1, 1, batch.ClockState.SYNCED))


def test_a_message_with_much_in_it_stops_between_frames() -> None:
    peer = in_turns()
    events = list(peer.say(*[Data(1, batch_of(4 + at, bytes(1000))) for at in range(1000)]))
    assert peer.receiver.is_busy
    turns = 1
    while peer.receiver.is_busy:
        peer.receiver.process_more()
        events += peer.receiver.events()
        turns += 1
    assert turns == 9
    assert [event.batches[0][0].base_seq for event in events if isinstance(event, BatchesReceived)] == [*range(4, 1004)]
    assert peer.say(Data(1, batch_of(1004, b"")))


def test_a_long_batch_is_checked_by_the_owner() -> None:
    peer = in_turns()
    sound, damaged = batch_of(4, bytes(2 << 20)), bytearray(batch_of(5, bytes(2 << 20)))
    damaged[-1] ^= 1
    assert not peer.say(Data(1, sound), Data(1, bytes(damaged)))
    while not peer.receiver.unchecked:  # it is decompressed in turns, too
        peer.receiver.process_more()
    assert [header.base_seq for header, _ in peer.receiver.unchecked] == [4]
    peer.receiver.process_more()
    assert [type(event) for event in peer.receiver.events()] == [BatchesReceived]
    peer.receiver.process_more()
    [(header, body)] = peer.receiver.unchecked
    with pytest.raises(Corrupt) as found:
        batch.check(body, header)
    peer.receiver.process_more(found.value)
    peer.assert_refused(peer.receiver.events(), RefuseCode.PROTOCOL_ERROR, "checksum")
    assert not peer.receiver.is_busy


@pytest.mark.parametrize("checks_itself", [True, False])
def test_a_record_that_is_too_long_closes_its_lane_and_nothing_else(checks_itself: bool) -> None:
    peer = in_turns()
    settings = ReceiverSettings(record_bytes_max=2 << 20)
    peer.receiver = Receiver(settings, "cluster", "test", lambda: WALL, 0, in_turns=not checks_itself)
    peer._encoder, peer._decoder = FrameEncoder(), FrameDecoder()
    peer.opened()
    batches = [batch_of(4, b"short"), batch_of(5, bytes(2 << 20)), batch_of(6, b"behind")]
    events = peer.say(Data(1, b"".join(batches)), Data(1, batch_of(7, b"")), Data(2, batch_of(0, b"other")))
    while peer.receiver.is_busy:
        error = None
        for header, body in peer.receiver.unchecked:
            try:
                batch.check(body, header, peer.receiver.record_bytes_max)
            except batch.RecordTooLong as found:
                error = found
                break
        peer.receiver.process_more(error)
        events += peer.receiver.events()
    taken = [
        (event.lane, header.base_seq)
        for event in events
        if isinstance(event, BatchesReceived)
        for header, _ in event.batches
    ]
    assert taken == [(1, 4), (2, 0)]
    [refused] = [event for event in events if isinstance(event, RecordRefused)]
    assert refused == RecordRefused(1, f"the record at seq 5 has {(2 << 20) + 1} bytes, the hub's limit is {2 << 20}")
    [closed] = peer.heard()
    assert isinstance(closed, LaneClosed)
    assert (closed.lane, closed.advice) == (1, "raise the hub's limits.record")
    assert not peer.receiver.closed


def test_a_lane_may_be_closed_while_its_record_that_is_too_long_is_looked_at() -> None:
    peer = in_turns()
    peer.say(Data(1, batch_of(4, bytes(2 << 20))))
    while not peer.receiver.unchecked:
        peer.receiver.process_more()
    peer.receiver.close_lane(1, RefuseCode.UNAVAILABLE, "it has moved", "")
    peer.receiver.process_more(batch.RecordTooLong(4, 2 << 20, 1 << 20))
    assert not any(isinstance(event, RecordRefused) for event in peer.receiver.events())
    assert not peer.receiver.closed


def test_a_last_word_with_a_name_that_none_can_have_is_refused() -> None:
    peer = in_turns()
    peer.assert_refused(peer.say(LastWords(1, [(1, 4)], "press 7\x1b")), RefuseCode.PROTOCOL_ERROR, "names no edge")


def test_the_window_counts_what_batches_are_uncompressed() -> None:
    peer = in_turns()
    columns = batch.columns_from_lists(bytes(8), [b"k"], [bytes(5 << 20)])
    packed = [
        batch.encode(1, 4 + at, columns, batch.ClockReading(1, 1, batch.ClockState.SYNCED), zstandard.ZstdCompressor())
        for at in range(2)
    ]
    assert len(packed[0]) < 1000
    peer.say(Data(1, packed[0]))
    peer.receiver.process_more()
    assert peer.receiver.unacked_bytes > 5 << 20
    peer.receiver.events()
    peer.assert_refused(peer.say(Data(1, packed[1])), RefuseCode.PROTOCOL_ERROR, "window")


def test_a_message_that_ends_inside_a_frame_is_refused() -> None:
    peer = in_turns()
    peer.receiver.receive_data(peer._encoder._context.compress(b"\x08") + peer._encoder._context.flush(1), 1)
    peer.assert_refused(peer.receiver.events(), RefuseCode.PROTOCOL_ERROR, "inside a frame")


def test_the_answer_to_a_canary_goes_with_a_pong_and_says_what_was_no_work_of_the_store() -> None:
    peer = Peer(ReceiverSettings(mark_interval=60 * SECOND)).opened()
    for number, waited, reported in ((1, 20, 50), (2, 999, 90)):
        assert peer.say(Canary(number)) == [Canary(number)]
        peer.receiver.prove(number, waited * SECOND, peer.now)
        assert not peer.receiver.has_to_answer
        assert peer.heard() == [], "it takes no packet of its own"
        peer.now += 30 * SECOND
        peer.say(Ping(9))
        assert peer.heard() == [CanaryBack(number, reported * SECOND), Pong(9, WALL)], "marks wait for 60 s at most"


def test_of_marks_that_wait_only_the_newest_of_each_lane_is_left() -> None:
    peer = Peer().opened()
    batch = make_batch(1, 10, 2)
    events = peer.say(
        Marks(5, [(1, 10), (2, 10)]), Data(1, batch), Marks(6, [(1, 12)]), LastWords(7, [(2, 10)]), Marks(8, [(1, 12)])
    )
    assert [event for event in events if isinstance(event, MarksReceived)] == [
        MarksReceived(7, [(2, 10)], last=True),
        MarksReceived(8, [(1, 12)]),
    ]
    assert isinstance(events[0], BatchesReceived), "records come before the mark that covers them"


def test_marks_of_a_lane_that_is_closed_behind_them_are_kept() -> None:
    peer = Peer().opened()
    events = peer.say(Marks(5, [(1, 10)]), LaneClosed(1, RefuseCode.CLOSED, "", ""), Marks(6, [(2, 10)]))
    assert [type(event) for event in events] == [MarksReceived, LaneClosedReceived, MarksReceived]


def test_frames_that_the_window_does_not_count_have_a_cost() -> None:
    peer = Peer().opened()
    peer.receiver.control_cost = 0
    peer.say(Data(1, make_batch(1, 10, 2)))
    assert peer.receiver.control_cost == 0, "records have the window"
    costs = []
    for frames in ([Ping(1)], [Marks(5, [(1, 10)] * 1000)], [Ping(number) for number in range(1000)]):
        peer.say(*frames)
        costs.append(peer.receiver.control_cost)
        peer.receiver.control_cost = 0
    assert 0 < costs[0] < costs[1] / 10 < costs[2]
    peer.say(LaneClosed(1, RefuseCode.CLOSED, "", ""))
    peer.receiver.control_cost = 0
    peer.say(Data(1, make_batch(1, 12, 2)))
    assert peer.receiver.control_cost > 0, "records of a closed lane count for no window"


def test_short_messages_share_a_turn() -> None:
    """Many of them may be here already: each of them alone would begin another turn."""
    receiver = Receiver(ReceiverSettings(), "cluster", "test", lambda: WALL, 0, in_turns=True)
    encoder, turns = FrameEncoder(), 0
    frames: list[Frame] = [HELLO, *map(Ping, range(256))]  # of a cost of 1 KiB at least
    for frame in frames:
        receiver.receive_data(encoder.encode([frame]), 0)
        turns += receiver.is_busy
        while receiver.is_busy:
            receiver.process_more()
    assert turns >= 2
