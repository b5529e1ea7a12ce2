"""Tierer of one stream: moves committed offsets into its Delta table, exactly once.

A step reads the table's positions, writes the following rows as Parquet, and commits files and new positions in one
table version. A crash leaves at worst a Parquet file that no version names; the next step starts from the positions
again. Any number of tierers may work on one table: only one moves a position from where it is.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from weft.protocols.chunk_index import StreamKey
from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import NotFound, ObjectStore, StoreError, StoreUnfit
from weft.storage.table.actions import DeltaState, TableConflict, TableError, app_id, app_ids, source_ids, table_payload
from weft.storage.table.deletions import ErasedOffsetsCache, erased_offsets
from weft.storage.table.delta import DeltaHandle, in_thread
from weft.storage.table.delta_log import TableLog
from weft.storage.table.latest import positions_of
from weft.storage.table.quality import NewRows, RowChecks, TableQuality
from weft.storage.table.rows import ERASED_PROPERTY, row_schema
from weft.storage.table.schemas import StreamQuality, StreamSchema
from weft.storage.table.typed_columns import Typing, bounded_names
from weft.storage.table_writer.parquet_file import lacking, new_columns, table_schema
from weft.storage.table_writer.settings import (
    DEFAULTS,
    NoHistory,
    StreamStopped,
    TableDiverged,
    TableSettings,
    changed_properties,
    new_properties,
    statistics_columns,
)
from weft.storage.table_writer.shards import Declared, ShardView
from weft.storage.table_writer.writers import (
    FileWriter,
    Gathered,
    LastChunk,
    Made,
    OwnWriter,
    RowsRequest,
    StreamRows,
    not_skipped,
    pass_over,
)

# Positions of the tables in a shard's log, from the tables themselves.


def tabled_streams(state: ShardState) -> dict[StreamKey, int]:
    """Return the next offset of each stream with records whose table may lack some: deleted ones have all."""
    forgotten = state.forgotten
    return {
        key: end
        for key, end in state.next_offset.items()
        # A stream that was deleted with its table complete needs no further step.
        if end and (key not in forgotten or not forgotten[key].tabled)
    }


async def table_position(store: ObjectStore, log: ShardLog, stream: StreamKey) -> int | None:
    """Return the offset below which all of a shard's records of a stream are table rows, or skipped, or were taken
    into a latest table that replaces it; None without a table.

    Raises:
        TableError, StoreUnfit: the table cannot be read.
    """
    table = await positions_of(store, log.cluster, stream)
    return None if table is None else table.transactions.get(app_id(log.cluster.cluster_id, stream[1], log.shard))


class Position(NamedTuple):
    """A table's position in one shard."""

    end: int
    """Offset below which all records are table rows, or skipped; 0 without any."""
    source: LastChunk | None
    """The chunk with the last row below it."""


class TablePositions:
    """Positions of tables as the tables themselves say; each table is opened once.

    Args:
        shards: function from a stream to the numbers of the shards whose positions are wanted.
    """

    def __init__(self, store: ObjectStore, cluster: Cluster, shards: Callable[[StreamKey], Iterable[int]]) -> None:
        self._store, self._cluster, self._shards = store, cluster, shards
        self._known: dict[StreamKey, dict[int, Position] | None] = {}

    async def of(self, stream: StreamKey) -> dict[int, Position] | None:
        """Return the positions by shard; None without a table, or when it cannot be read."""
        if stream not in self._known:
            try:
                self._known[stream] = await self._read(stream)
            # Not known is not "has all rows": the collector then keeps the chunks.
            except (TableError, StoreError, StoreUnfit):
                self._known[stream] = None
        return self._known[stream]

    async def _read(self, stream: StreamKey) -> dict[int, Position] | None:
        table = await positions_of(self._store, self._cluster, stream)
        if table is None:
            return None
        apps = {shard: app_id(self._cluster.cluster_id, stream[1], shard) for shard in self._shards(stream)}
        transactions = table.transactions
        return {
            shard: _position([transactions.get(name) for name in (app, *source_ids(app))])
            for shard, app in apps.items()
        }


def _position(ends: Sequence[int | None]) -> Position:
    end, n, crc = ends
    return Position(end or 0, None if n is None or crc is None else LastChunk(n, crc))


