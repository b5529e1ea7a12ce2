"""A session, without anything around it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.sessions.room import Clients, Room, RoomClient, close_all
from tests.edge_node.sessions.test_sessions import payloads
from tests.support.waiting import until
from weft.bounds import user_or_address
from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.log_readers import Redelivery, SessionReader, StoredMessages, is_retained_copy
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.records import NEVER_EXPIRES, Sent, SessionRecord
from weft.edge_node.sessions.session import Absence, Session, Terms, seconds_left
from weft.edge_node.sessions.window import ClientWindow, WindowState
from weft.edge_node.subscriptions.message import PUBLISHER, RECIPIENT, LogRecord, Message
from weft.protocols.batch import Flag
from weft.protocols.mqtt.packets import ReasonCode, Subscription, Will


def make() -> Session:
    clients = Clients()
    return Session(
        ClientWindow("c", Wire(5), clients.context, clients.fall_behind), 5, lambda _: None, user_or_address(None, "")
    )


RECORDS = st.builds(
    SessionRecord,
    st.just("c"),
    st.sampled_from([3, 4, 5]),
    st.integers(1, NEVER_EXPIRES),
    st.none() | st.text(),
    st.none() | st.integers(0, 1 << 60),
    st.booleans(),
    st.none() | st.integers(0, 1 << 60),
    inflight=st.dictionaries(
        st.integers(1, 99), st.builds(Sent, st.integers(1, 9), st.integers(0, 99), st.just(2), st.booleans())
    ),
    received=st.sets(st.integers(1, 65_535)),
)


@given(RECORDS)
def test_a_record_comes_back_as_it_was(record: SessionRecord) -> None:
    session = make()
    session.restore(record)
    assert session.record({}, set(), {}) == record
    assert list(session.record({}, set(), {}).inflight) == list(record.inflight), "in the order of sending"


def test_a_session_that_ends_with_its_connection_is_kept_for_its_will_alone() -> None:
    session, will = make(), Will(b"t", b"gone", 1)
    session.agree(Terms(4, 0, "user"))
    session.keep_will(will)
    session.received.add(7)
    assert session.record({1: 2}, {(1, 3)}, {}) == SessionRecord("c", 4, 0, "user", will=will)


def test_the_earlier_of_will_and_end_is_what_is_due() -> None:
    session, will = make(), Will(b"t", b"gone", 1)
    assert session.next_due() is None
    session.be_absent(Absence(expires_at=10.0))
    assert session.next_due() == 10
    session.keep_will(will, 5.0)
    assert session.next_due() == 5
    session.keep_will(will)
    assert session.next_due() == 10
    session.end()
    assert session.next_due() is None


def test_who_may_do_everything_is_not_asked() -> None:
    class Someone:
        unrestricted = True

    session, someone = make(), Someone()
    identity = cast(Identity, someone)
    session.agree(Terms(5, 9, None, identity))
    assert (session.rules, session.identity) == (None, identity)
    someone.unrestricted = False
    assert session.rules is identity
    assert session.window.persistent


def test_some_sessions_last_for_ever() -> None:
    assert seconds_left(NEVER_EXPIRES, 1e9) is None
    assert seconds_left(10, 4) == 6
    assert seconds_left(10, 11) == 0


# --- What a session gets of what is read from the log, and how what was in flight is sent again


@pytest.fixture
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


@pytest.mark.usefixtures("_close_rooms")
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


@pytest.mark.usefixtures("_close_rooms")
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


@pytest.mark.usefixtures("_close_rooms")
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


@pytest.mark.usefixtures("_close_rooms")
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


@pytest.mark.usefixtures("_close_rooms")
async def test_the_first_loss_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    reader, _ = reader_of(room, room.connect("slow"))
    reader.lost(3)
    reader.lost(4)
    assert room.counters.deliveries_lost == 7
    assert caplog.text.count("MQTT client 'slow' is too slow") == 1


@pytest.mark.usefixtures("_close_rooms")
async def test_a_record_of_two_streams_is_read_in_the_first_alone() -> None:
    room = Room()
    messages, stream = messages_of(room), room.node.log.stream("telemetry")
    assert messages.read(stream, record(0, b"x")) == Message(b"plant/a", b"x", 1, stream=stream)
    assert is_retained_copy(record(0, b"x", b"plant/a", 0, (RECIPIENT, "c")))
    qos2 = messages.read(stream, record(0, b"x", flags=int(Flag.PUBLISHED_QOS2 | Flag.RETAINED)))
    assert qos2 is not None
    assert (qos2.qos, qos2.retain) == (2, True)


@pytest.mark.usefixtures("_close_rooms")
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


@pytest.mark.usefixtures("_close_rooms")
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


@pytest.mark.usefixtures("_close_rooms")
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
