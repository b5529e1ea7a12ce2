"""Erasures of a stream, and what of each is still somewhere in the store."""

from __future__ import annotations

import msgspec

from weft.cloud_hub.tables.buckets import HIDDEN_FOLDER, hidden_key
from weft.cloud_hub.tables.erasing import objects
from weft.protocols.shard.shard_state import StreamKey
from weft.storage import hub_keys
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore
from weft.storage.table.deletions import Deletion, stored_deletions, stored_erased
from weft.storage.table.delta.log import TableLog
from weft.storage.table.names import app_ids
from weft.storage.table_maker.delta import DeltaHandle, in_thread
from weft.storage.table_maker.errors import TableError

HIDDEN_NS = 3600 * 1_000_000_000
"""Age of an erasure from which on the files with hidden rows that it named are deleted."""


class ErasureState(msgspec.Struct, frozen=True):
    """An erasure as the store shows it."""

    number: int
    time: int
    """Nanoseconds since 1970."""
    by: str
    reason: str
    rows: str
    """The choice, without the values."""
    count: int
    waits: list[str]
    """Places that may still have rows of it, one sentence each; empty if none has."""


async def erasures(store: ObjectStore, stream: StreamKey) -> list[ErasureState]:
    """Return the erasures of a stream, oldest first.

    Raises:
        TableError: a record is damaged, or a later release wrote it.
        StoreError: the store did not answer.
    """
    found = []
    for number, deletion in (await stored_deletions(store, *stream)).items():
        if deletion.erasure is not None:
            waits = [*await _in_log(store, deletion), *await _in_tables(store, stream, number)]
            told = deletion.time, deletion.by, deletion.reason, deletion.rows, deletion.count
            found.append(ErasureState(number, *told, waits))
    return found


async def _in_log(store: ObjectStore, deletion: Deletion) -> list[str]:
    found = []
    assert deletion.erasure is not None, "a declaration of an erasure"
    for shard, n in deletion.erasure.chunks:
        prefix = hub_keys.chunk_prefix(shard)
        listed = await store.list(prefix, limit=1)
        if listed and listed[0].key <= hub_keys.chunk_key(shard, n):
            found.append(
                f"the log of shard {shard} has chunks up to {n}: the collector deletes them "
                "(`retain_log`, or a longer term of a stream, see `weft hub table list`)"
            )
    return found


async def _in_tables(store: ObjectStore, stream: StreamKey, number: int) -> list[str]:
    erased = await stored_erased(store, *stream, number)
    if erased is None:
        return ["the command did not end: run it again with the same choice"]
    there = {key for table in tables_of(stream) for key in await objects(store, table)}
    left = there.intersection(erased.files)
    found = [f"{len(left)} replaced files of the tables: the vacuum deletes them, such as {min(left)}"] if left else []
    for entry in erased.entries:
        # Names of versions sort before all other names of the folder.
        folder = entry.rpartition("/")[0]
        listed = await store.list(folder, limit=1)
        # The checkpoint of the same version sorts before its entry, and has the files of that version alone.
        if listed and listed[0].key < entry.removesuffix(".json"):
            found.append(f"{folder} has entries from before it, with bounds of topic levels: they go with a checkpoint")
    return found


async def _unnamed(store: ObjectStore, stream: StreamKey, now: int) -> list[str]:
    """Return the files with hidden rows that no version named when an erasure was recorded, long ago: a maker may have
    been about to name one that it had just written."""
    found = []
    for number, deletion in (await stored_deletions(store, *stream)).items():
        if deletion.erasure is not None and now - deletion.time > HIDDEN_NS:
            erased = await stored_erased(store, *stream, number)
            found += [file for file in (erased.files if erased else ()) if f"/{HIDDEN_FOLDER}/" in file]
    return found


def tables_of(stream: StreamKey) -> tuple[str, ...]:
    """Return the folders of a stream's tables."""
    return hub_keys.table_key(*stream), hub_keys.latest_key(*stream), hub_keys.quarantine_key(*stream)


async def tidy(store: ObjectStore, cluster: Cluster, stream: StreamKey, now: int) -> int:
    """Delete replaced files and old entries of a stream's tables that are older than the tables' retention. Return the
    number of files.

    Hubs do it each day, and for entries after a number of versions, which a table without new rows does not reach.

    Args:
        now: nanoseconds since 1970.

    Raises:
        TableError: a table cannot be read.
    """
    removed, apps = 0, app_ids(cluster.cluster_id, stream[1])
    for key in tables_of(stream):
        log = TableLog(store, key, apps)
        state = await log.read()
        if state is None:
            continue
        await log.sync(state.version)
        uri, options = store.location(key)
        handle = await in_thread(lambda uri=uri, options=options: DeltaHandle.open(uri, options))  # type: ignore[misc]
        if handle is None:
            raise TableError(f"{key}: the table is no longer there")
        if await log.checkpoint_version() < handle.version:
            await in_thread(handle.checkpoint)
            await log.sync_checkpoint()
        await in_thread(handle.clean_log)
        removed += await in_thread(handle.vacuum)
        named = hidden_key(key, apps, state)
        for file in await _unnamed(store, stream, now):
            if file.startswith(f"{key}/") and file != named:
                await store.delete(file)
                removed += 1
    return removed
