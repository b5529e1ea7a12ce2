"""Copies of tables at a version into a backup."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import IO

from weft.proofs.backup.copying import Copier, CopyTurns, missing
from weft.proofs.backup.places import LAST_CHECKPOINT, is_of_table, listed, table_home, tables, version_of
from weft.proofs.backup.record import TablePart
from weft.storage import hub_keys
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.delta import checkpoint
from weft.storage.table.delta.entries import Action, plain_path
from weft.storage.table.delta.log import TableLog, decode_pointer
from weft.storage.table.instead import stands_instead


class LiveFiles:
    """The files of a table's version, by name: some 200 bytes of memory for each."""

    reads_files = True

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version, self.entry_hash = -1, b""
        self.sizes: dict[str, int] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        if action.add is not None:
            self.sizes[plain_path(action.add.path)] = action.add.size
        elif action.remove is not None:
            self.sizes.pop(plain_path(action.remove.path), None)

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one."""
        for added in checkpoint.files(file, name):
            self.sizes[plain_path(added.path)] = added.size


async def table_parts(store: ObjectStore, note: Callable[[str], None]) -> list[TablePart]:
    """Return the newest version of every table of a store.

    Args:
        note: takes a line on each folder among the tables that has none: it is left out.

    Raises:
        TableError: one cannot be read.
    """
    found = []
    async for tenant, stream in tables(store):
        if (part := await _part(store, tenant, stream)) is not None:
            found.append(part)
        else:
            note(f"{hub_keys.table_key(tenant, stream)} is no table, and is left out")
    with_all_rows = {(part.tenant, part.stream) for part in found}
    async for tenant, stream in tables(store, hub_keys.LATEST):
        key = hub_keys.latest_key(tenant, stream)
        if (tenant, stream) not in with_all_rows and stands_instead(await TableLog(store, key).read()):
            note(f"{key}, the only table of its stream, is left out: a restored hub makes it again from the log alone")
    return found


async def _part(store: ObjectStore, tenant: str, stream: str) -> TablePart | None:
    key = hub_keys.table_key(tenant, stream)
    state = await TableLog(store, key).read()
    if state is None:
        return None
    pointer: bytes | None = None
    try:
        pointer = (await store.get(f"{key}/{LAST_CHECKPOINT}")).data
        if not 0 <= decode_pointer(pointer).version <= state.version:
            pointer = None
    except NotFound:
        pointer = None
    return TablePart(tenant, stream, str(state.metadata["id"]), state.version, pointer)


async def copy_table(part: TablePart, copier: Copier) -> None:
    """Copy the files of a table that a backup lacks: those of its log up to the version, and all files of data.

    Files that no version names are among them, which costs room and no reading of the table.

    Raises:
        NotFound: an entry of the log was cleaned up meanwhile: begin again with a newer version.
    """
    here, home = hub_keys.table_key(part.tenant, part.stream), table_home(part.tenant, part.stream, part.life)
    turns = CopyTurns()

    async def names(store: ObjectStore, prefix: str) -> AsyncIterator[tuple[str, int]]:
        async for item in listed(store, prefix):
            name = item.key.removeprefix(f"{prefix}/")
            if is_of_table(name, part.version):
                yield name, item.size

    async for name, size in missing(names(copier.source, here), names(copier.target, home)):
        await turns.add(partial(_copy_file, copier, name, size, f"{here}/{name}", f"{home}/{name}"))
    await turns.join()


async def _copy_file(copier: Copier, name: str, size: int, key: str, to: str) -> None:
    try:
        await copier.copy(key, size, to)
    except NotFound:
        # A file of data that is gone was removed from the table long ago; of the log, the version may need it.
        if version_of(name) >= 0:
            raise
