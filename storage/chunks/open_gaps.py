"""Open gaps in reports for people and programs."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from weft.protocols.lane import Lane, format_log_id
from weft.protocols.shard.open_gaps import OpenGap, open_gap
from weft.protocols.shard.shard_state import ShardState


class NamedOpenGap(msgspec.Struct, frozen=True):
    """A loss without a number, of a lane that ended without a last word."""

    edge: str
    log_id: str
    first: int
    """Sequence number from which on records may be missing."""
    since: str | None
    """RFC 3339, UTC: none of them was received before. None if unknown."""
    until: str
    """Moment of the lane's retirement."""
    why: str

    @property
    def sentence(self) -> str:
        """Return the gap as one sentence."""
        return f"{self.edge}/{self.log_id}, from {self.since or 'the beginning'} to {self.until}: {self.why}"


def named(gap: OpenGap) -> NamedOpenGap:
    """Return an open gap for a report."""
    since = None if gap.since is None else shown(gap.since)
    return NamedOpenGap(gap.edge, format_log_id(gap.log_id), gap.first, since, shown(gap.until), gap.why)


def open_gaps_of(state: ShardState, tenant: str, stream: str) -> list[NamedOpenGap]:
    """Return the open gaps of a stream in a shard, including those of lanes that have left."""
    lanes = (lane for lane in state.retired if (lane.tenant, lane.stream) == (tenant, stream))
    there = [gap for lane in lanes if (gap := open_gap(lane, state.lanes[lane])) is not None]
    return [named(gap) for gap in (*state.open_gaps.get((tenant, stream), ()), *there)]


def open_gap_of(state: ShardState, lane: Lane) -> NamedOpenGap | None:
    """Return the open gap of a lane, also of one that has left the state; None if it has none."""
    log_id = format_log_id(lane.log_id)
    gaps = open_gaps_of(state, lane.tenant, lane.stream)
    return next((gap for gap in gaps if (gap.edge, gap.log_id) == (lane.edge, log_id)), None)


def shown(time: int) -> str:
    """Return a moment, ns since 1970, in whole seconds for people."""
    try:
        return datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a clock outside the calendar
        return str(time)
