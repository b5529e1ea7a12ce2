"""Streams whose latest table is their only one, and what their log still has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from weft.protocols.shard.shard_state import StreamKey
from weft.storage.chunk_log import ShardLog, open_cluster
from weft.storage.object_store import ObjectStore
from weft.storage.table.instead import latest_of
from weft.storage.table.names import source_ids
from weft.storage.table_maker.shards import ShardView


class FirstKept(NamedTuple):
    """The first chunk that a shard still has, where it lost some."""

    shard: int
    n: int


async def first_kept(store: ObjectStore, stream: StreamKey) -> FirstKept | None:
    """Return the first chunk of a shard that has lost some, if a stream has a latest table as its only one; None if a
    table of all rows can be made from the log.

    Raises:
        TableError: the table cannot be read.
        StoreError, Corrupt: a shard cannot be read.
    """
    cluster = await open_cluster(store, None)
    if await latest_of(store, cluster, stream) is None:
        return None
    for shard in range(cluster.tree.count):
        manifest, _ = await ShardLog(store, cluster, shard).manifest()
        if manifest.watermark:
            return FirstKept(shard, manifest.watermark)
    return None


async def passed(
    views: Sequence[ShardView],
    stream: StreamKey,
    positions: Mapping[int, int],
    ends: Mapping[int, int],
    app: Callable[[int], str],
) -> tuple[dict[str, int], int]:
    """Return the transactions of positions after what the collector deleted, and the number of records passed over.

    Args:
        app: returns the transaction id of a shard's position.

    Raises:
        NotFound, Corrupt: the log cannot be read.
    """
    told, gone = dict[str, int](), 0
    for view in views:
        first, end = positions.get(view.shard, 0), ends.get(view.shard, 0)
        there = await _first_there(view, stream, end) if first < end else first
        if there > first:
            name = app(view.shard)
            told |= {name: there, **dict(zip(source_ids(name), (view.log.watermark - 1, 0), strict=True))}
            gone += there - first
    return told, gone


async def _first_there(view: ShardView, stream: StreamKey, end: int) -> int:
    """Return the lowest offset whose chunk is not collected; ``end`` without one."""
    async for _, section, _ in view.chunks.of_stream(stream, view.log.watermark, view.state.n):
        if section is not None:
            return section.base_offset
    return end
