"""Summaries of streams for their list: counted in slices, so that any number of lanes never blocks the event loop.

Ten thousand edges with twenty streams are 200,000 lanes, and a walk over them takes a good part of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind, strictest
from weft.protocols.shard.completeness import (
    Behind,
    HeldBack,
    LostOf,
    has_spoken,
    held_back,
    is_heard,
    late,
    moment_of,
    never_came,
)
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.open_gaps import renamed
from weft.protocols.shard.shard_state import ShardState

SLICE_LANES = 2_000
"""Number of lanes walked without a pause: some milliseconds."""
REASONS_MAX = 3
"""Maximum number of reasons in a summary."""


class StreamSummary(NamedTuple):
    """Facts about the lanes of a stream, over all shards."""

    lanes: int
    edges: int
    payload: PayloadKind
    """The payload kind that a new table of the stream would get: the strictest kind that an edge declares."""
    complete_up_to: int | None
    """Nanoseconds since 1970; None while the hub has heard nothing from a lane that counts, or from an expected
    edge."""
    held_back_by: list[HeldBack] = []
    """The edges that the moment waits for: expected ones that never came, and that of the lane with the earliest
    moment, or without one; at most ``REASONS_MAX``."""


def renamed_lanes(states: Sequence[ShardState], tenant: str, stream: str, *, peers: bool) -> set[Lane]:
    """Return the lanes of a stream that ended by a rename. The two names of a log may be in different shards."""
    logs = {lane.log_id for state in states for lane in state.stopped_lanes(tenant, stream)}
    if not logs:  # nearly always
        return set()
    return renamed({
        lane: state.lanes[lane]
        for state in states
        for lane in state.stream_lane_names(tenant, stream)
        if lane.log_id in logs
    }, peers=peers)  # fmt: skip


async def summarise(
    states: Sequence[ShardState],
    tenant: str,
    stream: str,
    expected: Iterable[str] = (),
    now: int = 0,
    *,
    peers: bool = False,
    behind: Behind = lambda _: None,
    lost: LostOf = lambda *_: None,
) -> StreamSummary:
    """Return the summary of a stream. Chunks may be applied meanwhile: moments only advance, so an older one claims
    nothing false.

    Args:
        states: of all shards.
        expected: names and patterns of edges; without all of them there is no moment.
        now: nanoseconds since 1970 by the hub's clock.
        peers: whether another cluster may have records that this one lacks.
        behind, lost: of lanes whose edges are linked to this node (``completeness``).
    """
    lanes = 0
    edges: set[str] = set()
    heard: set[str] = set()
    kinds: set[int] = set()
    earliest: int | None = None
    slowest: tuple[Lane, LaneState] | None = None
    unknown: tuple[Lane, LaneState] | None = None
    any_counts = False
    ended = renamed_lanes(states, tenant, stream, peers=peers)
    for state in states:
        names = state.stream_lane_names(tenant, stream)
        lanes += len(names)
        for start in range(0, len(names), SLICE_LANES):
            for lane in names[start : start + SLICE_LANES]:
                edges.add(lane.edge)
                held = state.lanes.get(lane)
                if held is None:  # it has left the state meanwhile
                    continue
                kinds.add(held.payload)
                if has_spoken(held):
                    heard.add(lane.edge)
                if held.counts and lane not in ended:
                    any_counts = True
                    moment = moment_of(held, peers=peers)
                    if moment is None:
                        unknown = unknown or (lane, held)
                    elif earliest is None or moment < earliest:
                        earliest, slowest = moment, (lane, held)
            await asyncio.sleep(0)
    reasons = [never_came(each) for each in dict.fromkeys(expected) if not is_heard(each, heard)]
    is_whole = any_counts and unknown is None and not reasons
    waits_for = unknown or slowest
    if waits_for is not None:
        why = held_back(*waits_for, now, peers=peers, behind=behind, lost=lost) or late(*waits_for, now, peers=peers)
        reasons = [*reasons[: REASONS_MAX - 1], *([why] if why else [])]
    return StreamSummary(lanes, len(edges), strictest(kinds), earliest if is_whole else None, reasons[:REASONS_MAX])
