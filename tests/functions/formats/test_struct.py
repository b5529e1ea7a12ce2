"""Payloads that are a row of bytes."""

from __future__ import annotations

import math
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.functions.settings import STRUCT_FIELDS_MAX, StructField
from weft.functions.contract import PayloadError
from weft.functions.formats import StructFormat


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


@given(
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
