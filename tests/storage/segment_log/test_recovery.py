"""What opening a log does with what a crash or a bad disk left, and what reads do with rot."""

from __future__ import annotations

import contextlib
import errno
import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.fakes import FakeFileSystem, eio, injected
from tests.storage.segment_log.helpers import DIRECTORY, add, commit_all, open_log, put, read_all, segment_paths
from weft.protocols import segment
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    HEADER_BYTES,
    EntryKind,
    GapNotice,
    GapReason,
    SegmentHeader,
    encode_body,
    encode_entry_header,
    encode_header,
    file_name,
)
from weft.storage.segment_log import LogFailed, LogFull, LogSettings, LogVersionError, SegmentLog, segment_bytes
from weft.storage.segment_log.recovery import FILE, Identity, read_identity
from weft.storage.segment_log.scan import Inspected, inspect_log

NO_TAIL = LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=0)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def filled(disk: FakeFileSystem, commits: int = 60) -> tuple[SegmentLog, dict[int, dict[int, bytes]]]:
    """A log of two streams over several segments, and what it holds."""
    log = open_log(disk, NO_TAIL)
    held: dict[int, dict[int, bytes]] = {log.stream("one"): {}, log.stream("two"): {}}
    for index in range(commits):
        for stream, records in held.items():
            if (index + stream) % 3 == 0:
                continue
            payloads = [random.Random(index * 7 + stream + part).randbytes(30) for part in range(1 + index % 4)]
            base_seq = log.append(stream, 5, [b"k"] * len(payloads), payloads)
            records.update(enumerate(payloads, base_seq))
        commit_all(log)
    return log, held


def entries(disk: FakeFileSystem, path: str) -> list[Inspected]:
    return [item for item in inspect_log(DIRECTORY, disk) if path.endswith(item.segment)]


def assert_only_noticed_losses(log: SegmentLog, held: dict[int, dict[int, bytes]]) -> int:
    """Every record is there unaltered, or under a gap notice. Returns how many are lost."""
    lost = 0
    for stream, records in held.items():
        found = read_all(log, stream)
        commit_all(log)
        gone = {seq for gap in log.gaps(stream) for seq in range(gap.first, gap.end)}
        assert found == {seq: payload for seq, payload in records.items() if seq not in gone}
        assert gone == set(records) - set(found)
        assert log.next_seq(stream) == len(records)
        assert all(gap.reason == GapReason.CORRUPTION for gap in log.gaps(stream))
        lost += len(gone)
    return lost


