"""Reading a log by pages on an event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import DIRECTORY, commit_all, open_log, put, segment_paths
from tests.support.waiting import PATIENCE_S
from weft.protocols.batch import decode_header, records
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.segment_log import Gone, LogFailed, LogPage, LogSettings, PageReader, SegmentLog

NO_TAIL = LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=0)
SHORT_TAIL = LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=1500)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


async def all_pages(
    reader: PageReader, stream: int, seq: int = 0, *, bytes_max: int = 1000, records_max: int | None = None
) -> list[LogPage]:
    found = []
    while (page := await reader.read(stream, seq, bytes_max, records_max)).next_seq != seq:
        assert page.next_seq > seq
        found.append(page)
        seq = page.next_seq
    assert page == LogPage([], seq, [])
    return found


def seqs(found: list[LogPage]) -> list[int]:
    return [record.seq for page in found for data in page.batches for record in records(data)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 600), min_size=1, max_size=9), max_size=12),
    start=st.floats(0, 1),
    bytes_max=st.integers(1, 4000),
    records_max=st.none() | st.integers(1, 20),
    dropped=st.tuples(st.integers(0, 50), st.integers(1, 50)) | st.none(),
    released=st.tuples(st.integers(0, 50), st.integers(1, 50)) | st.none(),
    tail_bytes=st.sampled_from([0, 1500, 1 << 20]),
)
def test_pages_give_everything_once_and_account_for_what_is_gone(  # noqa: PLR0917 - drawn by Hypothesis
    sizes: list[list[int]],
    start: float,
    bytes_max: int,
    records_max: int | None,
    dropped: tuple[int, int] | None,
    released: tuple[int, int] | None,
    tail_bytes: int,
) -> None:
    log = open_log(FakeFileSystem(), LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=tail_bytes))
    stream = log.stream("s")
    for run in sizes:
        put(log, stream, *(random.Random(size).randbytes(size) for size in run))
    end = log.durable_end(stream)
    if released is not None:
        log.release(stream, RangeSet([(released[0], released[0] + released[1])]))
    if dropped is not None:
        log.drop_backlog(stream, min(dropped[0], end), min(dropped[0] + dropped[1], end))
        commit_all(log)
    seq = int(end * start)

    found = asyncio.run(all_pages(log.page_reader(), stream, seq, bytes_max=bytes_max, records_max=records_max))

    given = RangeSet([(number, number + 1) for number in seqs(found)])
    gone = RangeSet([(first, stop) for page in found for first, stop, _ in page.gone])
    assert len(seqs(found)) == given.count(), "nothing comes twice"
    assert all(given.covers(*part) or gone.covers(*part) for part in [(at, at + 1) for at in range(seq, end)])
    assert all(not given.covers(number, number + 1) for first, stop in gone for number in range(first, stop))
    noticed = RangeSet([(gap.first, gap.end) for gap in log.gaps(stream)])
    for page in found:
        assert all((reason == GapReason.OPERATOR) == noticed.covers(first, stop) for first, stop, reason in page.gone)
        if len(page.batches) > 1:
            assert sum(map(len, page.batches)) <= bytes_max
            assert sum(decode_header(data).count for data in page.batches) <= (records_max or 1 << 20)


async def test_what_is_in_memory_is_read_without_the_disk(disk: FakeFileSystem) -> None:
    log = open_log(disk, SHORT_TAIL)
    stream = log.stream("s")
    for number in range(20):
        put(log, stream, random.Random(number).randbytes(300))
    reader = log.page_reader()
    assert (await reader.read(stream, 0, 1)).from_disk
    disk.fail = lambda name, path: eio()
    page = await reader.read(stream, 19, 1 << 20)
    assert (seqs([page]), page.from_disk) == ([19], False)


async def test_damage_that_a_page_meets_is_told_with_its_reason(disk: FakeFileSystem) -> None:
    log = open_log(disk, NO_TAIL)
    stream = log.stream("s")
    for payload in (b"first", b"second", b"third"):
        put(log, stream, payload)
    content = bytes(disk.content(segment_paths(disk)[0]))
    disk.flip(segment_paths(disk)[0], content.index(b"second"), 1)
    (page, rest) = await all_pages(log.page_reader(), stream, bytes_max=10_000)
    assert (seqs([page]), page.gone) == ([0], [])
    assert (seqs([rest]), rest.gone) == ([2], [Gone(1, 2, GapReason.CORRUPTION)])


async def test_a_stream_of_which_nothing_is_left_ends_with_what_is_gone(disk: FakeFileSystem) -> None:
    log = open_log(disk, NO_TAIL)
    stream = log.stream("s")
    put(log, stream, b"a", b"b", b"c")
    log.drop_backlog(stream)
    commit_all(log)
    assert await log.page_reader().read(stream, 1, 1 << 20) == LogPage([], 3, [Gone(1, 3, GapReason.OPERATOR)], True)


class SlowDisk:
    """Holds up reads from segment files until the test lets it continue."""

    def __init__(self, disk: FakeFileSystem) -> None:
        self.begun = threading.Semaphore(0)
        self.resume = threading.Event()
        self.at_once = self.most = 0
        self._lock = threading.Lock()
        disk.fail = self._hold

    def _hold(self, name: str, path: str) -> OSError | None:
        if name == "open" and path.startswith(DIRECTORY):
            with self._lock:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            self.begun.release()
            assert self.resume.wait(PATIENCE_S)
            with self._lock:
                self.at_once -= 1
        return None


async def test_readers_that_are_cancelled_leave_no_more_threads_than_may_read(disk: FakeFileSystem) -> None:
    log = open_log(disk, NO_TAIL)
    stream = log.stream("s")
    put(log, stream, b"a")
    slow, reader = SlowDisk(disk), log.page_reader(2)
    for _ in range(5):
        readings = [asyncio.ensure_future(reader.read(stream, 0, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        for each in readings:
            each.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*readings, return_exceptions=True)
        )
    last = asyncio.ensure_future(reader.read(stream, 0, 1))
    await asyncio.to_thread(slow.begun.acquire)
    await asyncio.to_thread(slow.begun.acquire)
    slow.resume.set()
    assert seqs([await last]) == [0]
    assert slow.most <= 2


async def test_who_waits_for_more_is_told_when_it_is_durable(disk: FakeFileSystem) -> None:
    log = open_log(disk, NO_TAIL)
    stream, other = log.stream("s"), log.stream("other")
    reader = log.page_reader()
    waiting = asyncio.ensure_future(reader.more(stream, 1))
    gone_away = asyncio.ensure_future(reader.more(stream, 0))
    await asyncio.sleep(0)
    gone_away.cancel()
    for payloads in ((other, b"x"), (stream, b"a")):
        put(log, *payloads)
        await asyncio.sleep(0)
        assert not waiting.done()
    put(log, stream, b"b")
    await waiting
    await reader.more(stream, 1)
    assert log.committer.listeners == []


async def test_who_waits_for_more_is_told_that_the_log_has_failed(disk: FakeFileSystem) -> None:
    log = open_log(disk, NO_TAIL)
    stream, reader = log.stream("s"), log.page_reader()
    waiting = asyncio.ensure_future(reader.more(stream, 0))
    await asyncio.sleep(0)
    log.append(stream, 5, [b"k"], [b"a"])
    disk.fail = lambda name, path: eio() if name == "sync" else None
    commit_all(log)
    for each in (waiting, reader.more(stream, 0)):
        with pytest.raises(LogFailed):
            await each
    assert log.committer.listeners == []


async def test_a_commit_between_the_look_and_the_wait_is_not_missed(disk: FakeFileSystem) -> None:
    log = open_log(disk, NO_TAIL)
    stream, reader = log.stream("s"), log.page_reader()
    listen: Callable[[Callable[[], None]], Callable[[], None]] = reader._listen

    def commits_first(callback: Callable[[], None]) -> Callable[[], None]:
        put(log, stream, b"a")
        return listen(callback)

    reader._listen = commits_first
    await asyncio.wait_for(reader.more(stream, 0), PATIENCE_S)


async def test_those_who_wait_do_not_look_at_the_log_for_each_other(disk: FakeFileSystem) -> None:
    log, looks = open_log(disk), 0
    stream = log.stream("s")

    class Counting:
        failed = None

        def durable_end(self, stream: int) -> int:
            nonlocal looks
            looks += 1
            return log.durable_end(stream)

    reader = PageReader(Counting(), log.listen, 1)  # type: ignore[arg-type]
    waiting = [asyncio.ensure_future(reader.more(stream, 0)) for _ in range(200)]
    await asyncio.sleep(0)
    put(log, stream, b"x")
    commit_all(log)
    await asyncio.gather(*waiting)
    assert looks <= 2 * len(waiting)


def test_reading_goes_on_beside_a_writer_thread(disk: FakeFileSystem) -> None:
    async def follow(log: SegmentLog) -> list[LogPage]:
        stream, reader, found, seq = log.stream("s"), log.page_reader(), [], 0
        for number in range(200):
            log.append(stream, 5, [b"k"] * 3, [b"%d" % number] * 3)
            await asyncio.sleep(0)
        while seq < 600:
            await reader.more(stream, seq)
            page = await reader.read(stream, seq, 2000)
            found.append(page)
            seq = page.next_seq
        return found

    async def run() -> list[LogPage]:
        loop = asyncio.get_running_loop()
        log = open_log(disk, SHORT_TAIL, start_writer=True)
        log.committer._post = loop.call_soon_threadsafe  # type: ignore[assignment]
        try:
            return await follow(log)
        finally:
            log.close()

    assert seqs(asyncio.run(run())) == list(range(600))
