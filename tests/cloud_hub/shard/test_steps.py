"""What one edge brings costs one step of the hub's loop little, with every bound that it has filled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pytest

from tests.cloud_hub.fabric import make_batch
from tests.support.speed import slowness, uncollected
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.chunk_builder import LOOKS_PER_EDGE, ChunkBuilder, Draft
from weft.cloud_hub.shard.lane_session import ClockNotices, LaneClaim, LaneSession, ReceivedBatch
from weft.cloud_hub.shard.shard_sessions import PendingDeclarations, Room
from weft.protocols.chunk_index import ClockUpdate, GapRange
from weft.protocols.lane import ORIGINS_MAX, Lane, NodeName, Origin
from weft.protocols.link import LaneOpen, encode_frame
from weft.protocols.ranges import TOPICS_MAX, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.fold import fold
from weft.protocols.shard.shard_state import BOOTS_MAX, ShardState
from weft.replication.flow_control import CONTROL_BYTE_COST, CONTROL_COST, TURN_COST

STEP_S_MAX = 0.02
"""Processor time of one step on the machine of the budgets; the quickest of several tries counts."""
TRIES = 8
"""As many for a machine whose memory others use as well: the first is enough where it is quiet."""
BOUNDS = SequencerSettings()
GAPS, LANES = BOUNDS.gaps_per_lane_max, BOUNDS.lanes_per_edge_max
T = TypeVar("T")
REASONS = (int(GapReason.BUDGET), int(GapReason.EXPIRED))


class Hub:
    """A shard that commits what sessions bring, and the longest of its steps by kind."""

    def __init__(self) -> None:
        self.state = ShardState(b"0123456789abcdef", 0)
        self.longest: dict[str, float] = {}
        self.commits = 0
        self._epoch = 0

    def session(
        self,
        lane: int = 0,
        topics: Sequence[str] = (),
        origins: Sequence[Origin] = (),
        clocks: ClockNotices | None = None,
    ) -> LaneSession:
        self._epoch += 1
        name = Lane("default", "edge-1", 7, f"s{lane}")
        claim = LaneClaim(self._epoch)
        return LaneSession(name, claim, list(topics), lambda _: None, lambda *_: None, origins=origins, clocks=clocks)

    def open(self, *sessions: LaneSession) -> None:
        """Open sessions as one message of a link does, each if there is room for it, and commit them."""
        reported = PendingDeclarations()
        room = Room(BOUNDS, reported)
        frame = LaneOpen(1, *sessions[-1].lane, 1, [], sessions[-1].topics, 0, 0, list(sessions[-1].origins.values()))
        turn = max(1, TURN_COST // (CONTROL_COST + CONTROL_BYTE_COST * len(encode_frame(frame))))
        for first in range(0, len(sessions), turn):
            self._timed("open", partial(self._open, room, reported, sessions[first : first + turn]))
        self.commit(*(session for session in sessions if not session.opened.cancelled()))

    def _open(self, room: Room, reported: PendingDeclarations, sessions: Sequence[LaneSession]) -> None:
        for session in sessions:
            if room.for_lane(self.state, session.lane, session.topics, session.origins.values()) is None:
                reported.begins(session, self.state)
            else:
                session.opened.cancel()

    def commit(self, *sessions: LaneSession) -> None:
        """Commit all that they have, as the sequencer does."""
        while any(session.items or session.opening for session in sessions):
            builder = ChunkBuilder(self.state, BOUNDS.chunk_bytes_max)
            draft = self._timed("draft", partial(self._draft, builder, sessions))
            if draft is not None:
                for session in draft.openings:
                    session.claim.granted = True
                    session.opened.set_result(RangeSet())
                folded = self._timed("fold", partial(fold, self.state, draft.chunk))
                self.state.accept(folded)
            self.commits += 1
            for session in sessions:
                held = self.state.lanes.get(session.lane)
                self._timed("settle", partial(session.settle, held))
                self._timed("clocks", partial(session.clocks.settle, self.state))
                if held is not None:
                    self._timed("answer", partial(session.acknowledged, held))

    def _draft(self, builder: ChunkBuilder, sessions: Sequence[LaneSession]) -> Draft | None:
        for session in sessions:
            if session.pending:
                builder.add(session)
        return builder.finish(self.commits, self.commits, marks_due=False)

    def _timed(self, kind: str, step: Callable[[], T]) -> T:
        began = time.thread_time()
        done = step()
        self.longest[kind] = max(self.longest.get(kind, 0.0), time.thread_time() - began)
        return done


def alternating(count: int = GAPS, every: int = 1) -> Iterator[GapRange]:
    """Gaps that do not join."""
    return (GapRange(number * every, number * every + 1, REASONS[number % 2]) for number in range(count))


def many_gaps(hub: Hub) -> None:
    session = hub.session()
    for gap in alternating():
        session.append(gap)
    hub.commit(session)
    assert len(hub.state.lanes[session.lane].gaps) == GAPS


def the_same_gap_again_and_again(hub: Hub) -> None:
    many_gaps(hub)
    session = hub.session()
    for _ in range(GAPS):
        session.append(GapRange(0, GAPS, REASONS[0]))
    hub.commit(session)


def one_gap_over_absent_ones(hub: Hub) -> None:
    session = hub.session()
    for number in range(GAPS // 2):
        session.append(GapRange(2 * number, 2 * number + 1, int(GapReason.ABSENT)))
        session.append(GapRange(2 * number + 1, 2 * number + 2, REASONS[0]))
    session.append(GapRange(0, GAPS, REASONS[1]))
    hub.commit(session)
    assert {gap.reason for gap in hub.state.lanes[session.lane].gaps} == set(REASONS)


def records_that_heal_each_gap(hub: Hub) -> None:
    many_gaps(hub)
    session = hub.session()
    batches = [make_batch(session.lane, first, first + 1) for first in range(0, GAPS, 8)]
    session.append_batches(batches, 0)
    hub.commit(session)


def the_smallest_batches(hub: Hub) -> None:
    session = hub.session()
    session.append_batches([make_batch(session.lane, first, first + 1) for first in range(4 * LOOKS_PER_EDGE)], 0)
    hub.commit(session)


def records_behind_gaps_of_all_lanes(hub: Hub) -> None:
    lanes = range(BOUNDS.gaps_per_edge_max // GAPS)
    for lane in lanes:
        session = hub.session(lane)
        for gap in alternating():
            session.append(gap)
        hub.commit(session)
    hub.longest.clear()
    sessions = [hub.session(lane) for lane in lanes]
    for number in range(3):
        for session in sessions:
            session.append(ReceivedBatch(*make_batch(session.lane, GAPS + number, GAPS + number + 1), 0))
        hub.commit(*sessions)


def lanes_without_texts(hub: Hub) -> None:
    sessions = [hub.session(lane) for lane in range(LANES)]
    hub.open(*sessions)
    assert len(hub.state.lanes) == LANES
    hub.open(*map(hub.session, range(LANES)))


def clocks_of_all_boots(hub: Hub) -> None:
    """All lanes of a link, of one log, with news of as many clocks as are kept."""
    clocks = ClockNotices()
    sessions = [hub.session(lane, clocks=clocks) for lane in range(LANES)]
    hub.open(*sessions)
    for boot in range(2 * BOOTS_MAX):
        clocks.add(ClockUpdate(*sessions[0].lane[:3], boot + 1, 0, 0, 0))
    for session in sessions:
        session.append(ReceivedBatch(*make_batch(session.lane, 0, 1), 0))
    hub.commit(*sessions)
    assert not clocks
    assert [len(boots) for boots in hub.state.clocks.values()] == [BOOTS_MAX]


def the_smallest_topics(hub: Hub) -> None:
    """As many as an edge may have, and then others."""
    letters = [chr(ord("a") + number % 26) for number in range(TOPICS_MAX)]
    hub.open(*(hub.session(lane, letters) for lane in range(LANES)))
    assert hub.state.texts.topics(NodeName("default", "edge-1")) == BOUNDS.topic_bytes_per_edge_max
    others = [chr(ord("A") + number % 26) for number in range(TOPICS_MAX)]
    hub.open(*(hub.session(lane, others) for lane in range(LANES)))


def the_smallest_origins(hub: Hub) -> None:
    """As many as an edge may have, of one lane after the other, and then others."""
    for version in "12":
        origins = [Origin(number + 1, 1, "f", version, b"") for number in range(ORIGINS_MAX)]
        hub.open(*(hub.session(lane, origins=origins) for lane in range(LANES // 8)))
    assert hub.state.texts.origins(NodeName("default", "edge-1")) > BOUNDS.origin_bytes_per_edge_max // 2


@pytest.mark.parametrize(
    "brings",
    [
        lanes_without_texts,
        clocks_of_all_boots,
        the_smallest_topics,
        the_smallest_origins,
        many_gaps,
        the_same_gap_again_and_again,
        one_gap_over_absent_ones,
        records_that_heal_each_gap,
        the_smallest_batches,
        records_behind_gaps_of_all_lanes,
    ],
    ids=lambda story: story.__name__,
)
async def test_no_step_is_long(brings: Callable[[Hub], None]) -> None:
    await asyncio.sleep(0)  # sessions belong to a loop
    quickest: dict[str, float] = {}
    for _ in range(TRIES):
        hub = Hub()
        with uncollected():
            brings(hub)
        quickest = {kind: min(seconds, quickest.get(kind, seconds)) for kind, seconds in hub.longest.items()}
        if max(quickest.values()) < STEP_S_MAX * slowness():
            return
    assert max(quickest.values()) < STEP_S_MAX * slowness(), {
        kind: f"{seconds * 1e3:.1f} ms" for kind, seconds in quickest.items()
    }
