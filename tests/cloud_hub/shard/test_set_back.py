"""A shard whose time a wrong clock put into the future, before and after an operator lowers it."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from tests.cloud_hub.shard.ending import DAY_S, LANE, Hub, play
from tests.cloud_hub.shard.test_steps import STEP_S_MAX
from tests.cloud_hub.tables.logs import LANE as WRITTEN
from tests.cloud_hub.tables.logs import SECOND, START, LogWriter, Run
from tests.support.speed import slowness, uncollected
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.cloud_hub.shard.lane_ends import Ending
from weft.protocols.chunk_index import FIRST_LEVEL, Chunk, ChunkHeader, Mark, StreamBlock, encode_footer, index_of
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.fold import STEP_LANES, folding
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog, apply_in_steps
from weft.storage.object_store.directory import MemoryStore

MINUTE = 60 * SECOND
YEARS = 14 * 365 * 86_400 * SECOND
RETAIN_S = 600.0


async def set_back(log: ShardLog, now: int) -> Ending:
    async def plan(state: ShardState) -> Ending:
        return lane_ends.set_back(state, now, "a node was of 2040")

    return await lane_ends.write_ending(log, plan, wall_clock=lambda: now, random_bits=lambda _: 3)


def test_a_lane_of_2040_is_not_kept_for_ever_and_not_ended_early(caplog: pytest.LogCaptureFixture) -> None:
    async def story(hub: Hub) -> None:
        keeper, session = hub.keeper(), await hub.session()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        hub.sequencer.leave(session.lane_session)

        async def lane() -> LaneState:
            return (await hub.state()).lanes[LANE]

        async def marked(state: ShardState) -> Ending:
            known = state.lanes[LANE]
            again = lane_ends.given_up(LANE, replaced(known))
            assert again is not None
            return Ending([], [again])

        wrong = hub.time() + YEARS
        await lane_ends.write_ending(hub.log, marked, wall_clock=lambda: wrong, random_bits=hub.random.getrandbits)
        assert (await hub.state()).created == wrong
        hub.ahead_s += 91 * DAY_S
        await hub.look(keeper)
        assert (await lane()).retired is None, "it seems to have been seen in 2040"
        assert "shard 0: its time is 13.8 years in the future, from a wrong clock" in caplog.text
        caplog.clear()
        assert (await set_back(hub.log, hub.time())).controls
        assert not (await set_back(hub.log, hub.time())).controls, "once is enough"
        assert (await lane()).last_seen <= hub.time()
        hub.ahead_s += 89 * DAY_S
        await hub.look(keeper)
        assert (await lane()).retired is None, "89 days since then"
        hub.ahead_s += 2 * DAY_S
        await hub.look(keeper)
        assert (await lane()).retired is not None
        assert "in the future" not in caplog.text

    play(story, healed=None)


def replaced(held: LaneState) -> LaneState:
    """The lane as if its edge had announced one record more."""
    new = held.copy()
    new.add_mark(Mark(1 << 60, held.ranges.end + 1))
    return new


async def test_chunks_of_2040_are_collected_once_the_time_is_lowered() -> None:
    """Ten minutes of right chunks, ten of wrong ones, and right ones again: a chunk a minute."""
    log = await LogWriter.open(MemoryStore(), 1)
    shard, since = ShardLog(log.store, log.cluster, 0), 0

    def clock() -> int:
        return START + since

    async def first_untabled(_: int) -> int:
        return log.states[0].n + 1

    collector = ShardCollector(shard, first_untabled, RETAIN_S, clock=HubClock(clock, clock))

    async def watermark() -> int:
        await collector.look()
        return (await shard.manifest())[0].watermark

    async def minutes(count: int, ahead: int = 0) -> None:
        nonlocal since
        for _ in range(count):
            since += MINUTE
            log.created = max(clock() + ahead, log.states[0].created)
            await log.append(0, Run(WRITTEN, 10 * (log.states[0].n + 1), 10))
            await log.snapshot(0)

    await minutes(10)
    await minutes(10, YEARS)
    await minutes(30)
    assert await watermark() == 10, "the others seem to be of 2040"
    await set_back(shard, clock())
    await log.follow(0)
    await minutes(9)
    assert await watermark() == 10
    await minutes(20)
    found = await watermark()
    created = {n: chunk.header.created for n in range(79) if (chunk := await shard.index(n)) is not None}
    assert [n for one, n in pairwise(created) if created[one] > created[n]] == [50], "the record's own chunk"
    assert created[found - 1] == clock() - 10 * MINUTE
    since += int(GRACE_S * SECOND) + SECOND
    await collector.look()
    assert collector.deleted == found
    assert (await shard.load()).encode() == log.states[0].encode()


def of_2040(lanes: int) -> ShardState:
    state = ShardState(b"0123456789abcdef", 0)
    state.created = START + YEARS
    for number in range(lanes):
        held = LaneState(mark=Mark(START, 1), ranges=RangeSet([(0, 1)]))
        held.last_seen = state.created
        state.set_lane(Lane("default", f"edge-{number // 20}", 7, f"s{number % 20}"), held)
    return state


def lowering(state: ShardState) -> Chunk:
    ending = lane_ends.set_back(state, START, "a node was of 2040")
    header = ChunkHeader(state.cluster_id, state.n + 1, START, state.shard, state.footer_crc, 1)
    index = index_of(header, FIRST_LEVEL, [], StreamBlock([], ending.controls, []))
    return Chunk(header, index, encode_footer(index)[1])


def test_no_step_over_the_lanes_of_a_large_shard_is_long() -> None:
    quickest = []
    for _ in range(3):  # others use the machine as well
        state = of_2040(50_000)
        steps, longest = folding(state, lowering(state)), 0.0
        with uncollected():
            while True:
                began = time.thread_time()
                try:
                    next(steps)
                except StopIteration as end:
                    state.accept(end.value)
                    break
                finally:
                    longest = max(longest, time.thread_time() - began)
        assert {held.last_seen for held in state.lanes.values()} == {START}
        quickest.append(longest / slowness())
        if quickest[-1] <= STEP_S_MAX:
            return
    raise AssertionError(f"steps of {quickest} s")


async def test_others_work_while_the_lanes_of_a_large_shard_are_visited() -> None:
    state, turns, done = of_2040(5 * STEP_LANES), 0, asyncio.Event()

    async def other() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other())
    await apply_in_steps(state, lowering(state))
    done.set()
    await working
    assert turns >= 5
    assert state.created == START
