"""Numbers of origins: what a batch says of who made it can be looked up as long as the batch is there."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import (
    DIRECTORY,
    Clock,
    append,
    commit_all,
    open_log,
    put,
    read_all,
    segment_paths,
)
from weft.protocols import segment as segment_header
from weft.protocols.batch import decode_header
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import ORIGINS_MAX, Origin, OriginKind
from weft.protocols.segment import BOOTS_MAX, ENTRY_HEADER_BYTES, ClockNotice, EntryKind, encode_entry_header
from weft.protocols.segment import decode_header as segment_decode_header
from weft.storage.segment_log import LogSettings, LogVersionError, SegmentLog
from weft.storage.segment_log.scan import inspect_log

TIGHT = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0)
SMOOTH = (OriginKind.FUNCTION, "smooth", "2.0.1", b"\xab" * 32)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def put_by(log: SegmentLog, stream: int, origin: int, payload: bytes = b"x") -> None:
    log.append(stream, 5, [b"k"], [payload], origin=origin)
    commit_all(log)


def origins_of(log: SegmentLog, stream: int) -> list[int]:
    found, seq = [], 0
    while batches := log.read(stream, seq, 1 << 20):
        headers = [decode_header(data) for data in batches]
        found += [header.origin for header in headers]
        seq = headers[-1].end_seq
    return found


def test_the_same_content_has_the_same_number_for_ever(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("out")
    numbers = [log.origin(*SMOOTH), log.origin(*SMOOTH[:2], "2.0.2"), log.origin(*SMOOTH)]
    assert numbers == [1, 2, 1]
    put_by(log, stream, 1)
    disk.kill_process()
    log = open_log(disk)
    assert log.origins() == {1: Origin(1, *SMOOTH), 2: Origin(2, 1, "smooth", "2.0.2", b"")}
    assert (log.origin(*SMOOTH), log.origin(OriginKind.SCHEMA, "out", "1")) == (1, 3)
    assert origins_of(log, stream) == [1]


def test_records_of_different_origin_stand_in_different_batches(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream, one, two = log.stream("out"), log.origin(*SMOOTH), log.origin(*SMOOTH[:2], "3")
    for origin in (0, one, one, two, 0):
        log.append(stream, 5, [b"k"], [b"x"], origin=origin)
    commit_all(log)
    assert origins_of(log, stream) == [0, one, two, 0]


def test_what_an_origin_means_is_durable_before_what_names_it(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("out")
    put_by(log, stream, log.origin(*SMOOTH))
    kinds = [item.kind for item in inspect_log(DIRECTORY, disk)]
    assert kinds[-2:] == [EntryKind.ORIGINS, EntryKind.BATCH]
    batch = list(inspect_log(DIRECTORY, disk))[-1]
    disk.content(segment_paths(disk)[0])[batch.offset] ^= 1
    disk.kill_process()
    assert open_log(disk).origins() == {1: Origin(1, *SMOOTH)}


def test_origins_outlive_every_earlier_segment_and_a_lost_footer(disk: FakeFileSystem) -> None:
    log = open_log(disk, TIGHT)
    stream, number, chance = log.stream("out"), log.origin(*SMOOTH), random.Random(1)
    put_by(log, stream, number)
    first = segment_paths(disk)[0]
    while first in segment_paths(disk):
        log.release(stream, log.ranges(stream))
        put_by(log, stream, number, chance.randbytes(700))
    log.close()
    assert open_log(disk, TIGHT).origins() == {1: Origin(1, *SMOOTH)}
    disk.kill_process()
    newest = disk.content(segment_paths(disk)[-2])
    newest[-5] ^= 1  # the trailer: now the entries themselves are read
    log = open_log(disk, TIGHT)
    assert log.origins() == {1: Origin(1, *SMOOTH)}
    assert set(origins_of(log, stream)) == {number}


def test_a_number_whose_meaning_is_lost_is_not_given_to_another(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("out")
    put_by(log, stream, log.origin(*SMOOTH))
    put(log, stream, b"later")
    entry = next(item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.ORIGINS)
    disk.content(segment_paths(disk)[0])[entry.offset] ^= 1
    disk.kill_process()
    log = open_log(disk)
    assert log.origins() == {}
    assert log.origin(OriginKind.SCHEMA, "another", "1") == 2


def test_a_log_knows_so_many_origins_and_forgets_the_oldest_that_nothing_uses(disk: FakeFileSystem) -> None:
    roomy = LogSettings(segment_bytes=1 << 20, budget_bytes=1 << 24)
    log = open_log(disk, roomy)
    stream = log.stream("out")
    for version in range(ORIGINS_MAX):
        number = log.origin(OriginKind.FUNCTION, "f", str(version))
    put_by(log, stream, number)
    with pytest.raises(ValueError, match="use fewer"):
        log.origin(OriginKind.FUNCTION, "f", "one more")
    disk.kill_process()
    log = open_log(disk, roomy)
    assert log.origin(OriginKind.FUNCTION, "f", "0") == 1
    assert log.origin(OriginKind.FUNCTION, "f", "one more") == ORIGINS_MAX + 1
    assert len(log.origins()) == ORIGINS_MAX
    assert (1 in log.origins(), 2 in log.origins()) == (True, False)


@pytest.mark.parametrize("content", [(1, "n" * 256, "1"), (1, "n", "1" * 256), (1, "n", "1", bytes(65))])
def test_an_origin_that_no_reader_would_take_is_refused(disk: FakeFileSystem, content: tuple[int, str, str]) -> None:
    with pytest.raises(ValueError, match="shorten it"):
        open_log(disk).origin(*content)


# --- marks that are held


def test_a_mark_stays_below_the_oldest_open_window(disk: FakeFileSystem) -> None:
    clock = Clock()
    log = open_log(disk, clock=clock)
    derived, other = log.stream("derived"), log.stream("other")
    put(log, derived, b"a")
    log.hold_mark(derived, 1000)
    assert log.mark(derived, 5000) == (999, 1)
    assert log.mark(derived, 500) == (500, 1)
    assert log.mark(other, 5000) == (5000, 0)
    append(log, derived, b"waits for the disk")  # taken in at 1
    assert log.mark(derived, 5000) == (0, 1)
    commit_all(log)
    log.hold_mark(derived, 2000)
    assert log.mark(derived, 5000) == (1999, 2)
    log.hold_mark(derived, None)
    assert log.mark(derived, 5000) == (5000, 2)


def test_a_hold_is_forgotten_with_the_process(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    log.hold_mark(log.stream("derived"), 1000)
    put(log, 1, b"a")
    disk.kill_process()
    assert open_log(disk).mark(1, 5000) == (5000, 1)


# --- Clock notices: what became known of a boot's clock stays as long as its records may


NOTICE = ClockNotice(7, 5_000, 1_700_000_000_000_000_000, 1_000)


def test_a_notice_is_there_after_a_crash_and_the_last_one_of_a_boot_counts(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    better = ClockNotice(7, 9_000, NOTICE.offset + 3, 10)
    for notice in (NOTICE, ClockNotice(8, 1, 2, 3), better):
        log.note_clock(notice)
        commit_all(log)
    disk.kill_process()
    assert open_log(disk).clocks() == [ClockNotice(8, 1, 2, 3), better]


def test_notices_outlive_every_earlier_segment_and_a_lost_footer(disk: FakeFileSystem) -> None:
    log = open_log(disk, TIGHT)
    stream, chance = log.stream("out"), random.Random(1)
    log.note_clock(NOTICE)
    put(log, stream, b"first")
    first = segment_paths(disk)[0]
    while first in segment_paths(disk):
        log.release(stream, log.ranges(stream))
        put(log, stream, chance.randbytes(700))
    log.close()
    log = open_log(disk, TIGHT)
    assert log.clocks() == [NOTICE]
    disk.kill_process()
    disk.content(segment_paths(disk)[-2])[-5] ^= 1  # the trailer: now the entries themselves are read
    assert open_log(disk, TIGHT).clocks() == [NOTICE]


def test_a_log_knows_the_clocks_of_so_many_boots(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    for boot in range(BOOTS_MAX + 2):
        log.note_clock(ClockNotice(boot, 1, 2, 3))
    commit_all(log)
    disk.kill_process()
    assert [clock.boot_id for clock in open_log(disk).clocks()] == list(range(2, BOOTS_MAX + 2))


# --- What a later release wrote is never cut, never quarantined and never a notice: the log is refused, and untouched


def files(disk: FakeFileSystem) -> dict[str, bytes]:
    return {name: bytes(disk.content(f"{DIRECTORY}/{name}")) for name in disk.list_names(DIRECTORY)}


def of_a_later_release(disk: FakeFileSystem, offset: int, value: int) -> None:
    """Give the log's last batch a byte that only a later release knows, sound in every checksum."""
    item = [item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.BATCH][-1]
    body = bytearray(item.data)
    body[offset] = value
    struct.pack_into("<I", body, 4, crc32c(bytes(body[8:])))
    entry = encode_entry_header(item.position, EntryKind.BATCH, body) + body
    disk.content(f"{DIRECTORY}/{item.segment}")[item.offset : item.offset + len(entry)] = entry


