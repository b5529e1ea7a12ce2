"""The history of a hub's log, with which positions are compared that a checkpoint or a sink's target keeps.

A store that was restored to an earlier state gives offsets out again, to other records. A query that goes by offsets
alone would take those for records that it has, and leave them out. So a position keeps the chunk with the last record
below it: the checksum of a chunk's footer covers the footers before it, and stands for the whole history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from spark_sinks.errors import ReadError
from spark_sinks.source.chunk_search import StreamChunk, find_chunk, stream_chunk
from weft.protocols.errors import CodecError
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore, StoreError

StreamShard = tuple[str, int]


class Witness(NamedTuple):
    """The chunk with the last record below a position."""

    n: int
    footer_crc: int
    created: int | None = None
    """Time at which the hub made it, ns since 1970; None where only number and checksum were kept. Once the chunk is
    deleted, it tells the table's rows from later ones."""


class KeptPosition(NamedTuple):
    """A position as a checkpoint or a sink's target keeps it."""

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

    def __init__(self, logs: Sequence[ShardLog], tenant: str) -> None:
        self._tenant = tenant
        self._logs = logs
        self._found: dict[StreamShard, StreamChunk] = {}
        """The last chunk that was looked up."""

    @classmethod
    def of(cls, store: ObjectStore, cluster: Cluster, tenant: str) -> History:
        """Return the history of a store. Nothing is asked for yet."""
        return cls([ShardLog(store, cluster, shard) for shard in range(cluster.shards)], tenant)

    async def witnesses(self, ends: Mapping[StreamShard, int]) -> dict[StreamShard, Witness]:
        """Return the chunk with the record before each offset.

        There is none for chunks that the hub has deleted, and where an index on the way is damaged: no query stops for
        a chunk that it does not read.
        """
        try:
            found = await asyncio.gather(*(self._chunk_with(place, end - 1) for place, end in ends.items()))
        except StoreError as error:
            raise _unreadable(error) from error
        known = {place: each for place, each in zip(ends, found, strict=True) if each is not None}
        self._found |= known
        return {place: Witness(each.n, each.footer_crc, each.created) for place, each in known.items()}

    async def check(self, positions: Mapping[StreamShard, KeptPosition]) -> dict[StreamShard, KeptPosition]:
        """Check that the log still is the one that positions were taken from.

        Returns:
            The positions of which nothing can be said but that the log is no shorter: of earlier releases, and in
            chunks that the hub has deleted since.

        Raises:
            WentBack: it is another one, or shorter.
        """
        try:
            known = await asyncio.gather(*(self._check(place, kept) for place, kept in positions.items()))
        except (StoreError, CodecError) as error:
            raise _unreadable(error) from error
        return {place: kept for (place, kept), is_known in zip(positions.items(), known, strict=True) if not is_known}

    async def _check(self, place: StreamShard, kept: KeptPosition) -> bool:
        """Return whether the chunk was compared."""
        (stream, shard), (end, witness) = place, kept
        log = self._logs[shard]
        if witness is not None:
            chunk = await log.index(witness.n)
            is_same = chunk is not None and chunk.footer_crc == witness.footer_crc
            held = stream_chunk(chunk, (self._tenant, stream)) if chunk is not None and is_same else None
            if held is not None and held.end >= end:
                self._found.setdefault(place, held)
                return True
            # Below the watermark there is nothing, or what a paused writer made again.
            if not is_same and witness.n >= (await log.manifest())[0].watermark:
                how = "lacks" if chunk is None else "has another"
                raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log {how} chunk {witness.n}")
        head = (await log.load()).next_offset.get((self._tenant, stream), 0)
        if head < end:
            raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log ends at {head}")
        return False

    async def _chunk_with(self, place: StreamShard, offset: int) -> StreamChunk | None:
        stream, shard = place
        log, last, key = self._logs[shard], self._found.get(place), (self._tenant, stream)
        with suppress(CodecError):
            # From the last chunk on, which is read again: the store may have been restored meanwhile.
            if last is not None and last.first <= offset and (found := await find_chunk(log, key, offset, last.n)):
                return found
            return await find_chunk(log, key, offset, await log.locate(*key, offset))
        return None


def _unreadable(error: Exception) -> ReadError:
    return ReadError(f"positions cannot be compared with the hub's log: {error}")
