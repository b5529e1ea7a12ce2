"""Retained messages (section 3.3.1.3)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Broker, Connect
from tests.conformance.raw_client import Client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_subscription_gets_the_retained_message(connected: Connect, version: int, topic: str, qos: int) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8]: with RETAIN 1"""
    connected(version=version).publish(topic, b"kept", qos, retain=True)
    if qos == 0:
        connected(version=version).ping()
    client = connected(version=version)
    client.subscribe(topic, 2)
    message = client.message()
    assert (message.payload, message.qos, message.retain, message.dup) == (b"kept", qos, True, False)
    client.nothing()


def test_retained_qos_is_bounded_by_the_subscription(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.8.4-6], v5 [MQTT-3.8.4-8]"""
    client = connected(version=version)
    client.publish(topic, b"kept", 2, retain=True)
    client.subscribe(topic, 1)
    assert client.message().qos == 1


def test_an_established_subscription_gets_retain_0(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.3.1-9], v5 [MQTT-3.3.1-12]"""
    client = connected(version=version)
    client.subscribe(topic, 1)
    client.publish(topic, b"x", 1, retain=True)
    assert not client.message().retain


def test_the_last_retained_message_replaces_others(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.3.1-5]"""
    client = connected(version=version)
    for n in range(3):
        client.publish(topic, b"%d" % n, n, retain=True)
    client.subscribe(topic, 2)
    assert client.message().payload == b"2"
    client.nothing()


def test_an_empty_retained_message_removes(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.3.1-10] [MQTT-3.3.1-11], v5 [MQTT-3.3.1-6] [MQTT-3.3.1-7]: and goes to subscribers as any other"""
    client = connected(version=version)
    client.publish(topic, b"kept", 1, retain=True)
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    assert watching.message().payload == b"kept"
    client.publish(topic, b"", 1, retain=True)
    message = watching.message()
    assert (message.payload, message.retain) == (b"", False)
    client.subscribe(topic, 1)
    client.nothing()


def test_an_ordinary_message_touches_no_retained_one(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.3.1-12], v5 [MQTT-3.3.1-8]"""
    client = connected(version=version)
    client.publish(topic, b"kept", 1, retain=True)
    client.publish(topic, b"other", 1)
    client.publish(topic, b"", 1)
    client.subscribe(topic, 1)
    assert client.message().payload == b"kept"
    client.nothing()


def test_wildcards_get_all_that_match(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.3.1-6]: one for each topic"""
    client = connected(version=version)
    names = [f"{topic}/a", f"{topic}/b", f"{topic}/b/c", topic]
    for name in names:
        client.publish(name, name.encode(), 1, retain=True)
    client.subscribe(f"{topic}/#", 1)
    assert sorted(client.messages(4)) == sorted(name.encode() for name in names)
    client.nothing()
    client.subscribe(f"{topic}/+", 0)
    assert sorted(client.messages(2)) == [f"{topic}/a".encode(), f"{topic}/b".encode()]


def test_wildcards_do_not_get_retained_dollar_topics(connected: Connect, version: int) -> None:
    """[MQTT-4.7.2-1]"""
    client = connected(version=version)
    client.publish("$retained/x", b"no", 1, retain=True)
    client.subscribe("+/x", 0)
    client.nothing()


def test_retained_messages_outlive_the_session(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.1.2-7], v5 section 4.1: they are no part of it"""
    publisher = connected(version=version)
    publisher.publish(topic, b"kept", 1, retain=True)
    publisher.disconnect()
    client = connected(version=version)
    client.subscribe(topic, 1)
    assert client.message().payload == b"kept"


def test_user_properties_are_retained(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.2-17] [MQTT-3.3.2-20] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-4]"""
    client = connected(version=5)
    said = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": b"\x00\xff",
        "user_property": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    client.publish(topic, b"kept", 1, retain=True, properties_=said)
    client.subscribe(topic, 1)
    assert client.message().properties == said


def test_a_retained_message_expires(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.2-5] [MQTT-3.3.2-6]: the rest of the expiry is sent along, and at the end the message is gone"""
    client = connected(version=5)
    client.publish(topic, b"kept", 1, retain=True, properties_={"message_expiry_interval": 2})
    client.subscribe(topic, 1)
    assert client.message().properties["message_expiry_interval"] <= 2
    client.nothing(2.2)
    client.subscribe(topic, 1)
    client.nothing()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_retained_messages_survive_the_node(own_broker: Broker, version: int, end: str) -> None:
    """[MQTT-3.3.1-5]; what was acknowledged is there after SIGKILL, what was removed is not"""
    client = Client(own_broker.port, version)
    client.connect("")
    for place in ("kept", "live"):
        client.publish(f"{place}/stays", b"stays", 1, retain=True)
        client.publish(f"{place}/goes", b"goes", 1, retain=True)
        client.publish(f"{place}/goes", b"", 1, retain=True)
    getattr(own_broker, end)()
    own_broker.start()
    client = Client(own_broker.port, version)
    client.connect("")
    client.subscribe("kept/#", 1)
    client.subscribe("live/#", 1)
    messages = [client.message() for _ in range(2)]
    assert {(message.topic, message.payload, message.retain) for message in messages} == {
        ("kept/stays", b"stays", True),
        ("live/stays", b"stays", True),
    }
    client.nothing()
