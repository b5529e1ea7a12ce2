"""The disk budget: released segments go first, nothing else ever goes, and devices are refused before it breaks."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import (
    DIRECTORY,
    add,
    commit_all,
    lost,
    open_log,
    over_budget,
    read_all,
    segment_paths,
)
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import EntryKind
from weft.storage.segment_log import LogFull, LogSettings, SegmentLog, pending, settings
from weft.storage.segment_log.scan import inspect_log

SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=8 * 4096, tail_bytes=0)


@pytest.fixture
def disk() -> FakeFileSystem:
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


def test_a_full_log_refuses_and_loses_nothing(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    assert 50 < taken < 300
    with pytest.raises(LogFull, match="Restore the link to the hub, or raise the disk budget"):
        log.append(stream, 5, [b"k"], [bytes(3000)])
    assert log.next_seq(stream) == taken
    assert len(read_all(log, stream)) == taken
    assert not log.gaps(stream)


def test_released_segments_make_room_oldest_first(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    before = segment_paths(disk)
    log.release(stream, RangeSet([(0, taken)]))
    # Released is not deleted: the space is not needed yet.
    assert segment_paths(disk) == before
    log.append(stream, 5, [b"k"], [bytes(3000)])
    commit_all(log)
    more = fill(log, stream, records=30)
    assert more == 30
    assert before[0] not in segment_paths(disk)
    assert log.stats().bytes_on_disk <= SETTINGS.budget_bytes
    held = log.ranges(stream)
    assert len(held) == 1
    assert held.end == taken + 31
    assert set(read_all(log, stream)) == set(range(next(iter(held))[0], taken + 31))


def test_one_unreleased_record_pins_nothing(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    one, two = log.stream("one"), log.stream("two")
    log.append(two, 5, [b"k"], [b"not yet at the hub"])
    total = 0
    for _ in range(5):
        total += fill(log, one, records=300)
        log.release(one, RangeSet([(0, total)]))
    assert total > 300
    assert read_all(log, two) == {0: b"not yet at the hub"}
    log.close()
    log = open_log(disk, SETTINGS)
    assert not log.recovery.gaps
    assert read_all(log, two) == {0: b"not yet at the hub"}
    log.release(one, RangeSet([(0, total)]))
    log.release(two, RangeSet([(0, 1)]))
    assert fill(log, one, records=80) == 80
    assert not log.ranges(two)


def test_numbers_go_on_after_everything_older_was_deleted(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    quiet, busy = log.stream("quiet"), log.stream("busy")
    log.append(quiet, 5, [b"k"] * 3, [b"x"] * 3)
    log.release(quiet, RangeSet([(0, 3)]))
    total = 0
    for _ in range(4):
        total += fill(log, busy)
        log.release(busy, RangeSet([(0, total)]))
    total += fill(log, busy, records=5)
    assert not log.ranges(quiet)
    for cut in (disk.power_cut(random.Random(3)), disk):
        cut.kill_process()
        again = open_log(cut, SETTINGS)
        assert again.next_seq(quiet) == 3
        assert again.next_seq(busy) == total
        assert not again.recovery.gaps
        assert again.streams() == {"quiet": quiet, "busy": busy}


def test_the_space_of_other_files_counts(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    disk.capacity = disk.used_bytes() + 3 * 4096
    taken = fill(log, log.stream("one"))
    assert 10 < taken < 60
    assert "Make space on the disk" in (log.shortage() or "")
    disk.capacity = None
    assert fill(log, log.stream("one"), records=20) == 20


def test_space_that_others_take_in_the_very_moment_is_waited_for(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = log.stream("one")
    assert fill(log, stream, records=10) == 10
    # The disk says that there is room, and when the room is asked for there is little.
    taken = 10
    says_free = disk.free_bytes
    disk.free_bytes = lambda path: 1 << 30  # type: ignore[method-assign]
    for _ in range(4):
        disk.capacity = disk.used_bytes() + 1500
        log.append(stream, 5, [b"k"], [random.Random(taken).randbytes(900)])
        commit_all(log)
        taken += 1
    disk.free_bytes = says_free  # type: ignore[method-assign]
    assert log.failed is None
    assert set(read_all(log, stream)) == set(range(taken))
    with pytest.raises(LogFull, match="Make space on the disk"):
        log.append(stream, 5, [b"k"], [bytes(900)])
    disk.capacity = None
    assert fill(log, stream, records=20) == 20


def test_a_file_kept_aside_goes_when_its_segment_went_and_space_is_needed(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    first = segment_paths(disk)[0]
    batch = next(item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.BATCH)
    disk.flip(first, batch.offset + 50)
    assert len(read_all(log, stream)) == taken - 1
    assert f"{first}.damaged" in [f"{DIRECTORY}/{name}" for name in disk.list_names(DIRECTORY)]
    log.release(stream, RangeSet([(0, taken)]))
    assert fill(log, stream, records=60) == 60
    assert not [name for name in disk.list_names(DIRECTORY) if name.endswith(".damaged")]
    assert log.stats().bytes_on_disk <= SETTINGS.budget_bytes


def test_a_record_longer_than_a_segment_has_its_own(disk: FakeFileSystem) -> None:
    log = open_log(disk, LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=0))
    stream = log.stream("one")
    payloads = [b"before", random.Random(1).randbytes(50_000), b"after"]
    for payload in payloads:
        log.append(stream, 5, [b"k"], [payload])
        commit_all(log)
    assert read_all(log, stream) == dict(enumerate(payloads))
    log.close()
    assert read_all(open_log(disk), stream) == dict(enumerate(payloads))


def test_settings_that_cannot_work_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="raise the budget or make segments smaller"):
        LogSettings(segment_bytes=1 << 20, budget_bytes=1 << 20)
    with pytest.raises(ValueError, match="segment_bytes is 10; choose"):
        LogSettings(segment_bytes=10)
    with pytest.raises(ValueError, match="compression_level is 40; choose 1 to 19"):
        LogSettings(compression_level=40)
    with pytest.raises(ValueError, match="must not be negative"):
        LogSettings(tail_bytes=-1)


def test_a_restart_of_a_full_log_stays_within_the_budget(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = log.stream("one")
    taken = fill(log, stream)
    for _ in range(5):
        log.close()
        log = open_log(disk, SETTINGS)
        assert log.stats().bytes_on_disk <= SETTINGS.budget_bytes
        taken += fill(log, stream)
    with pytest.raises(LogFull):
        log.append(stream, 5, [b"k"], [bytes(3000)])
    assert set(read_all(log, stream)) == set(range(taken))
    log.release(stream, RangeSet([(0, taken)]))
    assert fill(log, stream, records=40) == 40


def test_nothing_unreleased_is_deleted_even_when_the_disk_fills_up_meanwhile(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = log.stream("one")
    assert fill(log, stream, records=60) == 60
    log.append(stream, 5, [b"k"], [random.Random(0).randbytes(3500)])
    disk.free = 0
    commit_all(log)
    disk.free = 1 << 30
    commit_all(log)
    assert set(read_all(log, stream)) == set(range(61))


@pytest.mark.parametrize(("most", "runs"), [(60, 300), (400, 40)])
def test_keys_that_are_all_different_and_flags_are_counted(disk: FakeFileSystem, most: int, runs: int) -> None:
    """Many records as small as can be: what stands beside key and payload is most of them."""
    stored = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0, compression_level=None)
    chance = random.Random(most)
    log = open_log(disk, stored)
    over = over_budget(disk, stored)
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
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    for module in (pending, settings):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", 600)
    stored = LogSettings(segment_bytes=4096, budget_bytes=20 * 4096, tail_bytes=0, compression_level=None)
    chance = random.Random(1)
    log = open_log(disk, stored)
    over = over_budget(disk, stored)
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
    disk: FakeFileSystem, segments: int
) -> None:
    stored = LogSettings(segment_bytes=4096, budget_bytes=segments * 4096, tail_bytes=0, compression_level=None)
    log = open_log(disk, stored)
    over = over_budget(disk, stored)
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
