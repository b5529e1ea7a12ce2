"""Checks of single payloads: within a step of the loop for any payload, and without what an edge does not have."""

from __future__ import annotations

from functools import partial
from typing import Any

import cbor2
import pytest

from tests.support.speed import slowness
from tests.support.steps import STEP_S_MAX, quickest_s, worked_s
from weft.config.load import parse_schema
from weft.storage.payloads.check import CHECKED_BYTES_MAX, PayloadCheck


def of(fields: dict[str, Any], **more: Any) -> PayloadCheck:
    return PayloadCheck(parse_schema({"fields": fields, **more}))


def filled(head: bytes, item: bytes, tail: bytes) -> bytes:
    return head + item * ((CHECKED_BYTES_MAX - len(head) - len(tail)) // len(item)) + tail


def test_reasons_are_those_of_tables() -> None:
    check = of({"t": "float", "n": {"type": "int", "required": True}, "rpm": {"type": "int", "from": "motor[1].rpm"}})
    assert check.misfits(b'{"t": 1, "n": 2.0, "motor": [null, {"rpm": 9}]}') == []
    assert check.misfits(b'{"n": 1, "motor": [{"rpm": "x"}]}') == []
    assert dict(check.misfits(b'{"t": "hot", "motor": [{}, {"rpm": 1.5}]}')) == {
        "t": 'expected a number of 64 bits, got "hot"',
        "n": "required, and missing",
        "rpm": "expected a whole number of 64 bits, got 1.5",
    }
    assert check.misfits(b"") == [("payload", "it is empty")]
    assert check.misfits(b"null") == [("n", "required, and missing")]
    assert check.misfits(b" " * (1 << 21)) == [("payload", "it has 2097152 bytes; at most 1048576 are decoded")]


def test_a_payload_may_be_the_field_itself() -> None:
    check = of({"v": {"type": "float", "from": "$", "required": True}})
    assert check.misfits(b"21.5") == []
    assert check.misfits(b"null") == [("v", "required, and missing")]
    assert check.misfits(b'"x"') == [("v", 'expected a number of 64 bits, got "x"')]


@pytest.mark.parametrize(
    ("form", "payload"),
    [
        *(("json", filled(b'{"a":[', item, b'"x"]}')) for item in (b"1,", b"1e1,", b'"1",', b'"20200101",', b"null,")),
        ("json", filled(b'{"a":[', b"[],", b"1]}")),
        ("json", filled(b'{"a":', b"[", b"")),
        ("json", filled(b"{", b'"a":1,', b'"a":"x"}')),
        ("msgpack", filled(b"\x81\xa1a\xdc\x7f\xf8", b"\x01", b"")),
        ("msgpack", filled(b"\x81\xa1a\xdc\x7f\xf8", b"\x90", b"")),
        ("cbor", cbor2.dumps({"a": [1] * (CHECKED_BYTES_MAX - 8)})),
        ("cbor", cbor2.dumps({"a": [cbor2.CBORTag(1, 1)] * (CHECKED_BYTES_MAX // 2 - 8)})),
    ],
)
def test_no_payload_takes_longer_than_a_step(form: str, payload: bytes) -> None:
    assert CHECKED_BYTES_MAX - 16 < len(payload) <= CHECKED_BYTES_MAX
    took = {}
    for kind in ("int", "decimal(10,2)", "timestamp(ms)" if form != "json" else "timestamp"):
        check = of({"a": f"array<{kind}>", "b": {"type": kind, "from": "a[1]"}}, format=form)
        took[kind] = quickest_s(partial(worked_s, partial(check.misfits, payload)), STEP_S_MAX) / slowness()
    assert max(took.values()) < STEP_S_MAX, took
