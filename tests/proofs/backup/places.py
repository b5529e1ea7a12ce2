"""Stores with a log, and a backup in another place."""

from __future__ import annotations

from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import BackupRecord, BackupView, Copied, open_backup
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.directory import MemoryStore


def quiet(line: str) -> None:
    """Take a line of progress."""


async def busy(store: ObjectStore, chunks: int = 6) -> LogWriter:
    """A log of two shards, with a snapshot in the middle of the first."""
    writer = await LogWriter.open(store)
    for n in range(chunks):
        await writer.append(0, Run(LANE, 10 * n, 10), Run(OTHER, 5 * n, 5))
        if n == chunks // 2:
            await writer.snapshot(0)
    await writer.append(1, Run(LANE, 0, 1))
    return writer


async def backed_up(store: ObjectStore, place: ObjectStore) -> tuple[BackupRecord, Copied]:
    return await make_backup(store, place, clock=lambda: 1_800_000_000_000_000_000, note=quiet)


async def view_of(place: ObjectStore) -> BackupView:
    view = await open_backup(place)
    assert view is not None
    return view


async def restored(place: ObjectStore) -> MemoryStore:
    target = MemoryStore()
    await restore(await view_of(place), target, clock=lambda: 1_900_000_000_000_000_000, note=quiet)
    return target


async def states(store: ObjectStore) -> list[bytes]:
    """The state at the head of every shard."""
    cluster = await open_cluster(store, None)
    return [state.freeze()() for _, state in await load_every_shard(first_logs(store, cluster))]
