"""What every format promises: the way back, nothing but PayloadError, and the same bytes for the same values."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import cbor2
import msgspec
import pytest
from hypothesis import example
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from tests.functions.values import EXAMPLES, REFUSED, fields, same
from tests.support.examples import given
from tests.support.steps import quickest_s, worked_s
from weft.config.functions.settings import STRUCT_FIELDS_MAX, Payload, PayloadFormat, StructField
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.functions.cbor_format import CborFormat
from weft.functions.chain import Chain, Outputs
from weft.functions.contract import Format, PayloadError, Row
from weft.functions.formats import (
    DEPTH_MAX,
    PAYLOAD_BYTES_MAX,
    QUICK_BYTES_MAX,
    BytesFormat,
    JsonFormat,
    MsgpackFormat,
    NumberFormat,
    StructFormat,
    TextFormat,
)
from weft.functions.registry import decoding_of, format_of
from weft.functions.sparkplug_payloads import Payload as SparkplugMessage

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


# --- CBOR: the examples of the specification, and what a stranger may send instead


CBOR = CborFormat()


@pytest.mark.parametrize(("item", "value"), EXAMPLES.items(), ids=EXAMPLES)
def test_examples_of_the_specification(item: str, value: object) -> None:
    """RFC 8949, appendix A"""
    payload = bytes.fromhex(item)
    if value is REFUSED:
        with pytest.raises(PayloadError):
            CBOR.decode(payload)
        return
    expected = value if isinstance(value, dict) else {"value": value}
    assert same(CBOR.decode(payload), expected)
    # The same item as a field, and beside another one.
    assert same(CBOR.decode(b"\xa2\x61x" + payload + b"\x61y\x05"), {"x": value, "y": 5})


@given(fields())
def test_another_library_reads_what_is_written(values: dict[str, object]) -> None:
    assert same(cbor2.loads(CBOR.encode(values)), values)


def test_a_payload_that_ends_early() -> None:
    payload = bytes.fromhex("a36161016162820203616340")
    assert CBOR.decode(payload) == {"a": 1, "b": [2, 3], "c": b""}
    for cut in range(len(payload)):
        with pytest.raises(PayloadError, match="premature end"):
            CBOR.decode(payload[:cut])


REFUSED_ITEMS = {
    "more than an item": ("0101", "after an item of CBOR of 1 bytes there are 1 more"),
    "two equal names": ("a2616101616102", "Duplicate map key"),
    "a number and its text as names": ("a2016131613102", "once as a number and once as text"),
    "a list as a name": ("a18001", "name of a field is of the type tuple"),
    "a map as a name": ("a1a000", "name of a field is of the type"),
    "bytes as a name": ("a1416101", "name of a field is of the type bytes"),
    "a float as a name": ("a1f93c0001", "name of a field is of the type float"),
    "text that is not UTF-8": ("61ff", "text string"),
    "text whose parts are not UTF-8": ("7f61c361a9ff", "text string"),
    "bytes in text": ("7f61614161ff", "text string"),
    "a length without content": ("9b7fffffffffffffff", "premature end"),
    "a map without content": ("bb7fffffffffffffff", "premature end"),
    "bytes without content": ("5b7fffffffffffffff", "premature end"),
    "text without content": ("7bffffffffffffffff", "premature end"),
    "a reserved length": ("1c", "unknown unsigned integer subtype"),
    "an end without a beginning": ("ff", "break"),
    "a shared value": ("d81c81d81d00", "tag 25 or 29"),
    "a text by number": ("d90100826161d81900", "tag 25 or 29"),
    "a decimal beyond all memory": ("c4821b7fffffffffffffff01", "too large for a number"),
    "a bigfloat beyond all memory": ("c5821b7fffffffffffffff01", "too large for a number"),
    "a decimal of three": ("c483010203", "not a pair of integers"),
    "a decimal of floats": ("c482f93c0001", "not a pair of integers"),
    "a decimal of a decimal": ("c48201c4820101", "not a pair of integers"),
    "a bignum that is no bytes": ("c201", "at most 1785 bytes"),
    "a bignum without end": ("c25906fa" + "ff" * 1786, "at most 1785 bytes"),
}


@pytest.mark.parametrize(("item", "reason"), REFUSED_ITEMS.values(), ids=REFUSED_ITEMS)
def test_items_that_are_refused(item: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=re.escape(reason)):
        CBOR.decode(bytes.fromhex(item))


def test_tags_stand_for_what_is_inside() -> None:
    """No regular expression is compiled, no e-mail parsed, no set made."""
    for tag in ("d823", "d824", "d9010a", "d9d9f7", "d81c", "d9ffff"):
        assert CBOR.decode(bytes.fromhex(tag + "6128")) == {"value": "("}
    assert CBOR.decode(bytes.fromhex("d9010282c1011a00000002")) == {"value": [1, 2]}
    assert CBOR.decode(bytes.fromhex("d81e820102")) == {"value": [1, 2]}
    assert CBOR.decode(bytes.fromhex("c48221196ab3")) == {"value": 273.15}
    assert CBOR.decode(bytes.fromhex("c5822003")) == {"value": 1.5}
    assert CBOR.decode(bytes.fromhex("c4823b7fffffffffffffff01")) == {"value": 0.0}


def test_readings_of_senml() -> None:
    """RFC 8428 section 6: names of fields are integers"""
    payload = bytes.fromhex("81a4006474656d70") + bytes.fromhex("016343656c") + b"\x02\xf9\x4d\x80" + b"\x06\x01"
    assert CBOR.decode(payload) == {"value": [{"0": "temp", "1": "Cel", "2": 22.0, "6": 1}]}


def test_long_payloads_have_text_as_names() -> None:
    """Names that are lists can be made to collide; in a long payload that would take seconds."""
    padding = "x" * QUICK_BYTES_MAX
    assert CBOR.decode(cbor2.dumps({"1": {"2": 3}, "p": padding}))["1"] == {"2": 3}
    for names in ((1, 2), 5, 1.5):
        with pytest.raises(PayloadError, match="map key must be a text string"):
            CBOR.decode(cbor2.dumps({"p": padding, "inside": {names: 1}}))


def test_values_deeper_than_the_stack_are_refused() -> None:
    """cbor2 itself ends the process."""
    values: dict[str, object] = {"end": 1}
    for _ in range(100_000):
        values = {"in": values}
    with pytest.raises(PayloadError, match=f"more than {DEPTH_MAX} deep"):
        CBOR.encode(values)
    while "in" in values:  # A hundred thousand frames deep otherwise, when it is freed.
        values = values["in"]  # type: ignore[assignment]


def test_not_a_number_stays_one() -> None:
    found = CBOR.decode(CBOR.encode({"a": math.nan, "b": -math.inf}))
    assert math.isnan(found["a"])
    assert found["b"] == -math.inf


# --- JSON as payload: what is taken, and what becomes of values that it has not


JSON = JsonFormat()


@given(fields(binary=False, nan=False))
def test_another_library_reads_json_that_is_written(values: dict[str, object]) -> None:
    assert same(json.loads(JSON.encode(values)), values)


def test_a_value_that_is_no_object_is_the_field_value() -> None:
    assert JSON.decode(b" 21.5\n") == {"value": 21.5}
    assert JSON.decode(b'["a",null]') == {"value": ["a", None]}
    assert JSON.decode(b'{"value":{"a":1}}') == {"value": {"a": 1}}


def test_of_two_equal_names_the_last_one_counts() -> None:
    assert JSON.decode(b'{"a":1,"b":{"c":1,"c":2},"a":2}') == {"a": 2, "b": {"c": 2}}


def test_values_that_json_has_not() -> None:
    assert (
        JSON.encode({"raw": b"\x00\xff", "nan": math.nan, "far": math.inf}) == b'{"raw":"AP8=","nan":null,"far":null}'
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1} x',
        b"{'a':1}",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"01",
        b"+1",
        b'"\xff"',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b'{"a":1,}',
        b"\x00",
        b"1" * 5_000,
        b"[" * 5_000 + b"x",
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_what_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        JSON.decode(payload)


def test_brackets_in_texts_are_no_depth() -> None:
    payload = b'{"a":"%s","b":"\\"[[[","c":[1]}' % (b"[{" * 500)
    assert JSON.decode(payload)["c"] == [1]


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1])
@pytest.mark.parametrize("inner", [(b"[", b"]"), (b'{"":', b"}")], ids=["lists", "objects"])
@pytest.mark.parametrize("before", [0, 30, 300])
def test_the_same_depth_is_refused_wherever_it_is(depth: int, inner: tuple[bytes, bytes], before: int) -> None:
    """Also in a field that no function reads, which is not made into objects."""
    opening, closing = inner
    payload = b'{"a":"%s","b":' % (b"a" * before) + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"
    for decode in (JSON.decode, JSON.decoder(frozenset({("a",)}))):
        if depth <= DEPTH_MAX:
            assert decode(payload)["a"] == "a" * before
        else:
            with pytest.raises(PayloadError, match="deep"):
                decode(payload)


@pytest.mark.parametrize("payload", [b'"' + b"a" * 200_000, b'"\\' * 100_000, b'["' * 100_000, b'[""' * 60_000])
def test_texts_without_end_take_one_pass(payload: bytes) -> None:
    """A pattern that tried all ways to cut the text would take until the sun is cold; the test's time limit ends it."""
    with pytest.raises(PayloadError):
        JSON.decode(b"[" * 40 + payload)


