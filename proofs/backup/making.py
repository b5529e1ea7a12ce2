"""Making a backup, again and again in one place: each run copies what came since the last one.

The order makes it consistent. The manifests of all shards are read first: what the collector may delete is in the
tables then. The tables' versions are read next, and the ends of the logs last, so that every row of a table is in a
log. Then everything is copied, and the record says so. A run that ends early leaves the record of the one before, and
all that this record names; the next one goes on with what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from weft.proofs.backup.copying import Copied, Copier, content_key
from weft.proofs.backup.places import is_inside, others
from weft.proofs.backup.record import (
    FORMAT,
    RECORD,
    BackupRecord,
    BackupUnusable,
    FoundRecord,
    ShardPart,
    TablePart,
    encode,
    read_record,
)
from weft.proofs.backup.shards import copy_shard, head_of
from weft.proofs.backup.tables import copy_table, table_parts
from weft.proofs.backup.view import read_others
from weft.storage import hub_keys
from weft.storage.chunk_log import Cluster, CollectedPast, ShardLog, open_cluster
from weft.storage.manifest import Manifest
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed

_logger = logging.getLogger(__name__)
ATTEMPTS_MAX = 5
"""Number of times that a run begins again because the hub deleted what it was about to copy."""
OTHERS_READINGS_MAX = 5
SHARDS_AT_ONCE = 4
NEVER_CHANGED = (f"{hub_keys.ENTRIES}/", f"{hub_keys.CLUSTER_SNAPSHOTS}/")
"""Further objects that never change: they are read once."""


async def make_backup(
    store: ObjectStore, target: ObjectStore, *, clock: Callable[[], int], note: Callable[[str], None] = _logger.info
) -> tuple[BackupRecord, Copied]:
    """Copy a hub's store, while its nodes run and collect.

    Args:
        target: the place of the backup; one of another cluster is refused.
        clock: nanoseconds since 1970.
        note: takes a line on each step.

    Returns:
        The record, which is in the backup, and the counts of this run.

    Raises:
        BackupUnusable: the place has something else, or the store cannot be copied.
        ClusterUnusable: the store holds no hub.
        StoreError: one of the stores did not answer. Run it again: it goes on.
    """
    if is_inside(target, store):
        raise BackupUnusable("the place of the backup is inside the store: name another")
    found = await _open(target, await open_cluster(store, None))
    kept = await read_others(target, found.record) if found is not None else []
    copier = Copier(store, target)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # Read first, and compared last: the cluster in between is of the same bytes, or the run begins again.
        identity = (await store.get(hub_keys.CLUSTER)).data
        run = _Run(await open_cluster(store, None), copier, found, kept, note)
        try:
            record = await run.copy(clock, identity)
        except (CollectedPast, NotFound) as gone:
            note(f"the store has changed meanwhile, {gone}: begin again ({attempt} of {ATTEMPTS_MAX})")
            continue
        if (await store.get(hub_keys.CLUSTER)).data != identity:
            # Its shards or its level may be others now, and what was copied of no moment.
            note(f"{hub_keys.CLUSTER} has changed meanwhile: begin again ({attempt} of {ATTEMPTS_MAX})")
            continue
        await _replace(target, record, found)
        return record, copier.counts
    raise BackupUnusable(
        f"the hub deleted chunks faster than they could be copied, {ATTEMPTS_MAX} times. Set a longer `retain_log`, or "
        "run the backup nearer to the stores"
    )


async def _open(target: ObjectStore, cluster: Cluster) -> FoundRecord | None:
    found = await read_record(target)
    if found is None:
        with contextlib.suppress(NotFound):
            await target.get(hub_keys.CLUSTER)
            raise BackupUnusable("the place of the backup holds a hub's store: name an empty one")
        return None
    known = msgspec.json.decode(found.record.cluster, type=dict[str, object]).get("cluster_id")
    if known != cluster.cluster_id.hex():
        raise BackupUnusable(f"the place has a backup of cluster {known}, the store is of {cluster.cluster_id.hex()}")
    return found


async def _replace(target: ObjectStore, record: BackupRecord, found: FoundRecord | None) -> None:
    try:
        if found is None:
            await target.create(RECORD, encode(record))
        else:
            await target.swap(RECORD, encode(record), found.etag)
    except (AlreadyExists, PreconditionFailed):
        raise BackupUnusable("another backup to this place ran at the same time, and is done: run it again") from None


class _Run:
    """One attempt at a backup."""

    def __init__(
        self,
        cluster: Cluster,
        copier: Copier,
        found: FoundRecord | None,
        kept: Sequence[tuple[str, str, int]],
        note: Callable[[str], None],
    ) -> None:
        self._copier, self._note, self._store = copier, note, copier.source
        self._logs = [ShardLog(copier.source, cluster, shard) for shard in range(cluster.tree.count)]
        self._previous = {part.shard: part for part in found.record.shards} if found is not None else {}
        self._kept = kept

    async def copy(self, clock: Callable[[], int], identity: bytes) -> BackupRecord:
        started = clock()
        places = asyncio.Semaphore(SHARDS_AT_ONCE)
        manifests = [(await log.manifest())[0] for log in self._logs]
        tables = await table_parts(self._store, self._note)
        # A shard that takes lanes from another has a higher number. Its end is read first, so that the other's log has
        # everything up to what it took.
        ends = [0] * len(self._logs)
        for log in reversed(self._logs):
            manifest = manifests[log.shard]
            # Chunks of a shard that a split made begin behind the watermark: there may be none yet.
            ends[log.shard] = await head_of(log, max(manifest.snapshot_n, manifest.watermark, 0))
        self._note(f"{sum(ends)} chunks of {len(ends)} shards, {len(tables)} tables")

        async def shard(log: ShardLog, manifest: Manifest, end: int) -> ShardPart:
            async with places:
                previous = self._previous.get(log.shard)
                part = await copy_shard(log, manifest, end, self._copier, previous)
                self._note(f"shard {log.shard}: chunks {part.first} to {part.end - 1}")
                return part

        parts = await _all([shard(*each) for each in zip(self._logs, manifests, ends, strict=True)])
        for table in tables:
            await self._table(table)
        listed = await self._others()
        return BackupRecord(FORMAT, identity, parts, tables, listed, started, clock())

    async def _table(self, part: TablePart) -> None:
        await copy_table(part, self._copier)
        self._note(f"table {part.tenant}/{part.stream}: version {part.version}")

    async def _others(self) -> str:
        """Copy the further objects, by their content. Return the key of their list.

        They belong together, as chunks and manifest of a log do: they are read until two readings are the same.
        """
        before = ""
        known = {key: (content, size) for key, content, size in self._kept}
        for _ in range(OTHERS_READINGS_MAX):
            lines = bytearray()
            async for item in others(self._store):
                content, size = known.get(item.key, ("", -1))
                if size != item.size or not item.key.startswith(NEVER_CHANGED):
                    try:
                        content = await self._copier.keep(item.key, item.size)
                    except NotFound:
                        continue
                    known[item.key] = content, item.size
                lines += msgspec.json.encode((item.key, content, item.size)) + b"\n"
            key = content_key(bytes(lines))
            if key == before:
                return key
            before = key
            await self._copier.put(key, bytes(lines))
        return before


async def _all(calls: list) -> list[ShardPart]:  # type: ignore[type-arg]
    """Return the results of calls. The first error ends the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
