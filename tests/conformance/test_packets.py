"""Malformed packets and protocol errors: the connection is closed, others continue (chapters 1, 2 and 4.13)."""

from __future__ import annotations

import random

import pytest

from tests.conformance.conftest import PACKET_BYTES_MAX, Connect
from tests.conformance.raw_client import (
    CONNACK,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Client,
    acknowledge,
    connect,
    packet,
    properties,
    publish,
    string,
    subscribe,
    unsubscribe,
)

MALFORMED, PROTOCOL_ERROR, TOO_LARGE, TOPIC_INVALID, FILTER_INVALID = 0x81, 0x82, 0x95, 0x90, 0x8F
BAD_UTF8 = {
    "surrogate": b"a\xed\xa0\x80b",
    "cut": b"a\xc3",
    "overlong": b"a\xc0\xafb",
    "stray": b"a\x80b",
    "beyond": b"\xf4\x90\x80\x80",
}


def section(version: int) -> bytes:
    return b"\x00" if version == 5 else b""


@pytest.mark.parametrize("flags", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [PUBACK, PUBREC, PUBCOMP, PINGREQ, 14], ids=str)
def test_reserved_flags_must_be_zero(connected: Connect, version: int, kind: int, flags: int) -> None:
    """v3 [MQTT-2.2.2-1] [MQTT-2.2.2-2] [MQTT-3.14.1-1], v5 [MQTT-2.1.3-1] [MQTT-3.14.1-1] [MQTT-4.13.1-1]"""
    client = connected(version=version)
    client.send(packet(kind, flags, b"" if kind >= PINGREQ else b"\x00\x01"))
    client.refused(MALFORMED)


@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_subscribe_flags_must_be_2(connected: Connect, version: int, flags: int) -> None:
    """[MQTT-3.8.1-1]"""
    client = connected(version=version)
    client.send(packet(SUBSCRIBE, flags, b"\x00\x01" + section(version) + string("a") + b"\x00"))
    client.refused(MALFORMED)


@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_unsubscribe_flags_must_be_2(connected: Connect, version: int, flags: int) -> None:
    """[MQTT-3.10.1-1]"""
    client = connected(version=version)
    client.send(packet(UNSUBSCRIBE, flags, b"\x00\x01" + section(version) + string("a")))
    client.refused(MALFORMED)


@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10])
def test_pubrel_flags_must_be_2(connected: Connect, version: int, flags: int) -> None:
    """[MQTT-3.6.1-1]"""
    client = connected(version=version)
    client.send(acknowledge(PUBREL, 1, flags=flags))
    client.refused(MALFORMED)


@pytest.mark.parametrize("kind", [0, 15])
def test_reserved_packet_types(connected: Connect, version: int, kind: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]: type 0 is forbidden, 15 is AUTH in MQTT 5 and needs a method first."""
    client = connected(version=version)
    client.send(packet(kind, 0, b""))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("kind", [2, 9, 11, 13])
def test_packets_that_only_servers_send(connected: Connect, version: int, kind: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]"""
    client = connected(version=version)
    client.send(packet(kind, 0, {2: b"\x00\x00" + section(version), 13: b""}.get(kind, b"\x00\x01" + section(version))))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_remaining_length_of_five_bytes(connected: Connect, version: int) -> None:
    """Section 2.2.3 (v3), 1.5.5 (v5) [MQTT-1.5.5-1]"""
    client = connected(version=version)
    client.send(b"\x30\xff\xff\xff\xff\x01")
    client.refused(MALFORMED)


