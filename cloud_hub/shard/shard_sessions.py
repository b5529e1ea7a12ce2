"""All link sessions of one shard: their pending items and their bound, and the fencing of sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import GAPS_PENDING_MAX, LaneSession, PendingItem, SessionRefused, bounds
from weft.protocols.batch import BatchHeader
from weft.protocols.chunk_index import ClockUpdate, Mark
from weft.protocols.lane import Lane, NodeName, Origin, by_number, format_log_id
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.completeness import LostRecords
from weft.protocols.shard.lane_state import NOTHING, LaneState
from weft.protocols.shard.placement import moved_to
from weft.protocols.shard.shard_state import ShardState, origin_bytes, topic_bytes
from weft.replication.events import taken_before

# Bounds on the parts of one edge and one tenant in a shard's state.

Key = TypeVar("Key")
ADVICE = "end lanes of edges that are gone (`weft hub retire`), or raise the hub's limit"


class Full(NamedTuple):
    """A reached bound of a shard's state."""

    reason: str
    setting: str
    owner: Owner


@dataclass(slots=True)
class _Share:
    """The share of one session."""

    lanes: int = 0
    """1 while the state does not have its lane."""
    topics: int = 0
    origins: int = 0


class PendingDeclarations:
    """An account of new lanes, topic patterns and origins that sessions have declared and the state does not have yet.

    They count beside the state: otherwise all concurrent sessions would find the same room. A session counts until the
    state has its declarations, or it is over. Sessions of one lane count for it once, with the longest of their topics,
    because one replaces the other.
    """

    def __init__(self) -> None:
        self.lanes: Counter[Lane] = Counter()
        self.of_tenant: Counter[str] = Counter()
        """New lanes."""
        self.of_edge: Counter[NodeName] = Counter()
        """New lanes."""
        self.topic_bytes: Counter[NodeName] = Counter()
        self._topics: dict[Lane, dict[LaneSession, int]] = {}
        self.origin_bytes: Counter[NodeName] = Counter()
        self._shares: dict[LaneSession, _Share] = {}

    @property
    def is_any(self) -> bool:
        """Return whether something is counted for any session."""
        return bool(self._shares)

    def lane_topic_bytes(self, lane: Lane) -> int:
        """Return the counted bytes of topics for a lane."""
        # An edge that is back before its lost link is noticed has two sessions of one lane, and must not be charged
        # twice.
        return max(self._topics.get(lane, {}).values(), default=0)

    def begins(self, session: LaneSession, state: ShardState) -> None:
        """Count the opening of a session."""
        lane = session.lane
        topics = topic_bytes(new_topics(state, lane, session.topics))
        self._count(session, lanes=int(lane not in state.lanes), topics=topics)
        self.count_origins(session, state, session.origins.values())

    def count_origins(self, session: LaneSession, state: ShardState, origins: Iterable[Origin]) -> None:
        """Count further origins of a session."""
        before = self._shares.get(session, _Share()).origins
        self._count(session, origins=before + origin_bytes(new_origins(state, session.lane, origins)))

    def waits(self, session: LaneSession) -> bool:
        """Return whether origins of a session are counted."""
        share = self._shares.get(session)
        return share is not None and share.origins > 0

    def settle(self, session: LaneSession, held: LaneState | None) -> None:
        """Subtract the parts of a session that the state has now, and those that no chunk will add any more."""
        share = self._shares.get(session)
        if share is None or held is None:
            return
        # No later chunk declares this session's topics, so they no longer count beside the state's.
        if not session.must_declare(held):
            session.topics = held.topics
        topics = 0 if session.topics == held.topics else share.topics
        origins = share.origins if share.origins and held.new_origins(session.origins.values()) else 0
        self._count(session, lanes=0, topics=topics, origins=origins)

    def over(self, session: LaneSession) -> None:
        """Subtract everything that is counted for a session."""
        self._count(session, lanes=0, topics=0, origins=0)

    def _count(
        self, session: LaneSession, *, lanes: int | None = None, topics: int | None = None, origins: int | None = None
    ) -> None:
        """Set the counts of a session; None leaves one unchanged."""
        share = self._shares.get(session, _Share())
        lane, node = session.lane, NodeName(session.lane.tenant, session.lane.edge)
        if lanes is not None and lanes != share.lanes:
            before = int(lane in self.lanes)
            _add(self.lanes, lane, lanes - share.lanes)
            more = int(lane in self.lanes) - before
            _add(self.of_tenant, lane.tenant, more)
            _add(self.of_edge, node, more)
            share.lanes = lanes
        if topics is not None and topics != share.topics:
            before = self.lane_topic_bytes(lane)
            of_lane = self._topics.setdefault(lane, {})
            of_lane[session] = share.topics = topics
            if not topics:
                del of_lane[session]
            if not of_lane:
                del self._topics[lane]
            _add(self.topic_bytes, node, self.lane_topic_bytes(lane) - before)
        if origins is not None and origins != share.origins:
            _add(self.origin_bytes, node, origins - share.origins)
            share.origins = origins
        if share != _Share():
            self._shares[session] = share
        else:
            self._shares.pop(session, None)


