"""Splits of a shard: where edges belong, and what the fold makes of SEAL records."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols import chunk as chunks
from weft.protocols.chunk_index import (
    BLOCKS,
    FIRST_LEVEL,
    SPLITS,
    Chunk,
    ChunkHeader,
    ClockUpdate,
    Control,
    ControlKind,
    LaneUpdate,
    Mark,
    StreamBlock,
    StreamSection,
    index_of,
)
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.lane import Lane
from weft.protocols.shard import snapshot
from weft.protocols.shard.fold import apply, fold
from weft.protocols.shard.lane_state import OpenGap
from weft.protocols.shard.placement import SHARDS_MAX, SealBody, ShardTree, Split, digest_of, moved_to, shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.protocols.shard.snapshot import encode_lane, lane_snapshot

CLUSTER = bytes(range(16))
SHARD, BIT, NEW, NONCE = 1, 2, 4, 77
EDGES = [name for name in map("edge-{}".format, range(64)) if shard_of("default", name, 4) == SHARD]
MOVES = [name for name in EDGES if digest_of("default", name) >> BIT & 1]
STAYS = [name for name in EDGES if name not in MOVES]
ONLY = frozenset({("default", "s")})


def lane(edge: str, stream: str = "s") -> Lane:
    return Lane("default", edge, 7, stream)


def index(held: ShardState, reported: StreamBlock, needs: int = BLOCKS) -> Chunk:
    header = ChunkHeader(CLUSTER, held.n + 1, held.created + 10, held.shard, held.footer_crc, 1)
    sections = [StreamSection("default", "s", held.next_offset.get(("default", "s"), 0), 5, 0, 0, 56, 1, 1)]
    footer = replace(index_of(header, FIRST_LEVEL, sections if reported.lanes else [], reported), must_understand=needs)
    tail, crc = chunks.encode_footer(footer)
    decoded, _ = chunks.decode_footer(tail)
    assert decoded.must_understand == needs
    return Chunk(header, decoded, crc)


def update(edge: str, first: int, end: int) -> LaneUpdate:
    return LaneUpdate(*lane(edge), 1, [(first, end)], [], Mark(end, end), ["plant/{line}"])


def seal(held: ShardState, shard: int = NEW, bit: int = BIT) -> Chunk:
    body = msgspec.msgpack.encode(SealBody(shard, bit, NONCE))
    return index(held, StreamBlock([], [Control(ControlKind.SEAL, "", "", 0, "", body)], []), BLOCKS | SPLITS)


def full() -> ShardState:
    """A shard with a lane, a clock and an open gap of every edge."""
    held = ShardState(CLUSTER, SHARD)
    for number, edge in enumerate(EDGES):
        apply(held, index(held, StreamBlock([update(edge, 0, 5 + number)], [], [])))
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
    apply(new, index(new, StreamBlock([update(MOVES[0], 1000, 1005)], [], [])))
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
        apply(held, index(held, StreamBlock([update(MOVES[0], 1000, 1005)], [], [])))
    back = Control(ControlKind.ADOPT, *lane(MOVES[0]), kept)
    with pytest.raises(Corrupt, match="moved to shard 4"):
        apply(held, index(held, StreamBlock([], [back], [])))
    retired = Control(ControlKind.DROP, *lane(MOVES[0]), b"")
    apply(held, index(held, StreamBlock([], [retired], [])))
    apply(held, index(held, StreamBlock([update(STAYS[0], 1000, 1005)], [], [])))


def test_a_seal_that_does_not_fit_is_refused() -> None:
    held = full()
    reported = seal(held)
    clock = ClockUpdate("default", STAYS[0], 7, 1, 1, 1, 1)
    for others in (StreamBlock([update(STAYS[0], 900, 905)], [], []), StreamBlock([], [], [clock])):
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
