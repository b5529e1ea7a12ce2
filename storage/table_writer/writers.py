"""Writers of a table's files, which no version names until the caller commits them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from weft.bounds import TurnBudget
from weft.protocols.chunk import section_entries
from weft.protocols.chunk_index import Chunk, StreamKey, StreamSection
from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.snapshot import Skip
from weft.storage.hub_keys import table_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.object_store.protocol import ObjectFile
from weft.storage.table.actions import DataFile, TableError
from weft.storage.table.delta import in_thread
from weft.storage.table.parquet import group_slices, parts_of
from weft.storage.table.quality import FAILED_COLUMN, RowChecks, Tally, marked
from weft.storage.table.rows import TRACED_MAX, Erased, RowsOf, TracedRow, rows_of, traced_rows, without
from weft.storage.table.typed_columns import TypedPart, TypedRows
from weft.storage.table_writer.parquet_file import ParquetFile, levels_of
from weft.storage.table_writer.settings import StreamStopped, TableSettings
from weft.storage.table_writer.shards import Declared, ShardView

# Rows of one stream from one shard's log, into one file, in steps of bounded cost.

RUN_BYTES, RUN_SECTIONS = 1 << 20, 256
"""Bytes and number of sections whose rows are made together: the step between two looks at the clock."""
LANE_BYTES = 300
"""Memory of a decoded lane. At level 1 a section has all lanes of its chunk."""


class LastChunk(NamedTuple):
    """The chunk with the last record below a position."""

    n: int
    footer_crc: int


class RowSink(Protocol):
    """A collector of rows of one schema."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that it wants."""
        ...

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows."""
        ...


class Gathered(NamedTuple):
    """Position up to which a shard's log was read."""

    end: int
    """Offset after the last record."""
    source: LastChunk
    next_n: int
    """Chunk of the next offset, or an earlier one."""
    traced: Sequence[TracedRow] = ()
    """Rows of traced messages."""


