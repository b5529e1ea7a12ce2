"""What a session gets of what is read from the log, and how what was in flight is sent again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pytest

from tests.edge_node.sessions.room import Room, RoomClient, close_all
from tests.edge_node.sessions.test_rooms import payloads
from tests.support.waiting import until
from weft.edge_node.sessions.log_readers import Redelivery, SessionReader, StoredMessages, is_retained_copy
from weft.edge_node.sessions.window import WindowState
from weft.edge_node.subscriptions.message import PUBLISHER, RECIPIENT, LogRecord, Message
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import ReasonCode, Subscription


@pytest.fixture(autouse=True)
def _close_rooms() -> Iterator[None]:
    yield
    close_all()


def record(seq: int, payload: bytes, topic: bytes = b"plant/a", flags: int = 0, *headers: tuple[str, str]) -> LogRecord:
    return LogRecord(seq, topic, payload, flags, headers)


def messages_of(room: Room) -> StoredMessages:
    return StoredMessages(room.node.log, room.ingest, lambda: 1000, room.counters)


def reader_of(
    room: Room, client: RoomClient, done: Collection[tuple[int, int]] = (), doubtful: Mapping[int, int] | None = None
) -> tuple[SessionReader, int]:
    assert client.session is not None
    found = SessionReader(
        client.session.window,
        room.subscriptions,
        messages_of(room),
        room.outbox,
        room.counters,
        set(done),
        doubtful or {},
    )
    return found, room.node.log.stream("telemetry")


async def test_only_what_the_client_wants_and_lacks_is_sent() -> None:
    room = Room()
    client = room.connect("c")
    room.subscribe(client, "plant/a")
    reader, stream = reader_of(room, client, done={(room.node.log.stream("telemetry"), 1)})
    assert reader.wants(b"plant/a")
    assert not reader.wants(b"plant/b")
    for each in (
        record(0, b"0"),
        record(1, b"had"),
        record(2, b"other", b"plant/b"),
        record(3, b"at most once", flags=int(Flag.PUBLISHED_QOS0)),
        record(4, b"4"),
        LogRecord(5, b"plant/a", b"to one", 0, ((RECIPIENT, "c"),)),
        LogRecord(6, b"plant/a", b"expired", 0, (("weft.expires", 999),)),
    ):
        reader.read(stream, each)
    assert payloads(client) == [b"0", b"4"]
    assert reader.done == set()
    assert room.counters.messages_expired == 1


async def test_a_newer_subscription_gets_nothing_older() -> None:
    room = Room()
    client = room.connect("c")
    assert client.session is not None
    room.subscribe(client, "plant/a")
    room.subscribe(client, "plant/+", 2)
    newer = client.session.subscriptions["plant/+"][0]
    reader, stream = reader_of(room, client)
    reader.began(newer, {stream: 10})
    for seq, topic in ((8, b"plant/b"), (9, b"plant/a"), (10, b"plant/b")):
        reader.read(stream, record(seq, b"%d" % seq, topic))
    assert payloads(client) == [b"9", b"10"]


async def test_its_own_messages_are_not_for_it() -> None:
    """[MQTT-3.8.3-3]"""
    room = Room()
    client = room.connect("c")
    assert client.session is not None
    room.sessions.filters.subscribe(client.session, Subscription("plant/a", 1, no_local=True), None)
    reader, stream = reader_of(room, client)
    reader.read(stream, LogRecord(0, b"plant/a", b"own", 0, ((PUBLISHER, "c"),)))
    reader.read(stream, LogRecord(1, b"plant/a", b"other", 0, ((PUBLISHER, "d"),)))
    assert payloads(client) == [b"other"]


async def test_what_a_crash_may_have_sent_says_so() -> None:
    """[MQTT-3.3.1-1]"""
    room = Room()
    client = room.connect("c")
    room.subscribe(client, "plant/a", 2)
    stream = room.node.log.stream("telemetry")
    reader, _ = reader_of(room, client, doubtful={stream: 2})
    for seq, flags in ((0, 0), (1, int(Flag.PUBLISHED_QOS2)), (2, 0)):
        reader.read(stream, record(seq, b"%d" % seq, flags=flags))
    room.node.commit()
    assert [bool(packet[0] & 8) for packet in client] == [True, False, False]


async def test_the_first_loss_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    reader, _ = reader_of(room, room.connect("slow"))
    reader.lost(3)
    reader.lost(4)
    assert room.counters.deliveries_lost == 7
    assert caplog.text.count("MQTT client 'slow' is too slow") == 1


async def test_a_record_of_two_streams_is_read_in_the_first_alone() -> None:
    room = Room()
    messages, stream = messages_of(room), room.node.log.stream("telemetry")
    assert messages.read(stream, record(0, b"x")) == Message(b"plant/a", b"x", 1, stream=stream)
    assert is_retained_copy(record(0, b"x", b"plant/a", 0, (RECIPIENT, "c")))
    qos2 = messages.read(stream, record(0, b"x", flags=int(Flag.PUBLISHED_QOS2 | Flag.RETAINED)))
    assert qos2 is not None
    assert (qos2.qos, qos2.retain) == (2, True)


async def test_a_retained_message_on_its_way_is_in_the_log_of_a_session_that_stays() -> None:
    room = Room()
    passing, stays = room.connect("passing", expiry=0), room.connect("stays")
    messages, message = messages_of(room), Message(b"plant/a", b"kept", 1, True)
    assert passing.session is not None
    assert stays.session is not None
    assert messages.keep_retained(passing.session.window, message) is message
    kept = messages.keep_retained(stays.session.window, message)
    assert (kept.stream, kept.seq) == (room.node.state.topics_stream, 0)
    room.node.commit()
    (found,) = (await room.node.state.backlog.fetch(kept.stream, [kept.seq])).values()
    assert is_retained_copy(found)
    assert (found.topic, found.payload) == (b"plant/a", b"kept")


async def test_what_cannot_be_read_again_closes_the_client_and_waits_for_it() -> None:
    class Broken:
        async def fetch(self, stream: int, seqs: Sequence[int]) -> dict[int, LogRecord]:
            raise OSError("the disk is gone")

    room = Room()
    client = room.connect("c")
    room.subscribe(client, "plant/a")
    room.publish(b"plant/a", b"1", b"2")
    room = room.killed()
    redelivery = Redelivery(room.subscriptions, messages_of(room), Broken(), room.outbox)  # type: ignore[arg-type]
    again = room.connect("c")
    assert again.session is not None
    await redelivery.run(again.session.window)
    assert again.closed == ReasonCode.UNSPECIFIED_ERROR
    assert again.session.window.state is WindowState.AWAY
    assert list(again.session.window.in_flight.unread()) == [1, 2]
    third = room.connect("c")
    await until(lambda: payloads(third) == [b"1", b"2"])


async def test_a_subscription_that_is_gone_takes_no_message_back() -> None:
    room = Room()
    client = room.connect("c")
    room.subscribe(client, "plant/a")
    room.publish(b"plant/a", b"1")
    assert client.session is not None
    room.sessions.filters.unsubscribe(client.session, "plant/a")
    room = room.killed()
    again = room.connect("c")
    await until(lambda: payloads(again) == [b"1"])
