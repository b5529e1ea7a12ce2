"""Trace contexts: the valid and the invalid, by the sections of W3C Trace Context."""

from __future__ import annotations

import pytest

from weft.network.tracing import TraceContext, found_in, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (VALID, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),  # 3.2.2.5: other bits do not count
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),  # 3.2.4: a later version
        (f" {VALID} ", True),
        (VALID.encode(), True),  # AMQP clients may send text as bytes
    ],
)
def test_a_valid_context_is_read(value: str | bytes, is_sampled: bool) -> None:
    assert parse(value) == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        VALID[:-1],
        VALID + "0",
        VALID + "-more",
        VALID.upper(),
        VALID.replace("-", "_"),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"cc-{TRACE}-{SPAN}-01more",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
        VALID + "\n" + VALID,
        "\u0660" * 55,
        b"\xff" * 55,
        None,
        7,
        True,
    ],
)
def test_what_is_not_valid_is_no_context(value: str | bytes | int | None) -> None:
    assert parse(value) is None
    assert found_in([("other", VALID), ("traceparent", value)]) is None


def test_a_context_is_written_as_it_is_read() -> None:
    assert str(parse(VALID)) == VALID
    assert str(TraceContext(1, 2, is_sampled=False)) == f"00-{1:032x}-{2:016x}-00"
    assert found_in([("a", 1), ("traceparent", VALID), ("traceparent", "later")]) == parse(VALID)
