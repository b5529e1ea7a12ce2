"""The hub's side of one link: opens sessions for its lanes in their shards, and forwards frames to them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeGuard

import msgspec

from weft.bounds import Owner, OwnerKind, Rates, Refusals
from weft.cloud_hub.auth.certificates import CertificateIdentity
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.cluster import redirect
from weft.cloud_hub.down.hub_down import HubDown, OpeningDown
from weft.cloud_hub.quotas import LinkQuota, unbound
from weft.cloud_hub.reads.edge_reports import EdgeReport
from weft.cloud_hub.rollouts import LinkConfig, LinkConfigs
from weft.cloud_hub.shard.lane_session import ClockNotices, LaneClaim, LaneSession, SessionRefused
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shard_sessions import ADVICE
from weft.cloud_hub.shard.shards import Shards
from weft.config.log_lines import Repeats, UpAndDown, left_out
from weft.config.units import approximate_duration
from weft.hub_api.rights import ANY, Right
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import ClockUpdate, GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane, NodeName, format_log_id, is_hubs_own
from weft.protocols.link import (
    CONFIG,
    LANES_MAX,
    PULL,
    Canary,
    Clock,
    ConfigDesired,
    ConfigState,
    DownOpen,
    Hello,
    LaneOpen,
    LaneOrigins,
    NodeReport,
    Outcomes,
    PairReport,
    RefuseCode,
)
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.placement import opened_by
from weft.protocols.shard.shard_state import BOOTS_MAX
from weft.replication.flow_control import RAISE_RECORD, offered_end
from weft.replication.runner import LinkRefused, LinkSession
from weft.storage.chunk_log import ShardLog

# A budget of the hub's work for frames of links that carry no records: marks, gaps, questions, openings of lanes.
#
# The window of a link does not count them, and compressed they are next to nothing: 100 bytes on the wire can be
# 8,000 marks of lanes. An honest link stays far below; one that is beyond its share is read later, and what it sent
# goes with it when it has left.

COST_PER_S = 2 << 20
"""Cost of frames of one token's links in a second, as turns of links count it: some 5 % of a core. A link with 4,096
lanes that all send data takes a quarter of it."""
COST_AT_ONCE = 32 << 20
"""The same at once, for the opening of an edge's lanes with all that their bounds allow."""
PAID_AT_ONCE = 64 << 10
"""Cost of a link's frames that is charged together: marks alone are a hundredth of it in a message."""
TENANT = 4
"""Shares of a token that one tenant has."""
LOOK_S = 1.0
"""Longest time without a look whether the edge of a link that waits has left."""
BOUND = "frames of links"


class FrameBudget:
    """The budget of all links of a hub process.

    Args:
        refusals: counter of the links that had to wait.
        clock: monotonic seconds.
    """

    def __init__(self, refusals: Refusals, clock: Callable[[], float]) -> None:
        self._refusals = refusals
        self._of_token: Rates[object] = Rates(COST_PER_S, COST_AT_ONCE, clock)
        self._of_tenant: Rates[str] = Rates(TENANT * COST_PER_S, TENANT * COST_AT_ONCE, clock)

    def charge(self, link: LinkSession, holder: object, edge: Owner) -> bool:
        """Charge for the frames of a link since the last call; the arguments are those of ``pay``. Return whether there
        were any."""
        if not (cost := link.control_cost()):
            return False
        self._of_token.charge(holder, cost)
        self._of_tenant.charge(_tenant(edge), cost)
        return True

    async def pay(self, link: LinkSession, holder: object, edge: Owner) -> None:
        """Pay for the frames of a link since the last call, with waiting where its token or tenant has used more than
        its share.

        Args:
            holder: who has the token of the link.
            edge: the edge of the link.

        Raises:
            LinkRefused: the edge has left, and would have had to wait.
        """
        if not self.charge(link, holder, edge):
            return
        tenant = _tenant(edge)
        is_noted = False
        while (wait_s := max(self._of_token.debt_s(holder), self._of_tenant.debt_s(tenant))) > 0:
            if link.edge_has_left:
                raise LinkRefused(
                    RefuseCode.OVERLOADED,
                    "the edge used up its share of frames, and disconnected",
                    "the edge connects again by itself",
                )
            if not is_noted:
                advice = "the hub reads more of it later. Find out why it sends so many marks, gaps or lanes"
                self._refusals.note(BOUND, edge, advice)
                is_noted = True
            await asyncio.sleep(min(wait_s, LOOK_S))


