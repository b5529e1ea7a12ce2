"""The history of a hub's log, with which a sink compares the positions that its target keeps.

A store that was restored to an earlier state gives offsets out again, to other records. A sink that goes by offsets
alone would take those for records that it has, and leave them out. So a position keeps the chunk with the last record
below it: the checksum of a chunk's footer covers the footers before it, and stands for the whole history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from spark_sinks.errors import ReadError
from weft.protocols.chunk import Chunk
from weft.protocols.errors import CodecError
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore, StoreError

StreamShard = tuple[str, int]


class Witness(NamedTuple):
    """The chunk with the last record below a position."""

    n: int
    footer_crc: int


class Kept(NamedTuple):
    """A position as a sink's target keeps it."""

    end: int
    """Offset after the last record that was taken."""
    witness: Witness | None
    """None where the hub had deleted the chunk, or where an earlier release wrote the position."""


class WentBack(ReadError):
    """A log that is not the one that a position was taken from: its store was restored to an earlier state."""


class History:
    """The shards of one tenant's streams. Chunks that were looked up are remembered, so that following costs little.

    Methods raise ``ReadError`` when the store does not answer or a chunk is damaged.
    """

    def __init__(self, store: ObjectStore, cluster: Cluster, tenant: str) -> None:
        self._tenant = tenant
        self._logs = [ShardLog(store, cluster, shard) for shard in range(cluster.shards)]
        self._found: dict[StreamShard, Witness] = {}
        """The last chunk that was looked up."""

    async def witnesses(self, ends: Mapping[StreamShard, int]) -> dict[StreamShard, Witness]:
        """Return the chunk with the record before each offset; none for chunks that the hub has deleted."""
        try:
            found = await asyncio.gather(*(self._chunk_with(place, end - 1) for place, end in ends.items()))
        except (StoreError, CodecError) as error:
            raise _unreadable(error) from error
        self._found |= (known := {place: each for place, each in zip(ends, found, strict=True) if each is not None})
        return known

    async def check(self, positions: Mapping[StreamShard, Kept]) -> None:
        """Check that the log still is the one that positions were taken from.

        Of a chunk that the hub has deleted since, nothing can be said: the hub's own table keeps watch over those.

        Raises:
            WentBack: it is another one, or shorter.
        """
        try:
            await asyncio.gather(*(self._check(place, kept) for place, kept in positions.items()))
        except (StoreError, CodecError) as error:
            raise _unreadable(error) from error

    async def _check(self, place: StreamShard, kept: Kept) -> None:
        (stream, shard), (end, witness) = place, kept
        log = self._logs[shard]
        if witness is not None:
            chunk = await log.index(witness.n)
            is_same = chunk is not None and chunk.footer_crc == witness.footer_crc
            if chunk is not None and is_same and self._range(stream, chunk)[1] >= end:
                self._found.setdefault(place, witness)
                return
            # Below the watermark there is nothing, or what a paused writer made again.
            if not is_same and witness.n >= (await log.manifest())[0].watermark:
                how = "lacks" if chunk is None else "has another"
                raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log {how} chunk {witness.n}")
        head = (await log.load()).next_offset.get((self._tenant, stream), 0)
        if head < end:
            raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log ends at {head}")

    async def _chunk_with(self, place: StreamShard, offset: int) -> Witness | None:
        stream, shard = place
        log, last = self._logs[shard], self._found.get(place)
        first = last.n if last is not None else await log.locate(self._tenant, stream, offset)
        with suppress(CollectedPast):
            async for chunk in log.indexes(max(first, log.watermark)):
                begin, end = self._range(stream, chunk)
                if end > offset:
                    return Witness(chunk.header.n, chunk.footer_crc) if begin <= offset else None
        return None

    def _range(self, stream: str, chunk: Chunk) -> tuple[int, int]:
        """Return the stream's offsets in a chunk, (0, 0) for none."""
        for section in chunk.footer.streams:
            if (section.tenant, section.stream) == (self._tenant, stream):
                return section.base_offset, section.base_offset + section.count
        return 0, 0


def _unreadable(error: Exception) -> ReadError:
    return ReadError(f"positions cannot be compared with the hub's log: {error}")
