"""One DataFrame over the whole stream: table files by Spark's own Parquet reader, the tail by ``format("weft")``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.runtime.session import register
from spark_sinks.source.hub import client_of, columns_of
from spark_sinks.source.options import (
    STORE_PREFIX,
    Offsets,
    ReadOptions,
    check_offsets,
    offsets_text,
    parse_moment,
    parse_names,
    parse_options,
    source_options,
)
from spark_sinks.source.partitions import condition
from spark_sinks.source.stream_log import StreamLog, open_hub, subset
from spark_sinks.source.tables import StreamTable, TableSnapshot, may_match
from spark_sinks.source.typed import NONE, declared, is_none, with_typed_columns
from weft.config.load import schema_text
from weft.config.payload_schema.model import PayloadSchema
from weft.storage.table.files import TableFile
from weft.storage.table.typed_columns import comment_of

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
STREAM_OPTION = "weft.stream"
"""Option, without meaning to Spark, by which a plan shows that Parquet files are a stream's."""


def read(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str] | None = None,
    hub: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    tenant: str = "default",
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    edges: Collection[str] | None = None,
    keys: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
    schema: PayloadSchema | str | Mapping[str, Any] | None = None,
    payload_format: str | None = None,
    starting: Mapping[int, int] | None = None,
    ending: Mapping[int, int] | None = None,
    store_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a stream from its first record to this moment, each record once.

    The call fixes the end of the log, the table's position and its list of files, the latter two from one version of
    the table. The tail starts exactly at that position, so each record is in exactly one of the parts, and the
    DataFrame gives the same rows each time. Call again to see later records.

    History is read natively if Spark reaches the files (a directory store, on a cluster one that every executor
    mounts). From an object store, for which the pip package of Spark has no file system, everything is read through
    ``format("weft")``.

    Args:
        store: root of the hub's store. Give this or ``hub``.
        hub: URL of a hub, or of several of its nodes separated by commas: all rows come through it, as far back as its
            log goes, and Spark needs no access to the store.
        token_file: file with a token of scope reader, with ``hub``. None: the environment variable ``WEFT_TOKEN``, as
            it was when the session started.
        ca_file: certificate authorities in PEM, with ``hub``. None: the system's.
        since: only records received at this moment or later (``_time``); a text is ISO 8601, without a zone UTC.
        until: only records received before this moment; a text likewise.
        edges: only records of these edge nodes; a text is a list of names as in the option ``edges``.
        keys: only records with these keys, or with keys that match these topic filters; a text likewise.
        columns: only these columns, in this order; a text likewise.
        schema: fields of the payloads that become typed columns, as in the option ``schema``, or a mapping with the
            same keys. None: those of the schema that is declared for the stream (``weft hub schema``); ``none``: none.
        payload_format: format of the payloads if ``schema`` has the short text form: json, cbor or msgpack.
        starting: shard -> offset of its first record to read; a shard that is not named is read from its beginning.
        ending: shard -> offset after its last record to read; a shard that is not named is not read.
        store_options: for the object store: ``{"AWS_REGION": ...}``.

    Raises:
        ReadError: the store holds no hub, the hub does not answer, it has no such stream, the stream has no such
            column, the log does not reach these offsets, or an argument is not valid.
    """
    given = {"since": since, "until": until, "edges": edges, "keys": keys, "columns": columns}
    place = source_options(stream, tenant, store, store_options, hub=hub, token_file=token_file, ca_file=ca_file)
    own = None if is_none(schema) else declared(schema, payload_format)
    options = replace(parse_options(place), **_selection(given), schema=own, is_typed=not is_none(schema))
    if options.hub is not None:
        return _through_hub(spark, place, options, starting, ending)
    return _from_store(spark, place, options, starting, ending)


def _from_store(
    spark: SparkSession,
    place: dict[str, str],
    options: ReadOptions,
    starting: Mapping[int, int] | None,
    ending: Mapping[int, int] | None,
) -> DataFrame:
    log, snapshot = run(_opened(options))
    wanted = subset(log.schema, options.columns)
    start, end = _range(log.heads, starting, ending)
    # Spark reads only a directory store itself: its pip package has no file system for object stores.
    native = snapshot if snapshot is not None and not snapshot.is_remote else None
    tail = start
    parts = []
    if native:
        tail = {shard: max(first, min(native.ends[shard], end[shard])) for shard, first in start.items()}
        history = _history(spark, native, options, start, tail)
        selected = condition(options)
        for part in history:
            conformed = _conformed(part, native, log.stored)
            rows = conformed if selected is None else conformed.where(selected)
            if (schema := log.options.schema) is not None:
                rows = with_typed_columns(rows, schema, log.options.version, wanted.names).select(*wanted.names)
            elif options.columns is not None:
                rows = rows.select(*wanted.names)
            parts.append(rows)
    # A result needs at least one part for its columns, even if it has no rows.
    if not parts or tail != end:
        parts.append(_between(spark, place | _named(options), (tail, end), from_arrow_schema(wanted)))
    return _commented(reduce(DataFrame.unionByName, parts), log.options.schema)


def _commented(frame: DataFrame, schema: PayloadSchema | None) -> DataFrame:
    comments = {name: comment_of(field) for name, field in schema.fields.items()} if schema else {}
    for name, comment in comments.items():
        if comment is not None and name in frame.columns:
            frame = frame.withMetadata(name, {"comment": comment})
    return frame


def _selection(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``ReadOptions`` that select rows and columns."""
    found: dict[str, Any] = {}
    for option in ("since", "until"):
        found[option] = None if given[option] is None else parse_moment(option, given[option])
    for option in ("edges", "keys", "columns"):
        found[option] = _names(option, given[option])
    found["edges"] = None if found["edges"] is None else frozenset(found["edges"])
    return found


