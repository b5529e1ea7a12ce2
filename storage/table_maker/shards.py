"""The shards of a cluster, each with the last read state of its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import Cluster, ShardLog
from weft.storage.every_shard import first_logs, load_every_shard
from weft.storage.object_store import ObjectStore
from weft.storage.table_maker.chunk_cache import ChunkCache

CHUNK_BYTES_MAX = 256 << 20
"""Bytes of the chunks of all shards that are kept in memory for the streams with records in them."""


class ShardView(NamedTuple):
    """A shard's log, its state and its last read chunks. The state is extended in place."""

    log: ShardLog
    state: ShardState
    chunks: ChunkCache

    @property
    def shard(self) -> int:
        """Return the shard's number."""
        return self.log.shard


async def load_shard(log: ShardLog, *, whole: bool = True) -> ShardView:
    """Return a shard with its log read to the head, and its share of the memory for chunks.

    Args:
        whole: keep whole chunks in memory; otherwise their indexes.

    Raises:
        StoreError: the store did not answer.
        Corrupt: the log is damaged.
    """
    return ShardView(log, await log.load(), ChunkCache(log, CHUNK_BYTES_MAX // log.cluster.tree.count, whole=whole))


def share_memory(views: Sequence[ShardView]) -> None:
    """Divide the memory for chunks equally among shards: a split has made one more, or one was loaded."""
    for view in views:
        view.chunks.resize(CHUNK_BYTES_MAX // len(views))


async def load_shards(store: ObjectStore, cluster: Cluster) -> list[ShardView]:
    """Return every shard with its log read to the head. Raises as ``load_shard``."""
    return [await load_shard(log) for log, _ in await load_every_shard(first_logs(store, cluster))]
