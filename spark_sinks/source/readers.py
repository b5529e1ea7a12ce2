"""Readers of one stream for Spark: a batch read, and one that follows the stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.broken_pipes import keep_broken_pipes_quiet
from spark_sinks.source.checkpoints import Bookmarks, decode, encode, offsets_of
from spark_sinks.source.elsewhere import ReadElsewhere
from spark_sinks.source.history import WentBack
from spark_sinks.source.options import ReadOptions, parse_options
from spark_sinks.source.partitions import read_partition
from spark_sinks.source.plan import plan, resolve
from spark_sinks.source.positions import Offsets, limited, of_checkpoint, to_json
from spark_sinks.source.stream_log import MissingOffsets, StreamLog, subset
from weft.protocols.payloads import PayloadKind
from weft.storage.payloads.decoder import typed_fields
from weft.storage.table.rows import row_schema

PLANS_MAX = 2
"""Maximum number of plans for one read, when records have moved since they were seen."""
_START_AGAIN = "start the query again: it goes on from the table"
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
    for field in wanted:
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
        raise ReadError("ending: a streaming read has no end; use .trigger(availableNow=True) to read what is there")


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
    ``spark_sinks.source.checkpoints``.

    The options are checked at the first use: Spark hides a constructor's error behind one of its own.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        keep_broken_pipes_quiet()
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
        with self._told_first():
            run(log.extend())
            self._tell_of_new_columns(log)
            before = run(self._bookmarks.compared(start))
        first, elsewhere = offsets_of(before), ReadElsewhere.of(start)
        end = self._end(log, first, limit)
        if elsewhere and end == log.heads != first:
            # What the states have stands below their ends, and never comes again.
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
        with self._told_first():
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

    def _opened(self) -> StreamLog:
        if self._log is None:
            self._log = run(_open(self._options, self._schema))
            self._levels = frozenset(self._log.fields)
        return self._log

    @cached_property
    def _bookmarks(self) -> Bookmarks:
        return Bookmarks(self._opened())

    @contextmanager
    def _told_first(self) -> Iterator[None]:
        """Log the advice for a log that went back, before Spark wraps the error into traces of Java and Python."""
        try:
            yield
        except WentBack as error:
            _LOG.error("stream %s: %s", self._options.stream, error)
            raise

    def _tell_of_new_columns(self, log: StreamLog) -> None:
        """Warn once about topic levels that edges named after the query started: its columns are fixed."""
        new = [name for name in log.fields if name not in self._levels]
        if new and self._levels.issubset(self._schema.names):
            _LOG.warning(
                "stream %s has new topic levels: %s. This query goes on without these columns; start it again to have "
                "them", self._options.stream, ", ".join(new),
            )  # fmt: skip
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
