"""Reader of the indexes of a shard's chunks: of all streams, or of some alone."""

from __future__ import annotations

from weft.protocols import chunk as chunks
from weft.protocols.batch import Buffer
from weft.protocols.chunk import Chunk, ChunkHead
from weft.protocols.chunk_index.codec import IndexTail
from weft.protocols.errors import Corrupt
from weft.protocols.shard.shard_state import StreamKey
from weft.storage import hub_keys
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.object_store.damage import naming

TAIL_BYTES_MIN = 4 << 10
"""Fewest bytes of a chunk's end that one GET asks for."""
TAIL_BYTES_MAX = 4 << 20
"""Most bytes of a chunk's end that are asked for before the length of its index is known."""
TOGETHER_BYTES_MAX = 64 << 10
"""Length up to which the head and what lies between it and a wanted block are read by one GET instead of two."""


class IndexReader:
    """Reads indexes of one shard's chunks. It expects the index of a chunk to be about as long as that of the last one
    was: one GET then reads all of it, or the head and another one the blocks of the wanted streams."""

    def __init__(self, store: ObjectStore, cluster: Cluster, shard: int) -> None:
        self._store, self._cluster, self._shard = store, cluster, shard
        self._guesses: dict[bool, int] = {}
        """Bytes of the end that the next GET asks for, when all streams are wanted (True), or some."""

    async def read(self, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        """Return header and footer of chunk n, or None when it does not exist. Raises as ``ShardLog.index``."""
        key = hub_keys.chunk_key(self._shard, n)
        with naming(key):
            try:
                return await self._read(key, n, only)
            except NotFound:
                return None

    async def _read(self, key: str, n: int, only: frozenset[StreamKey] | None) -> Chunk:
        guess = self._guesses.get(only is None, chunks.TAIL_READ_BYTES)
        data: Buffer = await self._store.get_range(key, -guess, guess)
        needed = chunks.footer_bytes(data)
        if needed > len(data):
            data = await self._store.get_range(key, -needed, needed)
        tail = chunks.decode_tail(data)
        span = tail.span(only)
        wanted = span if only is None or span <= TOGETHER_BYTES_MAX else tail.bytes
        self._guesses[only is None] = min(max(wanted + wanted // 4, TAIL_BYTES_MIN), TAIL_BYTES_MAX)
        if span <= len(data) or not isinstance(tail.found, ChunkHead):
            footer, crc = chunks.decode_footer(data, only)
            return self.checked(n, Chunk(footer.header, footer, crc))
        return self.checked(n, await self._blocks(key, tail, tail.found, only))

    async def _blocks(self, key: str, tail: IndexTail, head: ChunkHead, only: frozenset[StreamKey] | None) -> Chunk:
        places = [each for each in head.blocks if only is None or (each.tenant, each.stream) in only]
        start, end = places[0].position, places[-1].position + places[-1].length
        data = await self._store.get_range(key, start, end - start)
        return Chunk(head.header, chunks.with_blocks(head, data, start, only), tail.crc)

    def checked(self, n: int, chunk: Chunk) -> Chunk:
        """Return the index, if it is of chunk n of this shard.

        Raises:
            Corrupt: it belongs elsewhere.
        """
        header = chunk.header
        if (header.cluster_id, header.shard, header.n) != (self._cluster.cluster_id, self._shard, n):
            raise Corrupt(f"it holds chunk {header.n} of shard {header.shard}, cluster {header.cluster_id.hex()}")
        return chunk
