"""A stream's Delta table at one version: its position in the log, and the offsets of each file."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from spark_sinks.errors import ReadError
from spark_sinks.source.options import ReadOptions
from weft.protocols.payloads import PayloadKind
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import table_key
from weft.storage.native_threads import wait_at_exit
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import (
    READABLE_FEATURES,
    Action,
    AddedFile,
    DeltaState,
    StateBuilder,
    TableError,
    app_id,
    app_ids,
    table_payload,
)
from weft.storage.table.delta import file_system
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import FileFollower, TableFile, take_facts

# The files of a table's version, by shard and offset: a micro-batch finds its few of a million without a walk.


_FIRST = attrgetter("first")


def may_match(file: TableFile, options: ReadOptions) -> bool:
    """Return whether options may select a row of a file."""
    return (
        (options.since is None or file.may_reach(options.since))
        and (options.until is None or file.may_start(options.until))
        and (options.edges is None or file.may_hold_edge(options.edges))
    )


class _Shard(NamedTuple):
    """The files of one shard alone, with bounds of their offsets."""

    files: list[TableFile]
    """In the order of their lowest offsets."""
    span: int = 0
    """Largest range of offsets of a file that was ever among them."""


class FileIndex:
    """The files of one version. It never changes; iteration yields all of them, in no order."""

    def __init__(self, files: Iterable[TableFile] = ()) -> None:
        self._shards: Mapping[int, _Shard] = {}
        self._others: tuple[TableFile, ...] = ()
        """Files of several shards, or without bounds: engines of others wrote them."""
        self._set(files)

    def _set(self, files: Iterable[TableFile]) -> None:
        shards: dict[int, list[TableFile]] = {}
        others: list[TableFile] = []
        for file in files:
            (others if file.shard is None else shards.setdefault(file.shard, [])).append(file)
        self._shards = {
            shard: _Shard(sorted(found, key=_FIRST), max(map(_span, found))) for shard, found in shards.items()
        }
        self._others = tuple(others)

    def __iter__(self) -> Iterator[TableFile]:
        return chain(*(each.files for each in self._shards.values()), self._others)

    def __len__(self) -> int:
        return sum(len(each.files) for each in self._shards.values()) + len(self._others)

    def overlapping(self, shard: int, first: int, end: int) -> Iterator[TableFile]:
        """Yield the files that may have rows of a shard with offsets in ``[first, end)``."""
        files, span = self._shards.get(shard, _Shard([]))
        for at in range(bisect_left(files, first - span, key=_FIRST), bisect_left(files, end, key=_FIRST)):
            if files[at].may_hold(shard, first, end):
                yield files[at]
        yield from (file for file in self._others if file.may_hold(shard, first, end))

    def lowest(self, shard: int, end: int) -> int:
        """Return the lowest offset below ``end`` that a file of a shard may have; ``end`` if none has one."""
        files = self._shards.get(shard, _Shard([])).files
        lows = [files[0].first] if files else []
        lows += [file.first for file in self._others if file.may_hold(shard, 0, end)]
        return min(end, *lows) if lows else end

    def changed(self, removed: Iterable[TableFile], added: Iterable[TableFile]) -> FileIndex:
        """Return the files of a later version."""
        # Only the lists that change are copied: this version keeps its own.
        removed, added, shards = list(removed), list(added), dict(self._shards)
        for shard in {file.shard for file in (*removed, *added) if file.shard is not None}:
            files, span = shards.get(shard, _Shard([]))
            shards[shard] = _Shard(list(files), span)
        others = {file.path: file for file in self._others}
        for file in removed:
            if file.shard is None:
                others.pop(file.path, None)
            else:
                files = shards[file.shard].files
                at = bisect_left(files, file.first, key=_FIRST)
                while files[at].path != file.path:
                    at += 1
                del files[at]
        for file in added:
            if file.shard is None:
                others[file.path] = file
            else:
                known = shards[file.shard]
                insort(known.files, file, key=_FIRST)
                shards[file.shard] = known._replace(span=max(known.span, _span(file)))
        made = FileIndex()
        made._shards, made._others = shards, tuple(others.values())
        return made


def _span(file: TableFile) -> int:
    return file.end - 1 - file.first


# A stream's table, followed from version to version: each entry of its log is read once, and its files are never
# listed again.


class FollowedTable(FileFollower[TableFile]):
    """The facts and the files of a table's version.

    Args:
        applications: beginning of the applications whose transactions are kept.
    """

    def __init__(self, applications: str) -> None:
        self._applications = applications
        super().__init__()

    def clear(self) -> None:
        """Forget the table."""
        super().clear()
        self._facts = StateBuilder(self._applications)
        self._index = FileIndex()
        self._removed: list[TableFile] = []
        self._added: dict[str, TableFile] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        self._facts.take(action)
        super().take(action)

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one. Raises as ``take_facts``."""
        take_facts(file, name, self._facts.take)
        super().read_checkpoint(file, name)

    def kept(self, added: AddedFile) -> TableFile:
        """Return the file, and note that it is new."""
        file = self._added[added.path] = TableFile.of(added)
        return file

    def remove(self, path: str) -> None:
        """Remove a file that the version does not have."""
        known = self.files.pop(path, None)
        # A file that came and went since the last look never was in the index.
        if known is not None and self._added.pop(path, None) is None:
            self._removed.append(known)

    def state(self) -> DeltaState:
        """Return the facts of the version.

        Raises:
            TableError: the log names no protocol or no schema.
        """
        self._facts.version, self._facts.entry_hash = self.version, self.entry_hash
        return self._facts.state()

    def index(self) -> FileIndex:
        """Return the files of the version, by shard and offset."""
        if self._removed or self._added:
            whole = len(self._added) + len(self._removed) > len(self.files) // 2
            added = self._added.values()
            self._index = FileIndex(self.files.values()) if whole else self._index.changed(self._removed, added)
            self._removed, self._added = [], {}
        return self._index


