"""Turns in proportion to weights, in which every lane gets its turn."""

from __future__ import annotations

from collections import Counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.link import Gap
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.policy import Order, PolicyRules, SendPolicy, StreamWindows
from weft.replication.sender_lanes import FairTurns, SenderLane, SenderLanes
from weft.replication.source import LaneSnapshot, OfferedLane


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 100), min_size=2), st.integers(1, 4000))
def test_lanes_that_all_wait_share_by_weight(weights: dict[int, int], size: int) -> None:
    turns = FairTurns()
    for key, weight in weights.items():
        turns.add(key, weight)
    had: Counter[int] = Counter()
    rounds = 20 * sum(weights.values())
    for _ in range(min(rounds, 4000)):
        first = turns.first()
        assert first is not None
        turns.charge(first, size)
        had[first] += size
    shares = [had[key] / weight for key, weight in weights.items()]
    assert max(shares) - min(shares) <= 2 * size / min(weights.values())


def test_a_lane_that_comes_back_goes_next_and_claims_nothing_for_its_absence() -> None:
    turns = FairTurns()
    turns.add(1, 10)
    for _ in range(1000):
        turns.charge(1, 500)
    turns.add(2, 10)
    order = []
    for _ in range(6):
        key = turns.first()
        assert key is not None
        turns.charge(key, 500)
        order.append(key)
    assert order[0] == 2
    assert Counter(order) == {1: 3, 2: 3}
    turns.drop(1)
    turns.forget(2)
    assert turns.first() is None


@given(st.lists(st.tuples(st.sampled_from("ascdf"), st.integers(0, 5), st.integers(1, 900)), max_size=60))
def test_first_is_a_waiting_lane_whatever_came_before(steps: list[tuple[str, int, int]]) -> None:
    turns, waiting = FairTurns(), set()
    for step, key, size in steps:
        match step:
            case "a" | "s":
                turns.add(key, 1 + key)
                waiting.add(key)
            case "c":
                turns.charge(key, size)
            case "d":
                turns.drop(key)
                waiting.discard(key)
            case _:
                turns.forget(key)
                waiting.discard(key)
        first = turns.first()
        assert (first in waiting) if waiting else first is None


# --- Lanes that wait behind all others: those of pulls


LIVE, PULLED = 1, 2


def lanes_of(policy: SendPolicy | None) -> SenderLanes:
    lanes = SenderLanes(policy)
    for key, stream, flags in ((LIVE, "telemetry", LaneFlag(0)), (PULLED, "vibration", LaneFlag.PARTIAL)):
        offered = OfferedLane(key, stream, (), flags=flags, is_background=key == PULLED)
        lane = SenderLane(offered, Lane("default", "press-7", 1, stream), 1, snapshot(0, 0))
        lanes.add(lane)
        lanes.opened(lane, RangeSet())
    return lanes


def snapshot(first: int, end: int) -> LaneSnapshot:
    return LaneSnapshot(RangeSet([(first, end)] if end > first else []), end, [], None)


def offer(lanes: SenderLanes, key: int, end: int) -> None:
    lanes[key].offer(snapshot(0, end))
    lanes.touch(lanes[key])


def read(lanes: SenderLanes) -> int | None:
    """Return the lane that is read next, and read one record of it."""
    found = lanes.next_wanted()
    if found is None:
        return None
    lane, seq = found
    lane.claim(seq, seq + 1)
    return lane.key


POLICIES = {
    "none": None,
    "plain": PolicyRules(),
    "priorities": PolicyRules(priorities=(("vib*", 100), ("tele*", 1))),
    "fresh first": PolicyRules(order=Order.FRESH_FIRST),
}


@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES)
def test_a_pull_waits_behind_everything_else(rules: PolicyRules | None) -> None:
    lanes = lanes_of(None if rules is None else SendPolicy(rules))
    offer(lanes, PULLED, 3)
    offer(lanes, LIVE, 2)
    assert [read(lanes) for _ in range(3)] == [LIVE, LIVE, PULLED]
    offer(lanes, LIVE, 4)
    assert [read(lanes) for _ in range(5)] == [LIVE, LIVE, PULLED, PULLED, None]


def test_a_schedule_holds_a_pull_too() -> None:
    shut = StreamWindows(("vib*",), (), ZoneInfo("UTC"))
    policy = SendPolicy(PolicyRules(schedule=(shut,)))
    policy.look(0, 0)
    lanes = lanes_of(policy)
    offer(lanes, PULLED, 3)
    offer(lanes, LIVE, 1)
    assert [read(lanes) for _ in range(2)] == [LIVE, None]


# --- Numbers that the receiver need not keep


def test_a_receiver_is_told_what_is_safe_elsewhere_also_of_records_that_it_has_and_of_each_number_once() -> None:
    offered = OfferedLane(1, "s", (), tells_safe=True)
    lane = SenderLane(offered, Lane("t", "e", 7, "s"), 1, LaneSnapshot(RangeSet([(0, 20)]), 20, [], None))
    lane.open(4)
    lane.opened(RangeSet([(0, 10)]))

    def told(*safe: tuple[int, int], reading: tuple[tuple[int, int], ...] = ()) -> list[Gap]:
        held = RangeSet([(0, 20)])
        for first, end in safe:
            held.remove(first, end)
        gaps = [GapRange(first, end, GapReason.ABSENT) for first, end in safe]
        lane.offer(LaneSnapshot(held, 20, gaps, None))
        frames = lane.gap_frames(100, RangeSet(reading))
        assert all(isinstance(frame, Gap) for frame in frames)
        return [frame for frame in frames if isinstance(frame, Gap)]

    assert told((0, 5)) == [Gap(4, 0, 5, GapReason.ABSENT)]
    assert told((0, 12), reading=((10, 14),)) == [Gap(4, 5, 10, GapReason.ABSENT)]
    assert told((0, 12)) == [Gap(4, 10, 12, GapReason.ABSENT)], "it comes behind its records"
    assert told((0, 12)) == []
    assert not lane.reported, "nothing is lost"
