"""Iceberg metadata beside a Delta table (Apache Iceberg, "Iceberg Table Spec", version 2): its form and its pointer.

The metadata names the Parquet files of the Delta table; no file is written twice. It is in the folder ``_iceberg`` of
the table, which Delta's vacuum passes over. Creating the object of version N is the commit: one writer gets the number.
The hint follows, so a reader of the hint finds a version that is whole, at most one too old.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import Any, NamedTuple

import msgspec

from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore
from weft.storage.object_store.protocol import PreconditionFailed
from weft.storage.table.actions import TableConflict, TableError

FOLDER = "_iceberg"
"""Folder in that of the table. Engines that read a table by its path are given this one."""
HINT = "version-hint.text"
FORMAT_VERSION = 2
VERSION_PROPERTY, ENTRY_PROPERTY = "weft.delta-version", "weft.delta-entry"
"""Properties of table and snapshots: the Delta version with the same rows, and the hash of its entry."""
AFTER_PROPERTY = "weft.after-delta-version"
"""Property of snapshots on the way to a version: the version before, whose rows they may still have."""
POSITIONS_PROPERTY, COMPLETE_PROPERTY = "weft.positions", "weft.complete-until"
"""Properties of snapshots: the next offset of each shard, in JSON, and the moment up to which the rows are complete."""
_NAME = re.compile(r"v(\d+)\.metadata\.json")
_OBJECT = re.compile(rb"(\d{20})-[0-9a-f]{32}\.avro")
NUMBERS_MAX = 1000
"""Maximum number of versions by which the hint is behind before a look gives up."""


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Snapshot(msgspec.Struct, rename=_kebab, frozen=True):
    """A snapshot of the table ("Snapshots")."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    """Its URI."""
    summary: dict[str, str]
    schema_id: int
    parent_snapshot_id: int | msgspec.UnsetType = msgspec.UNSET


class LogEntry(msgspec.Struct, rename=_kebab, frozen=True):
    """A moment at which a snapshot became the current one."""

    timestamp_ms: int
    snapshot_id: int


class Metadata(msgspec.Struct, rename=_kebab, frozen=True, kw_only=True):
    """Metadata of a table ("Table Metadata Fields"). Tables are not partitioned, and have no order of their own."""

    table_uuid: str
    """Identifier of the Delta table."""
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    schemas: list[dict[str, Any]]
    current_schema_id: int
    properties: dict[str, str]
    snapshots: list[Snapshot]
    """Oldest first; the last one is the current one."""
    snapshot_log: list[LogEntry]
    refs: dict[str, dict[str, Any]]
    current_snapshot_id: int
    format_version: int = FORMAT_VERSION
    partition_specs: list[dict[str, Any]] = msgspec.field(default_factory=lambda: [{"spec-id": 0, "fields": []}])
    default_spec_id: int = 0
    last_partition_id: int = 999
    sort_orders: list[dict[str, Any]] = msgspec.field(default_factory=lambda: [{"order-id": 0, "fields": []}])
    default_sort_order_id: int = 0

    @property
    def delta_version(self) -> int:
        """Return the Delta version with the same rows."""
        return int(self.properties[VERSION_PROPERTY])


class Found(NamedTuple):
    """A version of the metadata."""

    number: int
    data: bytes

    def metadata(self) -> Metadata:
        """Return its content.

        Raises:
            TableError: it is damaged, or another program wrote it.
        """
        try:
            found = msgspec.json.decode(self.data, type=Metadata)
            msgspec.convert(found.properties[VERSION_PROPERTY], int, strict=False)
        except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
            raise TableError(
                f"Iceberg metadata {self.number} is damaged: {error}. Remove the folder {FOLDER}"
            ) from None
        return found


def metadata_folder(table: str) -> str:
    """Return the folder of metadata, manifest lists and manifests of a table in the store."""
    return f"{table}/{FOLDER}/metadata"


def metadata_key(table: str, number: int) -> str:
    """Return the key of a version of the metadata: immutable, made with create-if-absent."""
    return f"{metadata_folder(table)}/v{number}.metadata.json"


def number_of(key: str) -> int | None:
    """Return the number of a version of the metadata by its key; None for another object's."""
    found = _NAME.fullmatch(key.rpartition("/")[2])
    return int(found[1]) if found else None


