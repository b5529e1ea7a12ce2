"""Restoring a backup into a new store. The store becomes a hub's with the last object that is written."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from weft.proofs.backup.copying import Copied, Copier, CopyTurns, Unlike
from weft.proofs.backup.places import LAST_CHECKPOINT, listed
from weft.proofs.backup.record import BackupUnusable
from weft.proofs.backup.view import BackupView
from weft.storage import hub_keys
from weft.storage.cluster import restored
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore
from weft.storage.object_store.placed import lay_out
from weft.storage.presence.nodes import running

_logger = logging.getLogger(__name__)
MARK = hub_keys.RESTORING


async def restore(
    view: BackupView, target: ObjectStore, *, clock: Callable[[], int], note: Callable[[str], None] = _logger.info
) -> Copied:
    """Copy a backup into an empty store; run again, it goes on.

    Args:
        clock: nanoseconds since 1970. The store says from then on when it was restored.
        note: takes a line on each step.

    Raises:
        BackupUnusable: the store is not empty, a hub process runs on it, or an object of the backup is missing.
        StoreError: one of the stores did not answer. Run it again: it goes on.
    """
    copier = Copier(view, target)
    lay_out(target, view.record.cluster)
    if await _begin(view, target, clock()):
        await target.delete(MARK)
        return copier.counts
    await _check_unused(target, clock())
    try:
        for part in view.record.shards:
            for folder in ("chunk", "snapshot", "ended"):
                await _folder(copier, f"shard-{part.shard}/{folder}")
            if part.manifest is not None:
                await _put(target, hub_keys.manifest_key(part.shard), part.manifest)
            note(f"shard {part.shard}: chunks {part.first} to {part.end - 1}")
        for table in view.record.tables:
            key = hub_keys.table_key(table.tenant, table.stream)
            await _folder(copier, key)
            if table.last_checkpoint is not None:
                await _put(target, f"{key}/{LAST_CHECKPOINT}", table.last_checkpoint)
            note(f"table {table.tenant}/{table.stream}: version {table.version}")
        for key, (content, size) in view.others.items():
            await copier.copy_kept(key, size, content)
    except Unlike as error:
        raise BackupUnusable(f"{error}: restore an earlier backup, or ask who may write to its place") from error
    except NotFound as gone:
        raise BackupUnusable(f"the backup lacks {gone}: `weft hub verify` on it names all that is missing") from gone
    await _check_unused(target, clock())  # one that was forgotten has shown itself by now
    await _put(target, hub_keys.CLUSTER, restored(view.record.cluster, view.record.started, clock()))
    await target.delete(MARK)
    return copier.counts


async def _check_unused(target: ObjectStore, now: int) -> None:
    """Check that no hub process has the place for its store: one that began with the lost store, of a release without a
    fence, would put chunks of that one's history into this one.

    Raises:
        BackupUnusable: there is one.
    """
    if there := await running(target, now):
        node = max(there, key=lambda entry: entry.seen)
        raise BackupUnusable(
            f"a hub process uses this place: {node.name or node.id} at {node.url or 'an unknown address'} wrote to it "
            f"{max(0, now - node.seen) / 1e9:.0f} s ago. Stop it, or name another place; an entry of one that is gone "
            "counts for five minutes"
        )


async def _begin(view: BackupView, target: ObjectStore, now: int) -> bool:
    """Mark a store. Return whether everything of the backup is there already, of a run that lacked only its last step.

    Its hubs may run, and have deleted objects that another copy would bring back.
    """
    name = msgspec.json.encode({"cluster": view.record.cluster.hex(), "finished": view.record.finished})
    try:
        found = (await target.get(MARK)).data
    except NotFound:
        if there := await target.list("", limit=1):
            await _check_unused(target, now)
            raise BackupUnusable(
                f"the store to restore into is not empty: it has {there[0].key}. Name an empty one"
            ) from None
        await target.create(MARK, name)
        return False
    if found != name:
        raise BackupUnusable("another backup is half restored in this store: name an empty one")
    with contextlib.suppress(NotFound):
        await target.get(hub_keys.CLUSTER)
        return True
    return False


async def _folder(copier: Copier, prefix: str) -> None:
    turns = CopyTurns()
    async for item in listed(copier.source, prefix):
        if not item.key.endswith(f"/{LAST_CHECKPOINT}"):
            await turns.add(partial(copier.copy, item.key, item.size, item.key))
    await turns.join()


async def _put(target: ObjectStore, key: str, data: bytes) -> None:
    try:
        await target.create(key, data)
    except AlreadyExists:
        if (await target.get(key)).data != data and key != hub_keys.CLUSTER:
            raise BackupUnusable(f"the store has another {key} than the backup: name an empty one") from None
