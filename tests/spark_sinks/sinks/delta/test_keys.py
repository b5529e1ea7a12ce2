"""Equality of rows by keys, with nulls and several types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_sinks.sinks.delta.table import last_of_each, later, match

ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "", "a", "b"]),
        st.sampled_from([None, -1, 0, 2**40]),
        st.one_of(st.none(), st.integers(0, 3)),
    ),
    max_size=30,
)


def table(rows: list[tuple[Any, ...]], chunks: int = 1) -> pa.Table:
    schema = pa.schema([("m", pa.string()), ("w", pa.int64()), ("n", pa.int32())])
    parts = [rows[at::chunks] for at in range(chunks)]
    batches = [
        pa.RecordBatch.from_pylist([dict(zip("mwn", row, strict=True)) for row in part], schema) for part in parts
    ]
    return pa.Table.from_batches(batches, schema)


def order(row: tuple[Any, ...]) -> tuple[bool, Any]:
    return row[2] is not None, row[2]


@given(ROWS)
def test_the_last_row_of_each_key_is_kept(rows: list[tuple[Any, ...]]) -> None:
    expected: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    for row in rows:
        if row[:2] not in expected or order(row) >= order(expected[row[:2]]):
            expected[row[:2]] = row
    found = last_of_each(table(rows), ["m", "w"], ["n"])
    assert sorted(map(tuple, (row.values() for row in found.to_pylist())), key=repr) == sorted(
        expected.values(), key=repr
    )


@given(ROWS, ROWS)
def test_rows_find_the_row_with_their_key(found: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> None:
    wanted = last_of_each(table(rows), ["m", "w"], [])
    keys = [(row["m"], row["w"]) for row in wanted.to_pylist()]
    at = match(table(found), wanted, ["m", "w"]).tolist()
    assert at == [keys.index(row[:2]) if row[:2] in keys else -1 for row in found]


@given(ROWS)
def test_later_is_lexicographic_with_nulls_lowest(rows: list[tuple[Any, ...]]) -> None:
    def place(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
        return [(value is not None, value) for value in row[1:]]

    other = rows[::-1]
    found = later(table(rows), table(other), ["w", "n"]).tolist()
    assert found == [
        tuple((known, value if known else 0) for known, value in place(a))
        > tuple((known, value if known else 0) for known, value in place(b))
        for a, b in zip(rows, other, strict=True)
    ]
