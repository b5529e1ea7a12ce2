"""Readers of one stream for Spark: a batch read, and one that follows the stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.options import (
    CHUNKS,
    READ,
    Offsets,
    Position,
    ReadOptions,
    check_offsets,
    from_json,
    limited,
    nanoseconds,
    of_checkpoint,
    parse_options,
    to_json,
)
from spark_sinks.source.partitions import (
    ChunkPart,
    ChunkSlice,
    ReadContext,
    ReadElsewhere,
    TableAccess,
    TablePart,
    Task,
    read_partition,
)
from spark_sinks.source.stream_log import MissingOffsets, PersistedPosition, StreamLog, WentBack, Witness, subset
from spark_sinks.source.tables import TableSnapshot, may_match
from spark_sinks.source.workers import keep_broken_pipes_quiet, send_rows_with_plans
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.lane_state import lane_of
from weft.storage.payloads.decoder import typed_fields
from weft.storage.table.files import TableFile
from weft.storage.table.rows import row_schema

# Planner from a range of offsets to Spark tasks: table files below the table's position, chunks above it.

PARTITION_BYTES = 16 << 20
"""Stored bytes per task: some tenths of a second of work, so that a short tail still keeps a few cores busy and the
fixed cost of a task stays small."""
TABLE_PARTITION_BYTES = 32 << 20
"""Bytes of table files per task. Ranges of offsets cut through row groups, which both neighbours then read."""
PARTITIONS_MAX = 1024
"""Maximum number of tasks of one read; a longer read gets larger tasks."""


async def resolve(option: str, position: Position, log: StreamLog, table: TableSnapshot | None) -> Offsets:
    """Return the offsets of a position in the log as it is now.

    A time as a start means the first chunk or table file with a record received then or later: no such record comes
    before it. As an end, it means the position after the last chunk or file with an earlier record.

    Raises:
        ReadError: the log does not have these offsets.
    """
    heads = log.heads
    if position == "latest":
        return heads
    if position == "earliest":
        # Rows that the table's owner has deleted are not a loss for a read from the earliest row.
        return {shard: min(heads[shard], log.first_offset(shard, table)) for shard in heads}
    if isinstance(position, datetime):
        return {shard: await _offset_at(option, position, shard, log, table) for shard in heads}
    assert isinstance(position, dict)
    check_offsets(option, position, heads)
    return position


async def _offset_at(option: str, moment: datetime, shard: int, log: StreamLog, table: TableSnapshot | None) -> int:
    tiered = table.ends[shard] if table else 0
    files = list(table.files.overlapping(shard, 0, tiered)) if table else []
    tail = await log.slices(shard, tiered, log.heads[shard])
    at = nanoseconds(moment)
    if option == "ending":
        early = [piece.end for piece in tail if piece.section.first_time < at]
        early += [_end(file, tiered) for file in files if file.time_min is None or file.time_min < moment]
        return max(early, default=0)
    late = [piece.section.base_offset for piece in tail if piece.last_time >= at]
    late += [file.offset_min or 0 for file in files if file.may_reach(moment)]
    return min(late, default=log.heads[shard])


def _end(file: TableFile, tiered: int) -> int:
    return tiered if file.offset_max is None else min(tiered, file.offset_max + 1)


class _Sized(NamedTuple):
    """A part of a read with its cost."""

    part: ChunkPart | TablePart
    bytes: int


async def plan(
    log: StreamLog, table: TableSnapshot | None, start: Offsets, end: Offsets, again: str = ReadContext.again
) -> list[Task]:
    """Return tasks that together read every selected record of ``[start, end)`` of every shard exactly once.

    Shards, table files and chunks that cannot hold a selected record have no task. Large parts are split, and small
    ones, of all shards and of both tiers, share tasks of about ``PARTITION_BYTES``.

    Args:
        again: advice to the user when objects are deleted before a task reads them.

    Raises:
        MissingOffsets: records of the range are neither in the log nor in the table.
    """
    shards = log.shards_of(log.options.edges)
    ranges = {shard: (start[shard], end[shard]) for shard in sorted(start) if shard in shards}
    files: list[tuple[int, int, int, list[TableFile]]] = []
    chunks: list[tuple[int, int, int, list[ChunkSlice]]] = []
    for shard, (first, last) in ranges.items():
        tiered = max(first, min(last, table.ends[shard] if table else 0))
        if table and first < tiered:
            check_in_table(log, table, shard, first, tiered)
            files.append((shard, first, tiered, _selected(table, log, shard, first, tiered)))
        found = [piece for piece in await log.slices(shard, tiered, last) if piece.may_match(log.options)]
        chunks.append((shard, tiered, last, found))
    total = sum(file.size for *_, some in files for file in some)
    total += sum(piece.cost for *_, some in chunks for piece in some)
    size = max(PARTITION_BYTES, total // PARTITIONS_MAX)
    sized = [part for known in files for part in _from_table(*known, size)]
    sized += [part for known in chunks for part in _from_chunks(*known, size)]
    shared = ReadContext(log.options, log.cluster, tuple(log.fields), {}, log.payload, again=again)
    access = TableAccess(table.uri, table.storage_options, table.columns) if table else None
    topics = log.topics if chunks else {}
    return [Task(_context(shared, access, topics, parts), tuple(parts)) for parts in _packed(sized, size)]


def check_in_table(log: StreamLog, table: TableSnapshot, shard: int, first: int, end: int) -> None:
    """Check that the table still has the rows from ``first`` on: its owner may have deleted the oldest ones.

    Raises:
        Missing: they are gone, and the read must not continue without them.
    """
    low = min(end, table.first_offset(shard))
    if first < low and log.options.fail_on_data_loss and log.not_skipped(shard, first, low):
        raise MissingOffsets(
            f"offsets {first} to {low} of shard {shard} were removed from the table, and from the log before. "
            'To continue without them, set .option("fail_on_data_loss", "false"), or '
            f"start from offset {low} with a new checkpoint"
        )


def _selected(table: TableSnapshot, log: StreamLog, shard: int, first: int, end: int) -> list[TableFile]:
    return [file for file in table.files.overlapping(shard, first, end) if may_match(file, log.options)]


def _from_table(shard: int, first: int, end: int, files: list[TableFile], size: int) -> Iterator[_Sized]:
    """Yield equal parts of a range, each with the files that overlap it: right for any layout after an OPTIMIZE."""
    if not files:
        return
    first = max(first, min(file.offset_min or 0 for file in files))
    end = max(_end(file, end) for file in files)
    total = sum(file.size for file in files)
    parts = min(PARTITIONS_MAX, end - first, max(1, -(-total // max(size, TABLE_PARTITION_BYTES))))
    cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
    for low, high in pairwise(cuts):
        paths = tuple(file.path for file in files if file.may_hold(shard, low, high))
        if paths:
            yield _Sized(TablePart(shard, low, high, paths), total // parts)


def _from_chunks(shard: int, first: int, end: int, slices: list[ChunkSlice], size: int) -> Iterator[_Sized]:
    """Yield runs of chunks. A chunk is never split: its section is one request with one checksum, and of bounded
    size."""
    group: list[ChunkSlice] = []
    filled = 0
    for piece in slices:
        if group and filled + piece.cost > size:
            yield _Sized(ChunkPart(shard, first, end, tuple(group)), filled)
            group, filled = [], 0
        group.append(piece)
        filled += piece.cost
    if group:
        yield _Sized(ChunkPart(shard, first, end, tuple(group)), filled)


def _packed(sized: Iterable[_Sized], size: int) -> Iterator[list[ChunkPart | TablePart]]:
    """Yield the parts of each task. The largest come first, so that no long task starts when the others are done."""
    tasks: list[list[ChunkPart | TablePart]] = []
    filled = 0
    for part, weight in sorted(sized, key=lambda item: -item.bytes):
        if not tasks or filled + weight > size:
            tasks.append([])
            filled = 0
        tasks[-1].append(part)
        filled += weight
    yield from tasks


def _context(
    shared: ReadContext,
    table: TableAccess | None,
    topics: Mapping[Lane, list[str]],
    parts: Iterable[ChunkPart | TablePart],
) -> ReadContext:
    """Return the context with only the parts' topic patterns: those of a fleet would be megabytes in each task."""
    slices = [piece for part in parts if isinstance(part, ChunkPart) for piece in part.slices]
    lanes = {lane_of(update) for piece in slices for update in piece.lanes}
    needs_table = any(isinstance(part, TablePart) for part in parts)
    return replace(
        shared, topics={lane: topics[lane] for lane in lanes if lane in topics}, table=table if needs_table else None
    )


