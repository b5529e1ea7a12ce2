"""What was appended together: after a power cut all of it counts, or none, whatever byte the cut tears at."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, append, commit_all, open_log, put, read_all, segment_paths
from weft.protocols.segment import ENTRY_HEADER_BYTES, EntryKind, GapReason, Whole
from weft.storage.segment_log import LogFull, LogSettings, SegmentLog, scan
from weft.storage.segment_log.scan import Inspected, inspect_log

ROOMY = LogSettings(segment_bytes=1 << 13, budget_bytes=1 << 20, tail_bytes=0)
NAMES = ("input", "state", "output")


def inspected(disk: FakeFileSystem) -> list[Inspected]:
    return list(inspect_log(DIRECTORY, disk))


def lives(disk: FakeFileSystem, *, gap: bool = False) -> tuple[int, int, dict[str, int]]:
    """A log whose last commit belongs together. Returns where that begins and ends, and what each stream had before."""
    log = open_log(disk, ROOMY)
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
        now = ends(open_log(disk, ROOMY))
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
    now = ends(open_log(disk, ROOMY))
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
    log = open_log(disk, ROOMY)
    assert (log.recovery.torn_offset, log.recovery.torn_bytes) == (fence.offset, end - fence.offset)
    assert not log.recovery.gaps
    assert put(log, log.stream("state"), b"again") == 1
    disk.kill_process()
    assert read_all(open_log(disk, ROOMY), 2) == {0: b"before", 1: b"again"}


def test_damage_in_a_group_that_was_acknowledged_takes_no_more_than_what_it_hit() -> None:
    disk = FakeFileSystem()
    _, end, _ = lives(disk)
    log = open_log(disk, ROOMY)
    put(log, log.stream("input"), b"later")
    disk.kill_process()
    disk.content(segment_paths(disk)[0])[end - 1] ^= 1
    log = open_log(disk, ROOMY)
    commit_all(log)
    assert log.recovery.torn_bytes == 0
    assert [(gap.stream, gap.first, gap.end, gap.reason) for gap in log.recovery.gaps] == [
        (3, 1, 3, GapReason.CORRUPTION)
    ]
    assert ends(log) == {"input": 4, "state": 3, "output": 3}


def test_one_batch_needs_no_fence() -> None:
    disk = FakeFileSystem()
    log = open_log(disk, ROOMY)
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
