"""Appending, acknowledging and reading."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import (
    DIRECTORY,
    SMALL,
    Clock,
    append,
    commit_all,
    open_log,
    put,
    read_all,
    segment_paths,
)
from tests.support.waiting import PATIENCE_S
from weft.protocols.batch import (
    CLOCK_STEP_NS_MAX,
    HEADER_PAIRS_MAX,
    BatchHeader,
    ClockState,
    Flag,
    HeaderPairs,
    decode_header,
    records,
)
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ENTRY_HEADER_BYTES, HEADER_BYTES, EntryKind, GapReason, Whole
from weft.storage.filesystem import DirectoryInUse, OSFileSystem
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, RecordTooLarge, SegmentLog, pending, scan
from weft.storage.segment_log.scan import Inspected, inspect_log
from weft.storage.segment_log.settings import COMMIT_BYTES_MAX


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def syncs(disk: FakeFileSystem) -> int:
    return sum(call == "sync" for call, _ in disk.calls)


def test_one_commit_is_one_write_and_one_sync_for_all_streams(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one, two = log.stream("one"), log.stream("two")
    disk.calls.clear()
    for _ in range(20):
        log.append(one, 5, [b"k"] * 3, [b"a", b"b", b"c"])
        log.append(two, 5, [b"k"], [b"d"])
    commit_all(log)
    assert [call for call, _ in disk.calls if call in ("write_at", "sync")] == ["write_at", "sync"]
    assert read_all(log, one) == {seq: b"abc"[seq % 3 : seq % 3 + 1] for seq in range(60)}
    assert read_all(log, two) == dict.fromkeys(range(20), b"d")
    assert len(log.read(one, 0, 1 << 20)) == 1


def test_a_listener_that_fails_keeps_nothing_from_the_others(
    disk: FakeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    reports: list[str] = []

    def fail() -> None:
        raise ValueError("a mistake of a follower")

    log.listen(fail)
    log.listen(lambda: reports.append("listener"))
    for count in (1, 2):
        log.append(stream, 5, [b"k"], [b"a"])
        log.committer.run_once()
        assert reports == ["listener"] * count
    assert "a mistake of a follower" in caplog.text
    assert log.durable_end(stream) == 2


def test_nothing_is_acknowledged_or_read_before_the_sync(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    reports: list[str] = []
    log.append(stream, 5, [b"k"], [b"a"])
    log.on_durable(lambda error: reports.append(f"first {error}"))
    log.append(stream, 5, [b"k"], [b"b"])
    log.on_durable(lambda error: reports.append(f"second {error}"))
    log.listen(lambda: reports.append("listener"))
    assert reports == []
    assert log.pending_bytes > 0
    assert log.read(stream, 0, 1000) == []
    assert not log.ranges(stream)
    assert log.next_seq(stream) == 2
    log.committer.run_once()
    assert reports == ["first None", "second None", "listener"]
    assert log.pending_bytes == 0
    assert log.durable_end(stream) == 2


def test_what_a_callback_holds_is_free_once_it_was_called(disk: FakeFileSystem) -> None:
    """Answers that wait for a collection of garbage, which a node has rarely, cost it a hundred megabytes."""
    log = open_log(disk)
    log.append(log.stream("one"), 5, [b"k"], [b"a"])
    answers = {b"answer"}
    freed = weakref.ref(answers)
    log.on_durable(lambda _, held=answers: held.clear())  # type: ignore[misc]
    del answers
    gc.disable()
    try:
        log.committer.run_once()
        assert freed() is None
    finally:
        gc.enable()


def test_a_callback_with_nothing_pending_comes_at_once(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    before = syncs(disk)
    outcomes: list[BaseException | None] = []
    log.on_durable(outcomes.append)
    assert outcomes == [None]
    assert syncs(disk) == before


def _mistaken(error: BaseException | None) -> None:
    """A mistake of one caller harms no other."""
    raise ZeroDivisionError


def test_a_callback_registered_by_a_callback_comes_after_the_others(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    reports: list[int] = []
    log.append(stream, 5, [b"k"], [b"a"])
    log.on_durable(lambda error: log.on_durable(lambda error: reports.append(3)))
    log.on_durable(_mistaken)
    log.on_durable(lambda error: reports.append(2))
    commit_all(log)
    assert reports == [2, 3]


def test_everything_of_a_record_comes_back(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    log.append(stream, 10, [b"a/b"], [b"first"])
    pairs = (("unit", "°C"), ("unit", "K"))
    log.append(stream, 20, [b"c", b"d"], [b"second", b"third"], {1: pairs}, {0: Flag.DUPLICATE_SUSPECTED})
    commit_all(log)
    first, second, third = records(log.read(stream, 0, 1000)[0])
    assert (first.time, first.key, first.payload, first.headers, first.flags) == (10, b"a/b", b"first", (), 0)
    assert (second.time, second.key, second.flags) == (20, b"c", Flag.DUPLICATE_SUSPECTED)
    assert (third.headers, third.flags) == (pairs, 0)


def test_a_long_run_is_split_into_batches_and_commits(disk: FakeFileSystem) -> None:
    log = open_log(disk, LogSettings(segment_bytes=1 << 20, budget_bytes=1 << 30))
    stream = log.stream("one")
    payloads = [random.Random(index).randbytes(30_000) for index in range(300)]
    headers: dict[int, HeaderPairs] = {299: (("last", "yes"),)}
    log.append(stream, 5, [b"k"] * 300, payloads, headers)
    log.append(stream, 5, [b"k"] * 100_000, [b""] * 100_000)
    commit_all(log)
    assert read_all(log, stream) == dict(enumerate(payloads + [b""] * 100_000))
    sizes = [decode_header(data).raw_length for data in log.read(stream, 0, 1 << 30)]
    assert max(sizes) < 2 << 20
    assert [r.headers for data in log.read(stream, 299, 1) for r in records(data) if r.seq == 299] == [headers[299]]


def test_wrong_arguments_are_refused_and_take_no_number(disk: FakeFileSystem) -> None:
    log = open_log(disk, LogSettings())
    stream = log.stream("one")
    with pytest.raises(ValueError, match="2 keys for 1 payloads"):
        log.append(stream, 5, [b"a", b"b"], [b"x"])
    with pytest.raises(ValueError, match="stream 99 was not declared"):
        log.append(99, 5, [b"a"], [b"x"])
    with pytest.raises(ValueError, match="cannot name a stream"):
        log.stream("No Spaces")
    with pytest.raises(RecordTooLarge, match="the log's limit is"):
        log.append(stream, 5, [b"a"], [bytes(17 << 20)])
    with pytest.raises(RecordTooLarge, match="limit is 65535"):
        log.append(stream, 5, [b"a", b"k" * 65_536], [b"", b""])
    assert log.append(stream, 5, [], []) == 0
    assert log.next_seq(stream) == 0


def test_a_record_with_more_headers_than_a_batch_holds_is_refused_and_the_log_goes_on(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    pairs = tuple(("name", str(at)) for at in range(HEADER_PAIRS_MAX + 1))
    assert len(pairs) == 1025
    with pytest.raises(RecordTooLarge, match="a record with 1025 headers; the log's limit is 1024"):
        log.append(stream, 5, [b"k"] * 2, [b"a", b"b"], {1: pairs})
    assert log.append(stream, 5, [b"k"] * 2, [b"a", b"b"], {1: pairs[1:]}) == 0
    commit_all(log)
    assert log.failed is None
    assert log.durable_end(stream) == 2
    assert [len(record.headers) for data in log.read(stream, 0, 1) for record in records(data)] == [0, 1024]


def test_mark_never_promises_more_than_is_durable(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    assert log.mark(stream, 100) == (100, 0)
    put(log, stream, b"a", time=110)
    log.append(stream, 200, [b"k"], [b"b"])
    log.append(stream, 150, [b"k"], [b"c"])  # the wall clock stepped back
    assert log.mark(stream, 300) == (149, 1)
    commit_all(log)
    assert log.mark(stream, 300) == (300, 3)


def test_the_tail_serves_the_newest_from_memory(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream, other = log.stream("one"), log.stream("two")
    put(log, other, b"other")
    for index in range(40):
        put(log, stream, b"%d" % index)
    disk.calls.clear()
    found = log.read_tail(stream, 38, 1 << 20)
    assert found is not None
    assert [record.payload for data in found for record in records(data)] == [b"38", b"39"]
    assert log.read_tail(stream, 40, 1000) == []
    assert log.read_tail(stream, 0, 1000) is None
    assert log.read_tail(other, 0, 1000) is None
    assert disk.calls == []
    assert read_all(log, other) == {0: b"other"}


@pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
def test_a_read_begins_with_the_batch_of_the_seq_asked_for(disk: FakeFileSystem, bytes_max: int) -> None:
    log = open_log(disk, LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=0))
    streams = [log.stream(name) for name in ("one", "two")]
    for index in range(120):
        put(log, streams[index % 2], b"%d" % index, b"x" * (index % 50))
    assert len(segment_paths(disk)) > 3
    for stream in streams:
        for seq in range(120):
            batches = log.read(stream, seq, bytes_max)
            header = decode_header(batches[0])
            assert header.stream == stream
            assert header.base_seq <= seq < header.end_seq
            assert len(batches) == 1 or sum(map(len, batches)) <= bytes_max
        assert log.read(stream, 120, bytes_max) == []


def test_streams_keep_their_numbers_across_restarts(disk: FakeFileSystem) -> None:
    log = open_log(disk, log_id=1)
    numbers = {name: log.stream(name) for name in ("b", "a", "c")}
    put(log, numbers["a"], b"x")
    log.close()
    again = open_log(disk, log_id=2)
    assert again.streams() == numbers
    assert again.log_id == 1
    assert not again.recovery.created
    assert again.stream("d") == 4


def test_a_failed_sync_poisons_the_log_until_it_is_opened_anew(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"safe")
    outcomes: list[BaseException | None] = []
    log.append(stream, 5, [b"k"], [b"lost"])
    log.on_durable(outcomes.append)
    disk.fail = lambda call, path: eio() if call == "sync" else None
    before = syncs(disk)
    commit_all(log)
    assert syncs(disk) == before + 1
    assert isinstance(outcomes[0], LogFailed)
    disk.fail = lambda call, path: None
    with pytest.raises(LogFailed):
        log.append(stream, 5, [b"k"], [b"more"])
    log.on_durable(outcomes.append)
    assert isinstance(outcomes[1], LogFailed)
    assert log.stats().failed is outcomes[0]
    assert syncs(disk) == before + 1
    assert read_all(log, stream) == {0: b"safe"}
    log.close()
    again = open_log(disk)
    # The bytes were there, so they were written again and may be relied on now.
    survivors = read_all(again, stream)
    after_cut = open_log(disk.power_cut(random.Random(1)))
    assert read_all(after_cut, stream) == survivors


def test_a_mistake_while_encoding_poisons_instead_of_ending_the_writer_in_silence(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    outcomes: list[BaseException | None] = []
    log.append(log.stream("one"), 5, [b"k"], [b"x"], flags={0: 999})
    log.on_durable(outcomes.append)
    commit_all(log)
    assert isinstance(outcomes[0], LogFailed)


def test_pending_bytes_have_a_last_bound(disk: FakeFileSystem) -> None:
    log = open_log(disk, LogSettings(segment_bytes=1 << 20, budget_bytes=1 << 30, pending_bytes_max=10_000))
    stream = log.stream("one")
    while log.pending_bytes < 18_000:
        log.append(stream, 5, [b"k"], [bytes(900)])
    with pytest.raises(LogFull, match="wait for the disk"):
        log.append(stream, 5, [b"k"], [bytes(2000)])
    taken = log.next_seq(stream)
    commit_all(log)
    log.append(stream, 5, [b"k"], [bytes(1000)])
    assert log.next_seq(stream) == taken + 1


def test_two_logs_on_one_directory_are_refused(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    log = open_log(OSFileSystem(), directory=directory)
    with pytest.raises(DirectoryInUse, match="in use by another process"):
        open_log(OSFileSystem(), directory=directory)
    log.close()
    open_log(OSFileSystem(), directory=directory).close()


def test_the_writer_thread_on_a_real_disk(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    settings = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 26, tail_bytes=4096)
    log = open_log(OSFileSystem(), settings, directory=directory, start_writer=True)
    stream = log.stream("one")
    payloads = [random.Random(index).randbytes(60) for index in range(5000)]
    done = threading.Event()
    order: list[tuple[int, BaseException | None]] = []

    def note(first: int) -> Callable[[BaseException | None], None]:
        return lambda error: order.append((first, error))

    for first in range(0, 5000, 50):
        log.append(stream, 5, [b"k"] * 50, payloads[first : first + 50])
        log.on_durable(note(first))
    log.on_durable(lambda error: done.set())
    assert done.wait(PATIENCE_S)
    assert order == [(first, None) for first in range(0, 5000, 50)]
    assert read_all(log, stream) == dict(enumerate(payloads))
    log.append(stream, 5, [b"k"], [b"at the close"])
    log.close()
    again = open_log(OSFileSystem(), settings, directory=directory)
    assert read_all(again, stream)[5000] == b"at the close"
    assert again.recovery.torn_bytes == 0
    assert again.stats().segments > 1
    again.close()


def test_commit_interval_gathers_appends(tmp_path: Path) -> None:
    settings = LogSettings(commit_interval_s=0.05)
    log = open_log(OSFileSystem(), settings, directory=str(tmp_path), start_writer=True)
    stream = log.stream("one")
    started, done = time.monotonic(), threading.Event()
    for _ in range(3):
        done.clear()
        for _ in range(50):
            log.append(stream, 5, [b"k"], [b"x"])
        log.on_durable(lambda error: done.set())
        assert done.wait(PATIENCE_S)
    assert time.monotonic() - started >= 0.1
    assert log.stats().commits <= 6
    log.close()


def test_closing_commits_what_is_pending_and_then_refuses(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    outcomes: list[BaseException | None] = []
    stream = log.stream("one")
    log.append(stream, 5, [b"k"], [b"x"])
    log.on_durable(outcomes.append)
    log.close()
    log.close()
    assert outcomes == [None]
    with pytest.raises(LogFailed, match="is closed"):
        log.append(stream, 5, [b"k"], [b"x"])
    assert read_all(open_log(disk), stream) == {0: b"x"}


def test_restarts_without_records_leave_no_files(disk: FakeFileSystem) -> None:
    for _ in range(5):
        open_log(disk).close()
    assert len(segment_paths(disk)) == 1


def test_stats_tell_what_is_there(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a", b"b", time=70)
    put(log, stream, b"c", time=60)
    stats = log.stats()
    assert (stats.records, stats.commits, stats.oldest_time, stats.newest_time) == (3, 2, 60, 70)
    assert stats.bytes_on_disk == SMALL.segment_bytes + len(disk.content(f"{DIRECTORY}/log-id"))
    assert sum(stats.sync.counts) == 2
    assert stats.sync.seconds > 0


def test_inspection_shows_a_living_log(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a", b"b")
    put(log, stream, b"c")
    log.release(stream, RangeSet([(0, 3)]))
    found = list(inspect_log(DIRECTORY, disk))
    assert [item.problem for item in found] == [None] * len(found)
    assert [item.kind for item in found] == [
        None,
        EntryKind.STREAMS,
        EntryKind.KEPT,
        EntryKind.STREAMS,
        EntryKind.STREAMS,
        EntryKind.BATCH,
        EntryKind.STREAMS,
        EntryKind.BATCH,
    ]
    assert found[1].offset == HEADER_BYTES
    assert [r.payload for item in found if item.data for r in records(item.data)] == [b"a", b"b", b"c"]


def test_a_clock_of_the_log_is_only_what_it_was_given(disk: FakeFileSystem) -> None:
    log = open_log(disk, clock=Clock())
    stream = log.stream("one")
    put(log, stream, b"a")
    header = decode_header(log.read(stream, 0, 1)[0])
    assert (header.boot_id, header.first_time) == (7, 5)


# --- Waiting for what was appended to be on the disk


async def test_it_returns_when_everything_appended_so_far_is_durable(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    log.append(stream, 5, [b"k"], [b"a"])
    waiting = asyncio.ensure_future(log.durable())
    await asyncio.sleep(0)
    assert not waiting.done()
    commit_all(log)
    await waiting
    assert log.durable_end(stream) == 1
    await log.durable()  # nothing waits: at once


async def test_it_raises_what_keeps_the_log_from_writing(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    log.append(log.stream("one"), 5, [b"k"], [b"a"])
    waiting = asyncio.ensure_future(log.durable())
    await asyncio.sleep(0)
    disk.fail = lambda name, path: eio() if name == "sync" else None
    commit_all(log)
    for each in (waiting, log.durable()):
        with pytest.raises(LogFailed):
            await each


async def test_who_waits_no_longer_is_not_called(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    log.append(stream, 5, [b"k"], [b"a"])
    waiting = asyncio.ensure_future(log.durable())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert put(log, stream, b"b") == 1
    assert log.durable_end(stream) == 2


# --- Runs of records of different times, as functions append them


TIMES = st.lists(st.integers(0, 10 * CLOCK_STEP_NS_MAX), min_size=1, max_size=30)


@given(runs=st.lists(TIMES, min_size=1, max_size=4), is_synced=st.booleans(), records_max=st.sampled_from([3, 65_536]))
@settings(max_examples=100, deadline=None)
def test_every_record_keeps_its_time(runs: list[list[int]], is_synced: bool, records_max: int) -> None:
    disk = FakeFileSystem()
    log = open_log(disk)
    with_state = log._state.queue._clock_reading()._replace(state=ClockState(is_synced))
    log._state.queue._clock_reading = lambda: with_state
    with mock.patch.object(pending, "BATCH_RECORDS_MAX", records_max):
        stream = log.stream("out")
        for times in runs:
            log.append(stream, 10**18, [b"k"] * len(times), [b"%d" % time for time in times], times=times)
            log.append(stream, 10**18, [b"k"], [b"now"])
        commit_all(log)
    found = []
    for data in log.read(stream, 0, 1 << 20):
        header = decode_header(data)
        own = [record.time for record in records(data)]
        assert own == sorted(own)
        assert len(own) <= records_max
        if not is_synced:
            assert all(after - first <= CLOCK_STEP_NS_MAX for first, after in itertools.pairwise(own))
        assert (header.first_time, header.last_time) == (own[0], own[-1])
        found += [(record.time, record.payload) for record in records(data)]
    assert found == [each for times in runs for each in [*((time, b"%d" % time) for time in times), (10**18, b"now")]]


def test_a_mark_knows_the_oldest_of_them() -> None:
    log = open_log(FakeFileSystem())
    stream = log.stream("out")
    log.append(stream, 100, [b"k"] * 3, [b"x"] * 3, times=[50, 40, 60])
    assert log.mark(stream, 100) == (39, 0)
    commit_all(log)
    assert log.mark(stream, 100) == (100, 3)


# --- Appends that belong together: one commit, all or nothing, and what leads stands first in it


ROOMY = LogSettings(segment_bytes=32 << 20, budget_bytes=256 << 20)


def order_on_disk(disk: FakeFileSystem) -> list[int]:
    """Streams of the batches, as they stand in the log."""
    return [decode_header(item.data).stream for item in inspect_log(DIRECTORY, disk) if item.data]


def test_one_commit_however_long_it_becomes(disk: FakeFileSystem) -> None:
    log = open_log(disk, ROOMY)
    one, two = log.stream("one"), log.stream("two")
    with log.together(0):
        append(log, one, bytes(COMMIT_BYTES_MAX))
        append(log, one, bytes(COMMIT_BYTES_MAX))
        append(log, two, b"x")
    append(log, two, b"in the next")
    assert log.committer.run_once()
    assert (log.durable_end(one), log.durable_end(two)) == (2, 1)
    assert log.committer.run_once()
    assert log.durable_end(two) == 2


def test_a_full_commit_is_not_made_longer(disk: FakeFileSystem) -> None:
    log = open_log(disk, ROOMY)
    one = log.stream("one")
    append(log, one, bytes(COMMIT_BYTES_MAX))
    with log.together(100):
        append(log, one, b"x")
    log.committer.run_once()
    assert log.durable_end(one) == 1


def test_leading_streams_stand_first_in_their_commits(disk: FakeFileSystem) -> None:
    log = open_log(disk, ROOMY)
    data, journal = log.stream("data"), log.stream("journal")
    log.lead(journal)
    for _ in range(2):
        append(log, data, b"a")
        append(log, journal, bytes(1 << 20))
        append(log, journal, b"a second batch of it")
        append(log, data, bytes(1 << 20))
        append(log, journal, b"b")
        commit_all(log)
    commit = [journal, journal, data, data]
    assert order_on_disk(disk) == [*commit, *commit]
    assert read_all(open_log_again(log, disk), journal)[5] == b"b"


def open_log_again(log: SegmentLog, disk: FakeFileSystem) -> SegmentLog:
    log.close()
    return open_log(disk, ROOMY)


def test_what_was_appended_is_told_within(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one, two = log.stream("one"), log.stream("two")
    put(log, one, b"x")
    assert log.appended_together() is None
    with log.together(100):
        append(log, one, b"a", b"b")
        append(log, two)
        append(log, two, b"c")
        assert log.appended_together() == [(one, 1, 2), (two, 0, 1)]
    assert log.appended_together() is None


def test_what_fits_the_reserve_is_never_refused(disk: FakeFileSystem) -> None:
    small = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, pending_bytes_max=1 << 16)
    log = open_log(disk, small)
    one, two = log.stream("one"), log.stream("two")
    refused = False
    while not refused:
        before = (log.next_seq(one), log.next_seq(two))
        try:
            with log.together(3000):
                append(log, one, bytes(900))
                append(log, two, bytes(900))
        except LogFull:
            refused = True
            assert (log.next_seq(one), log.next_seq(two)) == before
        commit_all(log)
    assert before[0] == before[1] > 3
    assert log.stats().bytes_on_disk <= small.budget_bytes
    append(log, one, b"there is room for less")


def test_a_failed_log_is_not_entered(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one = log.stream("one")
    append(log, one, b"x")
    disk.fail = lambda call, path: eio() if call == "sync" else None
    log.committer.run_once()
    with pytest.raises(LogFailed), log.together(0):
        raise AssertionError
    # The lock is free again: another thread gets it.
    seen = []
    thread = threading.Thread(target=lambda: seen.append(log.durable_end(one)))
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == [0]


def test_a_mistake_within_leaves_the_log_usable(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one = log.stream("one")
    with pytest.raises(ZeroDivisionError), log.together(100):  # noqa: PT012 - both belong inside
        append(log, one, b"x")
        raise ZeroDivisionError
    put(log, one, b"y")
    assert log.durable_end(one) == 2


def test_the_writer_never_takes_half(disk: FakeFileSystem) -> None:
    halves = []

    def post(deliver) -> None:  # type: ignore[no-untyped-def]
        halves.append((log.durable_end(one), log.durable_end(two)))
        deliver()

    log = open_log(disk, ROOMY, start_writer=True)
    log.committer._post = post
    one, two = log.stream("one"), log.stream("two")
    for _ in range(30):
        durable = threading.Event()
        for _ in range(10):
            with log.together(1000):
                append(log, one, b"x")
                append(log, two, b"y")
        log.on_durable(lambda _, durable=durable: durable.set())  # type: ignore[misc]
        assert durable.wait(PATIENCE_S)
    log.close()
    assert len(halves) > 1
    assert all(left == right for left, right in halves)


# --- What was appended together: after a power cut all of it counts, or none, whatever byte the cut tears at


WHOLE_ROOMY = LogSettings(segment_bytes=1 << 13, budget_bytes=1 << 20, tail_bytes=0)
NAMES = ("input", "state", "output")


def inspected(disk: FakeFileSystem) -> list[Inspected]:
    return list(inspect_log(DIRECTORY, disk))


def lives(disk: FakeFileSystem, *, gap: bool = False) -> tuple[int, int, dict[str, int]]:
    """A log whose last commit belongs together. Returns where that begins and ends, and what each stream had before."""
    log = open_log(disk, WHOLE_ROOMY)
    streams = [log.stream(name) for name in NAMES]
    for stream in streams:
        put(log, stream, b"before")
    begin = log._state.segments[-1].end
    before = {name: log.durable_end(stream) for name, stream in zip(NAMES, streams, strict=True)}
    if gap:
        log.drop_backlog(streams[0], 0, 1)
    with log.together(1000):
        for stream in streams:
            append(log, stream, b"one", b"two")
    commit_all(log)
    disk.kill_process()
    return begin, log._state.segments[-1].end, before


def ends(log: SegmentLog) -> dict[str, int]:
    return {name: log.next_seq(log.stream(name)) for name in NAMES}


def torn_everywhere() -> Iterator[tuple[int, FakeFileSystem, dict[str, int]]]:
    """The log with zeros, or what the disk held before, from each byte of the last commit on."""
    begin, end, _ = lives(FakeFileSystem())
    for at in range(begin, end + 1):
        disk = FakeFileSystem()
        before = lives(disk)[2]
        disk.content(segment_paths(disk)[0])[at:end] = bytes(end - at)
        yield at, disk, before


def halves() -> list[int]:
    """Bytes at which a cut leaves some of the commit's records and not others."""
    found = []
    for at, disk, before in torn_everywhere():
        now = ends(open_log(disk, WHOLE_ROOMY))
        after = {name: end + 2 for name, end in before.items()}
        if now not in (before, after):
            found.append(at)
    return found