# Positions of a query in its checkpoint.
#
# In Spark's checkpoint they are ``{"0": 1200, "1": 0, "chunks": {"0": [17, 3735928559, 1700000001000000000]}}``: for
# each shard the offset of the next record, and for shards with earlier records the chunk with the last of them: its
# number, the checksum of its footer, and the time at which the hub made it (ns since 1970). Spark treats positions
# with another text as new data, so a position that does not move keeps its text, with or without a chunk. A query
# that was moved from another region also has there what it read before (``elsewhere``).

Places = dict[int, PersistedPosition]
"""Shard -> position."""
_NUMBERS = 3
CLOCKS_NS = 300 * 1_000_000_000
"""Largest difference between the clocks of two nodes of a hub, in ns."""


def decode(value: Any) -> Places:
    """Return positions from a checkpoint.

    Raises:
        ReadError: the value has another form.
    """
    try:
        offsets = from_json({shard: each for shard, each in value.items() if shard != READ})
        chunks = {int(shard): _witness(pair) for shard, pair in value.get(CHUNKS, {}).items()}
        if chunks.keys() - offsets.keys():
            raise ValueError("a chunk has no offset")
    except (ValueError, AttributeError):
        raise ReadError(
            f"checkpoint: expected offsets by shard, got {str(value)[:200]}. It is of another query, or of a later "
            "release"
        ) from None
    return {shard: PersistedPosition(offset, chunks.get(shard)) for shard, offset in offsets.items()}


