"""Tests of ``cloud_hub/shard/sequencer.py``."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, SETTINGS, Session, check_log, make_batch, make_sequencer, read_chunks
from tests.cloud_hub.faulty_store import CALM, FaultyStore
from tests.cloud_hub.virtual_time import NS
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard import chunk_builder
from weft.cloud_hub.shard import sequencer as snapshots
from weft.cloud_hub.shard.chunk_builder import ChunkBuilder
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.cloud_hub.shard.sequencer import CommitPace, CommitSchedule, Sequencer
from weft.protocols.batch import Buffer
from weft.protocols.chunk_index import ClockUpdate, GapRange, LaneFlag, Mark, StreamSection
from weft.protocols.lane import ORIGINS_MAX, Lane, Origin
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.chunk_log import ShardLog
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store.directory import MemoryStore

LANE = Lane("default", "edge-1", 7, "telemetry")
OTHER = Lane("default", "edge-2", 8, "telemetry")

Story = Callable[[Sequencer, FaultyStore], Awaitable[None]]


def play(story: Story, healed: RangeSet | None = None, **settings: float) -> MemoryStore:
    """Run a story with one sequencer over a store that answers at once."""
    inner = MemoryStore()

    async def main() -> None:
        store = FaultyStore(inner, random.Random(1), replace(CALM, latency_s=0.0))
        sequencer = make_sequencer(store, random.Random(2), replace(SETTINGS, **settings))  # type: ignore[arg-type]
        await sequencer.start()
        await story(sequencer, store)
        await sequencer.close()
        check_log(await read_chunks(inner), healed)

    virtual_time.run(main())
    return inner


async def opened(sequencer: Sequencer, lane: Lane = LANE, epoch: int = 1) -> Session:
    session = Session(sequencer, lane, epoch, ["plant/{line}/t"])
    assert await session.open()
    return session


def test_the_epoch_and_the_topics_are_durable_before_the_session_is_open() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        await opened(sequencer, epoch=5)
        state = await sequencer.log.load()
        assert state.lanes[LANE].epoch == 5
        assert state.lanes[LANE].topics == ["plant/{line}/t"]
        assert state.stream_fields("default", "telemetry") == ["line"]

    play(story)


def test_topics_are_told_again_only_when_they_changed() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        await opened(sequencer, epoch=1)
        await opened(sequencer, epoch=2)
        changed = Session(sequencer, LANE, 3, ["hall/{hall}"])
        assert await changed.open()
        reports = [index.footer.lanes[0].topics async for index in sequencer.log.indexes(0)]
        assert reports == [["plant/{line}/t"], None, ["hall/{hall}"]]

    play(story)


def test_the_kind_of_payloads_is_told_again_only_when_it_changed() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        for epoch, payload in enumerate([0, 2, 2, 1, 0], 1):
            assert await Session(sequencer, LANE, epoch, payload=payload).open()
        reports = [index.footer.lanes[0].payload async for index in sequencer.log.indexes(0)]
        assert reports == [None, 2, None, 1, 0]
        assert (await sequencer.log.load()).lanes[LANE].payload == 0

    play(story)


def test_an_acknowledgement_comes_after_the_chunk_is_there() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        session = await opened(sequencer)
        store.running.clear()
        await session.send(0, 3)
        await asyncio.sleep(60)
        assert not session.acked
        store.running.set()
        await session.until_acked(0, 3)
        assert (await sequencer.log.load()).lanes[LANE].ranges == RangeSet([(0, 3)])

    play(story)


def test_after_a_silence_a_batch_does_not_wait_and_in_a_stream_batches_share_chunks() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        loop = asyncio.get_running_loop()
        session = await opened(sequencer)
        await asyncio.sleep(10)
        started = loop.time()
        await session.send(0, 1)
        await session.until_acked(0, 1)
        assert loop.time() - started < 0.01
        before = sequencer.counters.chunks
        for seq in range(1, 101):
            await session.send(seq, seq + 1)
            await asyncio.sleep(0.01)
        await session.until_acked(0, 101)
        assert loop.time() - started < 1.2
        assert 9 <= sequencer.counters.chunks - before <= 12  # a second's worth at ten chunks a second

    play(story, commit_interval_s=0.1, chunk_bytes_max=1 << 20, pending_bytes_max=1 << 20)


def test_a_full_chunk_is_written_without_waiting() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        loop = asyncio.get_running_loop()
        session = await opened(sequencer)
        started = loop.time()
        for seq in range(0, 400, 10):
            await session.send(seq, seq + 10)
        await session.until_acked(0, 390)
        assert loop.time() - started < 30

    store = play(story, commit_interval_s=30.0, chunk_bytes_max=3000, pending_bytes_max=6000)
    sizes = [len(store._objects[key].data) for key in store._keys if "/chunk/" in key]
    assert max(sizes) < 3000 + 2 * 600


def test_a_shard_in_trouble_for_long_sends_its_links_away_and_keeps_what_it_took() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        session, idle = await opened(sequencer), await opened(sequencer, OTHER)
        await asyncio.sleep(3600)  # how long the node runs does not count
        store.faults = replace(CALM, lost=1.0, latency_s=0.0)
        await session.send(0, 10)
        await asyncio.sleep(4)
        assert session.refusal is None
        assert not sequencer.is_unavailable
        await asyncio.sleep(10)
        assert [each.refusal for each in (session, idle)] == [RefuseCode.UNAVAILABLE] * 2
        assert sequencer.is_unavailable
        assert sequencer.trouble
        store.faults = replace(CALM, latency_s=0.0)
        await asyncio.sleep(20)
        assert not sequencer.is_unavailable
        assert sequencer.state.lanes[LANE].ranges == RangeSet([(0, 10)])
        again = Session(sequencer, LANE, 2)
        assert await again.open()
        assert again.acked == RangeSet([(0, 10)])

    play(story, unavailable_after_s=5.0)


def test_a_shard_that_cannot_commit_makes_its_links_wait() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        session, other = await opened(sequencer), await opened(sequencer, OTHER)
        store.faults = replace(CALM, lost=1.0, latency_s=0.0)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for seq in range(0, 1000, 10):
                await session.send(seq, seq + 10)
                sent = seq + 10

        task = asyncio.create_task(flood())
        await asyncio.sleep(60)
        assert 0 < sent < 200
        assert sequencer.sessions.pending_bytes < 4000 + 600
        assert sequencer.trouble
        blocked = asyncio.create_task(other.send(0, 1))
        await asyncio.sleep(10)
        assert not blocked.done()
        assert not session.acked
        store.faults = replace(CALM, latency_s=0.0)
        await task
        await blocked
        await session.until_acked(0, 1000)
        await other.until_acked(0, 1)
        assert sequencer.sessions.pending_bytes == 0
        assert sequencer.trouble is None

    play(story, pending_bytes_max=4000)


def test_a_full_disk_is_named_once_and_tried_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """It can still be read, which is no reason to forget that it cannot be written."""

    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        session = await opened(sequencer)
        store.faults = replace(CALM, lost=1.0, latency_s=0.0)
        await session.send(0, 10)
        troubles = set()
        for _ in range(600):
            await asyncio.sleep(0.1)
            troubles.add(sequencer.trouble)
        assert troubles - {None} == {"chunk 1 could not be written: lost"}
        assert sequencer.trouble
        assert 60 / 5.0 < sequencer.retries < 60 / 2.5 + 20
        store.faults = replace(CALM, latency_s=0.0)
        await session.until_acked(0, 10)
        assert sequencer.trouble is None

    with caplog.at_level(logging.INFO, "weft.cloud_hub"):
        play(story, retry_min_s=0.05, retry_max_s=5.0)
    assert [record.message for record in caplog.records] == [
        "shard 0: trying again: chunk 1 could not be written: lost",
        "shard 0: the store works again, after 63 seconds",
    ]


def test_what_is_held_already_is_acknowledged_again_and_not_stored_again() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await session.send(0, 10)
        await session.until_acked(0, 10)
        chunks = sequencer.counters.chunks
        session.acked = RangeSet()
        await session.send(2, 9)
        await session.until_acked(0, 10)
        assert sequencer.counters.chunks == chunks
        await session.send(5, 15)
        await session.until_acked(0, 15)
        assert sequencer.counters.records == 15

    play(story)


def test_a_hole_is_held_as_a_hole_and_its_filling_is_trimmed_to_it() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await session.send(0, 5)
        await session.send(10, 15)
        await session.until_acked(10, 15)
        assert list(sequencer.state.lanes[LANE].ranges) == [(0, 5), (10, 15)]
        await sequencer.put_gap(session.lane_session, GapRange(3, 8, 2))
        await session.until_acked(0, 8)
        assert list(sequencer.state.lanes[LANE].gaps) == [GapRange(5, 8, 2)]
        # Out of order by the sender's own doing: the log shows the order of arrival.
        state, held = sequencer.state.n, sequencer.state.lanes[LANE].ranges
        assert (state, list(held)) == (sequencer.state.n, [(0, 8), (10, 15)])

    play(story)


def test_a_session_with_no_higher_epoch_is_refused() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        first = await opened(sequencer, epoch=5)
        for epoch in (5, 4):
            clone = Session(sequencer, LANE, epoch)
            assert not await clone.open()
            assert clone.refusal is RefuseCode.IDENTITY_CONFLICT
        await first.send(0, 3)
        await first.until_acked(0, 3)
        assert first.refusal is None

    play(story)


def test_of_two_clones_that_open_at_once_one_gets_the_lane() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        clones = [Session(sequencer, LANE, 5) for _ in range(2)]
        assert sorted(await asyncio.gather(*(clone.open() for clone in clones))) == [False, True]

    play(story)


def test_a_higher_epoch_ends_the_older_session_and_nothing_interleaves() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        old = await opened(sequencer, epoch=1)
        await old.send(0, 3)
        await opened(sequencer, epoch=2)
        assert old.refusal is RefuseCode.IDENTITY_CONFLICT
        await old.send(3, 6)
        await asyncio.sleep(10)
        assert sequencer.state.lanes[LANE].ranges == RangeSet([(0, 3)]), "what came before the new epoch is kept"
        assert sequencer.sessions.pending_bytes == 0

    play(story)


def test_an_epoch_taken_at_another_node_ends_the_session_here() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        old = await opened(sequencer, epoch=1)
        elsewhere = make_sequencer(store.inner, random.Random(3))
        await elsewhere.start()
        await opened(elsewhere, epoch=2)
        await old.send(0, 3)  # this node does not know yet; the log will tell it
        await asyncio.sleep(1)
        assert old.refusal is RefuseCode.IDENTITY_CONFLICT
        assert not old.acked
        idle = await opened(sequencer, OTHER, epoch=1)
        await opened(elsewhere, OTHER, epoch=2)
        await asyncio.sleep(5)
        assert idle.refusal is RefuseCode.IDENTITY_CONFLICT, "found by following the log, without any data"
        await elsewhere.close()

    play(story)


def test_the_end_of_a_session_whose_edge_has_left_is_not_told_as_a_copied_log() -> None:
    """A node that was stopped finds that its edges continued elsewhere. They have made records since they came here."""

    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        left = Session(sequencer, LANE, 1, offered_end=3)
        assert await left.open()
        await left.send(0, 9)
        await left.until_acked(0, 9)
        late = Session(sequencer, OTHER, 1, offered_end=3)
        elsewhere = make_sequencer(store.inner, random.Random(3))
        await elsewhere.start()
        store.running.clear()  # this node is stopped, the one session open, the other about to be
        opening = asyncio.create_task(late.open())
        for lane in (LANE, OTHER):
            await opened(elsewhere, lane, epoch=2)
        await asyncio.sleep(40)
        store.running.set()
        assert not await opening
        await asyncio.sleep(5)
        for session in (left, late):
            assert session.refusal is RefuseCode.IDENTITY_CONFLICT
            assert "a connection with epoch 2 has taken over; this one has 1" in session.reported
        copy = Session(sequencer, LANE, 1, offered_end=3)
        assert not await copy.open()
        assert "restored from an old copy" in copy.reported
        await elsewhere.close()

    play(story)


def test_a_reader_sees_what_another_node_wrote_while_this_node_s_commit_had_no_answer() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        session = await opened(sequencer)
        elsewhere = make_sequencer(store.inner, random.Random(3))
        await elsewhere.start()
        store.faults = replace(CALM, latency_s=1.0)
        await session.send(0, 3)
        while (await elsewhere.log.load()).n == sequencer.state.n:  # noqa: ASYNC110 - until its chunk is in the store
            await asyncio.sleep(0.01)
        store.running.clear()  # the answer is not there yet
        await opened(elsewhere, OTHER)
        reader = asyncio.create_task(sequencer.catch_up(0))
        await asyncio.sleep(5)
        store.running.set()
        await reader
        assert OTHER in sequencer.state.lanes
        await elsewhere.close()

    play(story)


def test_an_opening_whose_write_was_misreported_is_known_as_ones_own() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        store.faults = replace(CALM, misreported=1.0)
        await opened(sequencer, epoch=1)
        store.faults = replace(CALM, unreported=1.0)
        session = await opened(sequencer, OTHER, epoch=1)
        await session.send(0, 4)
        await session.until_acked(0, 4)
        assert sequencer.counters.unclear >= 3

    play(story)


def test_marks_travel_with_data_and_alone_seldom() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        sequencer.put_mark(session.lane_session, Mark(100, 3))
        await session.send(0, 3)
        await session.until_acked(0, 3)
        assert sequencer.state.lanes[LANE].complete_up_to == 100
        before = sequencer.counters.chunks
        for moment in range(1000, 1600):
            sequencer.put_mark(session.lane_session, Mark(moment, 3))
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert sequencer.state.lanes[LANE].complete_up_to == 1599
        assert 25 <= sequencer.counters.chunks - before <= 32  # sixty seconds, one chunk every two

    play(story, mark_interval_s=2.0)


def test_the_mark_behind_the_last_records_is_stored_soon_and_those_of_an_idle_lane_seldom() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await session.send(0, 3)
        await session.until_acked(0, 3)
        sequencer.put_mark(session.lane_session, Mark(100, 3))
        await asyncio.sleep(11)
        assert sequencer.state.lanes[LANE].complete_up_to == 100
        sequencer.put_mark(session.lane_session, Mark(200, 3))
        await asyncio.sleep(45)
        assert sequencer.state.lanes[LANE].complete_up_to == 100
        await asyncio.sleep(20)
        assert sequencer.state.lanes[LANE].complete_up_to == 200

    play(story, mark_interval_s=60.0)


ABSENT = int(GapReason.ABSENT)


def test_a_relay_fills_what_the_edge_no_longer_has() -> None:
    """Proof p2: the hub acknowledged the relay's records and stored none of them."""

    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        edge = await opened(sequencer)
        await sequencer.put_gap(edge.lane_session, GapRange(0, 1000, ABSENT))
        await edge.until_acked(0, 1000)
        await edge.send(1000, 1005)
        await edge.until_acked(0, 1005)
        relay = Session(sequencer, LANE, 1, flags=int(LaneFlag.RELAY))
        assert await relay.open()
        assert list(relay.acked) == [(1000, 1005)], "a gap of another sender is nothing that this one may forget"
        await relay.send(0, 1000)
        await relay.until_acked(0, 1005)
        held = sequencer.state.lanes[LANE]
        assert (list(held.gaps), held.records) == ([], RangeSet([(0, 1005)]))
        assert sequencer.counters.records == 1005
        await edge.send(1005, 1006)
        await edge.until_acked(0, 1006)
        assert edge.refusal is None, "a relay fences no edge"

    inner = play(story, healed=RangeSet([(0, 1000)]))
    assert inner is not None


