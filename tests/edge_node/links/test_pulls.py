"""The pace of pulls, on a clock of the test."""

from __future__ import annotations

import pytest

from weft.edge_node.links.pulls import PIECE_BYTES_MAX, PIECE_BYTES_MIN, STEP_BYTES, PullPace, PullPlan
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log.reader import FoundBatch


def run(pace: PullPace, line: int, commit_s: float, seconds: float) -> list[tuple[float, int]]:
    """Send pieces over a line of some bytes a second to a hub that takes some time. Return (begin, bytes) of each."""
    now, sent = 0.0, list[tuple[float, int]]()
    while now < seconds:
        now += pace.wait_s(now)
        sent.append((now, pace.piece))
        pace.begins(pace.piece, now)
        now += sent[-1][1] / line + commit_s
        pace.ends(now)
    return sent


@pytest.mark.parametrize("rate", [2_000, 64 << 10, 1 << 20])
def test_the_rate_is_kept_and_used(rate: int) -> None:
    sent = run(PullPace(rate, 0.0), 100 << 20, 0.02, 60.0)
    total = sum(size for _, size in sent)
    assert 0.8 * rate * 60 <= total <= 1.1 * rate * 60 + PIECE_BYTES_MIN


def test_pieces_of_a_slow_line_stay_short() -> None:
    sent = run(PullPace(1 << 20, 0.0), 64 << 10, 0.05, 60.0)
    assert max(size for _, size in sent) <= 40 << 10, "0.6 s of the line"
    assert sum(size for _, size in sent) >= 0.7 * 60 * (64 << 10), "and the line is used"


def test_pieces_of_a_fast_line_grow() -> None:
    assert max(size for _, size in run(PullPace(64 << 20, 0.0), 100 << 20, 0.05, 10.0)) == PIECE_BYTES_MAX


def test_a_line_that_becomes_slower_gets_shorter_pieces() -> None:
    pace = PullPace(64 << 20, 0.0)
    run(pace, 100 << 20, 0.05, 10.0)
    now = 10.0
    for _ in range(12):
        pace.begins(pace.piece, now)
        now += pace.piece / (64 << 10) + 0.05
        pace.ends(now)
    assert pace.piece <= 32 << 10


def test_a_plan_has_each_number_once() -> None:
    found = [FoundBatch(10, 20, 100), FoundBatch(0, 10, 100), FoundBatch(10, 20, 100), FoundBatch(30, 40, 5000)]
    plan = PullPlan([*found, FoundBatch(15, 25, 80)])
    assert plan.ranges == RangeSet([(0, 25), (30, 40)])
    assert plan.records == 35
    assert [(each.first, each.end) for each in plan.steps()] == [(0, 25), (30, 40)]


def test_a_plan_of_small_batches_is_small() -> None:
    plan = PullPlan([FoundBatch(each, each + 1, 60) for each in range(10_000)])
    steps = list(plan.steps())
    assert sum(each.size for each in steps) == plan.bytes == 600_000
    assert len(steps) <= 600_000 / STEP_BYTES + 1
    assert [each.end for each in steps[:-1]] == [each.first for each in steps[1:]]
