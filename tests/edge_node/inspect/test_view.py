"""Reading a log from outside: what is there, once, in order, whatever its node does meanwhile."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.edge_node.inspect.logs import append, corrupt, newest_segment, open_log
from weft.edge_node.inspect.view import Commit, Cursor, DamagedBytes, Durability, LogDirectory, NoLog, is_locked
from weft.protocols import batch
from weft.storage.filesystem import File, OSFileSystem
from weft.storage.segment_log import SegmentLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    log = open_log(tmp_path / "data")
    yield log
    log.close()


@pytest.fixture
def cursor(log: SegmentLog, tmp_path: Path) -> Cursor:
    return Cursor(LogDirectory(str(tmp_path / "data")), None, lambda name: name == "telemetry")


def payloads(commits: list[Commit]) -> list[bytes]:
    entries = [item[1] for commit in commits for item in commit.items if not isinstance(item, DamagedBytes)]
    return [record.payload for entry in entries if entry.body for record in batch.records(entry.body)]


def damage(commits: list[Commit]) -> list[DamagedBytes]:
    return [item for commit in commits for item in commit.items if isinstance(item, DamagedBytes)]


def test_each_read_gives_what_came_since(log: SegmentLog, cursor: Cursor) -> None:
    append(log, b"one", b"two")
    assert payloads(list(cursor.read())) == [b"one", b"two"]
    assert payloads(list(cursor.read())) == []
    append(log, b"other", stream="alarms")
    append(log, b"three")
    assert payloads(list(cursor.read())) == [b"three"]


def test_only_the_last_commit_of_an_open_segment_is_not_proven(log: SegmentLog, cursor: Cursor) -> None:
    append(log, b"one")
    append(log, b"two")
    assert [commit.is_proven for commit in cursor.read()] == [True, False]
    append(log, b"three")
    log.close()
    assert [commit.is_proven for commit in cursor.read()] == [True]


def test_a_commit_that_is_not_taken_comes_again(log: SegmentLog, cursor: Cursor) -> None:
    append(log, b"one")
    for commit in cursor.read():
        assert not commit.is_proven
        break
    assert payloads(list(cursor.read())) == [b"one"]


def test_segments_follow_each_other(log: SegmentLog, cursor: Cursor, tmp_path: Path) -> None:
    sent = [b"%05d" % number + bytes(range(256)) * 4 for number in range(200)]
    seen: list[bytes] = []
    for number in range(0, 200, 2):
        append(log, *sent[number : number + 2])
        seen += payloads(list(cursor.read())) if number % 3 == 0 else []
    assert len(list((tmp_path / "data").glob("*.seg"))) > 1
    assert seen + payloads(list(cursor.read())) == sent


def test_an_entry_half_written_is_the_end_and_comes_when_it_is_whole(
    log: SegmentLog, cursor: Cursor, tmp_path: Path
) -> None:
    append(log, b"one")
    assert payloads(list(cursor.read())) == [b"one"]
    path = newest_segment(tmp_path / "data")
    before = path.read_bytes()
    append(log, b"two", b"three")
    whole = path.read_bytes()
    written = len(whole.rstrip(b"\0"))
    first = len(before.rstrip(b"\0"))
    for end in range(first, written, 3):
        path.write_bytes(whole[:end].ljust(len(whole), b"\0"))
        assert payloads(list(cursor.read())) == []
    path.write_bytes(whole)
    assert payloads(list(cursor.read())) == [b"two", b"three"]


class _Racing(OSFileSystem):
    """Lets the node write on just after a reader has read much at once."""

    def __init__(self, writes: Callable[[], None]) -> None:
        self.writes = writes

    def open(self, path: str, *, read_only: bool = False) -> File:
        file = super().open(path, read_only=read_only)
        read_at = file.read_at

        def read_then_write(offset: int, length: int) -> bytes:
            data = read_at(offset, length)
            if length > 1 << 17:
                self.writes()
            return data

        file.read_at = read_then_write  # type: ignore[method-assign]
        return file


def test_what_the_node_writes_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "data", segment_bytes=1 << 22)
    chance = random.Random(1)
    sent = [b"0"]
    append(log, *sent)

    def write() -> None:
        for _ in range(10 if len(sent) < 100 else 0):
            sent.append(chance.randbytes(20_000))
            append(log, sent[-1])

    cursor = Cursor(LogDirectory(str(tmp_path / "data"), _Racing(write)), None, lambda _: True)
    commits: list[Commit] = []
    while len(payloads(commits)) < 100:
        commits += cursor.read()
        assert damage(commits) == []
        assert payloads(commits) == sent[: len(payloads(commits))]
    log.close()


def test_a_segment_deleted_while_it_is_read_is_read_to_its_end(log: SegmentLog, cursor: Cursor, tmp_path: Path) -> None:
    sent = [b"%05d" % number + bytes(range(256)) * 4 for number in range(200)]
    for payload in sent:
        append(log, payload)
    reading = cursor.read()
    first = next(reading)
    oldest = min((tmp_path / "data").glob("*.seg"))
    oldest.unlink()
    assert payloads([first, *reading]) == sent


def test_segments_deleted_before_they_were_reached_are_passed_over(
    log: SegmentLog, cursor: Cursor, tmp_path: Path
) -> None:
    for number in range(200):
        append(log, b"%05d" % number + bytes(range(256)) * 4)
    reading = cursor.read()
    first = next(reading)
    for path in sorted((tmp_path / "data").glob("*.seg"))[:-1]:
        path.unlink()
    seen = payloads([first, *reading])
    assert seen[0].startswith(b"00000")
    assert seen[-1].startswith(b"00199")
    assert seen == sorted(set(seen))


def test_a_node_that_crashed_and_came_back_goes_on_where_it_was(
    log: SegmentLog, cursor: Cursor, tmp_path: Path
) -> None:
    append(log, b"one")
    data, crashed = tmp_path / "data", tmp_path / "crashed"
    shutil.copytree(data, crashed)
    cursor = Cursor(LogDirectory(str(crashed)), None, lambda _: True)
    assert payloads(list(cursor.read())) == [b"one"]
    path = newest_segment(crashed)
    end = len(path.read_bytes().rstrip(b"\0"))  # and up to seven zeros that belong to the entry
    with path.open("r+b") as file:
        file.seek(end + 8)
        file.write(b"\x33" * 100)
    assert payloads(list(cursor.read())) == []
    again = open_log(crashed)
    assert again.recovery.torn_bytes > 0
    append(again, b"two")
    assert payloads(list(cursor.read())) == [b"two"]
    again.close()
    third = open_log(crashed)
    append(third, b"three")
    assert payloads(list(cursor.read())) == [b"three"]
    third.close()


def test_a_new_log_in_the_same_folder_is_told(log: SegmentLog, cursor: Cursor, tmp_path: Path) -> None:
    append(log, b"one")
    assert payloads(list(cursor.read())) == [b"one"]
    log.close()
    shutil.rmtree(tmp_path / "data")
    new = open_log(tmp_path / "data")
    append(new, b"first of the new")
    for not_taken in cursor.read():
        assert not_taken.log_began_anew
        break
    commits = list(cursor.read())
    assert payloads(commits) == [b"first of the new"]
    assert commits[0].log_began_anew
    new.close()


def test_damage_is_told_and_stepped_over(log: SegmentLog, cursor: Cursor, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    append(log, b"three")
    path = newest_segment(tmp_path / "data")
    corrupt(path, b"two")
    commits = list(cursor.read())
    assert payloads(commits) == [b"one", b"three"]
    (found,) = damage(commits)
    assert found.file == str(path)
    assert path.read_bytes()[found.offset : found.end].count(b"WFB") == 1


def test_damage_in_the_last_commit_is_the_end(log: SegmentLog, cursor: Cursor, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    corrupt(newest_segment(tmp_path / "data"), b"two")
    commits = list(cursor.read())
    assert payloads(commits) == [b"one"]
    assert damage(commits) == []


def test_damage_in_a_sealed_segment_costs_only_its_entry(log: SegmentLog, cursor: Cursor, tmp_path: Path) -> None:
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    log.close()
    corrupt(newest_segment(tmp_path / "data"), b"three")
    commits = list(cursor.read())
    assert payloads(commits) == [b"one", b"two"]
    assert len(damage(commits)) == 1


def test_a_folder_without_a_log(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoLog, match="holds no log"):
            LogDirectory(str(path)).require()


def test_streams_declared_in_the_midst_of_a_segment_have_their_names(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two", stream="later")
    append(log, b"three", stream="later")
    directory = LogDirectory(str(tmp_path / "data"))
    assert set(directory.names().values()) == {"telemetry", "later"}
    big = open_log(tmp_path / "big", segment_bytes=1 << 20)
    for _ in range(300):
        append(big, bytes(range(256)) * 4)
    append(big, b"four", stream="last")
    append(big, b"five", stream="last")
    directory = LogDirectory(str(tmp_path / "big"))
    assert set(directory.names(thorough=True).values()) == {"telemetry", "last"}
    assert payloads(list(Cursor(directory, None, lambda name: name == "last").read())) == [b"four", b"five"]
    big.close()


# --- What of a log's end may be shown: nothing that a power cut could still take back


COMMIT = Commit(0, "file", ends={"telemetry": 5}, end=100, is_proven=False)


def judge(*, locked: bool | None, ends: dict[str, int] | None = None, now: list[float] | None = None) -> Durability:
    return Durability(
        "data", None if ends is None else lambda: ends, locked=lambda _: locked, monotonic=lambda: (now or [0.0])[0]
    )


def test_what_a_mark_proves_is_durable() -> None:
    assert judge(locked=True).covers(Commit(0, "file"))


def test_a_node_that_answers_is_believed_before_a_lock_that_cannot_be_seen() -> None:
    assert not judge(locked=False, ends={"telemetry": 4}).covers(COMMIT)


def test_of_a_node_that_does_not_run_everything_counts() -> None:
    assert judge(locked=False).covers(COMMIT)


@pytest.mark.parametrize(("end", "expected"), [(4, False), (5, True)])
def test_a_running_node_says_up_to_where_it_is_durable(end: int, expected: bool) -> None:
    assert judge(locked=True, ends={"telemetry": end}).covers(COMMIT) is expected


@pytest.mark.parametrize("locked", [True, None])
def test_where_nobody_can_be_asked_it_must_have_stood_for_a_second(locked: bool | None) -> None:
    now = [10.0]
    durability = judge(locked=locked, now=now)
    assert not durability.covers(COMMIT)
    now[0] = 10.9
    assert not durability.covers(COMMIT)
    longer = Commit(0, "file", ends={"telemetry": 6}, end=200, is_proven=False)
    now[0] = 11.5
    assert not durability.covers(longer)
    now[0] = 12.5
    assert durability.covers(longer)


def test_a_file_that_was_written_long_ago_need_not_be_waited_for() -> None:
    assert judge(locked=True).covers(Commit(0, "file", end=100, is_proven=False, age_s=3600.0))


def test_a_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    assert is_locked(str(tmp_path)) is False
    lock = OSFileSystem().lock(str(tmp_path))
    assert is_locked(str(tmp_path)) is True
    lock.close()
    assert is_locked(str(tmp_path)) is False