def test_marks_that_a_region_brought_first_are_no_step_of_the_edges_clock() -> None:
    """The edge's own line was silent for half a minute, and now brings what it had sent before."""

    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        edge, behind = await opened(sequencer), sequencer.sessions.behind
        relay = Session(sequencer, LANE, 1, flags=int(LaneFlag.RELAY))
        assert await relay.open()
        await edge.send(0, 5)
        for session, time in ((edge, 10), (relay, 40), (edge, 12), (edge, 41)):
            sequencer.put_mark(session.lane_session, Mark(time * NS, 5))
            await asyncio.sleep(3.0)
            assert not behind, f"at {time}"
        sequencer.put_mark(edge.lane_session, Mark(20 * NS, 5))
        assert behind == {LANE: 21 * NS}, "now it was set back, by what the edge itself had said"

    play(story)


def test_nobody_is_told_to_forget_records_under_a_gap_that_another_told() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        relay = Session(sequencer, LANE, 1, flags=int(LaneFlag.RELAY))
        assert await relay.open()
        await sequencer.put_gap(relay.lane_session, GapRange(0, 100, ABSENT))
        await relay.until_acked(0, 100)
        edge = await opened(sequencer)
        assert not edge.acked
        await edge.send(0, 10)
        await edge.until_acked(0, 10)
        assert list(edge.acked) == [(0, 10)], "the edge still has 10 to 100, and would release them"
        await sequencer.put_gap(edge.lane_session, GapRange(10, 20, 3))
        await edge.until_acked(0, 20)
        assert list(sequencer.state.lanes[LANE].gaps) == [GapRange(10, 20, 3), GapRange(20, 100, ABSENT)]
        chunks = sequencer.counters.chunks
        edge.acked = RangeSet()
        await sequencer.put_gap(edge.lane_session, GapRange(10, 30, ABSENT))
        await edge.until_acked(0, 30)
        assert sequencer.counters.chunks == chunks, "what is known is acknowledged, and not stored again"

    play(story, healed=RangeSet([(0, 10)]))


