"""Streams with a latest table instead of a table of all their rows.

Such a latest table says so itself, by a property: readers of a store need no declaration to know it. A table of all
rows comes first wherever there is one.
"""

from __future__ import annotations

from weft.protocols.chunk_index import StreamKey
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import latest_key, table_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import DeltaState, app_ids
from weft.storage.table.delta_log import TableLog

INSTEAD_PROPERTY = "weft.latest.instead"
"""Property of a latest table that replaces the table of all rows: `true`."""


def replaces_all_rows(state: DeltaState | None) -> bool:
    """Return whether a version of a latest table says that it replaces the table of all rows."""
    return state is not None and state.properties().get(INSTEAD_PROPERTY) == "true"


async def has_all_rows(store: ObjectStore, stream: StreamKey) -> bool:
    """Return whether a stream has a table of all rows, by one request."""
    return bool(await store.list(f"{table_key(*stream)}/_delta_log", limit=1))


async def only_latest(store: ObjectStore, cluster: Cluster, stream: StreamKey) -> DeltaState | None:
    """Return the newest version of the latest table that is a stream's only table; None if it has another, or none.

    Raises:
        TableError, StoreUnfit: a table cannot be read.
    """
    return (
        None
        if await _read(store, cluster, stream, table_key(*stream)) is not None
        else await latest_of(store, cluster, stream)
    )


async def latest_of(store: ObjectStore, cluster: Cluster, stream: StreamKey) -> DeltaState | None:
    """Return the newest version of a latest table that says that it replaces it; None without one. Raises as
    ``only_latest``."""
    state = await _read(store, cluster, stream, latest_key(*stream))
    return state if replaces_all_rows(state) else None


async def positions_of(store: ObjectStore, cluster: Cluster, stream: StreamKey) -> DeltaState | None:
    """Return the newest version of the table whose positions count for a stream: that of all rows, or without it the
    latest table that replaces it; None without both. Raises as ``only_latest``."""
    state = await _read(store, cluster, stream, table_key(*stream))
    return await latest_of(store, cluster, stream) if state is None else state


async def _read(store: ObjectStore, cluster: Cluster, stream: StreamKey, key: str) -> DeltaState | None:
    return await TableLog(store, key, app_ids(cluster.cluster_id, stream[1])).read()
