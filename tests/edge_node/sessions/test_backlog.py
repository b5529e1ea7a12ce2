"""Tests of ``edge_node/sessions/backlog.py``."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_node.sessions.room import StoredNode, record
from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import commit_all, open_log, put
from weft.config.streams import State
from weft.edge_node.sessions.backlog import TOPICS_MAX, Backlog, DecodedBatch
from weft.edge_node.sessions.records import Ended, Snapshot, StateCounters, Unsubscribed
from weft.edge_node.sessions.session_store import read_journal
from weft.edge_node.streams import SESSION_JOURNAL_STREAM
from weft.edge_node.subscriptions.message import LogRecord
from weft.protocols.batch import Flag
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFailed, LogSettings, SegmentLog

SMALL = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=1500, pending_bytes_max=1 << 16)
PAGES = State(backlog_page_records=7, backlog_page_bytes=2000, backlog_buffer_bytes=5000)


def everything(_: bytes) -> bool:
    return True


async def no_wait() -> None:
    """The turn of a reader that is alone."""


def backlog_of(log: SegmentLog, settings: State = PAGES) -> tuple[Backlog, StateCounters]:
    counters = StateCounters()
    return Backlog(log, settings, counters), counters


async def pages(backlog: Backlog, stream: int, seq: int = 0, wants=everything) -> AsyncIterator[LogRecord]:  # type: ignore[no-untyped-def]
    while True:
        page = await backlog.read(stream, seq, wants, no_wait)
        assert len(page.records) <= PAGES.backlog_page_records
        for found in page.records:
            assert seq <= found.seq < page.next_seq
            yield found
        if page.next_seq == seq:
            return
        seq = page.next_seq


@settings(max_examples=40, deadline=None)
@given(
    runs=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 600)), min_size=1, max_size=20), max_size=8
    ),
    start=st.floats(0, 1),
    wanted=st.sets(st.sampled_from("abc")),
)
def test_every_wanted_record_comes_once_in_order(
    runs: list[list[tuple[str, int]]], start: float, wanted: set[str]
) -> None:
    log = open_log(FakeFileSystem(), LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=1500))
    stream, expected = log.stream("s"), []
    for run in runs:
        payloads = [random.Random(size).randbytes(size) for _, size in run]
        keys = [topic.encode() for topic, _ in run]
        flags = {index: int(Flag.PUBLISHED_QOS2) for index in range(0, len(run), 3)}
        headers = {index: (("n", str(index)),) for index in range(0, len(run), 4)}
        base = log.append(stream, 1, list(keys), list(payloads), dict(headers), dict(flags))
        for index, (key, payload) in enumerate(zip(keys, payloads, strict=True)):
            expected.append(LogRecord(base + index, key, payload, flags.get(index, 0), headers.get(index, ()), 1))
        commit_all(log)
    seq = int(len(expected) * start)
    backlog, counters = backlog_of(log)

    async def read() -> list[LogRecord]:
        return [each async for each in pages(backlog, stream, seq, lambda topic: topic.decode() in wanted)]

    assert asyncio.run(read()) == [each for each in expected[seq:] if each.topic.decode() in wanted]
    assert counters.backlog_buffer_bytes <= PAGES.backlog_buffer_bytes
    assert counters.backlog_lost == 0


async def test_a_page_asks_once_per_topic_of_a_batch() -> None:
    log = open_log(FakeFileSystem())
    stream = log.stream("s")
    log.append(stream, 1, [b"a", b"b"] * 50, [b""] * 100)
    commit_all(log)
    asked: list[bytes] = []
    backlog, _ = backlog_of(log)

    def may_read(topic: bytes) -> bool:
        asked.append(topic)
        return False

    page = await backlog.read(stream, 0, may_read, no_wait)
    assert sorted(asked) == [b"a", b"b"]
    assert page == ([], 100, 0)


async def test_what_is_not_durable_is_not_there() -> None:
    log = open_log(FakeFileSystem())
    stream = log.stream("s")
    log.append(stream, 1, [b"a"], [b"x"])
    backlog, _ = backlog_of(log)
    assert await backlog.read(stream, 0, everything, no_wait) == ([], 0, 0)
    assert await backlog.fetch(stream, [0]) == {}
    commit_all(log)
    assert [record.payload for record in (await backlog.read(stream, 0, everything, no_wait)).records] == [b"x"]


async def test_records_that_the_log_deleted_are_counted_once() -> None:
    log = open_log(FakeFileSystem(), SMALL)
    stream, seq = log.stream("s"), 0
    for _ in range(80):
        seq = put(log, stream, random.Random(seq).randbytes(300)) + 1
        log.release(stream, RangeSet([(0, seq)]))
    ((lost, end),) = log.ranges(stream)
    assert lost
    backlog, counters = backlog_of(log)
    page = await backlog.read(stream, 2, everything, no_wait)
    assert page.lost == lost - 2 == counters.backlog_lost
    assert page.records[0].seq == lost
    assert (await backlog.read(stream, page.next_seq, everything, no_wait)).lost == 0
    assert set(await backlog.fetch(stream, [0, lost, end - 1, end])) == {lost, end - 1}


async def test_nothing_left_of_a_stream() -> None:
    log = open_log(FakeFileSystem(), SMALL)
    gone, other = log.stream("gone"), log.stream("other")
    put(log, gone, b"a", b"b", b"c")
    log.release(gone, RangeSet([(0, 3)]))
    for number in range(80):
        end = put(log, other, random.Random(number).randbytes(400)) + 1
        log.release(other, RangeSet([(0, end)]))
    assert not log.ranges(gone)
    backlog, _ = backlog_of(log)
    assert await backlog.read(gone, 1, everything, no_wait) == ([], 3, 2)
    assert await backlog.read(gone, 3, everything, no_wait) == ([], 3, 0)


async def test_many_who_are_behind_share_a_read() -> None:
    log = open_log(FakeFileSystem(), SMALL)
    stream = log.stream("s")
    for number in range(10):
        put(log, stream, random.Random(number).randbytes(300))
    backlog, counters = backlog_of(log, State())
    found = await asyncio.gather(*(backlog.read(stream, 0, everything, no_wait) for _ in range(50)))
    assert len({tuple(page.records) for page in found}) == 1
    assert counters.backlog_disk_reads == 1


async def test_a_reader_that_gives_up_leaves_the_others_theirs() -> None:
    log = open_log(FakeFileSystem(), SMALL)
    stream = log.stream("s")
    for number in range(10):
        put(log, stream, random.Random(number).randbytes(300))
    backlog, _ = backlog_of(log)
    first, second = (asyncio.ensure_future(backlog.read(stream, 0, everything, no_wait)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).records[0].seq == 0


async def test_a_disk_that_cannot_be_read_is_told_and_asked_again_later() -> None:
    disk = FakeFileSystem()
    log = open_log(disk, SMALL)
    stream = log.stream("s")
    for number in range(10):
        put(log, stream, random.Random(number).randbytes(300))
    backlog, _ = backlog_of(log)
    disk.fail = lambda call, path: eio() if call in ("open", "read_at") else None
    with pytest.raises((OSError, LogFailed)):
        await backlog.read(stream, 0, everything, no_wait)
    disk.fail = lambda call, path: None
    assert (await backlog.read(stream, 0, everything, no_wait)).records[0].seq == 0


# --- Batches of the log, decoded for picking records out of them, and the journal read back


@pytest.fixture
def node() -> Iterator[StoredNode]:
    node = StoredNode()
    yield node
    node.stop_database()


def batch(node: StoredNode) -> DecodedBatch:
    """Records 2 to 7 of a stream: topics a, b, a, b, ... with headers and flags on one."""
    stream = node.log.stream("telemetry")
    node.log.append(stream, 1, [b"z"] * 2, [b"", b""])
    commit_all(node.log)
    keys, payloads = [b"a", b"b"] * 3, [b"%d" % number * 10 for number in range(2, 8)]
    node.log.append(stream, 1, keys, payloads, {1: (("name", "value"),)}, {1: 8})
    commit_all(node.log)
    (data,) = node.log.read(stream, 2, 1 << 20)
    return DecodedBatch(data)


def test_a_record_is_as_it_was_appended(node: StoredNode) -> None:
    found = batch(node)
    assert (found.base_seq, found.end_seq) == (2, 8)
    assert found.record(3) == (3, b"b", b"3" * 10, 8, (("name", "value"),), 1)
    assert found.record(7) == (7, b"b", b"7" * 10, 0, (), 1)


def test_wanted_records_are_picked_a_page_at_a_time(node: StoredNode) -> None:
    found = batch(node)
    asked: list[bytes] = []

    def wants(topic: bytes) -> bool:
        asked.append(topic)
        return topic == b"b"

    for limits, seqs, following in (((9, 1 << 20), [3, 5, 7], 8), ((2, 1 << 20), [3, 5], 7), ((9, 5), [3], 5)):
        records, next_seq = found.pick(2, wants, *limits)
        assert ([each.seq for each in records], next_seq) == (seqs, following)
        assert sorted(asked) == [b"a", b"b"], "once for each topic"
        asked.clear()
    assert found.pick(2, lambda _: False, 9, 1 << 20) == ([], 8)


def test_a_page_is_looked_through_for_a_bounded_number_of_topics(node: StoredNode) -> None:
    stream = node.log.stream("wide")
    node.log.append(stream, 1, [b"%d" % number for number in range(1_000)], [b""] * 1_000)
    commit_all(node.log)
    (data,) = node.log.read(stream, 0, 1 << 20)
    found, asked, seq = DecodedBatch(data), list[bytes](), 0
    while seq < 1_000:
        before = len(asked)
        _, seq = found.pick(seq, lambda topic: asked.append(topic) or topic == b"7", 9, 1 << 20)  # type: ignore[func-returns-value]
        assert len(asked) - before <= TOPICS_MAX
    assert asked == [b"%d" % number for number in range(1_000)]


def test_the_journal_is_read_in_order_up_to_an_end(node: StoredNode, caplog: pytest.LogCaptureFixture) -> None:
    stream = node.log.stream(SESSION_JOURNAL_STREAM)
    node.state.journal.opened(record("pi"))
    node.state.journal.unsubscribed("pi", "t")
    node.commit()
    node.log.append(stream, 1, [b"pi", b"pi"], [b"\xc1", b"\x91\x63"])  # damaged, and of a later release
    node.state.journal.ended("pi")
    node.commit()
    with caplog.at_level(logging.ERROR):
        found = list(read_journal(node.log, stream, 0, 5))
    assert [type(entry) for _, entry in found] == [Snapshot, Unsubscribed, Ended]
    assert {key for key, _ in found} == {"pi"}
    assert caplog.text.count("a change of the session of MQTT client") == 1
    assert [type(entry) for _, entry in read_journal(node.log, stream, 1, 2)] == [Unsubscribed]
    assert list(read_journal(node.log, stream, 5, 5)) == []
