"""One DataFrame over history and present: table files by Spark's own Parquet reader, the tail by ``format("weft")``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.runtime.session import register
from spark_sinks.source.options import STORE_PREFIX, ReadOptions, parse_names, parse_options
from spark_sinks.source.positions import EXPECTED_TIME, Offsets, in_utc, offsets_text
from spark_sinks.source.stream_log import StreamLog, open_hub, open_stream_table, subset
from spark_sinks.source.tables import TableFile, TableSnapshot

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def read(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str],
    tenant: str = "default",
    since: datetime | str | None = None,
    edges: Collection[str] | None = None,
    columns: Sequence[str] | None = None,
    store_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a stream from its first record to this moment, each record once.

    Where the log ends, the table's position and its list of files are taken now, the latter two from one version of
    the table, and the tail starts exactly at that position: a record is never in both parts and never in neither, and
    the DataFrame stays the same however often it is used. Call again to see what came later.

    History is read natively where Spark reaches the files (a directory store, on a cluster one that every executor
    mounts). From an object store, for which the pip package of Spark has no file system, everything is read through
    ``format("weft")``.

    Args:
        store: root of the hub's store.
        since: only records received at this moment or later (``_time``); a text is ISO 8601, without a zone UTC.
        edges: only records of these edge nodes; a text is a list of names as the option ``edges`` takes it.
        columns: only these columns, in this order; a text likewise.
        store_options: for the object store: ``{"AWS_REGION": ...}``.

    Raises:
        ReadError: the store holds no hub, the hub has no such stream, the stream has no such column, or an argument is
            not what it should be.
    """
    options = _options(stream, store, tenant, store_options or {})
    moment = _moment(since)
    edges, columns = _names("edges", edges), _names("columns", columns)
    log, snapshot = run(_opened(options))
    whole = log.schema
    wanted = subset(whole, columns).names
    # Spark prunes the columns of Parquet files, but not those of a Python source.
    tail = subset(whole, [name for name in whole.names if name in {*wanted, "_time", "_edge"}])
    native = snapshot if snapshot is not None and not snapshot.is_remote else None
    start = native.ends if native else dict.fromkeys(log.heads, 0)
    parts = []
    if native:
        files = [file for file in native.files if moment is None or file.may_reach(moment)]
        parts.append(_conformed(_parquet(spark, native, files), native, whole))
    if native is None or start != log.heads:
        parts.append(_between(spark, options, start, log.heads, from_arrow_schema(tail)))
    narrowed = [_narrowed(part, moment, edges).select(*wanted) for part in parts]
    return reduce(DataFrame.unionByName, narrowed)


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

    Through the Delta reader when the session has it (delta-spark), else as the exact list of files of one version.

    Args:
        version: version of the table, for a look at the past; None takes the newest.

    Raises:
        ReadError: there is no table yet, or only a Delta reader can read it here.
    """
    options = _options(stream, store, tenant, store_options or {})
    snapshot = _snapshot(options, version)
    if snapshot is None:
        run(StreamLog.open(options))  # says so when there is no such stream
        raise ReadError(
            f"stream {stream!r} of tenant {tenant!r} has no table yet: the hub makes it for the first record, with its "
            "next table step (tables.interval)"
        )
    if DELTA_EXTENSION in (spark.conf.get("spark.sql.extensions", "") or ""):
        reader = spark.read.format("delta")
        return reader.option("versionAsOf", str(snapshot.version)).load(snapshot.uri)
    if snapshot.is_remote:
        raise ReadError(f"{snapshot.uri} needs a session with delta-spark and the store's file system; or use read()")
    return _parquet(spark, snapshot, snapshot.files)


def _options(stream: str, store: str | os.PathLike[str], tenant: str, store_options: Mapping[str, str]) -> ReadOptions:
    named = {f"{STORE_PREFIX}{name}": value for name, value in store_options.items()}
    return parse_options({"stream": stream, "store": os.fspath(store or ""), "tenant": tenant} | named)


def _names(option: str, given: Collection[str] | None) -> tuple[str, ...] | None:
    if isinstance(given, str):
        return parse_names(option, given)
    if given is not None and not given:
        raise ReadError(f"{option}: expected one name or more; leave it out for all")
    return None if given is None else tuple(given)


def _snapshot(options: ReadOptions, version: int | None = None) -> TableSnapshot | None:
    store, cluster = run(open_hub(options))
    return open_stream_table(options, store, cluster, version)


def _moment(since: datetime | str | None) -> datetime | None:
    if since is None:
        return None
    with contextlib.suppress(ValueError):
        since = datetime.fromisoformat(since.strip()) if isinstance(since, str) else since
    if not isinstance(since, datetime):
        raise ReadError(f"since: expected {EXPECTED_TIME}; got {since!r}")
    return in_utc(since)


def _between(spark: SparkSession, options: ReadOptions, start: Offsets, end: Offsets, schema: StructType) -> DataFrame:
    """Return offsets ``[start, end)`` through the source. Given the schema, Spark need not start a worker to ask for
    it."""
    named = {f"{STORE_PREFIX}{name}": value for name, value in options.store_options}
    named |= {"store": options.store, "tenant": options.tenant, "stream": options.stream}
    named |= {"starting": offsets_text(start), "ending": offsets_text(end)}
    register(spark)
    return spark.read.format("weft").options(**named).schema(schema).load()


def _conformed(frame: DataFrame, snapshot: TableSnapshot, schema: pa.Schema) -> DataFrame:
    """Return the stream's columns in the stream's order; topic levels that the table does not know yet are null."""
    known = snapshot.columns
    return frame.select(*(_column(known.get(name.casefold()), name) for name in schema.names))


def _column(column: str | None, name: str) -> Column:
    if column == name:
        return F.col(name)
    return (F.lit(None).cast("string") if column is None else F.col(column)).alias(name)


def _parquet(spark: SparkSession, snapshot: TableSnapshot, files: Sequence[TableFile]) -> DataFrame:
    """Return a reader of Parquet files with the table's schema. Without it Spark takes the columns of whichever footer
    it reads first."""
    schema: StructType = from_arrow_schema(pa.schema(snapshot.table.schema()))
    if not files:
        return spark.createDataFrame([], schema)
    paths = [f"{snapshot.uri}/{file.path}" for file in files]
    return spark.read.option("basePath", snapshot.uri).schema(schema).parquet(*paths)


def _narrowed(frame: DataFrame, moment: datetime | None, edges: Collection[str] | None) -> DataFrame:
    if moment is not None:
        frame = frame.where(F.col("_time") >= F.lit(moment))
    if edges is not None:
        frame = frame.where(F.col("_edge").isin(sorted(edges)))
    return frame
