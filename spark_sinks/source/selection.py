"""The rows that the options ``since``, ``until``, ``edges`` and ``keys`` select: one rule for chunks, table files read
by Arrow, and table files read by Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import reduce
from operator import and_, or_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.source.options import ReadOptions
from weft.protocols.topics import InvalidTopic, TopicPattern, compile_pattern
from weft.storage.table.columns import TIMESTAMP

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
