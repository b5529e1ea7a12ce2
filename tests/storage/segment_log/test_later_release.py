"""What a later release wrote is never cut, never quarantined and never a notice: the log is refused, and untouched."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all, open_log, put, read_all, segment_paths
from weft.protocols import segment as segment_header
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.segment import ENTRY_HEADER_BYTES, EntryKind, decode_header, encode_entry_header
from weft.storage.segment_log import LogVersionError, SegmentLog
from weft.storage.segment_log.scan import inspect_log


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


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
    return [decode_header(bytes(disk.content(path))).version for path in segment_paths(disk)]


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
