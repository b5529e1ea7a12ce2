"""Records of shared subscriptions, through journal, database, crash and another log."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator

import pytest

from tests.edge_node.sessions.store.helpers import StoredNode
from tests.storage.segment_log.helpers import put
from weft.edge_node.sessions.broker_state import first_needed
from weft.edge_node.sessions.journal import RecentPublishes
from weft.edge_node.sessions.records import (
    Ended,
    JournalRecord,
    Restarted,
    Sent,
    SessionRecord,
    SharedEnded,
    SharedMoved,
    SharedRecord,
    pack_record,
    unpack_shared,
)
from weft.edge_node.sessions.session_store import FoldedSession, FoldedShared, fold
from weft.protocols.ranges import RangeSet

NAME = "$share/g/t"


@pytest.fixture
def node() -> Iterator[StoredNode]:
    node = StoredNode()
    yield node
    node.stop_database()


def shared(node: StoredNode) -> list[SharedRecord]:
    return list(node.state.journal.recover_shared())


@pytest.mark.parametrize("saved", [False, True], ids=["journal", "database"])
def test_comes_back_as_it_was(node: StoredNode, saved: bool) -> None:
    stream = node.log.stream("telemetry")
    put(node.log, stream, *[b"x"] * 9)
    node.state.journal.shared_moved(NAME, {stream: 5}, [(stream, 2), (stream, 4)])
    node.commit()
    if saved:
        assert node.save() is None
    node.state.journal.shared_moved(NAME, {stream: 7}, None)
    node.commit()
    for _ in range(2):
        node.kill()
        assert shared(node) == [SharedRecord(NAME, {stream: 7}, [(stream, 2), (stream, 4)])]
    node.state.journal.shared_ended(NAME)
    node.commit()
    if saved:
        assert node.save() is None
    node.kill()
    assert shared(node) == []


def test_a_client_of_the_same_name_is_another(node: StoredNode) -> None:
    session = SessionRecord(NAME, 5, 3600)
    node.state.journal.opened(session)
    node.state.journal.shared_moved(NAME, {}, [])
    node.commit()
    node.save()
    node.state.journal.shared_ended(NAME)
    node.commit()
    node.kill()
    assert node.sessions() == {NAME: session}
    assert shared(node) == []


def test_knows_nothing_of_records_that_a_crash_took(node: StoredNode) -> None:
    stream = node.log.stream("telemetry")
    put(node.log, stream, b"kept", b"kept")
    node.log.append(stream, 1, [b"k"] * 3, [b"lost"] * 3)
    node.state.journal.shared_moved(NAME, {stream: 5}, [(stream, 1), (stream, 3)])
    node.log.committer.run_once()
    node.disk.flip(node.log._state.segments[-1].path, node.log._state.segments[-1].end - 5)
    node.kill()
    assert shared(node) == [SharedRecord(NAME, {stream: 2}, [(stream, 1)])]


def test_another_log_begins_anew(node: StoredNode) -> None:
    node.state.journal.shared_moved(NAME, {1: 0}, [])
    node.commit()
    node.save()
    node.stop_database()
    node.disk = type(node.disk)()
    node.start(log_id=99)
    assert shared(node) == []


def test_holds_back_messages_that_only_sessions_want(node: StoredNode) -> None:
    topics = node.state.topics_stream
    put(node.log, topics, *[b"x"] * 10)
    node.state.journal.shared_moved(NAME, {topics: 8}, [(topics, 3)])
    node.commit()
    for position, owed, released in ((8, [(topics, 3)], 3), (9, [], 9)):
        node.state.journal.shared_moved(NAME, {topics: position}, owed)
        node.commit()
        node.save()
        assert node.log._state.lanes[topics].released == RangeSet([(0, released)])
        node.kill()
        assert node.log._state.lanes[topics].released == RangeSet([(0, released)])
    node.state.journal.shared_ended(NAME)
    node.commit()
    node.save()
    assert node.log._state.lanes[topics].released == RangeSet([(0, 10)])


def test_a_session_needs_what_is_in_flight_and_what_follows_its_position() -> None:
    assert first_needed(None, 1) is None
    assert first_needed(SessionRecord("c", 5, 0), 1) is None, "kept for its will alone"
    assert first_needed(SessionRecord("c", 5, 9, positions={1: 7}), 1) == 7
    inflight = {1: Sent(1, 3, 1), 2: Sent(2, 1, 1)}
    assert first_needed(SessionRecord("c", 5, 9, positions={1: 7}, inflight=inflight), 1) == 3


def test_a_row_that_does_not_decode_is_passed_over(node: StoredNode, caplog: pytest.LogCaptureFixture) -> None:
    node.state.journal.shared_moved(NAME, {}, [])
    node.commit()
    node.save()

    def damage(database: sqlite3.Connection) -> None:
        database.execute("UPDATE shared_subscriptions SET record = 'x'")

    node.state._database.run(damage)
    with caplog.at_level(logging.ERROR):
        node.kill()
    assert shared(node) == []
    assert f"the position of shared subscription '{NAME}' is lost" in caplog.text


def test_entries_fold_in_order_and_settle_at_a_restart() -> None:
    entries = [
        (NAME, SharedMoved({1: 9}, ((1, 2), (1, 8)))),
        ("", Restarted({1: 8})),
        (NAME, SharedMoved({1: 8}, None)),
        ("other", SharedMoved({}, ())),
        ("other", SharedEnded()),
        ("client", Ended()),
    ]
    folded = fold(
        [JournalRecord(*each) for each in entries],
        lambda _: FoldedSession(None, RecentPublishes(), 9),
        lambda _: FoldedShared(None),
    )
    assert folded.shared[NAME].record == SharedRecord(NAME, {1: 8}, [(1, 2)])
    assert folded.shared["other"].record is None
    assert set(folded.sessions) == {"client"}


def test_a_record_is_json_without_what_is_empty() -> None:
    record = SharedRecord(NAME, {1: 2}, [(1, 0)])
    assert pack_record(record) == b'{"name":"$share/g/t","positions":{"1":2},"owed":[[1,0]]}'
    assert unpack_shared(pack_record(record)) == record
    assert unpack_shared(pack_record(SharedRecord(NAME))) == SharedRecord(NAME)
