"""A backup as the store that it is a copy of, for readers."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import msgspec

from weft.protocols.chunk import parse_file_name
from weft.protocols.lane import valid_name
from weft.protocols.shard.placement import SHARDS_MAX, ShardTree
from weft.storage import hub_keys
from weft.storage.cluster import decode
from weft.storage.object_store import AlreadyExists, Listed, NotFound, Object, ObjectStore, StoreUnfit
from weft.storage.object_store.probe import PREFIX as PROBES
from weft.storage.object_store.protocol import PART_SUFFIX, Buffer, Listing, check_key, check_prefix, clamp_range
from weft.storage.table import iceberg

# Record of a backup: its contents, and their ends. It is replaced after everything that it names is there.

RECORD = hub_keys.BACKUP
FORMAT = 1


class BackupUnusable(RuntimeError):
    """A backup that cannot be made, continued or read. The message says what to do."""


class ShardPart(msgspec.Struct, frozen=True):
    """One shard of a backup."""

    shard: int
    first: int
    """Number of the first chunk; those before it were collected at the hub."""
    end: int
    """Number after the last chunk."""
    footer_crc: int
    """Checksum of the last chunk's footer, which identifies the log's history; 0 without a chunk."""
    manifest: bytes | None
    """The shard's manifest; None where the hub had none yet."""


class TablePart(msgspec.Struct, frozen=True):
    """One table of a backup."""

    tenant: str
    stream: str
    life: str
    """Identifier that the table got when it was made: one that was moved away and made again has another."""
    version: int
    last_checkpoint: bytes | None = None
    """The log's pointer to its newest checkpoint, if that is of ``version`` at most."""


class BackupRecord(msgspec.Struct, frozen=True):
    """The contents of a backup."""

    format: int
    cluster: bytes
    """The store's ``cluster.json``."""
    shards: list[ShardPart]
    tables: list[TablePart]
    others: str
    """Key of the list of further objects, in the backup."""
    started: int
    """Nanoseconds since 1970: records that were acknowledged before this moment are in the backup."""
    finished: int


class FoundRecord(NamedTuple):
    """A record as read."""

    record: BackupRecord
    etag: str


async def read_record(store: ObjectStore) -> FoundRecord | None:
    """Return the record of a backup; None if there is none.

    Raises:
        BackupUnusable: a later release wrote it, or it is damaged.
        StoreError: the store did not answer.
    """
    try:
        found = await store.get(RECORD)
    except NotFound:
        return None
    try:
        version = msgspec.json.decode(found.data, type=dict[str, msgspec.Raw]).get("format")
        if version is not None and msgspec.json.decode(version) != FORMAT:
            raise BackupUnusable(
                f"{RECORD} has format {bytes(version).decode()}, this release knows {FORMAT}: use the release that "
                "made the backup"
            )
        return FoundRecord(msgspec.json.decode(found.data, type=BackupRecord), found.etag)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupUnusable(f"{RECORD} is damaged: {error}. Make the backup in a new place") from error


def encode(record: BackupRecord) -> bytes:
    """Return the record's bytes."""
    return msgspec.json.format(msgspec.json.encode(record))


# Keys of a hub's objects by the way in which a backup keeps them.
#
# Chunks, snapshots and the states of lanes that left never change, and keep their keys. The files of a table are
# below the table's life, since the same key may come again in another one. Everything else, of this release or of a
# later one, is kept by its content.

PAGE = 1000
"""Number of objects that are listed at a time."""
AFTER_ALL = "~"
"""Name after all others of a folder: no name of an object begins with it."""
PASSING = (
    hub_keys.NODES,
    hub_keys.LINKED,
    hub_keys.SUMMARIES,
    hub_keys.KEEPERS,
    hub_keys.LATEST,
    hub_keys.REGIONS,
    hub_keys.REQUESTS,
    hub_keys.PIPELINES,
    hub_keys.SHARING,
    PROBES,
)
"""Folders of which a backup keeps nothing: those of running nodes and pipelines, positions of other regions in the log,
which are of its history alone, tables that a hub makes again from others, options of acts that wait for approval, as
they may name a person, and an approval that was used must not come back, and the secret that signs URLs of files."""
_SHARD = re.compile(r"shard-\d+")
_OF_LOG = ("chunk", "snapshot", "ended")
LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
_VERSION = re.compile(rf"{LOG_FOLDER}/(\d{{20}})\.")


