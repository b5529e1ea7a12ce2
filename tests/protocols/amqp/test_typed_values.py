from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import encode as reference
from pika import data as pika_data

from weft.protocols.amqp.frames import AmqpError, ReplyCode
from weft.protocols.amqp.methods import DEPTH_MAX, VALUES_MAX, read_table, write_table
from weft.protocols.amqp.typed_values import Float32, Int8, Int16, Int64, Timestamp, UInt8, UInt16, UInt32

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.builds(Decimal, st.integers(-(1 << 31), (1 << 31) - 1)).map(lambda value: value.scaleb(-3))
    | st.integers(0, 1 << 40).map(Timestamp)
    | st.integers(0, 127).flatmap(
        lambda value: st.sampled_from([Int8, UInt8, Int16, UInt16, UInt32, Int64]).map(lambda kind: kind(value))
    )
    | st.sampled_from([Float32(0.5), Float32("inf")])
)
NAMES = st.text(max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=6)


def read(data: bytes) -> dict[str, Any]:
    table, end = read_table(data, 0, len(data))
    assert end == len(data)
    return table


@given(TABLES)
def test_what_is_written_is_read_with_its_types(table: dict[str, Any]) -> None:
    again = read(write_table(table))
    assert again == table
    assert repr(again) == repr(table)  # True is not 1, and a timestamp is no integer


@given(st.dictionaries(NAMES, st.booleans() | st.integers(-(1 << 31), (1 << 31) - 1) | st.text(max_size=9), max_size=5))
def test_tables_of_clients_are_read(table: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    pika_data.encode_table(pieces, table)
    assert read(b"".join(pieces)) == table
    assert read(reference.field_table(table)) == table


def test_every_type_that_clients_send() -> None:
    fields = {
        b"t": (b"\x01", True),
        b"b": (b"\xff", Int8(-1)),
        b"B": (b"\xff", UInt8(255)),
        b"s": (b"\xff\xfe", Int16(-2)),
        b"U": (b"\xff\xfe", Int16(-2)),
        b"u": (b"\xff\xfe", UInt16(65_534)),
        b"I": (b"\xff" * 4, -1),
        b"i": (b"\xff" * 4, UInt32((1 << 32) - 1)),
        b"l": (b"\xff" * 8, Int64(-1)),
        b"L": (b"\xff" * 8, Int64(-1)),
        b"f": (struct.pack(">f", 0.5), Float32(0.5)),
        b"d": (struct.pack(">d", 0.1), 0.1),
        b"D": (b"\x02\x00\x00\x04\xd2", Decimal("12.34")),
        b"S": (b"\0\0\0\2hi", "hi"),
        b"x": (b"\0\0\0\2hi", b"hi"),
        b"T": (b"\0" * 7 + b"\x09", Timestamp(9)),
        b"V": (b"", None),
        b"F": (b"\0\0\0\0", {}),
        b"A": (b"\0\0\0\3Vt\1", [None, True]),
    }
    for kind, (data, value) in fields.items():
        body = b"\x01n" + kind + data
        found = read(len(body).to_bytes(4, "big") + body)["n"]
        assert (found, type(found)) == (value, type(value)), kind
        same = {b"U": b"s", b"L": b"l"}.get(kind, kind)  # two letters for one type
        assert write_table({"n": found})[4:] == b"\x01n" + same + data


def test_a_long_string_that_is_no_text_is_bytes() -> None:
    body = b"\x01nS\0\0\0\2\xff\xfe"
    assert read(len(body).to_bytes(4, "big") + body) == {"n": b"\xff\xfe"}


def test_tables_that_are_nested_too_deep_are_refused() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"n": nested(depth - 1)} if depth else {}

    assert read(write_table(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(AmqpError, match="nested more than") as refused:
        read(write_table(nested(DEPTH_MAX + 1)))
    assert refused.value.code is ReplyCode.SYNTAX_ERROR


@given(TABLES.filter(bool), st.data())
def test_a_table_that_is_cut_is_refused(table: dict[str, Any], data: st.DataObject) -> None:
    whole = write_table(table)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(AmqpError):
        read_table(cut, 0, len(cut))


def test_a_table_of_many_fields_is_read_in_one_pass() -> None:
    """64 KiB of fields: with a copy of the rest for each they would be half a gigabyte of copies."""
    body = b"\x01nb\0" * 16_000
    assert read(len(body).to_bytes(4, "big") + body) == {"n": 0}


@pytest.mark.parametrize("value", [1 << 63, Decimal("NaN"), Decimal(1 << 40), object()])
def test_what_a_table_cannot_hold_is_not_written(value: object) -> None:
    with pytest.raises(ValueError):
        write_table({"n": value})


@pytest.mark.parametrize(
    "table",
    [
        lambda count: {"a": [None] * (count - 1)},
        lambda count: {f"{number:x}": None for number in range(count)},
        lambda count: {"a": [[None] * (count - count // 2 - 3), {"b": [None] * (count // 2 - 1)}]},
    ],
    ids=["an array", "a table", "arrays in tables"],
)
def test_the_values_of_a_table_have_a_bound(table: Callable[[int], dict[str, Any]]) -> None:
    allowed = table(VALUES_MAX)
    assert read(write_table(allowed)) == allowed
    with pytest.raises(AmqpError, match="more than 16384 values") as refused:
        read(write_table(table(VALUES_MAX + 1)))
    assert refused.value.code is ReplyCode.SYNTAX_ERROR
