"""Appends that belong together: one commit, all or nothing, and what leads stands first in it."""

from __future__ import annotations

import threading

import pytest

from tests.storage.fakes import FakeFileSystem, eio
from tests.storage.segment_log.helpers import DIRECTORY, append, commit_all, open_log, put, read_all
from tests.support.waiting import PATIENCE_S
from weft.protocols.batch import decode_header
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, SegmentLog
from weft.storage.segment_log.scan import inspect_log
from weft.storage.segment_log.settings import COMMIT_BYTES_MAX

ROOMY = LogSettings(segment_bytes=32 << 20, budget_bytes=256 << 20)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


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
