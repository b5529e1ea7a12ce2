"""Senders of a lane that continue until everything they have is acknowledged: an edge, and another hub that relays
it."""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.cloud_hub.fabric import SequencerNode, Session
from tests.cloud_hub.routes import Route
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason

PATIENCE_S = 200.0
"""Of some sessions: a node that is suspended for long comes back to them."""


class Edge:
    """A strict-order sender that never stops before everything is acknowledged.

    Args:
        route: how it finds a node.
        relay: another hub that has what this edge does not have any more.
        step_s: time between two batches, in the mean.
    """

    def __init__(
        self,
        lane: Lane,
        records: int,
        rng: random.Random,
        route: Route,
        relay: Relay | None = None,
        *,
        step_s: float = 0.03,
    ) -> None:
        self.lane = lane
        self.records = records
        self.rng = rng
        self.route = route
        self.relay = relay
        self.step_s = step_s
        self.acked = RangeSet()
        self.gaps: list[GapRange] = []
        """Told so far. A lane has each number once, as a record or as a gap."""
        self.epoch = 0

    @property
    def reported(self) -> RangeSet:
        """Numbers of which the edge said that it does not have them."""
        return RangeSet((gap.first, gap.end) for gap in self.gaps)

    async def drain(self, nodes: list[SequencerNode]) -> None:
        while not self.acked.covers(0, self.records):
            node = self.route.find(nodes)
            if node is None or node.sequencer is None:
                await asyncio.sleep(0.05)
                continue
            self.epoch += 1
            session = Session(node.sequencer, self.lane, self.epoch, ["plant/{line}"])
            try:
                async with asyncio.timeout(self.rng.uniform(0.2, 3.0) if self.rng.random() < 0.9 else PATIENCE_S):
                    await self._session(session)
            except TimeoutError:
                pass
            finally:
                self.acked.update(session.acked)
                session.sequencer.leave(session.lane_session)
            await asyncio.sleep(self.rng.random() * 0.2)

    async def stop(self, node: SequencerNode) -> None:
        """An idle edge says its last word: it may be back, or has another name now."""
        assert node.sequencer is not None
        self.epoch += 1
        session = Session(node.sequencer, self.lane, self.epoch, ["plant/{line}"])
        assert await session.open()
        session.lane_session.sends_last_word = True
        session.lane_session.renamed_to = self.rng.choice(["", "another"])
        node.sequencer.put_mark(session.lane_session, Mark(1000 + self.records, self.records))

    async def _session(self, session: Session) -> None:
        if not await session.open():
            return
        at = session.acked.contiguous_end()
        while at < self.records and session.refusal is None:
            # Every session cuts its batches in its own way, and now and then repeats what it sent or knows to be held.
            first = max(0, at - self.rng.randrange(8)) if self.rng.random() < 0.2 else at
            end = min(self.records, at + self.rng.randrange(1, 12))
            if self.rng.random() < 0.08:
                self._lose(at, end)
            for item in self._items(first, end):
                if isinstance(item, GapRange):
                    await session.sequencer.put_gap(session.lane_session, item)
                else:
                    await session.send(*item)
            at = end
            session.sequencer.put_mark(session.lane_session, Mark(1000 + at, at))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 2 * self.step_s / 0.3)
        while session.refusal is None and not session.acked.covers(0, self.records):
            session.news.clear()
            await session.news.wait()

    def _lose(self, first: int, end: int) -> None:
        """The edge gives up numbers that it has never sent: another hub has them, or its disk was full."""
        if first < max((gap.end for gap in self.gaps), default=0) or first < self.sent:
            return
        is_elsewhere = self.rng.random() < 0.6
        self.gaps.append(GapRange(first, end, GapReason.ABSENT if is_elsewhere else GapReason.BUDGET))
        if is_elsewhere and self.relay is not None:
            self.relay.gets(first, end)

    sent = 0
    """One past the highest number that was sent."""

    def _items(self, first: int, end: int) -> list[Range | GapRange]:
        """What the edge says of [first, end): records, and the gaps that it told once and tells again."""
        has = RangeSet([(first, end)])
        for gap in self.gaps:
            has.remove(gap.first, gap.end)
        self.sent = max(self.sent, end)
        gaps = [
            GapRange(max(gap.first, first), min(gap.end, end), gap.reason)
            for gap in self.gaps
            if gap.first < end and first < gap.end
        ]
        return sorted([*has, *gaps], key=lambda item: item.first if isinstance(item, GapRange) else item[0])