def table_home(tenant: str, stream: str, life: str) -> str:
    """Return the folder of a table in a backup."""
    return f"{hub_keys.table_key(tenant, stream)}/{life}"


def version_of(name: str) -> int:
    """Return the version that a file of a table's log belongs to; -1 for files of data."""
    found = _VERSION.match(name)
    return int(found[1]) if found else -1


def is_of_table(name: str, version: int) -> bool:
    """Return whether a backup of a table's version keeps a file, named from the table's folder. Iceberg metadata names
    files of one place, and is made again."""
    if name.startswith(f"{iceberg.FOLDER}/"):
        return False
    return name != LAST_CHECKPOINT and not name.endswith(PART_SUFFIX) and version_of(name) <= version


async def listed(store: ObjectStore, prefix: str, after: str | None = None) -> AsyncIterator[Listed]:
    """Yield the objects below a folder, a page in memory at a time."""
    while page := await store.list(prefix, after=after, limit=PAGE):
        for item in page:
            yield item
        after = page[-1].key


async def tables(store: ObjectStore, top: str = "tables") -> AsyncIterator[tuple[str, str]]:
    """Yield tenant and stream of each folder of a table, without a listing of its files."""
    after: str | None = None
    while page := await store.list(top, after=after, limit=1):
        parts = page[0].key.split("/")
        after = page[0].key
        if len(parts) > 3:
            yield parts[1], parts[2]
            after = f"{'/'.join(parts[:3])}/{AFTER_ALL}"


async def others(store: ObjectStore) -> AsyncIterator[Listed]:
    """Yield the objects that are kept by their content. Folders of others are passed over without a listing."""
    after: str | None = None
    while page := await store.list("", after=after, limit=PAGE):
        for item in page:
            past = _past(item.key)
            after = past or item.key
            if past is not None:
                break
            yield item


def _past(key: str) -> str | None:
    """Return a key after the folder of an object that is kept in another way, or not at all; None for one that is kept
    by its content."""
    top, _, rest = key.partition("/")
    if key == hub_keys.CLUSTER or key.endswith(PART_SUFFIX):
        return key
    if top in PASSING or top == "tables":
        return f"{top}/{AFTER_ALL}"
    if _SHARD.fullmatch(top):
        folder = rest.partition("/")[0]
        if folder in _OF_LOG:
            return f"{top}/{folder}/{AFTER_ALL}"
        if rest == "manifest":
            return key
    return None


def is_inside(target: ObjectStore, store: ObjectStore) -> bool:
    """Return whether a place is a folder of a store, of which each run would copy it again."""
    try:
        (inner, here), (outer, there) = target.location("a"), store.location("a")
    except StoreUnfit:
        return False  # in memory
    if "://" not in inner and "://" not in outer:
        inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    root = outer.removesuffix("a")
    return here == there and inner.startswith(root) and inner != outer


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
                raise ValueError(f"{key[:80]} is listed with {size} bytes at {content[:80]!r}")
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


# Copies of objects from one store to another, in bounded memory.

AT_ONCE = 8
WHOLE_BYTES_MAX = 4 << 20
"""Size up to which an object is copied in one piece; of larger ones ``PIECE_BYTES`` are in memory."""
PIECE_BYTES = 4 << 20
CONTENTS = "contents"


class Unlike(BackupUnusable):
    """An object that is not the one that was to be copied."""


@dataclass
class Copied:
    """Counts of one run."""

    objects: int = 0
    bytes: int = 0
    there: int = 0
    """Objects that an earlier run had copied."""


def content_key(data: bytes) -> str:
    """Return the key of an object that is kept by its content."""
    return f"{CONTENTS}/{sha256(data).hexdigest()}"


