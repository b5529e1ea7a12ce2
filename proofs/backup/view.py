"""A backup as the store that it is a copy of, for readers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cached_property

import msgspec

from weft.proofs.backup.places import LAST_CHECKPOINT, is_of_table, listed, table_home
from weft.proofs.backup.record import RECORD, BackupRecord, BackupUnusable, ShardPart, TablePart, read_record
from weft.protocols.chunk import parse_file_name
from weft.protocols.lane import valid_name
from weft.protocols.shard.placement import SHARDS_MAX, ShardTree
from weft.storage import hub_keys
from weft.storage.cluster import decode
from weft.storage.object_store import Listed, NotFound, Object, ObjectStore, StoreUnfit
from weft.storage.object_store.protocol import Buffer, Listing, check_key, check_prefix, clamp_range

_CONTENT = re.compile("contents/[0-9a-f]{64}")
_READ_ONLY = "a backup is not changed; restore it into a new store (`weft hub restore`)"


class BackupView:
    """An ``ObjectStore`` with the objects of a backup's record under the keys that they had. It cannot be written.

    Args:
        store: the place of the backup.
        others: key and content's key and size of the further objects.
    """

    def __init__(self, store: ObjectStore, record: BackupRecord, others: Iterable[tuple[str, str, int]]) -> None:
        self.record = record
        self._store = store
        self._parts = {part.shard: part for part in record.shards}
        self._tables = {(part.tenant, part.stream): part for part in record.tables}
        self._others = {key: (content, size) for key, content, size in others}
        self._held = {hub_keys.CLUSTER: record.cluster}
        for part in record.shards:
            if part.manifest is not None:
                self._held[hub_keys.manifest_key(part.shard)] = part.manifest
        for table in record.tables:
            if table.last_checkpoint is not None:
                key = f"{hub_keys.table_key(table.tenant, table.stream)}/{LAST_CHECKPOINT}"
                self._held[key] = table.last_checkpoint

    @property
    def contents(self) -> set[str]:
        """Return the keys in the backup of the further objects."""
        return {content for content, _ in self._others.values()}

    @property
    def others(self) -> Mapping[str, tuple[str, int]]:
        """Return the further objects: key -> content's key, and size."""
        return self._others

    async def get(self, key: str) -> Object:
        """Return the whole object."""
        held = self._held.get(check_key(key))
        return Object(held, "") if held is not None else await self._store.get(self._place(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object."""
        held = self._held.get(check_key(key))
        if held is None:
            return await self._store.get_range(self._place(key), start, length)
        first, end = clamp_range(len(held), start, length)
        return held[first:end]

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        """Return objects below a folder, ascending."""
        found: Listing = []
        async for item in self._listed(check_prefix(prefix), after or ""):
            if limit is not None and len(found) >= limit:
                break
            found.append(item)
        return found

    async def sync(self, key: str) -> None:
        """Do nothing: a backup's objects are durable."""
        await self.get_range(key, 0, 0)

    def location(self, key: str) -> tuple[str, dict[str, str]]:
        """Return the place of a table in the backup: it may have later versions than the record's."""
        top, _, rest = key.partition("/")
        names = tuple(rest.split("/"))
        if top == "tables" and len(names) == 2 and (part := self._tables.get((names[0], names[1]))) is not None:
            return self._store.location(table_home(part.tenant, part.stream, part.life))
        raise StoreUnfit(f"{key}: {_READ_ONLY}")

    async def create(self, key: str, data: Buffer) -> str:  # noqa: ARG002
        """Refuse."""
        raise StoreUnfit(f"{key}: {_READ_ONLY}")

    async def create_from(self, key: str, parts: AsyncIterator[Buffer]) -> int:  # noqa: ARG002
        """Refuse."""
        raise StoreUnfit(f"{key}: {_READ_ONLY}")

    async def swap(self, key: str, data: Buffer, expected_etag: str) -> str:  # noqa: ARG002
        """Refuse."""
        raise StoreUnfit(f"{key}: {_READ_ONLY}")

    async def delete(self, key: str) -> None:
        """Refuse."""
        raise StoreUnfit(f"{key}: {_READ_ONLY}")

    def _place(self, key: str) -> str:
        """Return the key of an object in the backup's place.

        Raises:
            NotFound: the backup's record does not have it.
        """
        if (other := self._others.get(key)) is not None:
            return other[0]
        parts = key.split("/")
        if parts[0] == "tables" and len(parts) > 3 and (table := self._tables.get((parts[1], parts[2]))) is not None:
            name = "/".join(parts[3:])
            if is_of_table(name, table.version):
                return f"{table_home(table.tenant, table.stream, table.life)}/{name}"
        if self._has(key):
            return key
        raise NotFound(key)

    def _has(self, key: str) -> bool:
        """Return whether an object of a shard's log is of the record, which may be older than what is there."""
        top, _, rest = key.partition("/")
        number = top.removeprefix("shard-")
        part = self._parts.get(int(number)) if number.isdecimal() else None
        folder, _, name = rest.partition("/")
        if part is None or top == number:
            return False
        if folder == "chunk":
            n = parse_file_name(name)
            return n is not None and part.first <= n < part.end
        if folder == "snapshot":
            return hub_keys.parse_snapshot_key(key) in self._snapshots(part)
        return folder == "ended" and hub_keys.parse_ended_key(key)[1] < part.end

    def _snapshots(self, part: ShardPart) -> range:
        """Return the numbers at which a shard of the record has snapshots."""
        halved = self._tree.parent(part.shard)
        if part.manifest is None and halved is not None:
            # It begins with a state of a number of the halved shard, whose log names it.
            return range(self._parts[halved].end)
        return range(part.first - 1, part.end)

    @cached_property
    def _tree(self) -> ShardTree:
        return decode(self.record.cluster).tree

    async def _listed(self, prefix: str, after: str) -> AsyncIterator[Listed]:
        """Yield what the record has below a folder of one kind of objects, or of further ones."""
        top, _, rest = prefix.partition("/")
        if top == "tables" and rest:
            names = rest.split("/")
            table = self._tables.get((names[0], names[1])) if len(names) > 1 else None
            if table is None:
                raise NotImplementedError("a listing of several tables of a backup")
            source = self._table(table, prefix, after)
        elif top.startswith("shard-") and rest:
            source = self._of_log(prefix, after)
        else:
            source = _nothing()
        start = f"{prefix}/" if prefix else ""
        held = [Listed(key, len(data)) for key, data in self._held.items()]
        held += [Listed(key, size) for key, (_, size) in self._others.items()]
        more = sorted(item for item in held if item.key.startswith(start) and item.key > after)
        at = 0
        async for item in source:
            while at < len(more) and more[at].key < item.key:
                yield more[at]
                at += 1
            yield item
        for item in more[at:]:
            yield item

    async def _of_log(self, prefix: str, after: str) -> AsyncIterator[Listed]:
        async for item in listed(self._store, prefix, after or None):
            if self._has(item.key):
                yield item

    async def _table(self, table: TablePart, prefix: str, after: str) -> AsyncIterator[Listed]:
        here = hub_keys.table_key(table.tenant, table.stream)
        home = table_home(table.tenant, table.stream, table.life)
        start = home + after.removeprefix(here) if after.startswith(f"{here}/") else None
        if after > f"{here}/" and start is None:
            return
        async for item in listed(self._store, home + prefix.removeprefix(here), start):
            name = item.key.removeprefix(f"{home}/")
            if is_of_table(name, table.version):
                yield Listed(f"{here}/{name}", item.size)


async def _nothing() -> AsyncIterator[Listed]:
    for item in list[Listed]():
        yield item


async def read_others(store: ObjectStore, record: BackupRecord) -> list[tuple[str, str, int]]:
    """Return key, key in the backup and bytes of each further object. Raises as ``open_backup``."""
    try:
        lines = (await store.get(record.others)).data.splitlines()
        found = [msgspec.json.decode(line, type=tuple[str, str, int]) for line in lines]
        for key, content, size in found:
            check_key(key)
            if _CONTENT.fullmatch(content) is None or size < 0:
                raise ValueError(f"{key[:80]} is said to be {size} bytes at {content[:80]!r}")
        return found
    except (NotFound, ValueError, RecursionError) as error:  # errors of msgspec are ValueErrors
        raise BackupUnusable(f"{record.others}, a list of objects, is missing or damaged: {error}") from error


async def open_backup(store: ObjectStore) -> BackupView | None:
    """Return the backup in a place; None if there is none.

    Raises:
        BackupUnusable: it is damaged, or of a later release.
        StoreError: the store did not answer.
    """
    found = await read_record(store)
    if found is None:
        return None
    others = await read_others(store, found.record)
    _check(found.record)
    return BackupView(store, found.record, others)


def _check(record: BackupRecord) -> None:
    """Refuse a record whose parts no hub can have: who may write to the place of a backup may have written it."""
    try:
        decode(record.cluster)
        for part in record.shards:
            if not (0 <= part.shard < SHARDS_MAX and 0 <= part.first <= part.end):
                raise ValueError(f"shard {part.shard} with chunks {part.first} to {part.end}")
        for table in record.tables:
            check_key(f"{hub_keys.table_key(table.tenant, table.stream)}/{table.life}")
            if not (valid_name(table.tenant) and valid_name(table.stream)):
                raise ValueError(f"table {table.tenant[:80]!r}/{table.stream[:80]!r}")
    except (ValueError, RecursionError) as error:
        raise BackupUnusable(f"{RECORD} is damaged: {error}. Make the backup in a new place") from error
