"""Rows that replace those with the same keys: the files of a table with such rows, and their remaining rows.

No row is changed in place. A file that holds a replaced row is read, and its other rows are written again; both become
one version together with the new rows. deltalake's own MERGE does the same and syncs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks.delta.table import (
    FileWriter,
    HeldFile,
    Layout,
    NewFile,
    PositionFilter,
    Positions,
    TableLocation,
    later,
    match,
    merged_ends,
)
from weft.storage.table.parquet import after_cut, bounds_of

# The work of an executor for a batch: skip the rows that the table has, and write the others to Parquet files.

INLINE_BYTES_MAX = 128 << 10
"""Maximum bytes of rows that a task sends to the driver, which makes one file of the few rows of all tasks."""
UPSERT_BYTES_MAX = 512 << 20
"""Maximum bytes of new rows in one batch with keys: the driver holds them."""
RESULT_SCHEMA = "result binary"


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one task."""

    files: list[NewFile]
    rows: bytes
    """Arrow IPC stream of rows that are not in ``files``; empty without any."""
    ends: list[tuple[str, int, int]]
    """(stream, shard, end of the offsets) of the rows."""
    skipped: int
    """Rows that the table had already."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The function of ``mapInArrow``.

    Args:
        inline_bytes_max: maximum bytes of rows without a file; None never writes one.
        held_bytes_max: bytes of rows without a file above which the task fails.
    """

    place: TableLocation
    layout: Layout
    positions: PositionFilter | None
    inline_bytes_max: int | None = INLINE_BYTES_MAX
    held_bytes_max: int = UPSERT_BYTES_MAX

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one result, or none when there are no rows.

        Raises:
            SinkError: the rows have no valid place in the log, or are more than the driver can hold.
        """
        held: list[pa.RecordBatch] = []
        writer: FileWriter | None = None
        ends: list[Positions] = []
        seen = kept = held_bytes = 0
        for batch in batches:
            seen += batch.num_rows
            new = batch
            if self.positions is not None:
                new, found = self.positions.new_rows(batch)
                ends.append(found)
            kept += new.num_rows
            rows = self.layout.aligned(new)
            if writer is None:
                held.append(rows)
                held_bytes += rows.nbytes
                if self.inline_bytes_max is None:
                    check_size(held_bytes, self.held_bytes_max)
                elif held_bytes > self.inline_bytes_max:
                    writer = FileWriter(self.place, self.layout)
                    for early in held:
                        writer.add(early)
                    held = []
            else:
                writer.add(rows)
        if seen:
            listed = [(stream, shard, end) for (stream, shard), end in merged_ends(ends).items()]
            files = [] if writer is None else writer.finish()
            result = TaskResult(files, to_ipc(held, self.layout.schema), listed, seen - kept)
            yield pa.RecordBatch.from_pydict({"result": [msgspec.msgpack.encode(result)]})


def check_size(size: int, bytes_max: int) -> None:
    """Check that rows with keys fit into the driver's memory.

    Raises:
        SinkError: they do not.
    """
    if size > bytes_max:
        raise SinkError(
            f"a batch with keys has {size >> 20} MiB of rows or more, at most {bytes_max >> 20} MiB go through the "
            "driver: lower max_records_per_trigger"
        )


def to_ipc(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return rows as an Arrow IPC stream; nothing for no rows."""
    if not any(batch.num_rows for batch in batches):
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return out.getvalue().to_pybytes()


