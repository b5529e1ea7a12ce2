"""Payloads as text: every byte is in exactly one of two columns, and engines can open the text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.protocols.payloads import (
    NESTING_MAX,
    PayloadKind,
    is_json,
    is_text,
    keeps,
    kind_labelled,
    label_of,
    nests_at_most,
    strictest,
)
from weft.storage.table.rows import BYTES_COLUMN, payload_columns, payload_fields

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ALMOST = st.text(alphabet='[]{}",:\\u0dD8/*-+.eE19tfn \n\t\0é', max_size=12).map(str.encode)
PAYLOADS = st.lists(
    st.binary(max_size=12)
    | st.text(max_size=8).map(str.encode)
    | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    | ALMOST,
    max_size=12,
)
BAD_SYNTAX = [b"", b" ", b"nul", b"01", b"1.", b".5", b"+1", b"NaN", b"Infinity", b"-", b"[1,]", b'{"a":1,}', b"{} {}"]
BAD_TEXT = [
    b"\xef\xbb\xbf{}",
    b'"\\x"',
    b'"\t"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b"{}\0",
    b"/**/1",
    b'"\xff"',
    b"[1",
]
GOOD = [b"1", b'"x"', b"null", b' {"a": [1, -0.5e3]}\r\n', b'"\\ud83d\\ude00"', b'"\\u0000"']
KINDS = [PayloadKind.TEXT, PayloadKind.JSON]


def joined(columns: dict[str, pa.Array]) -> list[bytes]:
    """The payloads again, and the proof that each stands in one column only."""
    text, rest = columns["payload"].to_pylist(), columns[BYTES_COLUMN].to_pylist()
    assert all((one is None) != (other is None) for one, other in zip(text, rest, strict=True))
    return [other if one is None else one.encode() for one, other in zip(text, rest, strict=True)]


@settings(max_examples=300, deadline=None)
@given(PAYLOADS, st.sampled_from(KINDS))
@example([b"\xc3", b"\xa9", b"ok"], PayloadKind.TEXT)
@example([b"[1", b",2]"], PayloadKind.JSON)
@example([b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\0b", b""], PayloadKind.TEXT)
def test_bytes_come_back_as_they_were(payloads: list[bytes], kind: PayloadKind) -> None:
    found = payload_columns(pa.array(payloads, pa.binary()), kind)
    for field in payload_fields(kind):
        found[field.name].validate(full=True)
        assert found[field.name].type == field.type
    assert joined(found) == payloads
    for payload, text in zip(payloads, found["payload"].to_pylist(), strict=True):
        assert (text is not None) == keeps(kind, payload)
        assert not keeps(kind, payload) or is_text(payload)


def test_a_slice_of_a_longer_batch() -> None:
    found = payload_columns(pa.array([b"\xff", b"1", b"x", b"\xff"], pa.binary())[1:3], PayloadKind.JSON)
    assert (found["payload"].to_pylist(), found[BYTES_COLUMN].to_pylist()) == (["1", None], [None, b"x"])


def test_text_is_wrapped_and_not_copied() -> None:
    payloads = pa.array([b'{"a": 1}'] * 100, pa.binary())
    for kind in KINDS:
        assert payload_columns(payloads, kind)["payload"].buffers()[2].address == payloads.buffers()[2].address


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:  # takes longer than an example
        yield connection


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(ALMOST | VALUES.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")), min_size=1))
def test_what_is_taken_for_json_opens_in_engines(database: duckdb.DuckDBPyConnection, payloads: list[bytes]) -> None:
    """One value that DuckDB cannot read fails the query for all the others."""
    columns = payload_columns(pa.array(payloads, pa.binary()), PayloadKind.JSON)
    table = pa.table({"payload": columns["payload"]})
    database.register("weft", table)
    database.execute("SELECT payload->>'$.a', json_type(payload) FROM weft").fetchall()
    pl.from_arrow(table).select(pl.col("payload").str.json_path_match("$.a"))
    for text in table["payload"].to_pylist():
        if text is not None:
            json.loads(text)


@pytest.mark.parametrize("payload", [*BAD_SYNTAX, *BAD_TEXT])
def test_what_is_not_json(payload: bytes) -> None:
    assert not keeps(PayloadKind.JSON, payload)


@pytest.mark.parametrize("payload", GOOD)
def test_what_is_json(payload: bytes) -> None:
    assert keeps(PayloadKind.JSON, payload)


@pytest.mark.parametrize(("opening", "inside", "closing"), [(b"[", b"", b"]"), (b'{"[[":', b"1", b"}")])
def test_depth_is_bounded_by_a_number_and_not_by_the_stack(opening: bytes, inside: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return opening * depth + inside + closing * depth

    def far_down(frames: int) -> bool:
        return far_down(frames - 1) if frames else is_json(nested(NESTING_MAX))

    assert is_json(nested(NESTING_MAX))
    assert far_down(300)
    assert not is_json(nested(NESTING_MAX + 1))
    assert not is_json(nested(100_000))
    assert is_json(b"[" + b",".join([nested(NESTING_MAX - 1)] * 50) + b"]")
    assert is_json(b'"' + b'[{\\"' * 1000 + b'"')


def test_of_several_declarations_the_strictest_counts_in_any_order() -> None:
    assert strictest([]) is PayloadKind.BYTES
    assert strictest([0, 1, 0]) is PayloadKind.TEXT
    assert strictest([2, 1]) is strictest([1, 2]) is PayloadKind.JSON
    assert strictest([99, 1, 2**32 - 1]) is PayloadKind.TEXT
    assert (kind_labelled("json"), kind_labelled("JSON"), label_of(1), label_of(99)) == (
        PayloadKind.JSON,
        None,
        "text",
        "kind 99",
    )


NESTED = st.recursive(
    st.none() | st.text('ab"\\[]{}\n', max_size=6),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text('"\\[}', max_size=3), inside, max_size=3),
    max_leaves=12,
)


def depth_of(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


@given(NESTED, st.integers(2, 9))
def test_the_nesting_is_the_same_wherever_a_payload_is_cut(value: object, size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("weft.protocols.payloads.SLICE_BYTES", size)
        data = json.dumps(value).encode()
        depth = depth_of(value)
        assert nests_at_most(depth, data)
        assert depth == 0 or not nests_at_most(depth - 1, data)
