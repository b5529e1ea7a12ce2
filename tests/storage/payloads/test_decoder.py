"""Typed columns: what fits, what does not and why, the same by the quick and by the exact way."""

from __future__ import annotations

import base64
import functools
import json
import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import cbor2
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.protocols.payloads import NESTING_MAX, PAYLOAD_BYTES_MAX
from weft.storage.payloads.check import PayloadCheck
from weft.storage.payloads.decoder import (
    MISFIT_COLUMN,
    SLICE_ROWS,
    FieldFindings,
    PayloadDecoder,
    SampleOfSchema,
    decoder_of,
)

Row = dict[str, Any]
FIELDS: dict[str, Any] = {
    "t": "float",
    "n": "int",
    "on": "bool",
    "text": "string",
    "blob": "binary",
    "at": "timestamp",
    "ms": "timestamp(ms)",
    "day": "date",
    "days": "date(d)",
    "local": "local_timestamp",
    "price": "decimal(6,2)",
    "list": "array<int>",
    "rpm": {"type": "int", "from": "motor.rpm"},
    "first": {"type": "float", "from": "readings[0].v"},
    "second": {"type": "float", "from": "readings[1].v"},
    "id": {"type": "string", "required": True},
}
DAYS = ("day", "days", "local")
ENCODE = {"json": lambda value: json.dumps(value).encode(), "cbor": cbor2.dumps, "msgpack": msgspec.msgpack.encode}

parsed = functools.cache(parse_schema)


def rows(payloads: list[bytes], fields: Any = FIELDS, encoding: str = "json", columns: Any = None) -> list[Row]:
    schema = parsed(json.dumps({"format": encoding, "fields": fields}))
    names = [*fields, MISFIT_COLUMN] if columns is None else columns
    made = decoder_of(schema, tuple(names)).columns(pa.array(payloads, pa.binary()))
    assert [*made] == names
    found: list[Row] = pa.RecordBatch.from_pydict(made).to_pylist()
    return [row | ({MISFIT_COLUMN: dict(row[MISFIT_COLUMN] or ())} if MISFIT_COLUMN in row else {}) for row in found]


def test_a_schema_that_came_to_another_process_has_the_decoder_that_is_there() -> None:
    schema = parse_schema({"format": "cbor", "fields": FIELDS})
    names = (*FIELDS, MISFIT_COLUMN)
    assert decoder_of(pickle.loads(pickle.dumps(schema)), names) is decoder_of(schema, names)
    assert decoder_of(schema, ("n",)) is not decoder_of(parse_schema({"format": "json", "fields": FIELDS}), ("n",))


def one(value: Any, kind: Any, encoding: str = "json") -> tuple[Any, str | None]:
    """The column of a field with this value, and why it does not fit."""
    payload = b'{"f": %s}' % value if isinstance(value, bytes) else ENCODE[encoding]({"f": value})
    (row,) = rows([payload], {"f": kind}, encoding)
    return row["f"], row[MISFIT_COLUMN].get("f", row[MISFIT_COLUMN].get("payload"))