def test_cut_at_every_byte_all_of_a_commit_counts_or_none() -> None:
    assert halves() == []


def test_without_looking_at_the_fence_the_cuts_are_found_that_part_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_first_missing", lambda *_: None)
    assert len(halves()) > 100


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.integers(0, 63), min_size=1), st.booleans())
def test_pieces_of_a_commit_that_reach_the_disk_out_of_order_leave_all_or_none(lost: set[int], gap: bool) -> None:
    disk = FakeFileSystem()
    begin, end, before = lives(disk, gap=gap)
    content, size = disk.content(segment_paths(disk)[0]), -(-(end - begin) // 64)
    for piece in lost:
        start, stop = begin + piece * size, min(end, begin + (piece + 1) * size)
        content[start:stop] = bytes(max(0, stop - start))
    now = ends(open_log(disk, WHOLE_ROOMY))
    assert now in (before, {name: value + 2 for name, value in before.items()})


def test_a_torn_group_is_reported_as_one_and_its_numbers_are_given_out_again() -> None:
    disk = FakeFileSystem()
    begin, end, _ = lives(disk)
    fence = next(item for item in inspected(disk) if item.kind is EntryKind.WHOLE)
    assert isinstance(fence.value, Whole)
    assert fence.offset + ENTRY_HEADER_BYTES + 4 + fence.value.length == end > begin
    disk.content(segment_paths(disk)[0])[end - 1] ^= 1
    torn = [item for item in inspected(disk) if item.is_torn]
    assert [item.offset for item in torn] == [fence.offset]
    log = open_log(disk, WHOLE_ROOMY)
    assert (log.recovery.torn_offset, log.recovery.torn_bytes) == (fence.offset, end - fence.offset)
    assert not log.recovery.gaps
    assert put(log, log.stream("state"), b"again") == 1
    disk.kill_process()
    assert read_all(open_log(disk, WHOLE_ROOMY), 2) == {0: b"before", 1: b"again"}


def test_damage_in_a_group_that_was_acknowledged_takes_no_more_than_what_it_hit() -> None:
    disk = FakeFileSystem()
    _, end, _ = lives(disk)
    log = open_log(disk, WHOLE_ROOMY)
    put(log, log.stream("input"), b"later")
    disk.kill_process()
    disk.content(segment_paths(disk)[0])[end - 1] ^= 1
    log = open_log(disk, WHOLE_ROOMY)
    commit_all(log)
    assert log.recovery.torn_bytes == 0
    assert [(gap.stream, gap.first, gap.end, gap.reason) for gap in log.recovery.gaps] == [
        (3, 1, 3, GapReason.CORRUPTION)
    ]
    assert ends(log) == {"input": 4, "state": 3, "output": 3}


def test_one_batch_needs_no_fence() -> None:
    disk = FakeFileSystem()
    log = open_log(disk, WHOLE_ROOMY)
    one, two = log.stream("one"), log.stream("two")
    with log.together(1000):
        append(log, one, b"a")
        append(log, one, b"b")
    commit_all(log)
    append(log, one, b"c")
    append(log, two, b"d")
    commit_all(log)
    assert not [item for item in inspected(disk) if item.kind is EntryKind.WHOLE]


def test_a_group_is_moved_released_and_evicted_record_by_record() -> None:
    disk = FakeFileSystem()
    settings_ = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0)
    log = open_log(disk, settings_)
    keep, go = log.stream("keep"), log.stream("go")
    chance = random.Random(5)
    with log.together(2000):
        append(log, keep, b"stays")
        append(log, go, chance.randbytes(200))
    commit_all(log)
    with contextlib.suppress(LogFull):
        for _ in range(100):
            put(log, go, chance.randbytes(1000))
    log.release(go, log._state.segments[0].index.lanes[go].ranges)
    put(log, go, chance.randbytes(1000))
    put(log, go, chance.randbytes(1000))
    assert log.stats().moved_bytes > 0
    disk.kill_process()
    log = open_log(disk, settings_)
    assert not log.recovery.gaps
    assert log.recovery.torn_bytes == 0
    assert read_all(log, keep) == {0: b"stays"}
    assert 0 not in log.ranges(go)


