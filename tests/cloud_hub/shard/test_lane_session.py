"""What a session has pending leaves it when the state holds it, never before, and nothing stays behind for good."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, SETTINGS, SequencerNode, Session, make_batch
from tests.cloud_hub.faulty_store import CALM, DEAD, FULL, FaultyStore
from tests.cloud_hub.shard.test_sequencer import LANE as SEQUENCER_LANE
from tests.cloud_hub.shard.test_sequencer import opened, play
from weft.cloud_hub.shard.collector import BEFORE_NS, SPARED_NS_MAX, spared_from, waiting_lanes
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, bounds, weight
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.batch import Buffer
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import DOWN_STREAM, Lane, NodeName, Origin
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState, origin_bytes
from weft.storage.object_store.directory import MemoryStore

LANE = Lane("default", "edge-1", 7, "telemetry")
RANGES = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
RUNS = st.tuples(st.integers(0, 20), st.lists(st.integers(1, 6), min_size=1, max_size=6)).map(
    lambda run: [(run[0] + sum(run[1][:n]), run[0] + sum(run[1][: n + 1])) for n in range(len(run[1]))]
)


def session_with(batches: list[tuple[int, int]], gaps: list[tuple[int, int]]) -> LaneSession:
    session = LaneSession(LANE, LaneClaim(1), [], lambda _: None, lambda *_: None)
    taken = session.append_batches([make_batch(LANE, first, end) for first, end in batches], 0)
    assert taken == session.bytes
    for first, end in gaps:
        session.append(GapRange(first, end, int(GapReason.EXPIRED)))
    return session


@given(st.one_of(RUNS, st.lists(RANGES, max_size=6)), st.lists(RANGES, max_size=2), st.lists(RANGES, max_size=4))
def test_settling_frees_what_is_held_and_leaves_nothing_that_no_commit_would_answer(
    batches: list[tuple[int, int]], gaps: list[tuple[int, int]], held_ranges: list[tuple[int, int]]
) -> None:
    async def main() -> None:
        session = session_with(batches, gaps)
        before, size = list(session.items), session.bytes
        held = LaneState(ranges=RangeSet(held_ranges))

        def is_held(item: object) -> bool:
            return held.accounts_for(item) if isinstance(item, GapRange) else held.holds(*bounds(item))  # type: ignore[arg-type]

        freed = session.settle(held)
        left = list(session.items)
        gone = [item for item in before if not any(item is other for other in left)]
        assert all(map(is_held, gone)), "nothing leaves that is not durable"
        assert left == [item for item in before if any(item is other for other in left)], "the order stays"
        assert (freed, session.bytes) == (sum(map(weight, gone)), size - freed)
        assert not left or not is_held(left[0]), "the next commit has something to do"
        if left:  # everything is committed at last, whatever way the bounds of a run were kept
            held.add_records(bounds(item) for item in left if not isinstance(item, GapRange))
            held.ranges.update(bounds(item) for item in left)
            session.settle(held)
        assert not session.items
        assert session.bytes == 0

    asyncio.run(main())


def test_a_run_is_known_by_its_bounds() -> None:
    async def main() -> None:
        session = session_with([(4, 6), (6, 9)], [])
        assert (session.run_first, session.run_end) == (4, 9)
        assert session.settle(LaneState(ranges=RangeSet([(0, 6)])))
        assert (session.run_first, session.run_end) == (6, 9)
        assert session_with([(4, 6), (7, 9)], []).run_end == -1
        assert session_with([(4, 6)], [(6, 7)]).run_end == -1

    asyncio.run(main())


# --- What edges may put into a shard's state: what comes at once counts together, and is forgotten when it is over


LANES = [Lane("default", "edge-1", 7, f"s{number}") for number in range(4)]
NODE = NodeName("default", "edge-1")
TOPIC = "plant/{line}"
TOPICS_MAX = 2 * len(TOPIC)
ORIGINS = [Origin(number, 1, "mean", "1", b"") for number in (1, 2, 3)]
ORIGINS_MAX = 2 * origin_bytes(ORIGINS)


async def started() -> Sequencer:
    settings = replace(SETTINGS, topic_bytes_per_edge_max=TOPICS_MAX, origin_bytes_per_edge_max=ORIGINS_MAX)
    node = SequencerNode(MemoryStore(), random.Random(1), settings)
    await node.start()
    assert node.sequencer is not None
    return node.sequencer


def session_of(
    lane: Lane, epoch: int = 1, *, topics: tuple[str, ...] = (), origins: tuple[Origin, ...] = (), flags: int = 0
) -> LaneSession:
    claim = LaneClaim(epoch)
    return LaneSession(lane, claim, list(topics), lambda _: None, lambda *_: None, origins=origins, flags=flags)


def offered(sequencer: Sequencer, *sessions: LaneSession) -> list[LaneSession]:
    """Offer sessions at once, as the frames of one message, and return those that there is room for."""
    taken = []
    for session in sessions:
        if sequencer.no_room(session.lane, session.topics, [*session.origins.values()]) is None:
            sequencer.open(session)
            taken.append(session)
    return taken


@pytest.mark.parametrize("known", [False, True], ids=["new lanes", "known lanes"])
def test_topics_that_are_told_at_once_count_together(known: bool) -> None:
    async def main() -> None:
        sequencer = await started()
        if known:
            for session in offered(sequencer, *map(session_of, LANES)):
                await session.opened
        taken = offered(sequencer, *(session_of(lane, 2, topics=(TOPIC,)) for lane in LANES))
        assert [session.lane for session in taken] == LANES[:2]
        await asyncio.gather(*(session.opened for session in taken))
        assert sequencer.state.texts.topics(NODE) == TOPICS_MAX
        again = offered(sequencer, *(session_of(lane, 3, topics=(TOPIC,)) for lane in LANES))
        assert [session.lane for session in again] == LANES[:2], "what the state has already is no more"

    virtual_time.run(main())


def test_origins_that_are_told_at_once_count_together() -> None:
    async def main() -> None:
        sequencer = await started()
        taken = offered(sequencer, *(session_of(lane, origins=tuple(ORIGINS)) for lane in LANES))
        assert [session.lane for session in taken] == LANES[:2]
        await asyncio.gather(*(session.opened for session in taken))
        assert sequencer.state.texts.origins(NODE) == ORIGINS_MAX
        assert not sequencer.sessions.declarations.origin_bytes, "no chunk has yet to tell of any"
        assert offered(sequencer, session_of(LANES[0], 2, origins=tuple(ORIGINS)))

    virtual_time.run(main())


def test_lanes_and_topics_of_relays_count_until_the_state_has_them_or_they_are_over() -> None:
    """A relay's lane is open before a chunk tells of it: the first does with its first records."""

    async def main() -> None:
        settings = replace(SETTINGS, lanes_per_edge_max=3, topic_bytes_per_edge_max=TOPICS_MAX)
        node = SequencerNode(MemoryStore(), random.Random(1), settings)
        await node.start()
        assert node.sequencer is not None
        relays = [session_of(lane, 0, topics=(TOPIC,), flags=int(LaneFlag.RELAY)) for lane in LANES]
        taken = offered(node.sequencer, *relays)
        await asyncio.gather(*(session.opened for session in taken))
        assert [session.lane for session in taken] == LANES[:2]
        assert not offered(node.sequencer, relays[2]), "they are open, and no chunk has told their topics"
        assert offered(node.sequencer, session_of(LANES[2])), "a lane without topics has room"
        assert not offered(node.sequencer, session_of(LANES[3])), "the relays' lanes count"
        node.sequencer.leave(taken[0])
        node.sequencer.put(taken[1], [make_batch(taken[1].lane, 0, 2)])
        await asyncio.sleep(2)
        assert node.sequencer.state.texts.topics(NODE) == len(TOPIC)
        assert offered(node.sequencer, relays[2])

    virtual_time.run(main())


