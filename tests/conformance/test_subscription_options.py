"""Subscription options and identifiers of MQTT 5.0 (sections 3.8.2.1.2 and 3.8.3.1)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.raw_client import SUBACK, connect, subscribe

NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08
SEND_IF_NEW, DO_NOT_SEND = 0x10, 0x20


def test_no_local(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.8.3-3]"""
    client, other = connected(version=5), connected(version=5)
    client.subscribe(topic, 1 | NO_LOCAL)
    client.publish(topic, b"own", 1)
    other.publish(topic, b"other", 1)
    assert client.message().payload == b"other"
    client.nothing()


def test_no_local_holds_for_wills(connected: Connect, live: str, client_id: str) -> None:
    """v5 [MQTT-3.8.3-3]: other connections get what this one publishes"""
    client, other = connected(client_id, 5), connected(version=5)
    client.subscribe(live, NO_LOCAL)
    other.subscribe(live, NO_LOCAL)
    client.publish(live, b"x")
    assert other.message().payload == b"x"
    client.nothing()


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("as_published", [False, True])
def test_retain_as_published(connected: Connect, topic: str, retain: bool, as_published: bool) -> None:
    """v5 [MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    client, publisher = connected(version=5), connected(version=5)
    client.subscribe(topic, 1 | (RETAIN_AS_PUBLISHED if as_published else 0))
    publisher.publish(topic, b"x", 1, retain=retain)
    assert client.message().retain is (retain and as_published)


def test_subscription_identifier(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-3]"""
    client = connected(version=5)
    client.subscribe(topic, 1, {"subscription_identifier": 268_435_455})
    client.publish(topic, b"x", 1)
    assert client.message().properties["subscription_identifier"] == [268_435_455]


def test_no_identifier_where_none_was_given(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-3]"""
    one, other = connected(version=5), connected(version=5)
    one.subscribe(topic, 1, {"subscription_identifier": 3})
    other.subscribe(topic, 1)
    one.publish(topic, b"x", 1)
    assert one.message().properties["subscription_identifier"] == [3]
    assert "subscription_identifier" not in other.message().properties


def test_identifiers_of_overlapping_subscriptions(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-4] [MQTT-3.3.4-5]: all in one copy, or each in its own"""
    client = connected(version=5)
    client.subscribe(f"{topic}/+", 1, {"subscription_identifier": 1})
    client.subscribe(f"{topic}/#", 2, {"subscription_identifier": 2})
    client.publish(f"{topic}/a", b"x", 2)
    found: list[int] = []
    try:
        found += client.message().properties["subscription_identifier"]
        while True:
            found += client.message(0.3).properties["subscription_identifier"]
    except TimeoutError:
        pass
    assert sorted(found) == [1, 2]


def test_identifiers_of_many_overlapping_subscriptions(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.4-5]: those that match and have one, equal ones too; not the others"""
    client = connected(version=5)
    client.subscribe(f"{topic}/a", 0, {"subscription_identifier": 1})
    client.subscribe(f"{topic}/+", 1, {"subscription_identifier": 268_435_455})
    client.subscribe(f"{topic}/#", 2, {"subscription_identifier": 128})
    client.subscribe(f"{topic}/a/#", 1)
    client.subscribe(f"+/{topic.partition('/')[2]}/a", 0, {"subscription_identifier": 1})
    client.subscribe(f"{topic}/b", 2, {"subscription_identifier": 2})
    client.publish(f"{topic}/a", b"x", 2)
    copies = [client.message()]
    try:
        while True:
            copies.append(client.message(0.3))
    except TimeoutError:
        pass
    found = [one for copy in copies for one in copy.properties.get("subscription_identifier", [])]
    assert sorted(set(found)) == [1, 128, 268_435_455]
    assert max(copy.qos for copy in copies) == 2
    assert len(copies) == 1 or len(copies) == 5


def test_one_identifier_for_all_filters_of_a_packet(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-3], section 3.8.2.1.2"""
    client = connected(version=5)
    said = {"subscription_identifier": 9}
    client.send(subscribe(1, (f"{topic}/a", 1), (f"{topic}/b", 1), version=5, properties_=said))
    client.take(SUBACK)
    for name in "ab":
        client.publish(f"{topic}/{name}", b"x", 1)
        assert client.message().properties["subscription_identifier"] == [9]