# --- MessagePack: types that are not those of fields, and keys that collide


MSGPACK = MsgpackFormat()
PADDING = b"\xda\x20\x00" + b"p" * 8_192
"""A text that makes a payload a long one."""


def both(item: bytes) -> list[bytes]:
    """A payload with an item, short and long."""
    assert len(PADDING) > QUICK_BYTES_MAX
    return [b"\x92\xa0" + item, b"\x92" + PADDING + item]


def test_names_that_are_integers_become_text() -> None:
    for payload in both(b"\x82\x01\xa1a\xff\x81\x05\xc0"):
        assert MSGPACK.decode(payload)["value"][1] == {"1": "a", "-1": {"5": None}}


def test_timestamps_become_seconds() -> None:
    moment = datetime(2026, 11, 21, 10, 0, 0, 250_000, UTC)
    for payload in both(msgspec.msgpack.encode(moment)):
        assert MSGPACK.decode(payload)["value"][1] == moment.timestamp()


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b"\xd4\x05\x01", "extension type 5"),
        (b"\xc7\x00\x05", "extension type 5"),
        (b"\x81\x91\x01\x01", ""),
        (b"\x81\x90\x01", ""),
        (b"\x81\xc4\x01a\x01", ""),
        (b"\x81\xc0\x01", ""),
        (b"\x81\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\x01", ""),
        (b"\x81\x80\x01", ""),
        (b"\x81\xd6\xff\x00\x00\x00\x01\x01", ""),
        (b"\x82\x01\x01\xa11\x02", "once as a number and once as text"),
        (b"\xc1", "not MessagePack"),
        (b"\xa1\xff", "not MessagePack"),
        (b"\x01\x01", "not MessagePack"),
        (b"\xdd\x7f\xff\xff\xff", "not MessagePack"),
        (b"\xdf\x7f\xff\xff\xff", "not MessagePack"),
        (b"\xc6\x7f\xff\xff\xff", "not MessagePack"),
        (b"\xd7\xff" + b"\xff" * 8, "not MessagePack"),
        (b"\xc7\x0c\xff\0\0\0\0" + b"\x7f" * 8, "not MessagePack"),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else "",
)
def test_items_of_msgpack_that_are_refused(item: bytes, reason: str) -> None:
    for payload in both(item):
        with pytest.raises(PayloadError) as caught:
            MSGPACK.decode(payload)
        assert reason in str(caught.value) or len(payload) > QUICK_BYTES_MAX


