"""Search for the chunk of a shard's log that holds an offset of a stream."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from weft.protocols.chunk import Chunk
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.chunk_log import CollectedPast, ShardLog


class StreamChunk(NamedTuple):
    """A chunk that holds records of one stream."""

    n: int
    footer_crc: int
    created: int
    """Nanoseconds since 1970."""
    first: int
    """Offset of the stream's first record in it."""
    end: int
    """Offset after the last record."""


def stream_chunk(chunk: Chunk, stream: StreamKey) -> StreamChunk | None:
    """Return a chunk's part of a stream; None when it has no record of it."""
    for section in chunk.footer.streams:
        if (section.tenant, section.stream) == stream:
            first = section.base_offset
            return StreamChunk(chunk.header.n, chunk.footer_crc, chunk.header.created, first, first + section.count)
    return None


async def find_chunk(log: ShardLog, stream: StreamKey, offset: int, low: int) -> StreamChunk | None:
    """Return the chunk that holds an offset; None when the log lacks it, as after the hub has deleted it.

    A query that reads days of history advances by thousands of chunks in a micro-batch. Reading every index between
    would take more requests than the rows do. So the search reads chunks at growing distances from ``low``, and then
    halves the range: some twenty GETs for a thousand chunks, and one or two if the chunk is among the next ones. For a
    stream with records in few chunks, it also reads the indexes between those.

    Args:
        low: number of a chunk; the wanted one is not before it.

    Raises:
        Corrupt: an index that was read is damaged, or a chunk is missing.
        StoreError: the store does not answer.
    """
    while True:
        # The collector may delete chunks while indexes are read: the error is raised for a chunk below the watermark,
        # which is higher at the next try.
        with suppress(CollectedPast):
            return await _search(log, stream, offset, max(low, log.watermark))


async def _search(log: ShardLog, stream: StreamKey, offset: int, low: int) -> StreamChunk | None:
    high: int | None = None  # Neither this chunk nor a later one has the offset.
    step, at = 1, low
    while high is None or low < high:
        found = await _next(log, stream, at, high)
        if found is not None and found.first <= offset < found.end:
            return found
        if found is None or offset < found.first:
            high = at
        else:
            low = found.n + 1
        if high is None:
            at, step = low + step, 2 * step
        else:
            at = (low + high) // 2
    return None


async def _next(log: ShardLog, stream: StreamKey, first: int, end: int | None) -> StreamChunk | None:
    """Return the next chunk with records of the stream from number ``first`` on; None if there is none before ``end``
    or the log's end."""
    async for chunk in log.indexes(first, only=frozenset([stream])):
        if end is not None and chunk.header.n >= end:
            return None
        if found := stream_chunk(chunk, stream):
            return found
    return None