@pytest.mark.parametrize("encoding", ["json", "cbor", "msgpack"])
def test_fields_become_columns(encoding: str) -> None:
    reading = {
        "t": 21,
        "n": 5.0,
        "on": True,
        "text": "é",
        "at": "2026-01-01T01:00:00+01:00",
        "ms": 1_700_000_000_123,
        "day": "2026-11-01",
        "days": 20_758,
        "local": "2026-11-01T12:00:00",
        "price": 12.5,
        "list": [1, None, 2],
        "motor": {"rpm": 900},
        "readings": [{"v": 1}, {"v": 2.5}],
        "id": "m1",
    }
    blob: Any = "aGk=" if encoding == "json" else b"hi"
    (row,) = rows([ENCODE[encoding](reading | {"blob": blob})], encoding=encoding)
    assert row.pop(MISFIT_COLUMN) == {}
    assert row == {
        "t": 21.0,
        "n": 5,
        "on": True,
        "text": "é",
        "blob": b"hi",
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "ms": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "price": Decimal("12.50"),
        "list": [1, None, 2],
        "rpm": 900,
        "first": 1.0,
        "second": 2.5,
        "id": "m1",
        "day": date(2026, 11, 1),
        "days": date(2026, 11, 1),
        "local": datetime(2026, 11, 1, 12),  # noqa: DTZ001
    }


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (b"1.0", "int", 1),
        (b"1e3", "int", 1000),
        (b"-0.0", "int", 0),
        (b"9007199254740993.0", "int", 2**53 + 1),
        (b"9007199254740993.5", "int", "expected a whole number of 64 bits, got 9007199254740993.5"),
        (b"9223372036854775807.25", "int", "got 9223372036854775807.25"),
        (b"[1,9007199254740993.5]", "array<int>", "[1]: expected a whole number of 64 bits"),
        (b"9223372036854775807", "int", 2**63 - 1),
        (b"9223372036854775808", "int", "expected a whole number of 64 bits, got 9223372036854775808"),
        (b"1e19", "int", "got 1E+19"),
        (b"1.5", "int", "expected a whole number of 64 bits, got 1.5"),
        (b"true", "int", "got true"),
        (b'"5"', "int", 'got "5"'),
        (b"5", "float", 5.0),
        (b"1e400", "float", "expected a number of 64 bits, got 1E+400"),
        (b"9" * 400, "float", "expected a number of 64 bits, got 9999"),
        (b"9" * 5000, "int", "expected a number or text that a column can hold"),
        (b"NaN", "float", "it is not JSON"),
        (b"5", "string", "expected text, got 5"),
        (b'"' + b"x" * 500 + b'"', "int", '..."'),
        (b"1", "bool", "expected true or false, got 1"),
        (b'"%%"', "binary", "expected text in base64"),
        (b'"2026-01-01"', "timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
        (b'"2026-01-01T00:00:00.1234567Z"', "timestamp", datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)),
        (b'"noon"', "timestamp", 'expected a time as text in ISO 8601, got "noon"'),
        (b"1700000000", "timestamp", "expected a time as text"),
        (b"1700000000.25", "timestamp(s)", datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)),
        (b"1700000000123456789", "timestamp(ns)", datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)),
        (b"1e18", "timestamp(s)", "expected a time as a number of s since 1970"),
        (b'"2026-11-01"', "date", date(2026, 11, 1)),
        (b'"2026-11-01T00:00:00"', "date", 'expected a day as text in ISO 8601, got "2026-11-01T00:00:00"'),
        (b"20758", "date", "expected a day as text"),
        (b"20758", "date(d)", date(2026, 11, 1)),
        (b"20758.5", "date(d)", "expected a day as a number of d since 1970, got 20758.5"),
        (b"3000000", "date(d)", "expected a day as a number of d since 1970, got 3000000"),
        (b'"2026-11-01T12:00:00.5"', "local_timestamp", datetime(2026, 11, 1, 12, 0, 0, 500_000)),  # noqa: DTZ001
        (b'"2026-11-01T12:00:00Z"', "local_timestamp", "expected a time without a zone or offset"),
        (b"-1", "local_timestamp(ms)", datetime(1969, 12, 31, 23, 59, 59, 999_000)),  # noqa: DTZ001
        (b'["2026-11-01",null]', "array<date>", [date(2026, 11, 1), None]),
        (b'["2026-11-01","soon"]', "array<date>", "[1]: expected a day"),
        (b"1e-400", "int", "expected a whole number of 64 bits, got 1E-400"),
        (b"0.99999999999999999999", "int", "got 0.99999999999999999999"),
        (b"[1,1e-400]", "array<int>", "[1]: expected a whole number of 64 bits"),
        (b'"12.30"', "decimal(6,2)", Decimal("12.30")),
        (b"12.345", "decimal(6,2)", "expected a number of at most 6 digits, 2 of them after the point, got 12.345"),
        (b"12345.1", "decimal(6,2)", "got 12345.1"),
        (b"1e999999999", "decimal(6,2)", "got 1E+999999999"),
        (b'"nan"', "decimal(6,2)", 'got "nan"'),
        (b"[1,2.0]", "array<int>", [1, 2]),
        (b"[1,null,-2]", "array<decimal(6,2)>", [Decimal("1.00"), None, Decimal("-2.00")]),
        (b"[1.5,null,2e1]", "array<decimal(6,2)>", [Decimal("1.50"), None, Decimal("20.00")]),
        (b"[1.5,1e4,1]", "array<decimal(6,2)>", "[1]: expected a number of at most 6 digits"),
        (b"[1.5,1.555]", "array<decimal(6,2)>", "[1]: expected a number of at most 6 digits"),
        (b"[1,10000]", "array<decimal(6,2)>", "[1]: expected a number of at most 6 digits"),
        (b'[1.5,"nan"]', "array<decimal(6,2)>", "[1]: expected a number of at most 6 digits"),
        (b"[1.5,1e30]", "array<float>", [1.5, 1e30]),
        (b'[1,"x"]', "array<int>", '[1]: expected a whole number of 64 bits, got "x"'),
        (b"5", "array<int>", "expected an array, got 5"),
        (b"null", "float", None),
        (b'1, "f": "x"', "float", 'got "x"'),
        (b'"x", "f": 1', "float", 1.0),
        (b'{"a":' * NESTING_MAX + b"1" + b"}" * NESTING_MAX, "float", "more than 128 deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "float", "more than 128 deep"),
        (b'"\xff"', "string", "it is not JSON"),
        (b'1, "other": "\xff"', "float", "it is not JSON"),
        (b'1, "other": "\\ud800"', "float", "it is not JSON"),
    ],
)
def test_what_fits_in_json_and_what_does_not(value: bytes, kind: str, expected: Any) -> None:
    found, misfit = one(value, kind)
    if isinstance(expected, str):
        assert found is None
        assert expected in str(misfit)
        assert len(str(misfit)) < 250
    else:
        assert (found, misfit) == (expected, None)


