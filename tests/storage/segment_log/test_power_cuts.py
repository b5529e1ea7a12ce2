"""The log under power cuts, failing calls and rot, by the thousand; and the proof that the search would find a mistake.

More of the same: ``python -m tests.storage.segment_log.power_cuts --cuts 1000000 --processes 2``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from tests.storage.fakes import ERRNOS, FailureHook, FakeFile, FakeFileSystem, injected
from tests.storage.segment_log.helpers import Clock, commit_all, open_log, read_all, segment_paths
from tests.storage.segment_log.power_cuts import run_seeds, shrink
from tests.storage.segment_log.power_cuts_workload import Machine, Oracle, PowerCuts, Violation, act
from tests.support.sealed_logs import seal
from tests.support.slices import SLICE
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogFailed, LogSettings, SegmentLog, recovery, segment_file, space
from weft.storage.segment_log.commit import Committer
from weft.storage.segment_log.index import notices

SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=1500, pending_bytes_max=1 << 16)


def check(seeds: range) -> None:
    outcome = run_seeds(seeds.start, seeds.stop)
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.cuts >= 30 * len(seeds)


def test_power_cuts_lose_alter_double_and_invent_nothing() -> None:
    check(range(20_261_120, 20_261_122))


@pytest.mark.parametrize(
    ("seed", "keep"),
    [
        pytest.param(5000694, None, id="a commit longer than a segment"),
        pytest.param(9000026, [45], id="the sync of a new segment's name fails with ENOSPC"),
        pytest.param(
            31000169,
            [6, 7, 8, 9, 10, 11, 13, 14, 19, 32, 33, 34, 35, 36, 37, 41, 51, 52],
            id="a release after an append leads to moves that leave no room to drop",
        ),
    ],
)
def test_lives_that_once_went_over_the_budget(seed: int, keep: list[int] | None) -> None:
    PowerCuts(seed, keep=keep, plain=True).run()


def test_an_id_file_that_is_left_half_replaced_counts_as_well() -> None:
    PowerCuts(3000067, keep=[31, 32, 36, 38, 40, 41, 43, 44, 46, 47, 49, 50]).run()


@pytest.mark.search
@pytest.mark.timeout(600)
def test_thousands_of_power_cuts() -> None:
    check(SLICE.seeds(ci=8, night=100))


@pytest.mark.search
@pytest.mark.timeout(600)
def test_power_cuts_of_an_encrypted_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same promises as of a log in clear text."""
    seal(monkeypatch)
    check(SLICE.seeds(ci=4, night=50))


# --- that the search finds mistakes


def _no_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeFile, "sync", lambda file: file._call("sync"))


def _no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeFileSystem, "sync_directory", lambda disk, path: disk.call("sync_directory", path))


def _early_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    run_once = Committer.run_once

    def tell_first(committer: Committer) -> bool:
        for commit in committer._state.queue._commits:
            for callback in commit.callbacks:
                callback(None)
        return run_once(committer)

    patch.setattr(Committer, "run_once", tell_first)


def _everything_counts_as_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(space, "unreleased", lambda lane, span, start=0: RangeSet())


def _drops_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_file, "notices", lambda *arguments: notices(*arguments)[1:])


def _notices_are_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_file, "needed_gaps", lambda state, segment, others: [])


def _records_are_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_file, "moved_batches", lambda filesystem, victims: iter(()))


def _seals_are_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_seal_again", lambda filesystem, segment: None)


