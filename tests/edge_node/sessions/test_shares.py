"""One owner takes up its own share of what sessions keep; what others have stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.room import NODES, Room, RoomClient, StoredNode, close_all
from weft.config.limits import EdgeLimits
from weft.config.streams import State
from weft.edge_node.sessions.persistence import ReaderPositions
from weft.edge_node.sessions.records import JournalRecord, SharedEnded, SharedMoved, SharedRecord, StateSettings
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.session_store import read_journal
from weft.edge_node.sessions.sessions import SHARED_IDLE_MAX
from weft.edge_node.streams import SESSION_JOURNAL_STREAM
from weft.protocols.mqtt.packets import ConnectRefused, Properties, ReasonCode, Will
from weft.storage.segment_log import LogFull

WILL = Will(b"plant/gone", b"x" * 500, 1, properties=Properties(will_delay_interval=1000))
"""About 1,000 bytes, which are kept for long."""


@pytest.fixture
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


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
def test_the_owner_with_most_sessions_makes_room_first() -> None:
    room = Room(limits=EdgeLimits(sessions=5, user_share=1))
    stay_away(room, "a", user="alice")
    stay_away(room, "1", "2", "3", "4", user="mallory")
    stay_away(room, "b", user="bob")
    assert names(room) == {"a", "2", "3", "4", "b"}
    stay_away(room, "5", user="mallory")
    assert names(room) == {"a", "3", "4", "b", "5"}, "nobody has more, so it makes room itself"


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
def test_clients_without_a_user_are_charged_by_address() -> None:
    room = Room(limits=EdgeLimits(sessions=10, user_share=0.2))
    room.leave(room.connect("a", address="10.0.0.1"))
    for name in "123":
        room.leave(room.connect(name, address="10.0.0.2"))
    room = room.killed()
    room.leave(room.connect("4", address="10.0.0.2"))
    assert names(room) == {"a", "3", "4"}


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
def test_of_full_wills_the_owner_with_most_has_its_oldest_published() -> None:
    room = Room(limits=EdgeLimits(wills_bytes=6_000, user_share=1))
    stay_away(room, *"12345", user="mallory", will=WILL)
    room.connect("a", user="alice", will=WILL)
    assert names(room) == {"2", "3", "4", "5", "a"}
    assert room.counters.wills_published == 1
    with pytest.raises(ConnectRefused):
        room.connect("6", user="mallory", will=WILL)


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
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


@pytest.mark.usefixtures("_close")
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


# --- Shared subscriptions in the journal: noted when they move, with what is owed only when that has changed


NAME = "$share/g/plant/+"


@pytest.fixture
def _close_rooms() -> Iterator[None]:
    yield
    close_all()


def noted(room: Room) -> list[JournalRecord]:
    """What the journal says of shared subscriptions."""
    room.node.commit()
    stream = room.node.log.stream(SESSION_JOURNAL_STREAM)
    found = read_journal(room.node.log, stream, 0, room.node.log.durable_end(stream))
    return [each for each in found if isinstance(each.entry, SharedMoved | SharedEnded)]


@pytest.mark.usefixtures("_close_rooms")
async def test_what_is_owed_is_noted_when_it_changes() -> None:
    room = Room()
    assert isinstance(room.context.positions, ReaderPositions)
    stays = room.connect("stays")
    room.subscribe(stays, NAME)
    streams = dict.fromkeys(room.ingest.routing.streams, 0)
    assert noted(room) == [(NAME, SharedMoved(streams, ()))]
    room.subscribe(stays, NAME, 2)
    assert len(noted(room)) == 1
    room.leave(stays)
    passing = room.connect("passing", expiry=0)
    room.subscribe(passing, NAME)
    telemetry = room.node.log.stream("telemetry")
    room.publish(b"plant/a", b"1")
    room.node.commit()
    room.sessions.note_positions()
    room.sessions.note_positions()
    entries = [each.entry for each in noted(room)[1:]]
    assert len(entries) <= 2
    room.leave(passing)
    room.sessions.note_positions()
    last = noted(room)[-1].entry
    assert isinstance(last, SharedMoved)
    assert last.positions[telemetry] <= 1
    assert stays.session is not None
    room.sessions.end(stays.session)
    assert noted(room)[-1] == (NAME, SharedEnded())
    assert room.context.shared.all() == []


@pytest.mark.usefixtures("_close_rooms")
async def test_one_that_ends_with_its_members_is_not_noted() -> None:
    room = Room()
    passing = room.connect("passing", expiry=0)
    room.subscribe(passing, NAME)
    room.publish(b"plant/a", b"1")
    room.sessions.note_positions()
    room.leave(passing)
    assert noted(room) == []


@pytest.mark.usefixtures("_close_rooms")
async def test_a_delivery_that_needs_the_note_is_not_sent_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise LogFull("no room")

    room = Room()
    stays = room.connect("stays")
    room.subscribe(stays, NAME, 2)
    monkeypatch.setattr(room.node.state.journal, "shared_moved", full)
    room.publish(b"plant/a", b"1", qos=2)
    assert stays.closed is not None
    assert stays == []
    room.context.positions.note_share("unknown")


@pytest.mark.usefixtures("_close_rooms")
async def test_the_next_node_has_the_record() -> None:
    room = Room()
    room.subscribe(room.connect("stays"), NAME)
    room.node.commit()
    for _ in range(2):
        room.node.kill()
        assert room.node.state.journal.recover_shared() == [
            SharedRecord(NAME, dict.fromkeys(room.ingest.routing.streams, 0))
        ]
        room.node.save()


@pytest.mark.usefixtures("_close_rooms")
async def test_only_those_that_moved_are_noted_at_once() -> None:
    """The log grows behind all of them with every message; most give none of it to a member."""
    room, count = Room(), 2 * SHARED_IDLE_MAX + 50
    stays = room.connect("stays")
    for number in range(count):
        room.subscribe(stays, f"$share/g/quiet/{number}")
    room.subscribe(stays, NAME)
    before = len(noted(room))

    def round_of(payload: bytes) -> list[str]:
        nonlocal before
        room.publish(b"plant/a", payload)
        room.node.commit()
        for _ in room.sessions.positions_to_note():
            pass
        found = [each.key for each in noted(room)][before:]
        before += len(found)
        return found

    rounds = [round_of(b"%d" % number) for number in range(4)]
    assert all(NAME in names for names in rounds)
    assert max(map(len, rounds)) <= SHARED_IDLE_MAX + 1
    assert {name for names in rounds for name in names} == {each.name for each in room.context.shared.all()}


@pytest.mark.usefixtures("_close_rooms")
async def test_one_that_ends_while_positions_are_noted_is_left_out() -> None:
    room = Room()
    stays = room.connect("stays")
    for number in range(3):
        room.subscribe(stays, f"$share/g{number}/plant/+")
    room.publish(b"plant/a", b"1")
    noting = room.sessions.positions_to_note()
    next(noting)
    assert stays.session is not None
    room.sessions.end(stays.session)
    for _ in noting:
        pass
    last = dict(noted(room))
    assert set(map(type, last.values())) == {SharedEnded}
