"""Rows of a micro-batch in the order of their lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, MapType, StringType, TimestampType

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.encoding import Row, headers_of
from spark_sinks.sinks.stream.positions import Position

NANOSECONDS = 1000
"""Nanoseconds in a microsecond, the unit of Spark's times."""
TIME_US_MAX = ((1 << 63) - 1) // NANOSECONDS


def ordered(frame: DataFrame, tasks: int, spread: int = 1) -> DataFrame:
    """Return the rows in sending order: the rows of a source shard in one partition, in the order of its lane. A
    partition has the rows of one edge.

    Rows of one source record are ordered by ``_ordinal``, or without that column by their content: a repeated
    micro-batch gives each row the same place.

    Args:
        tasks: number of partitions; of a query that is spread, rounded up to the next multiple of ``spread``.
        spread: number of the query's edges, as in ``ProducerSettings``.

    Raises:
        SinkError: a column is missing, or of another type.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    for name, why in (
        ("_shard", "the source shard of the record that caused the row"),
        ("_offset", "the offset of the record that caused the row"),
        ("key", "the record's key: a topic or routing key"),
        ("payload", "the record's bytes; pack columns with to_json(struct(...)) before"),
    ):
        if name not in types:
            raise SinkError(f"the rows have no column {name}, {why}; they have {', '.join(types) or 'no column'}")
    for name in ("key", "payload"):
        if not isinstance(types[name], StringType | BinaryType):
            raise SinkError(f"column {name} is {types[name].simpleString()}; cast it to string or binary")
    picked = frame.select(
        F.col("_shard").cast("int").alias("_shard"),
        F.col("_offset").cast("long").alias("_offset"),
        _ordinal(types).alias("_ordinal"),
        F.unix_micros(_time(types)).alias("_time"),
        F.col("key").cast("binary").alias("_key"),
        F.col("payload").cast("binary").alias("_payload"),
        _headers(types).alias("_headers"),
        _lineage(types).alias("_lineage"),
    )
    by: list[str | Column] = ["_offset", "_ordinal", "_key", "_payload", "_time", "_lineage"]
    if "headers" in types:
        by.append(F.array_sort(F.map_entries("_headers")))
    if spread == 1:
        parted = picked.repartition(tasks, "_shard")
    else:
        # A link is of one edge. Each task has one, since the hub bounds the links of a token.
        count = -(-tasks // spread) * spread
        parted = picked.repartitionById(count, F.coalesce(F.pmod("_shard", F.lit(count)), F.lit(0)))
    return parted.sortWithinPartitions("_shard", *by)


def _ordinal(types: dict[str, Any]) -> Column:
    return F.col("_ordinal").cast("int") if "_ordinal" in types else F.lit(None).cast("int")


def _time(types: dict[str, Any]) -> Column:
    """Return the record's time: the column ``time``, else the time of the source record."""
    for name in ("time", "_time"):
        if name in types:
            if not isinstance(types[name], TimestampType):
                raise SinkError(f"column {name} is {types[name].simpleString()}; cast it to timestamp")
            return F.col(name)
    raise SinkError("the rows have no column time, the moment that the record is about; keep _time of the cause")


def _headers(types: dict[str, Any]) -> Column:
    kind = types.get("headers")
    if kind is None:
        return F.lit(None).cast("map<string,string>")
    if not isinstance(kind, MapType):
        raise SinkError(f"column headers is {kind.simpleString()}; expected map<string,string>")
    return F.col("headers").cast("map<string,string>")


def _lineage(types: dict[str, Any]) -> Column:
    return F.to_json(F.col("_from")) if "_from" in types else F.lit(None).cast("string")


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Row]]:
    """Yield source shard and row, in order, from the batches of ``ordered``.

    Raises:
        SinkError: a row has no position, key, payload or time, or two rows have one position.
    """
    shard_before, offset_before, ordinal = -1, -1, -1
    for batch in batches:
        for shard, offset, given, time, key, payload, headers, lineage in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if shard is None or offset is None or shard < 0 or offset < 0:
                raise SinkError(
                    f"a row has the shard {shard} and the offset {offset}; _shard and _offset must be those of the "
                    "record that caused it"
                )
            is_next = (shard, offset) == (shard_before, offset_before)
            if given is not None and (given < 0 or (is_next and given <= ordinal)):
                raise SinkError(
                    f"a row of offset {offset} of shard {shard} has the _ordinal {given}, negative or again; number "
                    "the rows of one source record from 0"
                )
            ordinal = given if given is not None else ordinal + 1 if is_next else 0
            shard_before, offset_before = shard, offset
            _check(shard, offset, key=key, payload=payload, time=time)
            if abs(time) > TIME_US_MAX:
                raise SinkError(
                    f"the row of offset {offset} of shard {shard} has the time {time} us; a stream takes times between "
                    "the years 1678 and 2262"
                )
            position = Position(offset, ordinal)
            # Arrow returns a map as pairs; a null value has no text.
            own = sorted((name, value) for name, value in headers or () if value is not None)
            pairs = headers_of(position, shard, own, lineage)
            yield shard, Row(position, time * NANOSECONDS, key, payload, pairs)


def _check(shard: int, offset: int, **values: object) -> None:
    for name, value in values.items():
        if value is None:
            raise SinkError(
                f"the row of offset {offset} of shard {shard} has no {name} (null); filter such rows, or fill them"
            )
