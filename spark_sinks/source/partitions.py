"""Spark tasks, and their execution."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler
from pyspark.sql.datasource import InputPartition

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.collection import settle
from spark_sinks.source.elsewhere import LANE_COLUMNS, ReadElsewhere, lane_name
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.selection import expression, masks
from spark_sinks.source.slices import ChunkSlice
from spark_sinks.source.typed import needed, typed_arrays
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.lane_state import lane_of
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, open_store
from weft.storage.table.columns import ROWS_MAX
from weft.storage.table.rows import RowsOf, row_schema, rows_of

BATCH_ROWS_MAX = 8 << 10
"""Rows of a record batch for Java. A megabyte or two stays in a processor's cache on its way through the socket, and
batches of an edge of nearly this size pass without being copied into one."""
FETCH_BYTES = 16 << 20
"""Bytes of sections fetched at once: overlaps a store's round trips and bounds a task's memory."""
FETCH_SECTIONS_MAX = 16
STORES_MAX = 8
"""Maximum number of stores that a Python worker keeps open between tasks."""


@dataclass(frozen=True)
class TableAccess:
    """The files of one version of a table, for tasks."""

    uri: str
    storage_options: dict[str, str] = field(repr=False)
    columns: dict[str, str]
    """The table's columns by their names in lower case."""


@dataclass(frozen=True)
class ReadContext:
    """The part of a read that all tasks share."""

    options: ReadOptions
    cluster: Cluster
    fields: tuple[str, ...]
    topics: dict[Lane, list[str]]
    """Topic patterns of the lanes of a task's chunks. Table files need none."""
    payload: PayloadKind = PayloadKind.BYTES
    table: TableAccess | None = None
    """None if no part of the task is from table files."""
    again: str = "load this DataFrame again"
    """Advice to the user when objects were deleted since the plan was made."""
    elsewhere: ReadElsewhere = field(default_factory=ReadElsewhere)
    """Records to leave out."""


@dataclass(frozen=True)
class ChunkPart:
    """Offsets ``[first, end)`` of a shard from chunks."""

    shard: int
    first: int
    end: int
    slices: tuple[ChunkSlice, ...]


_Piece = tuple[ChunkPart, ChunkSlice]


