"""A log knows whose it is: through damage, power cuts and renames, and without locking its owner out."""

from __future__ import annotations

import errno
import random

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
from weft.protocols.segment import EntryKind, Owner, decode_body, encode_body
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