@pytest.mark.parametrize("encoding", ["cbor", "msgpack"])
def test_what_binary_formats_have_beside_json(encoding: str) -> None:
    assert math.isnan(one(math.nan, "float", encoding)[0])
    assert one(math.nan, "int", encoding) == (None, "expected a whole number of 64 bits, got nan")
    assert one(0.1, "decimal(3,1)", encoding)[0] == Decimal("0.1")
    (row,) = rows([ENCODE[encoding]({1: 2.5, "a": 1})], {"v": {"type": "float", "from": "1"}}, encoding)
    assert row["v"] == 2.5


def test_times_of_the_formats_themselves() -> None:
    moment = datetime(2026, 1, 1, 6, tzinfo=UTC)
    assert one(moment, "timestamp", "msgpack")[0] == moment
    assert one(moment, "timestamp", "cbor")[0] == moment, "tag 0: text"
    assert one(cbor2.CBORTag(1, 1_700_000_000), "timestamp(s)", "cbor")[0] == datetime(
        2023, 11, 14, 22, 13, 20, tzinfo=UTC
    )
    assert one(moment, "local_timestamp", "msgpack")[0] is None, "it is a moment"
    assert one(cbor2.CBORTag(1004, "2026-11-01"), "date", "cbor")[0] == date(2026, 11, 1)
    assert one(cbor2.CBORTag(100, 20_758), "date(d)", "cbor")[0] == date(2026, 11, 1)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "it is empty"),
        (b"hello", "it is not JSON"),
        (b'{"id": "a"} {"id": "b"}', "it is not JSON"),
        (b"5", "expected an object at $, got 5"),
        (b"[]", "expected an object at $, got an array of 0"),
        (b'{"id": "%s"}' % (b"x" * PAYLOAD_BYTES_MAX), "at most 1048576 are decoded"),
    ],
)
def test_a_payload_that_cannot_be_read_is_one_misfit(payload: bytes, reason: str) -> None:
    (row,) = rows([payload])
    misfits = row.pop(MISFIT_COLUMN)
    assert reason in misfits.pop("payload")
    assert misfits == {}
    assert set(row.values()) == {None}


