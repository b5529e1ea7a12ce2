"""Who follows one stream of a large fleet reads, folds and keeps that one (proofs q2 and q6)."""

from __future__ import annotations

import asyncio

from bench.hub.followers import SHARDS, TENANT, FleetLog, Followed, driver_bytes, name_of
from weft.protocols.chunk_index import StreamKey

EDGES, STREAMS = 100, 20
"""Edges in the shard, and streams of each."""


async def followed(log: FleetLog, only: frozenset[StreamKey] | None) -> tuple[Followed, float]:
    """Follow three times, and return what was found and the least processor time of a chunk: what a busy machine adds
    is not there every time."""
    found = [await log.follow(only) for _ in range(3)]
    return found[0], min(each.read_s + each.fold_s for each in found)


def test_a_follower_of_one_stream_reads_and_keeps_one_stream() -> None:
    async def main() -> None:
        log = await FleetLog.make(EDGES * SHARDS, STREAMS, chunks=6)
        everything, all_s = await followed(log, None)
        one, one_s = await followed(log, frozenset({(TENANT, name_of(3))}))
        assert len(everything.state.lanes) == EDGES * STREAMS
        assert {lane.stream for lane in one.state.lanes} == {name_of(3)}
        assert len(one.state.lanes) == EDGES
        assert [len(chunk.footer.lanes) for chunk in one.chunks] == [EDGES] * 6
        mine = {lane: held for lane, held in everything.state.lanes.items() if lane.stream == name_of(3)}
        assert {lane: (held.ranges, held.mark) for lane, held in one.state.lanes.items()} == {
            lane: (held.ranges, held.mark) for lane, held in mine.items()
        }
        assert one.bytes < everything.bytes / 3, "the first look at a log is a guess"
        assert one_s < all_s / 4
        assert driver_bytes(log, one, name_of(3)) * SHARDS < 200 << 20

    asyncio.run(main())
