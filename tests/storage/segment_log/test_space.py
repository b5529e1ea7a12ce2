"""Others take the disk's space after records were taken in: nothing is acknowledged, nothing lost, the log waits."""

from __future__ import annotations

import random
import threading

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import add, commit_all, open_log, over_budget, put, read_all
from tests.support.waiting import PATIENCE_S
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFailed, LogSettings, SegmentLog, StreamPolicy, commit

SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=20 * 4096, tail_bytes=0, compression_level=None)


@pytest.fixture
def disk() -> FakeFileSystem:
    disk = FakeFileSystem()
    disk.capacity = 60_000
    return disk


def almost_full_segment(log: SegmentLog) -> int:
    """Fill the newest segment up to some hundred bytes. Returns the stream."""
    stream = log.stream("one")
    segment = log._state.segments[-1]
    while segment.size - segment.end > 700:
        assert add(log, stream, 1) == 1
    return stream


def append_ten(log: SegmentLog, stream: int) -> list[BaseException | None]:
    """Append what does not fit the segment. Return what the log reports of it."""
    outcomes: list[BaseException | None] = []
    for seq in range(log.next_seq(stream), log.next_seq(stream) + 10):
        log.append(stream, 5, [b"k"], [random.Random(seq).randbytes(100)])
    log.on_durable(outcomes.append)
    return outcomes


def take_space(disk: FakeFileSystem, leave: int = 0) -> None:
    """As another program does that writes until the disk is full."""
    disk.capacity = disk.used_bytes() + leave


def return_space(disk: FakeFileSystem) -> None:
    disk.capacity = 60_000


def waiting(disk: FakeFileSystem, leave: int) -> tuple[SegmentLog, int, list[BaseException | None]]:
    """A log of which a commit waits for space, its stream, and what the log reported of the commit."""
    log = open_log(disk, SETTINGS)
    stream = almost_full_segment(log)
    reported = append_ten(log, stream)
    take_space(disk, leave)
    commit_all(log)
    return log, stream, reported


def assert_as_appended(log: SegmentLog, stream: int, count: int) -> None:
    assert read_all(log, stream) == {seq: random.Random(seq).randbytes(100) for seq in range(count)}


LEFT = pytest.mark.parametrize("leave", [0, 100, 500, 1000])
"""Bytes that are left: for nothing, for a name, for the beginning of a segment, for almost all that is needed."""


@LEFT
def test_a_commit_waits_for_space_and_goes_on_by_itself(disk: FakeFileSystem, leave: int) -> None:
    log, stream, reported = waiting(disk, leave)
    acked = log.durable_end(stream)
    for _ in range(3):
        assert not log.committer.run_once()
        log.committer.housekeep()
        assert log.committer.waits_for_space
        assert log.failed is None
        assert reported == []
        assert log.durable_end(stream) == acked
        assert_as_appended(log, stream, acked)
    over = over_budget(disk, SETTINGS)
    return_space(disk)
    commit_all(log)
    assert not log.committer.waits_for_space
    assert reported == [None]
    assert_as_appended(log, stream, acked + 10)
    assert add(log, stream, 50) == 50
    log.close()
    assert_as_appended(open_log(disk, SETTINGS), stream, acked + 60)
    assert not over


@LEFT
@pytest.mark.parametrize("end", ["close", "kill", "power cut"])
def test_a_restart_finds_what_was_acknowledged(disk: FakeFileSystem, leave: int, end: str) -> None:
    log, stream, reported = waiting(disk, leave)
    acked = log.durable_end(stream)
    if end == "close":
        log.close()
        (error,) = reported
        assert isinstance(error, LogFailed)
        assert "No space left" in str(error)
    elif end == "kill":
        disk.kill_process()
    else:
        disk = disk.power_cut(random.Random(leave))
    return_space(disk)
    log = open_log(disk, SETTINGS)
    assert not log.recovery.damaged
    assert not log.recovery.gaps
    assert log.next_seq(stream) == acked
    assert_as_appended(log, stream, acked)
    assert add(log, stream, 20) == 20


