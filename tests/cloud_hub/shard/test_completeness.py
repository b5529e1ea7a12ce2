"""Completeness never says more than is true, whatever order records, gaps, marks, sessions and restarts come in.

The oracle is the edge itself: it knows when it took each record in. A lane is complete up to T only if every record
of up to T is in the log or under a gap notice.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import SETTINGS, SequencerNode, Session
from weft.cloud_hub.reads.views import completeness_view, stream_lanes
from weft.protocols.chunk_index import GapRange, Mark
from weft.protocols.lane import Lane
from weft.protocols.shard.completeness import completeness
from weft.protocols.shard.shard_state import ShardState
from weft.storage.object_store.directory import MemoryStore

LANES = [Lane("default", "edge-1", 7, "telemetry"), Lane("default", "edge-2", 8, "telemetry")]
ACTIONS = [
    "take",
    "take",
    "mark",
    "mark",
    "send",
    "send",
    "send",
    "gap",
    "tell",
    "tell",
    "session",
    "leave",
    "kill",
    "wait",
]
LONGER_THAN_MARKS_WAIT_S = 1.0


class OracleEdge:
    """Knows what it took in when, and says of it what it likes in any order; but never a mark that is not true."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.clock = 1000
        self.times: list[int] = []
        """Of each record, by its sequence number."""
        self.marks = [Mark(999, 0)]
        self.epoch = 0
        self.session: Session | None = None

    def take(self, count: int) -> None:
        for _ in range(count):
            self.clock += 10
            self.times.append(self.clock)

    def mark(self) -> Mark:
        """Records still to come have later times."""
        self.clock += 1
        self.marks.append(Mark(self.clock, len(self.times)))
        return self.marks[-1]

    async def connect(self, node: SequencerNode) -> Session:
        assert node.sequencer is not None
        self.epoch += 1
        self.session = Session(node.sequencer, self.lane, self.epoch)
        assert await self.session.open()
        return self.session

    def check(self, state: ShardState) -> None:
        held = state.lanes.get(self.lane)
        if held is None or held.complete_up_to is None:
            return
        early = [seq for seq, time in enumerate(self.times) if time <= held.complete_up_to]
        assert all(held.ranges.covers(seq, seq + 1) for seq in early), (held.mark, held.ranges)


async def _act(action: str, edge: OracleEdge, node: SequencerNode, chance: random.Random) -> None:
    sequencer = node.sequencer
    assert sequencer is not None
    end = len(edge.times)
    first = chance.randrange(end) if end else 0
    last = min(end, first + chance.randrange(1, 4))
    if action == "take":
        edge.take(chance.randrange(1, 4))
    elif action == "mark":
        edge.mark()
    elif action == "wait":
        await asyncio.sleep(LONGER_THAN_MARKS_WAIT_S)
    elif action == "kill":
        await node.kill()
        await node.start()
        edge.session = None
    elif action == "leave" and edge.session is not None:
        sequencer.leave(edge.session.lane_session)
    elif action == "session" or edge.session is None or edge.session.sequencer is not sequencer:
        await edge.connect(node)
    elif action == "send" and first < last:
        await edge.session.send(first, last)
    elif action == "gap" and first < last:
        await sequencer.put_gap(edge.session.lane_session, GapRange(first, last, 1))
    elif action == "tell":
        sequencer.put_mark(edge.session.lane_session, chance.choice(edge.marks))


async def _history(actions: list[tuple[str, int]], seed: int) -> None:
    chance = random.Random(seed)
    node = SequencerNode(MemoryStore(), chance, replace(SETTINGS, mark_interval_s=0.1))
    await node.start()
    edges = [OracleEdge(lane) for lane in LANES]

    def check() -> None:
        assert node.sequencer is not None
        state = node.sequencer.state
        for edge in edges:
            edge.check(state)
        lanes = state.stream_lanes("default", "telemetry").values()
        known = [held.complete_up_to for held in lanes if held.counts]
        shown = completeness(state.stream_lanes("default", "telemetry"), (), 0).complete_up_to
        assert shown == (None if None in known or not known else min(time for time in known if time) // 1000 * 1000)

    for action, which in actions:
        await _act(action, edges[which], node, chance)
        await asyncio.sleep(chance.choice([0.0, 0.3]))
        check()
    for edge in edges:  # everything comes at last
        mark = edge.mark()
        session = await edge.connect(node)
        if edge.times:
            await session.send(0, len(edge.times))
        assert node.sequencer is not None
        node.sequencer.put_mark(session.lane_session, mark)
    await asyncio.sleep(LONGER_THAN_MARKS_WAIT_S)
    check()
    assert node.sequencer is not None
    state = await node.sequencer.log.load()
    for edge in edges:
        assert state.lanes[edge.lane].complete_up_to == edge.marks[-1].time
    for shard, lane, held in stream_lanes([state], "default", "telemetry"):
        assert completeness_view(lane, held, shard).holes == []
    await node.kill()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1)), min_size=8, max_size=60), st.integers(0, 1 << 20)
)
def test_completeness_never_says_more_than_is_true_and_arrives_at_last(
    actions: list[tuple[str, int]], seed: int
) -> None:
    virtual_time.run(_history(actions, seed))
