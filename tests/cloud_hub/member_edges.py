"""Edges whose links find a hub process as ``run_link`` does, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.cloud_hub.members import LaneOfLink, Link, Member
from tests.cloud_hub.splitting import STREAM, TENANT
from tests.cloud_hub.virtual_time import now_ns
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, Hello, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.replication.attempts import ConnectionEnd, Redirects, Target
from weft.replication.events import LinkState
from weft.replication.runner import LinkRefused

ACK_TIMEOUT_S = 1.0
LOOK_S = 0.5
BROKEN = ConnectionEnd(LinkState.WAITING, "the connection was cut")
SILENT = ConnectionEnd(LinkState.WAITING, "no answer", is_silent=True)


class Edge:
    """An edge whose devices continue, and whose link finds a process as ``run_link`` does.

    Args:
        walled: numbers of processes that it cannot reach.
    """

    def __init__(self, name: str, rng: random.Random, walled: frozenset[int]) -> None:
        self.lane, self.rng, self.walled = Lane(TENANT, name, 1, STREAM), rng, walled
        self.acked, self.epoch = RangeSet(), 0
        self.made_at: list[float] = []
        self.acked_at: list[float] = []
        self.is_ending = False
        self._news = asyncio.Event()
        """Of the link that runs, or the last one."""
        self._redirects = Redirects(rng)
        self._turn = rng.randrange(100)
        """Each attempt begins with another one of the URLs, as in ``run_link``: one that is left is found in a round.
        """

    @property
    def made(self) -> int:
        return len(self.made_at)

    async def publish(self) -> None:
        """Make records until the history ends."""
        while not self.is_ending:
            self.made_at += [asyncio.get_running_loop().time()] * self.rng.randrange(1, 4)
            self._news.set()
            await asyncio.sleep(self.rng.random())

    def end(self) -> None:
        """Make no more records."""
        self.is_ending = True
        self._news.set()

    async def drain(self, members: list[Member]) -> None:
        """Run the link until everything is acknowledged after the last record."""
        loop = asyncio.get_running_loop()
        while not (self.is_ending and self.acked.covers(0, self.made)):
            urls = [member.url for member in members]
            first = self._turn % len(urls)
            self._turn += 1
            target: Target | None = Target(self._redirects.best(urls[first:] + urls[:first], loop.time()))
            while target is not None:
                outcome, taken = await self._attempt(members, target)
                target = self._redirects.after(target, outcome, taken=taken, now=loop.time())
            await asyncio.sleep(self.rng.random() * 0.2)

    async def _attempt(self, members: list[Member], target: Target) -> tuple[ConnectionEnd, bool]:
        await asyncio.sleep(self.rng.random() * 0.02)
        member = next(each for each in members if each.url == target.url)
        if not member.is_up or member.number in self.walled:
            return BROKEN, False
        hello = Hello(
            PROTOCOL_VERSION,
            TENANT,
            self.lane.edge,
            self.lane.log_id,
            1,
            now_ns(),
            "weft",
            stay=target.stay_s is not None,
        )
        try:
            async with asyncio.timeout(2 * ACK_TIMEOUT_S):
                sequencer = await member.open(hello)
        except LinkRefused as refused:
            return ConnectionEnd(LinkState.WAITING, refused.message, refused.code, refused.url), False
        except TimeoutError:
            return SILENT, False
        if target.back is not None and member.is_calm:
            assert sequencer.loaded, f"{self.lane.edge} was sent to {target.url}, which has not loaded its shard"
        if not (sequencer.loaded and sequencer.is_running and member.is_up):
            return BROKEN, False
        self.epoch += 1
        session = LaneOfLink(sequencer, self.lane, self.epoch, ["plant/{line}"])
        link = Link(hello, session)
        member.links[link] = None
        try:
            return await self._run(link, target), True
        finally:
            del member.links[link]
            self._note(session.acked)
            sequencer.leave(session.lane_session)

    async def _run(self, link: Link, target: Target) -> ConnectionEnd:
        session, loop = link.session, asyncio.get_running_loop()
        end = loop.time() + target.stay_s if target.stay_s is not None else float("inf")
        try:
            async with asyncio.timeout(2 * ACK_TIMEOUT_S):
                if not await session.open():
                    return BROKEN
            self._news = session.news
            sent, heard, known = session.acked.contiguous_end(), loop.time(), -1
            while session.refusal is None and loop.time() < end:
                if self.is_ending and session.acked.covers(0, self.made):
                    return BROKEN
                if sent < self.made:
                    first = max(0, sent - self.rng.randrange(5)) if self.rng.random() < 0.1 else sent
                    sent = min(self.made, sent + self.rng.randrange(1, 8))
                    async with asyncio.timeout(2 * ACK_TIMEOUT_S):
                        await session.send(first, sent)
                    session.sequencer.put_mark(session.lane_session, Mark(1000 + sent, sent))
                session.news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(session.news.wait(), LOOK_S)
                acked = session.acked.contiguous_end()
                self._note(session.acked)
                if acked != known or acked >= sent:
                    heard, known = loop.time(), acked
                elif loop.time() - heard > ACK_TIMEOUT_S:
                    return SILENT
        except TimeoutError:
            return SILENT
        if link.url:
            return ConnectionEnd(LinkState.WAITING, "sent on", RefuseCode.REDIRECT, link.url)
        return BROKEN

    def _note(self, acked: RangeSet) -> None:
        """Note what a link has heard is acknowledged, and when."""
        self.acked.update(acked)
        self.acked_at += [asyncio.get_running_loop().time()] * (self.acked.contiguous_end() - len(self.acked_at))

    def acknowledged_after_s(self, since: float, until: float) -> list[float]:
        """How long the acknowledgements of the records took that were made between two moments."""
        times = zip(self.made_at, self.acked_at, strict=True)
        return [acked - made for made, acked in times if since <= made < until]

    def first_made(self, since: float) -> float:
        """When the first record after a moment was made; infinity before there is one."""
        return next((made for made in self.made_at if made > since), float("inf"))

    def is_served(self, since: float) -> bool:
        """Whether a record that was made after a moment is acknowledged."""
        first = next((at for at, made in enumerate(self.made_at) if made > since), None)
        return first is not None and self.acked.covers(first, first + 1)
