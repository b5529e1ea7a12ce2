"""Positions of the tables in a shard's log, from the tables themselves."""

from __future__ import annotations

from collections.abc import Callable

from weft.cloud_hub.tables.delta import DeltaHandle, in_thread
from weft.cloud_hub.tables.errors import TableError
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.chunk_log import ShardLog, table_key
from weft.storage.object_store import ObjectStore, StoreUnfit
from weft.storage.table.names import app_id, source_ids


def tabled_streams(state: ShardState) -> dict[StreamKey, int]:
    """Return the next offset of each stream with records whose table may lack some: deleted ones have all."""
    forgotten = state.forgotten
    return {
        key: end
        for key, end in state.next_offset.items()
        if end and (key not in forgotten or not forgotten[key].tabled)
    }


async def table_position(store: ObjectStore, log: ShardLog, stream: StreamKey) -> int | None:
    """Return the offset below which all of a shard's records of a stream are table rows, or skipped; None without a
    table.

    Raises:
        TableError, StoreUnfit: the table cannot be read.
    """
    uri, options = store.location(table_key(*stream))
    handle = await in_thread(lambda: DeltaHandle.open(uri, options))
    app = app_id(log.cluster.cluster_id, stream[1], log.shard)
    return None if handle is None else await in_thread(lambda: handle.position(app))


async def first_untabled(
    store: ObjectStore, log: ShardLog, state: ShardState, in_trouble: Callable[[StreamKey], bool]
) -> int | None:
    """Return the number of the first chunk of a shard with records that are not in their tables.

    Every table is opened: a table that was moved away since its last row, or restored from a backup, has fewer rows
    than the hub's memory of it.

    Args:
        state: state of the shard; chunks after it count as untabled.
        in_trouble: returns whether the last work on a stream's table failed.

    Returns:
        The number; None if a table is missing, failing, or of another history than the log.

    Raises:
        StoreError, Corrupt: the log cannot be read.
    """
    # Copied, because the state must not change while the tables are read.
    first, ends = state.n + 1, tabled_streams(state)
    watermark = (await log.manifest())[0].watermark
    for key, end in sorted(ends.items()):
        if in_trouble(key):
            return None
        try:
            uri, options = store.location(table_key(*key))
            handle = await in_thread(lambda uri=uri, options=options: DeltaHandle.open(uri, options))  # type: ignore[misc]
            if handle is None:
                return None
            app = app_id(log.cluster.cluster_id, key[1], log.shard)
            position, source, crc = await in_thread(
                lambda handle=handle, app=app: [handle.transaction(name) for name in (app, *source_ids(app))]  # type: ignore[misc]
            )
        except (TableError, StoreUnfit):
            return None
        if not position:
            return None  # a stream with records and no table: the first round of its table is still pending
        if source is None or crc is None:
            return None
        if source >= watermark:  # below it there is nothing, or only chunks that a paused writer made again
            chunk = await log.index(source)
            if chunk is None or chunk.footer_crc != crc:
                return None
        if position < end:
            first = min(first, source)
    return first