def encode(places: Mapping[int, PersistedPosition], elsewhere: ReadElsewhere | None = None) -> dict[str, Any]:
    """Return the form for the checkpoint: equal positions have equal texts.

    Args:
        elsewhere: what the query has read in another region; None for nothing.
    """
    found: dict[str, Any] = dict(to_json(offsets_of(places)))
    chunks = {str(shard): list(chunk) for shard, chunk in sorted(chunks_of(places).items())}
    found |= {CHUNKS: chunks} if chunks else {}
    return found if elsewhere is None else found | elsewhere.to_json()


def chunks_of(places: Mapping[int, PersistedPosition]) -> dict[int, tuple[int, int, int]]:
    """Return number, checksum and time of the known chunks."""
    known = {shard: kept.witness for shard, kept in places.items() if kept.witness is not None}
    return {shard: (each.n, each.footer_crc, each.created or 0) for shard, each in known.items()}


def offsets_of(places: Mapping[int, PersistedPosition]) -> Offsets:
    """Return only the offsets."""
    return {shard: kept.end for shard, kept in places.items()}


def _witness(pair: Any) -> Witness:
    if not isinstance(pair, list) or len(pair) != _NUMBERS or not all(type(n) is int and n >= 0 for n in pair):
        raise ValueError("no chunk")
    return Witness(*pair)


