"""JSON as payload: what is taken, and what becomes of values that it has not."""

from __future__ import annotations

import json
import math

import pytest

from tests.functions.formats.values import fields, same
from tests.support.examples import given
from weft.functions.contract import PayloadError
from weft.functions.formats import DEPTH_MAX, JsonFormat

JSON = JsonFormat()


@given(fields(binary=False, nan=False))
def test_another_library_reads_what_is_written(values: dict[str, object]) -> None:
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
