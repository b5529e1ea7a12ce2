"""Rows of traced messages among others."""

from __future__ import annotations

import pyarrow as pa

from weft.protocols.message_headers import TRACE
from weft.storage.table.rows import TracedRow, row_schema, traced_rows

SCHEMA = row_schema(())


def batch(*headers: list[tuple[str, str]] | None) -> pa.RecordBatch:
    values = {
        "_headers": list(headers),
        "_offset": range(40, 40 + len(headers)),
        "_seq": range(7, 7 + len(headers)),
        "_edge": ["press-7"] * len(headers),
        "_log": ["00" * 8] * len(headers),
        "_shard": [3] * len(headers),
        "_received": [1_700_000_000_000_001] * len(headers),
    }
    fields = [field for field in SCHEMA if field.name in values]
    return pa.record_batch([pa.array(values[field.name], field.type) for field in fields], schema=pa.schema(fields))


def test_traced_rows_are_found_and_rows_of_one_span_are_one() -> None:
    plain = [("unit", "C")]
    found = traced_rows(batch(None, plain, [*plain, (TRACE, "a")], [(TRACE, "b")], [(TRACE, "a")], []), 10)
    received = 1_700_000_000_000_001_000
    assert list(found) == [
        TracedRow("a", 2, "press-7", "00" * 8, 9, 3, 42, received),
        TracedRow("b", 1, "press-7", "00" * 8, 10, 3, 43, received),
    ]


def test_batches_without_one_have_none() -> None:
    assert list(traced_rows(batch(None, None), 10)) == []
    assert list(traced_rows(batch([("unit", "C")], None), 10)) == []
    assert list(traced_rows(batch(), 10)) == []


def test_a_file_has_no_more_than_its_share() -> None:
    many = batch(*([(TRACE, str(number % 50))] for number in range(200)))
    assert [(row.trace, row.rows) for row in traced_rows(many, 3)] == [("0", 4), ("1", 4), ("2", 4)]
    assert list(traced_rows(many, 0)) == []
