"""Lineage: the records of devices that went into a row."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.errors import ReadError
from spark_sinks.read import read

# The lineage column ``_from``: per lane the records that went into a row.

# Ranges, not all numbers: the records of one machine of ten are a range each, and the list would be larger than the
# records. Not offsets, which say where a record stood in a shard's log: two hubs give one record two.
FROM_COLUMN = "_from"
FROM_TYPE = "array<struct<edge:string,log:string,first:bigint,last:bigint,count:bigint>>"
"""Type of the lineage column. ``first`` and ``last`` are the lowest and highest sequence number, both used; ``count``
is the number of records used. All of ``first`` to ``last`` were used when count = last - first + 1."""

_RANGE = FROM_TYPE.removeprefix("array<").removesuffix(">")


def of_record() -> Column:
    """Return the lineage of a row of the source or of a stream's table: its own record.

    The frame must have ``_edge``, ``_log`` and ``_seq``. Name the column: ``of_record().alias("_from")``.
    """
    return F.array(_range(F.col("_edge"), F.col("_log"), F.col("_seq"), F.col("_seq"), F.lit(1))).cast(FROM_TYPE)


def merged(column: Column | str = FROM_COLUMN) -> Column:
    """Return an aggregate: the lineage of a group's rows, one range per lane, by edge and log.

    It consists of functions of Spark, so it works in batch queries, in streaming aggregates and through Spark Connect.
    Rows without lineage (null) are ignored; a group with only such rows gets an empty array.

    The result has one range for each lane. Until a group is finished, Spark holds about 100 bytes for each of its rows:
    Spark has no built-in aggregate with numbers per lane.

    Args:
        column: a lineage column; a record that went into several rows counts once for each.
    """
    given = F.col(column) if isinstance(column, str) else column
    return joined(F.flatten(F.collect_list(given)))


def joined(ranges: Column) -> Column:
    """Return an array of ranges with those of one lane joined, by edge and log. This is not an aggregate."""
    nothing = F.struct(F.array().cast(FROM_TYPE).alias("done"), F.lit(None).cast(_RANGE).alias("open"))
    # Sorting puts a lane's ranges together: one pass is enough, and closed ranges are copied once a lane, not once a
    # row.
    return F.aggregate(F.array_sort(ranges.cast(FROM_TYPE)), nothing, _take, _closed)


def _take(state: Column, item: Column) -> Column:
    done, last = state["done"], state["open"]
    is_same = (last["edge"] == item["edge"]) & (last["log"] == item["log"])
    both = _range(
        item["edge"],
        item["log"],
        F.least(last["first"], item["first"]),
        F.greatest(last["last"], item["last"]),
        last["count"] + item["count"],
    )
    return F.when(is_same, F.struct(done.alias("done"), both.alias("open"))).otherwise(
        F.struct(_closed(state).alias("done"), item.cast(_RANGE).alias("open"))
    )


def _closed(state: Column) -> Column:
    return F.when(state["open"].isNull(), state["done"]).otherwise(F.concat(state["done"], F.array(state["open"])))


def _range(edge: Column, log: Column, first: Column, last: Column, count: Column) -> Column:
    parts = {"edge": edge, "log": log, "first": first, "last": last, "count": count}
    return F.struct(*(part.alias(name) for name, part in parts.items())).cast(_RANGE)


# Records of a stream that went into rows of a table, as a DataFrame.

EDGES_MAX = 1000
"""Maximum number of edge nodes by which the read is narrowed; rows of more nodes are joined with the whole stream."""
ROW_COLUMN = "_row"


def trace(
    spark: SparkSession,
    rows: DataFrame,
    stream: str,
    *,
    store: str | os.PathLike[str],
    tenant: str = "default",
    on: Sequence[str] = (),
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the records of a stream that went into rows: one for each pair of row and record, in no order.

    It is a join by lane and range of sequence numbers, so it works for many rows at once. The columns are ``_row`` (all
    columns of the row) and those of the stream.

    A range with fewer used records than numbers also holds other records. To exclude them, name the columns that row
    and record share, such as the machine, in ``on``; and the time of the rows.

    Args:
        rows: rows with a column ``_from``; not a stream. It is evaluated at once for the names of the edge nodes.
        stream: the input stream of the rows.
        store: root of the hub's store.
        on: columns of both that must be equal.
        since: only records with a ``_time`` of this moment or later.
        until: only records with a ``_time`` before this moment.
        store_options: for the object store: ``{"AWS_REGION": ...}``.

    Raises:
        ReadError: the rows have no lineage, are a stream, or lack a column of ``on``; or as ``read``.
    """
    kind = dict(rows.dtypes).get(FROM_COLUMN)
    if kind != FROM_TYPE:
        raise ReadError(f"rows: expected a column {FROM_COLUMN} of type {FROM_TYPE}, got {kind or 'none'}")
    if rows.isStreaming:
        raise ReadError("rows: expected a batch DataFrame, got a stream; trace in foreachBatch")
    used = rows.select(F.struct("*").alias(ROW_COLUMN), F.explode(FROM_COLUMN).alias("used"))
    edges = [row[0] for row in used.select("used.edge").distinct().limit(EDGES_MAX + 1).collect()]
    records = read(
        spark,
        stream,
        store=store,
        tenant=tenant,
        since=since,
        until=until,
        edges=edges if 0 < len(edges) <= EDGES_MAX else None,
        store_options=store_options,
    )
    for name in on:
        for side, columns in (("rows", rows.columns), ("the stream", records.columns)):
            if name not in columns:
                raise ReadError(f"on: {side} has no column {name}; it has {', '.join(columns)}")
    agrees = (
        (records["_edge"] == F.col("used.edge"))
        & (records["_log"] == F.col("used.log"))
        & records["_seq"].between(F.col("used.first"), F.col("used.last"))
    )
    for name in on:
        agrees &= records[name] == F.col(f"{ROW_COLUMN}.{name}")
    return records.join(used, agrees).select(ROW_COLUMN, *(records[name] for name in records.columns))
