"""The table of a sink: its versions as read, and commits on top of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.source.options import with_environment
from weft.config.units import WRITTEN, is_bucket
from weft.storage.object_store import ObjectStore, StoreUnfit, open_store
from weft.storage.object_store.protocol import check_key
from weft.storage.table import delta
from weft.storage.table.actions import TableConflict, TableError
from weft.storage.table.delta import add_columns, create_table, open_table, transaction, write
from weft.storage.table.delta_log import TableLog
from weft.storage.table.parquet import FileStatistics, RowGroups

# Columns of rows and of their table: matching types, added columns, and statistics.

STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
COUNT_PROPERTY = "delta.dataSkippingNumIndexedCols"
STATISTICS_MAX = 32
"""Maximum number of columns with bounds; Delta's own default."""
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that column names of a Delta table cannot have (PROTOCOL.md, "Column Mapping")."""
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIDENING = ("tinyint", "smallint", "int", "bigint")
_PARTITIONING = ("string", "boolean", "date", *_WIDENING)
_BOUNDED = ("string", "date", "timestamp", *_WIDENING)
"""Types whose bounds are exact. A NaN is above every bound of a float, so floats have none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a table and of its files."""

    schema: pa.Schema
    """All columns of the table, in its order."""
    partition_by: tuple[str, ...]
    statistics: tuple[str, ...]
    """Columns with bounds in every file. deltalake's dataset loses rows of a file that lacks bounds which other files
    have."""

    @property
    def in_files(self) -> pa.Schema:
        """Return the columns in the Parquet files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def aligned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the table's columns; missing ones are null, as are empty texts of partitions."""
        index = {name: at for at, name in enumerate(batch.schema.names)}
        columns = []
        for field in self.schema:
            at = index.get(field.name)
            if at is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                column = batch.column(at).cast(field.type)
                if field.name in self.partition_by and pa.types.is_string(field.type):
                    # The table's log has no empty text: it reads as null. A key must be equal to the value that is read
                    # back.
                    column = pc.if_else(pc.equal(column, ""), None, column)
                columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return a frame's columns as columns of a table.

    Raises:
        SinkError: a name or type is not possible in a Delta table.
    """
    seen: dict[str, str] = {}
    for field in schema.fields:
        if _FORBIDDEN.search(field.name) or not field.name:
            raise SinkError(f"column {field.name!r}: Delta allows none of space , ; {{ }} ( ) = in names; rename it")
        if field.dataType.simpleString() == "void":
            raise SinkError(f"column {field.name}: it is null without a type; cast it, for example to string")
        other = seen.setdefault(field.name.casefold(), field.name)
        if other is not field.name:
            raise SinkError(f"columns {other} and {field.name}: Delta does not distinguish them; rename one")
    try:
        return pa.schema([_nullable(field) for field in to_arrow_schema(schema, timezone="UTC")])
    except (PySparkException, pa.ArrowException) as error:
        raise SinkError(f"the rows have a type that no Delta table has: {error}") from error


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type, nullable=True)


def type_name(kind: pa.DataType) -> str:
    """Return a type by Spark's name, which does not depend on Arrow's names for the parts of lists and maps."""
    return str(from_arrow_type(kind).simpleString())


def new_layout(rows: pa.Schema, partition_by: Sequence[str]) -> Layout:
    """Return the layout of a table made for these rows.

    Raises:
        SinkError: they cannot be partitioned like that.
    """
    check_partitioning(rows, partition_by)
    names = [
        field.name
        for field in rows
        if type_name(field.type) in _BOUNDED and _SIMPLE.fullmatch(field.name) and field.name not in partition_by
    ]
    return Layout(rows, tuple(partition_by), tuple(names[:STATISTICS_MAX]))


def check_partitioning(rows: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check the columns by which a table is partitioned.

    Raises:
        SinkError: there is no such column, its type is not possible, or no column is left for the files.
    """
    for name in partition_by:
        if name not in rows.names:
            raise SinkError(f"partition_by: the rows have no column {name}; they have {', '.join(rows.names)}")
        if (kind := type_name(rows.field(name).type)) not in _PARTITIONING:
            raise SinkError(f"partition_by: {name} is a {kind}; partition by text, whole numbers, dates or booleans")
    if len(partition_by) >= len(rows):
        raise SinkError("partition_by: it names every column; leave at least one for the files")


def properties_of(layout: Layout) -> dict[str, str]:
    """Return the properties of a new table."""
    if layout.statistics:
        return {STATISTICS_PROPERTY: ",".join(layout.statistics)}
    return {COUNT_PROPERTY: "0"}


