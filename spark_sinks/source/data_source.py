"""``spark.read.format("weft")`` and ``spark.readStream.format("weft")``.

Filters are not pushed down. In pyspark 4.2.0, as in 4.3.0, a reader that defines `pushFilters` fails every read while
`spark.sql.python.filterPushdown.enabled` is off, which is its default; and with it on, later queries without a filter
get the filtered query's reader again and lose rows (docs/reference/spark.md). The options ``edges``, ``keys``,
``columns``, ``starting`` and ``ending`` prune instead, and so does a schema given by the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.hub import HubReader, HubStreamReader, columns_of
from spark_sinks.source.options import ReadOptions, limited, parse_names, parse_options
from spark_sinks.source.partitions import read_partition
from spark_sinks.source.readers import WeftReader, WeftStreamReader, check_endless, checked
from spark_sinks.source.stream_log import StreamLog, subset
from spark_sinks.source.typed import NONE, commented
from spark_sinks.source.workers import keep_broken_pipes_quiet

# Several streams of a tenant read as one: the option ``streams``, and the column ``_stream``.
#
# Each stream has a reader of its own. Their offsets are in Spark's checkpoint under the names of the streams:
# ``{"streams": {"ovens": {"0": 1200, ...}, "presses": {...}}}``. A stream that is named later begins at its first
# record, and one that is named no more keeps its offsets, so that it continues there when it is named again.

STREAM = "_stream"
"""Column with the name of a row's stream."""
STREAMS = "streams"
"""The option, and the key of the offsets in a checkpoint."""
STREAMS_MAX = 64
"""Maximum number of streams of one read: the driver follows each."""
_PLACE = "_offset"
"""Column that is read where none of the wanted ones is stored."""


@dataclass(frozen=True)
class OfStream(InputPartition):
    """A task of one stream."""

    stream: str
    part: InputPartition
    stored: pa.Schema
    """Wanted columns that the stream has, under its own names."""


def named_streams(given: Mapping[str, str]) -> dict[str, dict[str, str]] | None:
    """Return the options of each stream of a read of several, by name; None for a read of one stream.

    Raises:
        ReadError: a name is given twice, or another option is of one stream or of a hub.
    """
    lower = {name.lower(): value for name, value in given.items()}
    if STREAMS not in lower:
        return None
    names = parse_names(STREAMS, lower.pop(STREAMS))
    if len(set(names)) < len(names) or len(names) > STREAMS_MAX:
        raise ReadError(f"streams: expected at most {STREAMS_MAX} names, each once; got {', '.join(names)}")
    for other, why in (("stream", "names one stream; leave one of the two out"), ("hub", "reads one stream")):
        if other in lower:
            raise ReadError(f"streams: the option {other} {why}")
    for option in ("starting", "ending"):
        if lower.get(option, "").lstrip().startswith("{"):
            raise ReadError(f"{option}: offsets are those of one stream; with streams, give a time, earliest or latest")
    # Two streams may declare one name with two types.
    return {name: {"schema": NONE, **lower, "stream": name} for name in sorted(names)}


