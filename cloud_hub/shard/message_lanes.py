"""The hub's own lanes (``cloud_hub.down``), as a shard's state has them: messages to edges, and administrative acts."""

from __future__ import annotations

from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState

DOWN_STREAM = "weft-down"
"""Stream of the lanes. Edges cannot send it: names with this prefix are Weft's own."""
AUDIT_TENANT = AUDIT_STREAM = "weft-audit"
"""The stream of administrative acts, in a tenant of its own: acts name tokens and tenants of all."""
AUDIT_EDGE = "weft-hub"
"""Name in the place of an edge in the lane of acts."""
SPARED_NS_MAX = 8 * 86_400 * 10**9
"""Longest time that chunks are kept for messages that wait: a day longer than the longest expiry."""


def is_hubs_own(tenant: str, stream: str) -> bool:
    """Return whether only hub processes write lanes of a stream."""
    return stream == DOWN_STREAM or (tenant, stream) == (AUDIT_TENANT, AUDIT_STREAM)


def waits_from(held: LaneState | None) -> tuple[int, int] | None:
    """Return time and number from which a lane has messages without an outcome; None if it has none."""
    if held is None or not held.ranges:
        return None
    mark = held.whole_mark
    time, seq = (0, 0) if mark is None else (mark.time, mark.seq)
    return (time, seq) if seq < held.ranges.end else None


def waiting_lanes(state: ShardState) -> dict[Lane, tuple[int, int]]:
    """Return the lanes with messages that wait, each as ``waits_from``."""
    found = {}
    for lane, held in state.lanes.items():
        if lane.stream == DOWN_STREAM and (since := waits_from(held)) is not None:
            found[lane] = since
    return found


def spared_from(state: ShardState, now: int) -> int:
    """Return the moment from which chunks are kept because messages in them wait: at most ``SPARED_NS_MAX`` ago, and
    ``now`` if none waits."""
    times = [time for time, _ in waiting_lanes(state).values()]
    return max(min(times, default=now), now - SPARED_NS_MAX)