def test_records_that_come_behind_their_own_gap_are_told_as_records() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await sequencer.put_gap(session.lane_session, GapRange(0, 10, 3))
        await session.send(2, 5)
        await session.until_acked(0, 10)
        held = sequencer.state.lanes[LANE]
        assert (list(held.gaps), held.records) == ([GapRange(0, 2, 3), GapRange(5, 10, 3)], RangeSet([(2, 5)]))
        assert sequencer.counters.chunks == 2

    play(story)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("first", [2, 25, 55])
def test_gaps_told_in_any_order_before_their_records_cost_the_shard_nothing(order: tuple[int, ...], first: int) -> None:
    gaps = [GapRange(0, 10, 3), GapRange(20, 40, ABSENT), GapRange(50, 60, 3)]
    reported = [gaps[number] for number in order] + [GapRange(24, 30, 3)]

    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session, other = await opened(sequencer), await opened(sequencer, OTHER)
        for gap in reported:
            await sequencer.put_gap(session.lane_session, gap)
        await session.send(first, first + 2)
        await other.send(0, 5)
        await other.until_acked(0, 5)
        for gap in reported:
            await session.until_acked(gap.first, gap.end)
        held = sequencer.state.lanes[LANE]
        assert held.records == RangeSet([(first, first + 2)])
        assert held.ranges == RangeSet([(0, 10), (20, 40), (50, 60)])
        assert {gap.reason for gap in held.gaps if 24 <= gap.first < 30} <= {3}
        assert (session.refusal, other.refusal) == (None, None)

    play(story)


