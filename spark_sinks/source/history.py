"""The history of a hub's log, for comparison with positions in a checkpoint or a sink's target.

A store that was restored to an earlier state gives offsets out again, to other records. A query that compared only
offsets would treat those as records that it has, and skip them. So a position includes the chunk with the last record
below it: the checksum of a chunk's footer covers the footers before it, and so identifies the whole history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
    """Time at which the hub made it, ns since 1970; None if only number and checksum were stored. After the chunk is
    deleted, this time distinguishes the table's rows from later ones."""


class KeptPosition(NamedTuple):
    """A position stored in a checkpoint or a sink's target."""

    end: int
    """Offset after the last record that was read."""
    witness: Witness | None
    """None if the hub had deleted the chunk, or an earlier release wrote the position."""


class WentBack(ReadError):
    """A log with another history than a position: its store was restored to an earlier state."""


class History:
    """The shards of one tenant's streams. Found chunks are remembered, so that following a log costs little.

    Methods raise ``ReadError`` when the store does not answer or a chunk is damaged.
    """

    def __init__(self, log_of: Callable[[int], ShardLog], tenant: str) -> None:
        self._tenant = tenant
        self._log_of = log_of
        self._found: dict[StreamShard, StreamChunk] = {}
        """The last chunk that was found."""

    @classmethod
    def of(cls, store: ObjectStore, cluster: Cluster, tenant: str) -> History:
        """Return the history of a store, without a request."""
        logs: dict[int, ShardLog] = {}

        def log_of(shard: int) -> ShardLog:
            # A split may have made the shard since the cluster was read.
            return logs.setdefault(shard, ShardLog(store, cluster, shard))

        return cls(log_of, tenant)

    async def witnesses(self, ends: Mapping[StreamShard, int]) -> dict[StreamShard, Witness]:
        """Return the chunk with the record before each offset.

        There is none for chunks that the hub has deleted, or if an index on the way is damaged: a query must not stop
        for a chunk that it does not read.
        """
        try:
            found = await asyncio.gather(*(self._chunk_with(place, end - 1) for place, end in ends.items()))
        except StoreError as error:
            raise _unreadable(error) from error
        known = {place: each for place, each in zip(ends, found, strict=True) if each is not None}
        self._found |= known
        return {place: Witness(each.n, each.footer_crc, each.created) for place, each in known.items()}

    async def check(self, positions: Mapping[StreamShard, KeptPosition]) -> dict[StreamShard, KeptPosition]:
        """Check that positions were taken from this log.

        Returns:
            The positions for which only the log's length could be checked: those of earlier releases, and those in
                deleted chunks.

        Raises:
            WentBack: the log is another one, or shorter.
        """
        try:
            known = await asyncio.gather(*(self._check(place, kept) for place, kept in positions.items()))
        except (StoreError, CodecError) as error:
            raise _unreadable(error) from error
        return {place: kept for (place, kept), is_known in zip(positions.items(), known, strict=True) if not is_known}

    async def _check(self, place: StreamShard, kept: KeptPosition) -> bool:
        """Return whether the chunk was compared."""
        (stream, shard), (end, witness) = place, kept
        log = self._log_of(shard)
        if witness is not None:
            chunk = await log.index(witness.n)
            is_same = chunk is not None and chunk.footer_crc == witness.footer_crc
            held = stream_chunk(chunk, (self._tenant, stream)) if chunk is not None and is_same else None
            if held is not None and held.end >= end:
                self._found.setdefault(place, held)
                return True
            # Below the watermark there is nothing, or only chunks that a paused writer made again.
            if not is_same and witness.n >= (await log.manifest())[0].watermark:
                how = "lacks" if chunk is None else "has another"
                raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log {how} chunk {witness.n}")
        key = self._tenant, stream
        head = (await log.load(frozenset({key}))).next_offset.get(key, 0)
        if head < end:
            raise WentBack(f"offset {end} of shard {shard} of {stream}, and the log ends at {head}")
        return False

    async def _chunk_with(self, place: StreamShard, offset: int) -> StreamChunk | None:
        stream, shard = place
        log, last, key = self._log_of(shard), self._found.get(place), (self._tenant, stream)
        with suppress(CodecError):
            # From the last chunk on, which is read again, because the store may have been restored meanwhile.
            if last is not None and last.first <= offset and (found := await find_chunk(log, key, offset, last.n)):
                return found
            return await find_chunk(log, key, offset, await log.locate(*key, offset))
        return None


def _unreadable(error: Exception) -> ReadError:
    return ReadError(f"positions cannot be compared with the hub's log: {error}")
