"""Records of a stream that went into rows of a table, as a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.errors import ReadError
from spark_sinks.lineage.columns import FROM_COLUMN, FROM_TYPE
from spark_sinks.read import read

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