class GapBounds:
    """Bounds on the gaps of one lane, and of all lanes of one edge in the shard."""

    def __init__(self, settings: SequencerSettings) -> None:
        self._settings = settings
        self._of_edge: dict[NodeName, int] = {}
        self._n = -2
        """Number of the state's last chunk at the last count of edges."""

    def is_full(self, state: ShardState, lane: Lane) -> bool:
        """Return whether the lane has no room for another gap."""
        held = state.lanes.get(lane)
        # Each gap is kept in the state for as long as the lane lives, so a sender could grow it without sending a
        # record.
        if held is not None and len(held.gaps) >= self._settings.gaps_per_lane_max:
            return True
        return self._count(state, _node(lane)) >= self._settings.gaps_per_edge_max

    def _count(self, state: ShardState, node: NodeName) -> int:
        # Counted once per chunk and edge: an edge may have a thousand lanes.
        if self._n != state.n:
            self._n, self._of_edge = state.n, {}
        count = self._of_edge.get(node)
        if count is None:
            lanes = state.edge_lanes(node.tenant, node.edge).values()
            count = self._of_edge[node] = sum(len(held.gaps) for held in lanes)
        return count


class Room:
    """Room of a shard's state for the declarations of edges.

    An edge is refused only because of its own use, and a tenant because of its own, independent of others.

    Args:
        pending: declarations of sessions that the state does not have yet.
    """

    def __init__(self, settings: SequencerSettings, pending: PendingDeclarations) -> None:
        self.gaps = GapBounds(settings)
        self._settings = settings
        self._pending = pending

    def for_lane(
        self, state: ShardState, lane: Lane, topics: Sequence[str], origins: Iterable[Origin] = ()
    ) -> Full | None:
        """Return the bound that leaves no room for a lane with these topic patterns and origins; None if there is
        room."""
        return self._for_topics(state, lane, topics) or self._for_origins(state, lane, origins)

    def declare_origins(self, session: LaneSession, state: ShardState, origins: Iterable[Origin]) -> Full | None:
        """Add further origins to a session. Return the bound that leaves no room for them; None if there is room."""
        new = [origin for origin in origins if session.origins.get(origin.number) != origin]
        full = self._for_origins(state, session.lane, new)
        if full is None and new and session.registered:
            session.add_origins(new)
            kept = [origin for origin in new if session.origins.get(origin.number) == origin]
            self._pending.count_origins(session, state, kept)
        return full

    def _for_topics(self, state: ShardState, lane: Lane, topics: Sequence[str]) -> Full | None:
        node = _node(lane)
        edge, tenant = Owner(OwnerKind.EDGE, str(node)), Owner(OwnerKind.TENANT, lane.tenant)
        known = state.lanes.get(lane)
        more = topic_bytes(new_topics(state, lane, topics))
        if more:
            pending = self._pending.lane_topic_bytes(lane)
            # Sessions of one lane replace each other, so only the longest of their topics counts.
            more = state.texts.topics(node) + self._pending.topic_bytes[node] - pending + max(pending, more)
        if more > self._settings.topic_bytes_per_edge_max:
            return Full(
                f"edge {lane.edge} of tenant {lane.tenant} would have {more} bytes of topic patterns, the limit is "
                f"{self._settings.topic_bytes_per_edge_max}",
                "limits.edge_topics",
                edge,
            )
        # A lane that counts already costs nothing more. Many opened at once are charged before any chunk has them, or
        # each would find the same room.
        if known is not None or lane in self._pending.lanes:
            return None
        lanes = state.lane_count(lane.tenant, lane.edge) + self._pending.of_edge[node]
        if lanes >= self._settings.lanes_per_edge_max:
            reason = f"edge {lane.edge} of tenant {lane.tenant} has {lanes} lanes, its limit"
            return Full(reason, "limits.lanes_per_edge", edge)
        lanes = state.lane_count(lane.tenant) + self._pending.of_tenant[lane.tenant]
        if lanes >= self._settings.lanes_per_tenant_max:
            reason = f"tenant {lane.tenant} has {lanes} lanes in shard {state.shard}, its limit"
            return Full(reason, "limits.lanes_per_tenant", tenant)
        # A stream with records exists already; only a new one, and a deleted one, counts against the limit.
        if not state.has_stream(lane.tenant, lane.stream):
            streams = state.tenant_streams(lane.tenant)
            if lane.stream not in streams and len(streams) >= self._settings.streams_per_tenant_max:
                reason = f"tenant {lane.tenant} has {len(streams)} streams in shard {state.shard}, its limit"
                return Full(reason, "limits.streams_per_tenant", tenant)
        lanes = len(state.lanes) + len(self._pending.lanes)
        if lanes >= self._settings.lanes_max:
            return Full(f"shard {state.shard} has {lanes} lanes, its limit", "limits.lanes", edge)
        return None

    def _for_origins(self, state: ShardState, lane: Lane, origins: Iterable[Origin]) -> Full | None:
        size = origin_bytes(new_origins(state, lane, origins))
        if not size:
            return None
        node = _node(lane)
        size += state.texts.origins(node) + self._pending.origin_bytes[node]
        if size <= self._settings.origin_bytes_per_edge_max:
            return None
        reason = (
            f"edge {lane.edge} of tenant {lane.tenant} would have {size} bytes of origins, the limit is "
            f"{self._settings.origin_bytes_per_edge_max}"
        )
        return Full(reason, "limits.edge_origins", Owner(OwnerKind.EDGE, f"{lane.tenant}/{lane.edge}"))


