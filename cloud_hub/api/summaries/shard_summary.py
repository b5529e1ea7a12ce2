"""The summary of one shard: its streams, its edges and its troubles, made by one walk over its lanes.

A large shard's is made every some seconds by the process that owns it, which stores it for the others.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from weft.cloud_hub.api.edges import EdgeRow, EdgeTally
from weft.cloud_hub.api.pages import SLICE_S
from weft.cloud_hub.api.streams.summary import LaneFacts, StreamPart, StreamTally, renamed_lanes
from weft.cloud_hub.api.views import View, conflict_views, open_gap_views
from weft.cloud_hub.shard.message_lanes import AUDIT_EDGE, AUDIT_TENANT, DOWN_STREAM
from weft.protocols.lane import Lane, NodeName
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.open_gaps import begins_at
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.protocols.shard.splits import Split

CONFLICTS_MAX = 1000
"""Maximum number of conflicts in a summary, and in an answer."""
BYTES_MAX = 32 << 20
"""Longest summary as it is stored: 65,536 edges with alarms have some 10 MB."""
DECODED_BYTES_MAX = 256 << 20


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """A lane that began by a rename of its edge: the former name may be in another shard."""

    tenant: str
    stream: str
    log_id: int
    epoch: int
    seq: int
    """Its first sequence number."""


class ShardSummary(msgspec.Struct, frozen=True, array_like=True):
    """A shard at one moment. It is in the store, so fields are only added, at the end."""

    shard: int
    n: int
    """Number of the last chunk that it counts."""
    at: int
    """Nanoseconds since 1970 by the hub's clock."""
    splits: list[Split]
    streams: list[StreamPart]
    """Parts by tenant and name, deleted ones included."""
    edges: list[EdgeRow]
    """Rows by tenant and name."""
    begun: list[Begun]
    conflicts: list[View]
    conflicts_more: int
    open_gaps: list[View]
    """Those of retired lanes, the latest first."""
    open_gaps_more: int

    @property
    def lanes(self) -> int:
        """Return the number of the shard's lanes."""
        return sum(part.lanes for part in self.streams)


class Walk(NamedTuple):
    """The knowledge that a summary is made with.

    Args:
        facts: what is known beside the states.
        expected: names and patterns of edges that a stream needs to be complete.
        states: of the shards at hand, for lanes that ended by a rename.
        begun: lanes of other shards that began by a rename.
    """

    facts: LaneFacts
    expected: Callable[[StreamKey], Sequence[str]]
    states: Sequence[ShardState]
    begun: Iterable[Begun] = ()

    async def summary(self, state: ShardState, clock: Callable[[], float] = time.perf_counter) -> ShardSummary:
        """Return the summary of a shard, without blocking the event loop. Chunks may be applied meanwhile."""
        n, facts, ended = state.n, self.facts, _Ended(self)
        tallies: dict[StreamKey, StreamTally] = {}
        rows: list[EdgeRow] = []
        begun: list[Begun] = []
        began = clock()
        for name in state.edge_names():
            lanes = state.edge_lanes(*name)
            if not lanes:
                continue
            edge = EdgeTally(facts)
            for lane, held in lanes.items():
                is_renamed = held.last_word is not None and ended.by_rename(lane, held)
                key = lane.tenant, lane.stream
                if (tally := tallies.get(key)) is None:
                    tally = tallies[key] = StreamTally(facts)
                tally.add(lane, held, counts=held.counts and not is_renamed)
                if lane.stream != DOWN_STREAM:  # the hub's own lane: messages may wait for an edge that is gone
                    edge.add(lane, held, is_renamed=is_renamed)
                if held.gaps and (first := begins_at(held.gaps)):
                    begun.append(Begun(*key, lane.log_id, held.epoch, first))
            if name != (AUDIT_TENANT, AUDIT_EDGE):
                rows.append(edge.row(NodeName(*name), state.shard))
            if clock() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = clock()
        for key in state.next_offset:
            tallies.setdefault(key, StreamTally(facts))
        conflicts, gaps = conflict_views([state]), open_gap_views([state])
        rows.sort(key=lambda row: row.name)
        return ShardSummary(
            state.shard, n, facts.now, list(state.splits),
            [tallies[key].part(state, key, self.expected(key)) for key in sorted(tallies)], rows, begun,
            conflicts[:CONFLICTS_MAX], max(0, len(conflicts) - CONFLICTS_MAX), gaps["open_gaps"],
            gaps["open_gaps_more"],
        )  # fmt: skip


class _Ended:
    """Lanes that ended by a rename, looked up by stream once."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._here: dict[StreamKey, set[Lane]] = {}

    def by_rename(self, lane: Lane, held: LaneState) -> bool:
        peers = self._walk.facts.peers
        if not held.ended_in_order(peers=peers):
            return False
        key = lane.tenant, lane.stream
        if key not in self._here:
            self._here[key] = renamed_lanes(self._walk.states, *key, peers=peers)
        assert held.last_word is not None
        name = (*key, lane.log_id, held.last_word.seq)
        return lane in self._here[key] or any(
            (each.tenant, each.stream, each.log_id, each.seq) == name and each.epoch > held.epoch
            for each in self._walk.begun
        )


def encode(summary: ShardSummary) -> bytes:
    """Return the object of a summary."""
    return zlib.compress(msgspec.msgpack.encode(summary), 1)


_DECODER = msgspec.msgpack.Decoder(ShardSummary)


def decode(data: bytes) -> ShardSummary:
    """Return the summary of an object.

    Raises:
        MsgspecError, zlib.error, ValueError: it holds something else.
    """
    if len(data) > BYTES_MAX:
        raise ValueError(f"{len(data)} bytes")
    inflate = zlib.decompressobj()
    plain = inflate.decompress(data, DECODED_BYTES_MAX)
    if inflate.unconsumed_tail:
        raise ValueError(f"more than {DECODED_BYTES_MAX} bytes")
    return _DECODER.decode(plain)
