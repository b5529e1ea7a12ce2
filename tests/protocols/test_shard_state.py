from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    ChunkHeader,
    GapRange,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    index_of,
)
from weft.protocols.errors import Corrupt, Truncated, UnsupportedVersion
from weft.protocols.lane import Lane, NodeName, Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import PENDING_MARKS_MAX, LaneState, earliest
from weft.protocols.shard.shard_state import ShardState, origin_bytes, topic_bytes
from weft.protocols.shard.snapshot import FIELDS_MAX, FIELDS_PER_EDGE_MAX, HEADER_BYTES
from weft.protocols.topics import LEVEL_NAME_MAX, InvalidTopic, compile_pattern

CLUSTER = b"c" * 16
LANE = Lane("default", "edge-1", 7, "telemetry")


def update(
    lane: Lane = LANE,
    ranges: list[tuple[int, int]] | None = None,
    *,
    gaps: list[GapRange] | None = None,
    mark: Mark | None = None,
    epoch: int = 1,
    topics: list[str] | None = None,
    payload: int | None = None,
    origins: list[Origin] | None = None,
) -> LaneUpdate:
    return LaneUpdate(*lane, epoch, ranges or [], gaps or [], mark, topics, payload, origins or [])


def next_chunk(state: ShardState, *updates: LaneUpdate) -> Chunk:
    """The chunk that a writer at ``state`` would make of these updates."""
    counts: dict[tuple[str, str], int] = {}
    for item in updates:
        records = sum(end - first for first, end in item.ranges)
        counts[item.tenant, item.stream] = counts.get((item.tenant, item.stream), 0) + records
    sections = [
        StreamSection(tenant, stream, state.next_offset.get((tenant, stream), 0), count, 0, 0, 0, 0, 0)
        for (tenant, stream), count in counts.items()
        if count
    ]
    n = state.n + 1
    header = ChunkHeader(state.cluster_id, n, 0, state.shard, state.footer_crc, 0)
    return Chunk(header, index_of(header, FIRST_LEVEL, sections, StreamBlock(list(updates), [], [])), 1000 + n)


def fold(*chunks: list[LaneUpdate]) -> ShardState:
    state = ShardState(CLUSTER, 0)
    for updates in chunks:
        apply(state, next_chunk(state, *updates))
    return state


LANES = [Lane("default", edge, 1, stream) for edge in ("a", "b") for stream in ("s", "t")]