def _node(lane: Lane) -> NodeName:
    return NodeName(lane.tenant, lane.edge)


def new_topics(state: ShardState, lane: Lane, topics: Sequence[str]) -> list[str]:
    """Return the topic patterns that are new to the state of a lane."""
    known = state.lanes.get(lane, NOTHING).topics
    if not topics or topics == known:
        return []
    had = {*known}
    return [topic for topic in topics if topic not in had]


def new_origins(state: ShardState, lane: Lane, origins: Iterable[Origin]) -> list[Origin]:
    """Return the origins that are new to the state of a lane."""
    declared = by_number(origins)
    known = by_number(state.lanes.get(lane, NOTHING).origins) if declared else {}
    return [origin for number, origin in declared.items() if known.get(number) != origin]


def _add(counter: Counter[Key], key: Key, more: int) -> None:
    counter[key] += more
    if not counter[key]:
        del counter[key]


LOST_LANES_MAX = 4096
"""Maximum number of lanes of a shard with losses reported by edges; the earliest is dropped first."""
RANGES_OPENED_MAX = 16_384
"""Approximate number of ranges of the lanes opened by one commit: each edge gets all of its lane's. Further lanes are
opened with the next commit."""


class _Question(NamedTuple):
    number: int
    asked: float
    began: float
    """Beginning of the commit that answers it; the time of asking before that."""
    answer: Callable[[float], None]