def test_short_and_long_payloads_are_read_alike() -> None:
    value = {"a": [1, -1, 2.5, "text", b"\x00", None, True, {"b": [], "c": {}}], "d": {"e": [[{"f": 1}]]}}
    item = msgspec.msgpack.encode(value)
    for payload in both(item):
        assert same(MSGPACK.decode(payload)["value"][1], value)


WORD = (1 << 64) - 1


def _mixed(state: int, lane: int) -> int:
    """A step of Python's hash of tuples (xxHash)."""
    state = (state + lane * 14_029_467_366_897_019_727) & WORD
    return (state << 31 | state >> 33) * 11_400_714_785_074_694_791 & WORD


def colliding(count: int) -> list[tuple[int, int]]:
    """Pairs with one hash. The hash mixes the first integer before it adds the second, so that can make up for it."""
    inverse = pow(14_029_467_366_897_019_727, -1, 1 << 64)
    keys: list[tuple[int, int]] = []
    first = 0
    while len(keys) < count:
        first += 1
        second = (5 - _mixed(2_870_177_450_012_600_261, first)) * inverse & WORD
        if second < (1 << 61) - 1:  # an integer that is its own hash
            keys.append((first, second))
    assert len(set(map(hash, keys))) == 1
    return keys


@pytest.mark.parametrize(("count", "reason"), [(250, "type tuple"), (12_000, "not MessagePack")])
def test_keys_that_collide_take_no_time(count: int, reason: str) -> None:
    """In a dictionary, 12,000 of them take seconds."""
    # Without the dictionary that would take as long here.
    payload = b"\xde" + count.to_bytes(2) + b"".join(msgspec.msgpack.encode(key) + b"\0" for key in colliding(count))
    assert (len(payload) > QUICK_BYTES_MAX) == (count > 250)
    assert len(payload) < PAYLOAD_BYTES_MAX

    def refuse() -> None:
        with pytest.raises(PayloadError, match=reason):
            MSGPACK.decode(payload)

    assert quickest_s(lambda: worked_s(refuse), 0.05) <= 0.05