def _tenant(edge: Owner) -> str:
    return edge.name.partition("/")[0]


# Log lines of a hub about links: edges that connected, disconnected, were refused, or connected again.
#
# A token's holder chooses the edge's name, and anyone can cause lines with an address. Names are checked before they
# are logged, and the log's formatter escapes and bounds every line.

logger = logging.getLogger(__name__)

EDGES_MAX = 16_384
"""Maximum number of edges whose last line is remembered, at 2 KiB each; further edges are logged as new."""


CLOCK_DIFFERS_NS = 60 * 10**9
"""Difference of an edge's synchronised clock that is reported: from there on a hub's clock counts as wrong."""


def clock_differs(off: int | None) -> TypeGuard[int]:
    """Return whether an edge's clock is so far from the hub's that one of them is wrong.

    Args:
        off: nanoseconds; None while no time source keeps the edge's clock right.
    """
    return off is not None and abs(off) > CLOCK_DIFFERS_NS


class _Edge:
    def __init__(self, now: float) -> None:
        self.state = UpAndDown(now)
        self.links = 0
        """Number of open links. An edge that lost its network connects again before the hub detects that the old link
        is dead."""


class HubLinkLog:
    """The log lines of one hub node.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._edges: OrderedDict[str, _Edge] = OrderedDict()
        self._strangers = Repeats()
        """Requests for a link that were answered before the edge's name was known."""
        self._clocks = Repeats()
        """Edges whose clocks differ."""

    def connected(self, edge: str, peer: str, log_id: str, software: str, clock_off: int | None = None) -> None:
        """Log that an edge's link was accepted, and that its clock differs if a time source keeps it right.

        Args:
            edge: tenant and name.
            peer: the edge's address.
            clock_off: nanoseconds by which the edge's clock is ahead of this node's; None while nothing vouches for it.
        """
        if clock_differs(clock_off):
            self._differs(edge, peer, clock_off)
        known = self._edge(edge)
        known.links += 1
        change = known.state.up(self._monotonic())
        if change is None:
            return
        after = f", after {approximate_duration(change.away_s)} away" if change.again or change.failures else ""
        if change.failures:
            after += f", refused {change.failures:,} times" if change.failures > 1 else ", refused once"
        logger.info(
            "edge %s at %s: connected%s, log %s, %s%s",
            edge,
            peer,
            " again" if change.again else "",
            log_id,
            software,
            after,
        )

    def _differs(self, edge: str, peer: str, clock_off: int) -> None:
        times = self._clocks.due(edge, self._monotonic())
        if times is not None:
            logger.warning(
                "edge %s at %s: its clock, which a time source keeps right, is %s this node's. One of them is wrong%s",
                edge,
                peer,
                f"{approximate_duration(abs(clock_off) / 1e9)} {'ahead of' if clock_off > 0 else 'behind'}",
                left_out(times),
            )

    def has_lost(self, edge: str, stream: str, records: int, first: int) -> None:
        """Log this hub's loss by an edge's account, for the first of its streams."""
        logger.error(
            "edge %s: this hub lacks %d records of stream %s, from seq %d on, that it had acknowledged. Its store was "
            "restored to an earlier state, or lost objects. The edge sends again what it still has; `weft hub status` "
            "names every stream",
            edge,
            records,
            stream,
            first,
        )

    def disconnected(self, edge: str, peer: str, reason: str, *, is_move: bool = False) -> None:
        """Log the end of an accepted link.

        Args:
            is_move: whether this process sent the edge on to another, as it does after a start and at a drain.
        """
        known = self._edge(edge)
        known.links = max(0, known.links - 1)
        if known.links:
            self._log_replaced(edge, peer, reason)
            return
        change = known.state.down(reason, self._monotonic())
        if change is not None:
            logger.log(
                logging.INFO if is_move else logging.WARNING,
                "edge %s at %s: disconnected after %s: %s%s",
                edge,
                peer,
                approximate_duration(change.since_s),
                reason,
                left_out(change.left_out),
            )

    def refused(self, edge: str, peer: str, reason: str) -> None:
        """Log the refusal of a link after the edge has sent its name."""
        known = self._edge(edge)
        if known.links:
            self._log_replaced(edge, peer, reason)
            return
        change = known.state.down(reason, self._monotonic())
        if change is not None:
            logger.warning("edge %s at %s: %s%s", edge, peer, reason, left_out(change.left_out))

    def turned_away(self, peer: str, reason: str) -> None:
        """Log the failure of a request for a link before the edge has sent its name."""
        count = self._strangers.due(f"{peer} {reason}", self._monotonic())
        if count is not None:
            logger.warning("a link from %s: %s%s", peer, reason, left_out(count))

    def _log_replaced(self, edge: str, peer: str, reason: str) -> None:
        # Two nodes with one identity do this in turns; an edge that connects again after a network failure does it
        # once.
        count = self._strangers.due(f"{edge} at {peer}", self._monotonic())
        if count is not None:
            logger.warning(
                "edge %s at %s: %s (another link of this edge is open%s)", edge, peer, reason, left_out(count)
            )

    def _edge(self, edge: str) -> _Edge:
        known = self._edges.get(edge)
        if known is None:
            known = self._edges[edge] = _Edge(self._monotonic())
            if len(self._edges) > EDGES_MAX:
                self._edges.popitem(last=False)
        self._edges.move_to_end(edge)
        return known


