"""Canaries of links at a shard: answered after a durable chunk that was begun after them, and never before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.cloud_hub.fabric import CLUSTER
from tests.cloud_hub.faulty_store import CALM, DEAD, FULL, FaultyStore
from tests.cloud_hub.shard.test_sequencer import LANE, opened, play
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.batch import Buffer
from weft.protocols.chunk_index import Mark
from weft.protocols.link import RefuseCode
from weft.protocols.shard.fold import apply
from weft.protocols.shard.shard_state import ShardState

NOBODY = object()


class Asker:
    """Links that ask, each with the moments of its answers."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._canaries = sequencer.sessions.canaries
        self._news = asyncio.Event()
        self.answers: dict[object, list[float]] = {}

    def ask(self, link: object = NOBODY) -> None:
        answers = self.answers.setdefault(link, [])

        def take(waited_s: float) -> None:
            answers.append(waited_s)
            self._news.set()

        self._canaries.ask(link, take)

    @property
    def reported(self) -> list[float]:
        return self.answers[NOBODY]

    async def until_complete(self, seconds: float) -> float:
        """Return the seconds until the next answer."""
        now = asyncio.get_running_loop().time
        began = now()
        self._news.clear()
        async with asyncio.timeout(seconds):
            await self._news.wait()
        return now() - began


async def chunks(sequencer: Sequencer, start: int = 0) -> list[int]:
    """Lanes that each chunk names."""
    return [len(index.footer.lanes) async for index in sequencer.log.indexes(start)]


def test_a_canary_rides_with_records_and_adds_no_chunk() -> None:
    async def story(sequencer: Sequencer, _store: FaultyStore) -> None:
        asker, session = Asker(sequencer), await opened(sequencer)
        asker.ask()
        assert asker.reported == []
        await session.send(0, 3)
        await session.until_acked(0, 3)
        assert len(asker.reported) == 1
        assert await chunks(sequencer) == [1, 1]
        assert not sequencer.sessions.pending

    play(story, mark_interval_s=60.0)


def test_a_canary_waits_with_the_marks_of_an_idle_lane_and_says_for_how_long() -> None:
    async def story(sequencer: Sequencer, _store: FaultyStore) -> None:
        asker, _ = Asker(sequencer), await opened(sequencer)
        await asyncio.sleep(20)
        asker.ask()
        took = await asker.until_complete(61)
        assert 39 < took < 41, "the mark interval counts from the last chunk"
        assert took - 0.2 < asker.reported[0] <= took, "the commit itself took no time"
        assert await chunks(sequencer) == [1, 0]

    play(story, mark_interval_s=60.0)


def test_canaries_of_many_links_share_the_chunks_that_marks_take() -> None:
    async def story(sequencer: Sequencer, _store: FaultyStore) -> None:
        asker, session = Asker(sequencer), await opened(sequencer)
        before = sequencer.counters.chunks
        for moment in range(1000, 1600):
            sequencer.put_mark(session.lane_session, Mark(moment, 0))
            asker.ask(moment)
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert all(len(reported) == 1 for reported in asker.answers.values())
        assert 25 <= sequencer.counters.chunks - before <= 32, "sixty seconds, one chunk every two, as without canaries"

    play(story, mark_interval_s=2.0)


@pytest.mark.parametrize("faults", [DEAD, FULL])
def test_a_store_that_fails_leaves_a_canary_without_an_answer_until_it_works(faults: object) -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        asker, _ = Asker(sequencer), await opened(sequencer)
        store.faults = faults  # type: ignore[assignment]
        asker.ask()
        await asyncio.sleep(100)
        assert asker.reported == []
        store.faults = replace(CALM, latency_s=0.0)
        took = await asker.until_complete(5)
        assert took < 1
        if faults is FULL:
            assert asker.reported[0] <= 2, "what the failing store took is no wait for others"

    play(story, mark_interval_s=2.0)


def test_a_store_that_hangs_leaves_a_canary_without_an_answer() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        asker, _ = Asker(sequencer), await opened(sequencer)
        store.running.clear()
        asker.ask()
        await asyncio.sleep(100)
        assert asker.reported == []
        store.running.set()
        await asker.until_complete(1)

    play(story, mark_interval_s=2.0)


def test_a_canary_that_comes_while_a_chunk_is_written_waits_for_the_next() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        asker, session = Asker(sequencer), await opened(sequencer)
        await asyncio.sleep(1)
        create, is_written, written = store.create, asyncio.Event(), asyncio.Event()

        async def create_later(key: str, data: Buffer) -> str:
            asker.ask()
            is_written.set()
            await written.wait()
            return await create(key, data)

        store.create = create_later  # type: ignore[method-assign]
        await session.send(0, 3)
        await is_written.wait()
        store.create = create  # type: ignore[method-assign]
        written.set()
        await session.until_acked(0, 3)
        assert asker.reported == []
        await asker.until_complete(3)
        assert await chunks(sequencer) == [1, 1, 0]

    play(story, mark_interval_s=2.0)


def test_the_last_canary_of_a_link_counts_and_one_that_left_gets_no_answer() -> None:
    async def story(sequencer: Sequencer, _store: FaultyStore) -> None:
        asker, session = Asker(sequencer), await opened(sequencer)
        for _ in range(1000):
            asker.ask("flood")
        asker.ask("left")
        sequencer.sessions.canaries.forget("left")
        await session.send(0, 3)
        await session.until_acked(0, 3)
        assert (len(asker.answers["flood"]), asker.answers["left"]) == (1, [])

    play(story, mark_interval_s=60.0)


def test_a_shard_that_writes_nothing_by_a_wrong_clock_does_not_answer_and_does_not_spin() -> None:
    async def story(sequencer: Sequencer, _store: FaultyStore) -> None:
        asker, _ = Asker(sequencer), await opened(sequencer)
        asker.ask()
        sequencer.sessions.refuse_all(RefuseCode.UNAVAILABLE, "the clock is wrong", "set it")
        assert not sequencer.sessions.pending
        await asyncio.sleep(10)
        assert (asker.reported, await chunks(sequencer)) == ([], [1])

    play(story, mark_interval_s=2.0)


def test_an_empty_chunk_changes_nothing_that_readers_see() -> None:
    async def story(sequencer: Sequencer, _store: FaultyStore) -> None:
        asker, session = Asker(sequencer), await opened(sequencer)
        await session.send(0, 3)
        await session.until_acked(0, 3)
        before = sequencer.state.lanes[LANE]
        asker.ask()
        await asker.until_complete(3)
        held = sequencer.state.lanes[LANE]
        assert (held.ranges, held.newest_mark, held.last_seen) == (before.ranges, before.newest_mark, before.last_seen)
        state = ShardState(CLUSTER.cluster_id, 0)
        async for index in sequencer.log.indexes(0):
            apply(state, index)
        assert state.next_offset == sequencer.state.next_offset == {("default", "telemetry"): 3}
        assert state.n == sequencer.state.n == 2

    play(story, mark_interval_s=2.0)
