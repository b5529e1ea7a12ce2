"""Spark tasks, and their execution."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, reduce
from operator import and_, or_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import InputPartition

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.options import READ, ReadOptions, nanoseconds
from spark_sinks.source.typed import needed, typed_arrays
from spark_sinks.source.workers import settle
from weft.protocols.chunk import behind
from weft.protocols.chunk_index import ClockUpdate, LaneUpdate, StreamSection
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.topics import InvalidTopic, TopicPattern, compile_pattern
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, open_store
from weft.storage.table.rows import ROWS_MAX, TIMESTAMP, RowsOf, row_schema, rows_of

# Records of one stream in chunks, as a planner knows them from indexes.

RECENT_CHUNKS_MAX = 4096
"""Maximum number of indexes of recent chunks that a running query keeps per shard, so that a micro-batch reads no index
twice."""

RECENT_LANES_MAX = 256 << 10
"""Maximum number of lanes in them, per shard: 2 MiB."""

REQUEST_BYTES = 32 << 10
"""Cost of one request of a section, in bytes, so that a task with many tiny chunks does not take long."""


class ChunkSlice(NamedTuple):
    """The records of the stream in chunk ``n``."""

    n: int
    section: StreamSection
    lanes: tuple[LaneUpdate, ...]
    """Lanes that the section names by number, without their changes to the hub's state."""
    clocks: tuple[ClockUpdate, ...] = ()
    """Clock notices for the section."""
    footer_crc: int = 0
    created: int = 0
    """Time at which the hub made the chunk, ns since 1970."""

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.section.base_offset + self.section.count

    @property
    def cost(self) -> int:
        """Return the bytes to read, plus the cost of the request in bytes."""
        return self.section.length + REQUEST_BYTES

    @property
    def last_time(self) -> int:
        """Return the latest time that a record can have, ns. Records of a clock that stepped back count from their
        lane's floor, which the section's own range does not include."""
        floors = [behind(lane.floor) for lane in self.lanes if lane.floor is not None]
        return max(self.section.last_time, *floors) if floors else self.section.last_time

    def may_match(self, options: ReadOptions) -> bool:
        """Return whether the options may select a record of the chunk."""
        return (
            (options.since is None or self.last_time >= nanoseconds(options.since))
            and (options.until is None or self.section.first_time < nanoseconds(options.until))
            and (options.edges is None or any(lane.edge in options.edges for lane in self.lanes))
        )


