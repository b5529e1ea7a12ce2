"""The fold beyond records and marks: gaps that heal, control records, clocks, origins, levels and canonical bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.shard.test_shard_state import CLUSTER, LANE, complete_up_to, next_chunk, update
from tests.support.later_fold import COUNTED, LATER, Tally
from weft.protocols import chunk as chunks
from weft.protocols import chunk_index
from weft.protocols.chunk_index import (
    APART,
    BLOCKS,
    FIRST_LEVEL,
    LEVEL_MAX,
    SPLITS,
    Chunk,
    ChunkHeader,
    ClockUpdate,
    Control,
    ControlKind,
    GapRange,
    LaneFlag,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    index_of,
)
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.lane import Lane, Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard import snapshot
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.fold import TimeBody, apart_body, apply, fold
from weft.protocols.shard.lane_state import ConflictBody, LaneState, OpenGap, RetireBody, RetiredBy
from weft.protocols.shard.placement import SHARDS_MAX, SealBody, ShardTree, Split, digest_of, moved_to, shard_of
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState
from weft.protocols.shard.snapshot import SKIPS_MAX, SkipBody, SkippedRun, encode_lane, lane_snapshot

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


# --- Splits of a shard: where edges belong, and what the fold makes of SEAL records


SPLITS_CLUSTER = bytes(range(16))
SHARD, BIT, NEW, NONCE = 1, 2, 4, 77
EDGES = [name for name in map("edge-{}".format, range(64)) if shard_of("default", name, 4) == SHARD]
MOVES = [name for name in EDGES if digest_of("default", name) >> BIT & 1]
STAYS = [name for name in EDGES if name not in MOVES]
ONLY = frozenset({("default", "s")})


def lane(edge: str, stream: str = "s") -> Lane:
    return Lane("default", edge, 7, stream)


def index(held: ShardState, reported: StreamBlock, needs: int = BLOCKS) -> Chunk:
    header = ChunkHeader(SPLITS_CLUSTER, held.n + 1, held.created + 10, held.shard, held.footer_crc, 1)
    sections = [StreamSection("default", "s", held.next_offset.get(("default", "s"), 0), 5, 0, 0, 56, 1, 1)]
    footer = replace(index_of(header, FIRST_LEVEL, sections if reported.lanes else [], reported), must_understand=needs)
    tail, crc = chunks.encode_footer(footer)
    decoded, _ = chunks.decode_footer(tail)
    assert decoded.must_understand == needs
    return Chunk(header, decoded, crc)


def splits_update(edge: str, first: int, end: int) -> LaneUpdate:
    return LaneUpdate(*lane(edge), 1, [(first, end)], [], Mark(end, end), ["plant/{line}"])


def seal(held: ShardState, shard: int = NEW, bit: int = BIT) -> Chunk:
    body = msgspec.msgpack.encode(SealBody(shard, bit, NONCE))
    return index(held, StreamBlock([], [Control(ControlKind.SEAL, "", "", 0, "", body)], []), BLOCKS | SPLITS)


def full() -> ShardState:
    """A shard with a lane, a clock and an open gap of every edge."""
    held = ShardState(SPLITS_CLUSTER, SHARD)
    for number, edge in enumerate(EDGES):
        apply(held, index(held, StreamBlock([splits_update(edge, 0, 5 + number)], [], [])))
        held.clocks["default", edge, 7] = []
    gaps = [OpenGap(edge, 9, 3, None, 5) for edge in EDGES]
    held.open_gaps["default", "s"] = gaps
    return held


# -- where edges belong


@given(st.integers(0, 4), st.lists(st.integers(0, 40), max_size=12), st.text(), st.text())
def test_an_edge_is_in_one_shard_and_a_split_moves_nothing_else(
    log: int, wanted: list[int], tenant: str, edge: str
) -> None:
    splits: list[int] = []
    for shard in wanted:
        before = ShardTree(1 << log, splits)
        splits.append(shard % before.count)
        after = ShardTree(1 << log, splits)
        was, now = before.shard_of(tenant, edge), after.shard_of(tenant, edge)
        moves = was == splits[-1] and digest_of(tenant, edge) >> before.next_bit(was) & 1
        assert now == (after.count - 1 if moves else was)
        assert now in {was, *(child for _, child in after.children(was))}
    assert ShardTree(1 << log).shard_of(tenant, edge) == shard_of(tenant, edge, 1 << log)


def test_a_tree_knows_whom_a_shard_had_its_edges_from() -> None:
    tree = ShardTree(4, [3, 4, 3])
    assert [tree.parent(shard) for shard in range(tree.count)] == [None] * 4 + [3, 4, 3]
    assert tree.lineage(5) == (4, 3)
    assert tree.children(3) == [(2, 4), (3, 6)]
    assert tree.next_bit(5) == 4


@pytest.mark.parametrize(("roots", "splits"), [(3, []), (4, [4]), (4, [-1]), (SHARDS_MAX, [0]), (1, [0] * 65)])
def test_a_list_that_names_no_tree_is_refused(roots: int, splits: list[int]) -> None:
    with pytest.raises(ValueError, match="split"):
        ShardTree(roots, splits)


# -- the fold


def test_a_split_parts_the_lanes_and_what_belongs_to_them() -> None:
    held = full()
    reported = seal(held)
    split = fold(held, reported).split
    assert split == Split(NEW, BIT, held.n + 1, NONCE)
    new, before = held.moved_half(split, reported.header.created, reported.footer_crc), held.lanes.copy()
    apply(held, reported)
    assert {each.edge for each in held.lanes} == set(STAYS)
    assert {each.edge for each in new.lanes} == set(MOVES)
    assert {**held.lanes, **new.lanes} == before
    assert {edge for _, edge, _ in new.clocks} == set(MOVES)
    assert {gap.edge for gap in new.open_gaps["default", "s"]} == set(MOVES)
    assert {gap.edge for gap in held.open_gaps["default", "s"]} == set(STAYS)
    assert (new.shard, new.n, new.next_offset) == (NEW, held.n, {})
    assert new.stream_fields("default", "s") == held.stream_fields("default", "s") == ["line"]
    assert {moved_to(held.splits, "default", edge) for edge in MOVES} == {NEW}
    assert {moved_to(held.splits, "default", edge) for edge in STAYS} == {None}
    for state in (held, new):
        assert ShardState.decode(state.encode()).encode() == state.encode()
    apply(new, index(new, StreamBlock([splits_update(MOVES[0], 1000, 1005)], [], [])))
    assert new.next_offset == {("default", "s"): 5}


def test_who_follows_one_stream_sees_the_same_split() -> None:
    held = full()
    some = ShardState.decode(held.encode(), only=ONLY)
    reported = seal(held)
    apply(some, reported)
    apply(held, reported)
    assert (some.splits, some.lanes, some.open_gaps) == (held.splits, held.lanes, held.open_gaps)
    assert ShardState.decode(held.encode(), only=ONLY).splits == held.splits


def test_nothing_of_a_moved_edge_comes_back() -> None:
    held = full()
    kept = encode_lane(lane_snapshot(lane(MOVES[0]), held.lanes[lane(MOVES[0])]))
    apply(held, seal(held))
    with pytest.raises(Corrupt, match="moved to shard 4"):
        apply(held, index(held, StreamBlock([splits_update(MOVES[0], 1000, 1005)], [], [])))
    back = Control(ControlKind.ADOPT, *lane(MOVES[0]), kept)
    with pytest.raises(Corrupt, match="moved to shard 4"):
        apply(held, index(held, StreamBlock([], [back], [])))
    retired = Control(ControlKind.DROP, *lane(MOVES[0]), b"")
    apply(held, index(held, StreamBlock([], [retired], [])))
    apply(held, index(held, StreamBlock([splits_update(STAYS[0], 1000, 1005)], [], [])))


def test_a_seal_that_does_not_fit_is_refused() -> None:
    held = full()
    reported = seal(held)
    clock = ClockUpdate("default", STAYS[0], 7, 1, 1, 1, 1)
    for others in (StreamBlock([splits_update(STAYS[0], 900, 905)], [], []), StreamBlock([], [], [clock])):
        mixed = StreamBlock(others.lanes, [*reported.footer.controls, *others.controls], [])
        clocks = {("default", "s"): [clock]} if others.clocks else {}
        footer = index_of(reported.header, FIRST_LEVEL, [], mixed, clocks)
        with pytest.raises(Corrupt, match="and other things"):
            fold(held, Chunk(reported.header, footer, 1))
    apply(held, reported)
    for shard, bit in ((NEW, 5), (5, BIT), (5, 1), (SHARD, 5)):
        with pytest.raises(Corrupt, match="a second time, or too late"):
            fold(held, seal(held, shard, bit))
    apply(held, seal(held, 5, 3))


def test_an_earlier_release_refuses_what_a_split_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    held = full()
    tail, _ = chunks.encode_footer(seal(held).footer)
    before = held.encode()
    apply(held, seal(held))
    after = held.encode()
    monkeypatch.setattr("weft.protocols.chunk_index.UNDERSTOOD", BLOCKS)
    monkeypatch.setattr("weft.protocols.shard.snapshot.UNDERSTOOD", 0)
    with pytest.raises(UnsupportedVersion):
        chunks.decode_footer(tail)
    with pytest.raises(UnsupportedVersion):
        snapshot.decode(after)
    assert snapshot.decode(before).head.splits == []


# --- A TIME record lowers the time of a shard, and what came from the wrong one, so that ages count right again


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


# --- Tenants that are set apart: their shards, and what the fold makes of APART records


def apart_reported(held: ShardState, tenant: str = "acme", *, apart: bool = True) -> Chunk:
    control = Control(ControlKind.APART, tenant, "", 0, "", apart_body(apart=apart))
    return index(held, StreamBlock([], [control], []), BLOCKS | APART)


def of_acme(held: ShardState) -> Chunk:
    return index(held, StreamBlock([msgspec.structs.replace(splits_update(EDGES[0], 0, 5), tenant="acme")], [], []))


# -- shards


@given(st.lists(st.none() | st.integers(0, 40), max_size=12), st.text(), st.text())
def test_a_tenant_apart_shares_no_shard_and_moves_no_other(wanted: list[int | None], tenant: str, edge: str) -> None:
    splits, apart = list[int](), list[tuple[str, int]]()
    for number, halved in enumerate(wanted):
        before = ShardTree(4, splits, apart)
        if halved is None:
            apart.append((f"tenant-{number}", before.count))
        else:
            splits.append(halved % before.count)
        after = ShardTree(4, splits, apart)
        assert after.count == before.count + 1
        was, now = before.shard_of(tenant, edge), after.shard_of(tenant, edge)
        assert now in ({was} if halved is None else {was, before.count})
    tree = ShardTree(4, splits, apart)
    assert tree.tenant_of(tree.shard_of(tenant, edge)) is None
    for name, first in apart:
        assert tree.tenant_of(tree.shard_of(name, edge)) == name
        assert tree.firsts_of(name) == (first,)
        assert tree.first_of(name, edge) == first
    assert {tree.tenant_of(shard) for shard in range(tree.count)} == {None, *(name for name, _ in apart)}
    assert [shard for shard in range(tree.count) if tree.parent(shard) is None] == list(tree.firsts)


@pytest.mark.parametrize(
    ("splits", "apart"),
    [((), [("a", 3)]), ((), [("a", 5)]), ((0,), [("a", 4), ("b", 4)]), ((), [("a", 4), ("a", 5)]), ((4,), [("a", 5)])],
)
def test_a_list_that_cannot_be_is_refused(splits: tuple[int, ...], apart: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="shard"):
        ShardTree(4, splits, apart)


# -- the fold


def test_a_shard_takes_nothing_of_a_tenant_that_is_apart() -> None:
    held = full()
    apply(held, apart_reported(held))
    assert held.apart == {"acme"}
    apply(held, index(held, StreamBlock([splits_update(EDGES[0], 90, 95)], [], [])))
    with pytest.raises(Corrupt, match=r"acme/.*whose tenant is set apart"):
        fold(held, of_acme(held))
    apply(held, apart_reported(held, apart=False))
    assert held.apart == frozenset()
    apply(held, of_acme(held))


def test_the_new_shard_of_a_split_takes_nothing_of_it_either() -> None:
    held = full()
    apply(held, apart_reported(held))
    assert held.moved_half(Split(9, 2, held.n + 1, 7), 0, 0).apart == {"acme"}


def test_snapshots_keep_it_and_earlier_releases_do_not_read_them() -> None:
    held = full()
    plain = snapshot.decode(held.encode()).head
    assert (plain.must_understand, plain.apart) == (0, [])
    apply(held, apart_reported(held))
    again = ShardState.decode(held.encode())
    assert (again.apart, again.encode()) == (held.apart, held.encode())
    assert snapshot.decode(held.encode()).head.must_understand == 2
    assert ShardState.decode(held.encode(), only=frozenset({("default", "s")})).apart == {"acme"}


def test_a_record_that_does_not_fit_is_refused() -> None:
    held = full()
    with pytest.raises(Corrupt, match="sets tenant default apart, of which the shard has data"):
        fold(held, apart_reported(held, "default"))
    alone = apart_reported(held)
    both = StreamBlock([splits_update(EDGES[0], 90, 95)], alone.footer.controls, [])
    with pytest.raises(Corrupt, match="an APART record and other things"):
        fold(held, index(held, both, BLOCKS | APART))
    control = alone.footer.controls[0]
    for body in (b"", b"\x90", b"\x91\x01"):
        wrong = StreamBlock([], [Control(control.kind, "acme", "", 0, "", body)], [])
        with pytest.raises(Corrupt, match="an APART record"):
            fold(held, index(held, wrong, BLOCKS | APART))