class Bookmarks:
    """The positions of one run of a query, compared with the log that it reads.

    A position from a checkpoint is compared once, before the first read from it: one GET for each shard. Positions that
    this run made need no comparison while it follows the log without a break: each added chunk names the one before.
    """

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._known: Places = {}
        """The highest positions known to be of this log."""
        self._loads = log.loads

    async def compared(self, given: Any) -> Places:
        """Return positions of Spark's checkpoint for every shard of the log; a shard that was added later begins at 0.

        Raises:
            ReadError: they are not positions; otherwise as ``compare``.
        """
        return await self.compare(decode(given))

    async def compare(self, places: Mapping[int, PersistedPosition]) -> Places:
        """Return positions for every shard of the log, after checking that they are of this log.

        Raises:
            ReadError: they are of another store.
            WentBack: they are of this store before it was restored to an earlier state.
        """
        whole = of_checkpoint(offsets_of(places), self._log.heads)
        found = {shard: places.get(shard, PersistedPosition(offset, None)) for shard, offset in whole.items()}
        if self._loads != self._log.loads:
            self._loads, self._known = self._log.loads, {}
        new = {shard: kept for shard, kept in found.items() if self._is_new(shard, kept)}
        stream = self._log.options.stream
        try:
            # Without a chunk, the log's end is all that can be compared, and it was.
            deleted = await self._log.history.check(
                {(stream, shard): kept for shard, kept in new.items() if kept.witness is not None}
            )
            if deleted:
                table = await self._log.table()
                await asyncio.to_thread(check_rows, table, {shard: kept for (_, shard), kept in deleted.items()})
        except WentBack as error:
            raise WentBack(
                f"checkpoint: it goes up to {error}. The hub's store was restored to an earlier state, and gives these "
                "offsets to other records. Move the checkpoint away, and what the query has written; the query makes "
                "both again from the log"
            ) from None
        self._known |= new
        return found

    def _is_new(self, shard: int, kept: PersistedPosition) -> bool:
        return shard not in self._known or kept.end > self._known[shard].end

    async def moved(self, ends: Offsets, start: Mapping[int, PersistedPosition]) -> Places:
        """Return positions at the ends of a micro-batch, as ``moved``. They need no comparison later, as this run made
        them."""
        places = await moved(self._log, ends, start)
        self._known |= places
        return places


def check_rows(table: TableSnapshot | None, places: Mapping[int, PersistedPosition]) -> None:
    """Check the table's rows from deleted chunks: no row can be later than its chunk.

    Raises:
        WentBack: a row is later, so its offset was used again after a restore.
    """
    for shard, (end, witness) in places.items():
        if table is None or witness is None or witness.created is None:
            continue
        received = table.received(shard, end - 1)
        if received is not None and received > witness.created + CLOCKS_NS:
            raise WentBack(f"offset {end} of shard {shard}, and the record before it came later")


async def moved(log: StreamLog, ends: Offsets, start: Mapping[int, PersistedPosition]) -> Places:
    """Return positions at the ends of a micro-batch, with their chunks.

    This costs nothing if a running query has seen the chunks arrive; otherwise some GETs for each shard that moved.

    Args:
        start: positions at its start. A position that does not move is kept unchanged.

    Raises:
        ReadError: the store does not answer.
    """
    moving = {shard: end for shard, end in ends.items() if shard not in start or end != start[shard].end}
    found = await log.witnesses({shard: end for shard, end in moving.items() if end > 0})
    places = {shard: PersistedPosition(end, found.get(shard)) for shard, end in moving.items()}
    return places | {shard: start[shard] for shard in ends.keys() - moving.keys()}


ROWS_BYTES_MAX = 4 << 20
"""Largest size of rows that are sent with their plan."""
PLANS_MAX = 2
"""Maximum number of plans for one read, when records have moved since they were seen."""
_START_AGAIN = "start the query again: it continues from the table"
_LOG = logging.getLogger("weft.spark")
_SYSTEM = [row_schema([], kind) for kind in PayloadKind]