def test_a_second_link_of_an_edge_takes_the_place_of_the_first() -> None:
    """An edge is back before the hub notices that its link was lost: its lanes count once."""

    async def main() -> None:
        sequencer = await started()
        for epoch in (1, 2, 3):
            taken = offered(sequencer, *(session_of(lane, epoch, topics=(TOPIC,)) for lane in LANES[:2]))
            assert [session.lane for session in taken] == LANES[:2]
        await asyncio.gather(*(session.opened for session in taken))
        assert not sequencer.sessions.declarations.topic_bytes
        assert not sequencer.sessions.declarations.lanes

    virtual_time.run(main())


def test_a_second_session_of_a_lane_frees_nothing_of_the_first() -> None:
    """It may be refused for its epoch, and the first is still to be committed."""

    async def main() -> None:
        sequencer = await started()
        first = offered(sequencer, *(session_of(lane, 9, topics=(TOPIC,)) for lane in LANES[:2]))
        second = offered(sequencer, *(session_of(lane, 1) for lane in LANES[:2]))
        assert (len(first), len(second)) == (2, 2)
        assert not offered(sequencer, session_of(LANES[2], topics=(TOPIC,)))
        assert sequencer.sessions.declarations.of_edge == {NODE: 2}
        await asyncio.gather(*(session.opened for session in first))
        await asyncio.gather(*(session.opened for session in second), return_exceptions=True)
        assert not sequencer.sessions.declarations.lanes
        assert not sequencer.sessions.declarations.topic_bytes

    virtual_time.run(main())


def test_a_lane_that_is_opened_again_on_its_link_keeps_no_topics_that_no_chunk_tells() -> None:
    async def main() -> None:
        sequencer = await started()
        claim = LaneClaim(1)
        first = LaneSession(LANES[0], claim, [TOPIC], lambda _: None, lambda *_: None)
        sequencer.open(first)
        await first.opened
        sequencer.leave(first)
        again = LaneSession(LANES[0], claim, ["x" * TOPICS_MAX], lambda _: None, lambda *_: None)
        sequencer.open(again)
        await again.opened
        assert again.topics == [TOPIC]
        assert not sequencer.sessions.declarations.topic_bytes

    virtual_time.run(main())


