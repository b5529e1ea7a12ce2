"""A stream that an operator deletes: its next offset stays, everything else leaves, and a later record continues."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.test_shard_state import CLUSTER, LANE, LANES, histories, next_chunk, update
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    Control,
    ControlKind,
    GapRange,
    LaneUpdate,
    StreamBlock,
    index_of,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import RetireBody, RetiredBy
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import ForgetBody, Forgotten, SkipBody

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