def _at_depth(frames: int, payload: bytes) -> str:
    """Why a payload is refused, with so many more calls on the stack."""
    if frames:
        return _at_depth(frames - 1, payload)
    with pytest.raises(PayloadError) as caught:
        MSGPACK.decode(payload)
    return str(caught.value)


@pytest.mark.parametrize("tail", [b"\x01", b"\xdc\xea\x60" + b"\xa3abc" * 60_000], ids=["short", "long"])
@pytest.mark.parametrize("depth", [40, 520, 700, 900, 1_100])
def test_the_reason_is_the_same_wherever_a_deep_payload_is_decoded(depth: int, tail: bytes) -> None:
    """Reasons are in the stream of errors, which is the same after a restart."""
    payload = b"\x91" * depth + tail
    assert len({_at_depth(frames, payload) for frames in (0, 100, 300, 500)}) == 1


# --- Numbers, text and bytes as payloads


NUMBER = NumberFormat()


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"21.5", 21.5),
        (b"42", 42),
        (b" -3\r\n", -3),
        (b"1e3", 1000.0),
        (b"+5", 5),
        (b"007", 7),
        (b".5", 0.5),
        (b"5.", 5.0),
        (b"-0", 0),
        (b"+1.5E-3", 0.0015),
        (b"\t-.25 ", -0.25),
        (b"12345678901234567890123", 12345678901234567890123),
    ],
)
def test_numbers_as_devices_write_them(payload: bytes, value: float) -> None:
    found = NUMBER.decode(payload)["value"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"nan",
        b"NaN",
        b"inf",
        b"-Infinity",
        b"1e999",
        b"21,5",
        b"1 2",
        b"0x10",
        b"1_000",
        b"true",
        b"null",
        b'"5"',
        b"[5]",
        "٣".encode(),
        b"21.5 C",
        b"--5",
        b"\xff",
        b"1" * 65,
        b"." * 60,
        b"+1e999",
    ],
)
def test_what_is_no_number_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError, match=r"not a number such as 21\.5|too large for a double"):
        NUMBER.decode(payload)


