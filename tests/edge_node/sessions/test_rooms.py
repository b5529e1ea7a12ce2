"""The life of sessions without connections: what happens when, and what the next node finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.room import Room, RoomClient, close_all
from tests.support.waiting import until
from weft.config.limits import EdgeLimits
from weft.edge_node.sessions.window import WindowState
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.packets import ConnectRefused, Properties, PubRel, ReasonCode, Subscription, Will
from weft.storage.segment_log import LogFull

GONE = Will(b"plant/gone", b"gone", 1)
END = pytest.mark.parametrize("end", ["killed", "stopped"])


@pytest.fixture(autouse=True)
def _close_rooms() -> Iterator[None]:
    yield
    close_all()


def payloads(client: RoomClient) -> list[bytes]:
    """What a client was sent."""
    data, at, found = b"".join(client), 0, []
    while at < len(data):
        decoded = decode(data, at, 1 << 24, 5)
        assert decoded is not None
        packet, at = decoded
        found.append(b"PUBREL" if isinstance(packet, PubRel) else packet.payload)  # type: ignore[attr-defined]
    return found


def test_a_client_that_comes_before_a_busy_node_has_ended_its_session_gets_a_new_one() -> None:
    room = Room()
    client = room.connect("c", expiry=100)
    room.leave(client)
    room.now += 101  # the wheel has not been looked at
    again = room.connect("c", expiry=100)
    assert again.session is not client.session
    assert (len(room.sessions), room.counters.sessions_expired) == (1, 1)
    room.later(1000)
    assert len(room.sessions) == 1, "what the wheel knew of the old one is forgotten"


async def test_a_session_waits_for_its_client_and_then_expires() -> None:
    room = Room()
    client = room.connect("c", expiry=100)
    room.subscribe(client, "plant/#")
    room.leave(client)
    room.publish(b"plant/a", b"1")
    room.later(99)
    again = room.connect("c", expiry=100)
    assert again.session is client.session
    assert again.session is not None
    assert again.session.window.state in (WindowState.BEHIND, WindowState.JOINING)
    room.node.commit()
    await until(lambda: payloads(again) == [b"1"])
    room.leave(again)
    room.later(101)
    assert (len(room.sessions), room.counters.sessions_expired, room.counters.subscriptions) == (0, 1, 0)
    assert again.session.ended
    assert room.context.windows.budget.used == 0


async def test_a_clean_start_forgets_and_a_takeover_displaces() -> None:
    """[MQTT-3.1.4-3] [MQTT-3.1.2-4]"""
    room = Room()
    first = room.connect("c")
    room.subscribe(first, "plant/#")
    second = room.connect("c")
    assert first.closed == ReasonCode.SESSION_TAKEN_OVER
    assert second.session is first.session
    third = room.connect("c", clean=True)
    assert third.session is not second.session
    assert not room.subscriptions.recipients(b"plant/a").live
    assert (len(room.sessions), room.counters.takeovers) == (1, 2)


async def test_a_will_comes_when_its_delay_is_over_or_the_session_ends() -> None:
    """[MQTT-3.1.3-9] [MQTT-3.1.2-8]"""
    room = Room()
    watcher = room.connect("watcher")
    room.subscribe(watcher, "plant/gone")
    late = Will(b"plant/gone", b"late", 1, False, Properties(will_delay_interval=50))
    room.leave(room.connect("delay", expiry=1000, will=late))
    room.leave(room.connect("session", expiry=20, will=late))
    room.leave(room.connect("goodbye", expiry=20, will=GONE), with_will=False)
    room.later(19)
    assert payloads(watcher) == []
    room.later(2)
    assert payloads(watcher) == [b"late"], "its session has ended"
    room.later(30)
    assert payloads(watcher) == [b"late"] * 2
    assert room.counters.will_bytes == 0


async def test_a_session_that_wants_its_own_will_gets_it() -> None:
    room = Room()
    client = room.connect("c", will=GONE)
    room.subscribe(client, "plant/gone")
    room.leave(client)
    room.node.commit()
    again = room.connect("c")
    await until(lambda: payloads(again) == [b"gone"])


@END
async def test_the_next_node_finds_what_was_promised(end: str) -> None:
    room = Room()
    client, share = room.connect("c"), room.connect("s")
    room.subscribe(client, "plant/+", 2)
    room.subscribe(share, "$share/g/plant/+", 2)
    room.publish(b"plant/a", b"one")
    room.publish(b"plant/b", b"two", qos=2)
    room.node.commit()
    assert client.session is not None
    client.session.window.in_flight.pubrec(2, 0)
    room.node.commit()
    assert payloads(client) == [b"one", b"two", b"PUBREL"]
    room = room.killed() if end == "killed" else room.stopped()
    assert room.context.windows.budget.used == 4 * 200
    assert {session.client_id for session in room.sessions.all()} == {"c", "s"}
    assert room.counters.subscriptions == 2
    again = room.connect("c")
    assert again.session is not None
    assert room.sessions.filters.subscribe(again.session, Subscription("plant/+", 2), None) == (2, False)
    await until(lambda: payloads(again) == [b"one", b"PUBREL"])
    again.session.window.in_flight.puback(1)
    again.session.window.in_flight.pubcomp(2)
    other = room.connect("s")
    await until(lambda: payloads(other) == [b"one", b"two"])
    assert other.session is not None
    assert list(other.session.window.in_flight.deliveries) == [1, 2]


@END
async def test_a_shared_subscription_goes_on_where_it_was(end: str) -> None:
    room = Room()
    client = room.connect("s")
    room.subscribe(client, "$share/g/plant/+", 1)
    room.publish(b"plant/a", b"1", b"2")
    room.node.commit()
    assert client.session is not None
    for packet_id in (1, 2):
        client.session.window.in_flight.puback(packet_id)
    room.sessions.note_positions()
    room.leave(client)
    room.publish(b"plant/a", b"3")
    room = room.killed() if end == "killed" else room.stopped()
    (shared,) = room.context.shared.all()
    assert shared.state(room.ingest.ends())[0][room.node.log.stream("telemetry")] == 2
    again = room.connect("s")
    await until(lambda: payloads(again) == [b"3"])
    assert again.session is not None
    room.sessions.end(again.session)
    room.node.commit()
    room.node.kill()
    assert list(room.node.state.journal.recover_shared()) == []


@END
async def test_a_subscription_gets_nothing_older_than_itself(end: str) -> None:
    room = Room()
    client = room.connect("c")
    room.publish(b"plant/old", b"old")
    room.node.commit()
    room.subscribe(client, "plant/+")
    room.leave(client)
    room.publish(b"plant/new", b"new")
    room = room.killed() if end == "killed" else room.stopped()
    again = room.connect("c")
    await until(lambda: payloads(again) == [b"new"])
    room.sessions.note_positions()


async def test_where_a_session_is_is_noted_once() -> None:
    room = Room()
    client = room.connect("c")
    room.subscribe(client, "plant/+")
    room.publish(b"plant/a", b"1")
    room.sessions.note_positions()
    noted = room.node.state.journal.bytes_noted
    room.sessions.note_positions()
    assert room.node.state.journal.bytes_noted == noted
    room.publish(b"plant/a", b"2")
    room.sessions.note_positions()
    assert room.node.state.journal.bytes_noted > noted


async def test_filters_have_bounds_and_are_counted_until_they_go() -> None:
    room = Room(limits=EdgeLimits(filters_bytes=2000, topic_levels=3, subscriptions_total=3, user_share=1))
    one, two = room.connect("one"), room.connect("two")
    assert room.subscribe(one, "a/b/c/d") == ReasonCode.TOPIC_FILTER_INVALID
    assert room.subscribe(one, "$share//a") == ReasonCode.TOPIC_FILTER_INVALID
    assert [room.subscribe(one, text) for text in ("a/b", "c/d", "e/f")] == [1, 1, ReasonCode.QUOTA_EXCEEDED]
    assert room.subscribe(one, "a/b", 2) == 2, "one that is there may change"
    assert [room.subscribe(two, text) for text in ("a", "b")] == [1, ReasonCode.QUOTA_EXCEEDED], "of all together"
    assert one.session is not None
    assert room.sessions.filters.unsubscribe(one.session, "x") == ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert room.sessions.filters.unsubscribe(one.session, "a/b") == ReasonCode.SUCCESS
    assert room.subscribe(two, "b") == 1
    assert room.counters.subscriptions == 3


async def test_a_session_that_the_journal_cannot_take_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LogFull("no room")

    room = Room()
    late = Will(b"plant/gone", b"late", 1, False, Properties(will_delay_interval=50))
    room.leave(room.connect("c", will=late))
    (session,) = room.sessions.all()
    before = (session.terms, session.absence, session.will, session.will_at)
    with monkeypatch.context() as patch:
        patch.setattr(room.node.state.journal, "opened", refuse)
        for client_id in ("c", "new"):
            with pytest.raises(LogFull):
                room.connect(client_id, expiry=5, will=GONE)
    assert (session.terms, session.absence, session.will, session.will_at) == before
    assert session.window.state is WindowState.AWAY
    assert room.sessions.all() == [session]
    room.later(51)
    assert room.counters.wills_published == 1


async def test_the_bound_of_wills_holds_for_all_of_them() -> None:
    room = Room(limits=EdgeLimits(wills_bytes=1200, user_share=1))
    room.connect("a", will=GONE)
    room.connect("b", will=GONE)
    with pytest.raises(ConnectRefused):
        room.connect("c", will=GONE)
    room.connect("b", will=GONE)
    assert room.counters.wills_refused == 1
