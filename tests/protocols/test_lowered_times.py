"""A TIME record lowers the time of a shard, and what came from the wrong one, so that ages count right again."""

from __future__ import annotations

import msgspec
import pytest

from tests.protocols.test_shard_state import CLUSTER, LANE, update
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    ChunkHeader,
    Control,
    ControlKind,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    index_of,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import TimeBody, apply
from weft.protocols.shard.lane_state import ConflictBody, RetireBody, RetiredBy
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import SkipBody

NOW = 1_700_000_000 * 10**9
YEARS = 14 * 365 * 86_400 * 10**9
WRONG = NOW + YEARS
SECOND = 10**9
GONE = Lane("default", "edge-2", 8, "telemetry")


def chunk(held: ShardState, created: int, *lanes: LaneUpdate, controls: tuple[Control, ...] = ()) -> Chunk:
    header = ChunkHeader(CLUSTER, held.n + 1, created, 0, held.footer_crc, 0)
    records = sum(end - first for lane in lanes for first, end in lane.ranges)
    base = held.next_offset.get((LANE.tenant, LANE.stream), 0)
    sections = [StreamSection(LANE.tenant, LANE.stream, base, records, 0, 0, 0, 0, 0)] if records else []
    reported = StreamBlock(list(lanes), list(controls), [])
    return Chunk(header, index_of(header, FIRST_LEVEL, sections, reported), 1000 + held.n)


def time_record(time: int) -> Control:
    return Control(ControlKind.TIME, "", "", 0, "", msgspec.msgpack.encode(TimeBody(time, "the clock was of 2040")))


def reported(kind: ControlKind, body: object, lane: Lane = LANE) -> Control:
    return Control(kind, *lane, msgspec.msgpack.encode(body) if body is not None else b"")


def of_2040() -> ShardState:
    """A shard to which a node with a wrong clock wrote of everything that gets a time."""
    held = ShardState(CLUSTER, 0)
    apply(held, chunk(held, NOW - SECOND, update(ranges=[(0, 3)], mark=Mark(NOW - SECOND, 3))))
    apply(held, chunk(held, WRONG, update(ranges=[(3, 9)]), update(GONE, ranges=[(0, 2)])))
    apply(
        held,
        chunk(
            held,
            WRONG,
            controls=(
                reported(ControlKind.RETIRE, RetireBody(RetiredBy.OPERATOR, "gone"), GONE),
                reported(ControlKind.CONFLICT, ConflictBody(1, "a copy")),
                Control(
                    ControlKind.SKIP,
                    LANE.tenant,
                    "",
                    0,
                    LANE.stream,
                    msgspec.msgpack.encode(SkipBody(1, 2, "no row", [])),
                ),
            ),
        ),
    )
    return held


def test_ages_count_from_the_told_time() -> None:
    held = of_2040()
    apply(held, chunk(held, NOW + 5, controls=(time_record(NOW),)))
    lane, gone = held.lanes[LANE], held.lanes[GONE]
    assert (held.created, lane.last_seen, gone.last_seen) == (NOW, NOW, NOW)
    assert lane.conflict is not None
    assert gone.retired is not None
    assert (lane.conflict.time, gone.retired.time) == (NOW, NOW)
    assert [skip.time for skip in held.skips[LANE.tenant, LANE.stream]] == [NOW]
    assert lane.ranges.covers(0, 9), "records and marks are the edge's, and stay"
    assert lane.mark == Mark(NOW - SECOND, 3)
    apply(held, chunk(held, NOW + SECOND, update(ranges=[(9, 10)])))
    assert (held.created, held.lanes[LANE].last_seen) == (NOW + SECOND, NOW + SECOND), "and it continues from there"
    assert ShardState.decode(held.encode()).encode() == held.encode()


def test_a_follower_of_one_stream_comes_to_the_same_times() -> None:
    held, follower = ShardState(CLUSTER, 0), ShardState(CLUSTER, 0, only=frozenset({(LANE.tenant, LANE.stream)}))
    apply(held, first := chunk(held, WRONG, update(ranges=[(0, 3)])))
    apply(follower, first)
    apply(held, then := chunk(held, NOW, controls=(time_record(NOW),)))
    apply(follower, then)
    assert follower.created == held.created == NOW
    assert follower.lanes == held.lanes


def test_open_gaps_end_at_the_told_time_at_the_latest() -> None:
    held = of_2040()
    apply(held, chunk(held, WRONG + 1, controls=(reported(ControlKind.DROP, None, GONE),)))
    [gap] = held.open_gaps[GONE.tenant, GONE.stream]
    assert gap.until == WRONG
    apply(held, chunk(held, NOW, controls=(time_record(NOW),)))
    [gap] = held.open_gaps[GONE.tenant, GONE.stream]
    assert (gap.edge, gap.first, gap.until) == (GONE.edge, 2, NOW)


def test_a_lane_that_left_before_comes_back_without_the_wrong_time() -> None:
    held = of_2040()
    kept = snapshots.encode_lane(snapshots.lane_snapshot(GONE, held.lanes[GONE]))
    apply(held, chunk(held, WRONG, controls=(reported(ControlKind.DROP, None, GONE),)))
    apply(held, chunk(held, NOW, controls=(time_record(NOW),)))
    apply(held, chunk(held, NOW + SECOND, controls=(Control(ControlKind.ADOPT, *GONE, kept),)))
    lane = held.lanes[GONE]
    assert lane.last_seen == NOW + SECOND
    assert lane.retired is not None
    assert lane.retired.time == NOW + SECOND


@pytest.mark.parametrize(
    ("created", "time", "kept"),
    [
        (NOW + SECOND, WRONG, NOW + SECOND),  # at most the time of its own chunk, which a sound clock made
        (WRONG + 5, WRONG + 9, WRONG + 5),  # it lowers, and never raises
    ],
)
def test_a_record_is_bounded(created: int, time: int, kept: int) -> None:
    held = ShardState(CLUSTER, 0)
    apply(held, chunk(held, WRONG, update(ranges=[(0, 1)])))
    apply(held, chunk(held, created, controls=(time_record(time),)))
    assert held.created == kept
    assert held.lanes[LANE].last_seen == min(WRONG, kept)


def test_the_time_never_goes_back_without_one() -> None:
    held = of_2040()
    apply(held, chunk(held, NOW, update(ranges=[(9, 10)], mark=Mark(NOW, 10))))
    assert (held.created, held.lanes[LANE].last_seen) == (WRONG, WRONG)


def test_a_damaged_record_is_refused_whole() -> None:
    held = of_2040()
    before = held.encode()
    with pytest.raises(Corrupt, match="a TIME record"):
        apply(held, chunk(held, NOW, controls=(Control(ControlKind.TIME, "", "", 0, "", b"\x91"),)))
    assert held.encode() == before
