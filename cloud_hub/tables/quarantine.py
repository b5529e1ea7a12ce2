"""The quarantine of a stream: a table of its own, with a copy of each row that is marked in the table of all rows.

It follows that table and not the log: a mark is made with the row. Of a file without marks, the footer is read. A
version has rows and the offsets up to which the table of all rows was looked through, so whatever
dies, a row is there once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft.protocols.chunk_index import StreamKey
from weft.protocols.payloads import PayloadKind
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import QUARANTINES, quarantine_key, table_key
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.protocol import ObjectFile
from weft.storage.table.actions import AddedFile, DataFile, DeltaState, TableError, app_id, app_ids, table_payload
from weft.storage.table.delta import DeltaHandle, in_thread
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import FileFollower, TableFile
from weft.storage.table.quality import FAILED_COLUMN
from weft.storage.table.typed_columns import bounded_names
from weft.storage.table_writer.parquet_file import ParquetFile, levels_of, table_schema
from weft.storage.table_writer.settings import (
    DEFAULTS,
    TableSettings,
    changed_properties,
    new_properties,
    statistics_columns,
)


class NewFiles(FileFollower[TableFile]):
    """The files of a table with rows that were not looked through, followed from version to version."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        """Shard -> offset up to which rows were looked through."""
        super().__init__()

    def kept(self, added: AddedFile) -> TableFile | None:
        """Return a file with new rows, or one that an engine wrote with rows of several shards or without bounds."""
        file = TableFile.of(added)
        return file if file.shard is None or file.end > self.positions.get(file.shard, 0) else None

    def looked_through(self, positions: Mapping[int, int], files: Sequence[TableFile]) -> None:
        """Note that rows up to some offsets were looked through, and these files."""
        self.positions = dict(positions)
        for each in files:
            if each.shard is None or each.end <= positions.get(each.shard, 0):
                self.files.pop(each.path, None)


FILES_PER_STEP, STEP_BYTES = 1000, 256 << 20
"""Number and bytes of files that a step looks through at most."""
BATCH_ROWS = 4 << 10
PART_BYTES = 8 << 20
NOTED_EVERY_S = 3600.0
"""Time after which a version without rows says how far the table of all rows was looked through: a process that begins
looks again at what came since."""
READINGS_MAX = 3
_ROWS = "quarantine/rows"
"""End of the transaction whose version is the number of rows that were copied."""
_TURN = "quarantine/turn"
"""End of the transaction whose version is the number of erasures."""


class _Step(NamedTuple):
    """Files that are looked through next, and the offsets that are reached then."""

    files: list[TableFile]
    ends: dict[int, int]


class Quarantine:
    """A maker of one stream's quarantine. Used by one task at a time.

    Args:
        clock: nanoseconds since 1970, for times of files.
        monotonic: seconds.
        nonce: returns a name for a file that no other maker uses.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        stream: StreamKey,
        *,
        settings: TableSettings = DEFAULTS,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store, self._cluster, self._stream = store, cluster, stream
        self._settings, self._clock, self._monotonic, self._nonce = settings, clock, monotonic, nonce
        self.key, self._all_key = quarantine_key(*stream), table_key(*stream)
        self._apps = app_ids(cluster.cluster_id, stream[1])
        self.log, self._all = TableLog(store, self.key, self._apps), TableLog(store, self._all_key, self._apps)
        self.version = -1
        """Version as last read or committed; -1 before."""
        self.payload = PayloadKind.BYTES
        """Payload kind, after it was read."""
        self.rows = 0
        """Number of rows that were copied, as of that version."""
        self._files = NewFiles()
        self._state: DeltaState | None = None
        self._all_state: DeltaState | None = None
        self._noted_at = monotonic()

    async def take(self) -> DeltaState:
        """Return the table as last read or committed, or as it is now if another one changed it.

        Raises:
            TableError: it cannot be read, or is not there.
        """
        state, self._state = self._state, None
        if state is None or not await self.log.is_current(state):
            await self.log.mend()
            state = await self.log.read()
            if state is None:
                raise TableError(f"{self.key}: the table no longer exists")
            if changed := changed_properties(state.properties(), self._settings):
                metadata = state.with_properties(changed)
                state = await self.log.alter(state, "SET TBLPROPERTIES", metadata, self._now_ms())
            await self.log.sync(state.version)
        else:
            state = await self.log.advance(state) or state
        self._take_facts(state)
        return state

    def turn(self, state: DeltaState, step: int = 1) -> dict[str, int]:
        """Return the transaction that an erasure changes, so that copies of rows that were read before it conflict."""
        app = f"{self._apps}{_TURN}"
        return {app: state.transactions.get(app, 0) + step}

    def keep(self, state: DeltaState) -> None:
        """Keep a version that is up to date with its table."""
        self._state = state
        self._take_facts(state)

    def _take_facts(self, state: DeltaState) -> None:
        self.version, self.rows = state.version, state.transactions.get(f"{self._apps}{_ROWS}", 0)
        self.payload = table_payload(dict(state.columns()).get("payload"), state.properties())

    async def step(self) -> bool:
        """Look through new rows of the table of all rows, and copy those that are marked. Return whether there are
        more; a step looks at a bounded number of files.

        Raises:
            TableError: a table cannot be read or written.
            TableConflict: another maker was first; the next step decides again.
            StoreError, NotFound: as the object store.
        """
        if self._state is None and await self.log.read() is None and not await self._create():
            return False
        # In this order: what an erasure takes out of both tables is not taken from an earlier version of the other one.
        state, past = await self.take(), await self._read_all()
        if past is None or FAILED_COLUMN not in dict(past.columns()):
            self.keep(state)
            return False
        state = await self._grow(state, past)
        positions = {shard: state.transactions.get(app, 0) for shard, app in self._app_ids(past)}
        if any(self._files.positions.get(shard, 0) < end for shard, end in positions.items()):
            self._files.positions = positions  # another maker continued
        await self._all.follow(self._files)
        if self._files.version != past.version:
            self.keep(state)
            return True  # a version came meanwhile: it belongs to the next step
        step = self._next(past)
        state = await self._copy(state, past, step)
        self._files.looked_through(step.ends, step.files)
        self.keep(state)
        return bool(self._files.files)

    async def _read_all(self) -> DeltaState | None:
        known = self._all_state
        state = None if known is None else await self._all.advance(known)
        self._all_state = state or await self._all.read()
        return self._all_state

    def _app_ids(self, past: DeltaState) -> Iterator[tuple[int, str]]:
        """Yield the shards that the table of all rows has rows of, each with the transaction of its position."""
        for name in past.transactions:
            shard = name.removeprefix(self._apps)
            if shard.isdecimal():
                yield int(shard), app_id(self._cluster.cluster_id, self._stream[1], int(shard))

    async def _create(self) -> bool:
        """Create the table. It begins with the marks that there are, or with those that will come. Return whether there
        is a table of all rows."""
        past = await self._read_all()
        if past is None:
            return False
        uri, options = self._store.location(self.key)
        payload = table_payload(dict(past.columns()).get("payload"), past.properties())
        schema = table_schema(past.fields(), payload)
        names = statistics_columns(levels_of(schema), bounded_names(schema))
        properties = new_properties(payload, names, self._settings)
        await in_thread(lambda: DeltaHandle.create(uri, options, schema, properties))
        state = await self.log.read()
        now = {app: past.transactions[app] for _, app in self._app_ids(past)}
        if state is not None and now and not state.transactions and FAILED_COLUMN not in dict(past.columns()):
            await self.log.append(state, (), now, self._now_ms())
        return True

    async def _grow(self, state: DeltaState, past: DeltaState) -> DeltaState:
        """Add the columns that the table of all rows has got. Return the version."""
        own = {*table_schema(past.fields(), self.payload).names}
        has = {name.casefold() for name, _ in state.columns()}
        fresh = [each for each in past.fields() if each["name"] in own and each["name"].casefold() not in has]
        if fresh:
            fields = [*state.fields(), *fresh]
            state = await self.log.alter(state, "ADD COLUMN", state.with_fields(fields), self._now_ms())
        return state

    def _next(self, past: DeltaState) -> _Step:
        """Return what a step takes: of each shard the first files, or all where the files of shards overlap."""
        ends = {shard: past.transactions[app] for shard, app in self._app_ids(past)}
        files = sorted(self._files.files.values(), key=lambda each: (each.shard or 0, each.first))
        shards: dict[int, list[TableFile]] = {}
        for file in files:
            if file.shard is None:
                return _Step(files, ends)
            shards.setdefault(file.shard, []).append(file)
        taken: list[TableFile] = []
        size = 0
        for shard, mine in shards.items():
            reached = self._files.positions.get(shard, 0)
            for file in mine:
                is_much = bool(taken) and (len(taken) >= FILES_PER_STEP or size + file.size > STEP_BYTES)
                if is_much and file.first >= reached:  # the files after it begin even later
                    ends[shard] = reached
                    break
                taken.append(file)
                size, reached = size + file.size, max(reached, file.end)
        return _Step(taken, ends)

    async def _copy(self, state: DeltaState, past: DeltaState, step: _Step) -> DeltaState:
        """Write the marked rows of files, and commit them with the offsets that are reached."""
        first = dict(self._files.positions)
        made: list[DataFile] = []
        for shard in sorted(step.ends):
            files = [each for each in step.files if each.shard in {None, shard}]
            wanted = (shard, first.get(shard, 0), step.ends[shard])
            if files and (file := await self._write(state, files, wanted)) is not None:
                made.append(file)
        is_old = self._monotonic() - self._noted_at >= NOTED_EVERY_S
        ends = {app: step.ends[shard] for shard, app in self._app_ids(past)}
        ends = {app: end for app, end in ends.items() if end > state.transactions.get(app, 0)}
        if not made and not (ends and is_old):
            return state
        self._noted_at = self._monotonic()
        app = f"{self._apps}{_ROWS}"
        ends[app] = state.transactions.get(app, 0) + sum(each.rows for each in made)
        ends |= self.turn(state, 0)
        return await self.log.append(state, made, ends, self._now_ms())

    async def _write(
        self, state: DeltaState, files: Sequence[TableFile], wanted: tuple[int, int, int]
    ) -> DataFile | None:
        """Write the marked rows of one shard between two offsets. Return the file; None without a row."""
        shard, first, _ = wanted
        out = await in_thread(lambda: ParquetFile(table_schema(state.fields(), self.payload)))
        batches = self._marked(files, wanted, out.schema)
        begun = await anext(batches, None)
        if begun is None:
            return None
        path = f"shard-{shard}-{first:020d}-{self._nonce()}.parquet"

        async def parts() -> AsyncIterator[memoryview]:
            await in_thread(lambda: out.add([begun]))
            async for batch in batches:
                await in_thread(partial(out.add, [batch]))
                if out.groups.ready >= PART_BYTES:
                    yield await in_thread(out.groups.take)
            yield await in_thread(out.groups.finish)

        size = await self._store.create_from(f"{self.key}/{path}", parts())
        return out.data_file(path, size, self._now_ms())

    async def _marked(
        self, files: Sequence[TableFile], wanted: tuple[int, int, int], schema: pa.Schema
    ) -> AsyncIterator[pa.RecordBatch]:
        loop = asyncio.get_running_loop()
        for file in files:
            source = ObjectFile(self._store, f"{self._all_key}/{file.path}", file.size, loop)
            rows = _marked_rows(source, wanted, schema)
            while (batch := await in_thread(partial(next, rows, None))) is not None:
                yield batch

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000