def test_missing_fields_are_null_and_a_misfit_where_they_are_required() -> None:
    (row,) = rows([b"{}"])
    assert row.pop(MISFIT_COLUMN) == {"id": "required, and missing"}
    assert set(row.values()) == {None}


def test_a_payload_of_another_schema_names_a_few_misfits_and_counts_the_rest() -> None:
    (row,) = rows([b"{}"], {f"f{i}": {"type": "int", "required": True} for i in range(256)})
    assert len(row[MISFIT_COLUMN]) == 17
    assert row[MISFIT_COLUMN]["..."] == "and 240 more"


def test_two_fields_may_come_from_one_place() -> None:
    fields = {"f": {"type": "float", "from": "v"}, "s": {"type": "string", "from": "v"}}
    assert [(row["f"], row["s"]) for row in rows([b'{"v": 1}', b'{"v": "x"}'], fields)] == [(1.0, None), (None, "x")]


def test_the_payload_itself_may_be_a_field() -> None:
    assert [row["v"] for row in rows([b"21.5", b"null", b"3"], {"v": {"type": "float", "from": "$"}})] == [
        21.5,
        None,
        3,
    ]


def test_many_rows_are_in_order() -> None:
    payloads = [b"%d" % n if n % 1000 == 7 else b'{"id": "x", "n": %d}' % n for n in range(2 * SLICE_ROWS + 5)]
    found = rows(payloads)
    assert [row["n"] for row in found] == [None if n % 1000 == 7 else n for n in range(len(payloads))]
    assert [n for n, row in enumerate(found) if row[MISFIT_COLUMN]] == [*range(7, len(payloads), 1000)]


def test_one_payload_never_moves_the_rows_of_others() -> None:
    """Payloads are decoded as lines of one text: none may be two lines, or half of one."""
    evil = [
        b'{"n":1}\n{"n":2}',
        b"  ",
        b'{"n":1} {"n":2}',
        b"{}",
        b'{"a":"}',
        b'{","n":1}',
        b'{"n":[{}',
        b'{"n":8}',
        b'{"n":3}\n',
        b"",
        b"\n",
        b'{"n":{}',
        b'{"n":{"n":4}',
        b'{"a":"\\}',
        b'{"n":5,"a":"}\n{"}',
    ]
    for first in evil:
        for second in evil:
            for third in (b'{"n":7}', b" ", b'{"n":7} {"n":9}'):
                together = rows([first, second, third], {"n": "int"})
                assert together == [rows([each], {"n": "int"})[0] for each in (first, second, third)]


NAMES = st.sampled_from([*"tnvz", "on", "text", "blob", "at", "ms", "price", "list", "motor", "rpm", "id", *DAYS])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["x", "aGk=", "2026-01-01", "12.5", "é", "1e3", ""])
)
ANY = st.recursive(SCALARS, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3))
GOOD = st.fixed_dictionaries(
    {"id": st.just("m")},
    optional={
        "t": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20),
        "n": st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**6), 10**6).map(float),
        "on": st.booleans(),
        "text": st.text(max_size=4),
        "blob": st.binary(max_size=4).map(lambda data: base64.b64encode(data).decode()),
        "at": st.datetimes().map(datetime.isoformat),
        "ms": st.integers(0, 10**13) | st.floats(0, 1e13),
        "day": st.dates().map(date.isoformat),
        "days": st.integers(-(10**6), 10**7) | st.integers(0, 10**4).map(float),
        "local": st.datetimes(timezones=st.none() | st.just(UTC)).map(datetime.isoformat),
        "price": st.decimals(-9999, 9999, places=2).map(str) | st.integers(-9999, 9999),
        "list": st.lists(st.integers(-5, 5) | st.none(), max_size=3),
        "motor": st.fixed_dictionaries({}, optional={"rpm": st.integers(0, 9)}) | st.none(),
        "readings": st.lists(st.fixed_dictionaries({}, optional={"v": st.floats(0, 9)}), max_size=3),
    },
)
VALUES = GOOD | st.tuples(GOOD, st.dictionaries(NAMES, ANY, max_size=2)).map(lambda two: two[0] | two[1]) | ANY


