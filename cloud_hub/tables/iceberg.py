"""Writer of the Iceberg metadata of tables: the changes of a Delta log as snapshots over the same files.

A window of Delta versions becomes up to three snapshots, in one version of the metadata: new rows as ``append``, joins
of files as ``replace``, and what erasures, retention and other engines changed as ``delete`` or ``overwrite``. It is
one snapshot where files of the window may be gone by now. Its cost grows with the window: manifests that name none of
its files are taken over as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, pairwise
from typing import IO, Any, NamedTuple, TypeVar

import msgspec
from pyiceberg.manifest import ManifestEntry
from pyiceberg.schema import Schema

from weft.storage.object_store import NotFound, ObjectStore, StoreError
from weft.storage.table import manifests
from weft.storage.table.actions import (
    READABLE_FEATURES,
    Action,
    AddedFile,
    TableConflict,
    TableError,
    TableProtocol,
    plain_path,
)
from weft.storage.table.delta import in_thread
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import FileFollower, checkpoint_files, take_facts
from weft.storage.table.iceberg import (
    AFTER_PROPERTY,
    COMPLETE_PROPERTY,
    ENTRY_PROPERTY,
    FOLDER,
    HINT,
    POSITIONS_PROPERTY,
    VERSION_PROPERTY,
    LogEntry,
    Metadata,
    Snapshot,
    commit,
    current,
    metadata_folder,
    new_object,
    number_of,
    point,
    table_uri,
)
from weft.storage.table.manifests import Columns, Manifest

FEATURES = READABLE_FEATURES | {"deletionVectors"}
"""Reader features of Delta tables whose files have the rows as Iceberg reads them; a file with a vector is refused."""
MANIFEST_FILES = 4096
"""Maximum number of new files of a manifest: writing it again takes some 0.4 s."""
SMALL_MAX = 32
"""Number of manifests with less than that many files from which on they are joined."""
READ_AHEAD = 16
"""Number of manifests whose beginnings are read at a time."""
SNAPSHOTS_MAX = 200
"""Maximum number of snapshots that readers may name; each takes a kilobyte of every version of the metadata."""
METADATA_KEPT = 10
"""Number of versions of the metadata that are kept for readers that have read an older hint."""
TABLE_PROPERTIES = (VERSION_PROPERTY, ENTRY_PROPERTY, POSITIONS_PROPERTY, COMPLETE_PROPERTY)
"""Properties of the table: a window without files makes no snapshot that could have them."""
T = TypeVar("T")


def _batched(items: Iterable[T], most: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := [*islice(rest, most)]:
        yield batch


# The changes of a window of Delta versions.


@dataclass
class _Change:
    """Files that come in the place of others in one snapshot."""

    added: dict[str, AddedFile] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def touches(self, paths: Collection[str]) -> bool:
        """Return whether it has one of these files."""
        return not (self.removed.isdisjoint(paths) and self.added.keys().isdisjoint(paths))

    def take(self, added: Iterable[AddedFile], removed: Iterable[str]) -> None:
        for path in removed:
            if self.added.pop(path, None) is None:
                self.removed.add(path)
        for file in added:
            if file.path in self.removed and file.deletionVector is None:
                self.removed.remove(file.path)  # a version before was restored: the file stays as it is named
            else:
                self.added[file.path] = file


class Changes(FileFollower[AddedFile]):
    """The changes of a table after a version; all of its files if the log no longer leads there.

    Args:
        begin: the version, and the hash of its entry; None for all files.
        store: stores a manifest of files that a version has, by the metadata of the table; called in a thread.
    """

    def __init__(
        self,
        begin: tuple[int, bytes] | None,
        store: Callable[[int, Mapping[str, Any], Sequence[AddedFile]], Manifest],
        applications: str,
    ) -> None:
        self._store, self._applications = store, applications
        super().__init__()
        if begin is not None:
            self.version, self.entry_hash = begin
            self.is_whole = False

    def clear(self) -> None:
        """Forget the table."""
        super().clear()
        self.is_whole = True
        self.base: list[Manifest] = []
        """Manifests of the files of a checkpoint, in the store."""
        self.appended: dict[str, AddedFile] = {}
        self.joined, self.changed = _Change(), _Change()
        self.metadata: dict[str, Any] | None = None
        """The table's metadata, if the window has it."""
        self.positions: dict[str, int] = {}
        """Shard -> next offset, as far as the window moved it."""
        self.removed_ms: int | None = None
        """Time of the first removal of a file, milliseconds since 1970; None without any."""
        self._protocol: TableProtocol | None = None
        self._entry, self._added, self._removed = -1, list[AddedFile](), dict[str, bool]()

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        if self._entry != self.version:
            self.finish()
            self._entry = self.version
        if action.add is not None:
            self._added.append(_plain(action.add))
        elif action.remove is not None:
            self._removed[plain_path(action.remove.path)] = action.remove.dataChange
            removed_ms = action.remove.deletionTimestamp or 0
            self.removed_ms = removed_ms if self.removed_ms is None else min(self.removed_ms, removed_ms)
        else:
            self._fact(action)

    def _fact(self, action: Action) -> None:
        self.metadata = action.metaData or self.metadata
        self._protocol = action.protocol or self._protocol
        if action.txn is not None and action.txn.appId.startswith(self._applications):
            shard = action.txn.appId.removeprefix(self._applications)
            if shard.isdecimal():
                self.positions[shard] = action.txn.version

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one, in a thread. Raises as ``take_facts``."""
        take_facts(file, name, self._fact)
        file.seek(0)
        version = int(name.rpartition("/")[2].partition(".")[0])
        # Neither a million files nor their manifests are ever in memory.
        for files in _batched(checkpoint_files(file, name), MANIFEST_FILES):
            if self.metadata is None:
                raise TableError(f"{name} names files before the table's schema: write a checkpoint again")
            self.base.append(self._store(version, self.metadata, [*map(_plain, files)]))

    def finish(self) -> None:
        """Take the end of an entry: what it is, the flags of all of its files say."""
        added, removed, self._added, self._removed = self._added, self._removed, [], {}
        changes_rows = any(removed.values()) or any(file.dataChange for file in added)
        touched = {*removed, *(file.path for file in added)}
        if not (removed or changes_rows or self.changed.touches(touched)):
            return  # files of which the log says that no row is new are there already: they got other statistics
        if self.is_whole:
            self.changed.take(added, removed)
        elif self.joined.touches(touched) and changes_rows:
            self._fold_joins()
            self._fold(added, removed)
        elif self.changed.touches(touched) or (removed and changes_rows):
            self._fold(added, removed)
        elif self.appended.keys() >= removed.keys():
            # Files that came and were joined within the window were never there for readers of snapshots.
            for path in removed:
                del self.appended[path]
            self.appended.update((file.path, file) for file in added)
        else:
            self.joined.take(added, removed)

    def _fold(self, added: Iterable[AddedFile], removed: Collection[str]) -> None:
        """Take a change of rows: no snapshot before it names files that came and went within the window."""
        self.changed.take(added, [path for path in removed if self.appended.pop(path, None) is None])

    def _fold_joins(self) -> None:
        joined, self.joined = self.joined, _Change()
        self._fold(joined.added.values(), joined.removed)

    def fold_all(self) -> None:
        """Make one change of all, after which no snapshot names files that came or went within the window."""
        self._fold_joins()
        appended, self.appended = self.appended, {}
        self.changed.take(appended.values(), ())

    def check(self) -> None:
        """Check that the files have the table's rows in a form that Iceberg knows.

        Raises:
            TableError: they do not.
        """
        found = set(self._protocol.readerFeatures or ()) - FEATURES if self._protocol is not None else set()
        metadata = self.metadata or {}
        if (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none") != "none":
            found.add("columnMapping")
        found |= {f"partition by {name}" for name in metadata.get("partitionColumns") or ()}
        if found:
            raise TableError(f"the table has {', '.join(sorted(found))}, which its Iceberg metadata cannot express")


def _plain(file: AddedFile) -> AddedFile:
    path = plain_path(file.path)
    return file if path == file.path else msgspec.structs.replace(file, path=path)


# Snapshots of a window.


class Claim(NamedTuple):
    """A moment up to which a stream is complete once its table has the offsets below these."""

    moment: str
    """In ISO 8601."""
    offsets: Mapping[int, int]

    def holds(self, positions: Mapping[str, int]) -> bool:
        """Return whether a table at these positions has all of it."""
        return all(positions.get(str(shard), 0) >= end for shard, end in self.offsets.items())


class _Known(NamedTuple):
    """A version of the metadata, with the manifests of its current snapshot."""

    number: int
    metadata: Metadata
    manifests: Sequence[Manifest]


class _Unknown(Exception):
    """A removed file that no manifest names."""


class _Place:
    """The folder of the metadata in the store.

    Args:
        is_late: returns whether the writer has taken too long to make objects.
    """

    def __init__(self, store: ObjectStore, table: str, is_late: Callable[[], bool] = lambda: False) -> None:
        self._store, self._table, self._folder, self._is_late = store, table, metadata_folder(table), is_late
        self.files = table_uri(store, table)
        """URI of the table's folder."""
        self.location = f"{self.files}/{FOLDER}"

    def new_uri(self, version: int) -> str:
        """Return that of a new object; see ``new_object``."""
        return f"{self.location}/metadata/{new_object(version)}"

    def check(self) -> None:
        """Check that the writer is in time.

        Raises:
            TableConflict: it is late.
        """
        if self._is_late():
            raise TableConflict(f"{self._table}: a sweep may have taken the new manifests for left ones")

    async def put(self, uri: str, data: bytes) -> None:
        # A process that was frozen meanwhile would leave bounds of a window for which an erasure has waited already.
        self.check()
        await self._store.create(f"{self._folder}/{uri.rpartition('/')[2]}", data)

    async def get(self, uri: str) -> bytes:
        return (await self._store.get(f"{self._folder}/{uri.rpartition('/')[2]}")).data

    async def with_paths(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the digests that it begins with, if they are not known."""
        if manifest.paths is not None:
            return manifest
        key = f"{self._folder}/{manifest.file.manifest_path.rpartition('/')[2]}"
        return manifest._replace(paths=manifests.named_in(await self._store.get_range(key, 0, manifests.HEADER_BYTES)))


class _Draft:
    """The snapshots of a window, on top of those of a version of the metadata.

    Args:
        snapshot: id of the first one.
        version: the Delta version with which the window begins.
    """

    def __init__(
        self, place: _Place, known: _Known | None, schema: Schema, snapshot: int, version: int, *, now_ms: int
    ) -> None:
        self._place, self._schema, self._version, self._now_ms = place, schema, version, now_ms
        self._columns = Columns.of(place.files, schema)
        self._next = snapshot
        self._sequence = known.metadata.last_sequence_number if known else 0
        self._after = {AFTER_PROPERTY: str(known.metadata.delta_version)} if known else {}
        self.manifests = list(known.manifests) if known else []
        """Those of the newest snapshot, the newest first."""
        self.snapshots = list(known.metadata.snapshots) if known else []
        self.made = 0
        """Number of new snapshots."""

    async def append(self, files: Mapping[str, AddedFile]) -> None:
        """Add files."""
        await self._snapshot("append", await self._written(files), self.manifests, (0, 0))

    async def replace_all(self, base: Sequence[Manifest], what: _Change) -> None:
        """Put files in the place of all that were there: those of new manifests, with a change."""
        left, new = self._uris(what.removed), await self._written(what.added)
        wanted = manifests.digests_of(left)
        for manifest in base:
            if not manifest.may_have(wanted):
                new.append(manifest)
                continue
            entries = await self._entries(manifest)
            if stay := [manifests.added(entry) for entry in entries if entry.data_file.file_path not in left]:
                new.append(await self._put(stay))
        removed = self._totals()
        await self._snapshot("overwrite" if self.snapshots else "append", new, [], removed)

    def _uris(self, paths: Iterable[str]) -> set[str]:
        return {path if "://" in path else f"{self._columns.location}/{path}" for path in paths}

    async def change(self, operation: str, what: _Change) -> None:
        """Put files in the place of others.

        Raises:
            _Unknown: one of them is in no manifest.
        """
        left = self._uris(what.removed)
        new, kept, gone_rows = await self._written(what.added), list[Manifest](), 0
        wanted = manifests.digests_of(left)
        if left:  # after a start, only their beginnings: an entry takes 30 us to read
            for at in range(0, len(self.manifests), READ_AHEAD):
                some = self.manifests[at : at + READ_AHEAD]
                self.manifests[at : at + READ_AHEAD] = await asyncio.gather(*map(self._place.with_paths, some))
        for manifest in self.manifests:
            if not left or not manifest.may_have(wanted):
                kept.append(manifest)
                continue
            entries = await self._entries(manifest)
            gone = [entry for entry in entries if entry.data_file.file_path in left]
            if not gone:  # the next change need not read it
                paths = manifests.digests_of(entry.data_file.file_path for entry in entries)
                kept.append(manifest._replace(paths=paths))
                continue
            gone_rows += sum(entry.data_file.record_count for entry in gone)
            # Without bounds: a person's values must not stay where the rows are gone.
            stay = [entry for entry in entries if entry.data_file.file_path not in left]
            left -= {entry.data_file.file_path for entry in gone}
            new.append(await self._put([*stay, *map(manifests.forgotten, gone)]))
        if left:
            raise _Unknown
        await self._snapshot(operation, new, kept, (len(what.removed), gone_rows))

    async def join(self) -> None:
        """Join small manifests once they are many, so that the list of them stays short."""
        small = [each for each in self.manifests if each.live < MANIFEST_FILES]
        if len(small) > SMALL_MAX:
            entries = chain.from_iterable([await self._entries(each) for each in small])
            new = [await self._put(each) for each in _batched(entries, MANIFEST_FILES)]
            kept = [each for each in self.manifests if each.live >= MANIFEST_FILES]
            await self._snapshot("replace", new, kept, (0, 0))

    async def _entries(self, manifest: Manifest) -> list[ManifestEntry]:
        data = await self._place.get(manifest.file.manifest_path)
        return await in_thread(lambda: manifests.read(manifest.file, data))

    async def _written(self, files: Mapping[str, AddedFile]) -> list[Manifest]:
        made = await in_thread(lambda: [*map(self._columns.entry, files.values())])
        return [await self._put(each) for each in _batched(made, MANIFEST_FILES)]

    async def _put(self, entries: Sequence[ManifestEntry]) -> Manifest:
        uri, snapshot = self._place.new_uri(self._version), self._next
        written = await in_thread(lambda: manifests.write(self._schema, snapshot, uri, entries))
        await self._place.put(uri, written.data)
        return written.manifest

    def _totals(self) -> tuple[int, int]:
        files = sum(each.live for each in self.manifests)
        return files, sum(
            (each.file.added_rows_count or 0) + (each.file.existing_rows_count or 0) for each in self.manifests
        )

    async def _snapshot(
        self, operation: str, new: Sequence[Manifest], kept: Sequence[Manifest], removed: tuple[int, int]
    ) -> None:
        """Make a snapshot of manifests; ``removed``: number of removed files, and of their rows."""
        parent = self.snapshots[-1].snapshot_id if self.snapshots else None
        uri, self._sequence = self._place.new_uri(self._version), self._sequence + 1
        # Those that name only removed files belong to the snapshot before.
        listed = [*new, *(each for each in kept if each.live)]
        snapshot, sequence = self._next, self._sequence
        self.manifests, data = await in_thread(lambda: manifests.write_list(uri, snapshot, parent, sequence, listed))
        await self._place.put(uri, data)
        added = [each.file for each in new]
        files, rows = self._totals()
        counts = {
            "added-data-files": sum(each.added_files_count for each in added),
            "added-records": sum(each.added_rows_count for each in added),
            "deleted-data-files": removed[0],
            "deleted-records": removed[1],
            "total-data-files": files,
            "total-records": rows,
        }
        self.snapshots.append(
            Snapshot(
                snapshot,
                sequence,
                self._now_ms,
                uri,
                {"operation": operation} | self._after | {name: str(count) for name, count in counts.items()},
                self._schema.schema_id,
                msgspec.UNSET if parent is None else parent,
            )
        )
        self._next, self.made = new_id(), self.made + 1

    def metadata(self, known: Metadata | None, uuid: str, said: Mapping[str, str], keep_ms: int | None) -> Metadata:
        """Return the metadata with the snapshots that are kept.

        Args:
            known: the version before; None without one.
            uuid: identifier of the table.
            said: properties of the newest snapshot, of which the table has ``TABLE_PROPERTIES``.
            keep_ms: time for which snapshots are kept once they are not the newest; None for those alone that are made.
        """
        newest = self.snapshots[-1]
        if self.made:
            newest = msgspec.structs.replace(newest, summary=newest.summary | dict(said))
        made = self.snapshots[len(self.snapshots) - self.made : -1]
        young = made if keep_ms is None else _superseded_since(self.snapshots, self._now_ms - keep_ms)
        kept = [*young[1 - SNAPSHOTS_MAX :], newest]
        named = {each.snapshot_id for each in kept}
        log = [each for each in (known.snapshot_log if known else ()) if each.snapshot_id in named]
        new = self.snapshots[len(self.snapshots) - self.made :]
        own: dict[str, Any] = msgspec.json.decode(self._schema.model_dump_json())
        schemas = {each["schema-id"]: each for each in [*(known.schemas if known else ()), own]}
        used = {own["schema-id"], *(each.schema_id for each in kept)}
        mapping = {manifests.NAME_MAPPING: manifests.name_mapping(self._schema)}
        return Metadata(
            table_uuid=uuid,
            location=self._place.location,
            last_sequence_number=self._sequence,
            last_updated_ms=self._now_ms,
            last_column_id=max(self._schema.highest_field_id, known.last_column_id if known else 0),
            schemas=[each for number, each in sorted(schemas.items()) if number in used],
            current_schema_id=own["schema-id"],
            properties=mapping | {name: said[name] for name in TABLE_PROPERTIES if name in said},
            snapshots=kept,
            snapshot_log=[*log, *(LogEntry(each.timestamp_ms, each.snapshot_id) for each in new)],
            refs={"main": {"snapshot-id": newest.snapshot_id, "type": "branch"}},
            current_snapshot_id=newest.snapshot_id,
        )


def _superseded_since(snapshots: Sequence[Snapshot], ms: int) -> list[Snapshot]:
    """Return the snapshots whose successor came after a moment, without the newest, which has none."""
    return [each for each, successor in pairwise(snapshots) if successor.timestamp_ms > ms]


def new_id() -> int:
    """Return the id of a new snapshot."""
    return secrets.randbits(62) + 1


def _schema_of(fields: Sequence[Mapping[str, Any]], known: Metadata | None) -> Schema:
    """Return the schema of these columns, with the number of an equal one that is known."""
    schemas = {each["schema-id"]: each for each in known.schemas} if known else {}
    number = max(schemas, default=-1) + 1
    found = manifests.iceberg_schema(fields, number)
    own = msgspec.json.decode(found.model_dump_json())["fields"]
    equal = next((each for each, schema in schemas.items() if schema["fields"] == own), None)
    return found if equal is None else manifests.iceberg_schema(fields, equal)


def _current_schema(metadata: Metadata) -> Schema:
    return Schema.model_validate(
        next(each for each in metadata.schemas if each["schema-id"] == metadata.current_schema_id)
    )


class IcebergTable:
    """The Iceberg metadata of one table. Used by one task.

    Args:
        table: the table's folder.
        applications: beginning of the transactions that are the table's positions.
        keep_s: time for which a snapshot is kept once it is not the current one. Delta's vacuum must delete no file
            before twice that time, and a call of ``write`` has to come within a quarter of it.
        clock: nanoseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        table: str,
        applications: str,
        *,
        keep_s: float,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._table, self._applications = store, table, applications
        self._log = TableLog(store, table, applications)
        self._place = _Place(store, table)
        self._keep_ms, self.sweep_s = int(keep_s * 1000), keep_s / 4
        self._clock, self._monotonic = clock, monotonic
        self._known: _Known | None = None
        self._claim: Claim | None = None
        """A claim that the table did not hold when it was made."""
        self._unnamed: frozenset[str] = frozenset()
        """Objects that no version named at the last sweep."""
        self._lists: dict[str, list[str]] = {}
        """Manifest list -> the manifests that it names."""

    async def write(self, claim: Claim | None = None) -> int:
        """Bring the metadata up to the newest version of the Delta table. Return that version; -1 without a table.

        Args:
            claim: completeness, from states of shards that were read before.

        Raises:
            TableConflict: another writer was first.
            TableError: the table cannot be read, or expressed.
            StoreError, NotFound: as the object store; the next call continues from what is there.
        """
        try:
            known, self._known = self._known or await self._load(), None
            try:
                self._known, version = await self._made(known, claim, is_whole=False)
            except _Unknown:
                self._known, version = await self._made(known, claim, is_whole=True)
        except (TableConflict, StoreError):
            raise
        except Exception:
            # Also after a bug, or in a manifest that is damaged.
            with contextlib.suppress(TableError, StoreError, NotFound):
                await self._expire()
            raise
        return version

    async def _expire(self) -> None:
        """Drop old snapshots though there is no new one: the vacuum and erasures do not wait for this writer."""
        found = await current(self._store, self._table)
        if found is None or (metadata := found.metadata()).location != self._place.location:
            return
        now_ms = max(self._clock() // 1_000_000, metadata.last_updated_ms)
        kept = [*_superseded_since(metadata.snapshots, now_ms - self._keep_ms), metadata.snapshots[-1]]
        if len(kept) < len(metadata.snapshots):
            named = {each.snapshot_id for each in kept}
            log = [each for each in metadata.snapshot_log if each.snapshot_id in named]
            made = msgspec.structs.replace(metadata, snapshots=kept, snapshot_log=log, last_updated_ms=now_ms)
            await commit(self._store, self._table, found.number + 1, made)

    async def _load(self) -> _Known | None:
        found = await current(self._store, self._table)
        if found is None:
            return None
        # One that the last writer did not come to name.
        await point(self._store, self._table, found.number)
        metadata, listed = found.metadata(), list[Manifest]()
        if metadata.location == self._place.location:
            data = await self._place.get(metadata.snapshots[-1].manifest_list)
            listed = [Manifest(each, None) for each in await in_thread(lambda: [*manifests.read_list(data)])]
        return _Known(found.number, metadata, listed)

    async def _made(self, known: _Known | None, claim: Claim | None, *, is_whole: bool) -> tuple[_Known | None, int]:
        began, number = self._monotonic(), known.number if known else 0
        base = known if known and known.metadata.location == self._place.location else None  # else it was moved
        begin = None
        if base is not None and not is_whole:
            begin = base.metadata.delta_version, bytes.fromhex(base.metadata.properties[ENTRY_PROPERTY])
        metadata, snapshot = base.metadata if base else None, new_id()
        place = _Place(self._store, self._table, lambda: self._monotonic() - began > self.sweep_s / 2)
        store = partial(self._stored, metadata, snapshot, place=place, loop=asyncio.get_running_loop())
        changes = Changes(begin, store, self._applications)
        await self._log.follow(changes)
        changes.finish()
        changes.check()
        if changes.version < 0:
            return known, -1
        if changes.is_whole and metadata and changes.metadata and changes.metadata.get("id") != metadata.table_uuid:
            base = metadata = None  # another table is in its place
        now_ms = max(self._clock() // 1_000_000, metadata.last_updated_ms if metadata else 0)
        # The vacuum leaves a removed file for twice the time of a snapshot, which ends at a call a quarter late.
        is_long = changes.removed_ms is not None and now_ms - changes.removed_ms >= self._keep_ms * 3 // 4
        if changes.is_whole:
            is_long = metadata is not None and now_ms - metadata.last_updated_ms >= self._keep_ms * 3 // 4
        elif is_long:
            changes.fold_all()
        said = self._said(changes, None if changes.is_whole else metadata, claim)
        is_new = metadata is None or said.get(COMPLETE_PROPERTY) != metadata.properties.get(COMPLETE_PROPERTY)
        if metadata and not changes.is_whole and changes.version == metadata.delta_version and not is_new:
            kept = _superseded_since(metadata.snapshots, now_ms - self._keep_ms)
            if len(kept) == len(metadata.snapshots) - 1:
                return known, changes.version
        if changes.metadata is not None:
            schema = _schema_of(msgspec.json.decode(changes.metadata["schemaString"])["fields"], metadata)
            uuid = changes.metadata["id"]
        else:
            assert metadata is not None, "a table that is read from its beginning has a schema"
            schema, uuid = _current_schema(metadata), metadata.table_uuid
        first = changes.version if changes.is_whole or metadata is None else metadata.delta_version
        draft = _Draft(place, base, schema, snapshot, first, now_ms=now_ms)
        if changes.is_whole:
            await draft.replace_all(changes.base, changes.changed)
        else:
            if changes.appended:
                await draft.append(changes.appended)
            if changes.joined.added or changes.joined.removed:
                await draft.change("replace", changes.joined)
            if changes.changed.added or changes.changed.removed:
                operation = "overwrite" if changes.changed.added else "delete"
                await draft.change(operation if changes.changed.removed else "append", changes.changed)
        await draft.join()
        made = draft.metadata(metadata, uuid, said, None if is_long else self._keep_ms)
        place.check()
        await commit(self._store, self._table, number + 1, made)
        return _Known(number + 1, made, draft.manifests), changes.version

    def _stored(
        self,
        known: Metadata | None,
        snapshot: int,
        version: int,
        metadata: Mapping[str, Any],
        files: Sequence[AddedFile],
        *,
        place: _Place,
        loop: asyncio.AbstractEventLoop,
    ) -> Manifest:
        """Store a manifest, from a thread."""
        schema = _schema_of(msgspec.json.decode(metadata["schemaString"])["fields"], known)
        columns, uri = Columns.of(place.files, schema), place.new_uri(version)
        made = manifests.write(schema, snapshot, uri, [*map(columns.entry, files)])
        asyncio.run_coroutine_threadsafe(place.put(uri, made.data), loop).result()
        return made.manifest

    def _said(self, changes: Changes, known: Metadata | None, claim: Claim | None) -> dict[str, str]:
        """Return the properties of the newest snapshot."""
        before = known.properties if known else {}
        positions = msgspec.json.decode(before.get(POSITIONS_PROPERTY, "{}"), type=dict[str, int]) | changes.positions
        held = [each for each in (claim, self._claim) if each is not None and each.holds(positions)]
        if self._claim is None or self._claim in held:
            self._claim = claim
        last = before.get(COMPLETE_PROPERTY)
        moment = max((*(each.moment for each in held), *([last] if last else ())), default=None)
        said = {
            VERSION_PROPERTY: str(changes.version),
            ENTRY_PROPERTY: changes.entry_hash.hex(),
            POSITIONS_PROPERTY: msgspec.json.encode(positions, order="deterministic").decode(),
        }
        return said if moment is None else said | {COMPLETE_PROPERTY: moment}

    async def sweep(self) -> int:
        """Delete what no version names that readers may have, if it was so at the last sweep as well. Return the number
        of objects.

        A writer gives up within half of the time between two sweeps, so what both find was left behind.
        """
        found = await current(self._store, self._table)
        if found is None:
            return 0
        metadata = found.metadata()
        lists = [each.manifest_list for each in metadata.snapshots]
        self._lists = {uri: self._lists.get(uri) or await self._listed(uri) for uri in lists}
        named = {uri.rpartition("/")[2] for uri in chain(lists, *self._lists.values())}
        unnamed, after = set[str](), None
        while page := await self._store.list(metadata_folder(self._table), after=after, limit=1000):
            after = page[-1].key
            for item in page:
                name = item.key.rpartition("/")[2]
                number = number_of(name)
                is_old = number is not None and number <= found.number - METADATA_KEPT
                if is_old or (number is None and name != HINT and name not in named):
                    unnamed.add(name)
        gone = unnamed & self._unnamed
        for name in gone:
            await self._store.delete(f"{metadata_folder(self._table)}/{name}")
        self._unnamed = frozenset(unnamed - gone)
        return len(gone)

    async def _listed(self, uri: str) -> list[str]:
        data = await self._place.get(uri)
        return await in_thread(lambda: [each.manifest_path for each in manifests.read_list(data)])
