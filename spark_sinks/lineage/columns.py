"""The lineage column ``_from``: per lane the records that went into a row."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

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