UNKNOWN = {"codec": (8, 7), "second flags": (9, 4), "event time": (9, 8), "column": (9, 64), "clock": (10, 9)}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("followed", [False, True])
def test_a_batch_of_a_later_release_has_the_log_refused_and_left_as_it_is(
    disk: FakeFileSystem, name: str, followed: bool
) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a", b"b")
    put(log, stream, b"c")
    of_a_later_release(disk, *UNKNOWN[name])
    if followed:
        put(log, stream, b"by the later release, too")
    disk.kill_process()
    disk.create(f"{DIRECTORY}/{'9' * 18}00.seg.new")
    before = files(disk)
    for _ in range(2):
        with pytest.raises(LogVersionError, match=r"later release of Weft .* install that release again, or move"):
            open_log(disk)
        assert files(disk) == before
    with pytest.raises(UnsupportedVersion):
        list(inspect_log(DIRECTORY, disk))
    assert files(disk) == before


def test_a_batch_that_is_damaged_where_a_later_release_would_differ_is_damage(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a")
    item = [item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.BATCH][-1]
    put(log, stream, b"b")
    disk.content(segment_paths(disk)[0])[item.offset + ENTRY_HEADER_BYTES + 9] ^= 8
    disk.kill_process()
    log = open_log(disk)
    assert [(gap.first, gap.end) for gap in log.recovery.gaps] == [(0, 1)]
    assert read_all(log, stream) == {1: b"b"}


def test_a_reader_that_meets_one_in_a_sealed_segment_loses_nothing(disk: FakeFileSystem) -> None:
    """Opening reads a sealed segment's index alone. Only a release that broke its own rule wrote such a one."""
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a")
    log.close()
    log = open_log(disk)
    of_a_later_release(disk, *UNKNOWN["event time"])
    with pytest.raises(LogVersionError, match="later release"):
        log.read(stream, 0, 1 << 20)
    assert log.gaps(stream) == []
    assert log.failed is None


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a later release, which needs version 3 for notices of gaps."""
    monkeypatch.setattr(segment_header, "VERSION", 3)
    monkeypatch.setitem(segment_header.KIND_VERSIONS, EntryKind.GAP, 3)


def versions(disk: FakeFileSystem) -> list[int]:
    return [segment_decode_header(bytes(disk.content(path))).version for path in segment_paths(disk)]


def drop(log: SegmentLog, stream: int) -> None:
    log.drop_backlog(stream)
    commit_all(log)


def test_a_segment_of_a_higher_version_is_begun_before_what_needs_it_is_written(
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(disk)
    stream = log.stream("one")
    put(log, stream, b"a")
    assert versions(disk) == [1]
    with monkeypatch.context() as patch:
        later(patch)
        put(log, stream, b"b")
        assert versions(disk) == [1]
        drop(log, stream)
        assert versions(disk) == [1, 3]
        first, _ = segment_paths(disk)
        assert not [
            item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.GAP and item.segment in first
        ]
        put(log, stream, b"c")
        disk.kill_process()
        # The later release continues with it, and keeps to the version.
        log = open_log(disk)
        put(log, stream, b"d")
        assert versions(disk) == [1, 3]
        log.committer._rotate(0)
        assert versions(disk)[-1] == 3
        assert read_all(log, stream) == {2: b"c", 3: b"d"}
        disk.kill_process()
    before = files(disk)
    with pytest.raises(LogVersionError, match="segment version 3; this release reads up to version 2"):
        open_log(disk)
    assert files(disk) == before


def test_what_a_segment_is_too_old_for_is_never_written_to_it(
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(disk)
    writer, before = log.committer._writer, files(disk)
    later(monkeypatch)
    entries = [(EntryKind.GAP, b"")]
    with pytest.raises(ValueError, match="too low"):
        writer.write(entries, version=3)
    assert files(disk) == before
