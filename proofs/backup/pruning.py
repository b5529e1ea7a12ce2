"""Deletion of what the record of a backup no longer needs: the backup is then as large as the store."""

from __future__ import annotations

from collections.abc import AsyncIterator

from weft.proofs.backup.copying import CONTENTS, CopyTurns
from weft.proofs.backup.places import PAGE, listed, table_home, tables, version_of
from weft.proofs.backup.record import BackupUnusable, TablePart, read_record
from weft.proofs.backup.tables import LiveFiles
from weft.proofs.backup.view import BackupView
from weft.protocols.chunk import parse_file_name
from weft.storage import hub_keys
from weft.storage.object_store import ObjectStore
from weft.storage.table.delta.log import TableLog, decode_pointer


async def prune(place: ObjectStore, view: BackupView) -> int:
    """Delete objects of a backup that belong to earlier states of the store. Return their number.

    What a run that ended early has copied stays: the next one needs it.

    Args:
        view: the backup with the newest record.

    Raises:
        BackupUnusable: another run has replaced the record meanwhile.
        TableError: a table of the backup cannot be read.
        StoreError: the store did not answer. Run it again: it goes on.
    """
    turns, deleted = CopyTurns(), 0
    async for key in _useless(place, view):
        if not deleted % PAGE:
            await _check_newest(place, view)
        await turns.add(lambda key=key: place.delete(key))  # type: ignore[misc]
        deleted += 1
    await turns.join()
    return deleted


async def _check_newest(place: ObjectStore, view: BackupView) -> None:
    # What this record does not need, a newer one may.
    found = await read_record(place)
    if found is None or found.record != view.record:
        raise BackupUnusable(
            "another backup to this place was done while this one deleted objects: verify the backup with `weft hub "
            "verify`, and never let runs with --prune overlap others"
        )


async def _useless(place: ObjectStore, view: BackupView) -> AsyncIterator[str]:
    for part in view.record.shards:
        prefix = hub_keys.chunk_prefix(part.shard)
        async for item in listed(place, prefix):
            n = parse_file_name(item.key.removeprefix(prefix))
            if n is None or n >= part.first:
                break
            yield item.key
        async for item in listed(place, hub_keys.snapshot_prefix(part.shard)):
            n = hub_keys.parse_snapshot_key(item.key)
            if n is not None and n < part.first - 1:
                yield item.key
    kept = {(part.tenant, part.stream): part for part in view.record.tables}
    async for names in tables(place):
        async for key in _of_table(place, view, names, kept.get(names)):
            yield key
    needed = {view.record.others, *view.contents}
    async for item in listed(place, CONTENTS):
        if item.key not in needed:
            yield item.key


async def _of_table(
    place: ObjectStore, view: BackupView, names: tuple[str, str], part: TablePart | None
) -> AsyncIterator[str]:
    """Yield files that the version of the record does not have, of later versions excepted."""
    key, live, home = hub_keys.table_key(*names), LiveFiles(), ""
    if part is not None:
        home = f"{table_home(part.tenant, part.stream, part.life)}/"
        await TableLog(view, key).follow(live)
    newest = -1
    if part is not None and part.last_checkpoint is not None:
        newest = decode_pointer(part.last_checkpoint).version
    elif home:
        newest = await _newest_checkpoint(place, home, live.version)
    async for item in listed(place, key):
        if not home or not item.key.startswith(home):
            yield item.key  # of a table that was moved away, or whose stream was deleted
            continue
        name = item.key.removeprefix(home)
        version = version_of(name)
        if (version < 0 and name not in live.sizes) or 0 <= version < newest:
            yield item.key


async def _newest_checkpoint(place: ObjectStore, home: str, version: int) -> int:
    """Return the version of the newest checkpoint up to a version: a reading begins there if the log names none."""
    found = -1
    async for item in listed(place, f"{home}_delta_log"):
        name = item.key.removeprefix(home)
        if ".checkpoint" in name and version_of(name) <= version:
            found = max(found, version_of(name))
    return found
