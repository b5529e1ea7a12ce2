"""The fold beyond records and marks: gaps that heal, control records, clocks, origins, levels and canonical bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.test_shard_state import CLUSTER, LANE, complete_up_to, next_chunk, update
from tests.support.later_fold import COUNTED, LATER, Tally
from weft.protocols import chunk_index
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    LEVEL_MAX,
    Chunk,
    ClockUpdate,
    Control,
    ControlKind,
    GapRange,
    LaneFlag,
    LaneUpdate,
    Mark,
    StreamBlock,
    index_of,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState, RetireBody, RetiredBy
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState
from weft.protocols.shard.snapshot import SKIPS_MAX, SkipBody, SkippedRun

ABSENT, EXPIRED = int(GapReason.ABSENT), int(GapReason.EXPIRED)


def state() -> ShardState:
    return ShardState(CLUSTER, 0)


def add(
    held: ShardState,
    *updates: LaneUpdate,
    controls: Sequence[Control] = (),
    clocks: Sequence[ClockUpdate] = (),
    **index: Any,
) -> ShardState:
    """Apply a chunk; ``index`` replaces fields of its index."""
    apply(held, chunk_with(held, *updates, controls=controls, clocks=clocks, **index))
    return held


def chunk_with(
    held: ShardState,
    *updates: LaneUpdate,
    controls: Sequence[Control] = (),
    clocks: Sequence[ClockUpdate] = (),
    **index: Any,
) -> Chunk:
    made = next_chunk(held, *updates)
    reported = StreamBlock(list(updates), list(controls), [])
    of_stream = {(LANE.tenant, LANE.stream): list(clocks)} if clocks else {}
    whole = index_of(made.header, FIRST_LEVEL, list(made.footer.streams), reported, of_stream)
    return made._replace(footer=replace(whole, **index))


def control(kind: int, body: bytes = b"") -> Control:
    return Control(kind, *LANE, body)


def retire(by: RetiredBy = RetiredBy.OPERATOR) -> Control:
    return control(ControlKind.RETIRE, msgspec.msgpack.encode(RetireBody(by, "scrapped")))


# -- gaps


def test_records_heal_gaps_of_any_reason() -> None:
    held = add(state(), update(gaps=[GapRange(0, 10, EXPIRED), GapRange(10, 20, ABSENT)]))
    add(held, update(ranges=[(5, 15)]))
    lane = held.lanes[LANE]
    assert list(lane.gaps) == [GapRange(0, 5, EXPIRED), GapRange(15, 20, ABSENT)]
    assert (lane.ranges, lane.records) == (RangeSet([(0, 20)]), RangeSet([(5, 15)]))
    assert held.next_offset["default", "telemetry"] == 10


def test_a_fact_takes_the_place_of_absence_and_never_the_other_way_round() -> None:
    held = add(state(), update(gaps=[GapRange(0, 10, ABSENT)]), update(gaps=[GapRange(3, 12, EXPIRED)]))
    assert list(held.lanes[LANE].gaps) == [GapRange(0, 3, ABSENT), GapRange(3, 12, EXPIRED)]
    for again in (GapRange(3, 12, ABSENT), GapRange(4, 5, EXPIRED), GapRange(0, 3, ABSENT)):
        with pytest.raises(Corrupt, match="a second time"):
            add(held, update(gaps=[again]))


def test_a_moment_is_whole_only_without_absent_records() -> None:
    held = add(state(), update(ranges=[(0, 5)], gaps=[GapRange(5, 8, ABSENT)], mark=Mark(100, 8)))
    lane = held.lanes[LANE]
    assert (lane.complete_up_to, lane.whole_up_to, lane.newest_mark) == (100, None, Mark(100, 8))
    add(held, update(mark=Mark(60, 5)), update(ranges=[(8, 9)], mark=Mark(200, 9)))
    lane = held.lanes[LANE]
    assert (lane.complete_up_to, lane.whole_up_to) == (200, 60), "a mark told late counts for what it proves"
    add(held, update(ranges=[(5, 7)]))
    assert held.lanes[LANE].whole_up_to == 60
    add(held, update(gaps=[GapRange(7, 8, EXPIRED)]))
    lane = held.lanes[LANE]
    assert (lane.complete_up_to, lane.whole_up_to, lane.pending_marks) == (200, 200, [])


STEPS = st.lists(
    st.tuples(st.sampled_from(["records", "absent", "expired", "budget"]), st.integers(0, 30), st.integers(1, 12)),
    max_size=25,
)


@given(STEPS)
def test_what_two_senders_tell_of_one_lane_is_the_best_of_both(steps: list[tuple[str, int, int]]) -> None:
    """Against numbers one by one: records before facts, facts before absence, the first fact stays."""
    held, known = state(), dict[int, str]()
    for what, first, length in steps:
        lane = held.lanes.get(LANE, LaneState())
        if what == "records":
            add(held, update(ranges=lane.missing_records(first, first + length)))
        else:
            reason = {"absent": ABSENT, "expired": EXPIRED, "budget": 1}[what]
            gap = GapRange(first, first + length, reason)
            add(held, update(gaps=[GapRange(*piece, reason) for piece in lane.missing_gap(gap)]))
        for seq in range(first, first + length):
            before = known.get(seq)
            if before is None or what == "records" or (before == "absent" and what != "absent"):
                known[seq] = what
    lane = held.lanes.get(LANE, LaneState())
    names = {ABSENT: "absent", EXPIRED: "expired", 1: "budget"}
    found = {seq: names[gap.reason] for gap in lane.gaps for seq in range(gap.first, gap.end)}
    found |= dict.fromkeys((seq for first, end in lane.records for seq in range(first, end)), "records")
    assert found == known
    assert ShardState.decode(held.encode()).encode() == held.encode()


def test_a_mark_is_contradicted_by_a_later_number_with_an_earlier_time() -> None:
    held = add(state(), update(ranges=[(0, 10)], mark=Mark(100, 10)), update(mark=Mark(200, 20)))
    lane = held.lanes[LANE]
    assert lane.contradicted(201, 25) is None
    assert lane.contradicted(150, 20) is None, "the backlog below the mark"
    assert lane.contradicted(150, 21) is None, "a mark that is not proven claims nothing"
    assert lane.contradicted(90, 15) == Mark(100, 10)
    assert lane.contradicted(100, 10) is None


# -- controls


def test_a_retired_lane_no_longer_holds_completeness_back() -> None:
    other = LANE._replace(edge="edge-2")
    held = add(state(), update(ranges=[(0, 1)], mark=Mark(50, 1)), update(other, mark=Mark(70, 0)))
    add(held, controls=[retire()])
    assert complete_up_to(held) == 70
    retired = held.lanes[LANE].retired
    assert retired is not None
    assert (retired.by, retired.reason) == (RetiredBy.OPERATOR, "scrapped")
    add(held, update(ranges=[(1, 2)]))
    assert complete_up_to(held) == 70, "an operator's word stands until an operator takes it back"
    add(held, controls=[control(ControlKind.ADOPT)])
    assert complete_up_to(held) == 50


def test_a_lane_that_left_comes_back_with_all_that_it_had() -> None:
    held = add(state(), update(ranges=[(0, 9)], gaps=[GapRange(9, 12, 1)], mark=Mark(5, 12), topics=["a/{b}"], epoch=7))
    before, kept = held.lanes[LANE], snapshots.encode_lane(snapshots.lane_snapshot(LANE, held.lanes[LANE]))
    add(held, controls=[control(ControlKind.DROP)])
    assert (held.lanes, held.drops) == ({}, 1)
    assert held.stream_lanes("default", "telemetry") == {}
    assert held.next_offset["default", "telemetry"] == 9, "offsets of the stream continue"
    add(held, update(ranges=[(12, 13)], epoch=8), controls=[control(ControlKind.ADOPT, kept)])
    lane = held.lanes[LANE]
    assert lane.records == RangeSet([(0, 9), (12, 13)])
    assert (lane.gaps, lane.mark, lane.topics, lane.epoch) == (before.gaps, before.mark, ["a/{b}"], 8)
    with pytest.raises(Corrupt, match="a second time"):
        add(held, update(ranges=[(3, 4)]))


def test_control_records_that_do_not_fit_are_refused_and_unknown_ones_pass() -> None:
    held = add(state(), update(ranges=[(0, 9)]))
    kept = snapshots.encode_lane(snapshots.lane_snapshot(LANE, held.lanes[LANE]))
    other = snapshots.encode_lane(snapshots.lane_snapshot(LANE._replace(edge="x"), held.lanes[LANE]))
    with pytest.raises(Corrupt, match="which was not dropped"):
        add(held, controls=[control(ControlKind.ADOPT, kept)])
    with pytest.raises(Corrupt, match="drops"):
        add(held, update(ranges=[(9, 10)]), controls=[control(ControlKind.DROP)])
    with pytest.raises(Corrupt, match="does not decode"):
        add(held, controls=[control(ControlKind.RETIRE, b"\xc1")])
    before = held.lanes[LANE]
    passed = (ControlKind.SCHEMA, ControlKind.CONFIG, 77)
    add(held, controls=[control(kind, b"\xc1") for kind in passed])
    assert held.lanes[LANE] == before
    add(held, controls=[control(ControlKind.DROP)])
    with pytest.raises(Corrupt, match="another lane"):
        add(held, controls=[control(ControlKind.ADOPT, other)])
    add(held, controls=[retire(), control(ControlKind.ADOPT), control(ControlKind.DROP)])
    assert not held.lanes


# -- clocks, origins, flags, time


def clock(boot: int, offset: int, log_id: int = LANE.log_id) -> ClockUpdate:
    return ClockUpdate(LANE.tenant, LANE.edge, log_id, boot, 1, offset, 2)


def test_the_latest_word_about_a_boot_holds_and_boots_are_bounded() -> None:
    held = add(state(), update(), clocks=[clock(boot, 0) for boot in range(BOOTS_MAX)])
    add(held, clocks=[clock(0, 5), clock(99, 1)])
    boots = held.clocks[LANE.tenant, LANE.edge, LANE.log_id]
    assert len(boots) == BOOTS_MAX
    assert [(boot.boot_id, boot.offset) for boot in boots[-2:]] == [(0, 5), (99, 1)]
    assert held.knows_clock(clock(0, 5))
    assert not held.knows_clock(clock(0, 0))
    assert ShardState.decode(held.encode()).clocks == held.clocks
    add(held, controls=[control(ControlKind.DROP)])
    assert held.clocks == {}, "they go with the last lane of the log"


def test_origins_partial_lanes_relays_and_the_last_time_seen() -> None:
    mean, schema = Origin(1, 1, "mean", "3", b"h"), Origin(2, 2, "line", "1", b"")
    held = add(state(), msgspec.structs.replace(update(epoch=4), origins=[schema], flags=int(LaneFlag.PARTIAL)))
    relayed = msgspec.structs.replace(
        update(ranges=[(0, 1)], epoch=9), origins=[mean], flags=int(LaneFlag.RELAY | LaneFlag.PARTIAL)
    )
    made = chunk_with(held, relayed)
    apply(held, made._replace(header=made.header._replace(created=70)))
    lane = held.lanes[LANE]
    assert (lane.epoch, lane.partial, lane.counts) == (4, True, False), "a relay claims no epoch"
    assert lane.origins == [mean, schema]
    assert lane.new_origins([mean, msgspec.structs.replace(mean, version="4")])[0].version == "4"
    add(held, update(ranges=[(1, 2)], epoch=5))
    assert held.lanes[LANE].counts, "once the edge itself tells of all of it"
    assert held.lanes[LANE].last_seen == 70, "time does not go back with a writer's clock"


# -- levels


def test_a_snapshot_of_a_release_that_knows_less_is_told_from_one_that_lacks_nothing() -> None:
    early = add(state(), update(ranges=[(0, 1)]))
    assert ShardState.decode(early.encode(), LATER).extensions == {}, "the log held nothing more then"
    later = ShardState(CLUSTER, 0, LATER)
    for held in (early, later):
        if held is later:
            add(held, update(ranges=[(0, 1)]))
        add(held, extensions={COUNTED: b"\x05", 41: b"x"}, fold_level=LATER.level)
        add(held, extensions={COUNTED: b"\x02"}, fold_level=LATER.level)
    assert (early.extensions, later.extensions) == ({}, {COUNTED: Tally(7)})
    assert (early.fold_level, early.is_whole, later.is_whole) == (LATER.level, False, True)
    with pytest.raises(Corrupt, match=f"fold level {LEVEL_MAX}, the log had reached {LATER.level}"):
        ShardState.decode(early.encode(), LATER)
    ShardState.decode(early.encode())
    resumed = ShardState.decode(later.encode(), LATER)
    assert resumed.encode() == later.encode()
    assert ShardState.decode(later.encode()).lanes == later.lanes, "an earlier release reads a later one's"


# -- canonical bytes


def test_one_state_has_one_encoding() -> None:
    """Proof p3: a session that opened and sent nothing gave other bytes after a snapshot."""
    opened = add(state(), update(LANE._replace(stream="alarms"), topics=["alarms/{line}"]), update(LANE))
    again = ShardState.decode(opened.encode())
    for held in (opened, again):
        add(held, update(LANE._replace(edge="a"), ranges=[(0, 1)]), update(LANE._replace(stream="alarms")))
    assert again.encode() == opened.encode()


def test_a_frozen_state_does_not_follow_the_log() -> None:
    held = add(state(), update(ranges=[(0, 9)], gaps=[GapRange(9, 12, 1)]), clocks=[clock(1, 2)])
    frozen, before = held.freeze(), held.encode()
    add(held, update(ranges=[(9, 10), (12, 13)], topics=["{x}"], mark=Mark(1, 2)), clocks=[clock(2, 3), clock(1, 9)])
    add(held, controls=[control(ControlKind.DROP)])
    assert frozen() == before


@pytest.mark.parametrize("lanes", [0, 1, 15, 16, 255, 256, 257, 700])
def test_lanes_encoded_a_few_at_a_time_are_one_array(lanes: int) -> None:
    held = state()
    for i in range(lanes):
        held.set_lane(LANE._replace(edge=f"e{i}"), LaneState(epoch=i))
    data = held.encode()
    places = [each.lanes for each in snapshots.decode_head(data).streams]
    start = snapshots.HEADER_BYTES + snapshots.head_bytes(data)
    found = [data[start + place.position :][: place.length] for place in places]
    named = [(name._replace(tenant="", stream=""), lane) for name, lane in sorted(held.lanes.items())]
    assert found == ([msgspec.msgpack.encode([snapshots.lane_snapshot(*each) for each in named])] if lanes else [])


def test_a_footer_knows_the_release_that_understands_it() -> None:
    assert chunk_index.UNDERSTOOD == chunk_index.BLOCKS | chunk_index.SPLITS | chunk_index.APART
    assert snapshots.UNDERSTOOD == snapshots.SPLITS | snapshots.APART


# -- skipped offsets


def skip(first: int, end: int, reason: str = "no row", runs: list[SkippedRun] | None = None) -> Control:
    body = msgspec.msgpack.encode(SkipBody(first, end, reason, runs or []))
    return Control(ControlKind.SKIP, LANE.tenant, "", 0, LANE.stream, body)


def skipped(held: ShardState) -> list[tuple[int, int, str]]:
    return [(each.first, each.end, each.reason) for each in held.skips.get((LANE.tenant, LANE.stream), [])]


def test_skipped_offsets_are_kept_once_with_their_reason() -> None:
    run = SkippedRun(LANE.edge, LANE.log_id, 4, 6)
    held = add(state(), update(ranges=[(0, 10)]))
    add(held, controls=[skip(4, 6, "damaged", [run]), skip(8, 9), skip(5, 7, "a second operator"), skip(4, 6)])
    assert skipped(held) == [(4, 6, "damaged"), (8, 9, "no row")]
    assert held.skips[LANE.tenant, LANE.stream][0].runs == [run]
    add(held, controls=[skip(0, 4), skip(9, 10)])
    assert skipped(held) == [(0, 4, "no row"), (4, 6, "damaged"), (8, 9, "no row"), (9, 10, "no row")]
    again = ShardState.decode(held.encode())
    assert again.encode() == held.encode()
    assert skipped(again) == skipped(held)


def test_offsets_that_are_not_there_yet_are_not_skipped() -> None:
    held = add(state(), update(ranges=[(0, 10)]))
    add(held, controls=[skip(9, 11), skip(5, 5), skip(20, 30)])
    assert skipped(held) == []
    with pytest.raises(Corrupt):
        add(held, controls=[Control(ControlKind.SKIP, LANE.tenant, "", 0, LANE.stream, b"\xc1")])
    for at in range(SKIPS_MAX + 5):
        add(held, update(ranges=[(10 + at, 11 + at)]))
        add(held, controls=[skip(10 + at, 11 + at)])
    assert len(skipped(held)) == SKIPS_MAX