# Clocks of the logs on one link: an edge's own, and those of nodes that it relays for.

LOGS_AT_ONCE = 256
"""Number of logs with one id that get a clock notice without a pause. Two nodes have the same id only on purpose."""


class OpenedLane(NamedTuple):
    """An open lane of a link."""

    session: LaneSession
    sequencer: Sequencer
    acknowledged: Sequence[Range] = ()
    """Records that this hub had acknowledged before, by the edge's account."""


@dataclass(slots=True)
class _Log:
    """One log with open lanes on the link."""

    clocks: ClockNotices = field(default_factory=ClockNotices)
    lanes: dict[int, OpenedLane] = field(default_factory=dict)


class LinkClocks:
    """The clock notices of one link, for the chunks with batches of their boots."""

    def __init__(self) -> None:
        self._clocks: dict[tuple[int, int], Clock] = {}
        """(log id, boot) -> the edge's clock notice."""
        self._logs: dict[int, dict[NodeName, _Log]] = {}
        """Log id -> logs of the open lanes: a node's own, and relayed ones."""

    def notices(self, lane: Lane) -> ClockNotices:
        """Return the notices of a lane's log."""
        return self._log_of(lane).clocks

    def add(self, number: int, opened: OpenedLane) -> None:
        """Add an open lane; the first of a log gets the notices that came before."""
        log = self._log_of(opened.session.lane)
        log.lanes[number] = opened
        for clock in self._clocks.values() if len(log.lanes) == 1 else ():
            _put_clock(opened, clock)

    def take_out(self, number: int, lane: Lane) -> None:
        """Remove a lane, and its log with the last one."""
        log = self._log_of(lane)
        log.lanes.pop(number, None)
        if not log.lanes:
            del self._logs[lane.log_id][NodeName(lane.tenant, lane.edge)]
            if not self._logs[lane.log_id]:
                del self._logs[lane.log_id]

    async def put(self, clock: Clock) -> None:
        """Store a measurement of the edge's clock, for the chunks with batches of that boot."""
        if len(self._clocks) < BOOTS_MAX or (clock.log_id, clock.boot) in self._clocks:
            self._clocks[clock.log_id, clock.boot] = clock
        for at, log in enumerate(list(self._logs.get(clock.log_id, {}).values()), 1):
            if (opened := next(iter(log.lanes.values()), None)) is not None:
                _put_clock(opened, clock)
            if at % LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _log_of(self, lane: Lane) -> _Log:
        return self._logs.setdefault(lane.log_id, {}).setdefault(NodeName(lane.tenant, lane.edge), _Log())


