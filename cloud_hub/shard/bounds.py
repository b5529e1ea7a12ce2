"""Bounds on what one edge and one tenant put into a shard's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols.lane import Lane, NodeName
from weft.protocols.origin import Origin, by_number
from weft.protocols.shard.edge_texts import origin_bytes, topic_bytes
from weft.protocols.shard.lane_state import NOTHING, LaneState
from weft.protocols.shard.shard_state import ShardState

ADVICE = "end lanes of edges that are gone (`weft hub retire`), or raise the hub's limit"


class Full(NamedTuple):
    """A bound of a shard's state that has no room for more."""

    reason: str
    setting: str
    owner: Owner


class OpeningLanes:
    """Lanes and topic patterns that sessions wait to open with and that no chunk has yet: what counts against a share
    before the state has it.

    Without them all links that come at once find the same room.
    """

    def __init__(self) -> None:
        self.lanes: Counter[Lane] = Counter()
        """New lanes."""
        self.of_tenant: Counter[str] = Counter()
        self.of_edge: Counter[NodeName] = Counter()
        self.topic_bytes: Counter[NodeName] = Counter()
        self._counted: dict[LaneSession, list[tuple[Counter[Any], Any, int]]] = {}

    def opens(self, session: LaneSession, state: ShardState) -> None:
        """Count what is new of a session until the state has it, or the session is over."""
        lane, node = session.lane, _node(session.lane)
        counted: list[tuple[Counter[Any], Any, int]] = []
        if lane not in state.lanes and not session.is_relay:
            counted += [(self.lanes, lane, 1), (self.of_tenant, lane.tenant, 1), (self.of_edge, node, 1)]
        if size := topic_bytes(new_topics(state, lane, session.topics)):
            counted.append((self.topic_bytes, node, size))
        if counted:
            self._counted[session] = counted
            for counter, key, size in counted:
                counter[key] += size
            session.opened.add_done_callback(lambda _: self.over(session))

    def over(self, session: LaneSession) -> None:
        """Take away what a session counts."""
        for counter, key, size in self._counted.pop(session, ()):
            counter[key] -= size
            if not counter[key]:
                del counter[key]


class WaitingOrigins:
    """Origins that sessions tell and that no chunk has yet: they count beside those that the state has."""

    def __init__(self) -> None:
        self.of_edge: Counter[NodeName] = Counter()
        """Bytes."""

    def tells(self, session: LaneSession, state: ShardState, origins: Iterable[Origin]) -> None:
        """Count what the state does not have of a session's origins, until it has, or the session is over."""
        self._count(session, origin_bytes(_unknown(state, session.lane, origins)))

    def settle(self, session: LaneSession, held: LaneState | None) -> None:
        """Take away what the state has of a session's origins."""
        if session.origins_waiting and held is not None and not held.new_origins(session.origins):
            self.over(session)

    def over(self, session: LaneSession) -> None:
        """Take away what a session still counts."""
        if session.origins_waiting:
            self._count(session, -session.origins_waiting)

    def _count(self, session: LaneSession, more: int) -> None:
        node = _node(session.lane)
        session.origins_waiting += more
        self.of_edge[node] += more
        if not self.of_edge[node]:
            del self.of_edge[node]


class GapBounds:
    """Bounds on the gaps of one lane, and of all lanes of one edge in the shard."""

    def __init__(self, settings: SequencerSettings) -> None:
        self._settings = settings
        self._of_edge: dict[NodeName, int] = {}
        self._n = -2
        """Number of the state's last chunk when edges were counted."""

    def is_full(self, state: ShardState, lane: Lane) -> bool:
        """Return whether the lane takes no gap more."""
        held = state.lanes.get(lane)
        if held is not None and len(held.gaps) >= self._settings.gaps_per_lane_max:
            return True
        return self._count(state, _node(lane)) >= self._settings.gaps_per_edge_max

    def _count(self, state: ShardState, node: NodeName) -> int:
        if self._n != state.n:
            self._n, self._of_edge = state.n, {}
        count = self._of_edge.get(node)
        if count is None:
            lanes = state.edge_lanes(node.tenant, node.edge).values()
            count = self._of_edge[node] = sum(len(held.gaps) for held in lanes)
        return count