@dataclass(frozen=True)
class TablePart:
    """Offsets ``[first, end)`` of a shard from table files."""

    shard: int
    first: int
    end: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Task(InputPartition):
    """A task of an executor: one part of a shard, or several small ones, also of several shards."""

    context: ReadContext
    parts: tuple[ChunkPart | TablePart, ...]

    def leaving_out(self, elsewhere: ReadElsewhere) -> Task:
        """Return the task without records that were read elsewhere."""
        if not any(isinstance(part, TablePart) for part in self.parts):
            slices = (piece for part in self.parts if isinstance(part, ChunkPart) for piece in part.slices)
            elsewhere = elsewhere.of_lanes(lane_name(lane_of(lane)) for piece in slices for lane in piece.lanes)
        return replace(self, context=replace(self.context, elsewhere=elsewhere)) if elsewhere else self


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in exactly ``schema``. For an empty plan, Spark passes a plain partition.

    Raises:
        Corrupt: a chunk's contents differ from its index.
        ReadError: a chunk or a table file was deleted since the plan was made.
    """
    if not isinstance(partition, Task):
        return
    settle()
    try:
        yield from _table_rows(partition, schema)
        yield from _chunk_rows(partition, schema)
    except (FileNotFoundError, NotFound) as error:
        again = partition.context.again
        raise ReadError(f"{error} was deleted after this read was planned; {again}") from None


class _Wanted:
    """The rows and columns that a task yields from one tier."""

    def __init__(self, context: ReadContext, schema: pa.Schema, *, timed: bool) -> None:
        wanted = masks(context.options, timed=timed)
        stored = row_schema(context.fields, context.payload).names
        self._declared = context.options.schema
        self._schema = schema
        self._keep = [mask for found in wanted.values() for mask in found]
        named = [*schema.names, *wanted]
        if context.elsewhere:
            self._keep.append(context.elsewhere.mask)
            named += LANE_COLUMNS
        self.columns = needed(self._declared, list(dict.fromkeys(named)), stored)
        """Stored columns to read."""

    def rows_of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows among stored ones, in exactly the schema."""
        for batch in batches:
            kept = batch
            for mask in self._keep:
                kept = kept.filter(mask(kept))
            if kept.num_rows and kept.schema == self._schema:
                yield kept
            elif kept.num_rows:
                typed = typed_arrays(kept, self._declared, self._schema.names)
                arrays = [typed[field.name].cast(field.type) if field.name in typed else kept.column(field.name)
                          for field in self._schema]  # fmt: skip
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _chunk_rows(task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the chunks. Sections of several shards are fetched at once: a micro-batch has a small one from
    each."""
    context = task.context
    wanted = _Wanted(context, schema, timed=True)
    pieces = [(part, piece) for part in task.parts if isinstance(part, ChunkPart) for piece in part.slices]
    for group in _groups(pieces):
        for (part, piece), data in zip(group, run(_fetch(context, group)), strict=True):
            rows = rows_of(
                [RowsOf(piece.section, data, piece.lanes, piece.clocks)],
                part.shard,
                context.fields,
                lambda lane: context.topics.get(lane, ()),
                part.first,
                part.end,
                columns=wanted.columns,
                edges=context.options.edges,
                payload=context.payload,
                rows_max=BATCH_ROWS_MAX,
            )
            yield from wanted.rows_of(rows)


async def _fetch(context: ReadContext, group: list[_Piece]) -> list[bytes]:
    store = _store(context.options.store, context.options.store_options)
    logs = {shard: ShardLog(store, context.cluster, shard) for shard in {part.shard for part, _ in group}}
    return await asyncio.gather(*(logs[part.shard].section(piece.n, piece.section) for part, piece in group))


def _groups(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    group: list[_Piece] = []
    size = 0
    for part, piece in pieces:
        if group and (size + piece.section.length > FETCH_BYTES or len(group) == FETCH_SECTIONS_MAX):
            yield group
            group, size = [], 0
        group.append((part, piece))
        size += piece.section.length
    if group:
        yield group


@lru_cache(maxsize=STORES_MAX)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(uri, dict(options))


def _table_rows(task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    parts = [part for part in task.parts if isinstance(part, TablePart)]
    if parts:
        wanted = _Wanted(task.context, schema, timed=False)
        for part in parts:
            yield from wanted.rows_of(_scanned(task.context, part, wanted.columns))


def _scanned(context: ReadContext, part: TablePart, columns: list[str]) -> Iterator[pa.RecordBatch]:
    assert context.table is not None
    # Files written before a topic level was named lack its column; the given schema fills it with nulls.
    spelled = context.table.columns
    schema = pa.schema(
        [
            field.with_nullable(True).with_name(spelled.get(field.name.casefold(), field.name))
            for field in row_schema(context.fields, context.payload)
        ]
    )
    files = ds.dataset(list(part.files), schema, format="parquet", filesystem=_file_system(context.table))
    offset = ds.field("_offset")
    wanted = (ds.field("_shard") == part.shard) & (offset >= part.first) & (offset < part.end)
    selected = expression(context.options)
    scanner = files.scanner(
        [spelled.get(name.casefold(), name) for name in columns],
        wanted if selected is None else wanted & selected,
        batch_size=ROWS_MAX,
        batch_readahead=2,
        fragment_readahead=1,
        use_threads=False,
    )
    for batch in scanner.to_batches():
        yield batch.rename_columns(columns)


def _file_system(table: TableAccess) -> pyarrow.fs.FileSystem:
    if "://" not in table.uri:
        return pyarrow.fs.SubTreeFileSystem(table.uri, pyarrow.fs.LocalFileSystem())
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(table.uri, table.storage_options))