_LOG = logging.getLogger(__name__)

wait_at_exit()


class Ends(dict[int, int]):
    """Per shard, the offset below which a table has every record, and none from there on; 0 for a shard without rows,
    such as one that a split made since."""

    def __missing__(self, shard: int) -> int:
        return 0


class TableSnapshot(NamedTuple):
    """One version of a table: position and files belong together."""

    uri: str
    storage_options: dict[str, str]
    version: int
    ends: Ends
    files: FileIndex
    schema: pa.Schema
    payload: PayloadKind
    """Payload kind of the table."""

    def first_offset(self, shard: int) -> int:
        """Return the lowest offset of a shard that a file may have; the table's position if no file has one."""
        return self.files.lowest(shard, self.ends[shard])

    def received(self, shard: int, offset: int) -> int | None:
        """Return the time at which the hub received a record, ns since 1970, rounded down to microseconds; None without
        its row. It reads the files that may have it."""
        paths = [file.path for file in self.files.overlapping(shard, offset, offset + 1)]
        if not paths:
            return None
        wanted = (ds.field("_shard") == shard) & (ds.field("_offset") == offset)
        system = file_system(self.uri, self.storage_options)
        rows = ds.dataset(paths, self.schema, format="parquet", filesystem=system).to_table(["_received"], wanted)
        found = rows.column(0)
        return found[0].cast(pa.int64()).as_py() * 1000 if len(found) else None

    @property
    def columns(self) -> dict[str, str]:
        """Return the table's columns by their names in lower case: another edge may have spelled a topic level
        differently."""
        return {name.casefold(): name for name in self.schema.names}

    @property
    def is_remote(self) -> bool:
        """Return whether the files are in an object store rather than on a disk."""
        return "://" in self.uri