def test_edges_that_tell_much_at_once_share_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_builder, "INDEX_BYTES_MAX", 4000)
    lanes = [Lane("default", f"edge-{number}", number, "telemetry") for number in range(10)]
    topics = [f"plant/{'x' * 1000}/{number}" for number in range(3)]

    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        sessions = [Session(sequencer, lane, 1, topics) for lane in lanes]
        assert await asyncio.gather(*(session.open() for session in sessions)) == [True] * 10
        assert sequencer.counters.chunks == 5
        assert {held.topics[0] for held in sequencer.state.lanes.values()} == {topics[0]}

    play(story)


def test_a_session_keeps_no_more_origins_than_a_lane_may_have() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        for number in range(1, ORIGINS_MAX + 100):
            session.lane_session.add_origins([Origin(number, 1, "mean", "1", b""), Origin(number, 1, "mean", "2", b"")])
        assert len(session.lane_session.origins) == ORIGINS_MAX
        assert [*session.lane_session.origins.values()][-1] == Origin(ORIGINS_MAX + 99, 1, "mean", "2", b"")

    play(story)


def test_records_that_would_split_one_gap_too_many_are_refused() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await sequencer.put_gap(session.lane_session, GapRange(0, 10, 3))
        await sequencer.put_gap(session.lane_session, GapRange(20, 30, 3))
        await session.until_acked(20, 30)
        await session.send(0, 2)
        await session.until_acked(0, 2)
        await session.send(4, 5)
        assert session.refusal is RefuseCode.OVERLOADED

    play(story, gaps_per_lane_max=2, healed=RangeSet([(0, 10)]))