def test_packet_larger_than_the_server_takes(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1] section 3.2.2.3.6: refused on its first bytes"""
    client = connected(version=version)
    client.send(publish(live, bytes(PACKET_BYTES_MAX), version=version)[:100])
    client.refused(TOO_LARGE)


def test_packet_as_large_as_the_server_takes(connected: Connect, version: int, topic: str) -> None:
    """v5 section 3.2.2.3.6: the limit itself is allowed"""
    client = connected(version=version)
    client.subscribe(topic)
    client.send(sent := publish(topic, bytes(PACKET_BYTES_MAX - 6 - len(topic) - (version == 5)), version=version))
    assert len(sent) == PACKET_BYTES_MAX
    assert len(client.message().payload) == PACKET_BYTES_MAX - 6 - len(topic) - (version == 5)


def test_one_byte_at_a_time(client: Connect, version: int, live: str) -> None:
    """Section 4.2: the transport is a stream, packets have no boundaries in it"""
    slow = client(version)
    for data in (
        connect("", version=version),
        subscribe(1, (live, 1), version=version),
        publish(live, b"hello", version=version, qos=1, packet_id=7),
    ):
        for byte in data:
            slow.send(bytes([byte]))
    assert slow.next().kind == CONNACK
    assert slow.message().payload == b"hello"
    assert slow.take(PUBACK).packet_id == 7


@pytest.mark.parametrize("payload", [b"", b"x" * 126, b"x" * 127, b"x" * 128, b"x" * 16_383, b"x" * 16_384])
def test_lengths_around_the_steps_of_remaining_length(
    connected: Connect, version: int, live: str, payload: bytes
) -> None:
    """Table 2.4 (v3), 1-1 (v5)"""
    client = connected(version=version)
    client.subscribe(live)
    client.publish(live, payload)
    assert client.message().payload == payload


@pytest.mark.parametrize("topic", BAD_UTF8.values(), ids=BAD_UTF8)
@pytest.mark.parametrize("qos", [0, 1])
def test_ill_formed_utf8_in_a_topic_name(connected: Connect, version: int, topic: bytes, qos: int) -> None:
    """v3 [MQTT-1.5.3-1] [MQTT-3.3.2-1], v5 [MQTT-1.5.4-1] [MQTT-3.3.2-1]"""
    client = connected(version=version)
    client.send(publish(b"live/" + topic, b"", version=version, qos=qos, packet_id=1 if qos else None))
    client.refused(MALFORMED, TOPIC_INVALID)


@pytest.mark.parametrize("topic", BAD_UTF8.values(), ids=BAD_UTF8)
def test_ill_formed_utf8_in_a_filter(connected: Connect, version: int, topic: bytes) -> None:
    """v3 [MQTT-1.5.3-1] [MQTT-3.8.3-1], v5 [MQTT-1.5.4-1] [MQTT-3.8.3-1]"""
    client = connected(version=version)
    client.send(subscribe(1, (topic, 0), version=version))
    client.refused(MALFORMED, FILTER_INVALID)


@pytest.mark.parametrize("topic", BAD_UTF8.values(), ids=BAD_UTF8)
def test_ill_formed_utf8_in_unsubscribe(connected: Connect, version: int, topic: bytes) -> None:
    """[MQTT-3.10.3-1]"""
    client = connected(version=version)
    client.send(unsubscribe(1, topic, version=version))
    client.refused(MALFORMED, FILTER_INVALID)


def test_null_character_in_a_topic_name(connected: Connect, version: int) -> None:
    """v3 [MQTT-1.5.3-2] [MQTT-4.7.3-2], v5 [MQTT-1.5.4-2] [MQTT-4.7.3-2]"""
    client = connected(version=version)
    client.send(publish("a\0b", b"", version=version))
    client.refused(MALFORMED, TOPIC_INVALID)


def test_null_character_in_a_filter(connected: Connect, version: int) -> None:
    """v3 [MQTT-1.5.3-2] [MQTT-4.7.3-2], v5 [MQTT-1.5.4-2] [MQTT-4.7.3-2]"""
    client = connected(version=version)
    client.send(subscribe(1, ("a\0b", 0), version=version))
    client.refused(MALFORMED, FILTER_INVALID)


def test_byte_order_mark_is_kept(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-1.5.3-3], v5 [MQTT-1.5.4-3]: U+FEFF is neither skipped nor stripped"""
    client = connected(version=version)
    client.subscribe(f"{live}/#")
    client.publish(f"{live}/\ufeffname", b"")
    assert client.message().topic == f"{live}/\ufeffname"


