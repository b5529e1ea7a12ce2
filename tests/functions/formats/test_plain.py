"""Numbers, text and bytes as payloads."""

from __future__ import annotations

import math

import pytest

from weft.functions.contract import PayloadError
from weft.functions.formats import BytesFormat, NumberFormat, TextFormat

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
