"""Chunks with messages that wait are kept for them."""

from __future__ import annotations

import pytest

from weft.cloud_hub.shard.collector import BEFORE_NS, SPARED_NS_MAX, spared_from, waiting_lanes
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import DOWN_STREAM, Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState

NOW = 100 * SPARED_NS_MAX
LANE = Lane("default", "press-1", 0, DOWN_STREAM)


@pytest.mark.parametrize(
    ("mark", "spared"),
    [
        (Mark(NOW - 5, 3), NOW - 5 - BEFORE_NS),
        (Mark(NOW - 5, 4), NOW),
        (Mark(NOW - 2 * SPARED_NS_MAX, 3), NOW - SPARED_NS_MAX),
        (None, NOW - SPARED_NS_MAX),
    ],
)
def test_the_moment_from_which_chunks_are_kept(mark: Mark | None, spared: int) -> None:
    state = ShardState(b"c" * 16, 0)
    state.set_lane(LANE, LaneState(ranges=RangeSet([(0, 4)]), whole_mark=mark))
    state.set_lane(LANE._replace(stream="telemetry"), LaneState(ranges=RangeSet([(0, 4)])))
    assert spared_from(state, NOW) == spared
    assert set(waiting_lanes(state)) == (set() if spared == NOW else {LANE})
