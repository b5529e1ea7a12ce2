"""The hub's side of one link: opens sessions for its lanes in their shards, and forwards frames to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.api.edge_reports import EdgeReport
from weft.cloud_hub.api.tokens import TokenIdentity
from weft.cloud_hub.cluster.owners import redirect
from weft.cloud_hub.declared.tenants.link_quota import LinkQuota, unbound
from weft.cloud_hub.desired.links import LinkConfig, LinkConfigs
from weft.cloud_hub.down.hub_down import HubDown
from weft.cloud_hub.down.link_down import OpeningDown
from weft.cloud_hub.links.admission import check_lane, check_link, check_shard
from weft.cloud_hub.links.frame_budget import FrameBudget
from weft.cloud_hub.links.link_clocks import LinkClocks, OpenedLane
from weft.cloud_hub.links.link_log import HubLinkLog
from weft.cloud_hub.shard.bounds import ADVICE
from weft.cloud_hub.shard.lane_session import LaneClaim, LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane, NodeName, format_log_id
from weft.protocols.link import LANES_MAX, Clock, Hello, LaneOpen, LaneOrigins, RefuseCode
from weft.protocols.link.canary import Canary
from weft.protocols.link.configuration import ConfigDesired, ConfigState
from weft.protocols.link.down import DownOpen, Outcomes
from weft.protocols.link.report import NodeReport
from weft.protocols.ranges import RangeSet
from weft.replication.accounting import offered_end
from weft.replication.runner import LinkRefused, LinkSession
from weft.storage.chunk_log import ShardLog


class EdgeLink:
    """One connection (``replication.runner.LinkHandler``).

    Args:
        shards: the shards of the store.
        identity: the identity of the link's token; None when the hub has no tokens.
        wall_clock: nanoseconds since 1970.
        log: log of the link's acceptance and end.
        peer: the peer's address.
        refusals: counter of the lanes refused for lack of room.
        configs: configurations of linked edges; None if the hub has none for any.
        elsewhere: shard -> the URL of its owner at present; None if it is this process, or unknown.
        down: messages to edges.
        quota: what the link's tenant may bring; None without bounds.
        frames: what its frames may cost; None without a bound.
    """

    def __init__(
        self,
        shards: Shards,
        identity: TokenIdentity | None,
        wall_clock: Callable[[], int],
        log: HubLinkLog,
        peer: str,
        *,
        refusals: Refusals,
        elsewhere: Callable[[int], str | None] = lambda shard: None,  # noqa: ARG005
        configs: LinkConfigs | None = None,
        down: HubDown | None = None,
        quota: LinkQuota | None = None,
        frames: FrameBudget | None = None,
    ) -> None:
        self._frames = frames
        self._quota = unbound() if quota is None else quota
        self.is_region = identity is not None and identity.is_region
        """True for a link of another region: it has no edge's configuration, and gets no edge's messages."""
        self._configs = None if self.is_region else configs
        self.config: LinkConfig | None = None
        """State of the edge's configuration; None if it takes none."""
        self._shards, self._identity, self._wall_clock = shards, identity, wall_clock
        self._log, self._peer, self._elsewhere = log, peer, elsewhere
        self._messages, self._refusals = None if self.is_region else down, refusals
        self._down: OpeningDown | None = None
        self._is_sent_on, self._is_taken = False, False
        self._end: LinkRefused | None = None
        """The reason why the hub ended the link by itself."""
        self._link: LinkSession
        self._lanes: dict[int, OpenedLane] = {}
        self._sequencers: dict[int, Sequencer] = {}
        self._full: list[OpenedLane] = []
        """Lanes whose shards had no more room after the last of their batches."""
        self._claims: dict[Lane, LaneClaim] = {}
        """Claims of this connection, including those to lanes that were closed since."""
        self._has_told_of_loss = False
        """True after one loss was logged; the status names every lane."""
        self._refusal = ""
        """The last reason for closing a lane."""
        self._asked: dict[Lane, tuple[Sequencer, LaneClaim]] = {}
        """Lanes that the edge opened as its own, at most one for each stream."""
        self._conflict = ""
        """Reason why the shard refused the edge's identity at the start of the link; empty if it did not."""
        self.taken: Callable[[int], str | None] = lambda number: None  # noqa: ARG005
        """Lane -> the reason for closing it alone when another link takes it; None if that is a conflict."""
        self._clocks = LinkClocks()
        self.hello: Hello | None = None
        """HELLO of the edge, for status pages."""
        self.told: EdgeReport | None = None
        """The edge's last report on this connection, for status pages."""
        self.clock_off: int | None = None
        """Nanoseconds by which the edge's clock was ahead of the hub's in HELLO, if a time source keeps it right."""

    @property
    def streams(self) -> list[str]:
        """Return the streams of the open lanes, for status pages."""
        return [opened.session.lane.stream for opened in self._lanes.values()]

    @property
    def epoch(self) -> int:
        """Return the epoch of the edge's own lanes; 0 while none is open."""
        return max((opened.session.epoch for opened in self._lanes.values()), default=0)

    async def open(self, hello: Hello, link: LinkSession) -> None:
        """Accept the link.

        Raises:
            LinkRefused: the token is for another edge, or another process has the edge's shard.
        """
        if self._end is not None:
            raise self._end
        check_link(self._identity, hello)
        if (sent_on := redirect(hello, self._shards.place(hello), self._elsewhere)) is not None:
            self._is_sent_on = True
            raise sent_on
        self._quota.open(hello, link.say)
        self.hello = hello
        self.clock_off = hello.clock - self._wall_clock() if hello.is_synchronised else None
        self._link = link
        if self._configs is not None:
            self._configs.greeted(self, NodeName(hello.tenant, hello.edge), hello.features)

    def report(self, report: NodeReport) -> None:
        """Keep what the edge says of its disk and its functions, in place of what it said before."""
        if not self.is_region:
            self.told = EdgeReport(self._wall_clock(), report)

    def configure(self, desired: ConfigDesired) -> None:
        """Tell the edge which configuration it is to have."""
        self._link.say(desired)

    def config_state(self, state: ConfigState) -> None:
        """Take what the edge says about its configuration."""
        if self._configs is not None:
            self._configs.said(self, state)

    def send_on(self) -> bool:
        """Send the edge of an open link to the owner of its shard, if that is another process by now.

        Returns:
            Whether the edge was sent on.
        """
        if self.hello is None or self._end is not None:
            return False
        if (sent_on := redirect(self.hello, self._shards.place(self.hello), self._elsewhere)) is None:
            return False
        self._end = sent_on
        self._link.refuse(sent_on.code, sent_on.message, sent_on.advice, sent_on.url)
        return True

    @property
    def is_over(self) -> bool:
        """Return whether ``end`` was called."""
        return self._end is not None

    def end(self, code: RefuseCode, message: str, advice: str) -> None:
        """Refuse the link from now on, in any state."""
        self._end = LinkRefused(code, message, advice)
        if self.hello is not None:
            self._link.refuse(code, message, advice)

    async def open_lane(self, opening: LaneOpen) -> None:
        """Begin to make a lane's epoch durable in its shard; the edge then gets the held ranges."""
        try:
            opened = await self._open_lane(opening)
        except LinkRefused as refusal:
            self._close_lane(opening.lane, refusal.code, refusal.message, refusal.advice)
            return
        self._lanes[opening.lane] = opened
        self._quota.lane_opened(opening.lane, opened.session.lane)
        opened.session.opened.add_done_callback(lambda held: self._answer(opening.lane, held))
        opened.sequencer.open(opened.session)
        self._clocks.add(opening.lane, opened)

    async def _open_lane(self, opening: LaneOpen) -> OpenedLane:
        lane = Lane(opening.tenant, opening.edge, opening.log_id, opening.stream)
        check_lane(self._identity, lane, is_relay=bool(opening.flags & LaneFlag.RELAY))
        shard = self._shards.place(lane)
        sequencer = await self._sequencer(shard)
        check_shard(sequencer, shard, lane)
        full = sequencer.no_room(lane, opening.topics, opening.origins)
        if full is not None:
            self._refusals.note(full.setting, full.owner, ADVICE)
            raise LinkRefused(RefuseCode.OVERLOADED, f"{full.reason}; lane {lane} is one more", ADVICE)
        await self._quota.check_lane(lane, sequencer)
        number = opening.lane

        def acknowledge(ranges: RangeSet) -> None:
            self._link.acknowledge(number, ranges)

        def refuse(code: RefuseCode, message: str, advice: str) -> None:
            self._close_lane(number, code, message, advice)

        claim = self._claims.get(lane)
        if claim is None or claim.epoch != opening.epoch:
            claim = self._claims[lane] = LaneClaim(opening.epoch, offered_end(opening.ranges))
        session = LaneSession(
            lane, claim, opening.topics, acknowledge, refuse,
            payload=opening.payload, flags=opening.flags, origins=opening.origins, clocks=self._clocks.notices(lane),
        )  # fmt: skip
        if not session.is_relay and len(self._asked) < LANES_MAX:
            self._asked[lane] = sequencer, claim
        cluster = sequencer.state.cluster_id.hex()
        acknowledged = next((ranges for hub, ranges in opening.acknowledged if hub == cluster), [])
        return OpenedLane(session, sequencer, acknowledged)

    async def _sequencer(self, shard: int) -> Sequencer:
        known = self._sequencers.get(shard)
        # A lane may have to wait for a slow shard, while the edge's other lanes are answered at once.
        if known is None or (known.loaded and not known.is_running):
            known = self._sequencers[shard] = await self._shards.get(shard)
        return known

    def _answer(self, number: int, held: asyncio.Future[RangeSet]) -> None:
        if held.cancelled() or number not in self._lanes:
            return
        error = held.exception()
        if isinstance(error, SessionRefused):
            if error.code is RefuseCode.IDENTITY_CONFLICT and self.taken(number) is None:
                self._conflict = self._conflict or error.message
            # Its epoch may be durable nevertheless: if offered again on this link, it would look like another node's.
            self._close_lane(number, error.code, error.message, error.advice, ends_link=True)
            return
        if not self._is_taken and self.hello is not None:
            self._is_taken = True
            log_id = format_log_id(self.hello.log_id)
            self._log.connected(_named(self.hello), self._peer, log_id, self.hello.software, self.clock_off)
        self._compare(number, held.result())
        self._link.lane_opened(number, held.result())

    def _compare(self, number: int, held: RangeSet) -> None:
        """Note the records that the shard had acknowledged to the edge and no longer has."""
        opened = self._lanes[number]
        if opened.session.is_relay:
            return  # only the edge knows
        # The edge chooses these ranges, so overlapping ones are joined, to compare each number once.
        said = RangeSet((first, end) for first, end in opened.acknowledged if first < end)
        lost = RangeSet(part for first, end in said for part in held.missing(first, end))
        opened.sequencer.sessions.note_lost(opened.session.lane, lost)
        if lost and not self._has_told_of_loss and self.hello is not None:
            self._has_told_of_loss = True
            self._log.has_lost(_named(self.hello), opened.session.lane.stream, lost.count(), next(iter(lost))[0])

    def _close_lane(self, number: int, code: RefuseCode, message: str, advice: str, *, ends_link: bool = False) -> None:
        """Close a lane that its shard no longer accepts.

        An edge's own lanes share its identity, so a conflict in one ends the link, and so does the end of a conflict.

        Args:
            ends_link: the edge has to connect again with a new epoch. A relay has none.
        """
        taken = self.taken(number) if code is RefuseCode.IDENTITY_CONFLICT else None
        if taken is not None:
            code, message, advice, ends_link = RefuseCode.CLOSED, taken, "nothing: the other link goes on", False
        opened = self._take_out(number)
        self._refusal = f"refused: {message}; {advice}"
        ends_link |= code is RefuseCode.IDENTITY_CONFLICT or (opened is not None and opened.session.claim.is_over)
        if ends_link and not (opened and opened.session.is_relay):
            self._link.refuse(code, message, advice)
        else:
            self._link.close_lane(number, code, message, advice)

    def _take_out(self, number: int) -> OpenedLane | None:
        opened = self._lanes.pop(number, None)
        self._quota.lane_closed(number)
        if opened is not None:
            self._clocks.take_out(number, opened.session.lane)
        # Only granted claims are kept, whose lanes count against the hub's limit: a peer may open any number of lanes.
        if opened is not None and not opened.session.claim.granted:
            self._claims.pop(opened.session.lane, None)
        return opened

    def close_lane(self, lane: int) -> None:
        """Handle the edge's closing of a lane: its received records are still committed."""
        opened = self._take_out(lane)
        if opened is not None:
            opened.sequencer.leave(opened.session)

    def add_origins(self, frame: LaneOrigins) -> None:
        """Add further origins of a lane's batches."""
        opened = self._lanes.get(frame.lane)
        if opened is None:
            return
        full = opened.sequencer.tell_origins(opened.session, frame.origins)
        if full is not None:
            self._refusals.note(full.setting, full.owner, ADVICE)
            self.close_lane(frame.lane)
            self._link.close_lane(frame.lane, RefuseCode.OVERLOADED, full.reason, ADVICE)

    async def clock(self, clock: Clock) -> None:
        """Store a measurement of the edge's clock, for the chunks with batches of that boot."""
        await self._clocks.put(clock)

    def data(self, lane: int, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        """Pass verified batches to the lane's shard."""
        opened = self._lanes.get(lane)
        self._quota.data(lane, batches)
        if opened is not None and not opened.sequencer.put(opened.session, batches):
            self._full.append(opened)

    async def gap(self, lane: int, gap: GapRange) -> None:
        """Pass a gap notice to the lane's shard."""
        opened = self._lanes.get(lane)
        if opened is not None:
            await opened.sequencer.put_gap(opened.session, gap)

    async def room(self) -> None:
        """Wait until the shards that the link has filled have room. Make them commit soon if its window fills up."""
        if self.hello is not None and self._link.window_is_half_used:
            for sequencer in self._sequencers.values():
                sequencer.hurry()
        full, self._full = self._full, []
        for opened in full:
            await opened.sequencer.sessions.room(opened.session)
        await self._quota.room()
        if self._frames is not None and self.hello is not None:
            edge = Owner(OwnerKind.EDGE, f"{self.hello.tenant}/{self.hello.edge}")
            await self._frames.pay(self._link, edge if self._identity is None else self._identity.holder, edge)

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Pass marks to the shards of their lanes.

        A mark for a moment in the future is treated as one for the present, which it includes: an edge with a fast
        clock must not claim that the future is complete.
        """
        self._put_marks(time, lanes, last=False)

    def _put_marks(self, time: int, lanes: list[tuple[int, int]], *, last: bool) -> None:
        time = min(time, self._wall_clock())
        for number, seq in lanes:
            opened = self._lanes.get(number)
            if opened is not None:
                opened.session.says_last_word = last
                opened.sequencer.put_mark(opened.session, Mark(time, seq))

    def last_words(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Pass the last marks of an edge that stops to the shards of their lanes."""
        self._put_marks(time, lanes, last=True)

    async def canary(self, canary: Canary) -> None:
        """Answer once something that the edge's shard writes from now on is durable."""
        if self.hello is not None:
            sequencer = await self._sequencer(self._shards.place(self.hello))
            sequencer.sessions.canaries.ask(self, partial(self._link.prove, canary.number))

    async def down(self, frame: DownOpen | Outcomes) -> None:
        """Begin to send messages to the edge, or note what became of some."""
        if isinstance(frame, Outcomes):
            if self._down is not None:
                self._down.outcomes(frame.outcomes)
        elif self._messages is not None and self._down is None and self.hello is not None:
            edge = NodeName(self.hello.tenant, self.hello.edge)
            self._down = self._messages.attach(edge, frame.next, self._link.say)

    def refused_claims(self) -> list[tuple[ShardLog, dict[Lane, int]]]:
        """Return by shard the edge's claimed epochs that belong to another node, if it was refused for that."""
        found: dict[int, tuple[ShardLog, dict[Lane, int]]] = {}
        for lane, (sequencer, claim) in self._asked.items() if self._conflict else ():
            held = sequencer.state.lanes.get(lane)
            if held is not None and held.conflict is None and not claim.granted and claim.epoch <= held.epoch:
                found.setdefault(sequencer.log.shard, (sequencer.log, {}))[1][lane] = claim.epoch
        return list(found.values())

    @property
    def conflict(self) -> str:
        """Return the reason why the edge's identity was refused; empty if it was not."""
        return self._conflict

    def closed(self, reason: str) -> None:
        """Handle the end of the connection."""
        self._quota.close()
        if self._down is not None:
            self._down.close()
        if not self._lanes and self._refusal:
            reason = self._refusal
        if self._is_sent_on:
            pass  # normal: the edge connects to another process of this node
        elif self.hello is None:
            self._log.turned_away(self._peer, reason)
        elif self._is_taken:
            self._log.disconnected(_named(self.hello), self._peer, reason)
        else:
            self._log.refused(_named(self.hello), self._peer, reason)
        for opened in self._lanes.values():
            opened.sequencer.leave(opened.session)
        for sequencer in self._sequencers.values():
            sequencer.sessions.canaries.forget(self)


def _named(hello: Hello) -> str:
    return f"{hello.tenant}/{hello.edge}"
