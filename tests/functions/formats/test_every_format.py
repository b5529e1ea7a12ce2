"""What every format promises: the way back, nothing but PayloadError, and the same bytes for the same values."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import pytest
from hypothesis import example
from hypothesis import strategies as st

from tests.functions.formats.values import fields, same
from tests.support.examples import given
from weft.config.functions.settings import StructField
from weft.functions.cbor_format import CborFormat
from weft.functions.contract import Format, PayloadError
from weft.functions.formats import (
    DEPTH_MAX,
    PAYLOAD_BYTES_MAX,
    BytesFormat,
    JsonFormat,
    MsgpackFormat,
    NumberFormat,
    StructFormat,
    TextFormat,
)

STRUCT = StructFormat(
    "little",
    [
        StructField(name="temperature", type_="i16", scale=0.1, offset=-40),
        StructField(name="name", type_="text[3]"),
        StructField(type_="skip[1]"),
        StructField(name="raw", type_="bytes[2]"),
        StructField(name="on", type_="bool"),
        StructField(name="count", type_="u64"),
        StructField(name="level", type_="f32"),
        StructField(name="level_2", type_="f64"),
        StructField(name="half", type_="f16"),
    ],
)
FIELD_NAMES = ("temperature", "name", "raw", "on", "count", "level", "level_2", "half")
FORMATS: dict[str, Format] = {
    "json": JsonFormat(),
    "cbor": CborFormat(),
    "msgpack": MsgpackFormat(),
    "number": NumberFormat(),
    "text": TextFormat(),
    "bytes": BytesFormat(),
    "struct": STRUCT,
}
_LONG = st.integers(-(10**300), 10**300)
_STRUCTS = st.fixed_dictionaries(
    {
        "temperature": st.integers(-(2**15), 2**15 - 1).map(lambda number: number * 0.1 - 40),
        "name": st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=3),
        "raw": st.binary(min_size=2, max_size=2),
        "on": st.booleans(),
        "count": st.integers(0, 2**64 - 1),
        "level": st.floats(width=32),
        "level_2": st.floats(),
        "half": st.floats(width=16),
    }
).map(lambda values: {name: values[name] for name in FIELD_NAMES})
_NUMBERS = st.integers(-(10**62), 10**62) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "json": fields(integers=_LONG, binary=False, nan=False),
    "cbor": fields(integers=_LONG),
    "msgpack": fields(),
    "number": st.fixed_dictionaries({"value": _NUMBERS}),
    "text": st.fixed_dictionaries({"value": st.text()}),
    "bytes": st.fixed_dictionaries({"value": st.binary()}),
    "struct": _STRUCTS,
}
"""What each format can hold."""
HUGE = 10**5000
"""An integer that is longer than any that is read."""
every = pytest.mark.parametrize("name", FORMATS)


@every
@given(data=st.data())
def test_what_is_written_is_read_again(name: str, data: st.DataObject) -> None:
    values = data.draw(VALUES[name])
    payload = FORMATS[name].encode(values)
    assert same(FORMATS[name].decode(payload), values)
    assert FORMATS[name].encode(values) == payload


@every
@given(payload=st.binary(max_size=200))
@example(b"")
def test_any_bytes_are_read_or_refused_and_what_is_read_can_be_written(name: str, payload: bytes) -> None:
    format_ = FORMATS[name]
    try:
        values = format_.decode(payload)
    except PayloadError:
        return
    assert same(format_.decode(format_.encode(values)), values)


@every
@given(values=fields(integers=_LONG))
def test_any_values_are_written_or_refused(name: str, values: dict[str, Any]) -> None:
    format_ = FORMATS[name]
    for given_values in (values, {"value": next(iter(values.values()), None)}):
        try:
            payload = format_.encode(given_values)
        except PayloadError:
            continue
        found = format_.decode(payload)
        assert list(found) == list(given_values)


@every
@pytest.mark.parametrize(
    "value",
    [HUGE, "\ud800", {"a": "\ud800"}, object(), 1j, [object()], {(1, 2): 3, (1,): object()}, math.nan, -math.inf],
    ids=lambda value: f"{type(value).__name__}",
)
def test_values_that_no_row_should_have(name: str, value: Any) -> None:
    """A function of a user may return anything."""
    format_ = FORMATS[name]
    try:
        payload = format_.encode({"value": value})
    except PayloadError:
        return
    with contextlib.suppress(PayloadError) if value is HUGE else contextlib.nullcontext():
        format_.decode(payload)


@every
def test_a_loop_of_values_is_refused(name: str) -> None:
    loop: dict[str, Any] = {}
    loop["value"] = [loop]
    with pytest.raises(PayloadError):
        FORMATS[name].encode(loop)


@every
def test_what_is_too_long_is_refused(name: str) -> None:
    with pytest.raises(PayloadError, match=r"bytes; (at most|its fields take)|not a number"):
        FORMATS[name].decode(b"1" * (PAYLOAD_BYTES_MAX + 1))


def nested(name: str, levels: int) -> bytes:
    """Lists in each other, the innermost one empty."""
    return {
        "json": b"[" * levels + b"]" * levels,
        "cbor": b"\x81" * (levels - 1) + b"\x80",
        "msgpack": b"\x91" * (levels - 1) + b"\x90",
    }[name]


@pytest.mark.parametrize("name", ["json", "cbor", "msgpack"])
def test_what_is_too_deep_is_refused_with_the_same_words_on_every_stack(name: str) -> None:
    format_ = FORMATS[name]
    found = format_.decode(nested(name, DEPTH_MAX - 1))
    assert same(format_.decode(format_.encode(found)), found)
    for levels in (DEPTH_MAX, DEPTH_MAX + 2, 200, 990, 5_000, 200_000):
        reasons = {_reason(format_, nested(name, levels), stack) for stack in (0, 300)}
        assert len(reasons) == 1
        assert re.search("deep|depth|bytes; at most", reasons.pop())


def _reason(format_: Format, payload: bytes, stack: int) -> str:
    if stack:
        return _reason(format_, payload, stack - 1)
    with pytest.raises(PayloadError) as caught:
        format_.decode(payload)
    return str(caught.value)


@every
def test_rows_with_other_fields_are_written_whole_or_refused(name: str) -> None:
    values = {"value": "1", "more": 1}
    if name in ("json", "cbor", "msgpack"):
        assert FORMATS[name].decode(FORMATS[name].encode(values)) == values
        return
    with pytest.raises(PayloadError, match=r"more|missing"):
        FORMATS[name].encode(values)
