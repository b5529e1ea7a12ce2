"""CBOR: the examples of the specification, and what a stranger may send instead."""

from __future__ import annotations

import math
import re

import cbor2
import pytest

from tests.functions.formats.rfc8949 import EXAMPLES, REFUSED
from tests.functions.formats.values import fields, same
from tests.support.examples import given
from weft.functions.cbor_format import CborFormat
from weft.functions.contract import PayloadError
from weft.functions.formats import DEPTH_MAX, QUICK_BYTES_MAX

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