@pytest.mark.parametrize("end", ["committed", "left"])
def test_origins_that_open_lanes_tell_count_together_until_they_are_committed_or_over(end: str) -> None:
    async def main() -> None:
        sequencer = await started()
        sessions = offered(sequencer, *map(session_of, LANES[:3]))
        await asyncio.gather(*(session.opened for session in sessions))
        full = [sequencer.declare_origins(session, ORIGINS) for session in sessions]
        assert [each is None for each in full] == [True, True, False]
        assert sequencer.declare_origins(sessions[0], ORIGINS) is None, "said before"
        assert sequencer.sessions.declarations.origin_bytes == {NODE: ORIGINS_MAX}
        if end == "left":
            sequencer.leave(sessions[0])
            assert sequencer.declare_origins(sessions[2], ORIGINS) is None
            return
        for session in sessions[:2]:
            sequencer.put(session, [make_batch(session.lane, 0, 2, origin=1)])
        await asyncio.sleep(2)
        assert not sequencer.sessions.declarations.origin_bytes
        assert sequencer.state.texts.origins(NODE) == ORIGINS_MAX
        refused = sequencer.declare_origins(sessions[2], ORIGINS)
        assert refused is not None
        assert refused.setting == "limits.edge_origins"

    virtual_time.run(main())


def test_what_a_chunk_has_made_known_counts_once_also_before_its_sessions_hear_of_it() -> None:
    """A node looks at the watermark before it answers, which may take a while."""

    async def main() -> None:
        settings = replace(SETTINGS, lanes_per_edge_max=2, topic_bytes_per_edge_max=TOPICS_MAX)
        node = SequencerNode(MemoryStore(), random.Random(1), settings)
        await node.start()
        assert node.sequencer is not None
        (first,) = offered(node.sequencer, session_of(LANES[0], topics=(TOPIC,), origins=tuple(ORIGINS)))
        asked = asyncio.Event()
        passed = node.sequencer._guard.passed

        async def slow(n: int) -> bool:
            asked.set()
            await asyncio.sleep(1)
            return await passed(n)

        node.sequencer._guard.passed = slow  # type: ignore[method-assign]
        await asked.wait()
        assert not first.opened.done()
        assert not node.sequencer.sessions.declarations.origin_bytes
        assert offered(node.sequencer, session_of(LANES[1], topics=(TOPIC,)))

    virtual_time.run(main())


def test_more_lanes_than_one_chunk_opens_are_open_a_few_commits_later() -> None:
    async def main() -> None:
        node = SequencerNode(MemoryStore(), random.Random(1), replace(SETTINGS, lanes_per_edge_max=1500))
        await node.start()
        assert node.sequencer is not None
        lanes = [Lane("default", "edge-1", 7, f"s{number}") for number in range(1500)]
        sessions = [Session(node.sequencer, lane, 1, [f"{lane.stream}/{{line}}"]) for lane in lanes]
        opened = asyncio.gather(*(session.open() for session in sessions))
        other = Session(node.sequencer, LANES[0]._replace(edge="edge-2"), 1)
        assert await other.open()
        assert not opened.done(), "another edge does not wait for all of one"
        assert all(await opened)
        assert 2 < node.sequencer.counters.chunks < 10

    virtual_time.run(main())


# --- Chunks with messages that wait are kept for them


NOW = 100 * SPARED_NS_MAX
MESSAGE_LANES_LANE = Lane("default", "press-1", 0, DOWN_STREAM)


@pytest.mark.parametrize(
    ("mark", "spared"),
    [
        (Mark(NOW - 5, 3), NOW - 5 - BEFORE_NS),
        (Mark(NOW - 5, 4), NOW),
        (Mark(NOW - 2 * SPARED_NS_MAX, 3), NOW - SPARED_NS_MAX),
        (None, NOW - SPARED_NS_MAX),
    ],
)
def test_the_moment_from_which_chunks_are_kept(mark: Mark | None, spared: int) -> None:
    state = ShardState(b"c" * 16, 0)
    state.set_lane(MESSAGE_LANES_LANE, LaneState(ranges=RangeSet([(0, 4)]), whole_mark=mark))
    state.set_lane(MESSAGE_LANES_LANE._replace(stream="telemetry"), LaneState(ranges=RangeSet([(0, 4)])))
    assert spared_from(state, NOW) == spared
    assert set(waiting_lanes(state)) == (set() if spared == NOW else {MESSAGE_LANES_LANE})


# --- Canaries of links at a shard: answered after a durable chunk that was begun after them, and never before


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
        before = sequencer.state.lanes[SEQUENCER_LANE]
        asker.ask()
        await asker.until_complete(3)
        held = sequencer.state.lanes[SEQUENCER_LANE]
        assert (held.ranges, held.newest_mark, held.last_seen) == (before.ranges, before.newest_mark, before.last_seen)
        state = ShardState(CLUSTER.cluster_id, 0)
        async for index in sequencer.log.indexes(0):
            apply(state, index)
        assert state.next_offset == sequencer.state.next_offset == {("default", "telemetry"): 3}
        assert state.n == sequencer.state.n == 2

    play(story, mark_interval_s=2.0)