def table_layout(table: pa.Schema, partition_by: Iterable[str], properties: Mapping[str, str]) -> Layout:
    """Return the layout of an existing table."""
    names = [name.strip() for name in properties.get(STATISTICS_PROPERTY, "").split(",") if name.strip()]
    # Bounds in some files only are worse than none: see Layout.statistics. Without the property, another engine chose
    # the columns.
    known = all(name in table.names and type_name(table.field(name).type) in _BOUNDED for name in names)
    schema = pa.schema([_nullable(field) for field in table])
    return Layout(schema, tuple(partition_by), tuple(names) if known else ())


def missing_columns(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks.

    Raises:
        SinkError: the table's column cannot hold the type of a column.
    """
    known = {field.name.casefold(): field for field in table}
    for field in rows:
        held = known.get(field.name.casefold(), field)
        if held.name != field.name:
            raise SinkError(f"column {field.name}: the table has it as {held.name}; rename the column of the rows")
        if not _fits(type_name(field.type), type_name(held.type)):
            raise SinkError(
                f"column {field.name} is {type_name(field.type)} in the rows and {type_name(held.type)} in the table: "
                "cast it, give it another name, or write another table"
            )
    return [field for field in rows if field.name.casefold() not in known]


def _fits(given: str, held: str) -> bool:
    """Return whether the held type has every value of the given one."""
    if given in _WIDENING and held in _WIDENING:
        return _WIDENING.index(given) <= _WIDENING.index(held)
    return given == held or (given, held) == ("float", "double")


# The place of a table: its object store, and deltalake's name for the same folder.

STORES_OPEN_MAX = 8
"""Maximum number of stores that a process keeps open between batches."""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table's folder, sent from the driver to executors."""

    uri: str
    root: str
    """The folder above the table: its object store's root."""
    key: str
    """The table's name below ``root``."""
    options: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """Options for the object store; may hold credentials."""

    @property
    def store(self) -> ObjectStore:
        """Return the store; each process opens it once."""
        return _opened(self.root, self.options)

    def location(self) -> tuple[str, dict[str, str]]:
        """Return the URI and the storage options by which deltalake opens the table."""
        return self.store.location(self.key)


def place_of(uri: str | os.PathLike[str], options: dict[str, str]) -> TableLocation:
    """Return the place of a table.

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.
        options: for the object store; what is missing comes from the environment.

    Raises:
        SinkError: a table cannot be there.
    """
    text = os.fspath(uri).rstrip("/")
    if text.startswith("file://"):
        text = text.removeprefix("file://localhost").removeprefix("file://")
    remote = "://" in text
    if not remote:
        text = os.path.abspath(text)
    root, _, key = text.rpartition("/")
    if remote and not is_bucket(text):
        raise SinkError(f"table {text!r}: expected a path, file:///path, {WRITTEN}")
    if remote and root.endswith(":/"):
        raise SinkError(f"table {text!r}: it names a bucket alone; add a folder for the table")
    try:
        check_key(key)
    except ValueError:
        raise SinkError(
            f"table {text!r}: choose another name for the folder. It has only A-Z a-z 0-9 _ . = @ + ~ - and does not "
            "begin with a dot or a dash"
        ) from None
    given = {name.upper(): value for name, value in options.items()}
    named = with_environment(given, os.environ, text)
    place = TableLocation(text, root or "/", key, tuple(sorted(named.items())))
    try:
        place.location()
    except (ValueError, StoreUnfit) as error:
        raise SinkError(f"table {text!r}: {error}") from error
    return place


@functools.lru_cache(STORES_OPEN_MAX)
def _opened(root: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(root, dict(options))


# Equality of rows by some columns, a whole table at a time. Nulls equal nulls.


def codes_of(columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
    """Return a number per row, from 0 without holes; rows with equal values have equal numbers."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else pa.array([], pa.string())
            encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # Codes are made dense again after each column, so the product stays below the square of the number of rows.
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + indices, return_inverse=True)[1]
    return codes


def last_of_each(table: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    """Return one row per key: the last by ``order``, nulls lowest, and among equal ones the last in the table."""
    if not table.num_rows:
        return table
    ranks: list[Any] = []
    for name in order:
        column = table.column(name)
        ranks += [pc.is_valid(column), column]  # Nulls are lowest: Arrow sorts false first, and nulls last.
    ranks.append(pa.array(np.arange(table.num_rows)))
    ranked = pa.table(ranks, names=[str(at) for at in range(len(ranks))])
    table = table.take(pc.sort_indices(ranked, sort_keys=[(name, "ascending") for name in ranked.column_names]))
    codes = codes_of([table.column(name) for name in keys])
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(table.num_rows)  # For equal indices, numpy keeps the last value.
    return table.take(pa.array(np.sort(last)))


def match(found: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> np.ndarray:
    """Return for each row of ``found`` the row of ``wanted`` with its key, or -1. ``wanted`` has each key once."""
    columns = [
        pa.chunked_array(
            [*wanted.column(name).chunks, *found.column(name).cast(wanted.schema.field(name).type).chunks],
            wanted.schema.field(name).type,
        )
        for name in keys
    ]
    codes = codes_of(columns)
    rows = np.full(int(codes.max()) + 1 if len(codes) else 0, -1, np.int64)
    rows[codes[: wanted.num_rows]] = np.arange(wanted.num_rows)
    return rows[codes[wanted.num_rows :]]


def later(left: pa.Table, right: pa.Table, order: Sequence[str]) -> np.ndarray:
    """Return for each pair of rows whether the left one comes after the right one by ``order``.

    Nulls are lowest and NaN is highest, as in the sort of the rows of one batch.
    """
    after, equal = np.zeros(left.num_rows, bool), np.ones(left.num_rows, bool)
    for name in order:
        ours, theirs = left.column(name), right.column(name).cast(left.schema.field(name).type)
        no_ours, no_theirs = _bools(pc.is_null(ours)), _bools(pc.is_null(theirs))
        ours_nan, theirs_nan = _are_nan(ours), _are_nan(theirs)
        greater = _bools(pc.fill_null(pc.greater(ours, theirs), False)) | (~no_ours & no_theirs)
        greater |= ours_nan & ~theirs_nan
        same = _bools(pc.fill_null(pc.equal(ours, theirs), False)) | (no_ours & no_theirs) | (ours_nan & theirs_nan)
        after |= equal & greater
        equal &= same
    return after


def _are_nan(values: pa.ChunkedArray) -> np.ndarray:
    if not pa.types.is_floating(values.type):
        return np.zeros(len(values), bool)
    return _bools(pc.fill_null(pc.is_nan(values), False))


def _bools(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.to_numpy(), bool)


# Rows into the Parquet files of a table, durable before any version names them.

FILE_BYTES_MAX = 128 << 20
"""Compressed bytes after which a task begins another file."""
GROUP_BYTES_MAX = 32 << 20
BUFFERED_BYTES_MAX = 192 << 20
"""Maximum bytes of unfinished files in a task; beyond it, the task finishes the largest."""
FILES_MAX = 1000
"""Maximum number of files that one task writes in a batch: a partition column with too many values makes a file for
each."""
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.@+-]{1,60}")
_NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]


class NewFile(msgspec.Struct, frozen=True):
    """A Parquet file in the table's folder that no version names yet."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str
    """Statistics in JSON, as in the Delta protocol's "Per-file Statistics"."""


class FileWriter:
    """A writer of rows of one layout into files, split by partition and size."""

    def __init__(self, place: TableLocation, layout: Layout) -> None:
        self._place, self._layout = place, layout
        self._schema = layout.in_files
        self._open: dict[Values, _OpenFile] = {}
        self._files: list[NewFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the layout's columns.

        Raises:
            SinkError: there are more partitions than a task can write.
            StoreError: the store did not answer.
        """
        for values, rows in self._partitions(batch):
            file = self._open.setdefault(values, _OpenFile(self._schema, self._layout.statistics))
            file.add(rows)
            if file.groups.written >= FILE_BYTES_MAX:
                self._finish(values)
        while sum(file.groups.bytes for file in self._open.values()) > BUFFERED_BYTES_MAX:
            self._finish(max(self._open, key=lambda values: self._open[values].groups.bytes))

    def finish(self) -> list[NewFile]:
        """Write the unfinished files. Return all files, which are durable."""
        for values in list(self._open):
            self._finish(values)
        return self._files

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        rows, names = batch.select(self._schema.names), self._layout.partition_by
        if not names:
            yield (), rows
            return
        keys = [batch.column(name) for name in names]
        codes = codes_of([pa.chunked_array([key]) for key in keys])
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        rows = rows.take(pa.array(order))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            at = int(order[start])
            yield tuple(partition_text(key[at].as_py()) for key in keys), rows.slice(start, end - start)

    def _finish(self, values: Values) -> None:
        if len(self._files) >= FILES_MAX:
            raise SinkError(
                f"partition_by: the rows of one task have more than {FILES_MAX} partitions. Choose a column with fewer "
                f"values, or repartition the rows by {', '.join(self._layout.partition_by)} before the sink"
            )
        file = self._open.pop(values)
        data = file.groups.finish()
        folders = [_folder(name, value) for name, value in zip(self._layout.partition_by, values, strict=True)]
        path = "/".join([*folders, f"part-{secrets.token_hex(12)}.parquet"])
        run(self._place.store.create(f"{self._place.key}/{path}", data))
        partition = dict(zip(self._layout.partition_by, values, strict=True))
        self._files.append(NewFile(path, len(data), file.statistics.rows, partition, file.statistics.to_json()))


class _OpenFile:
    """A Parquet file in memory, and the bounds of its rows."""

    def __init__(self, schema: pa.Schema, statistics: tuple[str, ...]) -> None:
        self.statistics = FileStatistics(statistics)
        self.groups = RowGroups(schema, GROUP_BYTES_MAX)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.statistics.add(batch)
        self.groups.add(batch)


def partition_text(value: Any) -> str | None:
    """Return a value as text for the table's log (PROTOCOL.md, "Partition Value Serialization"); '' means null
    there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    return None if value in (None, "") else str(value)


def _folder(name: str, value: str | None) -> str:
    """Return a folder name for people: readers take the value from the log."""
    if value is None:
        return f"{_safe(name)}={_NULL_VALUE}"
    return f"{_safe(name)}={_safe(value)}"


def _safe(text: str) -> str:
    return text if _PLAIN_VALUE.fullmatch(text) else f"~{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


T = TypeVar("T")
CHECKPOINT_VERSIONS = 100
"""Versions between checkpoints."""
WRITER_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_DEMANDS = ("delta.generationExpression", "delta.identity", "delta.invariants")
"""Metadata of columns by which a table requires its writers to compute or check values."""


class HeldFile(NamedTuple):
    """A file of the table's version."""

    path: str
    """Relative to the table."""
    size: int
    partition: dict[str, Any]
    """Typed values by column."""
    low: dict[str, Any]
    """Lowest values of the columns that have bounds."""
    high: dict[str, Any]


def guarded(call: Callable[[], T], place: TableLocation) -> T:
    """Run a deltalake call.

    Raises:
        TableConflict: another writer was first.
        SinkError: any other error, including Rust panics.
    """
    try:
        return delta.guarded(call)
    except TableConflict:
        raise
    except TableError as error:
        cause = error.__cause__
        if isinstance(cause, SinkError):
            raise cause from cause.__cause__
        advice = ""
        if isinstance(cause, OSError):
            advice = ". See to its disk or object store, and start the query again: it continues where it was"
        raise SinkError(f"table {place.uri}: {error}{advice}") from cause


class TableReading:
    """One reading of a table, and a commit on top of it. All methods block, and raise as ``guarded`` does."""

    def __init__(self, place: TableLocation, table: DeltaTable) -> None:
        self._place, self._table = place, table
        metadata = table.metadata()
        self.id = str(metadata.id)
        self.properties: dict[str, str] = dict(metadata.configuration)
        self.layout: Layout = table_layout(pa.schema(table.schema()), metadata.partition_columns, self.properties)

    @classmethod
    def open(cls, place: TableLocation) -> TableReading | None:
        """Return the table as it is now, or None when there is none."""
        uri, options = place.location()

        def opened() -> TableReading | None:
            table = open_table(uri, options)
            return None if table is None else cls(place, table)

        return guarded(opened, place)

    @staticmethod
    def create(place: TableLocation, layout: Layout) -> None:
        """Create an empty table unless one exists."""
        uri, options = place.location()
        guarded(lambda: create_table(uri, options, layout.schema, properties_of(layout), layout.partition_by), place)

    @property
    def version(self) -> int:
        """Return the version of this reading."""
        return int(self._table.version())

    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None when it never committed."""
        return transaction(self._table, app_id)

    def check_writable(self) -> None:
        """Check that the table has no features that this writer lacks.

        Raises:
            SinkError: the table has demands that another engine must meet.
        """
        features = set(self._table.protocol().writer_features or ()) - WRITER_FEATURES
        demands = sorted(features | {name for name in self.properties if name.startswith("delta.constraints.")})
        if self.properties.get("delta.columnMapping.mode", "none") != "none":
            demands.append("delta.columnMapping.mode")
        demands += [name for name in _DEMANDS if name in self._table.schema().to_json()]
        if demands:
            raise SinkError(
                f"table {self._place.uri} has {', '.join(demands)}, which this sink does not keep to; write it with "
                "delta-spark, or write another table"
            )

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns. Existing rows have null there. The table must be read again."""
        new = Schema.from_arrow(pa.schema(fields)).fields
        guarded(lambda: add_columns(self._table, new), self._place)

    def files(self) -> list[HeldFile]:
        """Return the files of this version."""
        return guarded(self._files, self._place)

    def _files(self) -> list[HeldFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        found = []
        for row in actions.to_pylist():
            parts = {kind: _prefixed(row, kind) for kind in ("partition", "min", "max")}
            found.append(HeldFile(row["path"], row["size_bytes"], parts["partition"], parts["min"], parts["max"]))
        return found

    def commit(
        self, adds: Sequence[NewFile], removes: Iterable[HeldFile], transactions: Mapping[str, int], now_ms: int
    ) -> int:
        """Add and remove files and set transactions, in one version on top of this one. Return that version."""
        actions: list[Any] = [
            AddAction(file.path, file.size, file.partition, now_ms, True, file.stats) for file in adds
        ]
        actions += [
            RemoveAction(
                file.path,
                True,
                now_ms,
                file.size,
                {name: partition_text(value) for name, value in file.partition.items()},
            )
            for file in removes
        ]
        schema, partition_by = self._table.schema(), self.layout.partition_by
        guarded(lambda: write(self._table, actions, transactions, schema, partition_by), self._place)
        return self.version + 1

    def checkpoint(self) -> None:
        """Write a checkpoint of this version."""
        guarded(self._table.create_checkpoint, self._place)

    def clean_log(self) -> None:
        """Remove log entries that are older than the table's retention and covered by a checkpoint."""
        guarded(self._table.cleanup_metadata, self._place)


def _prefixed(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{kind}."): value
        for name, value in row.items()
        if name.startswith(f"{kind}.") and (value is not None or kind == "partition")
    }


class DurableTable:
    """A table whose versions are durable before a commit builds on them, and before they are reported as written.

    deltalake never syncs. On a directory, a power cut could keep version n+1 and lose version n with its rows, or keep
    only a part of a commit that Spark's checkpoint relies on. A bucket needs no sync.

    Args:
        clock: nanoseconds since 1970, for the times of files in the table's log.
    """

    def __init__(self, place: TableLocation, clock: Callable[[], int] = time.time_ns) -> None:
        self.place = place
        self._clock = clock
        self._log = TableLog(place.store, place.key)
        self._mended = False
        self._checkpointed = -1

    def open(self) -> TableReading | None:
        """Return the table as it is now, durable; None when there is none.

        Raises:
            SinkError: it cannot be read.
            StoreError: the store did not answer.
        """
        if not self._mended:
            run(self._log.mend())
            self._checkpointed = run(self._log.checkpoint_version())
            self._mended = True
        reading = TableReading.open(self.place)
        if reading is None:
            # The table may have been moved away since a version was synced.
            self._log = TableLog(self.place.store, self.place.key)
            return None
        run(self._log.sync(reading.version))
        return reading

    def commit(
        self,
        reading: TableReading,
        adds: Sequence[NewFile],
        removes: Iterable[HeldFile],
        transactions: Mapping[str, int],
    ) -> int:
        """Commit on top of a reading; durable when this returns. Return the version.

        Raises:
            TableConflict, SinkError: as ``guarded``.
            StoreError: the store did not answer.
        """
        version = reading.commit(adds, removes, transactions, self._clock() // 1_000_000)
        run(self._log.sync(version))
        if version - max(self._checkpointed, 0) >= CHECKPOINT_VERSIONS:
            self._checkpoint()
        return version

    def _checkpoint(self) -> None:
        reading = self.open()
        if reading is not None:
            reading.checkpoint()
            self._checkpointed = run(self._log.sync_checkpoint())
            reading.clean_log()


# Positions of a table in the log: the offsets below which it has all rows.
#
# They are Delta transactions, committed with the rows: application ``weft-sink/CLUSTER/TENANT/STREAM/SHARD/NAME``,
# version = the offset after the last. A checkpoint of Spark, or its absence, changes nothing.

SHARD, OFFSET, STREAM = "_shard", "_offset", "_stream"
PREFIX = "weft-sink"
_CLUSTER_DIGITS = 15
"""Hexadecimal digits of a cluster's id that fit into a transaction's version, which has 63 bits."""

StreamShard = tuple[str, int]
Positions = dict[StreamShard, int]
"""Per (stream, shard) the offset below which all rows are in the table."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The streams whose offsets a table keeps, for one writer."""

    cluster_id: str
    """Identity of the hub's store, 32 hexadecimal digits."""
    shards: int
    tenant: str
    streams: tuple[str, ...]
    name: str
    """Name of the writer. Two writers of different rows of a stream into one table need two names."""

    def apps(self) -> dict[str, StreamShard]:
        """Return the application ids of all positions."""
        return {self.app((stream, shard)): (stream, shard) for stream in self.streams for shard in range(self.shards)}

    def app(self, place: StreamShard) -> str:
        """Return the application id of a position."""
        return f"{PREFIX}/{self.cluster_id}/{self.tenant}/{place[0]}/{place[1]}/{self.name}"

    def cluster_app(self, stream: str) -> str:
        """Return the application id under which a table stores the hub's identity."""
        return f"{PREFIX}/{self.tenant}/{stream}/{self.name}/cluster"

    @property
    def cluster_number(self) -> int:
        """Return the identity as the version of a transaction."""
        return int(self.cluster_id[:_CLUSTER_DIGITS], 16)


@dataclass(frozen=True, slots=True)
class PositionFilter:
    """A filter against rows that the table has already, for executors."""

    streams: tuple[str, ...]
    positions: Mapping[StreamShard, int]
    floors: Mapping[StreamShard, int] = dataclasses.field(default_factory=dict)
    """Per (stream, shard) the end of the earlier micro-batches of this run."""

    def new_rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Positions]:
        """Return the rows from the positions on, and the end of their offsets.

        Raises:
            SinkError: a row without a position, of another stream, or below rows of an earlier micro-batch: it would be
                skipped as one that the table has.
        """
        shards, offsets = _numbers(batch, SHARD), _numbers(batch, OFFSET)
        new = np.zeros(batch.num_rows, bool)
        ends: Positions = {}
        for stream, of_stream in self._streams(batch):
            for shard in np.unique(shards[of_stream]).tolist():
                of_shard = of_stream & (shards == shard)
                self._check_floor(stream, shard, offsets[of_shard])
                rows = of_shard & (offsets >= self.positions.get((stream, shard), 0))
                if rows.any():
                    new |= rows
                    ends[stream, shard] = int(offsets[rows].max()) + 1
        return (batch if new.all() else batch.filter(pa.array(new))), ends

    def _check_floor(self, stream: str, shard: int, offsets: np.ndarray) -> None:
        floor = self.floors.get((stream, shard), 0)
        if int(offsets.min()) < floor:
            raise SinkError(
                f"a row of offset {offsets.min()} of shard {shard} of {stream} comes after rows of an earlier "
                f"micro-batch, which ended at {floor}. Give each row the {SHARD} and {OFFSET} of the record that "
                "made it now. For results of windows give the sink keys and order_by, and no store"
            )

    def _streams(self, batch: pa.RecordBatch) -> list[tuple[str, np.ndarray]]:
        if len(self.streams) == 1:
            return [(self.streams[0], np.ones(batch.num_rows, bool))]
        named = batch.column(STREAM)
        found = [(stream, _mask(pc.equal(named, stream))) for stream in self.streams]
        if sum(int(mask.sum()) for _, mask in found) != batch.num_rows:
            others = sorted(set(map(str, pc.unique(named).to_pylist())) - set(self.streams))
            raise SinkError(
                f"column {STREAM} names {', '.join(others)}; the sink was made for {', '.join(self.streams)}. Add the "
                "stream to the sink, or correct the column"
            )
        return found


def merged_ends(all_ends: Sequence[Positions]) -> Positions:
    """Return the highest end per shard."""
    found: Positions = {}
    for ends in all_ends:
        for place, end in ends.items():
            found[place] = max(end, found.get(place, 0))
    return found


def _mask(values: pa.Array) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    column = batch.column(name)
    if column.null_count:
        raise SinkError(
            f"{column.null_count} rows have no {name}: they came from no record of the stream, or a join made them. "
            f"Give each row the {SHARD} and {OFFSET} of the record that caused it"
        )
    numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if len(numbers) and numbers.min() < 0:
        raise SinkError(f"a row has the {name} {numbers.min()}; leave it as the source has it")
    return numbers