class RecentSlices(deque[ChunkSlice]):
    """The newest slices of a shard, within both bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes = 0

    def add(self, pieces: Iterable[ChunkSlice]) -> None:
        """Append slices; the oldest leave."""
        for piece in pieces:
            self.append(piece)
            self._lanes += len(piece.lanes)
        while len(self) > 1 and (len(self) > RECENT_CHUNKS_MAX or self._lanes > RECENT_LANES_MAX):
            self._lanes -= len(self.popleft().lanes)

    def forget(self) -> None:
        """Remove all."""
        self.clear()
        self._lanes = 0


# The rows that the options ``since``, ``until``, ``edges`` and ``keys`` select: one rule for chunks, table files read
# by Arrow, and table files read by Spark.

COMPARED_MAX = 64
"""Maximum number of names that are compared one by one."""
Mask = Callable[[pa.RecordBatch], pa.Array]
"""Function from a batch to a boolean for each row."""


def masks(options: ReadOptions, *, timed: bool) -> dict[str, list[Mask]]:
    """Return masks that must all be true for a row, by the column that they compare; none when every row is wanted.

    Edges are selected before rows are decoded.

    Args:
        timed: whether to compare times; ``expression`` has done it for rows of table files.
    """
    found: dict[str, list[Mask]] = {}
    if options.keys is not None:
        found["_key"] = [_key_mask(options.keys)]
    if timed and (bounds := _bounds(options)):
        found["_time"] = list(map(_time_mask, bounds))
    return found


def expression(options: ReadOptions) -> pc.Expression | None:
    """Return the part of the selection that Arrow compares with the statistics of row groups; None without any."""
    parts = [
        ds.field("_time") >= pa.scalar(moment, TIMESTAMP) if lower else ds.field("_time") < pa.scalar(moment, TIMESTAMP)
        for lower, moment in _bounds(options)
    ]
    if options.edges is not None:
        parts.append(_among("_edge", sorted(options.edges)))
    if options.keys is not None and not any(_pattern(key) for key in options.keys):
        parts.append(_among("_key", sorted(options.keys)))
    return reduce(and_, parts) if parts else None


def _among(name: str, values: list[str]) -> pc.Expression:
    """Return whether a column has one of the values. Arrow skips row groups by comparisons, not by ``isin``."""
    if len(values) > COMPARED_MAX:
        return ds.field(name).isin(values)
    return reduce(or_, (ds.field(name) == value for value in values))


def condition(options: ReadOptions) -> Column | None:
    """Return the whole selection as a condition that Spark pushes into Parquet as far as it can; None without any."""
    # In the order of the columns in a file: Parquet's reader takes the page indexes in the order of the conditions, and
    # going back costs another read of 64 KiB.
    parts = [F.col("_edge").isin(sorted(options.edges))] if options.edges is not None else []
    parts += [
        F.col("_time") >= F.lit(moment) if lower else F.col("_time") < F.lit(moment)
        for lower, moment in _bounds(options)
    ]
    if options.keys is not None:
        parts.append(_key_condition(options.keys))
    return reduce(and_, parts) if parts else None


def _bounds(options: ReadOptions) -> list[tuple[bool, datetime]]:
    """Return the bounds of ``_time``: (is it the lower one, moment)."""
    bounds = ((True, options.since), (False, options.until))
    return [(lower, moment) for lower, moment in bounds if moment is not None]


def _time_mask(bound: tuple[bool, datetime]) -> Mask:
    lower, moment = bound
    compare, limit = pc.greater_equal if lower else pc.less, pa.scalar(moment, TIMESTAMP)
    return lambda batch: compare(batch.column("_time"), limit)


def _pattern(key: str) -> TopicPattern | None:
    """Return a key as a topic filter with wildcards; None if it can only match itself, like an AMQP routing key."""
    try:
        pattern = compile_pattern(key)
    except InvalidTopic:
        return None
    # Compiled again without the names of levels, which Python's regular expressions allow and Java's do not.
    return compile_pattern(pattern.filter) if pattern.filter != key or "+" in key or "#" in key else None


def _key_mask(keys: tuple[str, ...]) -> Mask:
    """Return a mask of the rows whose ``_key`` is one of ``keys`` or matches one of them as a topic filter. Each
    distinct key of a batch is compared once."""
    exact = frozenset(keys)
    patterns = [pattern for pattern in map(_pattern, keys) if pattern is not None]

    def mask(batch: pa.RecordBatch) -> pa.Array:
        encoded = batch.column("_key").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        wanted = [name in exact or any(pattern.match(name) is not None for pattern in patterns) for name in names]
        return pa.array(wanted, pa.bool_()).take(encoded.indices)

    return mask


def _key_condition(keys: tuple[str, ...]) -> Column:
    whole = F.col("_key").isin(sorted(keys))
    for key in keys:
        if pattern := _pattern(key):
            # Parquet's statistics can be compared with the literal beginning, but not with a regular expression.
            matches = F.col("_key").rlike(rf"(?s)\A(?:{pattern.regex.pattern})\z")
            before = pattern.filter.replace("#", "+").split("+")[0]
            # `a/#` matches `a`, too.
            before = before.removesuffix("/") if pattern.filter == f"{before}#" else before
            whole |= F.col("_key").startswith(before) & matches if before else matches
    return whole


# Records that a query read in the store of another region, before it was moved here (``moving``).
#
# A query that moves begins where this store has the first record that it lacks. Behind that place are also records
# that it has: the two logs have them in different orders, and this one may get some later. The position names them by
# lane and sequence number, which are the same in all regions: ``{"read": {"press-1": {"0000000000000007": [[120,
# 180]]}}}`` beside the offsets. Reads leave them out, and the position forgets them once the query has passed them
# here.

LaneName = tuple[str, str]
"""Edge and log id of a lane of one stream, as the columns ``_edge`` and ``_log`` have them."""
LANE_COLUMNS = ("_edge", "_log", "_seq")


def lane_name(lane: Lane) -> LaneName:
    """Return a lane's name within its stream."""
    return lane.edge, format_log_id(lane.log_id)


