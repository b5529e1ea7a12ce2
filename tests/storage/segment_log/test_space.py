"""Others take the disk's space after records were taken in: nothing is acknowledged, nothing lost, the log waits."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import (
    DIRECTORY,
    add,
    commit_all,
    lost,
    open_log,
    over_budget,
    put,
    read_all,
    segment_paths,
)
from tests.support.waiting import PATIENCE_S
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import EntryKind
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import (
    LogFailed,
    LogFull,
    LogSettings,
    SegmentLog,
    StreamPolicy,
    commit,
    pending,
    settings,
)
from weft.storage.segment_log.scan import inspect_log

SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=20 * 4096, tail_bytes=0, compression_level=None)


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem()
    disk.capacity = 60_000
    return disk


def almost_full_segment(log: SegmentLog) -> int:
    """Fill the newest segment up to some hundred bytes. Returns the stream."""
    stream = log.stream("one")
    segment = log._state.segments[-1]
    while segment.size - segment.end > 700:
        assert add(log, stream, 1) == 1
    return stream


def append_ten(log: SegmentLog, stream: int) -> list[BaseException | None]:
    """Append what does not fit the segment. Return what the log reports of it."""
    outcomes: list[BaseException | None] = []
    for seq in range(log.next_seq(stream), log.next_seq(stream) + 10):
        log.append(stream, 5, [b"k"], [random.Random(seq).randbytes(100)])
    log.on_durable(outcomes.append)
    return outcomes


def take_space(disk: FakeFileSystem, leave: int = 0) -> None:
    """As another program does that writes until the disk is full."""
    disk.capacity = disk.used_bytes() + leave


def return_space(disk: FakeFileSystem) -> None:
    disk.capacity = 60_000


def waiting(disk: FakeFileSystem, leave: int) -> tuple[SegmentLog, int, list[BaseException | None]]:
    """A log of which a commit waits for space, its stream, and what the log reported of the commit."""
    log = open_log(disk, SETTINGS)
    stream = almost_full_segment(log)
    reported = append_ten(log, stream)
    take_space(disk, leave)
    commit_all(log)
    return log, stream, reported


def assert_as_appended(log: SegmentLog, stream: int, count: int) -> None:
    assert read_all(log, stream) == {seq: random.Random(seq).randbytes(100) for seq in range(count)}


LEFT = pytest.mark.parametrize("leave", [0, 100, 500, 1000])
"""Bytes that are left: for nothing, for a name, for the beginning of a segment, for almost all that is needed."""


@LEFT
def test_a_commit_waits_for_space_and_goes_on_by_itself(disk: FakeFileSystem, leave: int) -> None:
    log, stream, reported = waiting(disk, leave)
    acked = log.durable_end(stream)
    for _ in range(3):
        assert not log.committer.run_once()
        log.committer.housekeep()
        assert log.committer.waits_for_space
        assert log.failed is None
        assert reported == []
        assert log.durable_end(stream) == acked
        assert_as_appended(log, stream, acked)
    over = over_budget(disk, SETTINGS)
    return_space(disk)
    commit_all(log)
    assert not log.committer.waits_for_space
    assert reported == [None]
    assert_as_appended(log, stream, acked + 10)
    assert add(log, stream, 50) == 50
    log.close()
    assert_as_appended(open_log(disk, SETTINGS), stream, acked + 60)
    assert not over


@LEFT
@pytest.mark.parametrize("end", ["close", "kill", "power cut"])
def test_a_restart_finds_what_was_acknowledged(disk: FakeFileSystem, leave: int, end: str) -> None:
    log, stream, reported = waiting(disk, leave)
    acked = log.durable_end(stream)
    if end == "close":
        log.close()
        (error,) = reported
        assert isinstance(error, LogFailed)
        assert "No space left" in str(error)
    elif end == "kill":
        disk.kill_process()
    else:
        disk = disk.power_cut(random.Random(leave))
    return_space(disk)
    log = open_log(disk, SETTINGS)
    assert not log.recovery.damaged
    assert not log.recovery.gaps
    assert log.next_seq(stream) == acked
    assert_as_appended(log, stream, acked)
    assert add(log, stream, 20) == 20


def test_space_that_a_deleted_file_left_may_be_taken_too(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = almost_full_segment(log)
    assert add(log, stream, 20) == 20
    almost_full_segment(log)
    log.release(stream, RangeSet([(0, 20)]))
    reported = append_ten(log, stream)
    take_space(disk, 500)

    def steal(call: str, path: str) -> None:
        if call == "remove" and path.endswith(".seg"):
            disk.capacity = disk.used_bytes() - 3000

    disk.fail = steal
    commit_all(log)
    assert log.committer.waits_for_space
    assert reported == []
    return_space(disk)
    commit_all(log)
    assert reported == [None]
    end = log.durable_end(stream)
    assert {seq: read_all(log, stream)[seq] for seq in range(20, end)} == {
        seq: random.Random(seq).randbytes(100) for seq in range(20, end)
    }


def test_a_file_that_was_found_without_room_for_its_seal_waits_for_it(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = almost_full_segment(log)
    acked = log.durable_end(stream)
    disk.kill_process()
    newest = log._state.segments[-1]
    disk.open(newest.path).truncate(newest.end)
    take_space(disk)
    log = open_log(disk, SETTINGS)
    return_space(disk)
    reported = append_ten(log, stream)
    take_space(disk)
    for _ in range(3):
        commit_all(log)
        assert log.failed is None
        assert log.committer.waits_for_space
    return_space(disk)
    commit_all(log)
    assert reported == [None]
    assert_as_appended(log, stream, acked + 10)


@pytest.mark.parametrize("streams", [1, 60])
def test_housekeeping_that_finds_no_space_hinders_no_commit(disk: FakeFileSystem, streams: int) -> None:
    log = open_log(disk, SETTINGS)
    for number in range(streams):
        put(log, log.stream(f"a-stream-with-a-long-name-{number}"), b"x")
    stream = log.stream("one")
    assert add(log, stream, 1) == 1
    log.set_policy(stream, StreamPolicy(retain_s=1e-9))
    reported = append_ten(log, stream)
    disk.capacity = 0  # also what the sealed file does not need any more
    log.committer.housekeep()
    for _ in range(2):
        commit_all(log)
        log.committer.housekeep()
        assert log.failed is None
        assert bool(reported) is (log.durable_end(stream) == 11), "told before it is durable"
    return_space(disk)
    commit_all(log)
    assert reported == [None]
    assert log.durable_end(stream) == 11


def test_the_writer_thread_goes_on_when_space_returns(disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SPACE_INTERVAL_S", 0.001)
    log = open_log(disk, SETTINGS, start_writer=True)
    stream = log.stream("one")
    segment = log._state.segments[-1]
    looks, durable = threading.Semaphore(0), threading.Event()
    outcomes: list[BaseException | None] = []

    def look(call: str, path: str) -> None:
        if call == "free_bytes":
            looks.release()

    def tell(error: BaseException | None) -> None:
        outcomes.append(error)
        durable.set()

    with log.together(100 * 150):
        for seq in range(100):
            log.append(stream, 5, [b"k"], [random.Random(seq).randbytes(100)])
        take_space(disk)
        disk.fail = look
    log.on_durable(tell)
    for _ in range(3):
        assert looks.acquire(timeout=PATIENCE_S), "it looks again and again"
    assert outcomes == []
    assert log.durable_end(stream) == 0
    return_space(disk)
    assert durable.wait(PATIENCE_S)
    assert outcomes == [None]
    assert log._state.segments[-1] is not segment
    assert_as_appended(log, stream, 100)
    log.close()
    assert_as_appended(open_log(disk, SETTINGS), stream, 100)


def test_a_writer_thread_that_waits_for_space_can_be_closed(
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SPACE_INTERVAL_S", 60.0)
    log = open_log(disk, SETTINGS, start_writer=True)
    stream = log.stream("one")
    looked = threading.Event()
    outcomes: list[BaseException | None] = []

    def look(call: str, path: str) -> None:
        if call == "free_bytes":
            looked.set()

    with log.together(5000):
        log.append(stream, 5, [b"k"], [bytes(4000)])
        take_space(disk)
        disk.fail = look
    log.on_durable(outcomes.append)
    assert looked.wait(PATIENCE_S)
    log.close()
    assert [type(error) for error in outcomes] == [LogFailed]
    return_space(disk)
    again = open_log(disk, SETTINGS)
    assert again.next_seq(again.stream("one")) == 0


@pytest.mark.parametrize("leave", [300, 1000, 4000, 15000])
def test_what_hubs_have_makes_room_although_others_took_the_disk(disk: FakeFileSystem, leave: int) -> None:
    """Others take what the full file gives back when it is sealed; then the hub comes back."""
    disk.capacity = None
    log = open_log(disk, LogSettings(segment_bytes=64 << 10, budget_bytes=1 << 20, tail_bytes=0))
    stream = log.stream("one")
    for seq in range(8):
        put(log, stream, random.Random(seq).randbytes(50_000))
    outcomes: list[BaseException | None] = []
    log.append(stream, 5, [b"k"], [random.Random(20).randbytes(20_000)])
    log.on_durable(outcomes.append)
    cut: list[str] = []

    def steal(call: str, path: str) -> None:
        if call == "truncate":
            cut.append(path)
        elif call == "sync" and cut and disk.capacity is None:
            take_space(disk, leave)

    disk.fail = steal
    commit_all(log)
    assert log.failed is None
    assert log.committer.waits_for_space
    log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    commit_all(log)
    log.committer.housekeep()
    commit_all(log)
    assert outcomes == [None]


# --- The disk budget: released segments go first, nothing else ever goes, and devices are refused before it breaks


BUDGET_SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=8 * 4096, tail_bytes=0)


@pytest.fixture
def budget_disk() -> FakeFileSystem:
    return FakeFileSystem()


def fill(log: SegmentLog, stream: int, records: int = 10_000) -> int:
    """Append one by one until refused. Returns how many were taken."""
    for index in range(records):
        try:
            log.append(stream, index, [b"k"], [random.Random(index).randbytes(100)])
        except LogFull:
            return index
        commit_all(log)
        assert log.stats().bytes_on_disk <= log.stats().budget_bytes
    return records


def test_a_full_log_refuses_and_loses_nothing(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    assert 50 < taken < 300
    with pytest.raises(LogFull, match="Restore the link to the hub, or raise the disk budget"):
        log.append(stream, 5, [b"k"], [bytes(3000)])
    assert log.next_seq(stream) == taken
    assert len(read_all(log, stream)) == taken
    assert not log.gaps(stream)


def test_released_segments_make_room_oldest_first(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    before = segment_paths(budget_disk)
    log.release(stream, RangeSet([(0, taken)]))
    # Released is not deleted: the space is not needed yet.
    assert segment_paths(budget_disk) == before
    log.append(stream, 5, [b"k"], [bytes(3000)])
    commit_all(log)
    more = fill(log, stream, records=30)
    assert more == 30
    assert before[0] not in segment_paths(budget_disk)
    assert log.stats().bytes_on_disk <= BUDGET_SETTINGS.budget_bytes
    held = log.ranges(stream)
    assert len(held) == 1
    assert held.end == taken + 31
    assert set(read_all(log, stream)) == set(range(next(iter(held))[0], taken + 31))


def test_one_unreleased_record_pins_nothing(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    one, two = log.stream("one"), log.stream("two")
    log.append(two, 5, [b"k"], [b"not yet at the hub"])
    total = 0
    for _ in range(5):
        total += fill(log, one, records=300)
        log.release(one, RangeSet([(0, total)]))
    assert total > 300
    assert read_all(log, two) == {0: b"not yet at the hub"}
    log.close()
    log = open_log(budget_disk, BUDGET_SETTINGS)
    assert not log.recovery.gaps
    assert read_all(log, two) == {0: b"not yet at the hub"}
    log.release(one, RangeSet([(0, total)]))
    log.release(two, RangeSet([(0, 1)]))
    assert fill(log, one, records=80) == 80
    assert not log.ranges(two)


def test_numbers_go_on_after_everything_older_was_deleted(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    quiet, busy = log.stream("quiet"), log.stream("busy")
    log.append(quiet, 5, [b"k"] * 3, [b"x"] * 3)
    log.release(quiet, RangeSet([(0, 3)]))
    total = 0
    for _ in range(4):
        total += fill(log, busy)
        log.release(busy, RangeSet([(0, total)]))
    total += fill(log, busy, records=5)
    assert not log.ranges(quiet)
    for cut in (budget_disk.power_cut(random.Random(3)), budget_disk):
        cut.kill_process()
        again = open_log(cut, BUDGET_SETTINGS)
        assert again.next_seq(quiet) == 3
        assert again.next_seq(busy) == total
        assert not again.recovery.gaps
        assert again.streams() == {"quiet": quiet, "busy": busy}


def test_the_space_of_other_files_counts(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    budget_disk.capacity = budget_disk.used_bytes() + 3 * 4096
    taken = fill(log, log.stream("one"))
    assert 10 < taken < 60
    assert "Make space on the disk" in (log.shortage() or "")
    budget_disk.capacity = None
    assert fill(log, log.stream("one"), records=20) == 20


def test_space_that_others_take_in_the_very_moment_is_waited_for(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    stream = log.stream("one")
    assert fill(log, stream, records=10) == 10
    # The disk says that there is room, and when the room is asked for there is little.
    taken = 10
    says_free = budget_disk.free_bytes
    budget_disk.free_bytes = lambda path: 1 << 30  # type: ignore[method-assign]
    for _ in range(4):
        budget_disk.capacity = budget_disk.used_bytes() + 1500
        log.append(stream, 5, [b"k"], [random.Random(taken).randbytes(900)])
        commit_all(log)
        taken += 1
    budget_disk.free_bytes = says_free  # type: ignore[method-assign]
    assert log.failed is None
    assert set(read_all(log, stream)) == set(range(taken))
    with pytest.raises(LogFull, match="Make space on the disk"):
        log.append(stream, 5, [b"k"], [bytes(900)])
    budget_disk.capacity = None
    assert fill(log, stream, records=20) == 20


def test_a_file_kept_aside_goes_when_its_segment_went_and_space_is_needed(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    first = segment_paths(budget_disk)[0]
    batch = next(item for item in inspect_log(DIRECTORY, budget_disk) if item.kind is EntryKind.BATCH)
    budget_disk.flip(first, batch.offset + 50)
    assert len(read_all(log, stream)) == taken - 1
    assert f"{first}.damaged" in [f"{DIRECTORY}/{name}" for name in budget_disk.list_names(DIRECTORY)]
    log.release(stream, RangeSet([(0, taken)]))
    assert fill(log, stream, records=60) == 60
    assert not [name for name in budget_disk.list_names(DIRECTORY) if name.endswith(".damaged")]
    assert log.stats().bytes_on_disk <= BUDGET_SETTINGS.budget_bytes


def test_a_record_longer_than_a_segment_has_its_own(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=0))
    stream = log.stream("one")
    payloads = [b"before", random.Random(1).randbytes(50_000), b"after"]
    for payload in payloads:
        log.append(stream, 5, [b"k"], [payload])
        commit_all(log)
    assert read_all(log, stream) == dict(enumerate(payloads))
    log.close()
    assert read_all(open_log(budget_disk), stream) == dict(enumerate(payloads))


def test_settings_that_cannot_work_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="raise the budget or make segments smaller"):
        LogSettings(segment_bytes=1 << 20, budget_bytes=1 << 20)
    with pytest.raises(ValueError, match="segment_bytes is 10; choose"):
        LogSettings(segment_bytes=10)
    with pytest.raises(ValueError, match="compression_level is 40; choose 1 to 19"):
        LogSettings(compression_level=40)
    with pytest.raises(ValueError, match="must not be negative"):
        LogSettings(tail_bytes=-1)


def test_a_restart_of_a_full_log_stays_within_the_budget(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    for _ in range(5):
        log.close()
        log = open_log(budget_disk, BUDGET_SETTINGS)
        assert log.stats().bytes_on_disk <= BUDGET_SETTINGS.budget_bytes
        taken += fill(log, stream)
    with pytest.raises(LogFull):
        log.append(stream, 5, [b"k"], [bytes(3000)])
    assert set(read_all(log, stream)) == set(range(taken))
    log.release(stream, RangeSet([(0, taken)]))
    assert fill(log, stream, records=40) == 40


def test_nothing_unreleased_is_deleted_even_when_the_disk_fills_up_meanwhile(budget_disk: FakeFileSystem) -> None:
    log = open_log(budget_disk, BUDGET_SETTINGS)
    stream = log.stream("one")
    assert fill(log, stream, records=60) == 60
    log.append(stream, 5, [b"k"], [random.Random(0).randbytes(3500)])
    budget_disk.free = 0
    commit_all(log)
    budget_disk.free = 1 << 30
    commit_all(log)
    assert set(read_all(log, stream)) == set(range(61))


@pytest.mark.parametrize(("most", "runs"), [(60, 300), (400, 40)])
def test_keys_that_are_all_different_and_flags_are_counted(budget_disk: FakeFileSystem, most: int, runs: int) -> None:
    """Many records as small as can be: what stands beside key and payload is most of them."""
    stored = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0, compression_level=None)
    chance = random.Random(most)
    log = open_log(budget_disk, stored)
    over = over_budget(budget_disk, stored)
    stream = log.stream("one")
    refused = 0
    for _ in range(40):
        for _ in range(chance.randint(1, runs)):
            count = chance.randint(1, most)
            keys = [chance.randbytes(3) for _ in range(count)]
            try:
                log.append(stream, 5, keys, [b""] * count, None, dict.fromkeys(range(count), 1))
            except LogFull:
                refused += 1
                break
        commit_all(log)
        log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    assert log.failed is None
    assert refused > 10
    assert log.next_seq(stream) > 500
    assert not over


@pytest.mark.parametrize("together", [False, True])
def test_every_batch_is_counted_into_which_a_long_run_is_split(
    budget_disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    for module in (pending, settings):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", 600)
    stored = LogSettings(segment_bytes=4096, budget_bytes=20 * 4096, tail_bytes=0, compression_level=None)
    chance = random.Random(1)
    log = open_log(budget_disk, stored)
    over = over_budget(budget_disk, stored)
    stream = log.stream("one")
    refused = 0
    for _ in range(60):
        count = chance.randint(50, 200)
        payloads = [chance.randbytes(chance.randint(50, 150)) for _ in range(count)]
        size = settings.run_bytes([b"k"] * count, payloads, None) + settings.BATCH_OVERHEAD_BYTES
        try:
            with log.together(size) if together else contextlib.nullcontext():
                log.append(stream, 5, [b"k"] * count, payloads)
        except LogFull:
            refused += 1
            if refused % 3 == 0:
                log.release(stream, RangeSet([(0, log.durable_end(stream))]))
        commit_all(log)
    assert refused > 5
    assert log.next_seq(stream) > 300
    assert not over
    assert log.failed is None


@pytest.mark.parametrize("segments", [4, 7])
def test_an_operator_who_gives_up_record_by_record_is_refused_before_the_budget_breaks(
    budget_disk: FakeFileSystem, segments: int
) -> None:
    stored = LogSettings(segment_bytes=4096, budget_bytes=segments * 4096, tail_bytes=0, compression_level=None)
    log = open_log(budget_disk, stored)
    over = over_budget(budget_disk, stored)
    stream = log.stream("one")
    taken = add(log, stream, 1000)
    dropped = []
    with pytest.raises(LogFull, match="Drop a longer range at once"):  # noqa: PT012 - which of them is open
        for first in range(0, taken, 2):
            log.drop_backlog(stream, first, first + 1)
            dropped.append(first)
            commit_all(log)
    assert dropped
    assert set(read_all(log, stream)) == set(range(taken)) - set(dropped)
    # One long range goes all the same, and makes the room that short ones did not.
    first = dropped[-1] + 1
    assert list(log.drop_backlog(stream, first)) == [(first, taken)]
    commit_all(log)
    assert lost(log, stream) == {"OPERATOR": len(dropped) + taken - first}
    log.release(stream, RangeSet([(first, taken)]))
    assert add(log, stream, 20) == 20
    assert not over
    assert log.failed is None


# --- The log on real disks: full ones, and files that vanish under it. Tests of full disks mount a small one, as root


DISK_BYTES = 2 << 20
DISK_SETTINGS = LogSettings(segment_bytes=1 << 17, budget_bytes=64 << 20, tail_bytes=0)
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


def open_in(folder: Path, settings: LogSettings = DISK_SETTINGS) -> SegmentLog:
    return open_log(OSFileSystem(), settings, directory=str(folder / "log"))


def disk_fill(log: SegmentLog, stream: int) -> int:
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
    end = disk_fill(log, stream)
    assert end > 100
    assert "Make space on the disk, or restore the link" in (log.shortage() or "")
    assert OSFileSystem().free_bytes(str(small_disk)) >= DISK_SETTINGS.segment_bytes // 2, "links need a little too"
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
    end = disk_fill(log, stream)
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
    end = disk_fill(again, stream)
    assert again.shortage()
    other.unlink()
    assert again.shortage() is None
    assert put(again, stream, b"later") == end


@pytest.mark.parametrize("commits", [300, pytest.param(1200, marks=pytest.mark.slow)])
def test_readers_miss_nothing_while_files_are_cleaned_and_deleted(tmp_path: Path, commits: int) -> None:
    # Of many commits, the slow stream alone is more than the small budget.
    segment = 1 << (14 if commits < 1000 else 16)
    settings = LogSettings(segment_bytes=segment, budget_bytes=8 * segment, tail_bytes=0)
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
