"""Bounds on what one edge and one tenant put into a shard's state."""

from __future__ import annotations

from weft.cloud_hub.settings import SequencerSettings
from weft.protocols.lane import Lane
from weft.protocols.shard_state import ShardState


def no_room(state: ShardState, settings: SequencerSettings, lane: Lane, topics: list[str]) -> str | None:
    """Return why the state has no room for a lane with these topic patterns; None when it has."""
    edge = state.edge_lanes(lane.tenant, lane.edge)
    named = sum(len(topic.encode()) for held in edge.values() for topic in held.topics)
    known = state.lanes.get(lane)
    more = sum(len(topic.encode()) for topic in topics if known is None or topic not in known.topics)
    if more and named + more > settings.topic_bytes_per_edge_max:
        return (
            f"edge {lane.edge} of tenant {lane.tenant} would have {named + more} bytes of topic patterns, "
            f"the limit is {settings.topic_bytes_per_edge_max}"
        )
    if known is not None:
        return None
    if len(edge) >= settings.lanes_per_edge_max:
        return f"edge {lane.edge} of tenant {lane.tenant} has {len(edge)} lanes, its limit"
    if state.tenant_lanes(lane.tenant) >= settings.lanes_per_tenant_max:
        return f"tenant {lane.tenant} has {state.tenant_lanes(lane.tenant)} lanes in shard {state.shard}, its limit"
    if (lane.tenant, lane.stream) not in state.next_offset:
        streams = state.tenant_streams(lane.tenant)
        if lane.stream not in streams and len(streams) >= settings.streams_per_tenant_max:
            return f"tenant {lane.tenant} has {len(streams)} streams in shard {state.shard}, its limit"
    if len(state.lanes) >= settings.lanes_max:
        return f"shard {state.shard} has {len(state.lanes)} lanes, its limit"
    return None
