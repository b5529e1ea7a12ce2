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
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.selection import expression, masks
from spark_sinks.source.stream_log import ChunkSlice
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, open_store
from weft.storage.table.columns import ROWS_MAX
from weft.storage.table.rows import row_schema, section_rows

FETCH_BYTES = 16 << 20
"""Bytes of sections fetched at once: hides a store's round trips behind each other and bounds a task's memory."""
FETCH_SECTIONS_MAX = 16
STORES_MAX = 8
"""Maximum number of stores that a Python worker keeps open between tasks."""


@dataclass(frozen=True)
class ReadContext:
    """The part of a read that all tasks share."""

    options: ReadOptions
    cluster: Cluster
    fields: tuple[str, ...]
    topics: dict[Lane, list[str]]
    """Topic patterns of the lanes of a task's chunks. Table files need none."""
    payload: PayloadKind = PayloadKind.BYTES


@dataclass(frozen=True)
class ChunkPartition(InputPartition):
    """A task: offsets ``[first, end)`` of a shard from chunks."""

    context: ReadContext
    shard: int
    first: int
    end: int
    slices: tuple[ChunkSlice, ...]


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """A task: offsets ``[first, end)`` of a shard from table files."""

    context: ReadContext
    shard: int
    first: int
    end: int
    uri: str
    storage_options: dict[str, str] = field(repr=False)
    files: tuple[str, ...]
    columns: dict[str, str]
    """The table's columns by their names in lower case."""


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in exactly ``schema``. Spark asks for the rows of a plain partition when a plan is
    empty.

    Raises:
        Corrupt: a chunk does not hold what its index says.
        ReadError: a chunk or a table file was deleted since the plan was made.
    """
    if isinstance(partition, ChunkPartition):
        wanted, rows = masks(partition.context.options, timed=True), _chunk_rows
    elif isinstance(partition, TablePartition):
        wanted, rows = masks(partition.context.options, timed=False), _table_rows
    else:
        return
    columns = list(dict.fromkeys([*schema.names, *wanted]))
    keep = [mask for found in wanted.values() for mask in found]
    try:
        for batch in rows(partition, columns):
            kept = batch
            for mask in keep:
                kept = kept.filter(mask(kept))
            if kept.num_rows:
                yield pa.RecordBatch.from_arrays([kept.column(name) for name in schema.names], schema=schema)
    except (FileNotFoundError, NotFound) as error:
        raise ReadError(f"{error} was deleted after this DataFrame was loaded; load it again") from None


def _chunk_rows(partition: ChunkPartition, columns: list[str]) -> Iterator[pa.RecordBatch]:
    context = partition.context
    log = ShardLog(_store(context.options.store, context.options.store_options), context.cluster, partition.shard)
    for group in _groups(partition.slices):
        for piece, data in zip(group, run(_fetch(log, group)), strict=True):
            yield from section_rows(
                piece.section,
                data,
                piece.lanes,
                partition.shard,
                context.fields,
                lambda lane: context.topics.get(lane, ()),
                partition.first,
                partition.end,
                columns=columns,
                edges=context.options.edges,
                payload=context.payload,
                clocks=piece.clocks,
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


def _table_rows(partition: TablePartition, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # Files written before a topic level was named lack its column; the schema given here fills it with nulls.
    spelled = partition.columns
    schema = pa.schema(
        [
            field.with_nullable(True).with_name(spelled.get(field.name.casefold(), field.name))
            for field in row_schema(partition.context.fields, partition.context.payload)
        ]
    )
    files = ds.dataset(list(partition.files), schema, format="parquet", filesystem=_file_system(partition))
    offset = ds.field("_offset")
    wanted = (ds.field("_shard") == partition.shard) & (offset >= partition.first) & (offset < partition.end)
    selected = expression(partition.context.options)
    if selected is not None:
        wanted &= selected
    scanner = files.scanner(
        [spelled.get(name.casefold(), name) for name in columns],
        wanted,
        batch_size=ROWS_MAX,
        batch_readahead=2,
        fragment_readahead=1,
        use_threads=False,
    )
    for batch in scanner.to_batches():
        yield batch.rename_columns(columns)


def _file_system(partition: TablePartition) -> pyarrow.fs.FileSystem:
    if "://" not in partition.uri:
        return pyarrow.fs.SubTreeFileSystem(partition.uri, pyarrow.fs.LocalFileSystem())
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(partition.uri, partition.storage_options))