async def first_untabled(
    tables: TablePositions, log: ShardLog, state: ShardState, in_trouble: Callable[[StreamKey], bool]
) -> int | None:
    """Return the number of the first chunk of a shard with records that are not in their tables.

    The tables say it themselves: a table that was moved away since its last row, or restored from a backup, has fewer
    rows than the hub's memory of it.

    Args:
        state: state of the shard; chunks after it count as untabled.
        in_trouble: returns whether the last work on a stream's table failed.

    Returns:
        The number; None if a table is missing, failing, or of another history than the log.

    Raises:
        StoreError, Corrupt: the log cannot be read.
    """
    # Copied, because the state must not change while the tables are read.
    first, ends = state.n + 1, tabled_streams(state)
    watermark = (await log.manifest())[0].watermark
    for key, end in sorted(ends.items()):
        # Chunks may be what the table is repaired from.
        if in_trouble(key):
            return None
        positions = await tables.of(key)
        position = None if positions is None else positions.get(log.shard)
        if position is None or not position.end:
            return None  # a stream with records and no table: the first round of its table is still pending
        source = position.source
        if source is None:
            return None
        if source.n >= watermark:  # below it there is nothing, or only chunks that a paused writer made again
            # The CRC of a footer covers the footer before it, so it stands for the whole history. An offset alone would
            # also fit another history of a restored store.
            chunk = await log.index(source.n)
            if chunk is None or chunk.footer_crc != source.footer_crc:
                return None
        if position.end < end:
            first = min(first, source.n)
    return first


async def checked_source(table: str, view: ShardView, position: int, source: LastChunk | None) -> LastChunk:
    """Return the chunk of a table's position, which the log still has.

    A log that was restored to an earlier state is behind the table only until it has grown past the position. From
    then on, its offsets have other records than the table's rows.

    Raises:
        TableDiverged: it has not.
        TableError: the chunk cannot be read.
    """
    if source is None:
        raise diverged(table, view.shard, position, "and does not name the chunk")
    try:
        chunk = await view.log.index(source.n)
    except CodecError as error:
        raise TableError(f"{table}: its position cannot be compared with the log: {error}") from error
    if chunk is None or chunk.footer_crc != source.footer_crc:
        manifest, _ = await view.log.manifest()
        # Below the watermark there is nothing, or only chunks that a paused writer made again.
        if source.n >= manifest.watermark:
            how = f"taken from another chunk {source.n} than the log's"
            if chunk is None:
                how = f"taken from chunk {source.n}, which the log does not have"
            raise diverged(table, view.shard, position, how)
    return source


def diverged(table: str, shard: int, position: int, how: str) -> TableDiverged:
    """Return the error of a table whose position in a shard is not one of the log."""
    return TableDiverged(
        f"{table} holds offsets of shard {shard} up to {position}, {how}. The store was restored to an earlier state. "
        "Move the table away, and the hub makes it again from the log. Records that only the table has stay in what "
        "was moved away"
    )


ATTEMPTS_MAX = 5
"""Maximum number of times that a step starts over because another writer was first."""
HELD_SECONDS_MAX = 3600.0
"""Time after which a table is read again, far below every retention of log entries: a commit on top of an old version
must not get the number of one that was cleaned up."""


class _Written(NamedTuple):
    """Files in the store that no version names yet. A step that starts over uses them again if they still fit."""

    shard: int
    first: int
    """Position at which they begin."""
    made: Made
    """Without files if all offsets from there on are skipped."""
    schema: pa.Schema
    checks: RowChecks | None


