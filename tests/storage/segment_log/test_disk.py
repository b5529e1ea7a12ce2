"""The log on real disks: full ones, and files that vanish under it. Tests of full disks mount a small one, as root."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.segment_log.helpers import commit_all, open_log, put, read_all
from tests.support.waiting import PATIENCE_S
from weft.protocols.ranges import RangeSet
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, SegmentLog, StreamPolicy

DISK_BYTES = 2 << 20
SETTINGS = LogSettings(segment_bytes=1 << 17, budget_bytes=64 << 20, tail_bytes=0)
"""A budget that is far larger than the disk: what a default of 16 GiB is on an 8 GB card."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "weft-test", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def open_in(folder: Path, settings: LogSettings = SETTINGS) -> SegmentLog:
    return open_log(OSFileSystem(), settings, directory=str(folder / "log"))


def fill(log: SegmentLog, stream: int) -> int:
    """Append 10 KB records until refused. Returns the next number."""
    while True:
        try:
            put(log, stream, random.Random(log.next_seq(stream)).randbytes(10_000))
        except LogFull:
            assert log.failed is None
            return log.next_seq(stream)


def occupy(folder: Path, leave: int = 0) -> Path:
    """Another program's file that takes the rest of the disk."""
    path = folder / "of-another-program"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, OSFileSystem().free_bytes(str(folder)) - leave)
    return path


def test_a_log_that_fills_its_disk_refuses_says_so_and_goes_on_once_something_is_released(small_disk: Path) -> None:
    log = open_in(small_disk)
    stream = log.stream("one")
    assert log.shortage() is None
    end = fill(log, stream)
    assert end > 100
    assert "Make space on the disk, or restore the link" in (log.shortage() or "")
    assert OSFileSystem().free_bytes(str(small_disk)) >= SETTINGS.segment_bytes // 2, "links need a little too"
    assert len(read_all(log, stream)) == end
    log.release(stream, RangeSet([(0, end)]))
    assert log.shortage() is None
    for _ in range(2 * end):
        put(log, stream, random.Random(log.next_seq(stream)).randbytes(10_000))
        log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    assert not log.gaps(stream)


def test_space_that_others_took_is_waited_for(small_disk: Path) -> None:
    log = open_in(small_disk)
    stream = log.stream("one")
    put(log, stream, b"first")
    other = occupy(small_disk)
    end = fill(log, stream)
    assert 1 < end < 20
    assert "has 0 bytes left" in (log.shortage() or "")
    other.unlink()
    assert log.shortage() is None
    assert put(log, stream, b"again") == end


@pytest.mark.parametrize("leave", [1 << 14, 1 << 16])
@pytest.mark.parametrize("clean", [True, False])
def test_a_node_that_starts_on_a_full_disk_waits_for_space(small_disk: Path, leave: int, clean: bool) -> None:
    log = open_in(small_disk)
    stream = log.stream("one")
    put(log, stream, b"first")
    if clean:
        log.close()
    else:
        log._lock.close()
    other = occupy(small_disk, leave)
    again = open_in(small_disk)
    assert read_all(again, stream) == {0: b"first"}
    end = fill(again, stream)
    assert again.shortage()
    other.unlink()
    assert again.shortage() is None
    assert put(again, stream, b"later") == end