def _put_clock(opened: OpenedLane, clock: Clock) -> None:
    lane = opened.session.lane
    if lane.log_id == clock.log_id:
        notice = ClockUpdate(*lane[:3], clock.boot, clock.monotonic, clock.offset, clock.error)
        opened.sequencer.put_clock(opened.session, notice)


# Checks before a link or a lane is opened: of who may open it, and of the shard that is to take it.


def check_link(identity: TokenIdentity | None, hello: Hello) -> None:
    """Check that a link may be opened: by the edge that HELLO names, or by another region.

    Raises:
        LinkRefused: the token is not the edge's, or the region asks for what is for edges alone.
    """
    if identity is None or not identity.is_region:
        check_edge(identity, NodeName(hello.tenant, hello.edge))
        return
    if identity.tenant not in (ANY, hello.tenant):
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is for regions that relay tenant {identity.tenant}, not {hello.tenant}",
            "set `tenant` of the region to that of the token, or give it a token for all tenants",
        )
    if asked := {CONFIG, PULL} & set(hello.features):
        advice = "a region gets neither configurations nor requests for records; an edge needs a token of its own"
        raise LinkRefused(
            RefuseCode.UNAUTHORISED, f"{identity.shown} is for regions, and the link asks for {min(asked)}", advice
        )


def check_lane(identity: TokenIdentity | None, lane: Lane, *, is_relay: bool) -> None:
    """Check that a link may write a lane.

    Raises:
        LinkRefused: the token is not for its edge or its stream, or the stream is the hub's own.
    """
    if identity is not None and Right.RELAY in identity.rights and (is_relay or identity.is_region):
        if not is_relay or not identity.may_relay(lane.tenant, lane.stream):
            what = "relay" if is_relay else "own"
            raise LinkRefused(
                RefuseCode.UNAUTHORISED,
                f"{identity.shown} does not allow to {what} lanes of stream {lane.stream} of tenant {lane.tenant}",
                "relay other streams (`streams` and `tenant` of the region), or use a token that is for them, too",
            )
    else:
        check_edge(identity, NodeName(lane.tenant, lane.edge))
        _check_write(identity, lane)
    if is_hubs_own(lane.tenant, lane.stream):
        advice = "replicate streams of the configuration only; if this edge runs a release of Weft, report this"
        whose = f"stream {lane.stream} of tenant {lane.tenant}"
        raise LinkRefused(RefuseCode.BAD_HELLO, f"{whose} is the hub's own", advice)


def check_edge(identity: TokenIdentity | None, node: NodeName) -> None:
    """Check that a link may speak for an edge.

    Args:
        identity: the identity of the link's token; None when the hub has no tokens.

    Raises:
        LinkRefused: the token is not the edge's.
    """
    if identity is None:
        return
    if Right.WRITE not in identity.rights or (identity.tenant, identity.edge) not in opened_by(node):
        kind = "certificate" if isinstance(identity, CertificateIdentity) else "token"
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is not for edge {node.edge} of tenant {node.tenant}",
            f"use this edge's own {kind}, or set node and tenant to those of the {kind}",
        )


def _check_write(identity: TokenIdentity | None, lane: Lane) -> None:
    if identity is not None and not identity.rights.allow(Right.WRITE, lane.stream):
        raise LinkRefused(
            RefuseCode.UNAUTHORISED,
            f"{identity.shown} is not for stream {lane.stream}",
            f"its records wait at the edge. Replicate other streams, or give it a token with write:{lane.stream}",
        )