def new_object(version: int) -> str:
    """Return the name of a new manifest, or list of them, that has no rows which the Delta table lost before a version,
    and may have some that it lost since."""
    return f"{version:020d}-{secrets.token_hex(16)}.avro"


def table_uri(store: ObjectStore, key: str) -> str:
    """Return the URI of an object or folder, as engines on any machine take it.

    Raises:
        StoreUnfit: as ``ObjectStore.location``.
    """
    uri, _ = store.location(key)
    return uri if "://" in uri else f"file://{uri}"


async def current(store: ObjectStore, table: str) -> Found | None:
    """Return the newest version of the metadata; None without any. Raises StoreError."""
    number = await _hinted(store, table)
    if number is None:
        return None
    try:
        found = Found(number, (await store.get(metadata_key(table, number))).data)
    except NotFound:
        return None  # removed with its table
    # A writer that died between the version and the hint left one that the hint does not name.
    for number in range(found.number + 1, found.number + NUMBERS_MAX):
        try:
            found = Found(number, (await store.get(metadata_key(table, number))).data)
        except NotFound:
            break
    return found


async def _hinted(store: ObjectStore, table: str) -> int | None:
    with contextlib.suppress(NotFound, ValueError):
        return int((await store.get(f"{metadata_folder(table)}/{HINT}")).data)
    numbers = [number_of(item.key) for item in await store.list(metadata_folder(table))]
    return max((number for number in numbers if number is not None), default=None)


async def has_before(store: ObjectStore, table: str, version: int) -> bool:
    """Return whether a snapshot may have the rows of versions before one of the Delta table, or a manifest that no
    snapshot names, and the next sweeps delete, their bounds.

    Raises:
        StoreError: as ``current``.
        TableError: the metadata is damaged.
    """
    found, snapshots = await current(store, table), list[Snapshot]()
    if found is not None:
        metadata = found.metadata()
        snapshots = metadata.snapshots
        # Snapshots of one window are made together: the last one has the version, the others have the one before all.
        of = (each.summary.get(VERSION_PROPERTY) or each.summary.get(AFTER_PROPERTY) for each in snapshots[:-1])
        if metadata.delta_version < version or any(int(each) < version for each in of if each is not None):
            return True
    folder, old, after = metadata_folder(table), set[str](), None
    while page := await store.list(folder, after=after, limit=1000):
        after = page[-1].key
        names = [item.key.rpartition("/")[2] for item in page]
        old |= {each for each in names if each.endswith(".avro") and _is_before(each, version)}
    # Manifests that the snapshots took over have the rows of today alone.
    old -= {each.manifest_list.rpartition("/")[2] for each in snapshots}
    for each in reversed(snapshots):
        if not old:
            break
        try:
            listed = await store.get(f"{folder}/{each.manifest_list.rpartition('/')[2]}")
        except NotFound:
            return True  # swept meanwhile: a later look tells
        # The lists are not compressed, so the names are there as they are; what is not found counts as left over.
        old -= {name[0].decode() for name in _OBJECT.finditer(listed.data)}
    return bool(old)


def _is_before(name: str, version: int) -> bool:
    found = _OBJECT.fullmatch(name.encode())
    return found is None or int(found[1]) < version


async def commit(store: ObjectStore, table: str, number: int, metadata: Metadata) -> None:
    """Create a version of the metadata, and move the hint to it. It is durable.

    Raises:
        TableConflict: another writer has made this version, or a later one.
        StoreError: the outcome is unknown; ``current`` shows it.
    """
    try:
        await store.create(metadata_key(table, number), msgspec.json.encode(metadata))
    except AlreadyExists:
        raise TableConflict(f"{table}: another writer has made version {number} of the Iceberg metadata") from None
    if (hinted := await point(store, table, number)) > number:
        # The versions in between were removed already, so this number was free again.
        raise TableConflict(f"{table}: version {number} of the Iceberg metadata came after version {hinted}")


async def point(store: ObjectStore, table: str, number: int) -> int:
    """Move the hint to a version, never back. Return the version that it names then."""
    key = f"{metadata_folder(table)}/{HINT}"
    while True:
        try:
            found = await store.get(key)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await store.create(key, str(number).encode())
                return number
            continue
        named = int(found.data) if found.data.isdigit() else -1
        if named >= number:
            return named
        with contextlib.suppress(PreconditionFailed):
            await store.swap(key, str(number).encode(), found.etag)
            return number