@pytest.mark.parametrize("value", ["5", True, None, math.nan, math.inf, 10**70, b"5", [5]])
def test_what_is_no_number_is_not_written(value: object) -> None:
    with pytest.raises(PayloadError, match="its field `value`"):
        NUMBER.encode({"value": value})


def test_text_is_utf_8() -> None:
    assert TextFormat().decode("zu heiß".encode()) == {"value": "zu heiß"}
    for payload, where in ((b"a\xff", "byte 1"), (b"\xed\xa0\x80", "byte 0"), (b"\xc3", "byte 0")):
        with pytest.raises(PayloadError, match=rf"not UTF-8: .* at {where}"):
            TextFormat().decode(payload)


def test_a_row_with_other_fields_is_refused_by_name() -> None:
    for format_ in (NUMBER, TextFormat(), BytesFormat()):
        with pytest.raises(PayloadError, match=r"only the field `value`; this row has `a`, `value`"):
            format_.encode({"a": 1, "value": 5})
        with pytest.raises(PayloadError, match=r"this row has no fields"):
            format_.encode({})


# --- Payloads that are a row of bytes


def field(name: str, type_: str, scale: float = 1.0, offset: float = 0.0) -> StructField:
    return StructField(name=name, type_=type_, scale=scale, offset=offset)


SENSOR = [
    field("serial", "bytes[4]"),
    field("temperature", "i16", 0.01),
    field("humidity", "u8", 0.5),
    field("battery", "u16", 0.001, 1.5),
    StructField(type_="skip[2]"),
    field("label", "text[6]"),
    field("alarm", "bool"),
]


@pytest.mark.parametrize(("byte_order", "sign"), [("big", ">"), ("little", "<")])
def test_a_packet_of_a_sensor(byte_order: str, sign: str) -> None:
    packet = struct.pack(f"{sign}4shBH2x6s?", b"\x01\x02\x03\x04", -512, 101, 1_800, "Öl".encode(), True)
    found = StructFormat(byte_order, SENSOR)  # type: ignore[arg-type]
    values = found.decode(packet)
    assert values == {
        "serial": b"\x01\x02\x03\x04",
        "temperature": pytest.approx(-5.12),
        "humidity": 50.5,
        "battery": pytest.approx(3.3),
        "label": "Öl",
        "alarm": True,
    }
    assert found.encode(values) == packet
    for wrong in (b"", packet[:-1], packet + b"\0"):
        with pytest.raises(PayloadError, match=f"it has {len(wrong)} bytes; its fields take 18"):
            found.decode(wrong)