class Room:
    """Room of a shard's state for what edges tell.

    One edge is refused for what it has itself, and one tenant for what it has, whatever others have.

    Args:
        waiting: origins that sessions have told, and no chunk has yet.
    """

    def __init__(self, settings: SequencerSettings, waiting: WaitingOrigins) -> None:
        self.gaps = GapBounds(settings)
        self._settings = settings
        self._opening = OpeningLanes()
        self._waiting = waiting

    def for_lane(
        self, state: ShardState, lane: Lane, topics: Sequence[str], origins: Iterable[Origin] = ()
    ) -> Full | None:
        """Return why the state has no room for a lane with these topic patterns and origins; None when it has."""
        return self._for_topics(state, lane, topics) or self._for_origins(state, lane, origins)

    def opens(self, session: LaneSession, state: ShardState) -> None:
        """Count what a session begins with."""
        self._opening.opens(session, state)
        self._waiting.tells(session, state, session.origins)

    def opened(self, session: LaneSession, state: ShardState) -> None:
        """Note that the state has what a session began with: it counts once, also before the session hears of it."""
        self._opening.over(session)
        self._waiting.settle(session, state.lanes.get(session.lane))

    def tell_origins(self, session: LaneSession, state: ShardState, origins: Iterable[Origin]) -> Full | None:
        """Give further origins to a session. Return why the state has no room for them; None when it has."""
        told = by_number(session.origins)
        new = [origin for origin in origins if told.get(origin.number) != origin]
        full = self._for_origins(state, session.lane, new)
        if full is None and new and session.registered:
            session.add_origins(new)
            self._waiting.tells(session, state, new)
        return full

    def _for_topics(self, state: ShardState, lane: Lane, topics: Sequence[str]) -> Full | None:
        node = _node(lane)
        edge, tenant = Owner(OwnerKind.EDGE, str(node)), Owner(OwnerKind.TENANT, lane.tenant)
        known = state.lanes.get(lane)
        more = topic_bytes(new_topics(state, lane, topics))
        if more:
            more += state.texts.topics(node) + self._opening.topic_bytes[node]
        if more > self._settings.topic_bytes_per_edge_max:
            return Full(
                f"edge {lane.edge} of tenant {lane.tenant} would have {more} bytes of topic patterns, the limit is "
                f"{self._settings.topic_bytes_per_edge_max}", "limits.edge_topics", edge,
            )  # fmt: skip
        if known is not None or lane in self._opening.lanes:
            return None
        lanes = state.lane_count(lane.tenant, lane.edge) + self._opening.of_edge[node]
        if lanes >= self._settings.lanes_per_edge_max:
            reason = f"edge {lane.edge} of tenant {lane.tenant} has {lanes} lanes, its limit"
            return Full(reason, "limits.lanes_per_edge", edge)
        lanes = state.lane_count(lane.tenant) + self._opening.of_tenant[lane.tenant]
        if lanes >= self._settings.lanes_per_tenant_max:
            reason = f"tenant {lane.tenant} has {lanes} lanes in shard {state.shard}, its limit"
            return Full(reason, "limits.lanes_per_tenant", tenant)
        if (lane.tenant, lane.stream) not in state.next_offset:
            streams = state.tenant_streams(lane.tenant)
            if lane.stream not in streams and len(streams) >= self._settings.streams_per_tenant_max:
                reason = f"tenant {lane.tenant} has {len(streams)} streams in shard {state.shard}, its limit"
                return Full(reason, "limits.streams_per_tenant", tenant)
        lanes = len(state.lanes) + len(self._opening.lanes)
        if lanes >= self._settings.lanes_max:
            return Full(f"shard {state.shard} has {lanes} lanes, its limit", "limits.lanes", edge)
        return None

    def _for_origins(self, state: ShardState, lane: Lane, origins: Iterable[Origin]) -> Full | None:
        size = origin_bytes(_unknown(state, lane, origins))
        if not size:
            return None
        node = _node(lane)
        size += state.texts.origins(node) + self._waiting.of_edge[node]
        if size <= self._settings.origin_bytes_per_edge_max:
            return None
        reason = (
            f"edge {lane.edge} of tenant {lane.tenant} would have {size} bytes of origins, the limit is "
            f"{self._settings.origin_bytes_per_edge_max}"
        )
        return Full(reason, "limits.edge_origins", Owner(OwnerKind.EDGE, f"{lane.tenant}/{lane.edge}"))


def new_topics(state: ShardState, lane: Lane, topics: Sequence[str]) -> list[str]:
    """Return the topic patterns that the state does not have of a lane."""
    known = state.lanes.get(lane, NOTHING).topics
    if not topics or topics == known:
        return []
    had = {*known}
    return [topic for topic in topics if topic not in had]


def _node(lane: Lane) -> NodeName:
    return NodeName(lane.tenant, lane.edge)


def _unknown(state: ShardState, lane: Lane, origins: Iterable[Origin]) -> list[Origin]:
    """Return the origins that the state does not have."""
    told = by_number(origins)
    known = by_number(state.lanes.get(lane, NOTHING).origins) if told else {}
    return [origin for number, origin in told.items() if known.get(number) != origin]
