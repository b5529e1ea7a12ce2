"""One owner takes up its own share of what sessions keep; what others have stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.room import NODES, Room, RoomClient, close_all
from tests.edge_node.sessions.store.helpers import StoredNode
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.sessions.records import StateSettings
from weft.edge_node.sessions.session import Session
from weft.protocols.mqtt.packets import ConnectRefused, Properties, ReasonCode, Will

WILL = Will(b"plant/gone", b"x" * 500, 1, properties=Properties(will_delay_interval=1000))
"""About 1,000 bytes, which are kept for long."""


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    close_all()


def stay_away(room: Room, *names: str, user: str, will: Will | None = None) -> None:
    for name in names:
        room.leave(room.connect(name, user=user, will=will))


def names(room: Room) -> set[str]:
    return {session.client_id for session in room.sessions.all()}


def refused(room: Room) -> dict[tuple[str, str], int]:
    return {(each.bound, str(each.owner)): each.times for each in room.node.state.refusals}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_flood_of_sessions_evicts_its_own(restarts: bool) -> None:
    room = Room(limits=EdgeLimits(sessions=10, user_share=0.3))
    stay_away(room, "a", "b", user="alice")
    stay_away(room, "1", "2", "3", user="mallory")
    if restarts:
        room = room.stopped()
    stay_away(room, "4", "5", user="mallory")
    assert names(room) == {"a", "b", "3", "4", "5"}
    assert room.counters.sessions_evicted == 2


def test_the_owner_with_most_sessions_makes_room_first() -> None:
    room = Room(limits=EdgeLimits(sessions=5, user_share=1))
    stay_away(room, "a", user="alice")
    stay_away(room, "1", "2", "3", "4", user="mallory")
    stay_away(room, "b", user="bob")
    assert names(room) == {"a", "2", "3", "4", "b"}
    stay_away(room, "5", user="mallory")
    assert names(room) == {"a", "3", "4", "b", "5"}, "nobody has more, so it makes room itself"


def test_an_owner_whose_clients_are_all_connected_gets_no_more_sessions() -> None:
    room = Room(limits=EdgeLimits(sessions=10, user_share=0.2))
    stay_away(room, "a", user="alice")
    for name in "12":
        room.connect(name, user="mallory")
    with pytest.raises(ConnectRefused):
        room.connect("3", user="mallory")
    room.connect("b", user="alice")
    assert names(room) == {"a", "1", "2", "b"}
    assert refused(room) == {("limits.user_share of limits.sessions", "user mallory"): 1}


@pytest.mark.parametrize("expiry", [0, 1000])
def test_one_user_has_a_share_of_the_connections(expiry: int) -> None:
    room = Room(limits=EdgeLimits(connections=8))
    first, _ = room.connect("1", user="mallory", expiry=expiry), room.connect("2", user="mallory", expiry=expiry)
    with pytest.raises(ConnectRefused) as refusal:
        room.connect("3", user="mallory")
    assert refusal.value.code == ReasonCode.QUOTA_EXCEEDED
    for name in "abc":
        room.connect(name)
    first = room.connect("1", user="mallory", expiry=expiry)
    room.connect("2", user="mallory", expiry=expiry, clean=True)
    room.leave(first)
    room.connect("3", user="mallory")
    assert refused(room) == {("limits.user_share of limits.connections", "user mallory"): 1}


def test_clients_without_a_user_are_charged_by_address() -> None:
    room = Room(limits=EdgeLimits(sessions=10, user_share=0.2))
    room.leave(room.connect("a", address="10.0.0.1"))
    for name in "123":
        room.leave(room.connect(name, address="10.0.0.2"))
    room = room.killed()
    room.leave(room.connect("4", address="10.0.0.2"))
    assert names(room) == {"a", "3", "4"}


@pytest.mark.parametrize("restarts", [False, True])
def test_wills_of_one_owner_leave_room_for_those_of_others(restarts: bool) -> None:
    room = Room(limits=EdgeLimits(wills_bytes=20_000, user_share=0.25))
    stay_away(room, *"1234", user="mallory", will=WILL)
    if restarts:
        room = room.stopped()
    with pytest.raises(ConnectRefused) as refusal:
        room.connect("5", user="mallory", will=WILL)
    assert refusal.value.code == ReasonCode.QUOTA_EXCEEDED
    room.connect("a", user="alice", will=WILL)
    assert refused(room) == {("limits.user_share of limits.wills", "user mallory"): 1}
    assert room.counters.wills_published == 0


def test_of_full_wills_the_owner_with_most_has_its_oldest_published() -> None:
    room = Room(limits=EdgeLimits(wills_bytes=6_000, user_share=1))
    stay_away(room, *"12345", user="mallory", will=WILL)
    room.connect("a", user="alice", will=WILL)
    assert names(room) == {"2", "3", "4", "5", "a"}
    assert room.counters.wills_published == 1
    with pytest.raises(ConnectRefused):
        room.connect("6", user="mallory", will=WILL)


@pytest.mark.parametrize("restarts", [False, True])
def test_subscriptions_of_one_owner_leave_room_for_those_of_others(restarts: bool) -> None:
    room = Room(limits=EdgeLimits(subscriptions_total=10, user_share=0.4))
    mallory = room.connect("1", user="mallory")
    assert [room.subscribe(mallory, f"x/{number}") for number in range(3)] == [1, 1, 1]
    if restarts:
        room = room.stopped()
        mallory = room.connect("1", user="mallory")
    assert [room.subscribe(mallory, f"y/{number}") for number in range(2)] == [1, ReasonCode.QUOTA_EXCEEDED]
    alice = room.connect("a", user="alice")
    assert [room.subscribe(alice, f"x/{number}") for number in range(3)] == [1, 1, 1]
    assert refused(room) == {("limits.user_share of limits.subscriptions_total", "user mallory"): 1}
    room.sessions.filters.unsubscribe(session_of(mallory), "y/0")
    assert room.subscribe(mallory, "y/1") == 1


def test_of_full_subscriptions_absent_sessions_of_the_owner_with_most_go() -> None:
    room = Room(limits=EdgeLimits(filters_total_bytes=10 * 401, user_share=1))
    for name in "1234":
        mallory = room.connect(name, user="mallory")
        for text in "xy":
            room.subscribe(mallory, text)
        room.leave(mallory)
    alice = room.connect("a", user="alice")
    for text in "xyz":
        assert room.subscribe_all(alice, text) == [1]
    assert names(room) == {"2", "3", "4", "a"}
    bob = room.connect("b", user="mallory")
    assert room.subscribe_all(bob, *"xyz") == [1, ReasonCode.QUOTA_EXCEEDED, ReasonCode.QUOTA_EXCEEDED]


async def test_messages_that_one_owner_does_not_acknowledge_leave_memory_for_others() -> None:
    room = Room(limits=EdgeLimits(session_queues_bytes=100_000, user_share=0.2))
    slow = [room.connect(name, user="mallory") for name in "123"]
    for each in slow:
        room.subscribe(each, "plant/#")
    quick = room.connect("a", user="alice")
    room.subscribe(quick, "plant/#")
    for _ in range(20):
        room.publish(b"plant/x", b"x" * 1000)
    room.outbox.flush()
    assert room.context.windows.budget.used <= 20_000 + 20 * 1300, "mallory's share, and what alice has in flight"
    assert len(session_of(quick).window.in_flight.deliveries) >= 15
    assert sum(len(session_of(each).window.in_flight.deliveries) for each in slow) <= 18


@pytest.mark.parametrize("stops", [False, True])
def test_who_changes_sessions_too_often_has_absences_noted_later(stops: bool) -> None:
    room = Room(
        StoredNode(
            settings=StateSettings(state=State(save_interval_s=3600, journal_bytes_per_user=1_000), reserve_bytes=4096)
        )
    )
    NODES.append(room.node)
    alice, mallory = room.connect("a", user="alice"), room.connect("1", user="mallory")
    for number in range(10):
        room.subscribe(mallory, f"plant/{number}/{'x' * 1000}")
    journal = room.node.state.journal
    noted = journal.bytes_noted
    room.leave(mallory)
    assert journal.bytes_noted == noted
    room.leave(alice)
    assert journal.bytes_noted > noted
    noted = journal.bytes_noted
    room.context.persistence.note_late()
    assert journal.bytes_noted == noted
    if stops:
        room.sessions.stop()
    else:
        room.node.clock.ahead += 60_000_000_000
        room.context.persistence.note_late()
    assert journal.bytes_noted > noted + 10_000
    room = room.killed()
    (session,) = (each for each in room.sessions.all() if each.client_id == "1")
    assert len(session.subscriptions) == 10
    assert session.absence is not None
    assert session.absence.disconnected_at is not None


def test_a_crash_before_an_absence_is_noted_loses_nothing_of_the_session() -> None:
    room = Room(
        StoredNode(
            settings=StateSettings(state=State(save_interval_s=3600, journal_bytes_per_user=1_000), reserve_bytes=4096)
        )
    )
    NODES.append(room.node)
    mallory = room.connect("1", user="mallory")
    for number in range(10):
        room.subscribe(mallory, f"plant/{number}/{'x' * 1000}")
    room.leave(mallory)
    room = room.killed()
    (session,) = room.sessions.all()
    assert len(session.subscriptions) == 10
    assert session.absence is not None
    assert session.absence.lost_at is not None


def session_of(client: RoomClient) -> Session:
    assert client.session is not None
    return client.session
