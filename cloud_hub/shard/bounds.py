"""Bounds on the parts of one edge and one tenant in a shard's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols.lane import Lane, NodeName
from weft.protocols.origin import Origin, by_number
from weft.protocols.shard.edge_texts import origin_bytes, topic_bytes
from weft.protocols.shard.lane_state import NOTHING, LaneState
from weft.protocols.shard.shard_state import ShardState

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


class Told:
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

    def lane_topic_bytes(self, lane: Lane) -> int:
        """Return the counted bytes of topics for a lane."""
        return max(self._topics.get(lane, {}).values(), default=0)

    def begins(self, session: LaneSession, state: ShardState) -> None:
        """Count the opening of a session."""
        lane = session.lane
        topics = topic_bytes(new_topics(state, lane, session.topics))
        self._count(session, lanes=int(lane not in state.lanes), topics=topics)
        self.tells(session, state, session.origins.values())

    def tells(self, session: LaneSession, state: ShardState, origins: Iterable[Origin]) -> None:
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
        if not session.tells(held):
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
        told: declarations of sessions that the state does not have yet.
    """

    def __init__(self, settings: SequencerSettings, told: Told) -> None:
        self.gaps = GapBounds(settings)
        self._settings = settings
        self._told = told

    def for_lane(
        self, state: ShardState, lane: Lane, topics: Sequence[str], origins: Iterable[Origin] = ()
    ) -> Full | None:
        """Return the bound that leaves no room for a lane with these topic patterns and origins; None if there is
        room."""
        return self._for_topics(state, lane, topics) or self._for_origins(state, lane, origins)

    def tell_origins(self, session: LaneSession, state: ShardState, origins: Iterable[Origin]) -> Full | None:
        """Add further origins to a session. Return the bound that leaves no room for them; None if there is room."""
        new = [origin for origin in origins if session.origins.get(origin.number) != origin]
        full = self._for_origins(state, session.lane, new)
        if full is None and new and session.registered:
            session.add_origins(new)
            kept = [origin for origin in new if session.origins.get(origin.number) == origin]
            self._told.tells(session, state, kept)
        return full

    def _for_topics(self, state: ShardState, lane: Lane, topics: Sequence[str]) -> Full | None:
        node = _node(lane)
        edge, tenant = Owner(OwnerKind.EDGE, str(node)), Owner(OwnerKind.TENANT, lane.tenant)
        known = state.lanes.get(lane)
        more = topic_bytes(new_topics(state, lane, topics))
        if more:
            told = self._told.lane_topic_bytes(lane)
            # Sessions of one lane replace each other, so only the longest of their topics counts.
            more = state.texts.topics(node) + self._told.topic_bytes[node] - told + max(told, more)
        if more > self._settings.topic_bytes_per_edge_max:
            return Full(
                f"edge {lane.edge} of tenant {lane.tenant} would have {more} bytes of topic patterns, the limit is "
                f"{self._settings.topic_bytes_per_edge_max}", "limits.edge_topics", edge,
            )  # fmt: skip
        if known is not None or lane in self._told.lanes:
            return None
        lanes = state.lane_count(lane.tenant, lane.edge) + self._told.of_edge[node]
        if lanes >= self._settings.lanes_per_edge_max:
            reason = f"edge {lane.edge} of tenant {lane.tenant} has {lanes} lanes, its limit"
            return Full(reason, "limits.lanes_per_edge", edge)
        lanes = state.lane_count(lane.tenant) + self._told.of_tenant[lane.tenant]
        if lanes >= self._settings.lanes_per_tenant_max:
            reason = f"tenant {lane.tenant} has {lanes} lanes in shard {state.shard}, its limit"
            return Full(reason, "limits.lanes_per_tenant", tenant)
        # A stream with records exists already; only a new one, and a deleted one, counts against the limit.
        if not state.has_stream(lane.tenant, lane.stream):
            streams = state.tenant_streams(lane.tenant)
            if lane.stream not in streams and len(streams) >= self._settings.streams_per_tenant_max:
                reason = f"tenant {lane.tenant} has {len(streams)} streams in shard {state.shard}, its limit"
                return Full(reason, "limits.streams_per_tenant", tenant)
        lanes = len(state.lanes) + len(self._told.lanes)
        if lanes >= self._settings.lanes_max:
            return Full(f"shard {state.shard} has {lanes} lanes, its limit", "limits.lanes", edge)
        return None

    def _for_origins(self, state: ShardState, lane: Lane, origins: Iterable[Origin]) -> Full | None:
        size = origin_bytes(new_origins(state, lane, origins))
        if not size:
            return None
        node = _node(lane)
        size += state.texts.origins(node) + self._told.origin_bytes[node]
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
    told = by_number(origins)
    known = by_number(state.lanes.get(lane, NOTHING).origins) if told else {}
    return [origin for number, origin in told.items() if known.get(number) != origin]


def _add(counter: Counter[Key], key: Key, more: int) -> None:
    counter[key] += more
    if not counter[key]:
        del counter[key]