def test_a_replaced_subscription_replaces_its_identifier(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.8.4-3]"""
    client = connected(version=5)
    client.subscribe(topic, 1, {"subscription_identifier": 1})
    client.subscribe(topic, 1, {"subscription_identifier": 2})
    client.publish(topic, b"x", 1)
    assert client.message().properties["subscription_identifier"] == [2]
    client.subscribe(topic, 1)
    client.publish(topic, b"x", 1)
    assert "subscription_identifier" not in client.message().properties


def test_identifier_comes_with_retained_messages(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-3]"""
    client = connected(version=5)
    client.publish(topic, b"x", 1, retain=True)
    client.subscribe(topic, 1, {"subscription_identifier": 7})
    assert client.message().properties["subscription_identifier"] == [7]


def test_identifier_is_kept_in_the_session(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.3.4-3], section 4.1: identifiers are part of the subscriptions of the session state"""
    options = {"properties_": {"session_expiry_interval": 60}}
    client = connected(client_id, 5, **options)
    client.subscribe(topic, 1, {"subscription_identifier": 7})
    client.drop()
    connected(version=5).publish(topic, b"x", 1)
    again = connected(client_id, 5, clean=False, **options)
    assert again.message().properties["subscription_identifier"] == [7]


@pytest.mark.parametrize(
    ("handling", "expected"),
    [(0, [1, 1]), (SEND_IF_NEW, [1, 0]), (DO_NOT_SEND, [0, 0])],
    ids=["always", "new", "never"],
)
def test_retain_handling(connected: Connect, topic: str, handling: int, expected: list[int]) -> None:
    """v5 [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]"""
    client = connected(version=5)
    client.publish(topic, b"kept", 1, retain=True)
    for count in expected:
        client.subscribe(topic, 1 | handling)
        if count:
            assert client.message().payload == b"kept"
        client.nothing()


def test_retain_handling_new_counts_after_unsubscribe(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.1-10]: a filter taken out and put in again is new"""
    client = connected(version=5)
    client.publish(topic, b"kept", 1, retain=True)
    for _ in range(2):
        client.subscribe(topic, 1 | SEND_IF_NEW)
        assert client.message().payload == b"kept"
        client.unsubscribe(topic)


def test_retain_handling_new_in_a_resumed_session(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.3.1-10]: the subscription of a session that was resumed exists"""
    options = {"properties_": {"session_expiry_interval": 60}}
    client = connected(client_id, 5, **options)
    client.publish(topic, b"kept", 1, retain=True)
    client.subscribe(topic, 1 | SEND_IF_NEW)
    client.message()
    client.disconnect()
    again = connected(client_id, 5, clean=False, **options)
    again.subscribe(topic, 1 | SEND_IF_NEW)
    again.nothing()


@pytest.mark.parametrize(("name", "level"), [("MQIsdp", 0x83), ("MQTT", 0x84)])
def test_a_bridge_of_mosquitto_does_not_get_its_own_messages_back(  # noqa: PLR0917
    client: Connect, connected: Connect, topic: str, client_id: str, name: str, level: int
) -> None:
    """The bit in the protocol level stands for no local and retain as published (``try_private``)."""
    bridge, other = client(level & 0x7F), connected()
    bridge.send(connect(client_id, version=level, name=name))
    assert bridge.next().reason == 0
    assert bridge.subscribe(topic, 1) == 1
    bridge.publish(topic, b"own", 1)
    other.publish(topic, b"other", 1, retain=True)
    message = bridge.message()
    assert (message.payload, message.retain) == (b"other", True)
    bridge.nothing()
    other.publish(topic, b"", retain=True)