@pytest.mark.parametrize("qos", [1, 2])
def test_packet_identifier_zero_in_publish(connected: Connect, version: int, live: str, qos: int) -> None:
    """v3 [MQTT-2.3.1-1], v5 [MQTT-2.2.1-3]"""
    client = connected(version=version)
    client.send(publish(live, b"", version=version, qos=qos, packet_id=0))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_packet_identifier_zero_in_subscribe(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-2.3.1-1], v5 [MQTT-2.2.1-3]"""
    client = connected(version=version)
    client.send(subscribe(0, (live, 0), version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_packet_identifier_zero_in_unsubscribe(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-2.3.1-1], v5 [MQTT-2.2.1-3]"""
    client = connected(version=version)
    client.send(unsubscribe(0, live, version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_qos_3_in_publish(connected: Connect, version: int, live: str) -> None:
    """[MQTT-3.3.1-4]"""
    client = connected(version=version)
    client.send(publish(live, b"", version=version, qos=3, packet_id=1))
    client.refused(MALFORMED)


def test_dup_at_qos_0(connected: Connect, version: int, live: str) -> None:
    """[MQTT-3.3.1-2]: it must be 0; a server that closes and one that overlooks it both keep the protocol"""
    client = connected(version=version)
    subscriber = connected(version=version)
    subscriber.subscribe(live)
    client.send(publish(live, b"x", version=version, dup=True))
    try:
        client.ping()
    except Exception:
        return
    assert not subscriber.message().dup


@pytest.mark.parametrize("topic", ["a/+/b", "a/#", "#", "+"])
def test_wildcards_in_a_topic_name(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.3.2-2], v3 [MQTT-4.7.1-1], v5 [MQTT-4.7.0-1]"""
    client = connected(version=version)
    client.send(publish(topic, b"", version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR, TOPIC_INVALID)


def test_empty_topic_name(connected: Connect, version: int) -> None:
    """[MQTT-4.7.3-1]; in MQTT 5 it is a protocol error without a topic alias (section 3.3.2.1)"""
    client = connected(version=version)
    client.send(publish("", b"", version=version))
    client.refused(PROTOCOL_ERROR, TOPIC_INVALID, MALFORMED)


@pytest.mark.parametrize("topic_filter", ["a#", "#/a", "a/#/b", "a+", "+a", "a/b+/c", "a/#b", ""])
def test_filters_that_are_none(connected: Connect, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.1-2] [MQTT-4.7.1-3] [MQTT-4.7.3-1], v5 [MQTT-4.7.1-1]: refused in SUBACK or by closing"""
    client = connected(version=version)
    client.send(subscribe(1, (topic_filter, 0), version=version))
    packets = []
    try:
        packets.append(client.next())
        client.nothing()
    except Exception:
        pass
    assert version == 4 or packets
    if packets and packets[0].kind == 9:
        assert packets[0].reasons[0] >= 0x80


def test_subscribe_without_a_filter(connected: Connect, version: int) -> None:
    """v3 [MQTT-3.8.3-3], v5 [MQTT-3.8.3-2]"""
    client = connected(version=version)
    client.send(subscribe(1, version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_unsubscribe_without_a_filter(connected: Connect, version: int) -> None:
    """[MQTT-3.10.3-2]"""
    client = connected(version=version)
    client.send(unsubscribe(1, version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("options", [3, 0x40, 0x80, 0x30])
def test_subscription_options_that_are_reserved(connected: Connect, version: int, live: str, options: int) -> None:
    """v3 [MQTT-3.8.3-4], v5 [MQTT-3.8.3-5]: QoS 3, reserved bits, retain handling 3"""
    client = connected(version=version)
    client.send(subscribe(1, (live, options), version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("options", [0x04, 0x08, 0x10, 0x20])
def test_options_of_mqtt_5_are_reserved_in_3_1_1(connected: Connect, live: str, options: int) -> None:
    """v3 [MQTT-3.8.3-4]"""
    client = connected(version=4)
    client.send(subscribe(1, (live, options)))
    client.refused()


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_packets_that_end_too_early(connected: Connect, version: int, live: str, cut: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]: the topic's length reaches past the packet"""
    client = connected(version=version)
    client.send(packet(PUBLISH, 0, string(live)[:-cut]))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("kind", [PUBACK, PUBREC, PUBCOMP], ids=str)
def test_acknowledgements_that_are_too_short(connected: Connect, version: int, kind: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]"""
    client = connected(version=version)
    client.send(packet(kind, 0, b"\x01"))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_acknowledgement_that_is_too_long_for_3_1_1(connected: Connect) -> None:
    """v3 [MQTT-4.8.0-1]: the remaining length of PUBACK is 2"""
    client = connected(version=4)
    client.send(packet(PUBACK, 0, b"\x00\x01\x00"))
    client.refused()


def test_subscribe_whose_filter_has_no_options(connected: Connect, version: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]"""
    client = connected(version=version)
    client.send(packet(SUBSCRIBE, 2, b"\x00\x01" + section(version) + string("a")))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_pingreq_with_a_body(connected: Connect, version: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]: the remaining length of PINGREQ is 0"""
    client = connected(version=version)
    client.send(packet(PINGREQ, 0, b"x"))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_pingreq_is_answered(connected: Connect, version: int) -> None:
    """[MQTT-3.12.4-1]"""
    connected(version=version).ping()


def test_a_broken_client_harms_no_other(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-4.8.0-2], v5 [MQTT-4.13.1-1]"""
    healthy = connected(version=version)
    healthy.subscribe(topic, 1)
    broken = connected(version=version)
    broken.send(publish(topic, b"before", version=version, qos=1, packet_id=1), b"\xf7\xff\xff\xff\xff")
    broken.closed()
    healthy.publish(topic, b"after", 1)
    while healthy.message().payload != b"after":
        continue


# --- MQTT 5: properties


BAD_PUBLISH_PROPERTIES = {
    "unknown identifier": (b"\x7f\x00", (MALFORMED, PROTOCOL_ERROR)),
    "not of a publish": (b"\x11\x00\x00\x00\x01", (MALFORMED, PROTOCOL_ERROR)),
    "twice": (b"\x01\x00\x01\x00", (PROTOCOL_ERROR,)),
    "expiry twice": (b"\x02\x00\x00\x00\x09\x02\x00\x00\x00\x09", (PROTOCOL_ERROR,)),
    "cut": (b"\x02\x00\x00", (MALFORMED, PROTOCOL_ERROR)),
    "alias zero": (b"\x23\x00\x00", (0x94, PROTOCOL_ERROR)),
    "alias twice": (b"\x23\x00\x01\x23\x00\x01", (PROTOCOL_ERROR,)),
    "payload format 2": (b"\x01\x02", (PROTOCOL_ERROR, MALFORMED, 0x99)),
    "ill-formed content type": (b"\x03" + string(b"\xff"), (MALFORMED,)),
    "null in user property": (b"\x26" + string("a\0") + string("b"), (MALFORMED,)),
    "ill-formed user property": (b"\x26" + string("a") + string(b"\xed\xa0\x80"), (MALFORMED,)),
    "wildcard response topic": (b"\x08" + string("a/#"), (PROTOCOL_ERROR, MALFORMED, TOPIC_INVALID)),
    "ill-formed response topic": (b"\x08" + string(b"\xc3"), (MALFORMED, TOPIC_INVALID)),
    "subscription identifier": (b"\x0b\x01", (PROTOCOL_ERROR, MALFORMED)),
}


@pytest.mark.parametrize(("bad", "reasons"), BAD_PUBLISH_PROPERTIES.values(), ids=BAD_PUBLISH_PROPERTIES)
def test_properties_that_a_publish_may_not_have(
    connected: Connect, live: str, bad: bytes, reasons: tuple[int, ...]
) -> None:
    """v5 [MQTT-1.5.7-1] [MQTT-3.3.2-8] [MQTT-3.3.2-13] [MQTT-3.3.2-14] [MQTT-3.3.2-19] [MQTT-3.3.4-6]
    [MQTT-4.13.1-1]; sections 2.2.2.2 and 3.3.2.3"""
    client = connected(version=5)
    client.send(publish(live, b"", version=5, properties_=bad))
    client.refused(*reasons)


def test_property_length_past_the_packet(connected: Connect, live: str) -> None:
    """v5 [MQTT-2.2.2-1] [MQTT-4.13.1-1]"""
    client = connected(version=5)
    client.send(packet(PUBLISH, 0, string(live) + b"\x7f"))
    client.refused(MALFORMED, PROTOCOL_ERROR)


def test_property_length_in_more_bytes_than_needed(connected: Connect, live: str) -> None:
    """v5 [MQTT-1.5.5-1]: the encoded value must use the minimum number of bytes; closed or taken as what it says"""
    client = connected(version=5)
    client.subscribe(live)
    client.send(packet(PUBLISH, 0, string(live) + b"\x80\x80\x80\x80\x00" + b"x"))
    client.refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("identifier", [b"\x0b\x00", b"\x0b\x01\x0b\x02"], ids=["zero", "twice"])
def test_subscription_identifiers_that_are_none(connected: Connect, live: str, identifier: bytes) -> None:
    """v5 section 3.8.2.1.2: zero or more than one is a protocol error"""
    client = connected(version=5)
    client.send(subscribe(1, (live, 0), version=5, properties_=identifier))
    client.refused(PROTOCOL_ERROR, MALFORMED)


@pytest.mark.parametrize("kind", [PUBACK, PUBREC, PUBCOMP], ids=str)
def test_acknowledgements_with_reason_codes_that_they_do_not_have(connected: Connect, kind: int) -> None:
    """v5 [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.7.2-1]"""
    client = connected(version=5)
    client.send(acknowledge(kind, 1, reason=0x02))
    client.refused(PROTOCOL_ERROR, MALFORMED)


def test_acknowledgement_with_a_wrong_property(connected: Connect) -> None:
    """v5 section 3.4.2.2"""
    client = connected(version=5)
    client.send(acknowledge(PUBACK, 1, reason=0, properties_={"content_type": "x"}))
    client.refused(PROTOCOL_ERROR, MALFORMED)


def test_acknowledgements_with_reason_and_properties_are_read(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.4.2-1]: a client may say why, also at length"""
    client = connected(version=5)
    client.subscribe(topic, 1)
    client.publish(topic, b"1", 1)
    message = client.message(acknowledged=False)
    said = {"reason_string": "fine", "user_property": [("a", "b"), ("a", "c")]}
    client.send(acknowledge(PUBACK, message.packet_id, reason=0, properties_=said))
    client.publish(topic, b"2", 1)
    assert client.message().payload == b"2"


def test_an_empty_property_section_is_length_zero(client: Connect) -> None:
    """v5 [MQTT-2.2.2-1]: and it must be there"""
    good = client(5)
    good.send(packet(1, 0, string("MQTT") + b"\x05\x02\x00\x00" + properties(None) + string("")))
    assert good.next().reason == 0
    bad = client(5)
    bad.send(packet(1, 0, string("MQTT") + b"\x05\x02\x00\x00" + string("name")))
    assert all(answer.reason >= 0x80 for answer in bad.closed())


# --- Clients that misbehave harm themselves: others are served as before (v3 [MQTT-4.8.0-2], v5 [MQTT-4.13.1-1])


QUOTA_EXCEEDED, SUBSCRIPTIONS_MAX = 0x97, 1000


@pytest.fixture
def healthy(connected: Connect, version: int, live: str) -> Client:
    """A client that talks to itself; asked again when the abuse is over."""
    opened = connected(version=version)
    opened.subscribe(live, 1)
    return opened


def is_served(client: Client, live: str) -> bool:
    client.publish(live, b"still there", 1)
    return client.message().payload == b"still there"


@pytest.mark.parametrize("granted", [0, 1])
def test_a_subscriber_that_does_not_read(
    connected: Connect, healthy: Client, version: int, live: str, granted: int
) -> None:
    """Section 4.5 (v3), 4.9 (v5): its publisher and the other subscriber never wait for it"""
    stuck = connected(version=version)
    stuck.subscribe(f"{live}/flood", granted)
    reading, publisher = connected(version=version), connected(version=version)
    reading.subscribe(f"{live}/flood", 0)
    payload = bytes(50_000)
    for start in range(0, 400, 20):
        publisher.send(
            *[
                publish(f"{live}/flood", payload, version=version, qos=1, packet_id=n)
                for n in range(start + 1, start + 21)
            ]
        )
        for _ in range(20):
            publisher.take(PUBACK)
            assert len(reading.message().payload) == 50_000
    assert is_served(healthy, live)


def test_connections_that_say_nothing(client: Connect, connected: Connect, healthy: Client, live: str) -> None:
    """[MQTT-3.1.0-1], v3 section 3.1.4, v5 section 3.1.4"""
    silent = [client() for _ in range(300)]
    for opened in silent[:100]:
        opened.send(b"\x10\xff")
    connected().ping()
    assert is_served(healthy, live)


@pytest.mark.parametrize("seed", range(20))
def test_noise(client: Connect, healthy: Client, version: int, live: str, seed: int) -> None:
    """[MQTT-3.1.0-1], v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]: random bytes, alone and behind a CONNECT"""
    chance = random.Random(seed)
    for greeting in (b"", connect("", version=version)):
        for _ in range(10):
            opened = client(version)
            try:
                opened.send(greeting + chance.randbytes(chance.randrange(1, 200)))
                opened.drop()
            except OSError:
                continue
    assert is_served(healthy, live)


@pytest.mark.parametrize("seed", range(20))
def test_good_packets_with_a_wrong_byte(client: Connect, healthy: Client, version: int, live: str, seed: int) -> None:
    """v3 [MQTT-4.8.0-1], v5 [MQTT-4.13.1-1]"""
    chance = random.Random(seed)
    expiry = {"session_expiry_interval": 0, "user_property": [("a", "b")]} if version == 5 else None
    good = connect("", version=version, properties_=expiry) + subscribe(1, ("noise/#", 2), version=version)
    good += publish("noise/a", b"x" * 20, version=version, qos=2, packet_id=1)
    for _ in range(15):
        bad = bytearray(good)
        bad[chance.randrange(len(bad))] = chance.randrange(256)
        opened = client(version)
        opened.send(bytes(bad))
        opened.drop()
    assert is_served(healthy, live)


def test_a_thousand_subscriptions_and_more(connected: Connect, healthy: Client, version: int, live: str) -> None:
    """v3 [MQTT-3.9.3-2], v5 [MQTT-3.8.4-7]: what is too much is refused in SUBACK, the rest works"""
    greedy = connected(version=version)
    filters = [(f"{live}/bomb/{n}/#", 0) for n in range(SUBSCRIPTIONS_MAX + 20)]
    greedy.send(subscribe(1, *filters, version=version))
    reasons = greedy.take(SUBACK).reasons
    assert reasons == [0] * SUBSCRIPTIONS_MAX + [QUOTA_EXCEEDED if version == 5 else 0x80] * 20
    greedy.publish(f"{live}/bomb/5/a", b"x")
    assert greedy.message().payload == b"x"
    assert is_served(healthy, live)


def test_topics_that_are_too_deep(connected: Connect, healthy: Client, version: int, live: str) -> None:
    """v3 [MQTT-3.3.5-2], v5 section 3.4.2.1: the number of levels is bounded. MQTT 5 says so, 3.1.1 closes"""
    deep = connected(version=version)
    deep.send(publish("a/" * 5000 + "a", b"", version=version, qos=1, packet_id=1))
    if version == 5:
        assert deep.next().reason == 0x90
    else:
        deep.refused()
    assert is_served(healthy, live)


def test_many_clients_come_and_go(client: Connect, healthy: Client, version: int, live: str) -> None:
    """[MQTT-3.2.0-1]: a flood of short connections"""
    for _ in range(300):
        opened = client(version)
        opened.send(connect("", version=version))
        opened.drop()
    assert is_served(healthy, live)
