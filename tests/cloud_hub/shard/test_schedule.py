"""A shard commits at once after a silence, waits for company when busy, and writes marks alone rarely."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.schedule import CommitSchedule

SETTINGS = SequencerSettings(commit_interval_s=0.25, chunk_bytes_max=1000, mark_interval_s=10, follow_interval_s=2)


@pytest.fixture
def schedule() -> CommitSchedule:
    """A shard that wrote a chunk, committed and looked at 100 s."""
    schedule = CommitSchedule(SETTINGS)
    schedule.wrote_chunk(100)
    schedule.end_commit(schedule.begin_commit(), 100, records_left=False)
    return schedule


def test_everything_is_due_at_the_start() -> None:
    schedule = CommitSchedule(SETTINGS)
    assert schedule.look_at == schedule.commit_at(1, urgent=True, pending=True) == -math.inf
    assert schedule.marks_are_due(0)


def test_records_wait_for_the_interval_since_the_last_commit_and_no_longer(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(1, urgent=True, pending=True) == 100.25


def test_a_link_that_soon_may_send_no_more_brings_the_next_commit_forward() -> None:
    schedule = CommitSchedule(replace(SETTINGS, commit_interval_s=1.0))
    schedule.end_commit(schedule.begin_commit(), 100, records_left=False)
    assert schedule.commit_at(1, urgent=True, pending=True) == 101
    assert schedule.hurry()
    assert not schedule.hurry(), "it is said already"
    assert schedule.commit_at(1, urgent=True, pending=True) == 100.25
    schedule.end_commit(schedule.begin_commit(), 100.25, records_left=False)
    assert schedule.commit_at(1, urgent=True, pending=True) == 101.25


def test_a_short_interval_is_not_hurried(schedule: CommitSchedule) -> None:
    assert not schedule.hurry()


def test_a_full_chunk_is_due_at_once(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(999, urgent=True, pending=True) == 100.25
    assert schedule.commit_at(1000, urgent=True, pending=True) == -math.inf


def test_marks_alone_wait_for_their_interval_since_the_last_chunk(schedule: CommitSchedule) -> None:
    schedule.end_commit(schedule.begin_commit(), 109, records_left=False)  # a commit that wrote none
    assert schedule.commit_at(0, urgent=False, pending=True) == 110
    assert not schedule.marks_are_due(109.9)
    assert schedule.marks_are_due(110)


def test_a_mark_that_follows_records_waits_less_long_than_those_of_idle_lanes() -> None:
    for interval_s, trailing_at in ((60, 110), (5, 105)):
        schedule = CommitSchedule(replace(SETTINGS, mark_interval_s=interval_s))
        schedule.wrote_chunk(100)
        assert schedule.commit_at(0, urgent=False, pending=True) == 100 + interval_s
        assert schedule.commit_at(0, urgent=False, pending=True, trailing=True) == trailing_at
        assert schedule.marks_are_due(trailing_at, trailing=True)
        assert not schedule.marks_are_due(trailing_at - 0.1, trailing=True)


def test_nothing_is_due_while_nothing_is_pending(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(0, urgent=False, pending=False) == math.inf


def test_a_commit_or_a_look_puts_off_the_next_look(schedule: CommitSchedule) -> None:
    assert schedule.look_at == 102
    schedule.looked(101, found=True)
    assert schedule.look_at == 103


def test_looks_that_find_nothing_become_rare_until_one_finds_something(schedule: CommitSchedule) -> None:
    for wait_s in (4, 8, 16, 32, 32):
        now = schedule.look_at
        schedule.looked(now, found=False)
        assert schedule.look_at - now == wait_s
    schedule.look_now()
    assert schedule.look_at <= now, "a reader does not wait"
    schedule.looked(now, found=True)
    assert schedule.look_at == now + 2


def test_a_commit_takes_as_long_as_its_oldest_records_wait(schedule: CommitSchedule) -> None:
    assert schedule.begin_commit() is None
    schedule.records_came(101)
    schedule.records_came(102)
    assert schedule.begin_commit() == 101
    schedule.records_came(103)  # while the commit writes
    schedule.end_commit(101, 104, records_left=True)
    assert schedule.begin_commit() == 103


def test_records_that_found_no_room_wait_since_they_came(schedule: CommitSchedule) -> None:
    schedule.records_came(101)
    schedule.end_commit(schedule.begin_commit(), 104, records_left=True)
    assert schedule.begin_commit() == 101
    schedule.end_commit(101, 105, records_left=False)
    assert schedule.begin_commit() is None