class Canaries:
    """Questions of links whether the shard's store takes anything, at most one of each link: the last one.

    A question is answered once a chunk is durable that this node began after it. Where nothing else is pending, that is
    an empty chunk, when marks would be due: questions add no chunk to a shard with marks.

    Args:
        wake: called when there is a new question.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._asked: dict[object, _Question] = {}
        self._begun = 0
        """Number of the last question that waits for the store."""
        self.last = 0
        """Number of the last question."""
        self.placed = 0
        """Number of the last question before this node's last chunk; the caller is about to check its watermark."""

    @property
    def wait(self) -> bool:
        """Return whether there is a question without an answer."""
        return bool(self._asked)

    def ask(self, link: object, answer: Callable[[float], None]) -> None:
        """Call ``answer`` when such a chunk is durable, with the seconds that passed until it was begun."""
        self.last += 1
        now = asyncio.get_running_loop().time()
        self._asked[link] = _Question(self.last, now, now, answer)
        self._wake()

    def forget(self, link: object) -> None:
        """Note the end of a link."""
        self._asked.pop(link, None)

    def begin_commit(self, now: float) -> None:
        """Note that the shard begins to write: questions wait for the store from here on, and no longer for others."""
        for link, question in self._asked.items():
            # The wait before the commit began is taken off: it is the hub's interval, and says nothing of its store.
            if question.number > self._begun:
                self._asked[link] = question._replace(began=now)
        self._begun = self.last

    def settle(self) -> None:
        """Answer the questions that came before the placed chunk."""
        for link, question in list(self._asked.items()):
            # Answered only after a chunk of this process is in the store, which is what the question is about.
            if question.number <= self.placed:
                del self._asked[link]
                question.answer(question.began - question.asked)
        self._begun = self.placed

    def drop(self) -> None:
        """Drop all questions: the shard writes nothing now, and links ask again."""
        self._asked.clear()


