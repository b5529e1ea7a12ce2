"""Numbers of origins: what a batch says of who made it can be looked up as long as the batch is there."""

from __future__ import annotations

import random

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, Clock, append, commit_all, open_log, put, segment_paths
from weft.protocols.batch import decode_header
from weft.protocols.lane import ORIGINS_MAX, Origin, OriginKind
from weft.protocols.segment import EntryKind
from weft.storage.segment_log import LogSettings, SegmentLog
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
