"""Messages of AMQP 1.0: what Proton makes of ours, what we make of Proton's, and what is no message."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.protocols import amqp1
from weft.protocols.amqp.typed_values import (
    Char,
    Float32,
    Int8,
    Int16,
    Int32,
    Milliseconds,
    Opaque,
    Symbol,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    as_header,
    from_header,
)
from weft.protocols.amqp1 import (
    DATA,
    Body,
    Described,
    Message,
    Properties,
    decode,
    decode_message,
    described,
    encode,
    encode_message,
    split_message,
)
from weft.protocols.errors import Corrupt

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SIMPLE = (
    st.none()
    | st.booleans()
    | INT64
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | INT64.map(Milliseconds)
    | st.text("abc-:").map(Symbol)
    | st.sampled_from(
        [
            Int8(-1),
            UInt8(255),
            Int16(-300),
            UInt16(65_535),
            Int32(5),
            UInt32(5),
            UInt64(1 << 63),
            Float32(0.5),
            Char("é"),
        ]
    )
)
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text() | INT64, inner), max_leaves=8)


@given(VALUES)
@settings(max_examples=40)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    data = encode(value)
    found, end = decode(data)
    assert (found, type(found), end) == (value, type(value), len(data))


@given(VALUES | st.floats())
@settings(max_examples=100)
def test_a_value_keeps_its_type_in_a_header(value: Any) -> None:
    if any(not isinstance(key, str) for key in keys_in(value)):
        return  # JSON has no such names: the mapping of messages keeps those as they were encoded
    plain, kind = as_header(value)
    assert type(plain) in (type(None), str, bytes, int, float, bool)
    kind = json.loads(json.dumps(kind))
    assert encode(from_header(plain, kind)) == encode(value)


def keys_in(value: Any) -> list[Any]:
    """Names in a value, at any depth."""
    if isinstance(value, dict):
        return [*value, *(key for each in value.values() for key in keys_in(each))]
    return [key for each in value for key in keys_in(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("code", "data", "text"),
    [
        (0x74, "320004d2", "123.4"),
        (0x74, "b2000001", "-0.1"),
        (0x74, "6c78967f", "99999.99"),
        (0x84, "318000000000007b", "1.23"),
        (0x94, "3040" + 27 * "0" + "1", "1"),
        (0x74, "78000000", None),
    ],
)
def test_decimals_are_text_in_a_header(code: int, data: str, text: str | None) -> None:
    value = Opaque(code, bytes.fromhex(data))
    plain, kind = as_header(value)
    assert plain == (value.data if text is None else text)
    assert from_header(plain, kind) == value


@given(st.binary(max_size=200) | st.binary(max_size=40).map(lambda data: b"\0\x53\x73\xc0" + data))
@settings(max_examples=300)
def test_bytes_that_are_no_value_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for reader in (decode, decode_message):
        try:
            reader(data)
        except Corrupt:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"\xf0\0\0\0\x06\xff\xff\xff\xff\x40\x40",  # four billion nulls
        b"\xd0\0\0\0\x08\x7f\xff\xff\xff\0\0\0\0",  # a list of two billion values
        b"\0" * 1000,  # descriptors of descriptors
        b"\xc0\x02\x01" * 1000,
        b"\xb1\xff\xff\xff\xff",
        b"\xa1\x02\xff\xfe",
        b"\xc1\x04\x02\x45\x45",  # a map with a list as its key
    ],
)
def test_what_promises_more_than_it_has_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(data)


def test_data_sections_are_joined() -> None:
    data = b"".join(amqp1.described(0x75, encode(part)) for part in (b"one ", b"two ", b"three"))
    assert decode_message(data).body == Body("data", b"one two three")


@pytest.mark.parametrize(
    "data",
    [
        amqp1.described(0x75, encode(b"x")) + amqp1.described(0x77, encode("y")),
        amqp1.described(0x77, encode("x")) + amqp1.described(0x77, encode("y")),
        amqp1.described(0x79, encode("x")),
        amqp1.described(0x74, encode({1: "x"})),
        amqp1.described(0x73, encode([True])),
        encode("x"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_message(data)


@pytest.mark.parametrize(
    "body",
    [
        Body("data", b"x" * 300),
        Body("string", "grüße".encode() * 60),
        Body("binary", b"\0\xff"),
        Body("value", encode({"a": [1, Milliseconds(2), None]})),
        Body("sequence", amqp1.described(0x76, encode([1])) + amqp1.described(0x76, encode(["b"]))),
    ],
)
def test_a_body_comes_back_as_it_was(body: Body) -> None:
    assert decode_message(encode_message(Message(body=body))).body == body


WHOLE = st.builds(
    Message,
    durable=st.booleans(),
    priority=st.none() | st.integers(0, 9),
    annotations=st.dictionaries(st.text("abc-").map(Symbol), SIMPLE, max_size=2),
    properties=st.builds(Properties, subject=st.none() | st.text(max_size=300), message_id=st.none() | st.text()),
    application=st.dictionaries(st.text(), SIMPLE, max_size=2),
    body=st.builds(Body, st.sampled_from(["data", "binary"]), st.binary(max_size=300)),
    footer=st.dictionaries(st.text("abc-").map(Symbol), SIMPLE, max_size=1),
)


@given(WHOLE, st.binary(max_size=300))
@settings(max_examples=50)
def test_sections_before_a_body_say_the_same_whatever_the_payload_is(message: Message, payload: bytes) -> None:
    data = encode_message(message)
    parts = split_message(data)
    assert (parts is not None) == (message.body.kind == "data" and not message.footer)
    if parts is not None:
        assert parts[1] == message.body.payload
        other = parts[0] + described(DATA, encode(payload))
        assert split_message(other) == (parts[0], payload)
        assert decode_message(other) == msgspec.structs.replace(decode_message(data), body=Body("data", payload))


@pytest.mark.parametrize("end", range(40))
def test_a_message_that_is_cut_is_not_split(end: int) -> None:
    data = encode_message(Message(durable=True, properties=Properties(subject="s"), body=Body("data", b"x" * 9)))
    assert split_message(data) is not None
    assert split_message(data[: min(end, len(data) - 1)]) is None
    assert split_message(data + b"x") is None


def test_data_in_two_sections_is_not_split() -> None:
    assert split_message(2 * described(DATA, encode(b"x"))) is None


def test_proton_reads_what_we_write() -> None:
    proton = pytest.importorskip("proton")
    identifier = uuid.uuid4()
    ours = Message(
        durable=True,
        priority=7,
        ttl_ms=70_000,
        delivery_count=2,
        annotations={Symbol("x-opt-a"): 1},
        properties=Properties(
            message_id=identifier,
            to="a/b",
            subject="s",
            reply_to="r",
            correlation_id=5,
            content_type="text/plain",
            creation_time=1_700_000_000_123,
            group_id="g",
            group_sequence=3,
        ),
        application={"text": "t", "number": -5, "float": 0.5, "bytes": b"\0", "true": True, "nil": None},
        body=Body("data", b"payload"),
    )
    theirs = proton.Message()
    theirs.decode(encode_message(ours))
    assert (theirs.durable, theirs.priority, theirs.ttl, theirs.delivery_count) == (True, 7, 70, 2)
    assert (theirs.id, theirs.address, theirs.subject, theirs.reply_to) == (identifier, "a/b", "s", "r")
    assert (theirs.correlation_id, theirs.content_type, theirs.group_id, theirs.group_sequence) == (
        5,
        "text/plain",
        "g",
        3,
    )
    assert theirs.creation_time == 1_700_000_000.123
    assert theirs.annotations == {"x-opt-a": 1}
    assert theirs.properties == ours.application
    assert bytes(theirs.body) == b"payload"


def test_we_read_what_proton_writes() -> None:
    proton = pytest.importorskip("proton")
    theirs = proton.Message(
        body={"a": [1, 2.5, "x"]},
        id="m",
        user_id=b"ada",
        address="a/b",
        ttl=1.5,
        priority=3,
        durable=True,
        properties={"u": proton.ulong(1 << 63), "i": proton.int32(-3), "s": proton.symbol("y"), "c": proton.char("z")},
        annotations={proton.symbol("x-opt-t"): proton.timestamp(5)},
        expiry_time=2.0,
        creation_time=1.0,
    )
    ours = decode_message(theirs.encode())
    assert (ours.durable, ours.priority, ours.ttl_ms) == (True, 3, 1500)
    assert ours.properties == Properties(
        message_id="m", user_id=b"ada", to="a/b", absolute_expiry_time=2000, creation_time=1000
    )
    assert ours.application == {"u": 1 << 63, "i": -3, "s": "y", "c": "z"}
    assert ours.annotations == {"x-opt-t": 5}
    assert decode(ours.body.payload)[0] == {"a": [1, 2.5, "x"]}


def test_descriptors_may_be_names() -> None:
    data = b"\0" + encode(Symbol("amqp:data:binary")) + encode(b"x")
    assert decode_message(data).body == Body("data", b"x")
    assert decode(b"\0" + encode(Symbol("a")) + encode(1))[0] == Described("a", 1)
    assert decode(b"\x94" + bytes(16))[0] == Opaque(0x94, bytes(16))