class ReadElsewhere:
    """Ranges of sequence numbers by lane. Never changed."""

    __slots__ = ("_lanes",)

    def __init__(self, lanes: Mapping[LaneName, RangeSet] | None = None) -> None:
        self._lanes = {name: ranges for name, ranges in sorted((lanes or {}).items()) if ranges}

    @classmethod
    def of(cls, position: Any) -> ReadElsewhere:
        """Return those that a position in a checkpoint names; mostly none.

        Raises:
            ReadError: they have another form.
        """
        found: dict[LaneName, RangeSet] = {}
        try:
            for edge, logs in position.get(READ, {}).items():
                for log, ranges in logs.items():
                    found[edge, format_log_id(int(log, 16))] = RangeSet.from_wire(ranges)
        except (AttributeError, TypeError, ValueError, Corrupt) as error:
            raise ReadError(
                f"checkpoint: what was read in another region has another form ({error}). It is of another query, or "
                "of a later release"
            ) from None
        return cls(found)

    def to_json(self) -> dict[str, Any]:
        """Return the part of a position that names them; nothing if there are none. Equal ones have equal texts."""
        found: dict[str, dict[str, list[list[int]]]] = {}
        for (edge, log), ranges in self._lanes.items():
            found.setdefault(edge, {})[log] = ranges.to_wire()
        return {READ: found} if found else {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def items(self) -> Iterable[tuple[LaneName, RangeSet]]:
        """Return the lanes with their ranges, ascending."""
        return self._lanes.items()

    def without(self, records: Mapping[LaneName, RangeSet]) -> ReadElsewhere:
        """Return these without the given records."""
        return ReadElsewhere({name: had.minus(records.get(name, ())) for name, had in self._lanes.items()})

    def of_lanes(self, names: Iterable[LaneName]) -> ReadElsewhere:
        """Return those of some lanes: a task ships only these."""
        return ReadElsewhere({name: self._lanes[name] for name in set(names) & self._lanes.keys()})

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Return for each row, which has ``LANE_COLUMNS``, whether it was not read elsewhere."""
        kept = np.ones(rows.num_rows, bool)
        edges, logs = (rows.column(name).dictionary_encode() for name in LANE_COLUMNS[:2])
        numbers = rows.column("_seq").to_numpy()
        edge_at, log_at = edges.indices.to_numpy(), logs.indices.to_numpy()
        known_edges, known_logs = edges.dictionary.to_pylist(), logs.dictionary.to_pylist()
        width = len(known_logs)
        lane_at = edge_at.astype(np.int64) * width + log_at
        for lane in np.unique(lane_at).tolist():
            ranges = self._lanes.get((known_edges[lane // width], known_logs[lane % width]))
            if ranges is not None:
                rows_of_lane = lane_at == lane
                kept[rows_of_lane] = ~_within(ranges, numbers[rows_of_lane])
        return pa.array(kept)


def _within(ranges: RangeSet, numbers: np.ndarray) -> np.ndarray:
    starts, ends = np.array(list(ranges), np.int64).T
    at = np.searchsorted(starts, numbers, "right") - 1
    found: np.ndarray = (at >= 0) & (numbers < ends[np.maximum(at, 0)])
    return found


BATCH_ROWS_MAX = 8 << 10
"""Rows of a record batch for Java. A megabyte or two stays in a processor's cache on its way through the socket, and
batches of an edge of nearly this size pass without being copied into one."""
FETCH_BYTES = 16 << 20
"""Bytes of sections fetched at once: overlaps a store's round trips and bounds a task's memory."""
FETCH_SECTIONS_MAX = 16
SMALL_BYTES = 512 << 10
"""Cost of a task up to which the planner reads its rows: some milliseconds of work."""
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

    @property
    def is_small(self) -> bool:
        """Return whether a planner may read the rows: from few sections of chunks, with few bytes."""
        pieces = [piece for part in self.parts if isinstance(part, ChunkPart) for piece in part.slices]
        only_chunks = all(isinstance(part, ChunkPart) for part in self.parts)
        return only_chunks and sum(piece.cost for piece in pieces) <= SMALL_BYTES

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


class _TaskRequest:
    """The rows and columns that a task yields from one tier."""

    def __init__(self, context: ReadContext, schema: pa.Schema, *, timed: bool) -> None:
        wanted = masks(context.options, timed=timed)
        stored = row_schema(context.fields, context.payload).names
        self._declared, self._version = context.options.schema, context.options.version
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
                typed = typed_arrays(kept, self._declared, self._version, self._schema.names)
                arrays = [
                    typed[field.name].cast(field.type) if field.name in typed else kept.column(field.name)
                    for field in self._schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _chunk_rows(task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the chunks. Sections of several shards are fetched at once: a micro-batch has a small one from
    each."""
    context = task.context
    wanted = _TaskRequest(context, schema, timed=True)
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
        wanted = _TaskRequest(task.context, schema, timed=False)
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
