"""Tests of ``edge_node/subscriptions/message.py``."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.edge_node.subscriptions.message import (
    NOWHERE,
    USER_PROPERTIES_MAX,
    Message,
    TooManyProperties,
    before,
    from_headers,
    lowered,
    to_headers,
)
from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderValue
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties

NOW = 1_700_000_000_000_000_000
TEXT = st.text(max_size=8) | st.sampled_from(
    [
        "weft.expires",
        "weft.user.",
        "weft.user.mqtt.",
        "weft.content-type",
        "weft.",
        "weft.x",
        "amqp.id",
        "http.path",
        "kafka.key",
        "sparkplug.seq",
        "weft.user.kafka.key",
        "kafka",
        "Weft.x",
    ]
)
PROPERTIES = st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | st.integers(0, 0xFFFFFFFF),
    content_type=st.none() | st.text(max_size=8),
    response_topic=st.none() | st.text(max_size=8),
    correlation_data=st.none() | st.binary(max_size=8),
    user_properties=st.lists(st.tuples(TEXT, st.text(max_size=8)), max_size=4).map(tuple),
)


@given(PROPERTIES)
def test_what_receivers_are_told_comes_back_whatever_names_people_choose(properties: Properties) -> None:
    found, expires_ns = from_headers(to_headers(properties, NOW))
    interval = properties.message_expiry_interval
    assert found == msgspec.structs.replace(properties, message_expiry_interval=None)
    assert expires_ns == (0 if interval is None else NOW + interval * 1_000_000_000)


def test_user_properties_keep_names_and_order_where_people_look_for_them() -> None:
    pairs = (("unit", "°C"), ("unit", "K"), ("a", ""))
    assert to_headers(Properties(user_properties=pairs, content_type="text/plain"), NOW) == (
        *pairs,
        ("weft.content-type", "text/plain"),
    )


def test_a_name_of_a_device_that_begins_like_one_of_ours_is_stored_apart_from_it() -> None:
    pairs = (("weft.function", "x"), ("kafka.key", "y"), ("weft.user.z", "z"), ("unit", "K"))
    assert to_headers(Properties(user_properties=pairs), NOW) == (
        ("weft.user.weft.function", "x"),
        ("weft.user.kafka.key", "y"),
        ("weft.user.weft.user.z", "z"),
        ("unit", "K"),
    )


def test_values_that_mqtt_has_no_type_for_go_out_as_text() -> None:
    values = (b"\xff\0", -5, 0.5, True, False, None)
    assert from_headers((("weft.correlation-id", "é"),))[0].correlation_data == "é".encode()
    found = from_headers(tuple(("v", value) for value in values))[0].user_properties
    assert [text for _, text in found] == ["/wA=", "-5", "0.5", "true", "false", ""]


def test_messages_without_properties_cost_nothing() -> None:
    assert to_headers(NO_PROPERTIES, NOW) == ()
    assert from_headers(())[0] is NO_PROPERTIES
    assert from_headers((("mqtt.of-a-later-release", "x"),)) == (NO_PROPERTIES, 0)


@pytest.mark.parametrize(
    "pair",
    [
        ("weft.expires", "soon"),
        ("weft.expires", -1),
        ("weft.expires", 1.5),
        ("weft.expires", True),
        ("weft.content-type", 1),
        ("weft.reply-to", b"t"),
        ("weft.correlation-id", True),
        ("mqtt.payload-format", 2),
        ("mqtt.payload-format", True),
        ("kafka.partition", 3),
        ("http.path", "/"),
        ("note", b"x" * 60_000),
    ],
)
def test_what_subscribers_have_no_place_for_is_passed_over(pair: tuple[str, HeaderValue]) -> None:
    assert from_headers((pair,)) == (NO_PROPERTIES, 0)


def test_more_user_properties_than_a_record_has_room_for() -> None:
    every = Properties(
        user_properties=(("n", "v"),) * USER_PROPERTIES_MAX,
        payload_format_indicator=1,
        message_expiry_interval=1,
        content_type="",
        response_topic="r",
        correlation_data=b"",
    )
    assert len(to_headers(every, NOW)) == HEADER_PAIRS_MAX - 1, "one more says who published it, or who it is for"
    with pytest.raises(TooManyProperties, match=f"{USER_PROPERTIES_MAX + 1} user properties"):
        to_headers(Properties(user_properties=(("n", "v"),) * (USER_PROPERTIES_MAX + 1)), NOW)


# --- Positions of readers


def test_what_is_missing_lowers_the_position_of_its_stream_alone() -> None:
    positions = {1: 10, 2: 20}
    assert lowered(positions, [(1, 7), (1, 12), (3, 4)]) == {1: 7, 2: 20, 3: 4}
    assert positions == {1: 10, 2: 20}


def test_what_the_log_does_not_have_is_not_read_from_it() -> None:
    queued = [Message(b"t", b"", stream=1, seq=5), Message(b"t", b"", stream=NOWHERE, seq=0)]
    assert before(queued, {1: 9}) == {1: 5}
    assert before([], {1: 9}) == {1: 9}