def _range(
    heads: Offsets, starting: Mapping[int, int] | None, ending: Mapping[int, int] | None
) -> tuple[Offsets, Offsets]:
    """Return the offsets to read of every shard of the log, which ends at ``heads``."""
    given = {"starting": starting or {}, "ending": heads if ending is None else ending}
    for option, offsets in given.items():
        check_offsets(option, dict.fromkeys(heads, 0) | {int(shard): at for shard, at in offsets.items()}, heads)
    start, end = ({shard: given[option].get(shard, 0) for shard in heads} for option in given)
    return start, {shard: max(start[shard], end[shard]) for shard in heads}


async def _opened(options: ReadOptions) -> tuple[StreamLog, TableSnapshot | None]:
    """Return the log and the table. The log's end is taken last, so it is never below the table's position."""
    log = await StreamLog.open(options)
    await log.extend()
    return log, log.opened_table


def table(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str],
    tenant: str = "default",
    version: int | None = None,
    store_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a stream's Delta table, without the tail.

    It is read by the Delta reader if the session has it (delta-spark), else as the exact list of files of one version.

    Args:
        version: version of the table, to read an earlier state; None means the newest.

    Raises:
        ReadError: there is no table yet, or only a Delta reader can read it here.
    """
    options = parse_options(source_options(stream, tenant, store, store_options))
    snapshot = _snapshot(options, version)
    if snapshot is None:
        run(StreamLog.open(options))  # raises ReadError when there is no such stream
        raise ReadError(
            f"stream {stream!r} of tenant {tenant!r} has no table yet: the hub makes it for the first record, with its "
            "next table step (tables.interval)"
        )
    if DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", "") or ""):
        reader = spark.read.format("delta")
        return reader.option("versionAsOf", str(snapshot.version)).load(snapshot.uri)
    if snapshot.is_remote:
        raise ReadError(f"{snapshot.uri} needs a session with delta-spark and the store's file system; or use read()")
    return _parquet(spark, snapshot, list(snapshot.files))


def _names(option: str, given: Collection[str] | None) -> tuple[str, ...] | None:
    if isinstance(given, str):
        return parse_names(option, given)
    if given is not None and not given:
        raise ReadError(f"{option}: expected one name or more; leave it out for all")
    return None if given is None else tuple(given)


def _snapshot(options: ReadOptions, version: int | None = None) -> TableSnapshot | None:
    async def opened() -> TableSnapshot | None:
        store, cluster = await open_hub(options)
        return await StreamTable(store, cluster, options.tenant, options.stream).open(version)

    return run(opened())


def _history(
    spark: SparkSession, table: TableSnapshot, options: ReadOptions, start: Offsets, end: Offsets
) -> Iterator[DataFrame]:
    """Yield offsets ``[start, end)`` of the table, which must have all of them. Each row's offset is compared only in
    files that also hold other offsets."""
    files = [file for file in table.files if may_match(file, options)]
    # The whole table needs no comparison of offsets.
    if all(start[shard] == 0 and end[shard] == table.ends[shard] for shard in start):
        yield _parquet(spark, table, files)
        return
    ranges = [(shard, start[shard], end[shard]) for shard in start if start[shard] < end[shard]]
    inner = [file for file in files if _is_within(file, start, end)]
    known = set(inner)
    outer = [file for file in files if file not in known and any(file.may_hold(*part) for part in ranges)]
    if inner:
        yield _parquet(spark, table, inner)
    if outer:
        offset = F.col("_offset")
        inside = [(F.col("_shard") == shard) & (offset >= first) & (offset < last) for shard, first, last in ranges]
        yield _parquet(spark, table, outer).where(reduce(or_, inside))


def _through_hub(
    spark: SparkSession,
    place: Mapping[str, str],
    options: ReadOptions,
    starting: Mapping[int, int] | None,
    ending: Mapping[int, int] | None,
) -> DataFrame:
    """Return the stream through a hub. The driver asks it first, so that a mistake is one sentence of Python."""
    client = client_of(options)
    heads = client.heads()
    start, end = _range(heads, starting, ending)
    if starting is None:  # the log's beginning, which is not 0 where old chunks are deleted
        start = {shard: min(client.first_offset(shard), end[shard]) for shard in heads}
    schema = from_arrow_schema(subset(columns_of(options), options.columns))
    return _commented(_between(spark, dict(place) | _named(options), (start, end), schema), options.schema)


def _named(options: ReadOptions) -> dict[str, str]:
    """Return what selects rows, and what opens the store, as options of ``format("weft")``."""
    named = {f"{STORE_PREFIX}{name}": value for name, value in options.store_options}
    for name, moment in (("since", options.since), ("until", options.until)):
        named |= {} if moment is None else {name: moment.isoformat()}
    for name, names in (("edges", options.edges), ("keys", options.keys)):
        named |= {} if names is None else {name: msgspec.json.encode(sorted(names)).decode()}
    if not options.is_typed:
        return {**named, "schema": NONE}
    return named if options.schema is None else {**named, "schema": schema_text(options.schema)}


def _between(
    spark: SparkSession, named: Mapping[str, str], span: tuple[Offsets, Offsets], schema: StructType
) -> DataFrame:
    """Return offsets ``[start, end)`` through the source. With the schema given, Spark does not start a worker to ask
    for it."""
    place = {"starting": offsets_text(span[0]), "ending": offsets_text(span[1])}
    register(spark)
    return spark.read.format("weft").options(**named, **place).schema(schema).load()


def _conformed(frame: DataFrame, snapshot: TableSnapshot, schema: pa.Schema) -> DataFrame:
    """Return the stream's columns in the stream's order; topic levels that the table lacks are null."""
    known = snapshot.columns
    if list(known.values()) == schema.names:
        return frame  # Naming every column is a hundred calls of Java, which would slow down a short query.
    return frame.select(*(_column(known.get(name.casefold()), name) for name in schema.names))


def _column(column: str | None, name: str) -> Column:
    if column == name:
        return F.col(name)
    return (F.lit(None).cast("string") if column is None else F.col(column)).alias(name)


def _is_within(file: TableFile, start: Offsets, end: Offsets) -> bool:
    """Return whether all rows of a file have offsets in ``[start, end)`` of one shard."""
    return file.shard is not None and start.get(file.shard, 0) <= file.first and file.end <= end.get(file.shard, 0)


def _parquet(spark: SparkSession, snapshot: TableSnapshot, files: Sequence[TableFile]) -> DataFrame:
    """Return a reader of Parquet files with the table's schema. Without it, Spark uses the columns of the first footer
    that it reads."""
    schema: StructType = from_arrow_schema(snapshot.schema)
    if not files:
        return spark.createDataFrame([], schema)
    paths = [f"{snapshot.uri}/{file.path}" for file in files]
    reader = spark.read.options(**{"basePath": snapshot.uri, STREAM_OPTION: "true"})
    return reader.schema(schema).parquet(*paths)
