"""The shards of a cluster, each with the state of its log as last read."""

from __future__ import annotations

from typing import NamedTuple

from weft.protocols.shard_state import ShardState
from weft.storage.chunk_log import Cluster, ShardLog
from weft.storage.object_store import ObjectStore


class ShardView(NamedTuple):
    """A shard's log and its state. The state is extended in place."""

    log: ShardLog
    state: ShardState

    @property
    def shard(self) -> int:
        """Return the shard's number."""
        return self.log.shard


async def load_shard(store: ObjectStore, cluster: Cluster, shard: int) -> ShardView:
    """Return a shard with its log read to the head.

    Raises:
        StoreError: the store did not answer.
        Corrupt: the log is damaged.
    """
    log = ShardLog(store, cluster, shard)
    return ShardView(log, await log.load())


async def load_shards(store: ObjectStore, cluster: Cluster) -> list[ShardView]:
    """Return every shard with its log read to the head. Raises as ``load_shard``."""
    return [await load_shard(store, cluster, shard) for shard in range(cluster.shards)]
