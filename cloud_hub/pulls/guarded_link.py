"""The hub's side of a link whose edge can be asked for records: an ``EdgeLink`` behind a guard."""

from __future__ import annotations

import asyncio
from typing import Protocol

from weft.cloud_hub.links.edge_link import EdgeLink
from weft.cloud_hub.pulls.link_pulls import Broken, LinkPulls
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import GapRange, LaneFlag
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import Hello, LaneOpen, RefuseCode
from weft.protocols.link.pull import PULL, PullRequest, Pulls, PullState
from weft.replication.runner import LinkRefused, LinkSession

ADVICE = "run the same release on edge and hub; if they do, report this as a fault of the edge"
AGAIN = "nothing: it is asked again if need be"
COUNTS = (
    "a link of the edge carried this stream before, and its lane counts for completeness. Numbers that a pull leaves "
    "out would look like missing ones; let a link carry the stream again"
)
OTHER_LINK = (
    "another link of the edge, which connected later, sent records of this stream since. The pull goes on when this "
    "link connects again"
)
"""To take the lane from it with a lower epoch would look like a copy of the edge."""


class AllPulls(Protocol):
    """The owner of all links' pulls (``cloud_hub.pulls.service.HubPulls``)."""

    def greeted(self, link: GuardedLink) -> None:
        """Ask the edge of a new link for what it is to send."""

    def said(self, link: GuardedLink, state: PullState) -> None:
        """Take an edge's word about one of its pulls."""

    def failed(self, link: GuardedLink, stream: str, reason: str) -> None:
        """End the pulls of a stream: the edge does not send what it was asked for, or the hub cannot take it."""

    def left(self, link: GuardedLink) -> None:
        """Note the end of a link."""


class GuardedLink:
    """One connection (``replication.runner.LinkHandler``). PARTIAL lanes of an edge that knows pulls bring what it was
    asked for, and nothing else.

    Args:
        link: takes all that the guard lets through.
        pulls: of all links.
    """

    def __init__(self, link: EdgeLink, pulls: AllPulls, shards: Shards) -> None:
        self._link, self._pulls, self._shards = link, pulls, shards
        self._session: LinkSession
        self.guard: LinkPulls | None = None
        """None for an edge that knows no pulls."""
        self._guarded: dict[int, Lane] = {}
        """Lanes of pulls."""
        # Processes know only their own links: an edge that stays with two of them is asked by both.
        link.taken = lambda number: OTHER_LINK if number in self._guarded else None
        self.add_origins = link.add_origins
        self.clock = link.clock
        self.canary = link.canary
        self.config_state = link.config_state
        self.report = link.report
        self.room = link.room
        self.down = link.down

    @property
    def node(self) -> NodeName | None:
        """Return the edge's name; None before HELLO."""
        hello = self._link.hello
        return None if hello is None else NodeName(hello.tenant, hello.edge)

    @property
    def is_over(self) -> bool:
        """Return whether the hub has ended the link."""
        return self._link.is_over

    async def open(self, hello: Hello, session: LinkSession) -> None:
        """Accept the link, or raise ``LinkRefused``."""
        await self._link.open(hello, session)
        self._session = session
        if PULL in hello.features:
            self.guard = LinkPulls()
            # The WELCOME follows at once, and has to go first.
            asyncio.get_running_loop().call_soon(self._pulls.greeted, self)

    def ask(self, requests: list[PullRequest]) -> None:
        """Ask the edge for these pulls, and no others."""
        if self.guard is None or self.is_over or (told := self.guard.ask(requests)) is None:
            return
        self._session.say(Pulls(told))
        for number, lane in list(self._guarded.items()):
            if not self.guard.covers(lane.stream, lane.log_id):
                self._close(number, RefuseCode.CLOSED, "the pull has ended", "nothing: it is not asked for more")

    def pull_state(self, state: PullState) -> None:
        """Take the edge's word about a pull.

        Raises:
            LinkRefused: it says too much.
        """
        try:
            if self.guard is not None and self.guard.says(state):
                self._pulls.said(self, state)
        except Broken as error:
            raise LinkRefused(RefuseCode.PROTOCOL_ERROR, str(error), ADVICE) from error

    async def open_lane(self, opening: LaneOpen) -> None:
        """Begin to open a lane; that of a pull if the edge was asked for it."""
        lane = Lane(opening.tenant, opening.edge, opening.log_id, opening.stream)
        if self.guard is not None and opening.flags & LaneFlag.PARTIAL and not opening.flags & LaneFlag.RELAY:
            if (why := await self._refusal(self.guard, lane, opening.epoch)) is not None:
                self._session.close_lane(opening.lane, RefuseCode.CLOSED, why, AGAIN)
                return
            self._guarded[opening.lane] = lane
        await self._link.open_lane(opening)

    async def _refusal(self, guard: LinkPulls, lane: Lane, epoch: int) -> str | None:
        if not guard.covers(lane.stream, lane.log_id):
            return f"the hub did not ask for records of stream {lane.stream}"
        sequencer = await self._shards.get(self._shards.place(lane))
        held = sequencer.state.lanes.get(lane) if sequencer.loaded else None
        if held is not None and held.epoch > epoch:
            return OTHER_LINK
        if held is None or held.partial or held.is_empty:
            return None
        self._pulls.failed(self, lane.stream, COUNTS)
        return COUNTS

    def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Pass verified batches on; those of a pull if they were asked for."""
        pulled = self._guarded.get(lane)
        if pulled is not None and self.guard is not None:
            try:
                self.guard.check(pulled.stream, (header for header, _ in batches))
            except Broken as error:
                self._break(lane, pulled, str(error))
                return
        self._link.data(lane, batches)

    async def gap(self, lane: int, gap: GapRange) -> None:
        """Pass a gap notice on; there is none of a pull."""
        pulled = self._guarded.get(lane)
        if pulled is not None:
            self._break(lane, pulled, "the edge sent a gap notice in place of records that it was asked for")
        else:
            await self._link.gap(lane, gap)

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Pass marks on, except for those of pulls: they claim nothing."""
        self._link.marks(time, self._unguarded(lanes))

    def last_words(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Pass last marks on, likewise."""
        self._link.last_words(time, self._unguarded(lanes))

    def _unguarded(self, lanes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [pair for pair in lanes if pair[0] not in self._guarded] if self._guarded else lanes

    def _break(self, number: int, lane: Lane, why: str) -> None:
        self._close(number, RefuseCode.PROTOCOL_ERROR, why, ADVICE)
        self._pulls.failed(self, lane.stream, why)

    def _close(self, number: int, code: RefuseCode, message: str, advice: str) -> None:
        """Close the lane of a pull. What came before is still committed."""
        self.close_lane(number)
        self._session.close_lane(number, code, message, advice)

    def close_lane(self, lane: int) -> None:
        """Handle the end of a lane."""
        self._guarded.pop(lane, None)
        self._link.close_lane(lane)

    def closed(self, reason: str) -> None:
        """Handle the end of the connection."""
        self._pulls.left(self)
        self._link.closed(reason)
