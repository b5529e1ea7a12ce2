"""Files that have no business among the segments: other logs', half ones, and what is no file at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all, open_log, put, read_all, segment_paths
from weft.protocols.segment import file_name
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog

SETTINGS = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20, tail_bytes=0, compression_level=None)
LATER = 99_999_999
LAST = (1 << 63) - 1
"""The highest position that a name can say."""


def add_file(disk: FakeFileSystem, name: str, content: bytes) -> str:
    path = f"{DIRECTORY}/{name}"
    file = disk.create(path)
    file.write_at(0, content)
    file.sync()
    disk.sync_directory(DIRECTORY)
    return path


def segments_of_another_log(count: int) -> dict[str, bytes]:
    """(name, content) of as many sealed segments."""
    disk = FakeFileSystem()
    log = open_log(disk, log_id=2)
    stream = log.stream("one")
    while len(segment_paths(disk)) <= count:
        put(log, stream, b"theirs" * 50)
    log.close()
    return {path.rpartition("/")[2]: bytes(disk.content(path)) for path in segment_paths(disk)[:count]}


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def test_segments_of_another_log_are_set_aside_also_when_they_are_the_most(disk: FakeFileSystem) -> None:
    log = open_log(disk, log_id=1)
    stream = log.stream("one")
    put(log, stream, b"ours")
    log.close()
    ours = segment_paths(disk)
    strangers = [
        add_file(disk, name, content)
        for name, content in segments_of_another_log(4).items()
        if f"{DIRECTORY}/{name}" not in ours
    ]
    assert len(strangers) == 3
    log = open_log(disk, log_id=3)
    assert log.log_id == 1
    assert sorted(log.recovery.damaged) == sorted(strangers)
    assert not log.recovery.gaps
    assert read_all(log, stream) == {0: b"ours"}
    assert {f"{path}.damaged" for path in strangers} < set(disk.paths())
    assert put(log, stream, b"more") == 1
    log.close()
    again = open_log(disk)
    assert not again.recovery.damaged
    assert read_all(again, stream) == {0: b"ours", 1: b"more"}


def with_a_torn_commit(disk: FakeFileSystem) -> int:
    """A log with one record each in two streams, and a commit of which a power cut took the first sector. Returns how
    many records of either stream were acknowledged."""
    log = open_log(disk, SETTINGS)
    streams = [log.stream("one"), log.stream("two")]
    for stream in streams:
        put(log, stream, b"acknowledged")
    end = log._state.segments[-1].end
    for stream in streams:
        log.append(stream, 5, [b"k"] * 2, [random.Random(stream).randbytes(600)] * 2)
    commit_all(log)
    disk.kill_process()
    node = disk.node(segment_paths(disk)[0])
    for content in (node.live, node.durable):
        content[end : end + 512] = bytes(512)
    return 1


def with_unreadable_newest_blocks(disk: FakeFileSystem) -> int:
    """A log whose newest records stand in blocks that cannot be read any more."""
    log = open_log(disk, SETTINGS)
    for name in ("one", "two"):
        for index in range(20):
            put(log, log.stream(name), random.Random(index).randbytes(600))
    disk.kill_process()
    disk.lose_blocks(segment_paths(disk)[0], 8192, log._state.segments[-1].end)
    return 20


def reported(log: SegmentLog) -> dict[str, object]:
    """What the log says of its streams."""
    return {
        name: (
            log.next_seq(stream),
            list(log.ranges(stream)),
            [(gap.first, gap.end, gap.reason) for gap in log.gaps(stream)],
        )
        for name, stream in log.streams().items()
    }


@pytest.mark.parametrize("position", [LATER, LAST])
@pytest.mark.parametrize(
    "content", [b"", b"garbage", bytes(64) + bytes(range(256)) * 40], ids=["empty", "short", "no header"]
)
@pytest.mark.parametrize("damage", [with_a_torn_commit, with_unreadable_newest_blocks])
def test_a_stray_file_with_a_later_name_is_not_taken_for_the_newest_segment(
    damage: Callable[[FakeFileSystem], int], content: bytes, position: int
) -> None:
    alone, disk = FakeFileSystem(), FakeFileSystem()
    damage(alone)
    acked = damage(disk)
    stray = add_file(disk, file_name(position), content)
    expected, log = open_log(alone, SETTINGS), open_log(disk, SETTINGS)
    assert stray in log.recovery.damaged
    assert f"{stray}.damaged" in disk.paths()
    assert reported(log) == reported(expected), "as if the stray had not been there"
    assert log.recovery.torn_bytes == expected.recovery.torn_bytes
    for stream in log.streams().values():
        before = log.next_seq(stream)
        assert before == acked if log.recovery.torn_bytes else before > acked
        assert put(log, stream, b"next") == before
    disk.kill_process()
    again = open_log(disk, SETTINGS)
    assert not again.recovery.damaged
    assert reported(again) == reported(log)
    assert all(read_all(again, stream)[again.next_seq(stream) - 1] == b"next" for stream in again.streams().values())


def test_a_stray_segment_of_another_log_with_a_later_name_changes_nothing_about_a_torn_commit() -> None:
    alone, disk = FakeFileSystem(), FakeFileSystem()
    with_a_torn_commit(alone)
    with_a_torn_commit(disk)
    stray = add_file(disk, file_name(LATER), next(iter(segments_of_another_log(1).values())))
    expected, log = open_log(alone, SETTINGS), open_log(disk, SETTINGS)
    assert log.recovery.damaged == (stray,)
    assert log.recovery.torn_bytes == expected.recovery.torn_bytes > 0
    assert reported(log) == reported(expected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a log with one record in the stream "one"."""
    log = open_log(OSFileSystem(), directory=str(tmp_path / "log"))
    put(log, log.stream("one"), b"first")
    log.close()
    return tmp_path / "log"


def assert_opens(folder: Path) -> tuple[str, ...]:
    """The log continues, twice. Returns what the first start reports."""
    reports = []
    for count in (1, 2):
        log = open_log(OSFileSystem(), directory=str(folder))
        reports.append(log.recovery.damaged)
        assert sorted(read_all(log, log.stream("one"))) == list(range(count))
        assert not log.gaps(log.stream("one"))
        put(log, log.stream("one"), b"next")
        log.close()
    assert reports[1] == ()
    return reports[0]


@pytest.mark.parametrize("position", [0x100, LATER, LAST])
def test_a_directory_with_the_name_of_a_segment_is_set_aside(folder: Path, position: int) -> None:
    path = folder / file_name(position)
    path.mkdir()
    (path / "inside").write_bytes(b"somebody's")
    assert assert_opens(folder) == (str(path),)
    assert (folder / f"{path.name}.strange" / "inside").read_bytes() == b"somebody's"


def test_a_link_to_nowhere_with_the_name_of_a_segment_is_set_aside(folder: Path) -> None:
    path = folder / file_name(LATER)
    path.symlink_to("/nowhere")
    assert assert_opens(folder) == (str(path),)
    assert not path.is_symlink()


def test_a_directory_with_the_name_of_an_unfinished_segment_is_set_aside(folder: Path) -> None:
    path = folder / f"{file_name(LATER)}.new"
    path.mkdir()
    assert_opens(folder)
    assert not path.exists()
    assert (folder / f"{path.name}.strange").is_dir()


@pytest.mark.parametrize("name", ["log-id", "log-id.new"])
def test_a_directory_in_place_of_the_id_file_hinders_nothing(folder: Path, name: str) -> None:
    (folder / "log-id").unlink()
    (folder / name).mkdir()
    assert assert_opens(folder) == ()
