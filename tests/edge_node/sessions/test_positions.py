"""Shared subscriptions in the journal: noted when they move, with what is owed only when that has changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.room import Room, close_all
from weft.edge_node.sessions.persistence import ReaderPositions
from weft.edge_node.sessions.records import JournalRecord, SharedEnded, SharedMoved, SharedRecord
from weft.edge_node.sessions.session_store import read_journal
from weft.edge_node.sessions.sessions import SHARED_IDLE_MAX
from weft.edge_node.streams import SESSION_JOURNAL_STREAM
from weft.storage.segment_log import LogFull

NAME = "$share/g/plant/+"


@pytest.fixture(autouse=True)
def _close_rooms() -> Iterator[None]:
    yield
    close_all()


def noted(room: Room) -> list[JournalRecord]:
    """What the journal says of shared subscriptions."""
    room.node.commit()
    stream = room.node.log.stream(SESSION_JOURNAL_STREAM)
    found = read_journal(room.node.log, stream, 0, room.node.log.durable_end(stream))
    return [each for each in found if isinstance(each.entry, SharedMoved | SharedEnded)]


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


async def test_one_that_ends_with_its_members_is_not_noted() -> None:
    room = Room()
    passing = room.connect("passing", expiry=0)
    room.subscribe(passing, NAME)
    room.publish(b"plant/a", b"1")
    room.sessions.note_positions()
    room.leave(passing)
    assert noted(room) == []


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