class Forger:
    """An edge that opens lanes of its own name with the ids of other edges' logs, and says of them what it likes."""

    NAME = "forger"

    def __init__(self, edges: list[Edge], rng: random.Random) -> None:
        self._edges, self._rng = edges, rng
        self._early = [edge for edge in edges if rng.random() < 0.5]
        """Edges whose logs it claims while they are at work; those of the others when they have stopped."""
        self._epoch = 1 << 40

    async def run(self, nodes: list[SequencerNode]) -> None:
        """Forge until it is cancelled."""
        while self._early:
            await asyncio.sleep(self._rng.random())
            edge, node = self._rng.choice(self._early), self._rng.choice(nodes)
            if node.sequencer is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.2, 3.0)):
                        await self._forge(edge, node, self._rng.choice(list(GapReason)), self._rng.randrange(3))

    async def take_places(self, node: SequencerNode) -> None:
        """Claim to be the new name of each edge that has stopped."""
        for edge in self._edges:
            await self._forge(edge, node, GapReason.RENAMED, 0)

    async def _forge(self, edge: Edge, node: SequencerNode, reason: GapReason, flags: int) -> None:
        self._epoch += 1
        assert node.sequencer is not None
        session = Session(node.sequencer, edge.lane._replace(edge=self.NAME), self._epoch, flags=flags)
        lane = session.lane_session
        try:
            if await session.open():
                await session.sequencer.put_gap(lane, GapRange(0, edge.records, reason))
                lane.sends_last_word = self._rng.random() < 0.5
                lane.renamed_to = self._rng.choice(["", edge.lane.edge, "another"])
                session.sequencer.put_mark(lane, Mark(self._epoch, edge.records))
        finally:
            session.sequencer.leave(lane)


class Relay:
    """Another hub that passes on what it has of a lane, in any order, and says what it lacks."""

    def __init__(self, lane: Lane, records: int, rng: random.Random) -> None:
        self.lane = lane
        self.records = records
        self.rng = rng
        self.has = RangeSet()
        self.acked = RangeSet()
        self.held = RangeSet()
        """Records that the hub had when the last session began. It may hold gaps of what came to this relay later."""
        self.reported = RangeSet()
        for _ in range(rng.randrange(4)):
            first = rng.randrange(records)
            self.gets(first, min(records, first + rng.randrange(1, 30)))

    def gets(self, first: int, end: int) -> None:
        """The other hub gets records from the edge itself."""
        self.has.add(first, end)

    async def drain(self, nodes: list[SequencerNode], edge: Edge) -> None:
        """Pass on until the edge has finished and the hub has everything."""
        while not (edge.acked.covers(0, edge.records) and not self._missing(self.held)):
            await asyncio.sleep(self.rng.random() * 0.5)
            node = self.rng.choice(nodes)
            if node.sequencer is None:
                continue
            session = Session(node.sequencer, self.lane, 0, ["plant/{line}"], flags=int(LaneFlag.RELAY))
            try:
                async with asyncio.timeout(self.rng.uniform(0.2, 3.0)):
                    await self._session(session)
            except TimeoutError:
                pass
            finally:
                self.acked.update(session.acked)
                session.sequencer.leave(session.lane_session)

    def _missing(self, acked: RangeSet) -> list[Range]:
        return [part for first, end in self.has for part in acked.missing(first, end)]

    async def _session(self, session: Session) -> None:
        if not await session.open():
            return
        self.held = session.acked.copy()
        if self.rng.random() < 0.5:
            await self._tell_a_gap(session)
        pieces = self._missing(session.acked)
        self.rng.shuffle(pieces)
        for first, end in pieces:
            if self.rng.random() < 0.2:
                await self._tell_a_gap(session)
            cut = self.rng.randrange(first, end)
            for one, to in ((cut, end), (first, cut)):
                if one < to and session.refusal is None:
                    await session.send(one, to)
        while session.refusal is None and self._missing(session.acked):
            session.news.clear()
            await session.news.wait()

    async def _tell_a_gap(self, session: Session) -> None:
        first = self.rng.randrange(self.records)
        lacks = self.has.missing(first, min(self.records, first + self.rng.randrange(1, 20)))
        for one, end in lacks:
            self.reported.add(one, end)
            await session.sequencer.put_gap(session.lane_session, GapRange(one, end, GapReason.ABSENT))
