"""The hub's side of one link: opens sessions for HELLO's lanes in their shards, and passes frames on to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from weft.cloud_hub.api.tokens import Scope, TokenIdentity
from weft.cloud_hub.links.link_log import HubLinkLog
from weft.cloud_hub.shard.lane_session import LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import GapRange, Mark
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.link import Hello, HelloLane, RefuseCode, WelcomeLane
from weft.protocols.placement import shard_of
from weft.protocols.ranges import RangeSet
from weft.replication.runner import LinkRefused, LinkSession


class _OpenedLane(NamedTuple):
    session: LaneSession
    sequencer: Sequencer


class EdgeLink:
    """One connection (``replication.runner.LinkHandler``).

    Args:
        shards: the shards of the store.
        identity: the identity of the link's token; None when the hub has no tokens.
        wall_clock: nanoseconds since 1970.
        log: logs when the link is taken and when it is over.
        peer: the address that the link comes from.
    """

    def __init__(
        self,
        shards: Shards,
        identity: TokenIdentity | None,
        wall_clock: Callable[[], int],
        log: HubLinkLog,
        peer: str,
    ) -> None:
        self._shards = shards
        self._identity = identity
        self._wall_clock = wall_clock
        self._log = log
        self._peer = peer
        self._is_taken = False
        self._lanes: dict[int, _OpenedLane] = {}
        self.hello: Hello | None = None
        """HELLO of the edge, for status pages."""

    async def open(self, hello: Hello, link: LinkSession) -> list[WelcomeLane]:
        """Make the epoch durable in every lane's shard, then return what is held.

        Raises:
            LinkRefused: the token is for another edge, the hub has no room, or another session has the identity.
        """
        self._authorise(hello)
        self.hello = hello
        for offered in hello.lanes:
            self._lanes[offered.lane] = await self._open_lane(hello, offered, link)
        for session, sequencer in self._lanes.values():
            sequencer.open(session)
        try:
            held = await asyncio.gather(*(opening.session.opened for opening in self._lanes.values()))
        except SessionRefused as refusal:
            raise LinkRefused(refusal.code, refusal.message, refusal.advice) from refusal
        self._is_taken = True
        self._log.connected(_named(hello), self._peer, format_log_id(hello.log_id), hello.software)
        return [WelcomeLane(lane, list(ranges)) for lane, ranges in zip(self._lanes, held, strict=True)]

    def _authorise(self, hello: Hello) -> None:
        identity = self._identity
        if identity is None:
            return
        if identity.scope is not Scope.EDGE or (identity.tenant, identity.edge) != (hello.tenant, hello.edge):
            raise LinkRefused(
                RefuseCode.UNAUTHORISED,
                f"the token {identity.name!r} is not for edge {hello.edge} of tenant {hello.tenant}",
                "give the link this edge's own token, or set node and tenant as the token says",
            )

    async def _open_lane(self, hello: Hello, offered: HelloLane, link: LinkSession) -> _OpenedLane:
        lane = Lane(hello.tenant, hello.edge, hello.log_id, offered.stream)
        shard = shard_of(lane.tenant, lane.edge, self._shards.count)
        sequencer = await self._shards.get(shard)
        if not sequencer.loaded:
            raise LinkRefused(
                RefuseCode.OVERLOADED,
                f"shard {shard}, where lane {lane} belongs, cannot be loaded: {sequencer.trouble}",
                "nothing is lost; repair the hub's store, and the edge connects again by itself",
            )
        if not sequencer.admits(lane):
            raise LinkRefused(
                RefuseCode.OVERLOADED,
                f"the hub has reached its limit on lanes, {lane} is one more",
                "raise the hub's limit on lanes",
            )

        def acknowledge(ranges: RangeSet) -> None:
            link.acknowledge(offered.lane, ranges)

        session = LaneSession(lane, hello.epoch, offered.topics, acknowledge, link.refuse, payload=offered.payload)
        return _OpenedLane(session, sequencer)

    async def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Pass verified batches to the lane's shard; return when it can take more."""
        session, sequencer = self._lanes[lane]
        await sequencer.put(session, batches)

    async def gap(self, lane: int, gap: GapRange) -> None:
        """Pass a gap notice to the lane's shard."""
        session, sequencer = self._lanes[lane]
        await sequencer.put_gap(session, gap)

    async def mark(self, lane: int, mark: Mark) -> None:
        """Pass a mark to the lane's shard.

        A mark for a moment in the future is taken as one for now, which it includes: an edge whose clock runs ahead
        must not claim that the future is complete.
        """
        session, sequencer = self._lanes[lane]
        sequencer.put_mark(session, Mark(min(mark.time, self._wall_clock()), mark.seq))

    def closed(self, reason: str) -> None:
        """Handle the end of the connection."""
        if self.hello is None:
            self._log.turned_away(self._peer, reason)
        elif self._is_taken:
            self._log.disconnected(_named(self.hello), self._peer, reason)
        else:
            self._log.refused(_named(self.hello), self._peer, reason)
        for session, sequencer in self._lanes.values():
            sequencer.leave(session)


def _named(hello: Hello) -> str:
    return f"{hello.tenant}/{hello.edge}"