def test_a_chunk_says_which_mark_its_records_contradict_and_which_clocks_it_needs() -> None:
    clock = ClockUpdate("default", "edge-1", 7, 1, 5, 6, 7)

    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        sequencer.put_mark(session.lane_session, Mark(1000, 3))
        await session.send(0, 5)
        await session.until_acked(0, 5)
        sequencer.put_clock(session.lane_session, clock)
        await session.send(5, 6)
        await session.until_acked(0, 6)
        chunk = await sequencer.log.index(sequencer.state.n)
        assert chunk is not None
        assert chunk.footer.lanes[0].floor == Mark(1000, 3)
        assert chunk.footer.clocks == [clock]
        await session.send(6, 7)
        await session.until_acked(0, 7)
        chunk = await sequencer.log.index(sequencer.state.n)
        assert chunk is not None
        assert chunk.footer.clocks == []

    play(story)


def test_a_chunk_that_would_not_fold_is_never_created(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await session.send(0, 5)
        await session.until_acked(0, 5)
        place, n = ChunkBuilder._place_sections, sequencer.state.n

        def misplace(builder: ChunkBuilder, parts: list[Buffer]) -> list[StreamSection]:
            return [msgspec.structs.replace(section, base_offset=3) for section in place(builder, parts)]

        monkeypatch.setattr(ChunkBuilder, "_place_sections", misplace)  # a builder with a bug
        await session.send(3, 8)
        while session.refusal is None:
            session.news.clear()
            await session.news.wait()
        monkeypatch.undo()
        await asyncio.sleep(5)
        assert sequencer.state.n == n
        assert (await sequencer.log.index(n + 1)) is None
        assert session.refusal is RefuseCode.OVERLOADED
        again = await opened(sequencer, epoch=2)
        await again.send(5, 8)
        await again.until_acked(0, 8)

    play(story)


def test_a_session_of_which_no_chunk_can_be_made_refuses_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        sound, odd = await opened(sequencer), Session(sequencer, OTHER, 1)
        assert await odd.open()
        add = ChunkBuilder.add

        def add_most(builder: ChunkBuilder, session: LaneSession, *, declares_origins: bool = True) -> None:
            if session.lane == OTHER:
                raise OverflowError("a bug that one lane's data meets")
            add(builder, session, declares_origins=declares_origins)

        monkeypatch.setattr(ChunkBuilder, "add", add_most)
        await odd.send(0, 3)
        await sound.send(0, 5)
        await sound.until_acked(0, 5)
        assert odd.refusal is RefuseCode.OVERLOADED
        assert sound.refusal is None

    play(story)


def test_a_sender_that_leaves_too_many_holes_is_sent_away() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        for seq in range(0, 100, 2):
            await session.send(seq, seq + 1)
        assert session.refusal is RefuseCode.OVERLOADED
        assert sequencer.sessions.pending_bytes == 0
        await asyncio.sleep(1)
        assert len(sequencer.state.lanes[LANE].ranges) <= 10

    play(story, ranges_per_lane_max=10)


def test_gap_notices_and_lanes_are_bounded() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        for seq in range(10):
            await sequencer.put_gap(session.lane_session, GapRange(seq, seq + 1, seq))
            await asyncio.sleep(1)
        assert session.refusal is RefuseCode.OVERLOADED
        assert len(sequencer.state.lanes[LANE].gaps) == 5
        assert sequencer.no_room(LANE, []) is None
        full = sequencer.no_room(OTHER, [])
        assert full is not None
        assert full.reason == "shard 0 has 1 lanes, its limit"

    play(story, gaps_per_lane_max=5, lanes_max=1)


def test_what_a_lost_link_brought_is_committed_and_its_successor_need_not_send_it() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        await session.send(0, 7)
        sequencer.leave(session.lane_session)
        successor = await opened(sequencer, epoch=2)
        assert successor.acked == RangeSet([(0, 7)])
        assert sequencer.sessions.count == 1

    play(story)


def test_a_failure_that_nobody_foresaw_costs_the_sessions_and_not_the_shard() -> None:
    async def story(sequencer: Sequencer, _: FaultyStore) -> None:
        session = await opened(sequencer)
        header, data = make_batch(LANE, 0, 3)
        sequencer.put(session.lane_session, [(header._replace(first_time=1 << 80), data)])  # fits no footer
        await asyncio.sleep(5)
        assert session.refusal is RefuseCode.OVERLOADED
        successor = await opened(sequencer, epoch=2)
        await successor.send(0, 3)
        await successor.until_acked(0, 3)

    play(story)


def test_snapshots_are_made_by_count_and_by_time_and_a_new_node_starts_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        session = await opened(sequencer)
        for seq in range(20):
            await session.send(seq, seq + 1)
            await session.until_acked(seq, seq + 1)
            await asyncio.sleep(0.2)
        numbers = [n for n, _ in await sequencer.log.snapshots()]
        assert len(numbers) == 2
        assert all(later - earlier >= 8 for earlier, later in zip([-1, *numbers], numbers, strict=False))
        monkeypatch.setattr(snapshots, "CHUNKS_MIN", sequencer.state.n - numbers[-1] + 2)
        for seq in (20, 21):
            before, _ = await sequencer.log.manifest()
            assert before.snapshot_n == numbers[-1], "a snapshot of few chunks costs more than it saves"
            await asyncio.sleep(70)
            await session.send(seq, seq + 1)
            await asyncio.sleep(1)
        manifest, _ = await sequencer.log.manifest()
        assert manifest.snapshot_n == sequencer.state.n
        for n in range(manifest.snapshot_n):
            await store.inner.delete(chunk_key(0, n))
        late = await ShardLog(store.inner, CLUSTER, 0).load()
        assert late.encode() == sequencer.state.encode()

    inner = MemoryStore()

    async def main() -> None:
        store = FaultyStore(inner, random.Random(1), replace(CALM, latency_s=0.0))
        settings = replace(SETTINGS, snapshot_chunks=8, snapshot_interval_s=60.0)
        sequencer = make_sequencer(store, random.Random(2), settings)
        await sequencer.start()
        await story(sequencer, store)
        await sequencer.close()

    virtual_time.run(main())


def test_a_commit_never_splits_the_order_of_a_lane_over_chunks() -> None:
    async def story(sequencer: Sequencer, store: FaultyStore) -> None:
        sessions = [await opened(sequencer, lane) for lane in (LANE, OTHER)]
        rng = random.Random(4)
        ends = [0, 0]
        store.faults = replace(CALM, unreported=0.3, lost=0.2)
        for _ in range(120):
            i = rng.randrange(2)
            first = max(0, ends[i] - rng.randrange(5))
            ends[i] = ends[i] + rng.randrange(1, 30)
            await sessions[i].send(first, ends[i])
        store.faults = CALM
        for session, end in zip(sessions, ends, strict=True):
            await session.until_acked(0, end)

    play(story)  # which checks the order of every lane in the log


# --- A shard commits at once after a silence, waits for company when busy, and writes marks alone rarely


SCHEDULE_SETTINGS = SequencerSettings(
    commit_interval_s=0.25, chunk_bytes_max=1000, mark_interval_s=10, follow_interval_s=2
)


@pytest.fixture
def schedule() -> CommitSchedule:
    """A shard that wrote a chunk, committed and looked at 100 s."""
    schedule = CommitSchedule(SCHEDULE_SETTINGS)
    schedule.wrote_chunk(100)
    schedule.end_commit(schedule.begin_commit(0), 100, records_left=False)
    return schedule


def test_everything_is_due_at_the_start() -> None:
    schedule = CommitSchedule(SCHEDULE_SETTINGS)
    assert schedule.look_at == schedule.commit_at(1, urgent=True, pending=True) == -math.inf
    assert schedule.marks_are_due(0)


def test_records_wait_for_the_interval_since_the_last_commit_and_no_longer(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(1, urgent=True, pending=True) == 100.25


def test_a_link_that_soon_may_send_no_more_brings_the_next_commit_forward() -> None:
    schedule = CommitSchedule(replace(SCHEDULE_SETTINGS, commit_interval_s=1.0))
    schedule.end_commit(schedule.begin_commit(0), 100, records_left=False)
    assert schedule.commit_at(1, urgent=True, pending=True) == 101
    assert schedule.hurry()
    assert not schedule.hurry(), "it is said already"
    assert schedule.commit_at(1, urgent=True, pending=True) == 100.25
    schedule.end_commit(schedule.begin_commit(0), 100.25, records_left=False)
    assert schedule.commit_at(1, urgent=True, pending=True) == 101.25


def test_a_short_interval_is_not_hurried(schedule: CommitSchedule) -> None:
    assert not schedule.hurry()


def test_a_full_chunk_is_due_at_once(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(999, urgent=True, pending=True) == 100.25
    assert schedule.commit_at(1000, urgent=True, pending=True) == -math.inf


def test_marks_alone_wait_for_their_interval_since_the_last_chunk(schedule: CommitSchedule) -> None:
    schedule.end_commit(schedule.begin_commit(0), 109, records_left=False)  # a commit that wrote none
    assert schedule.commit_at(0, urgent=False, pending=True) == 110
    assert not schedule.marks_are_due(109.9)
    assert schedule.marks_are_due(110)


def test_a_mark_that_follows_records_waits_less_long_than_those_of_idle_lanes() -> None:
    for interval_s, trailing_at in ((60, 110), (5, 105)):
        schedule = CommitSchedule(replace(SCHEDULE_SETTINGS, mark_interval_s=interval_s))
        schedule.wrote_chunk(100)
        assert schedule.commit_at(0, urgent=False, pending=True) == 100 + interval_s
        assert schedule.commit_at(0, urgent=False, pending=True, trailing=True) == trailing_at
        assert schedule.marks_are_due(trailing_at, trailing=True)
        assert not schedule.marks_are_due(trailing_at - 0.1, trailing=True)


def test_nothing_is_due_while_nothing_is_pending(schedule: CommitSchedule) -> None:
    assert schedule.commit_at(0, urgent=False, pending=False) == math.inf


def test_a_commit_or_a_look_puts_off_the_next_look(schedule: CommitSchedule) -> None:
    assert schedule.look_at == 102
    schedule.looked(101, found=True)
    assert schedule.look_at == 103


def test_a_look_says_only_what_was_there_when_it_began(schedule: CommitSchedule) -> None:
    assert schedule.head_at == -math.inf, "a commit that put no chunk has not seen the log"
    schedule.begin_look(101)
    schedule.looked(105, found=True)
    assert (schedule.head_at, schedule.look_at) == (101, 107)


def test_a_chunk_that_the_store_took_is_a_look_once_its_commit_ends(schedule: CommitSchedule) -> None:
    since = schedule.begin_commit(101)
    schedule.put_chunk(102)
    assert schedule.head_at == -math.inf, "the watermark may have passed it"
    schedule.end_commit(since, 105, records_left=False)
    assert (schedule.head_at, schedule.look_at) == (102, 107)


def test_looks_that_find_nothing_become_rare_until_one_finds_something(schedule: CommitSchedule) -> None:
    for wait_s in (4, 8, 16, 32, 32):
        now = schedule.look_at
        schedule.looked(now, found=False)
        assert schedule.look_at - now == wait_s
    schedule.look_now()
    assert schedule.look_at <= now, "a reader does not wait"
    schedule.looked(now, found=True)
    assert schedule.look_at == now + 2


def test_a_commit_takes_as_long_as_its_oldest_records_wait(schedule: CommitSchedule) -> None:
    assert schedule.begin_commit(0) is None
    schedule.records_came(101)
    schedule.records_came(102)
    assert schedule.begin_commit(0) == 101
    schedule.records_came(103)  # while the commit writes
    schedule.end_commit(101, 104, records_left=True)
    assert schedule.begin_commit(0) == 103


def test_records_that_found_no_room_wait_since_they_came(schedule: CommitSchedule) -> None:
    schedule.records_came(101)
    schedule.end_commit(schedule.begin_commit(0), 104, records_left=True)
    assert schedule.begin_commit(0) == 101
    schedule.end_commit(101, 105, records_left=False)
    assert schedule.begin_commit(0) is None


PACED = replace(SCHEDULE_SETTINGS, commit_interval_min_s=0.04)


def commit(schedule: CommitSchedule, now: float, *, took_s: float, spent_s: float) -> float:
    """Commit at ``now``; the seconds until the next one, while records wait."""
    since = schedule.begin_commit(now - took_s)
    schedule.spent(spent_s)
    schedule.end_commit(since, now, records_left=False)
    return round(schedule.commit_at(1, urgent=True, pending=True) - now, 6)


def test_records_wait_little_while_commits_are_cheap() -> None:
    schedule = CommitSchedule(PACED)
    assert commit(schedule, 100, took_s=0.004, spent_s=0.0005) == 0.04
    assert commit(schedule, 101, took_s=0.09, spent_s=0.0005) == 0.09, "a slow disk rests"
    assert commit(schedule, 102, took_s=0.02, spent_s=0.015) == 0.15, "a large chunk takes a fifth of the time"
    assert commit(schedule, 103, took_s=0.3, spent_s=0.2) == 0.25, "records never wait for longer than before"
    assert commit(schedule, 104, took_s=0.004, spent_s=0.0005) == 0.04


def test_the_shards_of_a_process_share_its_time() -> None:
    pace = CommitPace(PACED)
    shards = [CommitSchedule(PACED, pace) for _ in range(64)]
    waits_s = [commit(shard, 100 + number / 1000, took_s=0.004, spent_s=0.0005) for number, shard in enumerate(shards)]
    assert waits_s[0] == 0.04
    assert waits_s[31] == 0.16
    assert waits_s[-1] == 0.25, "64 ms of each 250 are commits: never longer than before"
    later = [commit(shard, 102, took_s=0.004, spent_s=0.0005) for shard in shards[:8]]
    assert later[-1] == 0.04, "shards without records do not count"


def test_an_interval_that_was_set_is_kept() -> None:
    assert commit(CommitSchedule(SCHEDULE_SETTINGS), 100, took_s=0.004, spent_s=0.0005) == 0.25