@functools.cache
def exact_decoder(schema: str, columns: tuple[str, ...]) -> PayloadDecoder:
    decoder = PayloadDecoder(parse_schema(schema), columns)
    decoder._quick = None
    return decoder


@functools.cache
def payload_check(encoding: str) -> PayloadCheck:
    return PayloadCheck(parse_schema({"format": encoding, "fields": FIELDS}))


def exact(payload: bytes, fields: Any, encoding: str, columns: list[str]) -> Row:
    decoder = exact_decoder(json.dumps({"format": encoding, "fields": fields}), tuple(columns))
    found: list[Row] = pa.RecordBatch.from_pydict(decoder.columns(pa.array([payload], pa.binary()))).to_pylist()
    row = found[0]
    return row | ({MISFIT_COLUMN: dict(row[MISFIT_COLUMN] or ())} if MISFIT_COLUMN in row else {})


@pytest.mark.parametrize("encoding", ["json", "msgpack", "cbor"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_row_is_the_same_by_every_way_and_whatever_is_beside_it(encoding: str, data: st.DataObject) -> None:
    def encoded(value: Any) -> bytes:
        try:
            return ENCODE[encoding](value)
        except (OverflowError, UnicodeEncodeError):
            return ENCODE[encoding]({"id": "m"})

    payloads = [encoded(value) for value in data.draw(st.lists(VALUES, min_size=1, max_size=4))]
    if data.draw(st.booleans()):
        payloads.append(data.draw(st.binary(max_size=8)))
    names = [*FIELDS, MISFIT_COLUMN]
    some = data.draw(
        st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).map(
            lambda chosen: [name for name in names if name in chosen]
        )
    )
    together = rows(payloads, encoding=encoding)
    assert [dict(payload_check(encoding).misfits(each)) for each in payloads] == [
        row[MISFIT_COLUMN] for row in together
    ]
    assert repr(together) == repr([exact(payload, FIELDS, encoding, names) for payload in payloads])
    assert repr(rows(payloads, encoding=encoding, columns=some)) == repr(
        [{name: row[name] for name in some} for row in together]
    )


# --- A schema held against a sample of payloads: what does not fit, what is never there, and what has no name


def test_a_sample_says_what_devices_changed() -> None:
    sample = SampleOfSchema(parse_schema("fields: {t: float, rpm: {type: int, from: motor.rpm}, renamed: string}"))
    sent = [
        {"t": "n/a" if n % 10 == 0 else n, "motor": {"rpm": n, "load": 0.5}, "new_name": "x", "t_2": n}
        for n in range(100)
    ]
    for part in (sent[:50], sent[50:]):
        sample.take([json.dumps(each).encode() for each in part])
    sample.take([b"no JSON"])
    assert (sample.records, sample.misfits) == (101, 11)
    t, rpm, renamed, payload = sample.fields()
    assert t == FieldFindings("t", 90, 10, 'expected a number of 64 bits, got "n/a"')
    assert (rpm.values, rpm.misfits, renamed.values, renamed.misfits) == (100, 0, 0, 0)
    assert (payload.name, payload.misfits) == ("payload", 1)
    assert [line.split("  #")[0].strip() for line in sample.unnamed()] == [
        "motor_load: {type: float, from: motor.load}",
        "new_name: string",
        "t_2: int",
    ]
