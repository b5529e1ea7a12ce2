"""Columns with one value in every row, cached and cut to the rows of a record batch.

Half of a row's columns nearly always are of this kind: its edge, its log, the state of its clock, and values that most
records lack. Writing them again for each record batch took as much time as all other columns.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

KEPT_ROWS_MAX = 8 << 10
"""Rows of a cached column: as many as in a record batch of a Spark task (``spark_sinks.source.partitions``)."""
KEPT_ROWS_MIN = 256
"""Rows below which a column of text is not cached: a hub gets few records at a time from each of thousands of nodes."""
KEPT_TEXT_BYTES_MAX = 64
"""Longest cached text."""
KEPT_TEXTS_MAX = 32
"""Maximum number of cached texts: 18 MiB if all have the maximum length, 6 MiB with names of twenty bytes."""
KEPT_TYPES_MAX = 8


def repeated_text(text: str, rows: int) -> pa.Array:
    """Return a column of text that has ``text`` in each of ``rows``."""
    encoded = text.encode()
    if KEPT_ROWS_MIN <= rows <= KEPT_ROWS_MAX and len(encoded) <= KEPT_TEXT_BYTES_MAX:
        return _kept_text(encoded).slice(0, rows)
    return _text(encoded, rows)


def nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column of nulls."""
    return _kept_nulls(kind).slice(0, rows) if rows <= KEPT_ROWS_MAX else pa.nulls(rows, kind)


def falses(rows: int) -> pa.Array:
    """Return a column of booleans that are false."""
    return _kept_falses().slice(0, rows) if rows <= KEPT_ROWS_MAX else pa.array(np.zeros(rows, np.bool_))


def _text(text: bytes, rows: int) -> pa.Array:
    # Copied as a run of bytes: Arrow's `take` looks up each row, and took more time than decompression.
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text * rows)], 0)


@lru_cache(maxsize=KEPT_TEXTS_MAX)
def _kept_text(text: bytes) -> pa.Array:
    return _text(text, KEPT_ROWS_MAX)


@lru_cache(maxsize=KEPT_TYPES_MAX)
def _kept_nulls(kind: pa.DataType) -> pa.Array:
    # `pa.nulls` makes a map whose keys and values have room for each row, all of which would be sent to Java.
    return pa.array([None] * KEPT_ROWS_MAX, kind)


@lru_cache(maxsize=1)
def _kept_falses() -> pa.Array:
    return pa.array(np.zeros(KEPT_ROWS_MAX, np.bool_))
