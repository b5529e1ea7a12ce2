from __future__ import annotations

from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocols.amqp.test_typed_values import TABLES
from weft.protocols.amqp.content import FIELDS_MAX, ContentHeaders, read_properties, write_properties
from weft.protocols.amqp.frames import AmqpError, ReplyCode
from weft.protocols.amqp.methods import write_table
from weft.protocols.amqp.typed_values import TYPES, Timestamp
from weft.protocols.message_headers import EXPIRES

ALL = pika.BasicProperties(
    content_type="application/json",
    content_encoding="gzip",
    headers={"a": 1, "b": "text"},
    delivery_mode=2,
    priority=5,
    correlation_id="c-1",
    reply_to="answers",
    expiration="60000",
    message_id="m-1",
    timestamp=1_700_000_000,
    type="alarm",
    user_id="guest",
    app_id="press",
    cluster_id="c",
)


def encoded(properties: pika.BasicProperties) -> bytes:
    return b"".join(properties.encode())


def with_headers(table: dict[str, Any]) -> bytes:
    return b"\x20\x00" + write_table(table)


def test_every_property_has_its_header_and_comes_back_as_it_was_sent() -> None:
    content = read_properties(encoded(ALL))
    assert dict(content.headers) == {
        "weft.content-type": "application/json",
        "weft.content-encoding": "gzip",
        "a": 1,
        "b": "text",
        "amqp.delivery-mode": 2,
        "weft.priority": 5,
        "weft.correlation-id": "c-1",
        "weft.reply-to": "answers",
        "amqp.expiration": "60000",
        "weft.message-id": "m-1",
        "weft.sent": 1_700_000_000_000_000_000,
        "weft.subject": "alarm",
        "weft.user-id": "guest",
        "amqp.app-id": "press",
        "amqp.cluster-id": "c",
    }
    assert (content.expires_ms, content.user_id) == (60_000, "guest")
    again = pika.BasicProperties()
    again.decode(write_properties(content.headers))
    assert again == ALL


def test_a_message_that_expires_has_the_time_at_which_it_does() -> None:
    content = read_properties(encoded(pika.BasicProperties(expiration="1500")))
    assert dict(content.at(10**18))[EXPIRES] == 10**18 + 1_500_000_000
    assert content.at(10**18)[:-1] == content.headers


def test_a_message_of_another_protocol_expires_in_what_is_left() -> None:
    again = pika.BasicProperties()
    again.decode(write_properties(((EXPIRES, 10**18 + 2_500_000_000),), 10**18))
    assert again.expiration == "2500"


@given(TABLES)
@example({"": Timestamp(240_779_520_000)})  # the year 9600
def test_headers_of_every_type_come_back_as_they_were_sent(table: dict[str, Any]) -> None:
    content = read_properties(with_headers(table))
    assert read_properties(write_properties(content.headers)) == content
    assert write_properties(content.headers) == (with_headers(table) if table else b"\0\0")


def test_what_a_header_of_a_record_cannot_be_is_text() -> None:
    table = {
        "price": Decimal("12.50"),
        "at": Timestamp(1_700_000_000),
        "late": Timestamp(1 << 50),
        "nested": {"raw": b"\xff", "list": [1, Decimal("0.5"), Timestamp(3)], "$odd": 1, "inf": float("inf")},
        "single": {"$odd": 1},
        "row": [True, None],
    }
    headers = dict(read_properties(with_headers(table)).headers)
    assert headers == {
        "price": "12.50",
        "at": "2023-11-14T22:13:20Z",
        "late": str(1 << 50),
        "nested": '{"raw":{"$bytes":"/w=="},"list":[1,{"$decimal":"0.5"},{"$timestamp":3}],"$odd":1,'
        '"inf":{"$float":"inf"}}',
        "single": '{"$$odd":1}',
        "row": "[true,null]",
        TYPES: '{"price":"D","at":"T","late":"T","nested":"F","single":"F","row":"A"}',
    }


def test_names_that_begin_like_those_of_weft_are_kept_apart() -> None:
    content = read_properties(with_headers({"weft.subject": "mine", "amqp.types": "mine"}))
    assert dict(content.headers) == {"weft.user.weft.subject": "mine", "weft.user.amqp.types": "mine"}
    assert write_properties(content.headers) == with_headers({"weft.subject": "mine", "amqp.types": "mine"})


def test_values_of_other_protocols_that_do_not_fit_are_left_out() -> None:
    headers = (
        ("mqtt.payload-format", 1),
        ("weft.content-type", 7.5),
        ("weft.priority", -1),
        ("weft.sent", "now"),
        ("n" * 300, 1),
        ("kept", 2),
        ("weft.message-id", 42),
        ("weft.reply-to", "x" * 256),
    )
    again = pika.BasicProperties()
    again.decode(write_properties(headers))
    assert again == pika.BasicProperties(headers={"kept": 2}, message_id="42")


def test_a_record_without_headers_is_content_without_properties() -> None:
    assert write_properties(()) == b"\0\0"
    assert read_properties(b"\0\0") == ContentHeaders((), None, None)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ReplyCode.SYNTAX_ERROR),
        (b"\x80\x00", ReplyCode.SYNTAX_ERROR),
        (b"\x80\x00\x02\xff\xfe", ReplyCode.SYNTAX_ERROR),
        (b"\x00\x01\x00\x00", ReplyCode.SYNTAX_ERROR),
        (b"\x00\x00more", ReplyCode.SYNTAX_ERROR),
        (b"\x00\x40\x00\x00", ReplyCode.SYNTAX_ERROR),
        (b"\x01\x00\x03abc", ReplyCode.PRECONDITION_FAILED),
        (b"\x01\x00\x02-1", ReplyCode.PRECONDITION_FAILED),
        (with_headers({f"n{i}": i for i in range(FIELDS_MAX + 1)}), ReplyCode.PRECONDITION_FAILED),
    ],
)
def test_what_cannot_be_is_refused_with_its_code(data: bytes, code: ReplyCode) -> None:
    with pytest.raises(AmqpError) as refused:
        read_properties(data)
    assert refused.value.code is code


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        content = read_properties(data)
    except AmqpError:
        return
    # As text: NaN is not equal to itself. A timestamp after the year 2262 has no nanoseconds, and is cut.
    assert repr(read_properties(write_properties(content.headers)).headers) == repr(content.headers)