class Gatherer:
    """Makes rows of one stream."""

    def __init__(
        self,
        key: str,
        stream: StreamKey,
        declared: Declared,
        settings: TableSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key, self._stream = key, stream
        self._declared = declared
        self._settings = settings
        self._monotonic = monotonic

    async def gather(  # noqa: PLR0917
        self,
        view: ShardView,
        out: RowSink,
        n: int,
        first: int,
        end: int,
        payload: PayloadKind,
        shares: int = 1,
        typed: TypedRows | None = None,
    ) -> Gathered:
        """Add the rows of ``[first, end)`` to a file, until the budget of the step is spent or the file is full.

        Args:
            n: chunk of the first record, or an earlier one.
            shares: number of shards that share the budget.
            typed: maker of the typed columns; None leaves them null.

        Raises:
            StreamStopped: the first record cannot become a row, or was deleted with its chunk. If a later one cannot,
                the file ends before it.
            NotFound, Corrupt: the log cannot be read.
        """
        settings = self._settings
        budget = TurnBudget(settings.step_bytes_max // shares, settings.step_seconds_max / shares, self._monotonic)
        budget.begin(self._monotonic())
        limit = min(end, first + settings.file_rows_max)
        run = _Run(view, out, self._declared, payload, first, typed, traces=settings.on_traced is not None)
        taken = 0
        async for chunk, section, payloads in view.chunks.of_stream(self._stream, n, view.state.n):
            self._declared.compare(payloads, payload)
            if section is None or section.base_offset + section.count <= run.planned:
                continue
            if section.base_offset > run.planned:
                raise lacking(self._key, view, run.planned, section.base_offset, is_first=run.planned == first)
            stop, taken = min(section.base_offset + section.count, limit), taken + section.length
            await run.plan(chunk, section, stop)
            is_last = stop >= limit or taken >= settings.file_bytes_max
            if not is_last and run.failure is None and not run.is_full:
                continue
            await run.make(budget)
            if run.failure is not None and run.at == first:
                raise StreamStopped(self._key, view.shard, first, run.unfit_end, run.failure) from run.failure
            if run.last is not None and (is_last or run.failure is not None or run.left or not budget.spend(0)):
                return Gathered(run.at, run.last, run.next_n, run.traced)
        raise lacking(self._key, view, run.at, end, is_first=run.planned == first)


def lacking(key: str, view: ShardView, first: int, end: int, *, is_first: bool) -> TableError:
    """Return the error for offsets ``[first, end)`` that a shard's log does not have.

    Args:
        key: name of the table.
        is_first: whether they are the next ones of the table. The collector has deleted such chunks since a table had
            their rows; it was moved away, or an older copy of it was put in its place.
    """
    if not is_first or not view.log.watermark:
        return TableError(f"{key}: the log of shard {view.shard} lacks offsets {first} to {end - 1}: run `weft audit`")
    why = (
        "their chunks were deleted when a table had the rows. Put that table back in its place, or continue without "
        f"them: `weft hub skip` with --shard {view.shard} --from {first} --to {end}"
    )
    return StreamStopped(key, view.shard, first, end, TableError(why))


class _Part(NamedTuple):
    """A section whose rows are made next."""

    source: LastChunk
    rows: RowsOf
    stop: int
    """Offset after the last wanted record."""
    created: int
    """Time of the chunk, nanoseconds since 1970."""


class _Run:
    """Rows of consecutive sections, small ones together."""

    def __init__(  # noqa: PLR0917
        self,
        view: ShardView,
        out: RowSink,
        declared: Declared,
        payload: PayloadKind,
        first: int,
        typed: TypedRows | None,
        *,
        traces: bool,
    ) -> None:
        self._view, self._out, self._declared, self._payload = view, out, declared, payload
        self._traces = traces
        self.traced: list[TracedRow] = []
        """Rows of traced messages, if these are wanted."""
        self._typed = TypedPart.of(out.schema, typed)
        self.at = self.planned = first
        """Offsets after the last row made, and after the last one planned."""
        self.last: LastChunk | None = None
        """The chunk with the last row made."""
        self.next_n = 0
        """The chunk of the next row."""
        self.failure: Exception | None = None
        """Reason why the record at the offset reached cannot become a row."""
        self.unfit_end = 0
        """Offset after the records that cannot."""
        self._parts: list[_Part] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether the planned rows are made now."""
        return self._bytes >= RUN_BYTES or len(self._parts) >= RUN_SECTIONS

    @property
    def left(self) -> bool:
        """Return whether rows were planned and not made."""
        return self.at < self.planned

    async def plan(self, chunk: Chunk, section: StreamSection, stop: int) -> None:
        """Add a section to the next rows."""
        try:
            data = await self._view.chunks.section(chunk.header.n, section)
        except CodecError as error:
            self.failure, self.unfit_end = error, section.base_offset + section.count
            self.next_n = chunk.header.n
            return
        lanes = chunk.footer.lanes_of(section)
        # A copy, since a view of a few bytes would keep the whole chunk in memory.
        rows = RowsOf(section, bytes(data) if len(data) < RUN_BYTES else data, lanes, chunk.footer.clocks_of(section))
        self._parts.append(_Part(LastChunk(chunk.header.n, chunk.footer_crc), rows, stop, chunk.header.created))
        self._bytes += section.length + LANE_BYTES * len(lanes)
        self.planned = stop

    async def make(self, budget: TurnBudget) -> None:
        """Make the planned rows until the budget is spent."""
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts:
            await in_thread(partial(self._add, parts, budget))
        for part in parts:
            section = part.rows.section
            if section.base_offset < self.at:
                self.last = part.source
                self.next_n = part.source.n + (self.at >= section.base_offset + section.count)

    def _add(self, parts: Sequence[_Part], budget: TurnBudget) -> None:
        failure = None
        for joined in (True, False):
            # After an error, each batch is tried on its own, to find the failing one.
            rows = rows_of(
                [part.rows for part in parts if part.stop > self.at],
                self._view.shard,
                levels_of(self._out.schema),
                self._declared.topics(self._view),
                self.at,
                parts[-1].stop,
                payload=self._payload,
                columns={*self._out.schema.names},
                joined=joined,
                typed=self._typed,
            )
            while True:
                try:
                    batch = next(rows, None)
                except Exception as error:
                    failure = error
                    break
                if batch is None:
                    return
                self._out.add([batch])
                self.at += batch.num_rows
                if self._traces:
                    self._trace(batch, parts)
                if not budget.spend(batch.nbytes):
                    return
        self.failure, self.unfit_end = failure, self._end_of_entry(parts)

    def _trace(self, batch: pa.RecordBatch, parts: Sequence[_Part]) -> None:
        """Note the rows of traced messages, with their chunks."""
        for row in traced_rows(batch, TRACED_MAX - len(self.traced)):
            part = next(part for part in parts if row.offset < part.stop)
            self.traced.append(row._replace(chunk=part.source.n, created=part.created))

    def _end_of_entry(self, parts: Sequence[_Part]) -> int:
        """Return the offset after the batch of the offset reached; the end of its section if the batch is
        unreadable."""
        rows = next(part.rows for part in parts if part.stop > self.at)
        end = rows.section.base_offset
        try:
            for entry in section_entries(rows.section, rows.data, rows.lanes):
                end += entry.take
                if self.at < end:
                    return end
        except CodecError:
            pass
        return rows.section.base_offset + rows.section.count


def not_skipped(skips: Sequence[Skip], first: int, end: int) -> tuple[int, int]:
    """Return the first run of offsets of ``[first, end)`` that no operator skipped; an empty one at its end if there is
    none."""
    for skip in skips:
        if skip.first <= first < skip.end:
            first = min(skip.end, end)
        elif skip.first > first:
            return first, min(skip.first, end)
    return first, end


async def pass_over(key: str, stream: StreamKey, view: ShardView, n: int, end: int) -> Gathered:
    """Return the position in a shard's log after everything before ``end``.

    Args:
        key: name of the table, for errors.
        n: chunk of the first record, or an earlier one.

    Raises:
        NotFound, Corrupt: the log cannot be read.
    """
    async for chunk, section, _ in view.chunks.of_stream(stream, n, view.state.n):
        if section is not None and section.base_offset + section.count >= end:
            is_all = end == section.base_offset + section.count
            return Gathered(end, LastChunk(chunk.header.n, chunk.footer_crc), chunk.header.n + is_all)
    state = view.state
    if view.log.watermark and end <= state.next_offset.get(stream, 0):  # all of their chunks were deleted
        return Gathered(end, LastChunk(state.n, state.footer_crc), state.n + 1)
    raise TableError(f"{key}: the log of shard {view.shard} ends before offset {end}")


# Joining of files of a table into one, in the memory of a slice of the log.

_BATCH_ROWS = 16 << 10
WHOLE_BYTES_MAX = 4 << 20
"""Size up to which a file is read in one request."""
READ_BYTES = 1 << 20
"""Bytes of a column of a large row group that are read at a time."""
READ_GROUPS_BYTES = 16 << 20
"""Bytes of small row groups, without compression, that are read at a time."""
PART_BYTES = 8 << 20
"""Bytes of a joined file that are written at a time."""


Keep = Callable[[pa.RecordBatch], pa.RecordBatch]


class Joined(NamedTuple):
    """Files of a table, and the file with their rows; no version names it yet."""

    old: Sequence[DataFile]
    new: DataFile


class Joiner:
    """A joiner of files of the table in the folder ``key``.

    Args:
        clock: nanoseconds since 1970, for file times.
        monotonic: seconds.
        nonce: returns a name for a file that no other joiner uses.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        settings: TableSettings,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        nonce: Callable[[], str],
    ) -> None:
        self._store, self._key, self._settings = store, key, settings
        self._clock, self._monotonic, self._nonce = clock, monotonic, nonce

    async def join(
        self, run: Sequence[DataFile], schema: pa.Schema, keep: Keep | None = None, sort: Sequence[str] = ()
    ) -> Joined:
        """Join files, at least two and as many as the time allows.

        Args:
            keep: function that returns the rows of a batch which the new file has; at least one of all. None keeps all.
            sort: columns by which an operator wants the rows to be sorted.

        Raises:
            StoreError, NotFound: a file cannot be read, or the new one not written.
        """
        out = await in_thread(lambda: ParquetFile(schema, sort))
        taken: list[DataFile] = []
        # The first offset and the nonce name it: where it ends shows once the time is over.
        path = f"shard-{run[0].shard}-{run[0].first_offset:020d}-{self._nonce()}.parquet"
        size = await self._store.create_from(f"{self._key}/{path}", self._joined(run, out, taken, keep))
        return Joined(taken, out.data_file(path, size, self._clock() // 1_000_000))

    async def _joined(
        self, run: Sequence[DataFile], out: ParquetFile, taken: list[DataFile], keep: Keep | None
    ) -> AsyncIterator[memoryview]:
        """Yield the bytes of the joined file: a slice of it is in memory, and parts of a file that it is made of."""
        until = self._monotonic() + self._settings.join_seconds_max
        for file in run:
            # Fewer than two files would save nothing.
            if len(taken) > 1 and self._monotonic() >= until:
                break
            parts = _copied(await self._opened_file(file), out, keep)
            while (part := await in_thread(partial(next, parts, None))) is not None:
                yield part
            taken.append(file)
        yield await in_thread(out.groups.finish)

    async def _opened_file(self, file: DataFile) -> Any:
        key = f"{self._key}/{file.path}"
        if file.size <= WHOLE_BYTES_MAX:
            return pa.BufferReader((await self._store.get(key)).data)
        return ObjectFile(self._store, key, file.size, asyncio.get_running_loop())


def _copied(source: Any, out: ParquetFile, keep: Keep | None) -> Iterator[memoryview]:
    """Add the rows of a file to another one, and yield the parts of that that are ready. Columns that the first lacks,
    because they were added later, are null."""
    streamed = pq.ParquetFile(source, page_checksum_verification=True, buffer_size=READ_BYTES, pre_buffer=False)
    whole = pq.ParquetFile(source, metadata=streamed.metadata, page_checksum_verification=True, pre_buffer=True)
    for each in group_slices(streamed.metadata):
        out.groups.keep_together(each.rows, each.bytes)
        for part in parts_of(each, streamed.metadata, READ_GROUPS_BYTES):
            # Small row groups are read at once. Each column of a large one comes in pieces: its rows may take far more.
            file = whole if len(part) > 1 or each.bytes <= READ_GROUPS_BYTES else streamed
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=part):
                rows = _as_schema(batch, out.schema)
                out.add([rows if keep is None else keep(rows)])
                if out.groups.ready >= PART_BYTES:
                    yield out.groups.take()


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


OF_ONE_SHARD = (CodecError, NotFound, StreamStopped)
"""Errors of one shard's records: they must not keep the other shards' records from the table."""


class RowsRequest(NamedTuple):
    """Records ``[first, end)`` of one shard that are to become rows; no operator skipped any of them."""

    view: ShardView
    n: int
    """Chunk of the first record, or an earlier one."""
    first: int
    end: int


class Made(NamedTuple):
    """Rows of one shard, from the first wanted one on."""

    files: tuple[DataFile, ...]
    """In the order of their offsets; durable. None without rows: all of the records were erased."""
    gathered: Gathered
    tally: Tally | None = None
    """Findings of the quality rules in the rows; None without rules."""


class StreamRows(NamedTuple):
    """The form of a stream's rows."""

    stream: StreamKey
    schema: pa.Schema
    payload: PayloadKind
    declared: Declared
    typed: TypedRows | None = None
    """Maker of the typed columns; None leaves them null."""
    checks: RowChecks | None = None
    """Checks of the rows by quality rules."""
    erased: Erased | None = None
    """Offsets whose records do not become rows again."""
    sort: Sequence[str] = ()
    """Columns by which an operator wants the rows of a file to be sorted."""


class FileWriter(Protocol):
    """Writes files of tables, in this process or on other machines. Serves any number of tasks of one event loop."""

    async def write(self, rows: StreamRows, wanted: Sequence[RowsRequest]) -> list[Made | Exception]:
        """Write the rows of each shard, or as many of its first ones as a step has time for.

        Returns:
            For each shard the files, or the reason why its first record cannot become a row, of ``OF_ONE_SHARD``.

        Raises:
            TableError: the log lacks records, or the files cannot be made.
            StoreError: the store did not answer.
            CollectedPast: the state of a shard is too old.
        """
        ...

    def join(
        self, key: str, runs: Sequence[Sequence[DataFile]], schema: pa.Schema, sort: Sequence[str] = ()
    ) -> AsyncIterator[Joined]:
        """Yield for each run of files one file with the rows of its first ones, at least two; durable.

        Args:
            key: the table's folder in the store.
            sort: columns by which an operator wants the rows of a file to be sorted.

        Raises:
            TableError, StoreError, NotFound: a file cannot be read or written.
        """
        ...


class _Unerased(NamedTuple):
    """A collector without the rows of one shard that were erased."""

    out: RowSink
    shard: int
    erased: Erased | None

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self.out.schema

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Pass rows on."""
        self.out.add(without(batch, self.shard, self.erased) for batch in batches)


class _Checked:
    """A collector that checks rows on their way to another one."""

    def __init__(self, out: RowSink, checks: RowChecks) -> None:
        self._out, self.tally = out, Tally(checks)
        self._names = dict(checks.names) if FAILED_COLUMN in levels_of(out.schema) else {}

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._out.schema

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Check rows, and pass them on."""
        for batch in batches:
            failing = self.tally.add(batch)
            self._out.add([marked(batch, failing, self._names) if self._names else batch])


class OwnWriter:
    """A writer in this process: a file of each shard at a time, and the budget of a step for all of them.

    Args:
        clock: nanoseconds since 1970, for file times.
        monotonic: seconds.
        nonce: returns a name for a file that no other writer uses.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: TableSettings,
        *,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store, self._settings = store, settings
        self._clock, self._monotonic, self._nonce = clock, monotonic, nonce

    async def write(self, rows: StreamRows, wanted: Sequence[RowsRequest]) -> list[Made | Exception]:
        """Write one file of each shard. See ``FileWriter``."""
        key = table_key(*rows.stream)
        gatherer = Gatherer(key, rows.stream, rows.declared, self._settings, monotonic=self._monotonic)
        made: list[Made | Exception] = []
        for each in wanted:
            try:
                made.append(await self._write(key, gatherer, rows, each, len(wanted)))
            except OF_ONE_SHARD as error:
                made.append(error)
        return made

    async def _write(self, key: str, gatherer: Gatherer, rows: StreamRows, wanted: RowsRequest, shares: int) -> Made:
        view, n, first, end = wanted
        out = await in_thread(lambda: ParquetFile(rows.schema, rows.sort))
        checked = None if rows.checks is None else _Checked(out, rows.checks)
        # What was erased counts for no rule.
        sink = _Unerased(checked or out, view.shard, rows.erased)
        gathered = await gatherer.gather(view, sink, n, first, end, rows.payload, shares, rows.typed)
        if not out.rows:
            return Made((), gathered)
        data = await in_thread(out.groups.finish)
        path = f"shard-{view.shard}-{first:020d}-{gathered.end:020d}-{self._nonce()}.parquet"
        await self._store.create(f"{key}/{path}", data)
        file = out.data_file(path, len(data), self._clock() // 1_000_000)
        return Made((file,), gathered, None if checked is None else checked.tally)

    async def join(
        self, key: str, runs: Sequence[Sequence[DataFile]], schema: pa.Schema, sort: Sequence[str] = ()
    ) -> AsyncIterator[Joined]:
        """Join one run after the other, each when the caller asks for it. See ``FileWriter``."""
        joiner = Joiner(
            self._store, key, self._settings, clock=self._clock, monotonic=self._monotonic, nonce=self._nonce
        )
        for run in runs:
            yield await joiner.join(run, schema, sort=sort)
            await asyncio.sleep(0)
