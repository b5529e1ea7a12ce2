"""What edges may put into a shard's state: what comes at once counts together, and is forgotten when it is over."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import SETTINGS, SequencerNode, Session, make_batch
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.chunk_index import LaneFlag
from weft.protocols.lane import Lane, NodeName, Origin
from weft.protocols.shard.shard_state import origin_bytes
from weft.storage.object_store.directory import MemoryStore

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
