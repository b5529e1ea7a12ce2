"""A log knows whose it is: through damage, power cuts and renames, and without locking its owner out."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.fakes import MUTATING_CALLS, FakeFileSystem, injected
from tests.storage.segment_log.helpers import (
    DIRECTORY,
    add,
    commit_all,
    open_log,
    over_budget,
    put,
    read_all,
    segment_paths,
)
from weft.protocols.lane import NodeName
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import EntryKind, Owner, decode_body, encode_body, file_name
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogFull, LogSettings, SegmentLog, WrongOwner
from weft.storage.segment_log.scan import inspect_log

PRESS, OVEN = NodeName("default", "press-1"), NodeName("default", "oven-1")
IDENTITY = f"{DIRECTORY}/log-id"


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def written(disk: FakeFileSystem, owner: NodeName | None = PRESS, count: int = 3) -> None:
    """A life of the log: some records, a clean stop."""
    log = open_log(disk, owner=owner)
    for _ in range(count):
        put(log, log.stream("one"), b"payload")
    log.close()


def renamed(disk: FakeFileSystem, owner: NodeName, *, from_now_on: bool = True) -> None:
    log = open_log(disk)
    log.rename(owner, from_now_on=from_now_on)
    log.close()


def owner_offsets(disk: FakeFileSystem) -> list[tuple[str, int]]:
    return [(f"{DIRECTORY}/{item.segment}", item.offset) for item in inspect_log(DIRECTORY, disk) if _is_owner(item)]


def _is_owner(item: object) -> bool:
    return getattr(item, "kind", None) is EntryKind.OWNER


def test_a_log_belongs_to_the_node_that_made_it_and_opens_for_no_other(disk: FakeFileSystem) -> None:
    written(disk)
    before = {path: disk.content(path) for path in segment_paths(disk)}
    for other in (OVEN, NodeName("acme", "press-1")):
        with pytest.raises(WrongOwner, match="belongs to default/press-1, not to") as refused:
            open_log(disk, owner=other)
        assert refused.value.owner == PRESS
    assert {path: disk.content(path) for path in segment_paths(disk)} == before
    log = open_log(disk, owner=PRESS)
    assert log.owner == PRESS
    assert read_all(log, log.stream("one")) == dict.fromkeys(range(3), b"payload")


def test_a_log_without_an_owner_becomes_that_of_the_node_that_opens_it(disk: FakeFileSystem) -> None:
    written(disk, owner=None)
    assert open_log(disk).owner is None
    disk.drop_locks()
    log = open_log(disk, owner=PRESS)
    assert (log.owner, log.begins()) == (PRESS, {})
    assert len(read_all(log, log.stream("one"))) == 3
    # Durably: the power goes before anything else is written.
    after = disk.power_cut(random.Random(1))
    with pytest.raises(WrongOwner):
        open_log(after, owner=OVEN)


@pytest.mark.parametrize("content", [None, b"", b"garbage\n"], ids=["missing", "empty", "damaged"])
def test_without_the_file_of_its_id_a_log_still_knows_its_owner(disk: FakeFileSystem, content: bytes | None) -> None:
    written(disk)
    disk.remove(IDENTITY)
    if content is not None:
        file = disk.create(IDENTITY)
        file.write_at(0, content)
        file.close()
    with pytest.raises(WrongOwner):
        open_log(disk, owner=OVEN)
    assert open_log(disk, owner=PRESS).owner == PRESS


@pytest.mark.parametrize("seed", range(60))
def test_no_flipped_bit_makes_the_log_anothers_or_shifts_where_a_name_begins(disk: FakeFileSystem, seed: int) -> None:
    chance = random.Random(seed)
    written(disk)
    renamed(disk, OVEN)
    is_killed = chance.random() < 0.5
    log = open_log(disk, owner=OVEN)
    for _ in range(chance.randrange(3)):
        put(log, log.stream("one"), b"payload")
    if not is_killed:
        log.close()
    disk.kill_process()
    found = owner_offsets(disk)
    # In half of the cases in one of the entries that say it, which a random bit of the file seldom is.
    path, offset = chance.choice(found)
    at = offset + chance.randrange(40) if chance.random() < 0.5 else chance.randrange(disk.size(path))
    disk.flip(path, at, chance.randrange(8))
    for _ in range(2):
        log = open_log(disk, owner=OVEN)
        assert log.begins() == {log.stream("one"): 3}
        commit_all(log)
        disk.kill_process()


def test_every_segment_says_it_so_that_any_may_go(disk: FakeFileSystem) -> None:
    log = open_log(disk, owner=PRESS)
    stream = log.stream("one")
    for _ in range(60):
        put(log, stream, b"x" * 300)
    assert len(segment_paths(disk)) > 3
    assert {path for path, _ in owner_offsets(disk)} == {*segment_paths(disk)}
    log.close()
    for path in segment_paths(disk)[:-1]:
        disk.remove(path)
    with pytest.raises(WrongOwner):
        open_log(disk, owner=OVEN)


def test_after_a_rename_numbers_go_on_and_the_new_name_begins_where_they_were(disk: FakeFileSystem) -> None:
    written(disk)
    renamed(disk, OVEN)
    with pytest.raises(WrongOwner, match="belongs to default/oven-1, not to default/press-1"):
        open_log(disk, owner=PRESS)
    log = open_log(disk, owner=OVEN)
    one, two = log.stream("one"), log.stream("two")
    assert log.begins() == {one: 3}
    assert (put(log, one, b"new"), put(log, two, b"new")) == (3, 0)
    assert len(read_all(log, one)) == 4
    log.close()
    # And once more, back to the name it had: what the other name took in stays that name's.
    renamed(disk, PRESS)
    log = open_log(disk, owner=PRESS)
    assert log.begins() == {one: 4, two: 1}


def test_a_rename_may_take_everything_along(disk: FakeFileSystem) -> None:
    written(disk)
    renamed(disk, OVEN, from_now_on=False)
    log = open_log(disk, owner=OVEN)
    assert log.begins() == {}
    log.close()
    renamed(disk, PRESS)
    renamed(disk, OVEN, from_now_on=False)
    assert open_log(disk, owner=OVEN).begins() == {1: 3}


def test_a_later_release_may_say_more_of_an_owner(disk: FakeFileSystem) -> None:
    """Fields at its end are skipped: they are neither damage nor another owner."""
    body = encode_body(Owner(*PRESS, [(1, 3)]))
    longer = bytes([body[0] + 1]) + body[1:] + b"\xa6future"
    assert decode_body(EntryKind.OWNER, longer) == Owner(*PRESS, [(1, 3)])


def test_a_full_disk_leaves_the_name_as_it_was(disk: FakeFileSystem) -> None:
    written(disk)
    log = open_log(disk, owner=PRESS)
    disk.capacity = 0
    with pytest.raises(LogFull, match="no room to note the new name"):
        log.rename(OVEN, from_now_on=True)
    assert log.owner == PRESS
    disk.capacity = None
    disk.kill_process()
    assert open_log(disk, owner=PRESS).owner == PRESS


def test_a_full_disk_keeps_no_node_from_starting_on_a_log_that_had_no_owner(disk: FakeFileSystem) -> None:
    log = open_log(disk)
    put(log, log.stream("one"), b"payload")
    disk.kill_process()
    disk.capacity = 0
    log = open_log(disk, owner=PRESS)
    assert (log.owner, owner_offsets(disk)) == (PRESS, [])
    disk.kill_process()
    disk.capacity = None
    open_log(disk, owner=PRESS).close()
    with pytest.raises(WrongOwner):
        open_log(disk, owner=OVEN)


def test_a_full_log_is_renamed_within_its_budget(disk: FakeFileSystem) -> None:
    settings = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0)
    owner = NodeName("t" * 64, "e" * 64)
    log = open_log(disk, settings, owner=owner)
    names = [f"stream-{number}" for number in range(6)]
    for name in names:
        put(log, log.stream(name), b"x" * 90)
    while add(log, log.stream(names[0]), 1):
        pass
    log.close()
    found = over_budget(disk, settings)
    log = open_log(disk, settings, owner=owner)
    log.rename(NodeName("u" * 64, "e" * 64), from_now_on=True)
    assert not found
    assert log.begins() == {log.stream(name): log.durable_end(log.stream(name)) for name in names}


def test_a_power_cut_while_a_log_is_made_or_renamed_leaves_one_owner(disk: FakeFileSystem) -> None:
    """At every call: before the log is there any name may have it, then its own alone, and then the old or the new."""
    seen: set[tuple[NodeName | None, int]] = set()

    def look(call: str, path: str) -> OSError | None:
        if call in MUTATING_CALLS:
            for seed in range(4):
                after = disk.power_cut(random.Random(f"{len(disk.calls)}:{seed}"))
                log = open_log(after)
                made = log.recovery.created
                one = log.streams().get("one", 0)
                seen.add((log.owner, log.begins().get(one, 0)))
                assert made or log.owner in (PRESS, OVEN)
                assert log.begins().get(one, 0) in ((0,) if log.owner != OVEN else (3,))
        return None

    disk.fail = look
    written(disk)
    renamed(disk, OVEN)
    assert seen == {(None, 0), (PRESS, 0), (OVEN, 3)}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_call_during_a_rename_leaves_the_old_or_the_new_owner(disk: FakeFileSystem, number: int) -> None:
    owners = set()
    for failing in range(40):
        disk = FakeFileSystem()
        written(disk)
        log = open_log(disk)
        calls = len(disk.calls)
        disk.fail = lambda call, path, at=calls + failing, disk=disk: (  # type: ignore[misc]
            injected(number) if len(disk.calls) == at + 1 else None
        )
        try:
            log.rename(OVEN, from_now_on=True)
            said: NodeName | None = OVEN
        except LogFull:
            said = PRESS
        except Exception:
            said = None
        disk.kill_process()
        found = open_log(disk.power_cut(random.Random(failing)))
        assert found.owner == said or (said is None and found.owner in (PRESS, OVEN))
        owners.add((said, found.owner))
    assert {(OVEN, OVEN)} < owners


def test_a_log_with_its_writer_is_not_renamed(disk: FakeFileSystem) -> None:
    log: SegmentLog = open_log(disk, owner=PRESS, start_writer=True)
    try:
        with pytest.raises(RuntimeError, match="without its writer"):
            log.rename(OVEN, from_now_on=True)
    finally:
        log.close()


def test_released_records_of_an_earlier_name_go_like_all_others(disk: FakeFileSystem) -> None:
    settings = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0)
    log = open_log(disk, settings, owner=PRESS)
    stream = log.stream("one")
    for _ in range(20):
        put(log, stream, b"x" * 300)
    log.rename(OVEN, from_now_on=True)
    begin = log.begins()[stream]
    log.release(stream, RangeSet([(0, begin)]))
    for _ in range(60):
        put(log, stream, b"x" * 300)
        log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    assert next(iter(log.ranges(stream)))[0] > 0
    assert log.begins() == {stream: begin}


# --- Files that have no business among the segments: other logs', half ones, and what is no file at all


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