def test_space_that_a_deleted_file_left_may_be_taken_too(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = almost_full_segment(log)
    assert add(log, stream, 20) == 20
    almost_full_segment(log)
    log.release(stream, RangeSet([(0, 20)]))
    reported = append_ten(log, stream)
    take_space(disk, 500)

    def steal(call: str, path: str) -> None:
        if call == "remove" and path.endswith(".seg"):
            disk.capacity = disk.used_bytes() - 3000

    disk.fail = steal
    commit_all(log)
    assert log.committer.waits_for_space
    assert reported == []
    return_space(disk)
    commit_all(log)
    assert reported == [None]
    end = log.durable_end(stream)
    assert {seq: read_all(log, stream)[seq] for seq in range(20, end)} == {
        seq: random.Random(seq).randbytes(100) for seq in range(20, end)
    }


def test_a_file_that_was_found_without_room_for_its_seal_waits_for_it(disk: FakeFileSystem) -> None:
    log = open_log(disk, SETTINGS)
    stream = almost_full_segment(log)
    acked = log.durable_end(stream)
    disk.kill_process()
    newest = log._state.segments[-1]
    disk.open(newest.path).truncate(newest.end)
    take_space(disk)
    log = open_log(disk, SETTINGS)
    return_space(disk)
    reported = append_ten(log, stream)
    take_space(disk)
    for _ in range(3):
        commit_all(log)
        assert log.failed is None
        assert log.committer.waits_for_space
    return_space(disk)
    commit_all(log)
    assert reported == [None]
    assert_as_appended(log, stream, acked + 10)


@pytest.mark.parametrize("streams", [1, 60])
def test_housekeeping_that_finds_no_space_hinders_no_commit(disk: FakeFileSystem, streams: int) -> None:
    log = open_log(disk, SETTINGS)
    for number in range(streams):
        put(log, log.stream(f"a-stream-with-a-long-name-{number}"), b"x")
    stream = log.stream("one")
    assert add(log, stream, 1) == 1
    log.set_policy(stream, StreamPolicy(retain_s=1e-9))
    reported = append_ten(log, stream)
    disk.capacity = 0  # also what the sealed file does not need any more
    log.committer.housekeep()
    for _ in range(2):
        commit_all(log)
        log.committer.housekeep()
        assert log.failed is None
        assert bool(reported) is (log.durable_end(stream) == 11), "told before it is durable"
    return_space(disk)
    commit_all(log)
    assert reported == [None]
    assert log.durable_end(stream) == 11


def test_the_writer_thread_goes_on_when_space_returns(disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SPACE_INTERVAL_S", 0.001)
    log = open_log(disk, SETTINGS, start_writer=True)
    stream = log.stream("one")
    segment = log._state.segments[-1]
    looks, durable = threading.Semaphore(0), threading.Event()
    outcomes: list[BaseException | None] = []

    def look(call: str, path: str) -> None:
        if call == "free_bytes":
            looks.release()

    def tell(error: BaseException | None) -> None:
        outcomes.append(error)
        durable.set()

    with log.together(100 * 150):
        for seq in range(100):
            log.append(stream, 5, [b"k"], [random.Random(seq).randbytes(100)])
        take_space(disk)
        disk.fail = look
    log.on_durable(tell)
    for _ in range(3):
        assert looks.acquire(timeout=PATIENCE_S), "it looks again and again"
    assert outcomes == []
    assert log.durable_end(stream) == 0
    return_space(disk)
    assert durable.wait(PATIENCE_S)
    assert outcomes == [None]
    assert log._state.segments[-1] is not segment
    assert_as_appended(log, stream, 100)
    log.close()
    assert_as_appended(open_log(disk, SETTINGS), stream, 100)


def test_a_writer_thread_that_waits_for_space_can_be_closed(
    disk: FakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SPACE_INTERVAL_S", 60.0)
    log = open_log(disk, SETTINGS, start_writer=True)
    stream = log.stream("one")
    looked = threading.Event()
    outcomes: list[BaseException | None] = []

    def look(call: str, path: str) -> None:
        if call == "free_bytes":
            looked.set()

    with log.together(5000):
        log.append(stream, 5, [b"k"], [bytes(4000)])
        take_space(disk)
        disk.fail = look
    log.on_durable(outcomes.append)
    assert looked.wait(PATIENCE_S)
    log.close()
    assert [type(error) for error in outcomes] == [LogFailed]
    return_space(disk)
    again = open_log(disk, SETTINGS)
    assert again.next_seq(again.stream("one")) == 0


@pytest.mark.parametrize("leave", [300, 1000, 4000, 15000])
def test_what_hubs_have_makes_room_although_others_took_the_disk(disk: FakeFileSystem, leave: int) -> None:
    """Others take what the full file gives back when it is sealed; then the hub comes back."""
    disk.capacity = None
    log = open_log(disk, LogSettings(segment_bytes=64 << 10, budget_bytes=1 << 20, tail_bytes=0))
    stream = log.stream("one")
    for seq in range(8):
        put(log, stream, random.Random(seq).randbytes(50_000))
    outcomes: list[BaseException | None] = []
    log.append(stream, 5, [b"k"], [random.Random(20).randbytes(20_000)])
    log.on_durable(outcomes.append)
    cut: list[str] = []

    def steal(call: str, path: str) -> None:
        if call == "truncate":
            cut.append(path)
        elif call == "sync" and cut and disk.capacity is None:
            take_space(disk, leave)

    disk.fail = steal
    commit_all(log)
    assert log.failed is None
    assert log.committer.waits_for_space
    log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    commit_all(log)
    log.committer.housekeep()
    commit_all(log)
    assert outcomes == [None]