def from_ipc(parts: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """Return the rows of several IPC streams."""
    tables = [pa.ipc.open_stream(part).read_all() for part in parts if part]
    return pa.concat_tables([schema.empty_table(), *tables])


SMALL_FILE_BYTES = 8 << 20
"""Size up to which the driver rewrites a file, with its rows and the new ones in one file."""
SMALL_FILES_MAX = 32
"""Number of small files from which on they are joined, even without a replaced row."""
JOINED_BYTES_MAX = 64 << 20
"""Maximum bytes of small files that the driver reads in one batch."""
_BATCH_ROWS = 64 << 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Merged(NamedTuple):
    """Changes that a batch makes to the table's files."""

    adds: list[NewFile]
    removes: list[HeldFile]


class _Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of rewriting one file in a task."""

    file: int
    """Number of the file, whose rows are now in ``files``, except the replaced ones; -1 when all of them remain."""
    files: list[NewFile]
    losers: list[int]
    """New rows that lost against a row of the file."""


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Removes replaced rows from files.

    Args:
        wanted: the columns ``keys`` and ``order`` of the new rows, each key once.
        order: columns by which a row of the file may win against the new one; without any, the new one wins.
        replaced: ranges for which the new rows are all rows; other rows in them are removed, too.
    """

    place: TableLocation
    layout: Layout
    wanted: pa.Table
    keys: tuple[str, ...]
    order: tuple[str, ...]
    replaced: Replaced | None = None

    def touched(self, files: Sequence[HeldFile]) -> list[HeldFile]:
        """Return the files that may hold a row to remove, by their partitions and bounds."""
        known = [_KeyValues.of(name, self.wanted.column(name), self.layout) for name in self.keys]
        has_rows, replaced = self.wanted.num_rows > 0, self.replaced
        return [
            file
            for file in files
            if (has_rows and all(values.may_be_in(file) for values in known))
            or (replaced is not None and _may_be_in_ranges(replaced, file))
        ]

    def look(self, file: HeldFile) -> tuple[_Parquet, np.ndarray, list[int]]:
        """Return an opened file, a mask of its remaining rows, and the new rows that lose against those."""
        held = _Parquet(self.place, self.layout, file)
        wanted = {*self.keys, *self.order} | ({self.replaced.newest_by} if self.replaced else set())
        names = [name for name in self.layout.schema.names if name in wanted]
        found = held.table(names)
        rows = match(found, self.wanted, self.keys)
        stays = rows < 0
        losers: list[int] = []
        # A row of the table that is later by ``order`` remains, and the new row is dropped instead.
        if self.order and not stays.all():
            at = np.flatnonzero(~stays)
            wins = later(found.take(pa.array(at)), self.wanted.take(pa.array(rows[at])), self.order)
            stays[at[wins]] = True
            losers = rows[at[wins]].tolist()
        if self.replaced is not None:
            # Rows in the replaced ranges with keys that the batch lacks are groups that the window no longer has.
            stays &= ~((rows < 0) & _goes(self.replaced, found))
        return held, stays, losers


class _Parquet:
    """A file of the table, with its bytes in memory."""

    def __init__(self, place: TableLocation, layout: Layout, file: HeldFile) -> None:
        data = run(place.store.get(f"{place.key}/{file.path}")).data
        self._file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        self._layout, self._partition = layout, file.partition
        self._held = {name.casefold(): name for name in self._file.schema_arrow.names}

    def table(self, names: Sequence[str]) -> pa.Table:
        """Return some columns of all rows."""
        schema = pa.schema([self._layout.schema.field(name) for name in names])
        present = [self._held[name.casefold()] for name in names if name.casefold() in self._held]
        read = self._file.read(columns=present) if present else None
        rows = self._file.metadata.num_rows
        return pa.table([self._column(read, field, rows) for field in schema], schema=schema)

    def rows(self, stays: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows, with the table's columns."""
        first = 0
        for batch in self._file.iter_batches(_BATCH_ROWS):
            mask = stays[first : first + batch.num_rows]
            first += batch.num_rows
            if mask.any():
                kept = batch.filter(pa.array(mask))
                columns = [self._column(kept, field, kept.num_rows) for field in self._layout.schema]
                yield pa.RecordBatch.from_arrays(columns, schema=self._layout.schema)

    def _column(self, read: Any, field: pa.Field, rows: int) -> Any:
        if field.name in self._partition:
            return pa.repeat(pa.scalar(self._partition[field.name], field.type), rows)
        held = self._held.get(field.name.casefold())
        return pa.nulls(rows, field.type) if held is None else read.column(held).cast(field.type)


def merge(spark: SparkSession, rewriter: Rewriter, rows: pa.Table, files: Sequence[HeldFile]) -> Merged:
    """Write the new rows, and the remaining rows of files with rows that they replace.

    Small files are rewritten here, large ones by Spark's tasks.

    Args:
        rows: the new rows, each key once, with the table's columns.
        files: files of the version on top of which the result is committed.

    Raises:
        StoreError, NotFound: a file cannot be read or written.
    """
    small, large = _small(rewriter.touched(files))
    join = len([file for file in files if file.size <= SMALL_FILE_BYTES]) >= SMALL_FILES_MAX
    writer = FileWriter(rewriter.place, rewriter.layout)
    removes, losers, adds = [], set[int](), list[NewFile]()
    if join:
        # Joined even without a replaced row: each batch adds a small file, and readers pay for each of them.
        small = _joined(files, small)
    for file in small:
        held, stays, lost = rewriter.look(file)
        losers.update(lost)
        if join or not stays.all():
            removes.append(file)
            for batch in held.rows(stays):
                writer.add(batch)
    for outcome in _rewritten(spark, rewriter, large):
        losers.update(outcome.losers)
        if outcome.file >= 0:
            removes.append(large[outcome.file])
            adds += outcome.files
    keep = np.ones(rows.num_rows, bool)
    keep[list(losers)] = False
    for batch in rows.filter(pa.array(keep)).to_batches(_BATCH_ROWS):
        writer.add(batch)
    return Merged([*adds, *writer.finish()], removes)


def _small(touched: Sequence[HeldFile]) -> tuple[list[HeldFile], list[HeldFile]]:
    """Return the touched files that the driver rewrites, and the others."""
    small: list[HeldFile] = []
    large: list[HeldFile] = []
    room = JOINED_BYTES_MAX
    for file in touched:
        # Beyond the driver's room, small files go to tasks as well.
        if file.size <= SMALL_FILE_BYTES and file.size <= room:
            room -= file.size
            small.append(file)
        else:
            large.append(file)
    return small, large


def _joined(files: Sequence[HeldFile], small: Sequence[HeldFile]) -> list[HeldFile]:
    """Return the small files with further small ones, as far as there is room."""
    found, room = list(small), JOINED_BYTES_MAX - sum(file.size for file in small)
    paths = {file.path for file in small}
    for file in sorted(files, key=lambda file: file.size):
        if file.path not in paths and file.size <= min(SMALL_FILE_BYTES, room):
            room -= file.size
            found.append(file)
    return found


def _rewritten(spark: SparkSession, rewriter: Rewriter, files: Sequence[HeldFile]) -> list[_Outcome]:
    """Rewrite files in tasks, one task each. A file without a replaced row has no outcome."""
    if not files:
        return []
    task = _RewriteTask(rewriter, tuple(files))
    numbers = spark.range(0, len(files), 1, len(files))
    found = numbers.mapInArrow(task, RESULT_SCHEMA).collect()
    return [msgspec.msgpack.decode(bytes(row[0]), type=_Outcome) for row in found]


@dataclass(frozen=True, slots=True)
class _RewriteTask:
    """The function of ``mapInArrow`` over the numbers of files."""

    rewriter: Rewriter
    files: tuple[HeldFile, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                held, stays, losers = self.rewriter.look(self.files[number])
                written: list[NewFile] = []
                if not stays.all():
                    writer = FileWriter(self.rewriter.place, self.rewriter.layout)
                    for rows in held.rows(stays):
                        writer.add(rows)
                    written = writer.finish()
                if losers or not stays.all():
                    outcome = _Outcome(number if not stays.all() else -1, written, losers)
                    yield pa.RecordBatch.from_pydict({"result": [msgspec.msgpack.encode(outcome)]})


class _KeyValues(NamedTuple):
    """The values of one key column in the new rows."""

    name: str
    low: Any
    high: Any
    has_null: bool
    in_partitions: frozenset[Any]
    """All values, if the table is partitioned by the column."""

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray, layout: Layout) -> _KeyValues:
        """Return the values to compare with each file."""
        low, high = bounds_of(column)
        values = frozenset(pc.unique(column).to_pylist()) if name in layout.partition_by else frozenset[Any]()
        return cls(name, low, high, column.null_count > 0, values)

    def may_be_in(self, file: HeldFile) -> bool:
        """Return whether one of the values can be in a file."""
        name = self.name
        if name in file.partition:
            return file.partition[name] in self.in_partitions
        # Bounds do not cover nulls, and a file without bounds may have any value.
        if self.has_null or name not in file.low or name not in file.high:
            return True
        high = file.high[name]
        if isinstance(high, datetime):
            high = after_cut(high)
        try:
            return bool(file.low[name] <= self.high and self.low <= high)
        except TypeError:
            # Bounds of another type than the values, from another engine: the file has to be read.
            return True


def _may_be_in_ranges(replaced: Replaced, file: HeldFile) -> bool:
    """Return whether a file may have a time in one of the ranges."""
    low, high = file.low.get(replaced.column), file.high.get(replaced.column)
    if not isinstance(low, datetime) or not isinstance(high, datetime):
        return True
    # The upper bound is truncated to milliseconds, so the file may have later times.
    first, last = _micros(low), _micros(after_cut(high))
    return any(start <= last and first < end for start, end in replaced.ranges_us)


def _micros(moment: datetime) -> int:
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH
    return since // timedelta(microseconds=1)


def _goes(replaced: Replaced, found: pa.Table) -> np.ndarray:
    """Return a mask of the rows that lie in the ranges and are not newer than the batch."""
    times = found.column(replaced.column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    micros = pc.fill_null(times, 0).to_numpy()
    ranges = np.array(replaced.ranges_us, np.int64).reshape(-1, 2)
    at = np.searchsorted(ranges[:, 0], micros, "right") - 1
    inside = (at >= 0) & (micros < ranges[at, 1]) if len(ranges) else np.zeros(len(micros), bool)
    newer = pc.fill_null(pc.greater(found.column(replaced.newest_by), replaced.newest), False)
    return inside & ~newer.to_numpy().astype(bool) & times.is_valid().to_numpy().astype(bool)