def merged(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return ``_stream`` and the columns of all streams, each once. Names that differ in case only are one column.

    Raises:
        ReadError: two streams have a column with different types.
    """
    found: dict[str, tuple[str, pa.Field]] = {}
    for stream, schema in schemas.items():
        for field in schema:
            first, known = found.setdefault(field.name.casefold(), (stream, field))
            if known.type != field.type:
                raise ReadError(
                    f"streams: {first} and {stream} differ in column {field.name}, which is {known.type} in one and "
                    f"{field.type} in the other. Read them by two reads"
                )
    fields = (field.with_nullable(True) for _, field in found.values())
    return pa.schema([pa.field(STREAM, pa.string()), *fields])


def stored_columns(wanted: pa.Schema, stream: pa.Schema) -> pa.Schema:
    """Return the wanted columns that a stream has, by its own names."""
    own = {field.name.casefold(): field for field in stream}
    found = [own[name.casefold()] for name in wanted.names if name.casefold() in own]
    return pa.schema(found or [stream.field(_PLACE)])


def columns_of_several(streams: Mapping[str, Mapping[str, str]]) -> pa.Schema:
    """Return the columns of a read. Raises as ``merged``, or because the store lacks a stream."""
    columns = {parse_options(given).columns for given in streams.values()}
    whole = merged({name: _schema(parse_options(given)) for name, given in streams.items()})
    return subset(whole, columns.pop())


def _schema(options: ReadOptions) -> pa.Schema:
    return run(StreamLog.open(options)).schema


def _read(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in exactly ``schema``."""
    if not isinstance(partition, OfStream):
        return
    own = {name.casefold(): at for at, name in enumerate(partition.stored.names)}
    for batch in read_partition(partition.part, partition.stored):
        columns = []
        for field in schema:
            at = own.get(field.name.casefold())
            if field.name == STREAM:
                columns.append(pa.repeat(partition.stream, batch.num_rows))
            elif at is None:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                columns.append(batch.column(at))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _own_columns(
    streams: Mapping[str, Mapping[str, str]], schema: StructType
) -> tuple[pa.Schema, dict[str, tuple[ReadOptions, pa.Schema]]]:
    """Return the columns of a read, and of each stream its options and those of them that it has.

    Raises:
        ReadError: no stream has a column, or another type of it is wanted.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    opened = {name: (options := parse_options(given), _schema(options)) for name, given in streams.items()}
    whole = merged({name: columns for name, (_, columns) in opened.items()})
    for field in subset(whole, tuple(wanted.names)):
        if wanted.field(field.name).type != field.type:
            raise ReadError(f"schema: column {field.name} has the type {field.type}; cast it after the read")
    return wanted, {name: (options, stored_columns(wanted, columns)) for name, (options, columns) in opened.items()}


class SeveralReader(DataSourceReader):
    """A batch read of several streams."""

    def __init__(self, streams: Mapping[str, Mapping[str, str]], schema: StructType) -> None:
        self._schema, self._streams = _own_columns(streams, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of all streams. Raises as a read of one of them."""
        return [
            OfStream(name, part, stored)
            for name, (options, stored) in self._streams.items()
            for part in WeftReader(options, stored).partitions()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition, self._schema)


class SeveralStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read of several streams.

    The options are checked at the first use: Spark hides a constructor's error behind one of its own.
    """

    def __init__(self, streams: Mapping[str, Mapping[str, str]], schema: StructType) -> None:
        self._streams = {name: dict(given) for name, given in streams.items()}
        self._wanted = schema

    @cached_property
    def _columns(self) -> tuple[pa.Schema, dict[str, tuple[ReadOptions, pa.Schema]]]:
        return _own_columns(self._streams, self._wanted)

    @cached_property
    def _readers(self) -> dict[str, WeftStreamReader]:
        stored = {name: from_arrow_schema(columns) for name, (_, columns) in self._columns[1].items()}
        return {name: WeftStreamReader(given, stored[name]) for name, given in self._streams.items()}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's names)
        """Return the offsets at which a new query starts."""
        return {STREAMS: {name: reader.initialOffset() for name, reader in self._readers.items()}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offsets at which the next micro-batch ends. Streams share the limit evenly, and those with fewer
        records leave the rest of their part to the others.

        Raises:
            ReadError: the checkpoint is of one stream; otherwise as a read of one of them.
        """
        begin = {**positions(start)}
        begin |= {name: reader.initialOffset() for name, reader in self._readers.items() if name not in begin}
        end = {name: reader.latestOffset(begin[name], ReadAllAvailable()) for name, reader in self._readers.items()}
        if isinstance(limit, ReadMaxRows):
            names = list(end)
            behind = {at: _between(begin[name], end[name]) for at, name in enumerate(names)}
            for at, records in limited(dict.fromkeys(behind, 0), behind, limit.max_rows).items():
                if records < behind[at]:
                    name = names[at]
                    end[name] = self._readers[name].latestOffset(begin[name], ReadMaxRows(records))
        return {STREAMS: dict(sorted((begin | end).items()))}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of ``max_records_per_trigger``, which is that of all streams together."""
        return next(iter(self._readers.values())).getDefaultReadLimit()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the ends of the logs as last seen, for the lag that Spark reports."""
        return {STREAMS: {name: reader.reportLatestOffset() for name, reader in self._readers.items()}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the present ends of the logs."""
        for reader in self._readers.values():
            reader.prepareForTriggerAvailableNow()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch. Raises as a read of one of the streams."""
        begin, until = positions(start), positions(end)
        return [
            OfStream(name, part, self._columns[1][name][1])
            for name, reader in self._readers.items()
            if name in until
            for part in reader.partitions(begin[name] if name in begin else reader.initialOffset(), until[name])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(partition, self._columns[0])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without the driver's view of the logs."""
        return {name: value for name, value in self.__dict__.items() if name != "_readers"}


def positions(offsets: Any) -> dict[str, dict[str, Any]]:
    """Return the offsets of a checkpoint by stream.

    Raises:
        ReadError: they are not those of several streams.
    """
    found = offsets.get(STREAMS) if isinstance(offsets, dict) else None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ReadError(
            f"checkpoint: expected offsets of several streams, got {str(offsets)[:200]}. It is of another query: name "
            "another folder, and the sinks continue by the positions that they keep"
        )
    return found


def _between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    """Return the number of records between two offsets of one stream."""
    return sum(at - start.get(shard, 0) for shard, at in end.items() if isinstance(at, int))


# Also in processes that only plan a read, or look for data sources: Spark ends them as abruptly as those that read.
keep_broken_pipes_quiet()


class WeftSource(DataSource):
    """The data source. Options: ``spark_sinks.source.options.ReadOptions``."""

    @classmethod
    def name(cls) -> str:
        """Return ``weft``."""
        return "weft"

    def schema(self) -> StructType:
        """Return the stream's columns, or those of the ``columns`` option.

        Raises:
            ReadError: an option is wrong, or the store has no such stream.
        """
        if (streams := named_streams(self.options)) is not None:
            declared = parse_options(next(iter(streams.values()))).schema
            return commented(from_arrow_schema(columns_of_several(streams)), declared)
        options = parse_options(self.options)
        if options.hub is not None:
            return commented(from_arrow_schema(subset(columns_of(options), options.columns)), options.schema)
        log = run(StreamLog.open(options))
        return commented(from_arrow_schema(subset(log.schema, options.columns)), log.options.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records between ``starting`` and ``ending``."""
        if (streams := named_streams(self.options)) is not None:
            return SeveralReader(streams, schema)
        options = parse_options(self.options)
        wanted = checked(schema, options)
        return WeftReader(options, wanted) if options.hub is None else HubReader(options, wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return a reader that follows the stream from ``starting`` on."""
        if (streams := named_streams(self.options)) is not None:
            return SeveralStreamReader(streams, schema)
        if "hub" not in map(str.lower, self.options):
            return WeftStreamReader(self.options, schema)
        options = parse_options(self.options)
        check_endless(self.options)
        return HubStreamReader(options, checked(schema, options))
