"""Columns that say one thing in every row: as Arrow would write them, and the same to another process."""

from __future__ import annotations

import pyarrow as pa
import pytest

from weft.storage.table.rows import (
    HEADERS,
    KEPT_ROWS_MAX,
    KEPT_ROWS_MIN,
    KEPT_TEXT_BYTES_MAX,
    TIMESTAMP,
    falses,
    nulls,
    repeated_text,
)

ROWS = (1, 9, KEPT_ROWS_MIN - 1, KEPT_ROWS_MIN, 5_000, KEPT_ROWS_MAX, KEPT_ROWS_MAX + 1)


@pytest.mark.parametrize("rows", ROWS)
def test_columns_are_those_that_arrow_makes(rows: int) -> None:
    texts = ("press-1", "", "Größe", "x" * KEPT_TEXT_BYTES_MAX, "x" * (KEPT_TEXT_BYTES_MAX + 1))
    expected = [pa.array([text] * rows, pa.string()) for text in texts]
    expected += [pa.nulls(rows, kind) for kind in (pa.string(), HEADERS, TIMESTAMP)] + [pa.array([False] * rows)]
    made = [repeated_text(text, rows) for text in texts]
    made += [nulls(kind, rows) for kind in (pa.string(), HEADERS, TIMESTAMP)] + [falses(rows)]
    for column, same in zip(made, expected, strict=True):
        column.validate(full=True)
        assert column.equals(same)
        assert column.null_count == same.null_count


def test_only_the_rows_of_a_batch_are_sent() -> None:
    """A kept column is longer than most batches; what is behind their rows must not go to Java."""
    columns = [repeated_text("press-1", 300), nulls(HEADERS, 300), nulls(TIMESTAMP, 300), falses(300)]
    batch = pa.RecordBatch.from_arrays(columns, names=list("abcd"))
    written = pa.RecordBatch.from_arrays([pa.array(c.to_pylist(), c.type) for c in columns], names=list("abcd"))
    sent = [each.serialize() for each in (batch, written)]
    assert sent[0].size <= sent[1].size + 64
    assert pa.ipc.read_record_batch(sent[0], batch.schema).equals(written)