def _marked_rows(source: Any, wanted: tuple[int, int, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the marked rows of a file between two offsets of a shard. Blocks; row groups without marks are not read."""
    shard, first, end = wanted
    file = pq.ParquetFile(source, page_checksum_verification=True, buffer_size=1 << 20, pre_buffer=False)
    if FAILED_COLUMN not in file.schema_arrow.names:
        return
    for group in range(file.num_row_groups):
        if not _has_marks(file.metadata.row_group(group)):
            continue
        for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
            is_wanted = pc.and_(pc.is_valid(batch.column(FAILED_COLUMN)), pc.equal(batch.column("_shard"), shard))
            offsets = batch.column("_offset")
            is_wanted = pc.and_(is_wanted, pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end)))
            found = batch.filter(is_wanted)
            if found.num_rows:
                yield _in_schema(found, schema)


def _has_marks(group: pq.RowGroupMetaData) -> bool:
    """Return whether rows of a row group may be marked, by its entry in the footer."""
    columns = (group.column(at) for at in range(group.num_columns))
    column = next((each for each in columns if each.path_in_schema == FAILED_COLUMN), None)
    statistics = None if column is None else column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count < group.num_rows


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = {*batch.schema.names}
    columns = [
        batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


async def quarantines(store: ObjectStore) -> set[StreamKey]:
    """Return the streams with a quarantine in the store, with a list request for each.

    Raises:
        StoreError: the store did not answer.
    """
    found: set[StreamKey] = set()
    after: str | None = None
    while page := await store.list(QUARANTINES, after=after, limit=1):
        _, tenant, stream, rest = page[0].key.split("/", 3)
        if rest.startswith("_delta_log/"):  # sorts before the files; without it there is no table
            found.add((tenant, stream))
        after = f"{quarantine_key(tenant, stream)}/~"
    return found