def test_a_reader_beside_the_writer_is_shown_no_half_of_a_group() -> None:
    begin, end, _ = lives(FakeFileSystem())
    for at in range(begin, end - 8, 7):
        disk = FakeFileSystem()
        lives(disk)
        content = disk.content(segment_paths(disk)[0])
        assert any(content[at:end])
        content[at:end] = bytes(end - at)
        shown = [item for item in inspected(disk) if item.kind is EntryKind.BATCH and item.offset >= begin]
        assert shown == []


def stored_in(log: SegmentLog, stream: int, seq: int = 0) -> list[tuple[BatchHeader, bytes]]:
    found: list[tuple[BatchHeader, bytes]] = []
    while batches := log.read(stream, seq, 1 << 20):
        found += [(decode_header(data), data) for data in batches]
        seq = found[-1][0].end_seq
    return found


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_copy_of_a_log_is_its_batches_and_a_power_cut_takes_only_what_was_not_durable(data: st.DataObject) -> None:
    log, disk = open_log(FakeFileSystem()), FakeFileSystem()
    streams = [log.stream(name) for name in ("zero", "one", "two")]
    for _ in range(data.draw(st.integers(1, 12))):
        put(log, data.draw(st.sampled_from(streams[1:])), *[b"x" * 40] * data.draw(st.integers(1, 5)))
    copied = open_log(disk, log_id=log.log_id)
    durable, left_out = dict[int, RangeSet](), dict[int, RangeSet]()
    for stream, name in zip(streams[1:], ("one", "two"), strict=True):
        durable[stream], left_out[stream] = RangeSet(), RangeSet()
        for header, batch in stored_in(log, stream):
            if data.draw(st.booleans()):
                left_out[stream].add(header.base_seq, header.end_seq)
                continue
            assert copied.append_stored(name, [(header, batch)]) == stream
            if data.draw(st.booleans()):
                commit_all(copied)
                durable[stream] = copied.ranges(stream)
            if data.draw(st.booleans()):
                copied.append_stored(name, [(header, batch)])
    disk = disk.power_cut(random.Random(data.draw(st.integers(0, 1 << 16))))
    again = open_log(disk, log_id=1)
    assert again.log_id == log.log_id
    for stream in streams[1:]:
        if not durable[stream]:
            continue
        end = again.next_seq(stream)
        held = again.ranges(stream)
        assert all(held.covers(*part) for part in durable[stream])
        assert {gap.reason for gap in again.gaps(stream)} <= {GapReason.ABSENT}
        assert all(not held.within(*part) for part in left_out[stream])
        expected = {seq: value for seq, value in read_all(log, stream).items() if seq < end and seq in held}
        assert read_all(again, stream) == expected