def checked(schema: StructType, options: ReadOptions) -> pa.Schema:
    """Return a user's schema as an Arrow schema. Columns that are neither the system's nor those of the payload schema
    are named topic levels: strings.

    Raises:
        ReadError: it has no column, or one with another type than the stream's.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    if not wanted.names:
        raise ReadError("schema: it has no columns; name at least one, or leave the schema out")
    known = _SYSTEM if options.schema is None else [*_SYSTEM, pa.schema(typed_fields(options.schema))]
    # The fields of a declared schema are compared when it is read.
    is_open = options.schema is None and options.is_typed
    for field in wanted:
        if is_open and not any(field.name in schema.names for schema in known):
            continue
        possible = [schema.field(field.name).type for schema in known if field.name in schema.names] or [pa.string()]
        if field.type not in possible:
            raise _other_type(field, possible[0])
    return wanted


def check_endless(given: Mapping[str, str]) -> None:
    """Check the options of a streaming read.

    Raises:
        ReadError: they name an end.
    """
    if "ending" in map(str.lower, given):
        raise ReadError(
            "ending: a streaming read has no end; use .trigger(availableNow=True) to read the present records"
        )


def _other_type(asked: pa.Field, has: pa.DataType) -> ReadError:
    names = [from_arrow_type(kind).simpleString() for kind in (has, asked.type)]
    return ReadError(f"schema: column {asked.name} has the type {names[0]}, not {names[1]}; cast it after the read")


class WeftReader(DataSourceReader):
    """A batch read. The plan is made once per DataFrame: load again to see later records."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of one snapshot of log and table.

        Raises:
            ReadError: the store lacks the stream, the offsets or the columns.
        """
        return run(_planned(self._plan))

    async def _plan(self) -> list[InputPartition]:
        # The table first: the log's end is then never below the table's position.
        log = await _open(self._options, self._schema)
        table = log.opened_table
        await log.extend()
        start = await resolve("starting", self._options.starting, log, table)
        end = await resolve("ending", self._options.ending, log, table)
        return list(await plan(log, table, start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        keep_broken_pipes_quiet()
        return read_partition(partition, self._schema)


class WeftStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Its offsets are the log's by shard, which never change, and their chunks:
    ``spark_sinks.source.readers``.

    The options are checked at the first use: Spark hides a constructor's error behind one of its own.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        keep_broken_pipes_quiet()
        send_rows_with_plans()
        self._given = dict(options)
        self._wanted = schema
        self._log: StreamLog | None = None
        self._target: Offsets | None = None
        self._levels: frozenset[str] = frozenset()
        """Topic levels of the stream that the query has, or about which its user has been warned."""

    @cached_property
    def _options(self) -> ReadOptions:
        options = parse_options(self._given)
        check_endless(self._given)
        return options

    @cached_property
    def _schema(self) -> pa.Schema:
        return checked(self._wanted, self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which a new query starts."""
        log = self._opened()
        start = run(self._first(log))
        return encode(run(self._bookmarks.moved(start, {})))

    async def _first(self, log: StreamLog) -> Offsets:
        return await resolve("starting", self._options.starting, log, await log.table())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next micro-batch ends: at most ``limit`` records later, and not past the
        target of availableNow.

        Raises:
            ReadError: the checkpoint belongs to another store, or to this one before it was restored.
        """
        log = self._opened()
        with self._logged_first():
            run(log.extend())
            self._warn_of_new_columns(log)
            before = run(self._bookmarks.compared(start))
        first, elsewhere = offsets_of(before), ReadElsewhere.of(start)
        end = self._end(log, first, limit)
        if elsewhere and end == log.heads != first:
            # What the states have is below their ends, and never comes again.
            elsewhere = elsewhere.without(log.records(name for name, _ in elsewhere.items()))
        return encode(run(self._bookmarks.moved(end, before)), elsewhere)

    def _end(self, log: StreamLog, first: Offsets, limit: ReadLimit) -> Offsets:
        end = log.heads if self._target is None else of_checkpoint(self._target, log.heads)
        end = {shard: max(first[shard], offset) for shard, offset in end.items()}
        if not isinstance(limit, ReadMaxRows):
            return end
        # Shards without a selected edge node cost nothing, so they get no part of the limit.
        shards = log.shards_of(self._options.edges)
        return end | limited({shard: first[shard] for shard in sorted(shards)}, end, limit.max_rows)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of ``max_records_per_trigger``."""
        records = self._options.max_records_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the log as last seen, for the lag that Spark reports."""
        return to_json(self._opened().heads)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the present end of the log."""
        log = self._opened()
        run(log.extend())
        self._target = log.heads

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro-batch. The same offsets give the same rows, whether or not they were tiered in
        between.

        A range that the collector has deleted from the log is read from the table.

        Raises:
            ReadError: the checkpoint belongs to another store, or records are neither in the log nor in the table.
        """
        log = self._opened()
        with self._logged_first():
            return run(_planned(lambda: self._plan(log, start, end)))

    async def _plan(self, log: StreamLog, given_start: Any, given_end: Any) -> list[InputPartition]:
        if any(kept.end > log.heads.get(shard, 0) for shard, kept in decode(given_end).items()):
            await log.extend()
        # A batch that a crash interrupted comes here first: its end may be of records that the log no longer has.
        start = offsets_of(await self._bookmarks.compared(given_start))
        end = offsets_of(await self._bookmarks.compared(given_end))
        recent = all(start[shard] >= end[shard] or log.remembers(shard, start[shard]) for shard in start)
        tasks = await plan(log, None if recent else await log.table(), start, end, _START_AGAIN)
        elsewhere = ReadElsewhere.of(given_start)
        return [task.leaving_out(elsewhere) for task in tasks] if elsewhere else list(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        keep_broken_pipes_quiet()
        return read_partition(partition, self._schema)

    def rows_with_plan(self, tasks: Sequence[InputPartition]) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a small plan, or None if tasks are to read them: Spark takes rows of one task alone, and
        refuses columns that Arrow's schema cannot name exactly, such as text with a collation.

        What fails here is left to a task, which Spark repeats.
        """
        task = tasks[0] if len(tasks) == 1 else None
        if not isinstance(task, Task) or not task.is_small or from_arrow_schema(self._schema) != self._wanted:
            return None
        batches, size = list[pa.RecordBatch](), 0
        # Whatever it is: an error would end the query here, where Spark has begun to send the plan.
        try:
            for batch in read_partition(task, self._schema):
                size += batch.nbytes
                if size > ROWS_BYTES_MAX:
                    return None
                batches.append(batch)
            # One batch, as each costs some twenty calls of the socket. Java compares comments of columns, too, which
            # rows from the log lack.
            return iter(pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches())
        except Exception as error:
            _LOG.debug("stream %s: tasks read the rows: %s", self._options.stream, error)
            return None

    def _opened(self) -> StreamLog:
        if self._log is None:
            self._log = run(_open(self._options, self._schema))
            self._levels = frozenset(self._log.fields)
        return self._log

    @cached_property
    def _bookmarks(self) -> Bookmarks:
        return Bookmarks(self._opened())

    @contextmanager
    def _logged_first(self) -> Iterator[None]:
        """Log the advice for a log that went back, before Spark wraps the error into traces of Java and Python."""
        try:
            yield
        except WentBack as error:
            _LOG.error("stream %s: %s", self._options.stream, error)
            raise

    def _warn_of_new_columns(self, log: StreamLog) -> None:
        """Warn once about topic levels that edges named after the query started: its columns are fixed."""
        new = [name for name in log.fields if name not in self._levels]
        if new and self._levels.issubset(self._schema.names):
            _LOG.warning(
                "stream %s has new topic levels: %s. This query continues without these columns; start it again to "
                "have them",
                self._options.stream,
                ", ".join(new),
            )
        self._levels = self._levels.union(new)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without the driver's view of the log."""
        state = {**self.__dict__, "_log": None}
        state.pop("_bookmarks", None)
        return state


async def _planned(plan: Callable[[], Coroutine[Any, Any, list[InputPartition]]]) -> list[InputPartition]:
    """Return a plan, made again if the hub moved chunks into the table and deleted them meanwhile: a table that is
    opened afterwards has the records that the log lacks.

    Raises:
        Missing: neither has the records.
    """
    for _ in range(PLANS_MAX - 1):
        with suppress(MissingOffsets):
            return await plan()
    return await plan()


async def _open(options: ReadOptions, schema: pa.Schema) -> StreamLog:
    """Return the log, with the requested columns checked against it."""
    log = await StreamLog.open(options)
    for field in subset(log.schema, tuple(schema.names)):
        if schema.field(field.name).type != field.type:
            raise _other_type(schema.field(field.name), field.type)
    return log
