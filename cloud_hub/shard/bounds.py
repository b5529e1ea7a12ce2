"""Bounds on what one edge and one tenant put into a shard's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.bounds import Owner, OwnerKind
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols.lane import Lane, NodeName
from weft.protocols.origin import Origin
from weft.protocols.shard.shard_state import ShardState

ORIGIN_BYTES = 64
"""Bytes that an origin is charged with, beside its texts and hash."""
ADVICE = "end lanes of edges that are gone (`weft hub retire`), or raise the hub's limit"


class Full(NamedTuple):
    """A bound of a shard's state that has no room for more."""

    reason: str
    setting: str
    owner: Owner


class OpeningLanes:
    """Lanes that sessions wait to open and that no chunk has yet: what counts against a share before the state has it.

    Without them all links that come at once find the same room.
    """

    def __init__(self) -> None:
        self.lanes: Counter[Lane] = Counter()
        self.of_tenant: Counter[str] = Counter()
        self.of_edge: Counter[NodeName] = Counter()
        self.topic_bytes: Counter[NodeName] = Counter()

    def opens(self, session: LaneSession, state: ShardState) -> None:
        """Count the lane of a session until the session is open or over."""
        if session.lane not in state.lanes and not session.is_relay:
            self.add(session.lane, session.topics)
            session.opened.add_done_callback(lambda _: self.add(session.lane, session.topics, -1))

    def add(self, lane: Lane, topics: Sequence[str], sign: int = 1) -> None:
        """Count a lane; with ``sign`` -1 no longer."""
        node = NodeName(lane.tenant, lane.edge)
        self.lanes[lane] += sign
        if not self.lanes[lane]:
            del self.lanes[lane]
        self.of_tenant[lane.tenant] += sign
        self.of_edge[node] += sign
        self.topic_bytes[node] += sign * _size(topics)
        if not self.of_edge[node]:
            del self.of_edge[node], self.topic_bytes[node]
        if not self.of_tenant[lane.tenant]:
            del self.of_tenant[lane.tenant]


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
        return self._count(state, NodeName(lane.tenant, lane.edge)) >= self._settings.gaps_per_edge_max

    def _count(self, state: ShardState, node: NodeName) -> int:
        if self._n != state.n:
            self._n, self._of_edge = state.n, {}
        count = self._of_edge.get(node)
        if count is None:
            lanes = state.edge_lanes(node.tenant, node.edge).values()
            count = self._of_edge[node] = sum(len(held.gaps) for held in lanes)
        return count


def no_room(
    state: ShardState, opening: OpeningLanes, settings: SequencerSettings, lane: Lane, topics: Sequence[str]
) -> Full | None:
    """Return why the state has no room for a lane with these topic patterns; None when it has.

    One edge is refused for what it has itself, and one tenant for what it has, whatever others have.
    """
    node = NodeName(lane.tenant, lane.edge)
    edge, tenant = Owner(OwnerKind.EDGE, str(node)), Owner(OwnerKind.TENANT, lane.tenant)
    known = state.lanes.get(lane)
    more = _size([topic for topic in topics if known is None or topic not in known.topics])
    if more:
        held = state.edge_lanes(lane.tenant, lane.edge)
        more += sum(_size(other.topics) for other in held.values()) + opening.topic_bytes[node]
    if more > settings.topic_bytes_per_edge_max:
        return Full(
            f"edge {lane.edge} of tenant {lane.tenant} would have {more} bytes of topic patterns, the limit is "
            f"{settings.topic_bytes_per_edge_max}", "limits.edge_topics", edge,
        )  # fmt: skip
    if known is not None or lane in opening.lanes:
        return None
    lanes = state.lane_count(lane.tenant, lane.edge) + opening.of_edge[node]
    if lanes >= settings.lanes_per_edge_max:
        reason = f"edge {lane.edge} of tenant {lane.tenant} has {lanes} lanes, its limit"
        return Full(reason, "limits.lanes_per_edge", edge)
    lanes = state.lane_count(lane.tenant) + opening.of_tenant[lane.tenant]
    if lanes >= settings.lanes_per_tenant_max:
        reason = f"tenant {lane.tenant} has {lanes} lanes in shard {state.shard}, its limit"
        return Full(reason, "limits.lanes_per_tenant", tenant)
    if (lane.tenant, lane.stream) not in state.next_offset:
        streams = state.tenant_streams(lane.tenant)
        if lane.stream not in streams and len(streams) >= settings.streams_per_tenant_max:
            reason = f"tenant {lane.tenant} has {len(streams)} streams in shard {state.shard}, its limit"
            return Full(reason, "limits.streams_per_tenant", tenant)
    lanes = len(state.lanes) + len(opening.lanes)
    if lanes >= settings.lanes_max:
        return Full(f"shard {state.shard} has {lanes} lanes, its limit", "limits.lanes", edge)
    return None


def no_room_for_origins(
    state: ShardState, settings: SequencerSettings, lane: Lane, origins: Iterable[Origin]
) -> Full | None:
    """Return why the state has no room for further origins of a lane's batches; None when it has."""
    held = state.edge_lanes(lane.tenant, lane.edge)
    known = held[lane].origins if lane in held else []
    new = [origin for origin in origins if origin not in known]
    if not new:
        return None
    size = sum(map(_origin_bytes, new)) + sum(_origin_bytes(each) for other in held.values() for each in other.origins)
    if size <= settings.origin_bytes_per_edge_max:
        return None
    reason = (
        f"edge {lane.edge} of tenant {lane.tenant} would have {size} bytes of origins, the limit is "
        f"{settings.origin_bytes_per_edge_max}"
    )
    return Full(reason, "limits.edge_origins", Owner(OwnerKind.EDGE, f"{lane.tenant}/{lane.edge}"))


def _size(topics: Iterable[str]) -> int:
    return sum(len(topic.encode()) for topic in topics)


def _origin_bytes(origin: Origin) -> int:
    return ORIGIN_BYTES + len(origin.name.encode()) + len(origin.version.encode()) + len(origin.hash)
