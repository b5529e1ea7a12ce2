"""Blocks of the newest segment that the disk cannot read: what may have stood there is never taken for a torn tail."""

from __future__ import annotations

import contextlib
import random

import pytest
from crc32c import crc32c

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all, open_log, put, read_all, segment_paths
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import EntryKind, GapReason
from weft.storage.segment_log import LogFull, LogSettings, SegmentLog
from weft.storage.segment_log.recovery import FILE, Identity, read_identity
from weft.storage.segment_log.scan import inspect_log

SETTINGS = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20, tail_bytes=0)
PAYLOADS = [random.Random(index).randbytes(900) for index in range(20)]


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def twenty_records(disk: FakeFileSystem) -> tuple[int, str]:
    """Twenty acknowledged records, then SIGKILL. The stream, and the file that holds them."""
    log = open_log(disk, SETTINGS)
    log.stream("quiet")
    stream = log.stream("one")
    for payload in PAYLOADS:
        put(log, stream, payload)
    disk.kill_process()
    (path,) = segment_paths(disk)
    return stream, path


def assert_none_lost_in_silence(log: SegmentLog, stream: int, acked: int) -> RangeSet:
    """What is held reads as it was given in, the rest is under notices. Returns what is held."""
    found = read_all(log, stream)
    assert found == {seq: PAYLOADS[seq] for seq in found}
    reported = RangeSet(log.ranges(stream))
    for gap in log.gaps(stream):
        assert gap.reason == GapReason.CORRUPTION
        reported.add(gap.first, gap.end)
    assert list(reported) == [(0, log.next_seq(stream))]
    assert log.next_seq(stream) >= acked
    return log.ranges(stream)


