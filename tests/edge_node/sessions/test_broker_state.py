"""The state of a broker on a real log, a real file and a real loop."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.edge_node.sessions.room import StoredNode, record
from tests.storage.segment_log.helpers import put
from tests.support.waiting import PATIENCE_S
from weft.bounds import Refusals
from weft.config.streams import State
from weft.edge_node.sessions.broker_state import BrokerState, first_needed
from weft.edge_node.sessions.database import DatabaseFailed
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
    StateCounters,
    StateSettings,
    pack_record,
    unpack_shared,
)
from weft.edge_node.sessions.session_store import FoldedSession, FoldedShared, fold
from weft.edge_node.timing import clock_reader, wall_clock
from weft.protocols.mqtt.packets import NO_PROPERTIES, Subscription
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogSettings, SegmentLog

QUICK = StateSettings(state=State(save_interval_s=0.02))


async def opened(directory: Path, settings: StateSettings = QUICK) -> tuple[SegmentLog, BrokerState]:
    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    log = SegmentLog.open(
        str(directory),
        LogSettings(),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.getrandbits,
        post=post,
    )
    state = BrokerState(
        str(directory),
        log,
        settings,
        StateCounters(),
        wall_clock=wall_clock,
        post=post,
        refusals=Refusals(time.monotonic),
    )
    state.start()
    return log, state


async def durable(log: SegmentLog) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    log.on_durable(lambda error: done.set_exception(error) if error else done.set_result(None))
    await done


async def closed(log: SegmentLog, state: BrokerState) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await state.close()
    await asyncio.to_thread(log.close)


async def test_it_saves_by_itself(tmp_path: Path) -> None:
    log, state = await opened(tmp_path)
    state.journal.opened(record())
    await durable(log)
    async with asyncio.timeout(PATIENCE_S):
        while state.counters.journal_bytes:  # noqa: ASYNC110 - a task in the background
            await asyncio.sleep(0.01)
    assert state.counters.sessions_saved == 1
    await closed(log, state)


async def test_closing_while_it_saves_waits_and_keeps_everything(tmp_path: Path) -> None:
    log, state = await opened(tmp_path)
    for number in range(50):
        state.journal.opened(record(f"client-{number}"))
        state.retained.set(b"t/%d" % number, b"x", 1, NO_PROPERTIES, 1)
        await durable(log)
    saves = [asyncio.ensure_future(state.save()) for _ in range(3)]
    await asyncio.sleep(0)
    await closed(log, state)
    ends = await asyncio.gather(*saves, return_exceptions=True)
    assert all(end is None or isinstance(end, DatabaseFailed) for end in ends), (
        ends
    )  # the journal has what is not saved
    log, state = await opened(tmp_path)
    assert len(state.journal.recover()) == len(state.retained) == 50
    await closed(log, state)


async def test_a_database_that_was_destroyed_costs_what_it_held_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, state = await opened(tmp_path)
    state.journal.opened(record())
    await durable(log)
    await closed(log, state)
    for path in tmp_path.glob("mqtt.sqlite3*"):
        path.write_bytes(b"this is not a database" * 500)
    log, state = await opened(tmp_path)
    assert "set aside" in caplog.text
    # The journal still stands in the log, as long as its room is not needed.
    assert [session.client_id for session in state.journal.recover()] == ["pi"]
    await closed(log, state)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
async def test_ten_thousand_sessions_recover_quickly(tmp_path: Path, saved: bool) -> None:
    log, state = await opened(tmp_path, StateSettings(state=State(save_interval_s=3600)))
    for number in range(10_000):
        filters = {f"plant/{number}/{each}/#": Subscription(f"plant/{number}/{each}/#", 1) for each in range(5)}
        state.journal.opened(record(f"client-{number}", subscriptions=filters, positions={1: 5, 2: 7}))
    await durable(log)
    if saved:
        await state.save()
    await asyncio.to_thread(state._database.close)
    state._task.cancel()  # type: ignore[union-attr]
    await asyncio.to_thread(log.close)
    started, cpu = time.perf_counter(), time.process_time()
    log, state = await opened(tmp_path)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert len(state.journal.recover()) == 10_000
    print(f"10,000 sessions, {'database' if saved else 'journal'}: {seconds:.2f} s, {cpu:.2f} s of them CPU")
    assert cpu < 5  # the wall clock depends on what else the machine does
    await closed(log, state)


# --- Records of shared subscriptions, through journal, database, crash and another log


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