class Copier:
    """Copies objects of one store into another, and counts them."""

    def __init__(self, source: ObjectStore, target: ObjectStore) -> None:
        self.source, self.target = source, target
        self.counts = Copied()

    async def copy(self, key: str, size: int, to: str) -> None:
        """Copy an object that never changes. One that is there already is the same: names of objects are given once.

        Args:
            to: its key in the target.

        Raises:
            NotFound: the object is gone.
            Unlike: it has another length.
        """
        await self._copy(size, to, self._pieces(key, size))

    async def copy_kept(self, key: str, size: int, content: str) -> None:
        """Copy an object out of a backup, whose content has to be that of its key there.

        Raises:
            NotFound: the object is gone.
            Unlike: it has another length or content.
        """
        await self._copy(size, key, checked(key, content, self._pieces(key, size)))

    async def _copy(self, size: int, to: str, pieces: AsyncIterator[bytes]) -> None:
        if size <= WHOLE_BYTES_MAX:
            await self.put(to, b"".join([piece async for piece in pieces]))
            return
        try:
            await self.target.create_from(to, pieces)
        except AlreadyExists:
            self.counts.there += 1
        else:
            self._count(size)

    async def keep(self, key: str, size: int) -> str:
        """Copy an object that may change, under a key of its content, which is returned.

        Raises:
            NotFound: the object is gone.
        """
        if size <= WHOLE_BYTES_MAX:
            data = (await self.source.get(key)).data
            await self.put(to := content_key(data), data)
            return to
        # Read twice: what is as long as this changes no more.
        digest = sha256()
        async for piece in self._pieces(key, size):
            digest.update(piece)
        await self.copy(key, size, to := f"{CONTENTS}/{digest.hexdigest()}")
        return to

    async def put(self, key: str, data: Buffer) -> bool:
        """Create an object. Return False if there is one."""
        try:
            await self.target.create(key, data)
        except AlreadyExists:
            self.counts.there += 1
            return False
        self._count(len(data))
        return True

    def _count(self, size: int) -> None:
        self.counts.objects += 1
        self.counts.bytes += size

    def _pieces(self, key: str, size: int) -> AsyncIterator[bytes]:
        return pieces(self.source, key, size)


async def pieces(source: ObjectStore, key: str, size: int) -> AsyncIterator[bytes]:
    """Yield an object in pieces.

    Raises:
        NotFound: the object is gone.
        Unlike: it has another length.
    """
    for at in range(0, size, PIECE_BYTES):
        length = min(PIECE_BYTES, size - at)
        is_last = at + length == size
        # One byte more than there should be: what is longer is not read on.
        piece = await source.get_range(key, at, length + is_last)
        if len(piece) != length:
            raise Unlike(f"{key} differs in length from the recorded {size} bytes")
        yield piece


async def checked(key: str, content: str, found: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces of an object of a backup.

    Raises:
        Unlike: with the last piece: they are not the content that the key ``content`` in the backup names.
    """
    digest = sha256()
    async for piece in found:
        digest.update(piece)
        yield piece
    if f"{CONTENTS}/{digest.hexdigest()}" != content:
        raise Unlike(f"{key} is not what {content} was when the backup was made")


class CopyTurns:
    """Runs calls, at most ``AT_ONCE`` at a time. The first error ends them all."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None

    async def add(self, call: Callable[[], Awaitable[None]]) -> None:
        """Start a call once there is a place. Raise the error of an earlier one."""
        await self._places.acquire()
        if self._failed is not None:
            self._places.release()
            await self.join()
        task = asyncio.create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _run(self, call: Callable[[], Awaitable[None]]) -> None:
        await call()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None and self._failed is None:
            self._failed = error

    async def join(self) -> None:
        """Wait for all calls. Raise the first error."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._failed is not None:
            raise self._failed


async def missing(
    source: AsyncIterator[tuple[str, int]], there: AsyncIterator[tuple[str, int]]
) -> AsyncIterator[tuple[str, int]]:
    """Yield the (name, size) of a listing that another one lacks. Both ascend by name."""
    other: tuple[str, int] | None = ("", 0)
    async for item in source:
        while other is not None and other[0] < item[0]:
            other = await anext(there, None)
        if other is None or other[0] != item[0]:
            yield item