@st.composite
def histories(draw: st.DrawFn) -> list[list[LaneUpdate]]:
    """Updates that a hub could have written: nothing twice, some of it out of order, marks of every kind."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    held = {lane: RangeSet() for lane in LANES}
    history = []
    for _ in range(draw(st.integers(1, 12))):
        updates = []
        for lane in rng.sample(LANES, rng.randint(1, len(LANES))):
            first = rng.randrange(60)
            missing = held[lane].missing(first, first + rng.randint(1, 20))
            held[lane].update(missing)
            gaps = [GapRange(*piece, 1) for piece in missing if rng.random() < 0.2]
            ranges = [piece for piece in missing if GapRange(*piece, 1) not in gaps]
            mark = Mark(rng.randrange(1000), rng.randrange(90)) if rng.random() < 0.6 else None
            topics = [f"plant/{{level{rng.randrange(4)}}}/x"] if rng.random() < 0.3 else None
            epoch, payload = rng.randint(1, 5), rng.choice([None, None, 0, 1, 2, 77])
            origins = [Origin(rng.randrange(1, 9), 1, "f", "v" * rng.randrange(3), b"")] if rng.random() < 0.3 else []
            updates.append(
                update(lane, ranges, gaps=gaps, mark=mark, epoch=epoch, topics=topics, payload=payload, origins=origins)
            )
        history.append(updates)
    return history


@given(histories(), st.integers(0, 12))
def test_a_fold_from_a_snapshot_equals_the_fold_from_the_start(history: list[list[LaneUpdate]], cut: int) -> None:
    whole = fold(*history)
    resumed = ShardState.decode(fold(*history[:cut]).encode())
    for updates in history[cut:]:
        apply(resumed, next_chunk(resumed, *updates))
    assert resumed.encode() == whole.encode()


@given(histories(), st.sampled_from(LANES))
def test_what_an_edge_has_of_texts_is_the_sum_of_its_lanes(history: list[list[LaneUpdate]], leaves: Lane) -> None:
    state = fold(*history)
    state.set_lane(leaves, None)
    for each in (state, ShardState.decode(state.encode())):
        for edge in ("a", "b"):
            lanes = each.edge_lanes("default", edge).values()
            node = NodeName("default", edge)
            assert each.texts.topics(node) == sum(topic_bytes(held.topics) for held in lanes)
            assert each.texts.origins(node) == sum(origin_bytes(held.origins) for held in lanes)


@given(histories())
def test_what_is_held_is_what_the_chunks_say(history: list[list[LaneUpdate]]) -> None:
    state = fold(*history)
    for lane in LANES:
        mine = [
            item for updates in history for item in updates if item.edge == lane.edge and item.stream == lane.stream
        ]
        records = RangeSet(piece for item in mine for piece in item.ranges)
        gaps = RangeSet((gap.first, gap.end) for item in mine for gap in item.gaps)
        held = state.lanes.get(lane, LaneState())
        assert RangeSet([*records, *gaps]) == held.ranges
        assert RangeSet((gap.first, gap.end) for gap in held.gaps) == gaps
        assert held.epoch == max((item.epoch for item in mine), default=0)
    for stream in ("s", "t"):
        records_of_stream = sum(
            end - first
            for updates in history
            for item in updates
            if item.stream == stream
            for first, end in item.ranges
        )
        assert state.next_offset.get(("default", stream), 0) == records_of_stream


@given(histories())
def test_completeness_is_never_claimed_too_early_and_never_taken_back(history: list[list[LaneUpdate]]) -> None:
    state = ShardState(CLUSTER, 0)
    reports: dict[Lane, list[Mark]] = {lane: [] for lane in LANES}
    before: dict[Lane, int | None] = dict.fromkeys(LANES)
    for updates in history:
        apply(state, next_chunk(state, *updates))
        for item in updates:
            if item.mark is not None:
                reports[Lane(item.tenant, item.edge, item.log_id, item.stream)].append(item.mark)
        for lane, held in state.lanes.items():
            end = held.ranges.contiguous_end()
            best = max((mark.time for mark in reports[lane] if mark.seq <= end), default=None)
            assert held.complete_up_to == best
            previous = before[lane]
            assert previous is None or (held.complete_up_to is not None and held.complete_up_to >= previous)
            before[lane] = held.complete_up_to


def test_a_mark_beyond_what_is_held_does_not_replace_the_proven_one() -> None:
    state = fold([update(ranges=[(0, 10)], mark=Mark(100, 10))], [update(ranges=[(15, 20)], mark=Mark(200, 20))])
    assert state.lanes[LANE].complete_up_to == 100
    assert state.lanes[LANE].newest_mark == Mark(200, 20)
    apply(state, next_chunk(state, update(gaps=[GapRange(10, 15, 1)])))
    assert state.lanes[LANE].complete_up_to == 200


def test_pending_marks_are_bounded_and_still_move_while_a_backlog_fills() -> None:
    lane = LaneState()
    for i in range(1, 1001):
        lane.add_mark(Mark(10 * i, i))
        assert len(lane.pending_marks) <= PENDING_MARKS_MAX
    assert lane.pending_marks[0] == Mark(10, 1)
    assert lane.newest_mark == Mark(10_000, 1000)
    moments = []
    for end in range(1, 1001):
        lane.ranges.add(end - 1, end)
        lane.prove_marks()
        moments.append(lane.complete_up_to or 0)
    steps = {later - earlier for earlier, later in pairwise(moments)}
    assert moments[-1] == 10_000
    assert max(steps) <= 10_000 * 4 // PENDING_MARKS_MAX, "the marks that stay are spread over the backlog"


def complete_up_to(state: ShardState, stream: str = "telemetry") -> int | None:
    lanes = state.stream_lanes("default", stream).values()
    return earliest(lane.complete_up_to for lane in lanes if lane.counts)


def test_a_stream_is_complete_up_to_its_latest_lane() -> None:
    other = LANE._replace(edge="edge-2")
    state = fold([update(ranges=[(0, 5)], mark=Mark(50, 5)), update(other, mark=Mark(70, 0))])
    assert complete_up_to(state, "telemetry") == 50
    apply(state, next_chunk(state, update(LANE._replace(edge="edge-3"))))
    assert complete_up_to(state, "telemetry") == 50, "nothing was said of this lane"
    apply(state, next_chunk(state, update(LANE._replace(edge="edge-3"), gaps=[GapRange(0, 1, 1)])))
    assert complete_up_to(state, "telemetry") is None
    assert complete_up_to(state, "unknown") is None
    assert earliest([]) is None


def test_neighbouring_gaps_of_one_reason_become_one() -> None:
    state = fold([update(gaps=[GapRange(5, 9, 1), GapRange(0, 5, 1)])], [update(gaps=[GapRange(9, 12, 2)])])
    assert list(state.lanes[LANE].gaps) == [GapRange(0, 9, 1), GapRange(9, 12, 2)]


def test_fields_grow_at_the_end_and_stay() -> None:
    state = fold(
        [update(topics=["plant/{line}/{machine}/t", "hall/+/{line}/#"])],
        [update(topics=["{site}/{machine}"])],
        [update(LANE._replace(edge="edge-2"), topics=["{line", "x{y}", "{}", "{site}"])],
    )
    assert state.stream_fields("default", "telemetry") == ["line", "machine", "site"]
    assert state.stream_fields("default", "other") == []


def test_no_edge_takes_all_columns_of_a_stream() -> None:
    state = fold([update(topics=["{site}"])])
    for edge in range(2, 9):
        topics = [f"{{f{edge}_{i}}}" for i in range(2 * FIELDS_MAX)]
        apply(state, next_chunk(state, update(LANE._replace(edge=f"edge-{edge}"), topics=topics)))
        apply(state, next_chunk(state, update(LANE._replace(edge=f"edge-{edge}"), topics=["{again}"])))
        named = [name for name in state.stream_fields("default", "telemetry") if name.startswith(f"f{edge}_")]
        assert len(named) == min(FIELDS_PER_EDGE_MAX, FIELDS_MAX - 1 - FIELDS_PER_EDGE_MAX * (edge - 2)) or not named
    assert len(state.stream_fields("default", "telemetry")) == FIELDS_MAX
    assert "again" not in state.stream_fields("default", "telemetry")
    assert ShardState.decode(state.encode()).encode() == state.encode()


def test_a_very_long_name_of_a_level_names_no_column() -> None:
    longest = "c" * LEVEL_NAME_MAX
    state = fold([update(topics=["plant/{" + longest + "}/x", "plant/{" + longest + "c}/x"])])
    assert state.stream_fields("default", "telemetry") == [longest]
    with pytest.raises(InvalidTopic, match="names a level with 129 characters"):
        compile_pattern("plant/{" + longest + "c}/x")


def test_the_kind_of_payloads_is_what_the_lane_said_last_also_one_of_a_later_release() -> None:
    other = LANE._replace(edge="edge-2")
    reported = [update(payload=2, ranges=[(0, 1)])], [update(ranges=[(1, 2)])], [update(other, payload=1)]
    state = fold(*reported, [update(other, payload=4_000_000_000)])
    assert [held.payload for held in (state.lanes[LANE], state.lanes[other])] == [2, 4_000_000_000]
    assert ShardState.decode(state.encode()).lanes[other].payload == 4_000_000_000


def _foreign(state: ShardState, **changes: Any) -> Chunk:
    chunk = next_chunk(state, update(ranges=[(10, 12)]))
    return chunk._replace(header=chunk.header._replace(**changes))


def test_a_chunk_that_does_not_continue_the_history_changes_nothing() -> None:
    state = fold([update(ranges=[(0, 10)])])
    before = state.encode()
    good = next_chunk(state, update(ranges=[(10, 12)]))
    section = good.footer.streams[0]
    shifted = StreamSection("default", "telemetry", section.base_offset + 1, 2, 0, 0, 0, 0, 0)
    bad = [
        _foreign(state, n=2),
        _foreign(state, n=0),
        _foreign(state, shard=1),
        _foreign(state, cluster_id=b"x" * 16),
        _foreign(state, previous_footer_crc=5),
        good._replace(footer=replace(good.footer, streams=[shifted])),
        next_chunk(state, update(ranges=[(9, 11)])),
        next_chunk(state, update(gaps=[GapRange(0, 1, 1)])),
        next_chunk(state, update(ranges=[(10, 12)]), update(ranges=[(11, 13)])),
        next_chunk(state, update(ranges=[(10, 12)], gaps=[GapRange(11, 13, 1)])),
    ]
    for chunk in bad:
        with pytest.raises(Corrupt):
            apply(state, chunk)
        assert state.encode() == before
    apply(state, good)


SNAPSHOT = fold([update(ranges=[(0, 10)], mark=Mark(5, 10), topics=["a/{b}"])], [update(mark=Mark(9, 20))]).encode()


@given(st.integers(0, len(SNAPSHOT) - 1))
def test_a_snapshot_that_is_cut_is_truncated(cut: int) -> None:
    with pytest.raises(Truncated):
        ShardState.decode(SNAPSHOT[:cut])


@given(st.integers(0, 8 * len(SNAPSHOT) - 1))
def test_a_snapshot_with_a_flipped_bit_is_refused(bit: int) -> None:
    damaged = bytearray(SNAPSHOT)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Corrupt, Truncated)):
        ShardState.decode(damaged)


def test_other_snapshots_are_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        ShardState.decode(SNAPSHOT[:3] + b"\x03" + SNAPSHOT[4:])
    with pytest.raises(Corrupt):
        ShardState.decode(SNAPSHOT + b"\0")
    with pytest.raises(Corrupt):
        ShardState.decode(bytes(HEADER_BYTES))
