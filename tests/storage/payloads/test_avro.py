"""Avro's binary encoding: values as its specification says, and a reason for everything else."""

from __future__ import annotations

import json
import struct
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import imported
from weft.config.payload_schema.languages import parse_avro
from weft.storage.payloads.decoder import PayloadDecoder
from weft.storage.payloads.formats import AvroDecoder, Unreadable

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "t", "type": ["null", "double"]},
        {"name": "s", "type": "string"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["on", "off"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "boolean"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
    ],
}


def number(value: int) -> bytes:
    """Zigzag in groups of seven bits, the lowest first."""
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def encoded(n: int = -64, t: float | None = 1.5, s: str = "é") -> bytes:
    return b"".join(
        [
            number(n),
            number(0) if t is None else number(1) + struct.pack("<d", t),
            text(s),
            number(1),
            b"\x01\x02",
            # A block with its size before it, and another without.
            number(-2),
            number(2),
            number(3),
            number(-4),
            number(1),
            number(5),
            number(0),
            number(1),
            text("k"),
            b"\x01",
            number(0),
            number(2),
            (-150).to_bytes(2, signed=True),
            number(1_700_000_000_123),
            number(20_758),
            number(1_700_000_000_123),
        ]
    )


def decoder() -> AvroDecoder:
    return AvroDecoder(parse_avro(json.dumps(SCHEMA)))


def test_numbers_are_those_of_the_specification() -> None:
    assert [number(each) for each in (0, -1, 1, -2, 2, -64, 64)] == [
        b"\0",
        b"\1",
        b"\2",
        b"\3",
        b"\4",
        b"\x7f",
        b"\x80\1",
    ]
    assert text("foo") == bytes.fromhex("06666f6f")


def test_every_type_is_read() -> None:
    assert decoder().decode(encoded()) == {
        "n": -64,
        "t": 1.5,
        "s": "é",
        "e": "off",
        "f": b"\x01\x02",
        "list": [3, -4, 5],
        "map": {"k": True},
        "d": Decimal("-1.50"),
        "at": 1_700_000_000_123,
        "day": 20_758,
        "local": 1_700_000_000_123,
    }


def test_payloads_become_typed_columns_and_others_misfits() -> None:
    found = imported(json.dumps(SCHEMA))
    assert found is not None
    schema = parse_schema(found.settings | {"framing": "confluent"})
    made = PayloadDecoder(schema, [*schema.fields, "_misfit"])
    head = b"\0\0\0\0\7"
    columns = made.columns(pa.array([head + encoded(), encoded(), head + encoded(t=None)[:-1]], pa.binary()))
    assert columns["t"].to_pylist() == [1.5, None, None]
    assert columns["d"].to_pylist() == [Decimal("-1.50"), None, None]
    assert columns["at"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, None, None]
    assert columns["day"].to_pylist() == [date(2026, 11, 1), None, None]
    assert columns["local"].to_pylist() == [datetime(2023, 11, 14, 22, 13, 20, 123_000), None, None]  # noqa: DTZ001
    reasons = [dict(row or ()).get("payload") for row in columns["_misfit"].to_pylist()]
    assert reasons == [
        None,
        "it does not begin with 0 and the id of a schema, as `framing: confluent` demands",
        "it ends within a value",
    ]


@pytest.mark.parametrize(
    ("schema", "payload", "words"),
    [
        ({"type": "array", "items": "null"}, number(1 << 60), "at most one for each byte"),
        ({"type": "array", "items": "null"}, number(-(1 << 60)) + number(0), "at most one for each byte"),
        ("bytes", number(1 << 40) + b"x", "ends within"),
        ("long", b"\xff" * 11, "more than 64 bits"),
        (["null", "int"], number(7), "branch 7 of a union of 2"),
        ("int", b"\x02\x02", "there are 1 more"),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}, b"\x02" * 1000, "deep in"),
    ],
)
def test_what_is_hostile_is_refused(schema: Any, payload: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        AvroDecoder(parse_avro(json.dumps(schema))).decode(payload)


def test_values_that_take_no_bytes_have_a_bound() -> None:
    kind: Any = {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "null"}]}
    for n in range(1, 25):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"r{n - 1}"}]
        kind = {"type": "record", "name": f"r{n}", "fields": fields}
    with pytest.raises(Unreadable, match="too many values without bytes"):
        AvroDecoder(parse_avro(json.dumps(kind))).decode(b"")
    nulls = {"type": "array", "items": {"type": "array", "items": "null"}}
    inner = number(4000) + number(0)
    with pytest.raises(Unreadable, match="too many values without bytes"):
        AvroDecoder(parse_avro(json.dumps(nulls))).decode(number(2000) + 2000 * inner + number(0))
    longs = {"type": "array", "items": "long"}
    value = AvroDecoder(parse_avro(json.dumps(longs))).decode(number(100_000) + 100_000 * b"\x02" + number(0))
    assert value == [1] * 100_000


@given(st.binary(max_size=60))
@example(encoded())
def test_any_bytes_are_a_value_or_have_a_reason(payload: bytes) -> None:
    made = decoder()
    for data in (payload, encoded()[: len(payload)] + payload):
        try:
            made.decode(data)
        except Unreadable:
            pass
