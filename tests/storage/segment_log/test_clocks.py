"""Clock notices: what became known of a boot's clock stays as long as its records may."""

from __future__ import annotations

import random

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all, open_log, put, segment_paths
from weft.protocols.segment import BOOTS_MAX, ClockNotice
from weft.storage.segment_log import LogSettings

TIGHT = LogSettings(segment_bytes=4096, budget_bytes=5 * 4096, tail_bytes=0)
NOTICE = ClockNotice(7, 5_000, 1_700_000_000_000_000_000, 1_000)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


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
