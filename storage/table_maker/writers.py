"""Writers of a table's files, which no version names until the caller commits them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.chunk_log import table_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.delta.entries import DataFile
from weft.storage.table.erased import Erased, without
from weft.storage.table.quality.checks import RowChecks, Tally
from weft.storage.table.quality.marks import FAILED_COLUMN, marked
from weft.storage.table.typed_rows import TypedRows
from weft.storage.table_maker.columns import levels_of
from weft.storage.table_maker.declared import Declared
from weft.storage.table_maker.delta import in_thread
from weft.storage.table_maker.errors import StreamStopped
from weft.storage.table_maker.gather import Gathered, Gatherer, RowSink
from weft.storage.table_maker.joining import Joined, Joiner
from weft.storage.table_maker.parquet_file import ParquetFile
from weft.storage.table_maker.settings import TableSettings
from weft.storage.table_maker.shards import ShardView

OF_ONE_SHARD = (CodecError, NotFound, StreamStopped)
"""Errors of one shard's records: they must not keep the other shards' records from the table."""


class WantedRows(NamedTuple):
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

    async def write(self, rows: StreamRows, wanted: Sequence[WantedRows]) -> list[Made | Exception]:
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

    async def write(self, rows: StreamRows, wanted: Sequence[WantedRows]) -> list[Made | Exception]:
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

    async def _write(self, key: str, gatherer: Gatherer, rows: StreamRows, wanted: WantedRows, shares: int) -> Made:
        view, n, first, end = wanted
        out = await in_thread(lambda: ParquetFile(rows.schema, rows.sort))
        checked = None if rows.checks is None else _Checked(out, rows.checks)
        # What was erased counts for no rule.
        sink = _Unerased(checked or out, view.shard, rows.erased)
        gathered = await gatherer.gather(view, sink, n, first, end, rows.payload, shares, rows.typed)
        if not out.rows:
            return Made((), gathered)
        data = await in_thread(out.finish)
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