class StreamTable:
    """The table of a stream, opened any number of times. What is known of it is kept: a further reading takes the
    entries of its log that came since, and the files of its newest version are never listed. One thread at a time.

    Args:
        store: the store; ``location`` must name the table for Spark.
    """

    def __init__(self, store: ObjectStore, cluster: Cluster, tenant: str, stream: str) -> None:
        self._store, self._cluster, self._stream = store, cluster, stream
        self._key = table_key(tenant, stream)
        applications = app_ids(cluster.cluster_id, stream)
        self._log, self._followed = TableLog(store, self._key, applications), FollowedTable(applications)
        self._snapshot: TableSnapshot | None = None
        self._shards = cluster.tree.count

    @property
    def shards(self) -> int:
        """Return the number of the shards whose positions are read; splits add some."""
        return self._shards

    @shards.setter
    def shards(self, shards: int) -> None:
        if shards != self._shards:
            self._shards, self._snapshot = shards, None

    async def open(self, version: int | None = None) -> TableSnapshot | None:
        """Return a version, or None when there is no table yet.

        Args:
            version: version of the table; None means the newest.

        Raises:
            ReadError: the table needs a reader feature that plain Parquet readers lack, or has no such version.
            StoreError: the store did not answer.
        """
        uri, options = self._store.location(self._key)
        if version is None:
            try:
                return await self._newest(uri, options)
            except TableError as error:
                # Such as a checkpoint of version 2, which deltalake can read.
                _LOG.info("%s is read with its list of files: %s", self._key, error)
                self._followed.clear()
        apps = {shard: app_id(self._cluster.cluster_id, self._stream, shard) for shard in range(self._shards)}
        return await asyncio.to_thread(_listed, uri, options, apps, self._stream, version)

    async def _newest(self, uri: str, options: dict[str, str]) -> TableSnapshot | None:
        followed, before = self._followed, self._followed.entry_hash
        try:
            await self._log.follow(followed)
        finally:
            if followed.version < 0:
                # Of a checkpoint that was read to its middle, files may be gone when the next one is read.
                followed.clear()
        if followed.version < 0:
            return None
        if self._snapshot is None or before != followed.entry_hash or self._snapshot.version != followed.version:
            state = followed.state()
            features = set(state.protocol.readerFeatures or ())
            if state.properties().get("delta.columnMapping.mode", "none") != "none":
                features.add("columnMapping")
            _check_features(self._stream, features)
            found = {shard: app_id(self._cluster.cluster_id, self._stream, shard) for shard in range(self._shards)}
            self._snapshot = TableSnapshot(
                uri,
                options,
                state.version,
                Ends((shard, state.transactions.get(app, 0)) for shard, app in found.items()),
                followed.index(),
                pa.schema(Schema.from_json(state.metadata["schemaString"])),
                table_payload(dict(state.columns()).get("payload"), state.properties()),
            )
        return self._snapshot


def _check_features(stream: str, demanded: Collection[str]) -> None:
    if features := set(demanded) - READABLE_FEATURES:
        raise ReadError(
            f"the table of {stream} uses {', '.join(sorted(features))}, which Weft does not read: "
            "switch it off and rewrite the table, or read it with another engine"
        )


def _listed(
    uri: str, storage_options: dict[str, str], apps: dict[int, str], stream: str, version: int | None
) -> TableSnapshot | None:
    """Return a version of a table by its list of files, as ``StreamTable.open``. Blocks."""
    if not DeltaTable.is_deltatable(uri, storage_options or None):
        return None
    table = DeltaTable(uri, storage_options=storage_options or None)
    if version is not None:
        newest = table.version()
        try:
            table.load_as_version(version)
        except (DeltaError, OverflowError) as error:
            raise ReadError(f"version: the table of {stream} has none {version}; its newest is {newest}") from error
    _check_features(stream, table.protocol().reader_features or ())
    types = {field.name: getattr(field.type, "type", None) for field in table.schema().fields}
    return TableSnapshot(
        uri,
        storage_options,
        table.version(),
        Ends((shard, int(table.transaction_version(app) or 0)) for shard, app in apps.items()),
        FileIndex(_files(table)),
        pa.schema(table.schema()),
        table_payload(types.get("payload"), table.metadata().configuration),
    )


def _files(table: DeltaTable) -> Iterator[TableFile]:
    actions = table.get_add_actions(flatten=True)
    names = set(actions.schema.names)

    def column(name: str) -> list[Any]:
        values: list[Any] = actions.column(name).to_pylist() if name in names else [None] * actions.num_rows
        return values

    columns = [
        column(name)
        for name in (
            "path",
            "size_bytes",
            "min._shard",
            "max._shard",
            "min._offset",
            "max._offset",
            "min._time",
            "max._time",
            "min._edge",
            "max._edge",
            "num_records",
        )
    ]
    for path, *rest in zip(*columns, strict=True):
        yield TableFile(unquote(path), *rest)