def test_a_torn_tail_is_cut_and_reported(disk: FakeFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a", b"b")
    path = segment_paths(disk)[0]
    end = log._state.segments[-1].end
    log.append(stream, 5, [b"k"], [b"never synced"])
    commit_all(log)
    torn = log._state.segments[-1].end
    disk.flip(path, torn - 3)
    disk.kill_process()
    log = open_log(disk)
    report = log.recovery
    assert report.torn_file == path
    assert end < (report.torn_offset or 0) < torn
    assert 0 < report.torn_bytes <= torn - end
    assert report.lanes == {"one": 2}
    assert "cut a torn tail" in caplog.text
    assert not any(disk.content(path)[report.torn_offset or 0 :])
    assert put(log, stream, b"c") == 2
    disk.kill_process()
    log = open_log(disk)
    assert log.recovery.torn_bytes == 0
    assert read_all(log, stream) == {0: b"a", 1: b"b", 2: b"c"}


def test_what_lay_beyond_a_cut_never_comes_back(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one, two = log.stream("one"), log.stream("two")
    log.append(one, 5, [b"k"], [b"aaaa"])
    log.append(two, 5, [b"k"], [b"stale"])
    commit_all(log)
    torn = next(item for item in entries(disk, segment_paths(disk)[0]) if item.kind is EntryKind.BATCH)
    disk.flip(segment_paths(disk)[0], torn.offset + 20)
    disk.kill_process()
    log = open_log(disk)
    # The same bytes again up to the entry that was behind the torn one; its checksum is right for its place.
    put(log, one, b"bbbb")
    disk.kill_process()
    log = open_log(disk)
    assert read_all(log, one) == {0: b"bbbb"}
    assert read_all(log, two) == {}


def test_rot_in_acknowledged_bytes_of_the_newest_segment_is_no_torn_tail(disk: FakeFileSystem) -> None:
    log, held = filled(disk, commits=8)
    assert len(segment_paths(disk)) == 1
    batches = [item for item in entries(disk, segment_paths(disk)[0]) if item.kind is EntryKind.BATCH]
    disk.flip(segment_paths(disk)[0], batches[3].offset + 30)
    disk.kill_process()
    log = open_log(disk, NO_TAIL)
    assert log.recovery.torn_bytes == 0
    assert [gap.reason for gap in log.recovery.gaps] == [GapReason.CORRUPTION]
    assert log.recovery.damaged == (segment_paths(disk)[0],)
    assert f"{segment_paths(disk)[0]}.damaged" in [f"{DIRECTORY}/{name}" for name in disk.list_names(DIRECTORY)]
    assert assert_only_noticed_losses(log, held) > 0


def test_numbers_of_a_lost_commit_are_not_given_out_again(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one, two = log.stream("one"), log.stream("two")
    put(log, one, b"acknowledged", b"and sent to the hub")
    put(log, two, b"later")
    batch = next(item for item in entries(disk, segment_paths(disk)[0]) if item.kind is EntryKind.BATCH)
    disk.flip(segment_paths(disk)[0], batch.offset + 40)
    disk.kill_process()
    log = open_log(disk)
    assert [(gap.first, gap.end) for gap in log.gaps(one)] == [(0, 2)]
    assert put(log, one, b"next") == 2
    assert read_all(log, one) == {2: b"next"}


def test_numbers_of_a_commit_that_a_crash_followed_are_not_given_out_again(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    one, two = log.stream("one"), log.stream("two")
    put(log, one, b"acknowledged", b"and sent to the hub")
    disk.kill_process()
    put(open_log(disk), two, b"later")
    batch = next(item for item in entries(disk, segment_paths(disk)[0]) if item.kind is EntryKind.BATCH)
    disk.flip(segment_paths(disk)[0], batch.offset + 40)
    disk.kill_process()
    log = open_log(disk)
    assert [(gap.first, gap.end) for gap in log.gaps(one)] == [(0, 2)]
    assert put(log, one, b"next") == 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), reopen=st.booleans())
def test_a_flipped_bit_anywhere_in_a_sealed_segment_is_noticed_or_harmless(data: st.DataObject, reopen: bool) -> None:
    disk = FakeFileSystem()
    log, held = filled(disk)
    path = data.draw(st.sampled_from(segment_paths(disk)[:-1]))
    offset = data.draw(st.integers(0, len(disk.content(path)) - 1))
    if reopen:
        log.close()
    disk.flip(path, offset, data.draw(st.integers(0, 7)))
    if reopen:
        log = open_log(disk, NO_TAIL)
    lost = assert_only_noticed_losses(log, held)
    assert lost <= 4
    log.close()
    log = open_log(disk, NO_TAIL)
    assert not log.recovery.gaps
    assert assert_only_noticed_losses(log, held) == lost


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_wiped_stretch_of_a_sealed_segment_loses_only_its_own_records(seed: int) -> None:
    disk = FakeFileSystem()
    log, held = filled(disk)
    log.close()
    chance = random.Random(seed)
    path = chance.choice(segment_paths(disk)[:-1])
    content = disk.content(path)
    start = chance.randrange(len(content))
    content[start : start + 700] = bytes(len(content[start : start + 700]))
    log = open_log(disk, NO_TAIL)
    assert assert_only_noticed_losses(log, held) < len(held[1])


@pytest.mark.parametrize("commits", [3, 60])
def test_the_first_records_of_a_log_are_missed_though_nothing_says_where_it_began(
    disk: FakeFileSystem, commits: int
) -> None:
    log, held = filled(disk, commits)
    log.close()
    log = open_log(disk, NO_TAIL)
    disk.kill_process()
    path = segment_paths(disk)[0]
    content = disk.content(path)
    batches = [item for item in entries(disk, path) if item.kind is EntryKind.BATCH]
    content[: batches[1].offset + 40] = bytes(batches[1].offset + 40)
    content[-1] ^= 1
    log = open_log(disk, NO_TAIL)
    assert assert_only_noticed_losses(log, held) >= 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_segment_that_is_gone_becomes_gap_notices(disk: FakeFileSystem, which: int) -> None:
    log, held = filled(disk)
    log.close()
    disk.remove(segment_paths(disk)[which])
    log = open_log(disk, NO_TAIL)
    assert log.recovery.gaps
    assert assert_only_noticed_losses(log, held) > 0


def test_what_was_released_is_not_lost_when_each_list_of_kept_numbers_is_damaged(disk: FakeFileSystem) -> None:
    small = LogSettings(segment_bytes=4096, budget_bytes=8 * 4096, tail_bytes=0)
    log = open_log(disk, small)
    stream = log.stream("one")
    for first in range(0, 1000, 50):
        assert add(log, stream, 50) == 50
        log.release(stream, RangeSet([(0, first + 25)]))
    held = set(read_all(log, stream))
    assert 0 not in held
    disk.kill_process()
    for path in segment_paths(disk):
        for entry in entries(disk, path):
            if entry.kind in {EntryKind.KEPT, EntryKind.FOOTER}:
                disk.flip(path, entry.offset + 13)
    log = open_log(disk, small)
    assert not log.gaps(stream)
    assert set(read_all(log, stream)) == held


def test_sectors_that_cannot_be_read_become_gap_notices(disk: FakeFileSystem) -> None:
    log, held = filled(disk)
    path = segment_paths(disk)[0]
    disk.fail = lambda call, at: eio() if (call, at) == ("read_at", path) else None
    assert assert_only_noticed_losses(log, held) > 0
    assert read_all(log, 1)


def test_damage_is_reported_where_the_disk_has_no_hard_links(
    disk: FakeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    log, held = filled(disk)
    log.close()
    path = segment_paths(disk)[0]
    batch = next(item for item in entries(disk, path) if item.kind is EntryKind.BATCH)
    disk.flip(path, batch.offset + 30)
    disk.flip(path, len(disk.content(path)) - 1)
    disk.fail = lambda call, at: injected(errno.EPERM) if call == "link" else None
    log = open_log(disk, NO_TAIL)
    assert log.recovery.damaged == (path,)
    assert log.recovery.gaps
    assert f"{path} cannot be moved aside" in caplog.text
    assert assert_only_noticed_losses(log, held) > 0


def test_a_damaged_footer_costs_nothing_but_a_scan(disk: FakeFileSystem) -> None:
    log, held = filled(disk)
    log.close()
    for path in segment_paths(disk):
        disk.flip(path, len(disk.content(path)) - 1)
    log = open_log(disk, NO_TAIL)
    assert assert_only_noticed_losses(log, held) == 0


def test_opening_reads_footers_not_segments(disk: FakeFileSystem) -> None:
    log, _ = filled(disk, commits=400)
    log.close()
    disk.calls.clear()
    open_log(disk, NO_TAIL)
    old = segment_paths(disk)[0]
    assert len(segment_paths(disk)) > 10
    assert sum((call, path) == ("read_at", old) for call, path in disk.calls) <= 3


def test_a_later_version_is_left_alone(disk: FakeFileSystem) -> None:
    log, _ = filled(disk)
    log.close()
    content = disk.content(segment_paths(disk)[-1])
    header = bytes(content[:HEADER_BYTES])
    content[3:8] = b"\x03\0\0\0\0"  # version 3, and whatever checksum version 3 may have
    before = disk.list_names(DIRECTORY)
    with pytest.raises(LogVersionError, match="later release of Weft"):
        open_log(disk)
    assert disk.list_names(DIRECTORY) == before
    content[:HEADER_BYTES] = header
    assert open_log(disk).recovery.lanes


def test_an_entry_of_a_later_version_is_left_alone(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    put(log, log.stream("one"), b"a")
    end = log._state.segments[-1].end
    body = b"from the future"
    disk.kill_process()
    entry = encode_entry_header(end, 14, body) + body  # type: ignore[arg-type]
    disk.content(segment_paths(disk)[0])[end : end + len(entry)] = entry
    with pytest.raises(LogVersionError, match="unknown kind 14"):
        open_log(disk)


def test_a_log_whose_only_header_is_damaged_goes_on(disk: FakeFileSystem) -> None:
    log = open_log(disk, log_id=1)
    put(log, log.stream("one"), b"a")
    disk.kill_process()
    disk.flip(segment_paths(disk)[0], 10)
    log = open_log(disk, log_id=2)
    assert log.log_id == 1
    assert not log.recovery.created
    assert log.recovery.damaged == (f"{DIRECTORY}/{file_name(0)}",)
    assert read_all(log, log.stream("one")) == {0: b"a"}
    assert put(log, log.stream("one"), b"b") == 1


def test_a_directory_that_says_nowhere_which_log_it_is_begins_a_new_one_and_keeps_the_old_files(
    disk: FakeFileSystem,
) -> None:
    log = open_log(disk, log_id=1)
    put(log, log.stream("one"), b"a")
    disk.kill_process()
    disk.flip(segment_paths(disk)[0], 10)
    disk.flip(f"{DIRECTORY}/log-id", 3)
    log = open_log(disk, log_id=2)
    assert log.log_id == 2
    assert log.recovery.created
    assert log.recovery.damaged == (f"{DIRECTORY}/{file_name(0)}",)
    assert f"{file_name(0)}.damaged" in disk.list_names(DIRECTORY)
    assert put(log, log.stream("one"), b"b") == 0


def test_a_segment_of_another_log_is_set_aside(disk: FakeFileSystem) -> None:
    log = open_log(disk, log_id=1)
    put(log, log.stream("one"), b"a")
    log.close()
    stranger = disk.create(f"{DIRECTORY}/{file_name(0)}x")
    stranger.write_at(0, encode_header(SegmentHeader(99, 5, 0)))
    disk.rename(f"{DIRECTORY}/{file_name(0)}x", f"{DIRECTORY}/{file_name(5)}")
    log = open_log(disk)
    assert f"{file_name(5)}.damaged" in disk.list_names(DIRECTORY)
    assert read_all(log, log.stream("one")) == {0: b"a"}


def test_a_crash_while_a_log_is_created_is_harmless() -> None:
    for step in range(1, 12):
        for seed in range(4):
            disk = FakeFileSystem()
            remaining = [step]

            def fail(call: str, path: str, remaining: list[int] = remaining) -> OSError | None:
                remaining[0] -= 1
                return eio() if remaining[0] <= 0 else None

            disk.fail = fail
            try:
                open_log(disk, log_id=1)
            except LogFailed:
                disk = disk.power_cut(random.Random(seed))
                disk.make_directory(DIRECTORY)
            disk.kill_process()
            log = open_log(disk, log_id=2)
            assert put(log, log.stream("one"), b"a") == 0


def test_damage_that_is_known_is_not_told_again(disk: FakeFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    log, held = filled(disk)
    log.close()
    batch = next(item for item in entries(disk, segment_paths(disk)[0]) if item.kind is EntryKind.BATCH)
    disk.flip(segment_paths(disk)[0], batch.offset + 40)
    log = open_log(disk, NO_TAIL)
    lost = assert_only_noticed_losses(log, held)
    log.close()
    caplog.clear()
    log = open_log(disk, NO_TAIL)
    assert assert_only_noticed_losses(log, held) == lost
    assert not caplog.records


def test_a_crafted_length_does_not_take_memory_or_time(disk: FakeFileSystem) -> None:
    log, held = filled(disk)
    log.close()
    path = segment_paths(disk)[0]
    struct.pack_into("<I", disk.content(path), HEADER_BYTES + 4, 0xFFFFFFFF)
    log = open_log(disk, NO_TAIL)
    assert_only_noticed_losses(log, held)


def hostile(disk: FakeFileSystem, *behind: bytes) -> tuple[int, int]:
    """A commit of 200 KB of what poses as commit marks, each of half that length, without its first sector. Returns
    where the entries before it end, and how long its payload is.

    Args:
        behind: payloads of commits after it.
    """
    log = open_log(disk, ROOMY)
    stream = log.stream("one")
    put(log, stream, b"acknowledged")
    end = log._state.segments[-1].end
    pose = struct.pack("<II4B", 0x80, 100_000, EntryKind.STREAMS, 0, 0, 0)
    for payload in (pose * (200_000 // len(pose)), *behind):
        put(log, stream, payload)
    disk.kill_process()
    content = disk.content(segment_paths(disk)[0])
    content[end : end + 512] = bytes(512)
    return end, 200_000


def count_checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what is given to the checksum of entries from now on."""
    lengths: list[int] = []

    def counted(data: bytes, start: int = 0) -> int:
        lengths.append(len(data))
        return int(crc32c(data, start))

    monkeypatch.setattr(segment, "crc32c", counted)
    return lengths


ROOMY = LogSettings(segment_bytes=1 << 18, budget_bytes=1 << 20, tail_bytes=0, compression_level=None)


def test_a_payload_that_poses_as_thousands_of_long_entries_takes_no_time_to_look_through(
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, length = hostile(disk)
    monkeypatch.setattr(segment_bytes, "_SEARCHED_BYTES_MIN", 0, raising=False)
    checked = count_checked(monkeypatch)
    log = open_log(disk, ROOMY)
    assert log.recovery.torn_offset == end
    assert log.recovery.torn_bytes > length
    assert sum(checked) < 20 * ROOMY.segment_bytes, "unbounded it is thousands of times the payload"
    assert read_all(log, 1) == {0: b"acknowledged"}


def test_a_commit_behind_such_a_payload_is_found_and_makes_damage_of_it(
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile(disk, b"also acknowledged")
    monkeypatch.setattr(segment_bytes, "_SEARCHED_BYTES_MIN", 0)
    log = open_log(disk, ROOMY)
    assert log.recovery.torn_bytes == 0
    assert [(gap.first, gap.end, gap.reason) for gap in log.gaps(1)] == [(1, 2, GapReason.CORRUPTION)]
    assert read_all(log, 1) == {0: b"acknowledged", 2: b"also acknowledged"}


def fail_once(disk: FakeFileSystem, call: str, path_part: str = "") -> None:
    remaining = [1]

    def fail(name: str, path: str) -> OSError | None:
        if name == call and path_part in path and remaining:
            remaining.clear()
            return eio()
        return None

    disk.fail = fail


def test_a_seal_whose_sync_failed_is_made_again(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a")
    fail_once(disk, "sync")
    with pytest.raises(OSError, match="injected"):
        log.close()
    disk.kill_process()
    log = open_log(disk)
    put(log, stream, b"b")
    for seed in range(8):
        log = open_log(disk.power_cut(random.Random(seed)))
        assert not log.recovery.damaged
        assert read_all(log, stream) == {0: b"a", 1: b"b"}


def test_a_segment_whose_name_is_not_durable_is_not_relied_on(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, random.Random(1).randbytes(3000))
    fail_once(disk, "sync_directory")
    put(log, stream, random.Random(2).randbytes(3000))
    assert log.stats().failed
    assert len(segment_paths(disk)) == 2
    disk.kill_process()
    log = open_log(disk)
    put(log, stream, b"acknowledged")
    for seed in range(8):
        log = open_log(disk.power_cut(random.Random(seed)))
        assert b"acknowledged" in read_all(log, stream).values()


def test_records_declared_lost_are_gone_from_memory_too(disk: FakeFileSystem) -> None:
    log = open_log(disk, LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=1200))
    stream = log.stream("one")
    for index in range(20):
        put(log, stream, b"%d" % index)
    path = segment_paths(disk)[0]
    batches = [item for item in entries(disk, path) if item.kind is EntryKind.BATCH]
    for batch in (batches[0], batches[-1]):
        disk.flip(path, batch.offset + 40)
    assert log.read_tail(stream, 19, 1000)
    assert set(read_all(log, stream)) == set(range(1, 19))
    commit_all(log)
    assert [(gap.first, gap.end) for gap in log.gaps(stream)] == [(0, 1), (19, 20)]
    assert log.read(stream, 19, 1000) == []
    assert put(log, stream, b"20") == 20
    assert set(read_all(log, stream)) == {*range(1, 19), 20}


def test_a_payload_that_poses_as_an_entry_is_never_taken_for_one() -> None:
    def build(payload: bytes) -> FakeFileSystem:
        disk = FakeFileSystem()
        log = open_log(disk)
        put(log, log.stream("one"), payload)
        put(log, log.stream("one"), b"next")
        disk.kill_process()
        return disk

    placeholder = b"P" * 40
    path = segment_paths(build(placeholder))[0]
    at = build(placeholder).content(path).index(placeholder)
    body = encode_body(GapNotice(1, 0, 1 << 40, GapReason.OPERATOR, 0))
    crafted = encode_entry_header(at, EntryKind.GAP, body) + body
    disk = build(crafted.ljust(40, b"P"))
    assert disk.content(path).index(crafted) == at
    batch = next(item for item in entries(disk, path) if item.kind is EntryKind.BATCH)
    disk.flip(path, batch.offset + 30)
    log = open_log(disk)
    assert [(gap.first, gap.end, gap.reason) for gap in log.gaps(1)] == [(0, 1, GapReason.CORRUPTION)]
    assert log.next_seq(1) == 2


# --- Blocks of the newest segment that the disk cannot read: what may have stood there is never taken for a torn tail


SETTINGS = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20, tail_bytes=0)
PAYLOADS = [random.Random(index).randbytes(900) for index in range(20)]


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
