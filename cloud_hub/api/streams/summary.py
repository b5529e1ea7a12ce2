"""Summaries of streams for their list: a part for each shard, counted in slices, so that any number of lanes never
blocks the event loop.

Ten thousand edges with twenty streams are 200,000 lanes, and a walk over them takes a good part of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

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
from weft.protocols.shard.shard_state import ShardState, StreamKey

SLICE_LANES = 2_000
"""Number of lanes walked without a pause: some milliseconds."""
REASONS_MAX = 3
"""Maximum number of reasons in a summary."""


class LaneFacts(NamedTuple):
    """Knowledge of a process beside the states of lanes, at one moment."""

    now: int
    """Nanoseconds since 1970 by the hub's clock."""
    peers: bool
    """True if another cluster may have records that this one lacks."""
    behind: Behind = lambda _: None
    lost: LostOf = lambda *_: None
    """Lost records, and like ``behind`` of lanes whose edges are linked to this node (``completeness``)."""

    def held_back(self, lane: Lane, held: LaneState) -> HeldBack | None:
        """Return the reason why a lane that counts does not advance; None if it does."""
        return held_back(lane, held, self.now, peers=self.peers, behind=self.behind, lost=self.lost)


class StreamPart(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a stream in one shard. A list of them is in the store, so fields are only added, at the end."""

    tenant: str
    stream: str
    shard: int
    is_there: bool
    """True if the shard has records or lanes of it, and it is not deleted."""
    end: int | None
    """Offset after its last record; None without records."""
    fields: list[str]
    skipped: int
    """Number of records that operators skipped in its table."""
    lanes: int
    edges: int
    payloads: list[int]
    """Kinds that edges declare."""
    counts: bool
    """True if a lane counts for completeness."""
    is_known: bool
    """True if every lane that counts has a moment."""
    complete_up_to: int | None
    """Earliest moment of the lanes that count and have one."""
    waits_for: HeldBack | None
    """Reason of the lane that the moment waits for: one without a moment, or that with the earliest."""
    heard: list[str]
    """Those of the expected names and patterns of which something was heard."""


class StreamTally:
    """Facts about the lanes of a stream in one shard, added one by one."""

    def __init__(self, facts: LaneFacts) -> None:
        self._facts = facts
        self.lanes = 0
        self._edges: set[str] = set()
        self._heard: set[str] = set()
        self._kinds: set[int] = set()
        self._earliest: int | None = None
        self._slowest: tuple[Lane, LaneState] | None = None
        self._unknown: tuple[Lane, LaneState] | None = None
        self._counts = False

    def add(self, lane: Lane, held: LaneState, *, counts: bool) -> None:
        """Add a lane.

        Args:
            counts: whether it counts for completeness, and did not end by a rename.
        """
        self.lanes += 1
        self._edges.add(lane.edge)
        self._kinds.add(held.payload)
        if has_spoken(held):
            self._heard.add(lane.edge)
        if not counts:
            return
        self._counts = True
        moment = moment_of(held, peers=self._facts.peers)
        if moment is None:
            self._unknown = self._unknown or (lane, held)
        elif self._earliest is None or moment < self._earliest:
            self._earliest, self._slowest = moment, (lane, held)

    def part(self, state: ShardState, key: StreamKey, expected: Iterable[str]) -> StreamPart:
        """Return the facts, with those of the stream in a shard's state."""
        waits_for = self._unknown or self._slowest
        why = None
        if waits_for is not None:
            facts = self._facts
            why = facts.held_back(*waits_for) or late(*waits_for, facts.now, peers=facts.peers)
        skips = state.skips.get(key, ())
        return StreamPart(
            *key, state.shard, state.has_stream(*key), state.next_offset.get(key), state.stream_fields(*key),
            sum(skip.end - skip.first for skip in skips), self.lanes, len(self._edges), sorted(self._kinds),
            self._counts, self._unknown is None, self._earliest, why,
            [each for each in expected if is_heard(each, self._heard)],
        )  # fmt: skip


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


async def stream_parts(
    states: Sequence[ShardState], key: StreamKey, expected: Iterable[str], facts: LaneFacts
) -> list[StreamPart]:
    """Return the part of a stream in each shard. Chunks may be applied meanwhile: moments only advance, so an older one
    claims nothing false.

    Args:
        states: of all shards.
        expected: names and patterns of edges; without all of them there is no moment.
    """
    ended = renamed_lanes(states, *key, peers=facts.peers)
    parts = []
    for state in states:
        tally = StreamTally(facts)
        names = state.stream_lane_names(*key)
        for start in range(0, len(names), SLICE_LANES):
            for lane in names[start : start + SLICE_LANES]:
                held = state.lanes.get(lane)
                if held is not None:  # it has not left the state meanwhile
                    tally.add(lane, held, counts=held.counts and lane not in ended)
            await asyncio.sleep(0)
        parts.append(tally.part(state, key, expected))
    return parts


def merged(parts: Sequence[StreamPart], expected: Iterable[str]) -> StreamSummary:
    """Return the summary of a stream from its parts of all shards."""
    heard = {each for part in parts for each in part.heard}
    reasons = [never_came(each) for each in dict.fromkeys(expected) if each not in heard]
    counting = [part for part in parts if part.counts]
    is_whole = bool(counting) and all(part.is_known for part in counting) and not reasons
    earliest = min((part.complete_up_to for part in counting if part.complete_up_to is not None), default=None)
    slowest = [part for part in counting if not part.is_known] or [
        part for part in counting if part.complete_up_to == earliest
    ]
    if slowest and (why := slowest[0].waits_for) is not None:
        reasons = [*reasons[: REASONS_MAX - 1], why]
    return StreamSummary(
        sum(part.lanes for part in parts), sum(part.edges for part in parts),
        strictest({kind for part in parts for kind in part.payloads}), earliest if is_whole else None,
        reasons[:REASONS_MAX],
    )  # fmt: skip