class Tierer:
    """A tierer of one (tenant, stream). Used by one task at a time.

    Args:
        views: the shards; the caller refreshes their states.
        clock: nanoseconds since 1970, for file times.
        monotonic: seconds.
        nonce: returns a name for a file that no other tierer uses.
        writer: writer of the files; None writes them in this process, with the names of ``nonce``.
        schema, quality: return the declared schema and the quality rules of the stream, as this process knows them.
        sort: returns the columns by which rows of a file are sorted first.
        creates: returns whether a table that is not there is made.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        tenant: str,
        stream: str,
        views: Sequence[ShardView],
        *,
        settings: TableSettings = DEFAULTS,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
        writer: FileWriter | None = None,
        schema: Callable[[], StreamSchema | None] = lambda: None,
        quality: Callable[[], StreamQuality | None] = lambda: None,
        sort: Callable[[], Sequence[str]] = lambda: (),
        creates: Callable[[], bool] = lambda: True,
    ) -> None:
        self.key = table_key(tenant, stream)
        applications = app_ids(cluster.cluster_id, stream)
        self.log = TableLog(store, self.key, applications)
        self.positions: dict[int, int] = {}
        """Positions per shard, as last read or committed: rows of lower offsets are in the table."""
        self.version = -1
        """The table's version as last read or committed; -1 before."""
        self.payload = PayloadKind.BYTES
        """Payload kind of the table, after it was read."""
        self.columns: list[tuple[str, str]] = []
        """Name and type of the table's columns, after it was read."""
        self.stopped: dict[int, StreamStopped] = {}
        """Shards whose next records cannot become rows."""
        self.rows_moved = 0
        """Rows that this tierer moved into the table."""
        self._store, self._cluster = store, cluster
        self._stream_key, self._stream = (tenant, stream), stream
        self._views = views
        self._settings, self._creates = settings, creates
        self._clock, self._monotonic = clock, monotonic
        self._sources: dict[int, LastChunk] = {}
        """Per shard the chunk of its position, compared with the log."""
        self._next_chunk: dict[int, tuple[int, int]] = {}
        """Per shard a position, and the chunk from which on its record is found."""
        self._opened = False
        self._state: DeltaState | None = None
        """The table as last read, or after this tierer's last commit."""
        self._read_at = 0.0
        self._erased = ErasedOffsetsCache(store, tenant, stream)
        self._declared = Declared(tenant, stream, views)
        self.typing = Typing(self.key, schema)
        self.quality = TableQuality(quality, applications)
        self._sort = sort
        self._writer = writer or OwnWriter(store, settings, clock=clock, monotonic=monotonic, nonce=nonce)

    def ends(self) -> dict[int, int]:
        """Return for each shard with the stream the offset after the last one in the log, as last refreshed."""
        ends = {view.shard: view.state.next_offset.get(self._stream_key, 0) for view in self._views}
        return {shard: end for shard, end in ends.items() if end}

    @property
    def is_behind(self) -> bool:
        """Return whether the log has records that are not rows yet."""
        return any(self.positions.get(shard, 0) < end for shard, end in self.ends().items())

    @property
    def done(self) -> int:
        """Return the number of offsets that are rows or skipped."""
        return sum(self.positions.values())

    async def step(self) -> int:
        """Move new records, as many as the writer takes at a time. Return the number of rows, which are durable.

        Raises:
            TableError: the table cannot be read or written, or does not fit the log.
            StoreError: the store did not answer.
            NotFound, Corrupt: a shard's log cannot be read; the records of the other shards are in the table.
            CollectedPast: the state of a shard is too old: load it again.
        """
        if not self.is_behind:
            return 0
        # Files that are written already are used again after a lost race if the positions are still the same.
        written: dict[int, _Written] = {}
        latest: TableConflict | None = None
        for _ in range(ATTEMPTS_MAX):
            # A state that was held may be old. Only a failure on a fresh one is a fact.
            was_held = self._state is not None
            state = await self.take()
            try:
                moved = await self._move(state, written)
            except TableConflict as conflict:
                latest = conflict
            except (TableError, CollectedPast):
                # Another node may have moved rows and the collector deleted their chunks: read the table again.
                if not was_held:
                    raise
            else:
                return moved
        raise TableError(f"{self.key}: other writers were first {ATTEMPTS_MAX} times: {latest}") from latest

    async def open(self) -> DeltaState:
        """Return the table, created if there is none; its log is durable up to the version returned.

        Raises:
            TableError: it cannot be read or created; ``NoHistory`` if it is not there, and must not be made.
        """
        if not self._opened:
            # A power cut may leave a torn entry on a directory where another engine has written without a sync.
            await self.log.mend()
        state = await self.log.read()
        if state is None:
            if not self._creates():
                raise NoHistory(f"{self.key}: a latest table replaces it of it")
            self.log = self.log.anew()
            state = await self._create()
        elif not self._opened and (changed := changed_properties(state.properties(), self._settings)):
            metadata = state.with_properties(changed)
            state = await self.log.alter(state, "SET TBLPROPERTIES", metadata, self._now_ms())
        # Another process may have written the version and not synced it. Rows count as there only once it is durable,
        # since the collector goes by it.
        await self.log.sync(state.version)
        self._opened = True
        self._take_facts(state)
        return state

    async def _create(self) -> DeltaState:
        uri, options = self._store.location(self.key)
        levels, payload = new_columns([], self._declared.levels()), self._declared.payload()
        schema = self.typing.created(row_schema(levels, payload))
        # Exactly the columns that every file will have bounds of: for one that is named and has none, engines take a
        # file for one without matches and lose its rows.
        names = statistics_columns(levels, bounded_names(schema))
        configuration = new_properties(payload, names, self._settings)
        if await erased_offsets(self._store, *self._stream_key):
            # A table made again from the log must not bring erased rows back.
            configuration[ERASED_PROPERTY] = "true"
        await in_thread(lambda: DeltaHandle.create(uri, options, schema, configuration))
        state = await self.log.read()
        if state is None:
            raise TableError(f"{uri}: the table is not there right after it was made")
        return state

    async def take(self) -> DeltaState:
        """Return the table as last read or committed; read it again if it is no longer there.

        A caller that changes the table returns the new version with ``keep``; otherwise the table is read again.
        """
        state, self._state = self._state, None
        # The whole entry is compared: the table may have been moved away, and another node may have made a new one.
        # After a long time, the entries that follow a version may have been cleaned up.
        if (
            state is None
            or not self._opened
            or self._monotonic() - self._read_at > HELD_SECONDS_MAX
            or not await self.log.is_current(state)
        ):
            return await self.open()
        return state

    async def look(self) -> None:
        """Read how far the table is, which another node makes.

        Raises:
            TableError: it cannot be read; ``NoHistory`` as ``open``.
        """
        known = None if self._state is None else await self.log.advance(self._state)
        state = known or await self.log.read()
        if state is None:
            if not self._creates():
                raise NoHistory(self.key)
            return
        self._take_facts(state)
        self.keep(state)
        names = {shard: app_id(self._cluster.cluster_id, self._stream, shard) for shard in self.ends()}
        self.positions = {shard: state.transactions.get(name, 0) for shard, name in names.items()}
        self.stopped.clear()

    def _take_facts(self, state: DeltaState) -> None:
        self._read_at = self._monotonic()
        self.version, self.columns = state.version, state.columns()
        self.quality.read(state.transactions)
        self.payload = table_payload(dict(self.columns).get("payload"), state.properties())

    def keep(self, state: DeltaState) -> None:
        """Keep a version that is up to date with its table: reading the table costs many requests in a bucket."""
        self._state, self.version = state, state.version

    async def _move(self, state: DeltaState, written: dict[int, _Written]) -> int:
        if state.properties().get(ERASED_PROPERTY) == "true":
            await self._erased.read(state.metadata.get("id"))
        # Columns first: a row of a new topic level would otherwise lose it for good.
        state = await self._grow(state)
        # Each time: with the new columns, or a join of files, came versions of others, which may have moved rows.
        await self._read_positions(state)
        self.quality.read(state.transactions)
        schema = table_schema(state.fields(), self.payload)
        unreadable = await self._write(written, schema, self.quality.checks(self.typing.rows, schema))
        if written:
            state = await self._commit(state, list(written.values()))
        self.version = state.version
        if unreadable is not None:
            raise unreadable
        self.keep(state)
        return sum(file.rows for item in written.values() for file in item.made.files)

    async def _write(
        self, written: dict[int, _Written], schema: pa.Schema, checks: RowChecks | None
    ) -> Exception | None:
        """Write the next rows of each shard whose files no longer fit. Return the error of a shard that has one."""
        unreadable: Exception | None = None
        wanted: list[RowsRequest] = []
        for view in self._views:
            first = self.positions.get(view.shard, 0)
            known = written.get(view.shard)
            if known and (known.first, known.schema, known.checks) == (first, schema, checks):
                continue
            written.pop(view.shard, None)
            self.stopped.pop(view.shard, None)
            try:
                found = await self._wanted(view)
            # A damaged chunk stops its shard of its stream, and no other.
            except (CodecError, NotFound) as error:
                unreadable = error
                continue
            if isinstance(found, Gathered):
                written[view.shard] = _Written(view.shard, first, Made((), found), schema, checks)
            elif found is not None:
                wanted.append(found)
        erased, typed = self._erased.offsets, self.typing.rows
        rows = StreamRows(self._stream_key, schema, self.payload, self._declared, typed, checks, erased, self._sort())
        for each, made in zip(wanted, await self._writer.write(rows, wanted) if wanted else (), strict=True):
            shard = each.view.shard
            if isinstance(made, Made):
                written[shard] = _Written(shard, self.positions.get(shard, 0), made, schema, checks)
                continue
            # Damage of one shard must not keep the others' records from the table.
            unreadable = made
            if isinstance(made, StreamStopped):
                self.stopped[shard] = made
        return unreadable

    async def _read_positions(self, state: DeltaState) -> None:
        names = {shard: app_id(self._cluster.cluster_id, self._stream, shard) for shard in self.ends()}
        transactions = state.transactions
        found = {shard: transactions.get(name, 0) for shard, name in names.items()}
        for view in self._views:
            position = found.get(view.shard, 0)
            if not position:
                continue
            if position > self.ends().get(view.shard, 0):
                # Another node's tierer has read more of the log than this state.
                while await view.chunks.extend(view.state):
                    pass
            if position > (end := self.ends().get(view.shard, 0)):
                raise diverged(self.key, view.shard, position, f"the log only up to {end}")
            # A log that was restored and has grown past the position has other records below it. The offset alone
            # cannot show that: the rows would be doubled, or missing.
            n, crc = (transactions.get(name) for name in source_ids(names[view.shard]))
            source = None if n is None or crc is None else LastChunk(n, crc)
            known = self._sources.get(view.shard)
            # A table of an earlier release does not say which chunk it was made from: that is looked up once.
            is_checked = source == known or (source is None and self.positions.get(view.shard) == position)
            if known is None or not is_checked:
                self._sources[view.shard] = await checked_source(self.key, view, position, source)
        self.positions = found

    async def _grow(self, state: DeltaState) -> DeltaState:
        """Add columns for new topic levels and fields, and ``LATER_COLUMNS``, to the table. Return the new version."""
        names = [name for name, _ in self.columns]
        fresh = [*new_columns(names, self._declared.levels()), *lacking(names), *self.quality.lacking(names)]
        if fresh:
            state = await self.log.alter(state, "ADD COLUMN", state.with_text_columns(fresh), self._now_ms())
        if (fields := self.typing.grown(state.fields())) is not None:
            state = await self.log.alter(state, "ADD COLUMN", state.with_fields(fields), self._now_ms())
        self.columns = state.columns()
        return state

    async def _wanted(self, view: ShardView) -> RowsRequest | Gathered | None:
        """Return the records of one shard from its position on; the end of those that an operator skipped; or None if
        there are none."""
        first, end = self.positions.get(view.shard, 0), self.ends().get(view.shard, 0)
        if first >= end:
            return None
        # Nothing is skipped without an operator: a later release could read the records.
        # An operator has named these offsets: their records cannot become rows. The position passes over them, so that
        # the audit finds the same on every node.
        start, limit = not_skipped(view.state.skips.get(self._stream_key, ()), first, end)
        n = await self._first_chunk(view, first)
        if start == limit:
            return await pass_over(self.key, self._stream_key, view, n, start)
        return RowsRequest(view, n, start, limit)

    async def _first_chunk(self, view: ShardView, first: int) -> int:
        """Return the chunk of an offset's record, or an earlier one."""
        position, n = self._next_chunk.get(view.shard, (-1, 0))
        if position != first:
            n = self._sources[view.shard].n if first else await view.log.locate(*self._stream_key, 0)
        # The table has all rows of collected chunks.
        return max(n, view.log.watermark)

    async def _commit(self, state: DeltaState, written: Sequence[_Written]) -> DeltaState:
        files = [file for item in written for file in item.made.files]
        transactions = {}
        for item in written:
            app = app_id(self._cluster.cluster_id, self._stream, item.shard)
            # Rows and position in one version of the table. That alone makes each row exactly once, whatever dies.
            transactions[app] = item.made.gathered.end
            # The chunk of the last row is kept beside the offset, so that a log restored from a backup is not taken for
            # the one that the rows came from.
            transactions.update(zip(source_ids(app), item.made.gathered.source, strict=True))
        rows = [NewRows(each.shard, each.first, each.made.gathered.end, each.made.tally) for each in written]
        place, known = self._store.location(self.key), self.positions
        transactions |= await self.quality.counting(state.transactions, state.version, place, known, rows)
        state = await self.log.append(state, files, transactions, self._now_ms())
        self.quality.committed()
        self.quality.read(state.transactions)
        self.rows_moved += sum(file.rows for file in files)
        for item in written:
            end, source, next_n, traced = item.made.gathered
            self.positions[item.shard], self._sources[item.shard] = end, source
            self._next_chunk[item.shard] = (end, next_n)
            if traced and self._settings.on_traced is not None:
                self._settings.on_traced(self._stream_key, state.version, traced)
        return state

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000
