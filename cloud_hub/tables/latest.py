"""A latest table: a Delta table with the newest row of each key of a stream, beside the table of all its rows.

It is made from the log, as that table is: a version changes the rows and moves the positions, so whatever dies, a
record counts once. Rows of chunks that the collector deleted come from the table of all rows.

Tombstones, and rows of a key's other lanes, are no rows of the table. They are in a file of the folder that no version
names as rows; a transaction says which file it is, so that it changes with the rows.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from weft.cloud_hub.tables.buckets import (
    HIDDEN,
    HIDDEN_FOLDER,
    KEY_PROPERTY,
    Bucket,
    BucketFiles,
    Key,
    Keyed,
    Mask,
    Merged,
    bucket_file,
    changes,
    hashes,
    hidden_file,
    hidden_key,
    in_schema,
    merged,
    of_keys,
    plain_file,
    read_file,
    reduced,
    with_tombstones,
    young,
)
from weft.protocols.chunk_index import StreamKey
from weft.protocols.payloads import PayloadKind
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.hub_keys import latest_key, table_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.actions import (
    FEED_PROPERTY,
    DataFile,
    DeltaState,
    TableConflict,
    TableError,
    app_id,
    app_ids,
    source_ids,
    table_payload,
)
from weft.storage.table.delta import DeltaHandle, in_thread, open_table
from weft.storage.table.delta_log import ChangeFile, Rewrite, TableLog, rewrite
from weft.storage.table.latest import INSTEAD_PROPERTY, has_all_rows, latest_of, replaces_all_rows
from weft.storage.table.rows import BYTES_COLUMN, TOMBSTONE_COLUMN, Erased, row_schema, without
from weft.storage.table_writer.parquet_file import new_columns, table_schema
from weft.storage.table_writer.settings import TableSettings, new_properties, statistics_columns
from weft.storage.table_writer.shards import ShardView
from weft.storage.table_writer.tiering import Tierer
from weft.storage.table_writer.writers import OF_ONE_SHARD, Gatherer, Joined, Made, RowsRequest, StreamRows

# Rows of a step that may count in a latest table, in memory.


class _Batches:
    """Rows of one shard in memory, in the place of a file."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = with_tombstones(schema)
        self._batches: list[pa.RecordBatch] = []

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._schema

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows."""
        self._batches += batches

    def rows(self) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_batches(self._batches, self._schema)


class RowCollector:
    """Writer of no files: it keeps the rows that may count, until the caller has committed what becomes of them."""

    def __init__(
        self, key: Key, settings: TableSettings, clock: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._key, self._settings, self._clock, self._monotonic = key, settings, clock, monotonic
        self.found: dict[tuple[int, int], Keyed] = {}
        """(shard, first offset) -> rows"""

    async def write(self, rows: StreamRows, wanted: Sequence[RowsRequest]) -> list[Made | Exception]:
        """Read the rows of each shard. See ``FileWriter``."""
        table = latest_key(*rows.stream)
        gatherer = Gatherer(table, rows.stream, rows.declared, self._settings, monotonic=self._monotonic)
        made: list[Made | Exception] = []
        for view, n, first, end in wanted:
            out = _Batches(rows.schema)
            try:
                gathered = await gatherer.gather(view, out, n, first, end, rows.payload, len(wanted))
            except OF_ONE_SHARD as error:
                made.append(error)
                continue
            self.found[view.shard, first] = await in_thread(partial(self._kept, view.shard, out, rows.erased))
            made.append(Made((), gathered))
        return made

    def _kept(self, shard: int, out: _Batches, erased: Erased | None) -> Keyed:
        return reduced(without(out.rows(), shard, erased), self._key, self._clock() // 1000)

    def join(
        self, key: str, runs: Sequence[Sequence[DataFile]], schema: pa.Schema, sort: Sequence[str] = ()
    ) -> AsyncIterator[Joined]:
        """Do not join: a bucket has one file."""
        raise NotImplementedError(key)


# Rows of the table of all rows, for a latest table whose chunks the collector deleted.

BATCH_ROWS = 64 << 10


class HistoryRows:
    """Rows of some offsets of a version, in portions. Its methods block.

    Args:
        wanted: (shard, first offset, offset after the last).
        schema: columns of the rows, with that of tombstones: the table has none, so rows without a payload are such.
        rows_max: rows of a portion, about.
    """

    def __init__(  # noqa: PLR0917
        self,
        uri: str,
        options: dict[str, str],
        version: int,
        wanted: Sequence[tuple[int, int, int]],
        schema: pa.Schema,
        rows_max: int,
    ) -> None:
        self._uri, self._options, self._version = uri, options, version
        self._wanted, self._schema, self._rows_max = wanted, schema, rows_max
        self._batches: Iterator[pa.RecordBatch] | None = None

    def next(self) -> pa.Table | None:
        """Return the next portion; None after the last.

        Raises:
            TableError: the version is no longer there.
        """
        if self._batches is None:
            self._batches = self._opened()
        found: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in found) < self._rows_max:
            batch = next(self._batches, None)
            if batch is None:
                break
            found.append(batch)
        return self._rows(pa.Table.from_batches(found)) if found else None

    def _opened(self) -> Iterator[pa.RecordBatch]:
        table = open_table(self._uri, self._options, self._version)
        if table is None:
            raise TableError(f"{self._uri}: the table no longer exists")
        dataset: Any = table.to_pyarrow_dataset()
        parts = [
            (pc.field("_shard") == shard) & (pc.field("_offset") >= first) & (pc.field("_offset") < end)
            for shard, first, end in self._wanted
        ]
        names = [name for name in self._schema.names if name in dataset.schema.names]
        scanner = dataset.scanner(
            columns=names,
            filter=reduce(or_, parts),
            batch_size=BATCH_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        return iter(scanner.to_batches())

    def _rows(self, rows: pa.Table) -> pa.Table:
        found = in_schema(rows, self._schema)
        is_empty = _is_empty(found.column("payload"))
        if BYTES_COLUMN in found.schema.names:
            is_empty &= ~pc.is_valid(found.column(BYTES_COLUMN)).to_numpy()
        at = found.schema.get_field_index(TOMBSTONE_COLUMN)
        return found.set_column(at, self._schema.field(at), pa.array(is_empty))


def _is_empty(column: pa.ChunkedArray) -> Mask:
    found: Mask = pc.equal(pc.fill_null(pc.binary_length(column), 0), 0).to_numpy()
    return found


# Streams whose latest table is their only one, and what their log still has.


class FirstKept(NamedTuple):
    """The first chunk that a shard still has, where it lost some."""

    shard: int
    n: int


async def first_kept(store: ObjectStore, stream: StreamKey) -> FirstKept | None:
    """Return the first chunk of a shard that has lost some, if a stream has a latest table as its only one; None if a
    table of all rows can be made from the log.

    Raises:
        TableError: the table cannot be read.
        StoreError, Corrupt: a shard cannot be read.
    """
    cluster = await open_cluster(store, None)
    if await latest_of(store, cluster, stream) is None:
        return None
    for shard in range(cluster.tree.count):
        manifest, _ = await ShardLog(store, cluster, shard).manifest()
        if manifest.watermark:
            return FirstKept(shard, manifest.watermark)
    return None


async def passed(
    views: Sequence[ShardView],
    stream: StreamKey,
    positions: Mapping[int, int],
    ends: Mapping[int, int],
    app: Callable[[int], str],
) -> tuple[dict[str, int], int]:
    """Return the transactions of positions after what the collector deleted, and the number of records passed over.

    Args:
        app: returns the transaction id of a shard's position.

    Raises:
        NotFound, Corrupt: the log cannot be read.
    """
    passed_ends, gone = dict[str, int](), 0
    for view in views:
        first, end = positions.get(view.shard, 0), ends.get(view.shard, 0)
        there = await _first_there(view, stream, end) if first < end else first
        if there > first:
            name = app(view.shard)
            passed_ends |= {name: there, **dict(zip(source_ids(name), (view.log.watermark - 1, 0), strict=True))}
            gone += there - first
    return passed_ends, gone


async def _first_there(view: ShardView, stream: StreamKey, end: int) -> int:
    """Return the lowest offset whose chunk is not collected; ``end`` without one."""
    async for _, section, _ in view.chunks.of_stream(stream, view.log.watermark, view.state.n):
        if section is not None:
            return section.base_offset
    return end


_logger = logging.getLogger(__name__)
SETTINGS = TableSettings(file_rows_max=256 << 10, retention_hours=2)
"""Bounds of a step. Replaced files are kept for two hours: each step may replace all of them."""
BUCKET_ROWS_MAX = 32 << 10
"""Rows of a file above which it is divided: some megabytes, which an update of one key writes again."""
PAST_ROWS = 256 << 10
"""Rows of the table of all rows that are taken at a time."""
_UNKEYED = "latest/unkeyed"
"""End of the transaction whose version is the number of records without a key."""
_GONE = "latest/gone"
"""End of the transaction whose version is the number of records that were gone before the table could take them."""
_TURN = "latest/turn"
"""End of the transaction that every version changes, so that two makers of a table always see each other."""


class LatestTierer(Tierer):
    """A maker of one stream's latest table. Used by one task at a time.

    Args:
        key: the columns whose values a row is the newest of.
        feed: give a new table a change feed.
        instead: let the table say that it replaces the table of all rows, once that is not there.
        others: as of ``Tierer``.
    """

    def __init__(  # noqa: PLR0917
        self,
        store: ObjectStore,
        cluster: Cluster,
        tenant: str,
        stream: str,
        views: Sequence[ShardView],
        key: Key,
        *,
        feed: bool = False,
        instead: bool = False,
        settings: TableSettings = SETTINGS,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._collector = RowCollector(key, settings, clock, monotonic)
        super().__init__(
            store,
            cluster,
            tenant,
            stream,
            views,
            settings=settings,
            clock=clock,
            monotonic=monotonic,
            nonce=nonce,
            writer=self._collector,
        )
        self.unkeyed = 0
        """Number of records without a key, as of the version last read or committed."""
        self.gone = 0
        """Number of records that no table has: their chunks were gone before this one could take them."""
        self.key = latest_key(tenant, stream)
        self._apps = app_ids(cluster.cluster_id, stream)
        self.log = TableLog(store, self.key, self._apps)
        self._wanted_key, self._feed, self._nonce = key, feed, nonce
        self.instead = instead
        """True if the table is to say that it replaces the table of all rows."""
        self._files = BucketFiles(self.key)
        self._unused: frozenset[str] = frozenset()
        """Files with hidden rows that no version named at the last look."""
        self.is_instead = False
        """True if the table, as last opened, says that it replaces the table of all rows."""
        self.is_full = False
        """True if the last step took records, so that there may be more."""

    async def open(self) -> DeltaState:
        """Return the table, created if there is none.

        Raises:
            TableError: it cannot be read or created, or has another key.
        """
        state = await super().open()
        has = state.properties().get(KEY_PROPERTY)
        if has != self._wanted_key.text:
            raise TableError(
                f"{self.key} has the newest rows by {has}, and {self._wanted_key.text} is declared. Move the folder "
                "away, and the hub makes it again; or declare its key"
            )
        self.is_instead = replaces_all_rows(state)
        return state

    async def take(self) -> DeltaState:
        """Return the table as ``Tierer.take``, which says that it replaces the table of all rows as soon as it does."""
        state = await super().take()
        if self.instead and not self.is_instead and not await has_all_rows(self._store, self._stream_key):
            metadata = state.with_properties({INSTEAD_PROPERTY: "true"})
            state = await self.log.alter(state, "SET TBLPROPERTIES", metadata, self._now_ms())
            self.is_instead = True
        return state

    async def _all_rows(self) -> DeltaState | None:
        return await TableLog(self._store, table_key(*self._stream_key), self._apps).read()

    async def _create(self) -> DeltaState:
        uri, options = self._store.location(self.key)
        past = await self._all_rows()
        payload = self._declared.payload()
        if past is not None:  # the two tables are read alike
            payload = table_payload(dict(past.columns()).get("payload"), past.properties())
        levels = [*new_columns([], self._declared.levels()), *self._wanted_key.made]
        schema, configuration = row_schema(levels, payload), self._configuration(levels, payload)
        await in_thread(lambda: DeltaHandle.create(uri, options, schema, configuration))
        state = await self.log.read()
        if state is None:
            raise TableError(f"{uri}: the table does not exist right after its creation")
        return state

    def _configuration(self, levels: Sequence[str], payload: PayloadKind) -> dict[str, str]:
        properties = new_properties(payload, statistics_columns(levels), self._settings)
        feed = {FEED_PROPERTY: "true"} if self._feed else {}
        return properties | {KEY_PROPERTY: self._wanted_key.text} | feed

    def _take_facts(self, state: DeltaState) -> None:
        super()._take_facts(state)
        self._take_counts(state)

    def _take_counts(self, state: DeltaState) -> None:
        self.unkeyed, self.gone = (state.transactions.get(f"{self._apps}{name}", 0) for name in (_UNKEYED, _GONE))

    async def _move(self, state: DeltaState, written: dict[int, Any]) -> int:
        self._wanted_key.check([name for name, _ in self.columns], self.key)
        await self._read_positions(state)
        await self._erased.read(state.metadata.get("id"))
        if self._lacks_chunks():
            state = await self._take_past(await self._grow(state))
            await self._read_positions(state)
        before = self.done
        await super()._move(state, written)
        self.is_full = self.done > before
        return self.done - before

    def _lacks_chunks(self) -> bool:
        """Return whether chunks may be gone that have records after the positions."""
        ends = self.ends()
        for view in self._views:
            position = self.positions.get(view.shard, 0)
            n = self._sources[view.shard].n if position else 0
            if position < ends.get(view.shard, 0) and n < view.log.watermark:
                return True
        return False

    async def _take_past(self, state: DeltaState) -> DeltaState:
        """Take rows after the positions from the table of all rows. Return the version that has them.

        The rows of a portion may be committed without a position: taking them again changes nothing.
        """
        past = await self._all_rows()
        if past is None:
            return await self._pass_gone(state) if self.is_instead else state
        apps = {shard: app_id(self._cluster.cluster_id, self._stream, shard) for shard in self.ends()}
        ends = {shard: past.transactions.get(app, 0) for shard, app in apps.items()}
        wanted = [(shard, self.positions.get(shard, 0), end) for shard, end in ends.items()]
        wanted = [each for each in wanted if each[1] < each[2]]
        if not wanted:
            return state
        uri, options = self._store.location(table_key(*self._stream_key))
        schema = self._schema(state)
        rows = HistoryRows(uri, options, past.version, wanted, schema, PAST_ROWS)
        while (portion := await in_thread(rows.next)) is not None:
            found = await in_thread(partial(reduced, portion, self._wanted_key, self._now_us()))
            state = await self._merge(state, Keyed(found.rows, 0), {})
        # Which of them are without a key was not counted: portions may be taken twice.
        names = [name for shard, _, _ in wanted for name in (apps[shard], *source_ids(apps[shard]))]
        positions = {name: past.transactions[name] for name in names if name in past.transactions}
        return await self._merge(state, Keyed(schema.empty_table(), 0), positions)

    async def _pass_gone(self, state: DeltaState) -> DeltaState:
        """Continue after records whose chunks are gone, and which no table of all rows has, and count them."""
        app = partial(app_id, self._cluster.cluster_id, self._stream)
        passed_ends, gone = await passed(self._views, self._stream_key, self.positions, self.ends(), app)
        if not gone:
            return state
        _logger.warning("%s: %d records left the log before they were taken", self.key, gone)
        passed_ends[f"{self._apps}{_GONE}"] = self.gone + gone
        return await self._merge(state, Keyed(self._schema(state).empty_table(), 0), passed_ends)

    def _schema(self, state: DeltaState) -> pa.Schema:
        return with_tombstones(table_schema(state.fields(), self.payload))

    async def _commit(self, state: DeltaState, written: Sequence[Any]) -> DeltaState:
        transactions, found = {}, []
        for item in written:
            app = app_id(self._cluster.cluster_id, self._stream, item.shard)
            transactions[app] = item.made.gathered.end
            transactions.update(zip(source_ids(app), item.made.gathered.source, strict=True))
            if (item.shard, item.first) in self._collector.found:
                found.append(self._collector.found[item.shard, item.first])
        rows = [each.rows for each in found] or [self._schema(state).empty_table()]
        both = Keyed(pa.concat_tables(rows), sum(each.unkeyed for each in found))
        state = await self._merge(state, both, transactions)
        self._collector.found.clear()
        for item in written:
            end, source, next_n, _ = item.made.gathered
            self.rows_moved += end - item.first
            self.positions[item.shard], self._sources[item.shard] = end, source
            self._next_chunk[item.shard] = (end, next_n)
        return state

    async def _merge(self, state: DeltaState, found: Keyed, transactions: dict[str, int]) -> DeltaState:
        """Change the rows of some keys, and set transactions. Return the version; it is durable."""
        await self.log.follow(self._files)
        if (self._files.version, self._files.entry_hash) != (state.version, state.entry_hash):
            raise TableConflict(f"{self.key}: version {self._files.version} was written meanwhile")
        # Without this, the tombstone of a key that never comes again, such as an order's, would stay for good.
        columns, now_us = self._wanted_key.columns, self._now_us()
        hidden = young(await self._read_hidden(state), found.rows, now_us)
        is_concerned = of_keys(hidden, found.rows, columns)
        kept, part = [hidden.filter(pa.array(~is_concerned))], hidden.filter(pa.array(is_concerned))
        rows = pa.concat_tables([found.rows, part]).combine_chunks()
        old: list[DataFile] = []
        new: list[DataFile] = []
        parts: list[Merged] = []
        has_feed, none = state.properties().get(FEED_PROPERTY) == "true", rows.slice(0, 0)
        for bucket, numbers in self._files.of(await in_thread(lambda: hashes(rows, columns))).items():
            mine = rows.take(numbers)
            file = self._files.buckets.get(bucket)
            there = await self._read(file.path if file else None, rows.schema)
            change = await in_thread(partial(merged, there, mine, columns, now_us))
            kept.append(change.hidden)
            if change.is_changed:
                old += [file] if file is not None else []
                new += await self._write_bucket(bucket, change.visible)
                # A step may change each bucket: all rows of the table would be in memory at once.
                parts += [change._replace(visible=none, hidden=none)] if has_feed else []
        may_differ = part.num_rows + sum(each.num_rows for each in kept[1:]) > 0
        changes = await self._hide(pa.concat_tables(kept), may_differ, state)
        changes |= {f"{self._apps}{_TURN}": state.transactions.get(f"{self._apps}{_TURN}", 0) + 1}
        if found.unkeyed:
            changes[f"{self._apps}{_UNKEYED}"] = self.unkeyed + found.unkeyed
        feed = await self._write_changes(parts)
        version = Rewrite("MERGE", old, new, changes | transactions, feed)
        state = await rewrite(self.log, self.key, state, version, self._now_ms())
        self._take_counts(state)
        return state

    def _now_us(self) -> int:
        return self._clock() // 1000

    async def _write_changes(self, parts: Sequence[Merged]) -> list[ChangeFile]:
        if not parts:
            return []
        path = f"_change_data/cdc-{self._nonce()}.parquet"
        data = await in_thread(lambda: plain_file(changes(parts, self._wanted_key.columns)))
        await self._store.create(f"{self.key}/{path}", data)
        return [ChangeFile(path, len(data))]

    async def _read(self, path: str | None, schema: pa.Schema) -> pa.Table:
        """Return the rows of a file, with the column of tombstones."""
        if path is None:
            return schema.empty_table()
        data = (await self._store.get(f"{self.key}/{path}")).data
        return await in_thread(lambda: read_file(data, schema))

    async def _write_bucket(self, bucket: Bucket, rows: pa.Table) -> list[DataFile]:
        """Write the file of a bucket, of its halves if it became too large, or none without rows."""
        if rows.num_rows > BUCKET_ROWS_MAX and bucket.depth < 32:
            low, high = bucket.halves()
            is_low = hashes(rows, self._wanted_key.columns) < high.first
            return [
                *await self._write_bucket(low, rows.filter(pa.array(is_low))),
                *await self._write_bucket(high, rows.filter(pa.array(~is_low))),
            ]
        if not rows.num_rows:
            return []
        path = bucket.path(self._nonce())
        data, made = await in_thread(lambda: bucket_file(rows))
        await self._store.create(f"{self.key}/{path}", data)
        return [made.data_file(path, len(data), self._now_ms())]

    async def erase(self, state: DeltaState, chosen: Callable[[pa.Table], Mask]) -> tuple[DeltaState, int]:
        """Remove rows, also hidden ones. Their keys have no row before the next record. Return version and number.

        Args:
            chosen: function that returns which rows are removed. It may be called in a thread.
        """
        await self.log.follow(self._files)
        schema, count = self._schema(state), 0
        old: list[DataFile] = []
        new: list[DataFile] = []
        for bucket, file in sorted(self._files.buckets.items()):
            rows = await self._read(file.path, schema)
            is_chosen = await in_thread(lambda rows=rows: chosen(rows))  # type: ignore[misc]
            if is_chosen.any():
                count += int(is_chosen.sum())
                old.append(file)
                new += await self._write_bucket(bucket, rows.filter(pa.array(~is_chosen)))
        hidden = await self._read_hidden(state)
        is_chosen = await in_thread(lambda: chosen(hidden))
        erased = await self._hide(hidden.filter(pa.array(~is_chosen)), bool(is_chosen.any()), state)
        if not old and not erased:
            return state, 0
        erased |= {f"{self._apps}{_TURN}": state.transactions.get(f"{self._apps}{_TURN}", 0) + 1}
        state = await rewrite(self.log, self.key, state, Rewrite("DELETE", old, new, erased), self._now_ms())
        return state, count + int(is_chosen.sum())

    async def names(self, state: DeltaState) -> set[str]:
        """Return the keys of the objects with rows that the newest version names."""
        await self.log.follow(self._files)
        return {
            hidden_key(self.key, self._apps, state),
            *(f"{self.key}/{file.path}" for file in self._files.buckets.values()),
        }

    async def forget_hidden(self, state: DeltaState) -> int:
        """Delete files with hidden rows that no version named at this look and at the last. Return their number.

        A maker may have written one that it is about to name. Looks are far apart.
        """
        named = hidden_key(self.key, self._apps, state)
        listed = await self._store.list(f"{self.key}/{HIDDEN_FOLDER}")
        found = frozenset(item.key for item in listed if item.key != named)
        for key in found & self._unused:
            await self._store.delete(key)
        deleted, self._unused = len(found & self._unused), found - self._unused
        return deleted

    async def _read_hidden(self, state: DeltaState) -> pa.Table:
        schema = self._schema(state)
        if not state.transactions.get(f"{self._apps}{HIDDEN}", 0):
            return schema.empty_table()
        key = hidden_key(self.key, self._apps, state)
        try:
            data = (await self._store.get(key)).data
        except NotFound:
            raise TableError(
                f"{key} is missing, which {self.key} needs. Move the folder away, and the hub makes it again"
            ) from None
        return await in_thread(lambda: read_file(data, schema))

    async def _hide(self, rows: pa.Table, may_differ: bool, state: DeltaState) -> dict[str, int]:
        """Write the hidden rows, if they may be others. Return the transaction that names them."""
        app = f"{self._apps}{HIDDEN}"
        if not may_differ or not (rows.num_rows or state.transactions.get(app, 0)):
            return {}
        if not rows.num_rows:
            return {app: 0}
        number = int(self._nonce(), 16) >> 2
        await self._store.create(hidden_file(self.key, number), await in_thread(lambda: plain_file(rows)))
        return {app: number}
