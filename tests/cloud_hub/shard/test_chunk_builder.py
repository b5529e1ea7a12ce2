"""Whatever sessions bring in whatever order, the chunk that is built of it folds, and nothing is doubled."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.cloud_hub.fabric import make_batch
from weft.cloud_hub.shard.chunk_builder import TEXTS_PER_EDGE, ChunkBuilder
from weft.cloud_hub.shard.collector import waits_from
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, ReceivedBatch
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import DOWN_STREAM, Lane, Origin
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.shard.shard_state import ShardState

LANES = [Lane("default", "edge-1", 7, "telemetry"), Lane("default", "edge-2", 8, "telemetry")]
REASONS = (GapReason.BUDGET, GapReason.EXPIRED, GapReason.OPERATOR, GapReason.ABSENT)


def random_session(rng: random.Random, state: ShardState) -> LaneSession:
    lane, relay = rng.choice(LANES), rng.random() < 0.3
    held = state.lanes.get(lane)
    known = held.epoch if held is not None else 0
    continues = not relay and held is not None and rng.random() < 0.5
    claim = LaneClaim(0 if relay else known + (not continues))
    claim.granted = continues
    flags = int(LaneFlag.RELAY) if relay else 0
    topics = [f"plant/{{{rng.choice('abc')}}}"]
    session = LaneSession(lane, claim, topics, lambda _: None, lambda *_: None, flags=flags)
    for _ in range(rng.randrange(7)):
        first = rng.randrange(40)
        end = first + rng.randrange(1, 12)
        if rng.random() < 0.45:
            session.items.append(GapRange(first, end, int(rng.choice(REASONS))))
        else:
            session.items.append(ReceivedBatch(*make_batch(lane, first, end), 0))
    if rng.random() < 0.3:
        session.mark = Mark(rng.randrange(50), rng.randrange(50))
    return session


def check(state: ShardState, stored: dict[Lane, RangeSet], reported: dict[Lane, RangeSet]) -> None:
    for lane, held in state.lanes.items():
        assert held.records == stored[lane]
        assert list(held.ranges) == list(RangeSet([*stored[lane], *reported[lane]]))
        assert all(gap.first < gap.end for gap in held.gaps)
        assert all(before.end <= after.first for before, after in pairwise(held.gaps))
        if held.mark is not None:
            assert held.ranges.contiguous_end() >= held.mark.seq
        if held.whole_mark is not None:
            absent = [gap.first for gap in held.gaps if gap.reason == GapReason.ABSENT]
            assert min([held.ranges.contiguous_end(), *absent]) >= held.whole_mark.seq


@pytest.mark.parametrize("seed", range(40))
async def test_any_sessions_make_a_chunk_that_folds(seed: int) -> None:
    await asyncio.sleep(0)  # sessions belong to a loop
    rng = random.Random(seed)
    for _ in range(10):
        state = ShardState(b"0123456789abcdef", 0)
        stored: dict[Lane, RangeSet] = defaultdict(RangeSet)
        reported: dict[Lane, RangeSet] = defaultdict(RangeSet)
        for step in range(rng.randrange(1, 8)):
            builder = ChunkBuilder(state, rng.choice([200, 2000, 100_000]))
            for _ in range(rng.randrange(1, 5)):
                builder.add(random_session(rng, state))
            draft = builder.finish(step, rng.getrandbits(64), marks_due=True)
            if draft is None:
                continue
            again = ShardState.decode(state.encode())
            apply(state, draft.chunk)
            apply(again, draft.chunk)
            assert again.encode() == state.encode()
            for update in draft.chunk.footer.lanes:
                for first, end in update.ranges:
                    assert stored[lane_of(update)].missing(first, end) == [(first, end)], "doubled"
                    stored[lane_of(update)].add(first, end)
                reported[lane_of(update)].update((gap.first, gap.end) for gap in update.gaps)
            check(state, stored, reported)


async def test_a_session_that_is_left_out_keeps_the_later_ones_of_its_lane_out() -> None:
    """They have what the sender sent later."""
    await asyncio.sleep(0)
    state = ShardState(b"0123456789abcdef", 0)
    claim = LaneClaim(1)
    opening = LaneSession(LANES[0], claim, [], lambda _: None, lambda *_: None)
    apply_chunk(state, opening)
    claim.granted = True
    long = LaneSession(
        LANES[1]._replace(edge=LANES[0].edge), LaneClaim(1), ["x" * TEXTS_PER_EDGE], *[lambda *_: None] * 2
    )
    reports = [Origin(1, 1, "calm", "1", b"")]
    earlier = LaneSession(LANES[0], claim, [], lambda _: None, lambda *_: None, origins=reports)
    later = LaneSession(LANES[0], claim, [], lambda _: None, lambda *_: None)
    earlier.append(ReceivedBatch(*make_batch(LANES[0], 0, 10), 0))
    later.append(ReceivedBatch(*make_batch(LANES[0], 10, 20), 0))
    for session in (earlier, later):
        session.opened.set_result(RangeSet())
    apply_chunk(state, long, earlier, later)
    assert not state.lanes[LANES[0]].ranges
    apply_chunk(state, earlier, later)
    assert list(state.lanes[LANES[0]].ranges) == [(0, 20)]


async def test_no_mark_of_messages_is_proved_by_records_of_another_writer() -> None:
    """A full chunk had room for the mark behind outcomes, and not for these; then another process takes the lane."""
    await asyncio.sleep(0)
    state, lane = ShardState(b"0123456789abcdef", 0), Lane("default", "edge-1", 0, DOWN_STREAM)
    first, second = (
        LaneSession(lane, LaneClaim(epoch), [], *[lambda *_: None] * 2, flags=LaneFlag.PARTIAL) for epoch in (1, 2)
    )
    first.append(ReceivedBatch(*make_batch(lane, 0, 4), 0))
    first.mark = Mark(10, 2)
    apply_chunk(state, first)
    busy = LaneSession(LANES[1], LaneClaim(1), [], *[lambda *_: None] * 2)
    busy.append(ReceivedBatch(*make_batch(LANES[1], 0, 500), 0))
    first.settle(state.lanes[lane])
    first.claim.granted = True
    first.append(ReceivedBatch(*make_batch(lane, 4, 6), 0))
    first.mark = Mark(20, 6)
    apply_chunk(state, busy, first, bytes_max=1000)
    assert state.lanes[lane].ranges.end == 4, "the chunk was full"
    second.append(ReceivedBatch(*make_batch(lane, 4, 8), 0))
    apply_chunk(state, second)
    assert waits_from(state.lanes[lane]) == (10, 2), "nothing of the new writer has an outcome"


def apply_chunk(state: ShardState, *sessions: LaneSession, bytes_max: int = 100_000) -> None:
    builder = ChunkBuilder(state, bytes_max)
    for session in sessions:
        builder.add(session)
    draft = builder.finish(1, 1, marks_due=True)
    assert draft is not None
    apply(state, draft.chunk)


async def test_each_chunk_explains_the_origins_that_its_batches_name() -> None:
    """A reader of one chunk needs no other, and a number that is given another meaning changes no earlier row."""
    await asyncio.sleep(0)
    state = ShardState(b"0123456789abcdef", 0)
    meanings = [Origin(1, 1, "calm", "1", b""), Origin(2, 1, "calm", "2", b""), Origin(1, 1, "calm", "3", b"")]

    def chunk(first: int, origin: int, reported: list[Origin]) -> list[Origin]:
        claim = LaneClaim(state.lanes[LANES[0]].epoch + 1 if LANES[0] in state.lanes else 1)
        session = LaneSession(LANES[0], claim, [], lambda _: None, lambda *_: None, origins=reported)
        session.append(ReceivedBatch(*make_batch(LANES[0], first, first + 3, origin=origin), 0))
        builder = ChunkBuilder(state, 100_000)
        builder.add(session)
        draft = builder.finish(first, first, marks_due=True)
        assert draft is not None
        apply(state, draft.chunk)
        return draft.chunk.footer.lanes[0].origins

    assert chunk(0, 1, meanings[:2]) == meanings[:2], "the second is news, too"
    assert chunk(3, 1, meanings[:2]) == meanings[:1]
    assert chunk(6, 0, meanings[:2]) == []
    assert chunk(9, 2, []) == meanings[1:2], "the lane's state knows it from an earlier connection"
    assert chunk(12, 1, meanings[2:]) == meanings[2:]
    assert chunk(15, 7, meanings) == [], "nothing was told of 7"
    assert state.lanes[LANES[0]].origins == [meanings[2], meanings[1]]