class ShardSessions:
    """Sessions of one shard and their pending items.

    Args:
        bytes_max: pending bytes above which ``room`` waits.
        ranges_per_lane_max: a session with more separate ranges than this is refused.
        wake: called when there are new items to commit.
    """

    def __init__(self, bytes_max: int, ranges_per_lane_max: int, wake: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._ranges_per_lane_max = ranges_per_lane_max
        self._wake = wake
        self._lanes: dict[Lane, list[LaneSession]] = {}
        self._active: dict[LaneSession, None] = {}
        self.canaries = Canaries(wake)
        self._room = asyncio.Event()
        self.pending_bytes = 0
        """Uncommitted bytes from links."""
        self.wake_bytes = 0
        """Pending bytes below which new items do not advance the next commit: ``wake`` is not called before."""
        self.behind: dict[Lane, int] = {}
        """For lanes of open sessions: nanoseconds by which the last mark was before an earlier one of the edge. Its
        clock was set back; the lane does not advance until the clock has passed that moment."""
        self._relayed: dict[Lane, int] = {}
        """For lanes of open sessions: time of the latest mark that came by a relay."""
        self.lost: dict[Lane, RangeSet] = {}
        """Lane -> records that this hub had acknowledged to its edge, and did not hold when the edge last connected."""
        self.declarations = PendingDeclarations()
        self.refused = 0
        """Number of refused sessions since the start."""

    def __iter__(self) -> Iterator[LaneSession]:
        """Iterate over the sessions with pending items, the longest waiting first."""
        return iter(list(self._active))

    @property
    def count(self) -> int:
        """Return the number of sessions, with and without pending items."""
        return sum(map(len, self._lanes.values()))

    @property
    def urgent(self) -> bool:
        """Return whether more than marks is pending."""
        return any(session.urgent for session in self._active)

    @property
    def trailing(self) -> bool:
        """Return whether a pending mark covers new records, or is its lane's first."""
        return any(session.trails for session in self._active)

    @property
    def pending(self) -> bool:
        """Return whether anything is pending."""
        return bool(self._active) or self.canaries.wait

    def add(self, session: LaneSession) -> None:
        """Begin a session, whose epoch has to be committed."""
        self._lanes.setdefault(session.lane, []).append(session)
        session.registered = True
        self._touch(session)

    def take(self, session: LaneSession, items: Iterable[PendingItem]) -> bool:
        """Add pending items; return whether there is room for more. Items of a refused session are dropped."""
        if not session.registered:
            return True
        before = session.bytes
        for item in items:
            session.known.add(*bounds(item))
            session.append(item)
        return self._took(session, session.bytes - before)

    def take_batches(
        self, session: LaneSession, batches: Iterable[tuple[BatchHeader, memoryview]], received: int
    ) -> bool:
        """Add pending batches as ``take`` does; ``received`` is in nanoseconds since 1970."""
        if not session.registered:
            return True
        return self._took(session, session.append_batches(batches, received))

    def _took(self, session: LaneSession, size: int) -> bool:
        self.pending_bytes = pending = self.pending_bytes + size
        # Scattered records cost the state a range each. An honest edge sends the oldest missing ones first.
        if len(session.known) > self._ranges_per_lane_max:
            message = f"lane {session.lane} would have more than {self._ranges_per_lane_max} separate ranges"
            self.refuse(session, RefuseCode.OVERLOADED, message, "send the oldest missing records first")
            return True
        self._active[session] = None
        if pending >= self.wake_bytes:  # as ``_touch``, without a call for each batch
            self._wake()
        # Batches beyond the bound are kept nevertheless: they are in memory already, and only the next read has to
        # wait.
        return pending < self._bytes_max

    async def room(self, session: LaneSession) -> None:
        """Wait until the pending bytes are below the bound, or the session is over."""
        while self.pending_bytes >= self._bytes_max and session.registered and not session.closed:
            self._room.clear()
            await self._room.wait()

    async def gap_room(self, session: LaneSession) -> None:
        """Wait until the session has fewer pending gap notices than its maximum, or is over."""
        while session.gaps_pending >= GAPS_PENDING_MAX and session.registered and not session.closed:
            self._room.clear()
            await self._room.wait()

    def mark(self, session: LaneSession, mark: Mark, held: LaneState | None) -> None:
        """Accept a mark; only the newest mark of a session is committed.

        Args:
            held: the state of the lane.
        """
        if session.registered:
            newest = None if held is None else held.newest_mark
            # A relay may say what the edge itself said before, and that is no step of the edge's clock.
            if session.is_relay:
                self._relayed[session.lane] = max(mark.time, self._relayed.get(session.lane, mark.time))
            elif self.behind or session.said > mark.time or (newest is not None and newest.time > mark.time):
                self._compare(session, mark, newest)
            session.said = max(mark.time, session.said)
            session.mark = mark
            session.trails = newest is None or mark.seq > newest.seq
            if not session.items:  # nothing advances a commit that waits for records
                self._touch(session)

    def clock(self, session: LaneSession, clock: ClockUpdate) -> None:
        """Accept a clock notice, for all sessions of the link with lanes of its log."""
        if session.registered:
            session.clocks.add(clock)
            self._touch(session)

    def _compare(self, session: LaneSession, mark: Mark, newest: Mark | None) -> None:
        """Note whether the edge's clock has been set back before its earlier mark."""
        said = max(mark.time, session.said)
        # What another region relayed may be later than what the edge's own link, which was slow or cut, brings now.
        if newest is not None and newest.time > max(said, self._relayed.get(session.lane, said)):
            said = newest.time
        # The state keeps the later mark, so the lane does not advance until the clock has passed it.
        if said > mark.time:
            self.behind[session.lane] = said - mark.time
        elif self.behind:
            self.behind.pop(session.lane, None)

    def note_lost(self, lane: Lane, lost: RangeSet) -> None:
        """Note the losses of a lane that a newly connected edge reports; ``lost_of`` excludes records that come
        back."""
        self.lost.pop(lane, None)
        if lost:
            self.lost[lane] = lost
            while len(self.lost) > LOST_LANES_MAX:
                del self.lost[next(iter(self.lost))]

    def lost_of(self, lane: Lane, held: LaneState) -> LostRecords | None:
        """Return the lost records of a lane that are still missing in the state; None without any."""
        lost = self.lost.get(lane)
        if lost is None:
            return None
        records = held.records
        missing = [part for run in lost for part in records.missing(*run)]
        if not missing:
            del self.lost[lane]
            return None
        return LostRecords(sum(end - first for first, end in missing), missing[0][0], missing[-1][1])

    def leave(self, session: LaneSession) -> None:
        """Note the end of the link. Its items are still committed, unless a new session opens first."""
        session.closed = True
        session.opened.cancel()
        # An ordinary mark is dropped with the link: the edge sends it again. A last word is not sent again.
        # Items that were taken stay pending after the link is gone: they are in memory, and the edge will not have to
        # send them again.
        if not session.items and not (session.sends_last_word and session.mark is not None):
            self._forget(session)

    def fence(self, state: ShardState, lanes: Iterable[Lane]) -> None:
        """Refuse the sessions that lost their lane: a higher epoch came, or another session has the same one."""
        for lane in lanes:
            held = state.lanes.get(lane)
            if held is not None:
                self.fence_by(lane, held)

    def fence_pending(self, state: ShardState) -> None:
        """Refuse the sessions that lost their lane and have pending items."""
        lanes = state.lanes
        for session in self:
            claim, held = session.claim, lanes.get(session.lane)
            # A granted claim is late only when the epoch is a higher one, which is compared first: each commit asks.
            if held is not None and (held.epoch != claim.epoch or not claim.granted) and session.is_late(held):
                self.fence_by(session.lane, held)

    def fence_all(self, state: ShardState) -> None:
        """Refuse the sessions that lost their lane, by a state that was loaded, not folded."""
        self.fence(state, list(self._lanes))

    def fence_by(self, lane: Lane, held: LaneState) -> None:
        """Refuse the sessions of a lane that lost it, by its state."""
        for session in list(self._lanes.get(lane, ())):
            if session.is_late(held):
                self._refuse_fenced(session, held)

    def end(self, lane: Lane) -> None:
        """End the sessions of a lane about which an operator has decided. Edges connect again with epochs of their
        own."""
        for session in list(self._lanes.get(lane, ())):
            if not session.is_relay:
                session.claim.granted, session.claim.is_over = False, True
                message = f"an operator has decided which node lane {lane} belongs to"
                self.refuse(session, RefuseCode.OVERLOADED, message, "nothing: the edge connects again by itself")

    def refuse_moved(self, state: ShardState, lanes: Iterable[Lane] | None = None) -> None:
        """End the sessions of edges that splits have moved to other shards, and of tenants that are set apart. What was
        not committed here is sent again there: the new shard has what this one had.

        Args:
            lanes: only these; None for all.
        """
        for lane in list(self._lanes if lanes is None else lanes) if state.splits or state.apart else ():
            shard = None if lane in state.lanes else moved_to(state.splits, lane.tenant, lane.edge)
            message = f"edge {lane.edge} moved from shard {state.shard} to shard {shard}"
            if lane.tenant in state.apart:
                message = (
                    f"tenant {lane.tenant} is set apart: it gets a shard of its own, and leaves shard {state.shard}"
                )
            elif shard is None:
                continue
            for session in list(self._lanes.get(lane, ())):
                # The edge keeps its epoch: it is the shard that changed, and another connection of the same node is no
                # conflict.
                session.claim.is_over = True
                self.refuse(session, RefuseCode.OVERLOADED, message, "nothing: the edge connects again by itself")

    def _refuse_fenced(self, session: LaneSession, held: LaneState) -> None:
        lane = session.lane
        message, advice = taken_before(
            f"edge {lane.edge}, log {format_log_id(lane.log_id)}",
            lane.stream,
            held=(held.epoch, held.records.end),
            claimed=(session.epoch, session.claim.compared_end),
        )
        self.refuse(session, RefuseCode.IDENTITY_CONFLICT, message, advice)

    def settle(self, state: ShardState) -> None:
        """Answer every session from the state: its opening, and the commits of its items."""
        lanes, active, room = state.lanes, self._active, RANGES_OPENED_MAX
        for session in self:
            held = lanes.get(session.lane)
            freed = session.settle(held)
            if self.declarations.is_any:
                self.declarations.settle(session, held)
            if session.clocks.by_boot:
                session.clocks.settle(state)
            self.pending_bytes -= freed
            del active[session]
            if session.opened.done():
                if freed and held is not None and not session.closed:
                    session.acknowledge(session.acknowledged(held))
                if not (session.items or session.mark or session.closed or session.clocks.by_boot):
                    continue  # nearly always: the chunk had all that waited
            elif session.granted and room > 0:  # a relay may open a lane that is in no chunk yet
                room -= len(held.ranges) if held is not None else 0
                session.known = held.ranges.copy() if held is not None else session.known
                session.opened.set_result(held.records if held is not None else RangeSet())
            if session.pending:
                active[session] = None  # after those that have not had their turn
            elif session.closed:
                self._forget(session)
        self._room.set()
        self.canaries.settle()

    def refuse(self, session: LaneSession, code: RefuseCode, message: str, advice: str) -> None:
        """End a session and drop its pending items."""
        self._forget(session)
        self.refused += 1
        if session.opening:
            session.opened.set_exception(SessionRefused(code, message, advice))
        elif not session.closed:
            session.refuse(code, message, advice)
        session.closed = True

    def refuse_gaps(self, session: LaneSession, held: LaneState) -> None:
        """End a session whose lane or edge would have too many gaps."""
        message = f"lane {session.lane} has {len(held.gaps)} gaps: it, or its edge, has reached the hub's limit"
        self.refuse(session, RefuseCode.OVERLOADED, message, "raise the hub's limit, or give the edge a new log")

    def send_away(self, shard: int, reason: str) -> None:
        """Close every lane, so that edges go to another node: its way to the store may work. What was taken over stays
        pending: it is committed when the store works again, unless another node has it by then."""
        code, message = RefuseCode.UNAVAILABLE, f"shard {shard} of this hub node has trouble with its store: {reason}"
        advice = "nothing is lost, and the edge tries the hub's other nodes; this node's log has details"
        for session in [session for lane in list(self._lanes.values()) for session in lane if not session.closed]:
            # Without items, nothing is left to commit, so the session can go.
            if session.opening or not session.items:
                self.refuse(session, code, message, advice)
            else:
                session.closed = True
                session.refuse(code, message, advice)
        self._room.set()

    def refuse_all(self, code: RefuseCode, message: str, advice: str, *, opening_only: bool = False) -> None:
        """End every session, or every one that is not open yet."""
        self.canaries.placed = 0  # the state is dropped, or about to be
        if not opening_only:
            self.canaries.drop()
        for session in [session for lane in list(self._lanes.values()) for session in lane]:
            if session.opening or not opening_only:
                self.refuse(session, code, message, advice)

    def _touch(self, session: LaneSession) -> None:
        self._active[session] = None
        # While a commit's time is known, only enough bytes for a full chunk wake the committer.
        if self.pending_bytes >= self.wake_bytes:
            self._wake()

    def _forget(self, session: LaneSession) -> None:
        if not session.registered:
            return
        session.registered = False
        self.declarations.over(session)
        self._lanes[session.lane].remove(session)
        if not self._lanes[session.lane]:
            del self._lanes[session.lane]
            self.behind.pop(session.lane, None)
            self._relayed.pop(session.lane, None)
        self._active.pop(session, None)
        self.pending_bytes -= session.drop_items()
        self._room.set()