@pytest.mark.parametrize("commits", [300, pytest.param(1200, marks=pytest.mark.slow)])
def test_readers_miss_nothing_while_files_are_cleaned_and_deleted(tmp_path: Path, commits: int) -> None:
    settings = LogSettings(segment_bytes=1 << 14, budget_bytes=8 << 14, tail_bytes=0)
    log = open_log(OSFileSystem(), settings, directory=str(tmp_path / "log"), start_writer=True)
    slow, busy, drop = log.stream("slow"), log.stream("busy"), log.stream("drop")
    log.set_policy(drop, StreamPolicy(when_full="drop_oldest"))
    done = threading.Event()
    problems: list[tuple[int, int, list[object]]] = []

    def read(stream: int) -> None:
        while not done.is_set():
            end = log.durable_end(stream)
            try:
                found = read_all(log, stream)
            except AssertionError as error:
                problems.append((stream, end, [error]))
                return
            lost = {seq for gap in log.gaps(stream) for seq in range(gap.first, gap.end)}
            if not set(range(end)) <= set(found) | lost or any(found[seq] != payload(stream, seq) for seq in found):
                problems.append((stream, end, [*sorted(set(range(end)) - set(found) - lost)[:5]]))
                return

    @functools.cache  # the readers compare each record again and again
    def payload(stream: int, seq: int) -> bytes:
        return random.Random(stream << 32 | seq).randbytes(200)

    readers = [threading.Thread(target=read, args=(stream,)) for stream in (slow, drop)]
    for reader in readers:
        reader.start()
    for index in range(commits):
        for stream, count in ((slow, index % 8 == 0), (busy, 6), (drop, 2)):
            first = log.next_seq(stream)
            payloads = [payload(stream, first + at) for at in range(count)]
            log.append(stream, index, [b"k"] * count, payloads)
        durable = threading.Event()
        log.on_durable(lambda _, durable=durable: durable.set())  # type: ignore[misc]
        assert durable.wait(PATIENCE_S)
        log.release(busy, RangeSet([(0, log.durable_end(busy))]))
    done.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    stats = log.stats()
    log.close()
    assert not problems
    assert stats.failed is None
    assert stats.moved_bytes > 0
    assert log.gaps(drop)


def test_nothing_is_acknowledged_into_a_folder_that_is_gone(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    stream = log.stream("one")
    put(log, stream, b"first")
    shutil.rmtree(tmp_path / "log")
    outcomes: list[BaseException | None] = []
    log.append(stream, 5, [b"k"], [b"into nowhere"])
    log.on_durable(outcomes.append)
    commit_all(log)
    assert [type(error) for error in outcomes] == [LogFailed]
    assert "was removed while it was being written" in str(log.failed)
    log._lock.close()
    again = open_in(tmp_path)
    assert again.recovery.created
    assert put(again, again.stream("one"), b"anew") == 0


@pytest.mark.parametrize("by_housekeeping", [False, True])
def test_a_log_whose_folder_was_moved_away_touches_nothing_of_the_one_in_its_place(
    tmp_path: Path, by_housekeeping: bool
) -> None:
    small = LogSettings(segment_bytes=4096, budget_bytes=4 * 4096, tail_bytes=0)
    moved = open_in(tmp_path, small)
    stream = moved.stream("one")
    for _ in range(30):
        put(moved, stream, random.Random(1).randbytes(200))
        moved.release(stream, RangeSet([(0, moved.durable_end(stream))]))
    (tmp_path / "log").rename(tmp_path / "moved")
    second = open_log(OSFileSystem(), small, directory=str(tmp_path / "log"), log_id=2)
    for _ in range(30):
        put(second, second.stream("one"), random.Random(2).randbytes(200))
    files = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    held = second.ranges(second.stream("one"))
    acknowledged = moved.durable_end(stream)
    if by_housekeeping:
        moved.set_policy(stream, StreamPolicy(retain_s=1e-9))
        for _ in range(5):
            moved.committer.housekeep()
    else:
        while moved.failed is None and acknowledged < 100:
            put(moved, stream, random.Random(3).randbytes(200))
            moved.release(stream, RangeSet([(0, moved.durable_end(stream))]))
            acknowledged = moved.durable_end(stream)
    assert "was moved or removed while the node ran" in str(moved.failed)
    assert {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()} == files
    moved._lock.close()
    for _ in range(5):
        put(second, second.stream("one"), b"continues")
    assert set(read_all(second, second.stream("one"))) >= set(range(held.end))
    assert second.failed is None
    # What the first acknowledged is where its folder went.
    again = open_log(OSFileSystem(), small, directory=str(tmp_path / "moved"))
    assert again.durable_end(stream) >= acknowledged


def test_a_segment_that_vanishes_is_found_by_a_read_and_noticed_by_the_next_start(tmp_path: Path) -> None:
    log = open_in(tmp_path)
    stream = log.stream("one")
    for _ in range(60):
        put(log, stream, random.Random(log.next_seq(stream)).randbytes(10_000))
    victim = sorted((tmp_path / "log").glob("*.seg"))[1]
    victim.unlink()
    with pytest.raises(LogFailed, match=victim.name):
        read_all(log, stream)
    assert log.failed
    log._lock.close()
    again = open_in(tmp_path)
    (gap,) = again.recovery.gaps
    assert set(read_all(again, stream)) == set(range(60)) - set(range(gap.first, gap.end))
    assert again.next_seq(stream) == 60