@pytest.mark.parametrize(
    ("break_log", "first"),
    [
        (_no_sync, 10),
        (_no_directory_sync, 10),
        (_early_acknowledgement, 10),
        (_everything_counts_as_released, 12),
        (_drops_are_not_noticed, 17),
        (_notices_are_not_moved, 11),
        (_records_are_not_moved, 12),
        (_seals_are_trusted, 46),  # of the workloads before it one notices, and all take half a minute
    ],
)
def test_a_log_that_breaks_a_promise_is_found_out(
    break_log: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_log(monkeypatch)
    for seed in range(first, first + 100):
        with contextlib.suppress(Violation):
            PowerCuts(seed).run()
            continue
        return
    pytest.fail("100 workloads, and nothing was noticed")


def test_a_failure_is_repeated_by_its_seed_and_made_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    _early_acknowledgement(monkeypatch)
    with pytest.raises(Violation) as first:
        PowerCuts(4).run()
    with pytest.raises(Violation) as second:
        PowerCuts(4).run()
    assert str(first.value) == str(second.value)
    assert "python -m tests.storage.segment_log.power_cuts --replay 4" in str(first.value)
    kept = shrink(4)
    assert 0 < len(kept) <= 3
    with pytest.raises(Violation):
        PowerCuts(4, keep=kept).run()


# --- every call, every errno


def reopen(disk: FakeFileSystem, oracle: Oracle) -> SegmentLog:
    disk.drop_locks()
    log = open_log(disk, SETTINGS)
    oracle.check_reopened(log)
    oracle.adopt(log)
    return log


def live_once(disk: FakeFileSystem, oracle: Oracle) -> None:
    """A short life that makes every kind of call: starts, rotates, deletes, reads, closes, starts again."""
    chance = random.Random(7)
    for _ in range(2):
        machine = Machine(disk, oracle, reopen(disk, oracle), Clock().wall)
        machine.release_again()
        for _ in range(9):
            act(machine, "append", chance)
            commit_all(machine.log)
            machine.release(chance)
        with contextlib.suppress(LogFailed):
            machine.log.shortage()
            for stream in machine.log.streams().values():
                machine.log.read(stream, 0, 1 << 16)
        machine.log.close()


def _at(disk: FakeFileSystem, failing: int, number: int) -> FailureHook:
    return lambda call, path: injected(number) if len(disk.calls) == failing + 1 else None


def failing_lives(numbers: Iterator[int], every: int = 1) -> None:
    """One life for every call that a life makes, or for some of them, in which that call fails."""
    disk = FakeFileSystem()
    live_once(disk, Oracle())
    calls = len(disk.calls)
    assert calls > 150
    for failing in range(0, calls, every):
        disk, oracle, number = FakeFileSystem(), Oracle(), next(numbers)

        disk.fail = _at(disk, failing, number)
        with contextlib.suppress(OSError, LogFailed):
            live_once(disk, oracle)
        failed_call = disk.calls[failing]
        disk.kill_process()
        for name in ("after the failure", "after a power cut"):
            try:
                oracle.check(reopen(disk, oracle), random.Random(failing))
            except Violation as violation:
                raise AssertionError(f"{name} with errno {number} of call {failing} {failed_call}") from violation
            disk = disk.power_cut(random.Random(failing))


def test_any_call_may_fail_with_some_errno() -> None:
    failing_lives(itertools.cycle(ERRNOS), every=5)


@pytest.mark.search
@pytest.mark.parametrize("number", SLICE.some(ERRNOS, ci=1), ids=errno.errorcode.__getitem__)
def test_any_call_may_fail_with_any_errno(number: int) -> None:
    failing_lives(itertools.repeat(number))


# --- rot

SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_flipped_bits_cost_only_what_a_notice_names(seed: int) -> None:
    chance = random.Random(seed)
    disk, oracle = FakeFileSystem(), Oracle()
    machine = Machine(disk, oracle, open_log(disk, SETTINGS), Clock().wall)
    for _ in range(12):
        act(machine, "append", chance)
        commit_all(machine.log)
    machine.log.close()
    # One bit of a file. Two may be the seal and the last commit, and then that reads as torn (docs/durability.md).
    paths = segment_paths(disk)
    for path in chance.sample(paths, chance.randint(1, len(paths))):
        disk.flip(path, chance.randrange(disk.size(path)), chance.randrange(8))
    for lane in oracle.lanes.values():
        lane.may_rot = True
    for _ in range(3):
        log = reopen(disk, oracle)
        for number in log.streams().values():
            read_all(log, number)  # what a read finds damaged is given up now
        commit_all(log)
        oracle.check(log, chance)
        disk = disk.power_cut(chance)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_cannot_be_read_cost_only_what_a_notice_names(seed: int) -> None:
    chance = random.Random(seed)
    disk, oracle = FakeFileSystem(), Oracle()
    roomy = LogSettings(segment_bytes=1 << 14, budget_bytes=1 << 18, tail_bytes=0)
    machine = Machine(disk, oracle, open_log(disk, roomy), Clock().wall)
    for _ in range(chance.randint(1, 20)):
        act(machine, "append", chance)
        commit_all(machine.log)
    # The process ends in the middle of its life, and the newest file has lost a block or two.
    newest = segment_paths(disk)[-1]
    first = chance.randrange(4) * 4096
    disk.lose_blocks(newest, first, first + chance.choice((512, 4096, 8192)))
    for lane in oracle.lanes.values():
        lane.may_rot = lane.may_be_unreadable = True
    for _ in range(3):
        disk.kill_process()
        log = open_log(disk, roomy)
        for name, lane in oracle.lanes.items():
            # The names of streams may be in the block as well.
            assert log.next_seq(log.stream(name)) >= lane.acked
        commit_all(log)
        oracle.check_reopened(log)
        oracle.check(log, chance)
        disk = disk.power_cut(chance)
