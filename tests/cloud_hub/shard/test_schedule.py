"""A shard commits at once after a silence, waits for company when busy, and writes marks alone rarely."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.sequencer import CommitPace, CommitSchedule

SETTINGS = SequencerSettings(commit_interval_s=0.25, chunk_bytes_max=1000, mark_interval_s=10, follow_interval_s=2)


@pytest.fixture
def schedule() -> CommitSchedule:
    """A shard that wrote a chunk, committed and looked at 100 s."""
    schedule = CommitSchedule(SETTINGS)
    schedule.wrote_chunk(100)
    schedule.end_commit(schedule.begin_commit(0), 100, records_left=False)
    return schedule


def test_everything_is_due_at_the_start() -> None:
    schedule = CommitSchedule(SETTINGS)
    assert schedule.look_at == schedule.commit_at(1, urgent=True, pending=True) == -math.inf
    assert schedule.marks_are_due(0)


def test_records_wait_for_the_interval_since_the_last_commit_and_no_longer(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(1, urgent=True, pending=True) == 100.25


def test_a_link_that_soon_may_send_no_more_brings_the_next_commit_forward() -> None:
    schedule = CommitSchedule(replace(SETTINGS, commit_interval_s=1.0))
    schedule.end_commit(schedule.begin_commit(0), 100, records_left=False)
    assert schedule.commit_at(1, urgent=True, pending=True) == 101
    assert schedule.hurry()
    assert not schedule.hurry(), "it is said already"
    assert schedule.commit_at(1, urgent=True, pending=True) == 100.25
    schedule.end_commit(schedule.begin_commit(0), 100.25, records_left=False)
    assert schedule.commit_at(1, urgent=True, pending=True) == 101.25


def test_a_short_interval_is_not_hurried(schedule: CommitSchedule) -> None:
    assert not schedule.hurry()


def test_a_full_chunk_is_due_at_once(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(999, urgent=True, pending=True) == 100.25
    assert schedule.commit_at(1000, urgent=True, pending=True) == -math.inf


def test_marks_alone_wait_for_their_interval_since_the_last_chunk(schedule: CommitSchedule) -> None:
    schedule.end_commit(schedule.begin_commit(0), 109, records_left=False)  # a commit that wrote none
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


def test_a_look_says_only_what_was_there_when_it_began(schedule: CommitSchedule) -> None:
    assert schedule.head_at == -math.inf, "a commit that put no chunk has not seen the log"
    schedule.begin_look(101)
    schedule.looked(105, found=True)
    assert (schedule.head_at, schedule.look_at) == (101, 107)


def test_a_chunk_that_the_store_took_is_a_look_once_its_commit_ends(schedule: CommitSchedule) -> None:
    since = schedule.begin_commit(101)
    schedule.put_chunk(102)
    assert schedule.head_at == -math.inf, "the watermark may have passed it"
    schedule.end_commit(since, 105, records_left=False)
    assert (schedule.head_at, schedule.look_at) == (102, 107)


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
    assert schedule.begin_commit(0) is None
    schedule.records_came(101)
    schedule.records_came(102)
    assert schedule.begin_commit(0) == 101
    schedule.records_came(103)  # while the commit writes
    schedule.end_commit(101, 104, records_left=True)
    assert schedule.begin_commit(0) == 103


def test_records_that_found_no_room_wait_since_they_came(schedule: CommitSchedule) -> None:
    schedule.records_came(101)
    schedule.end_commit(schedule.begin_commit(0), 104, records_left=True)
    assert schedule.begin_commit(0) == 101
    schedule.end_commit(101, 105, records_left=False)
    assert schedule.begin_commit(0) is None


PACED = replace(SETTINGS, commit_interval_min_s=0.04)


def commit(schedule: CommitSchedule, now: float, *, took_s: float, spent_s: float) -> float:
    """Commit at ``now``; the seconds until the next one, while records wait."""
    since = schedule.begin_commit(now - took_s)
    schedule.spent(spent_s)
    schedule.end_commit(since, now, records_left=False)
    return round(schedule.commit_at(1, urgent=True, pending=True) - now, 6)


def test_records_wait_little_while_commits_are_cheap() -> None:
    schedule = CommitSchedule(PACED)
    assert commit(schedule, 100, took_s=0.004, spent_s=0.0005) == 0.04
    assert commit(schedule, 101, took_s=0.09, spent_s=0.0005) == 0.09, "a slow disk rests"
    assert commit(schedule, 102, took_s=0.02, spent_s=0.015) == 0.15, "a large chunk takes a fifth of the time"
    assert commit(schedule, 103, took_s=0.3, spent_s=0.2) == 0.25, "records never wait for longer than before"
    assert commit(schedule, 104, took_s=0.004, spent_s=0.0005) == 0.04


def test_the_shards_of_a_process_share_its_time() -> None:
    pace = CommitPace(PACED)
    shards = [CommitSchedule(PACED, pace) for _ in range(64)]
    waits_s = [commit(shard, 100 + number / 1000, took_s=0.004, spent_s=0.0005) for number, shard in enumerate(shards)]
    assert waits_s[0] == 0.04
    assert waits_s[31] == 0.16
    assert waits_s[-1] == 0.25, "64 ms of each 250 are commits: never longer than before"
    later = [commit(shard, 102, took_s=0.004, spent_s=0.0005) for shard in shards[:8]]
    assert later[-1] == 0.04, "shards without records do not count"


def test_an_interval_that_was_set_is_kept() -> None:
    assert commit(CommitSchedule(SETTINGS), 100, took_s=0.004, spent_s=0.0005) == 0.25