def check_shard(sequencer: Sequencer, shard: int, lane: Lane) -> None:
    """Check that a lane's shard takes records now.

    Raises:
        LinkRefused: it does not.
    """
    if not sequencer.loaded:
        raise LinkRefused(
            RefuseCode.UNAVAILABLE,
            f"shard {shard}, where lane {lane} belongs, cannot be loaded: {sequencer.public_trouble}",
            "nothing is lost, and the edge connects again by itself; `weft hub status` names the object",
        )
    if sequencer.is_unavailable:
        raise LinkRefused(
            RefuseCode.UNAVAILABLE,
            f"shard {shard} of this hub node has trouble with its store: {sequencer.public_trouble}",
            "nothing is lost, and the edge tries the hub's other nodes; the hub's log has details",
        )


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
        self._is_connected = False
        self._lanes: dict[int, OpenedLane] = {}
        self._sequencers: dict[int, Sequencer] = {}
        self._full: list[OpenedLane] = []
        """Lanes whose shards had no more room after the last of their batches."""
        self._claims: dict[Lane, LaneClaim] = {}
        """Claims of this connection, including those to lanes that were closed since."""
        self._has_reported_loss = False
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
        self.last_report: EdgeReport | None = None
        """The edge's last report on this connection, for status pages."""
        self.clock_off: int | None = None
        """Nanoseconds by which the edge's clock was ahead of the hub's in HELLO, if a time source keeps it right."""
        self.unkept_clock_off: int | None = None
        """The same of a clock that nothing keeps right."""

    @property
    def streams(self) -> list[str]:
        """Return the streams of the open lanes, for status pages."""
        return [opened.session.lane.stream for opened in self._lanes.values()]

    @property
    def epoch(self) -> int:
        """Return the epoch of the edge's own lanes; 0 while none is open."""
        return max((opened.session.epoch for opened in self._lanes.values()), default=0)

    def connected(self, link: LinkSession) -> None:
        """Take the session of the connection; refuse it if the link was ended before."""
        self._link, self._is_connected = link, True
        if self._end is not None:
            link.refuse(self._end.code, self._end.message, self._end.advice)

    async def open(self, hello: Hello) -> None:
        """Accept the link.

        Raises:
            LinkRefused: the token is for another edge, or another process has the edge's shard.
        """
        check_link(self._identity, hello)
        if (sent_on := redirect(hello, self._shards.place(hello), self._elsewhere)) is not None:
            self._is_sent_on = True
            raise sent_on
        self._quota.open(hello, self._link.send_frame)
        self.hello = hello
        off = hello.clock - self._wall_clock()
        self.clock_off, self.unkept_clock_off = (off, None) if hello.is_synchronised else (None, off)
        if self._configs is not None:
            self._configs.greeted(self, NodeName(hello.tenant, hello.edge), hello.features)

    def report(self, report: NodeReport | PairReport) -> None:
        """Keep what the edge says of its disk and its functions, or of its pair, in place of what it said before."""
        if self.is_region or self.hello is None:
            return
        now, before = self._wall_clock(), self.last_report
        if isinstance(report, NodeReport):
            before = before or EdgeReport(now, report)
            self.last_report = msgspec.structs.replace(before, reported=now, report=report)
            return
        if before is None:
            return  # a report of the disk comes before
        # An operator may end the lanes of a lost edge by its peer's word: only who may bring its records has one.
        tenant, identity = self.hello.tenant, self._identity
        is_peer = identity is None or (Right.RELAY in identity.rights and identity.tenant in (ANY, tenant))
        copies = [copy for copy in report.copies if is_peer and copy.tenant == tenant]
        self.last_report = msgspec.structs.replace(before, pair=PairReport(report.alone, copies), pair_reported=now)

    def configure(self, desired: ConfigDesired) -> None:
        """Tell the edge which configuration it is to have."""
        self._link.send_frame(desired)

    def config_state(self, state: ConfigState) -> None:
        """Take what the edge says about its configuration."""
        if self._configs is not None:
            self._configs.take(self, state)

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
        if self._is_connected:
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

        def refuse(code: RefuseCode, message: str, advice: str) -> None:
            self._close_lane(number, code, message, advice)

        claim = self._claims.get(lane)
        if claim is None or claim.epoch != opening.epoch:
            claim = self._claims[lane] = LaneClaim(opening.epoch, offered_end(opening.ranges))
        session = LaneSession(
            lane,
            claim,
            opening.topics,
            partial(self._link.acknowledge, number),
            refuse,
            payload=opening.payload,
            flags=opening.flags,
            origins=opening.origins,
            clocks=self._clocks.notices(lane),
        )
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
        if lost and not self._has_reported_loss and self.hello is not None:
            self._has_reported_loss = True
            self._log.has_lost(_named(self.hello), opened.session.lane.stream, lost.count(), next(iter(lost))[0])

    def _close_lane(self, number: int, code: RefuseCode, message: str, advice: str, *, ends_link: bool = False) -> None:
        """Close a lane that its shard no longer accepts.

        An edge's own lanes share its identity, so a conflict in one ends the link, and so does the end of a conflict.

        Args:
            ends_link: the edge has to connect again with a new epoch. A relay has none.
        """
        taken = self.taken(number) if code is RefuseCode.IDENTITY_CONFLICT else None
        if taken is not None:
            code, message, advice, ends_link = RefuseCode.CLOSED, taken, "nothing: the other link continues", False
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

    def close_lane(self, lane: int, refusal: str = "") -> None:
        """Handle the closing of a lane, by the edge or for a record that is too long: its received records are still
        committed."""
        opened = self._take_out(lane)
        if opened is None:
            return
        opened.sequencer.leave(opened.session)
        if refusal:
            named = opened.session.lane
            self._refusal = f"refused: stream {named.stream}: {refusal}; {RAISE_RECORD}"
            advice = f"closed stream {named.stream} of it: {refusal}. Raise it for a record that is legitimate"
            self._refusals.note("limits.record", Owner(OwnerKind.EDGE, f"{named.tenant}/{named.edge}"), advice)

    def add_origins(self, frame: LaneOrigins) -> None:
        """Add further origins of a lane's batches."""
        opened = self._lanes.get(frame.lane)
        if opened is None:
            return
        full = opened.sequencer.declare_origins(opened.session, frame.origins)
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
        if self.hello is None:
            return
        if self._link.window_is_half_used:
            for sequencer in self._sequencers.values():
                sequencer.hurry()
        if self._full:
            full, self._full = self._full, []
            for opened in full:
                await opened.sequencer.sessions.room(opened.session)
        if self._quota.has_charged:
            await self._quota.room()
        if self._frames is not None and self._link.unpaid_cost >= PAID_AT_ONCE and (payer := self._payer()) is not None:
            await self._frames.pay(self._link, *payer)

    def _payer(self) -> tuple[object, Owner] | None:
        """Return who pays for the frames of the link: the holder of its token, and its edge. None before HELLO."""
        if self.hello is None:
            return None
        edge = Owner(OwnerKind.EDGE, f"{self.hello.tenant}/{self.hello.edge}")
        return edge if self._identity is None else self._identity.holder, edge

    def marks(self, time: int, lanes: list[tuple[int, int]]) -> None:
        """Pass marks to the shards of their lanes.

        A mark for a moment in the future is treated as one for the present, which it includes: an edge with a fast
        clock must not claim that the future is complete.
        """
        self._put_marks(time, lanes)

    def _put_marks(self, time: int, lanes: list[tuple[int, int]], *, last: bool = False, renamed_to: str = "") -> None:
        time = min(time, self._wall_clock())
        for number, seq in lanes:
            opened = self._lanes.get(number)
            if opened is not None:
                opened.session.sends_last_word, opened.session.renamed_to = last, renamed_to
                opened.sequencer.put_mark(opened.session, Mark(time, seq))

    def last_words(self, time: int, lanes: list[tuple[int, int]], renamed_to: str) -> None:
        """Pass the last marks of an edge that stops to the shards of their lanes."""
        self._put_marks(time, lanes, last=True, renamed_to=renamed_to)

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
            self._down = self._messages.attach(edge, frame.next, self._link.send_frame)

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
        if self._frames is not None and (payer := self._payer()) is not None:
            self._frames.charge(self._link, *payer)
        if self._down is not None:
            self._down.close()
        if not self._lanes and self._refusal:
            reason = self._refusal
        if self._is_sent_on:
            pass  # normal: the edge connects to another process of this node
        elif self.hello is None:
            self._log.turned_away(self._peer, reason)
        elif self._is_taken:
            is_move = self._end is not None and self._end.code == RefuseCode.REDIRECT
            self._log.disconnected(_named(self.hello), self._peer, reason, is_move=is_move)
        else:
            self._log.refused(_named(self.hello), self._peer, reason)
        for opened in self._lanes.values():
            opened.sequencer.leave(opened.session)
        for sequencer in self._sequencers.values():
            sequencer.sessions.canaries.forget(self)


def _named(hello: Hello) -> str:
    return f"{hello.tenant}/{hello.edge}"
