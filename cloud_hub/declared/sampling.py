"""The newest payloads of a stream, from the logs of its shards."""

from __future__ import annotations

from collections.abc import AsyncIterator

from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster import Cluster
from weft.storage.every_shard import first_logs, load_every_shard
from weft.storage.object_store import ObjectStore

CHUNKS_BYTES = 64 << 20
"""Bytes of chunks that are kept in memory."""


class NoRecords(Exception):
    """A stream without records in the log. The message says what to do."""


async def newest_payloads(
    store: ObjectStore, cluster: Cluster, stream: StreamKey, count: int
) -> AsyncIterator[list[bytes]]:
    """Yield payloads, some thousands at a time: about ``count`` of the newest ones, of each shard as many as its share
    of the stream's records.

    Raises:
        NoRecords: the stream is unknown, or its records have left the log.
        StoreError, Corrupt: the log cannot be read.
    """
    from weft.storage.table.rows import RowsOf, rows_of  # imports pyarrow, which a hub without tables does not need
    from weft.storage.table_maker.chunk_cache import ChunkCache

    found = await load_every_shard(first_logs(store, cluster), frozenset({stream}))
    ends = {log.shard: state.next_offset.get(stream, 0) for log, state in found}
    total, seen = sum(ends.values()), 0
    for log, state in found:
        if not (end := ends[log.shard]):
            continue
        first = max(0, end - max(1, count * end // total))
        n = max(await log.locate(*stream, first), log.watermark)
        cache = ChunkCache(log, CHUNKS_BYTES, whole=False)
        async for chunk, section, _ in cache.of_stream(stream, n, state.n):
            if section is None or section.base_offset + section.count <= first:
                continue
            data = await cache.section(chunk.header.n, section)
            rows = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
            for batch in rows_of([rows], log.shard, (), lambda _: (), first, columns={"payload"}, rows_max=8192):
                seen += batch.num_rows
                yield batch.column("payload").to_pylist()
    if not seen:
        name = "/".join(stream)
        raise NoRecords(
            f"the log has no records of stream {name}: they are in its table alone, or there are none. `weft streams` "
            "lists the streams; --file reads a sample from a file"
        )