@pytest.mark.parametrize("first", [2048, 4096, 8192, 12288])
def test_acknowledged_records_in_an_unreadable_tail_are_told_and_their_numbers_never_given_out_again(
    disk: FakeFileSystem, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream, path = twenty_records(disk)
    content = bytes(disk.content(path))
    disk.lose_blocks(path, first, 1 << 16)
    log = open_log(disk, SETTINGS)
    report = log.recovery
    assert not report.created
    assert report.torn_bytes == 0
    assert report.unreadable_bytes > 0
    assert report.damaged == (path,)
    assert "up to how many" in caplog.text
    assert "torn" not in caplog.text
    assert log.stream("quiet")
    stream = log.stream("one")
    assert bytes(disk.content(path)) == content, "evidence is not written over"
    assert f"{path}.damaged" in [f"{DIRECTORY}/{name}" for name in disk.list_names(DIRECTORY)]
    after = put(log, stream, b"after")
    assert after >= 20
    assert len(segment_paths(disk)) == 2
    for _ in range(3):
        disk = disk.power_cut(random.Random(first))
        log = open_log(disk, SETTINGS)
        assert not log.recovery.gaps
        found = read_all(log, stream)
        assert found.pop(after) == b"after"
        assert found == {seq: PAYLOADS[seq] for seq in range(len(found))}
        assert len(found) >= (first - 4096) // 1000
        assert [(gap.first, gap.end, gap.reason) for gap in log.gaps(stream)] == [
            (len(found), after, GapReason.CORRUPTION)
        ]
        assert log.next_seq(stream) == after + 1


def test_a_power_cut_while_it_recovers_changes_nothing(disk: FakeFileSystem) -> None:
    stream, path = twenty_records(disk)
    disk.lose_blocks(path, 8192, 12288)
    cuts: list[FakeFileSystem] = []

    def cut(call: str, at: str) -> None:
        cuts.append(disk.power_cut(random.Random(len(cuts))))

    disk.fail = cut
    open_log(disk, SETTINGS)
    assert len(cuts) > 20
    for after in cuts:
        log = open_log(after, SETTINGS)
        held = assert_none_lost_in_silence(log, stream, 20)
        assert held.covers(0, 6)
        assert put(log, stream, b"next") >= 20


def test_what_follows_unreadable_blocks_is_kept_and_says_what_is_lost_exactly(disk: FakeFileSystem) -> None:
    stream, path = twenty_records(disk)
    disk.lose_blocks(path, 4096, 8192)
    log = open_log(disk, SETTINGS)
    assert log.next_seq(stream) == 20
    held = assert_none_lost_in_silence(log, stream, 20)
    assert held.count() > 12
    assert held.end == 20
    # Which streams the lost commits wrote is not known.
    assert log.next_seq(log.stream("quiet")) > 0


def test_a_notice_behind_unreadable_blocks_does_not_say_where_a_stream_stood(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    busy, quiet = log.stream("busy"), log.stream("quiet")
    put(log, quiet, b"first")
    for payload in PAYLOADS[:5]:
        put(log, busy, payload)
    put(log, quiet, b"in the block that is lost")
    for payload in PAYLOADS[5:]:
        put(log, busy, payload)
    log.drop_backlog(quiet, 0, 1)
    log.committer.run_once()
    disk.kill_process()
    (path,) = segment_paths(disk)
    disk.lose_blocks(path, 4096, 8192)
    log = open_log(disk, SETTINGS)
    assert log.next_seq(busy) == 20
    assert put(log, quiet, b"next") >= 2
    assert {gap.reason for gap in log.gaps(quiet)} == {GapReason.OPERATOR, GapReason.CORRUPTION}


def test_one_entry_that_cannot_be_read_costs_only_its_records(disk: FakeFileSystem) -> None:
    stream, path = twenty_records(disk)
    log = open_log(disk, SETTINGS)
    put(log, stream, random.Random(1).randbytes(10_000))
    put(log, stream, b"after")
    (long,) = [item for item in inspect_log(DIRECTORY, disk) if len(item.data) > 10_000]
    start = -(-long.offset // 4096) * 4096
    disk.kill_process()
    disk.lose_blocks(path, start, start + 4096)
    log = open_log(disk, SETTINGS)
    assert [(gap.first, gap.end) for gap in log.gaps(stream)] == [(20, 21)]
    assert set(read_all(log, stream)) == set(range(22)) - {20}
    assert put(log, log.stream("quiet"), b"x") == 0


def test_blocks_behind_the_entries_hide_nothing(disk: FakeFileSystem) -> None:
    stream, path = twenty_records(disk)
    disk.lose_blocks(path, 40_960, 1 << 16)
    log = open_log(disk, SETTINGS)
    assert not log.recovery.damaged
    assert not log.recovery.gaps
    assert put(log, stream, b"next") == 20
    assert segment_paths(disk) == [path]


def test_the_file_goes_once_hubs_have_what_it_holds(disk: FakeFileSystem) -> None:
    stream, path = twenty_records(disk)
    disk.lose_blocks(path, 8192, 12288)
    log = open_log(disk, LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 18, tail_bytes=0))
    for _ in range(400):
        put(log, stream, random.Random(log.next_seq(stream)).randbytes(900))
        log.release(stream, RangeSet([(0, log.durable_end(stream))]))
        assert log.stats().bytes_on_disk <= 1 << 18
    assert path not in segment_paths(disk)
    assert f"{path}.damaged" not in disk.paths()


def test_a_full_log_stays_within_its_budget(disk: FakeFileSystem) -> None:
    full = LogSettings(segment_bytes=1 << 14, budget_bytes=1 << 16, tail_bytes=0)
    log = open_log(disk, full)
    stream = log.stream("one")
    with contextlib.suppress(LogFull):
        while True:
            put(log, stream, random.Random(log.next_seq(stream)).randbytes(900))
    end = log.next_seq(stream)
    assert end > 30
    disk.kill_process()
    newest = segment_paths(disk)[-1]
    disk.lose_blocks(newest, 4096, 1 << 14)
    log = open_log(disk, full)
    put(log, log.stream("quiet"))
    assert disk.used_bytes() <= 1 << 16
    assert log.next_seq(stream) > end
    log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    assert put(log, stream, b"continues") == log.gaps(stream)[-1].end
    assert disk.used_bytes() <= 1 << 16


@pytest.mark.parametrize(("first", "end"), [(0, 4096), (4096, 8192), (8192, 1 << 16)])
def test_who_looks_into_the_file_is_told(disk: FakeFileSystem, first: int, end: int) -> None:
    _, path = twenty_records(disk)
    disk.lose_blocks(path, first, end)
    found = list(inspect_log(DIRECTORY, disk))
    assert [item.problem for item in found if item.is_unreadable] == ["the disk cannot read what is here"]
    assert any(item.kind is EntryKind.BATCH for item in found)


# -- a stream whose very name stood there


def hidden_name(disk: FakeFileSystem) -> int:
    """A log whose newest blocks hid the stream "late", and its three acknowledged records. Returns where those end."""
    log = open_log(disk, SETTINGS)
    put(log, log.stream("early"), b"first")
    end = log._state.segments[-1].end
    late = log.stream("late")
    put(log, late, *PAYLOADS[:3])
    disk.kill_process()
    disk.lose_blocks(segment_paths(disk)[0], end, 1 << 16)
    return log.durable_end(late)


@pytest.mark.parametrize("crashes", [0, 1, 3])
def test_a_stream_whose_name_was_lost_goes_on_behind_its_records_also_after_a_crash(
    disk: FakeFileSystem, crashes: int
) -> None:
    end = hidden_name(disk)
    log = open_log(disk, SETTINGS)
    for seed in range(crashes):
        put(log, log.stream("early"), b"again")
        disk = disk.power_cut(random.Random(seed))
        log = open_log(disk, SETTINGS)
    assert "late" not in log.streams()
    late = log.stream("late")
    assert put(log, late, b"next") >= end
    assert [(gap.first, gap.end) for gap in log.gaps(late)] == [(0, log.next_seq(late) - 1)]


def test_once_all_streams_are_declared_and_the_log_was_closed_new_ones_begin_at_0(disk: FakeFileSystem) -> None:
    hidden_name(disk)
    log = open_log(disk, SETTINGS)
    log.close()
    log = open_log(disk, SETTINGS)
    commit_all(log)
    assert log.next_seq(log.stream("new")) > 0, "nobody has said that all are declared"
    log.settled()
    disk.kill_process()
    log = open_log(disk, SETTINGS)
    assert log.next_seq(log.stream("newer")) > 0, "the log was not closed"
    log.settled()
    log.close()
    log = open_log(disk, SETTINGS)
    assert put(log, log.stream("newest"), b"first") == 0


def test_an_id_file_of_an_earlier_release_is_read(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS, log_id=0xABCD)
    put(log, log.stream("one"), b"first")
    log.close()
    digits = b"%016x" % 0xABCD
    content = b"%s %08x\n" % (digits, crc32c(digits))
    path = f"{DIRECTORY}/{FILE}"
    disk.remove(path)
    disk.create(path).write_at(0, content)
    assert len(content) == 26
    assert read_identity(disk, DIRECTORY) == Identity(0xABCD, 0)
    disk.flip(segment_paths(disk)[0], 10)  # its header no longer says whose it is
    log = open_log(disk, SETTINGS, log_id=5)
    assert log.log_id == 0xABCD
    assert read_all(log, log.stream("one")) == {0: b"first"}
    assert put(log, log.stream("two"), b"x") == 0