def test_a_copy_takes_no_batch_across_its_end_and_no_number_of_another_stream(disk: FakeFileSystem) -> None:
    log, copied = open_log(FakeFileSystem()), open_log(disk)
    one, two = log.stream("one"), log.stream("two")
    put(log, one, b"a", b"b")
    put(log, two, b"c")
    copied.append_stored("one", stored_in(log, one))
    other = open_log(FakeFileSystem())
    put(other, other.stream("one"), b"a", b"b", b"c")
    with pytest.raises(ValueError, match="ends at 2 here"):
        copied.append_stored("one", stored_in(other, 1))
    with pytest.raises(ValueError, match="number 2, and 1 here"):
        copied.append_stored("one", stored_in(log, two))
    with pytest.raises(ValueError, match="which is that of one here"):
        copied.append_stored("two", stored_in(other, 1))
    commit_all(copied)
    assert read_all(copied, one) == {0: b"a", 1: b"b"}


def test_a_full_copy_refuses(disk: FakeFileSystem) -> None:
    log, copied = open_log(FakeFileSystem(), LogSettings()), open_log(disk)
    stream, chance = log.stream("one"), random.Random(3)

    def fill() -> None:
        for _ in range(2000):
            put(log, stream, chance.randbytes(1000))
            copied.append_stored("one", stored_in(log, stream, log.next_seq(stream) - 1))
            commit_all(copied)

    with pytest.raises(LogFull):
        fill()
    assert disk.used_bytes() <= SMALL.budget_bytes
    copied.release(stream, RangeSet([(0, copied.next_seq(stream) // 2)]))
    copied.append_stored("one", stored_in(log, stream, log.next_seq(stream) - 1))


def test_what_is_kept_and_what_is_released_are_told_apart_and_a_lost_record_is_neither(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    for _ in range(4):
        put(log, stream, b"a" * 900, b"b" * 900)
    assert log.take_released() == {}
    log.release(stream, RangeSet([(0, 3)]))
    log.release(stream, RangeSet([(20, 30)]))
    assert log.take_released() == {stream: RangeSet([(0, 3)])}
    assert log.take_released() == {}
    kept, released = log.kept(stream)
    assert (list(kept), list(released)) == ([(3, 8)], [(0, 3)])
    log.drop_backlog(stream, 4, 6)
    commit_all(log)
    log.release(stream, RangeSet([(4, 6)]))  # a hub has the notice
    kept, released = log.kept(stream)
    assert (list(kept), list(released)) == ([(3, 4), (6, 8)], [(0, 3)])
    assert log.ends([stream]) == {stream: 8}
