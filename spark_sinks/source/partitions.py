"""Spark tasks, and how executors read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler
from pyspark.sql.datasource import InputPartition

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.collection import settle
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.selection import expression, masks
from spark_sinks.source.stream_log import ChunkSlice
from spark_sinks.source.typed import needed, typed_arrays
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, open_store
from weft.storage.table.columns import ROWS_MAX
from weft.storage.table.rows import row_schema, section_rows

BATCH_ROWS_MAX = 8 << 10
"""Rows of a record batch that goes to Java. A megabyte or two stays in a processor's cache on its way through the
socket, and batches of an edge that are nearly as large pass without being copied together."""
FETCH_BYTES = 16 << 20
"""Bytes of sections fetched at once: hides a store's round trips behind each other and bounds a task's memory."""
FETCH_SECTIONS_MAX = 16
STORES_MAX = 8
"""Maximum number of stores that a Python worker keeps open between tasks."""


@dataclass(frozen=True)
class TableAccess:
    """The files of one version of a table, as tasks open them."""

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
    """None where no part of the task is from table files."""
    again: str = "load this DataFrame again"
    """Advice to a person when objects were deleted since the plan was made."""


@dataclass(frozen=True)
class ChunkPart:
    """Offsets ``[first, end)`` of a shard from chunks."""

    shard: int
    first: int
    end: int
    slices: tuple[ChunkSlice, ...]


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


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in exactly ``schema``. Spark asks for the rows of a plain partition when a plan is
    empty.

    Raises:
        Corrupt: a chunk does not hold what its index says.
        ReadError: a chunk or a table file was deleted since the plan was made.
    """
    if not isinstance(partition, Task):
        return
    settle()
    try:
        for part in partition.parts:
            yield from _part_rows(partition.context, part, schema)
    except (FileNotFoundError, NotFound) as error:
        again = partition.context.again
        raise ReadError(f"{error} was deleted after this read was planned; {again}") from None


def _part_rows(context: ReadContext, part: ChunkPart | TablePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    wanted = masks(context.options, timed=isinstance(part, ChunkPart))
    declared = context.options.schema
    stored = row_schema(context.fields, context.payload).names
    columns = needed(declared, list(dict.fromkeys([*schema.names, *wanted])), stored)
    keep = [mask for found in wanted.values() for mask in found]
    rows = _chunk_rows(context, part, columns) if isinstance(part, ChunkPart) else _table_rows(context, part, columns)
    for batch in rows:
        kept = batch
        for mask in keep:
            kept = kept.filter(mask(kept))
        if kept.num_rows:
            typed = typed_arrays(kept, declared, schema.names)
            arrays = [typed[field.name].cast(field.type) if field.name in typed else kept.column(field.name)
                      for field in schema]  # fmt: skip
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chunk_rows(context: ReadContext, part: ChunkPart, columns: list[str]) -> Iterator[pa.RecordBatch]:
    log = ShardLog(_store(context.options.store, context.options.store_options), context.cluster, part.shard)
    for group in _groups(part.slices):
        for piece, data in zip(group, run(_fetch(log, group)), strict=True):
            yield from section_rows(
                piece.section,
                data,
                piece.lanes,
                part.shard,
                context.fields,
                lambda lane: context.topics.get(lane, ()),
                part.first,
                part.end,
                columns=columns,
                edges=context.options.edges,
                payload=context.payload,
                clocks=piece.clocks,
                rows_max=BATCH_ROWS_MAX,
            )


async def _fetch(log: ShardLog, group: list[ChunkSlice]) -> list[bytes]:
    return await asyncio.gather(*(log.section(piece.n, piece.section) for piece in group))


def _groups(slices: tuple[ChunkSlice, ...]) -> Iterator[list[ChunkSlice]]:
    group: list[ChunkSlice] = []
    size = 0
    for piece in slices:
        if group and (size + piece.section.length > FETCH_BYTES or len(group) == FETCH_SECTIONS_MAX):
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.section.length
    if group:
        yield group


@lru_cache(maxsize=STORES_MAX)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_store(uri, dict(options))


def _table_rows(context: ReadContext, part: TablePart, columns: list[str]) -> Iterator[pa.RecordBatch]:
    assert context.table is not None
    # Files written before a topic level was named lack its column; the schema given here fills it with nulls.
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