@hypothesis_given(
    st.sampled_from(["i8", "i16", "i32", "u8", "u16", "u32"]),
    st.floats(1e-9, 1e9) | st.floats(-1e9, -1e-9),
    st.floats(-1e4, 1e4),
    st.data(),
)
def test_scaled_integers_come_back(type_: str, scale: float, steps: float, data: st.DataObject) -> None:
    """Property: every integer, for every scale and offset that a configuration may have."""
    bits = int(type_[1:])
    least, most = (0, 2**bits - 1) if type_[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    number = data.draw(st.sampled_from([least, most]) | st.integers(least, most))
    found = StructFormat("big", [field("a", type_, scale, steps * scale)])
    packet = number.to_bytes(bits // 8, "big", signed=type_[0] == "i")
    assert found.encode(found.decode(packet)) == packet


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "a struct has no fields"),
        ([field("", "i16")], "a field of the type i16 has no name"),
        ([field("a", "i16"), field("a", "u8")], "two fields are called a"),
        ([field("a", "u64", 0.001)], "use `set`"),
        ([field("a", "u32", 1e-9, 1e9)], "steps would be lost"),
        ([field("a", "u32", 1e305)], "steps would be lost"),
        ([field("a", "i16", 0.0)], "scale not 0"),
        ([field("a", "i16", math.inf)], "have to be finite"),
        ([field("a", "bool", 2.0)], "neither scale nor offset"),
        ([field("a", "text[4]", 1.0, 1.0)], "neither scale nor offset"),
        ([field("a", "bytes[65536]")], "at most 65536 are possible"),
        ([field(f"a{number}", "bytes[9999]") for number in range(STRUCT_FIELDS_MAX)], "at most 65536 are possible"),
    ],
)
def test_fields_that_contradict_each_other(fields: list[StructField], reason: str) -> None:
    if fields and fields[0].type_ == "bytes[65536]":
        fields.append(field("b", "u8"))
    with pytest.raises(ValueError, match=re.escape(reason)):
        StructFormat("big", fields)


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("i16", 2.5, "is 2.5; give it a scale, or use round()"),
        ("i16", 40_000, "do not fit"),
        ("u8", -1, "do not fit"),
        ("i16", math.nan, "has to be finite"),
        ("i16", 10**400, "do not fit"),
        ("i16", True, "of the type bool; expected a number"),
        ("i16", "5", "of the type str; expected a number"),
        ("f32", 1e300, "do not fit"),
        ("f16", 1e6, "do not fit"),
        ("f64", 10**400, "do not fit"),
        ("f64", None, "of the type NoneType; expected a number"),
        ("bool", 1, "of the type int; expected true or false"),
        ("text[2]", "abc", "takes 3 bytes of UTF-8; it has 2"),
        ("text[2]", "\ud800", "has no UTF-8"),
        ("text[2]", b"ab", "expected text"),
        ("bytes[2]", b"abc", "has 3 bytes; it takes exactly 2"),
        ("bytes[2]", "ab", "expected bytes"),
    ],
)
def test_values_that_do_not_fit(type_: str, value: object, reason: str) -> None:
    with pytest.raises(PayloadError, match=re.escape(reason)):
        StructFormat("big", [field("a", type_)]).encode({"a": value})


def test_a_row_has_all_fields_and_no_other() -> None:
    found = StructFormat("big", [field("a", "u8"), field("b", "u8")])
    assert found.encode({"b": 2, "a": 1.0}) == b"\1\2"
    with pytest.raises(PayloadError, match="field `b` is missing"):
        found.encode({"a": 1})
    with pytest.raises(PayloadError, match="no field `c`: leave it out with `select`"):
        found.encode({"a": 1, "b": 2, "c": 3})


def test_text_that_is_not_utf_8_is_refused_by_name() -> None:
    with pytest.raises(PayloadError, match=r"its field `a` is not UTF-8: .* at byte 1"):
        StructFormat("big", [field("a", "text[3]")]).decode(b"x\xff\0")


# --- The format of a stream from its settings


FIELDS = (StructField(name="a", type_="u8"),)


@pytest.mark.parametrize("name", get_args(PayloadFormat))
def test_every_format_of_the_configuration_is_there(name: Any) -> None:
    settings = Payload(format=name, fields=FIELDS if name == "struct" else ())
    value: Any = {"number": 5, "text": "x", "bytes": b"x"}.get(name, 7)
    field = "a" if name == "struct" else "value"
    format_ = format_of(settings)
    assert format_.decode(format_.encode({field: value})) == {field: value}


