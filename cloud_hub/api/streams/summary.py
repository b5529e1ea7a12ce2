"""Summaries of streams for their list: counted in slices, so that any number of lanes never blocks the event loop.

Ten thousand edges with twenty streams are 200,000 lanes, and a walk over them takes a good part of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind, strictest
from weft.protocols.shard.completeness import has_spoken, is_heard, moment_of
from weft.protocols.shard.open_gaps import renamed
from weft.protocols.shard.shard_state import ShardState

SLICE_LANES = 2_000
"""Number of lanes walked without a pause: some milliseconds."""


class StreamSummary(NamedTuple):
    """Facts about the lanes of a stream, over all shards."""

    lanes: int
    edges: int
    payload: PayloadKind
    """The payload kind that a new table of the stream would get: the strictest kind that an edge declares."""
    complete_up_to: int | None
    """Nanoseconds since 1970; None while the hub has heard nothing from a lane that counts, or from an expected
    edge."""


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
    states: Sequence[ShardState], tenant: str, stream: str, expected: Iterable[str] = (), *, peers: bool = False
) -> StreamSummary:
    """Return the summary of a stream. Chunks may be applied meanwhile: moments only advance, so an older one claims
    nothing false.

    Args:
        states: of all shards.
        expected: names and patterns of edges; without all of them there is no moment.
        peers: whether another cluster may have records that this one lacks.
    """
    lanes = 0
    edges: set[str] = set()
    heard: set[str] = set()
    kinds: set[int] = set()
    earliest: int | None = None
    all_known, any_counts = True, False
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
                        all_known = False
                    elif earliest is None or moment < earliest:
                        earliest = moment
            await asyncio.sleep(0)
    is_whole = all_known and any_counts and all(is_heard(pattern, heard) for pattern in expected)
    return StreamSummary(lanes, len(edges), strictest(kinds), earliest if is_whole else None)
