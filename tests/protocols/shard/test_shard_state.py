"""Tests of ``protocols/shard/shard_state.py``."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    ChunkHeader,
    Control,
    ControlKind,
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
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import PENDING_MARKS_MAX, LaneState, RetireBody, RetiredBy, earliest
from weft.protocols.shard.shard_state import ShardState, origin_bytes, topic_bytes
from weft.protocols.shard.snapshot import FIELDS_MAX, FIELDS_PER_EDGE_MAX, HEADER_BYTES, ForgetBody, Forgotten, SkipBody
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


# --- A stream that an operator deletes: its next offset stays, everything else leaves, and a later record continues


STREAM = LANE.tenant, LANE.stream
TOPICS = ["plant/{line}/x"]


def forget(tenant: str = "default", stream: str = "telemetry", *, tabled: bool = True) -> Control:
    body = msgspec.msgpack.encode(ForgetBody("mara", "wrong name", tabled))
    return Control(ControlKind.FORGET, tenant, "", 0, stream, body)


def drop(lane: Lane) -> list[Control]:
    retired = msgspec.msgpack.encode(RetireBody(RetiredBy.OPERATOR, "wrong name"))
    return [Control(ControlKind.RETIRE, *lane, retired), Control(ControlKind.DROP, *lane, b"")]


def chunk(state: ShardState, *updates: LaneUpdate, controls: list[Control] = []) -> Chunk:
    made = next_chunk(state, *updates)
    reported = StreamBlock(list(updates), controls, [])
    return made._replace(footer=index_of(made.header, FIRST_LEVEL, list(made.footer.streams), reported))


def add(state: ShardState, *updates: LaneUpdate, controls: list[Control] = []) -> ShardState:
    apply(state, chunk(state, *updates, controls=controls))
    return state


def with_stream() -> ShardState:
    state = ShardState(CLUSTER, 0)
    return add(state, update(ranges=[(0, 7)], topics=TOPICS), update(LANES[0], ranges=[(0, 2)]))


def equals_its_snapshot(state: ShardState) -> bool:
    again = ShardState.decode(state.encode())
    return again.encode() == state.encode() and again.forgotten == state.forgotten


def test_a_deleted_stream_leaves_its_next_offset_and_nothing_else() -> None:
    state = with_stream()
    skip = msgspec.msgpack.encode(SkipBody(2, 3, "bad", []))
    add(state, controls=[Control(ControlKind.SKIP, *STREAM[:1], "", 0, STREAM[1], skip)])
    add(state, update(gaps=[GapRange(7, 9, 1)]))
    add(state, controls=[*drop(LANE), forget()])
    assert state.next_offset[STREAM] == 7
    assert [(skip.first, skip.end) for skip in state.skips[STREAM]] == [(2, 3)]
    assert state.forgotten == {STREAM: Forgotten(0, "mara", "wrong name", True)}
    assert (state.stream_fields(*STREAM), state.stream_lane_names(*STREAM), state.open_gaps) == ([], [], {})
    assert list(state.tenant_streams("default")) == [LANES[0].stream]
    assert not state.has_stream(*STREAM)
    assert state.has_stream(*LANES[0][::3])
    assert equals_its_snapshot(state)
    assert STREAM[1] not in ShardState.decode(state.encode()).tenant_streams("default")


def test_a_lane_that_comes_back_begins_the_stream_again_at_its_next_offset() -> None:
    state = with_stream()
    kept = snapshots.encode_lane(snapshots.lane_snapshot(LANE, state.lanes[LANE]))
    add(state, controls=[*drop(LANE), forget()])
    add(state, update(ranges=[(7, 9)]), controls=[Control(ControlKind.ADOPT, *LANE, kept)])
    assert (state.next_offset[STREAM], state.forgotten) == (9, {})
    assert list(state.lanes[LANE].ranges) == [(0, 9)], "what the hub had is known, so nothing is taken twice"
    assert state.lanes[LANE].counts
    assert state.stream_fields(*STREAM) == ["line"], "the lane's topic levels are back"
    assert list(state.tenant_streams("default")) == [LANES[0].stream, LANE.stream]
    assert equals_its_snapshot(state)


def test_a_new_lane_begins_the_stream_again() -> None:
    other = LANE._replace(edge="edge-9", log_id=9)
    state = add(add(with_stream(), controls=[*drop(LANE), forget()]), update(other, ranges=[(0, 2)], topics=TOPICS))
    assert (state.next_offset[STREAM], state.forgotten) == (9, {})
    assert state.stream_fields(*STREAM) == ["line"]
    assert equals_its_snapshot(state)


def test_a_stream_that_never_had_a_record_leaves_no_trace() -> None:
    state = add(ShardState(CLUSTER, 0), update(topics=TOPICS))
    add(state, controls=[*drop(LANE), forget()])
    assert (state.forgotten, state.next_offset, list(state.tenant_streams("default"))) == ({}, {}, [])
    assert ShardState.decode(state.encode()).encode() == state.encode()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_with_a_lane_stays(leaves: bool) -> None:
    state = with_stream()
    other = LANE._replace(edge="edge-9")
    gone = drop(LANE) if leaves else []
    add(state, *([update(other, ranges=[(0, 1)])] if leaves else []), controls=[*gone, forget()])
    assert state.has_stream(*STREAM)
    assert not state.forgotten
    assert state.stream_fields(*STREAM) == ["line"]


def test_a_malformed_forget_is_refused_and_changes_nothing() -> None:
    state = with_stream()
    before = state.encode()
    for body in (b"", b"\x92\xa1a\xa1b", msgspec.msgpack.encode(["m", "x" * 513, True])):
        with pytest.raises(Corrupt, match="a FORGET record"):
            add(state, controls=[*drop(LANE), Control(ControlKind.FORGET, *STREAM[:1], "", 0, STREAM[1], body)])
    assert state.encode() == before


@given(histories(), st.data())
def test_a_fold_with_deletions_equals_one_that_went_on_from_any_snapshot(
    history: list[list[LaneUpdate]], data: st.DataObject
) -> None:
    """Offsets never repeat, and the same records are there whether lanes left between or not."""
    whole, resumed = ShardState(CLUSTER, 0), ShardState(CLUSTER, 0)
    kept: dict[Lane, bytes] = {}
    counts: dict[tuple[str, str], int] = {}
    for updates in history:
        back = [
            Control(ControlKind.ADOPT, *lane, kept.pop(lane))
            for lane in {Lane(each.tenant, each.edge, each.log_id, each.stream): None for each in updates}
            if lane in kept
        ]
        made = chunk(whole, *updates, controls=back)
        apply(whole, made)
        apply(resumed, made)
        for each in updates:
            key = each.tenant, each.stream
            counts[key] = counts.get(key, 0) + sum(end - first for first, end in each.ranges)
        if data.draw(st.booleans()):
            stream = data.draw(st.sampled_from(["s", "t"]))
            lanes = whole.stream_lanes("default", stream)
            kept |= {lane: snapshots.encode_lane(snapshots.lane_snapshot(lane, held)) for lane, held in lanes.items()}
            gone = chunk(whole, controls=[*(each for lane in lanes for each in drop(lane)), forget(stream=stream)])
            apply(whole, gone)
            apply(resumed, gone)
            assert not whole.has_stream("default", stream)
        if data.draw(st.booleans()):
            resumed = ShardState.decode(resumed.encode())
    assert resumed.encode() == whole.encode()
    assert {key: end for key, end in whole.next_offset.items() if end} == {key: n for key, n in counts.items() if n}