def test_a_struct_that_cannot_work_says_why() -> None:
    with pytest.raises(ValueError, match="two fields are called a"):
        format_of(Payload(format="struct", fields=FIELDS * 2))


def test_the_byte_order_of_a_struct() -> None:
    fields = (StructField(name="a", type_="u16"),)
    assert format_of(Payload(format="struct", fields=fields, byte_order="big")).decode(b"\0\1") == {"a": 1}
    assert format_of(Payload(format="struct", fields=fields)).decode(b"\0\1") == {"a": 256}


def test_without_the_library_of_sparkplug_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = None\n"
        "from weft.config.functions.settings import Payload\n"
        "from weft.functions.registry import format_of\n"
        "try: format_of(Payload(format='sparkplug'))\n"
        "except ValueError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'weft-fabric[sparkplug]'" in found.stdout


def test_libraries_are_loaded_only_where_a_stream_needs_them() -> None:
    code = (
        "import sys\n"
        "from weft.config.functions.settings import Payload\n"
        "from weft.functions.registry import format_of\n"
        "for name in ('json', 'msgpack', 'number', 'text', 'bytes'): format_of(Payload(format=name))\n"
        "print(sorted({'cbor2', 'google.protobuf'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_a_chain_of_sparkplug_decodes_in_its_first_function() -> None:
    decoding = decoding_of(Payload(format="sparkplug"))
    assert decoding.first is not None
    chain = Chain([("births", decoding.first)], decoding.format, format_of(Payload(format="json")))
    birth = {"name": "temperature", "alias": 1, "datatype": 10, "double_value": 20.5}
    rows = [
        Row(1, topic, SparkplugMessage(metrics=[metric]).SerializeToString(), {})
        for topic, metric in (
            (b"spBv1.0/g/NDATA/n", {"alias": 1, "double_value": 21.5}),
            (b"spBv1.0/g/NBIRTH/n", birth),
            (b"spBv1.0/g/NDATA/n", {"alias": 1, "double_value": 22.5}),
        )
    ]
    out = Outputs()
    await chain.process(rows, out)
    assert [row.values for row in out.rows] == [{"temperature": 20.5}, {"temperature": 22.5}]
    assert ["birth that names it" in each.reason for each in out.rejected] == [True]
    assert decoding_of(Payload(format="cbor")).first is None


# --- Payloads on the page of formats become the fields that the page says


PAGE = Path(__file__).parents[2] / "docs/functions/formats.md"
_CONFIG = re.compile(r"<!-- config: edge -->\s*\n```yaml\n(.*?)```", re.DOTALL)
_PAYLOADS = re.compile(r"<!-- payloads: (\S+) -->\s*\n```text\n(.*?)```", re.DOTALL)


def examples() -> list[Any]:
    text = PAGE.read_text()
    streams: dict[str, Stream] = {}
    for found in _CONFIG.finditer(text):
        streams |= parse(found[1], str(PAGE), EdgeConfig).config.streams
    return [
        pytest.param(streams[block[1]].payload, *line.split("->"), id=f"{block[1]}-{at}")
        for block in _PAYLOADS.finditer(text)
        for at, line in enumerate(block[2].splitlines())
    ]


@pytest.mark.parametrize(("settings", "given", "said"), examples())
def test_the_example_does_what_the_page_says(settings: Any, given: str, said: str) -> None:
    format_ = format_of(settings)
    payload = ast.literal_eval(given.strip()).encode() if '"' in given else bytes.fromhex(given)
    if not said.strip().startswith("{"):
        with pytest.raises(PayloadError, match=f"^{re.escape(said.strip())}$"):
            format_.decode(payload)
        return
    values = format_.decode(payload)
    assert msgspec.json.decode(msgspec.json.encode(values)) == msgspec.json.decode(said)
    assert format_.decode(format_.encode(values)) == values


def test_there_are_examples_of_each_kind() -> None:
    assert len(examples()) > 8
