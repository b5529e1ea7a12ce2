"""Lanes that wait behind all others: those of pulls."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from weft.protocols.chunk_index import LaneFlag
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.replication.policy import Order, PolicyRules, SendPolicy, StreamWindows
from weft.replication.sender_lanes import SenderLane, SenderLanes
from weft.replication.source import LaneSnapshot, OfferedLane

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
