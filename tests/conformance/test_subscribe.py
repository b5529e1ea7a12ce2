"""SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.raw_client import (
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    acknowledge,
    connect,
    publish,
    subscribe,
    unsubscribe,
)

NO_LOCAL = 0x04


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_suback_grants_the_qos(connected: Connect, version: int, live: str, qos: int) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.9.3-2], v3 [MQTT-2.3.1-7], v5 [MQTT-2.2.1-6] [MQTT-3.8.4-7]"""
    assert connected(version=version).subscribe(live, qos) == qos


def test_one_return_code_for_each_filter_in_order(connected: Connect, version: int, live: str) -> None:
    """[MQTT-3.8.4-5] [MQTT-3.9.3-1], v3 [MQTT-3.8.4-4], v5 [MQTT-3.8.4-6]"""
    client = connected(version=version)
    client.send(subscribe(9, (f"{live}/a", 2), (f"{live}/b", 0), (f"{live}/c", 1), version=version))
    answer = client.take(SUBACK)
    assert (answer.packet_id, answer.reasons) == (9, [2, 0, 1])
    for name in "abc":
        client.publish(f"{live}/{name}", name.encode())
    assert sorted(client.messages(3)) == [b"a", b"b", b"c"]


def test_the_same_filter_twice_in_one_packet(connected: Connect, version: int, live: str) -> None:
    """[MQTT-3.8.4-3] [MQTT-3.8.4-5], v5 [MQTT-3.8.4-6]: as if they had come one after the other"""
    client = connected(version=version)
    client.send(subscribe(9, (live, 0), (live, 1), version=version))
    assert client.take(SUBACK).reasons == [0, 1]
    client.publish(live, b"x", 1)
    assert client.message().qos == 1
    client.nothing()


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_delivered_at_the_lower_qos(connected: Connect, version: int, topic: str, published: int, granted: int) -> None:
    """v3 [MQTT-3.8.4-6] [MQTT-3.3.5-1], v5 [MQTT-3.8.4-8] [MQTT-3.3.4-1], [MQTT-4.3.1-1]"""
    subscriber, publisher = connected(version=version), connected(version=version)
    subscriber.subscribe(topic, granted)
    publisher.publish(topic, b"x", published)
    message = subscriber.message()
    assert (message.qos, message.payload, message.dup, message.retain) == (min(published, granted), b"x", False, False)
    subscriber.nothing()


@pytest.mark.parametrize("versions", [(4, 5), (5, 4), (3, 5), (5, 3)])
def test_versions_talk_to_each_other(connected: Connect, topic: str, versions: tuple[int, int], client_id: str) -> None:
    """[MQTT-3.3.2-3]"""
    publisher = connected(f"{client_id}-p", versions[0])
    subscriber = connected(f"{client_id}-s", versions[1])
    subscriber.subscribe(topic, 2)
    for qos in (0, 1, 2):
        publisher.publish(topic, b"%d" % qos, qos)
        message = subscriber.message()
        assert (message.payload, message.qos, message.topic) == (b"%d" % qos, qos, topic)


def test_a_subscription_is_replaced(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.8.4-3]: with the new QoS, without a second copy, and without a gap"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(topic, 0)
    publisher.publish(topic, b"1", 1)
    assert client.message().qos == 0
    client.subscribe(topic, 2)
    publisher.publish(topic, b"2", 2)
    assert client.message().qos == 2
    client.nothing()


def test_no_message_is_lost_while_a_subscription_is_replaced(connected: Connect, version: int, topic: str) -> None:
    """v5 [MQTT-3.8.4-4], v3 [MQTT-3.8.4-3]: again and again, with messages on their way"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(topic, 1)
    got: list[bytes] = []
    for start in range(1, 1001, 50):
        publisher.send(
            *[publish(topic, b"%d" % n, version=version, qos=1, packet_id=n) for n in range(start, start + 50)]
        )
        client.subscribe(topic, 1 + start // 50 % 2)
        got += client.messages(50)
    assert got == [b"%d" % n for n in range(1, 1001)]
    client.nothing()


def test_retained_messages_come_again_when_a_subscription_is_replaced(
    connected: Connect, version: int, topic: str
) -> None:
    """[MQTT-3.8.4-3], v5 [MQTT-3.8.4-4]"""
    client = connected(version=version)
    client.publish(topic, b"kept", 1, retain=True)
    for _ in range(2):
        client.subscribe(topic, 1)
        message = client.message()
        assert (message.payload, message.retain) == (b"kept", True)


def test_overlapping_subscriptions(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.3.5-1], v5 [MQTT-3.3.4-2]: at least one copy, at the highest QoS of those that match"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(f"{topic}/#", 2)
    client.subscribe(f"{topic}/+", 1)
    publisher.publish(f"{topic}/a", b"x", 2)
    first = client.message()
    copies = [first]
    try:
        while True:
            copies.append(client.message(0.3))
    except TimeoutError:
        pass
    assert max(copy.qos for copy in copies) == 2
    assert len(copies) <= 2
    assert len(copies) == 1 or sorted(copy.qos for copy in copies) == [1, 2]


def test_unsubscribe_stops_deliveries(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-1], v5 [MQTT-3.11.3-2]"""
    client = connected(version=version)
    client.subscribe(topic, 1)
    client.subscribe(f"{topic}/+", 1)
    client.publish(topic, b"1", 1)
    assert client.message().payload == b"1"
    answer = client.unsubscribe(topic)
    assert answer.reasons == ([0] if version == 5 else [])
    client.publish(topic, b"2", 1)
    client.nothing()
    client.publish(f"{topic}/a", b"3", 1)
    assert client.message().payload == b"3"


def test_unsubscribe_from_what_was_never_subscribed(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-3.10.4-5], v5 [MQTT-3.10.4-5]: the answer comes all the same"""
    client = connected(version=version)
    client.subscribe(f"{live}/a", 0)
    assert client.unsubscribe(f"{live}/+").reasons == ([0x11] if version == 5 else [])
    client.publish(f"{live}/a", b"x")
    assert client.message().payload == b"x"


def test_unsubscribe_takes_the_very_same_filter_only(connected: Connect, version: int, live: str) -> None:
    """[MQTT-3.10.4-1]: wider, narrower and differently spelt ones stay"""
    client = connected(version=version)
    kept = [f"{live}/#", f"{live}/a", f"{live}/A", f"{live}/a/"]
    for topic_filter in [*kept, f"{live}/+"]:
        client.subscribe(topic_filter, 0)
    client.unsubscribe(f"{live}/+")
    client.unsubscribe(f"{live}/b")
    for topic_filter in kept:
        assert client.unsubscribe(topic_filter).reasons == ([0] if version == 5 else [])
    client.publish(f"{live}/a", b"no")
    client.nothing()


def test_a_handshake_under_way_goes_on_after_unsubscribe(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """[MQTT-3.10.4-3]: also on the next connection, message and PUBREL alike"""
    session = {"clean": False, "properties_": {"session_expiry_interval": 60} if version == 5 else None}
    client = connected(client_id, version, **session)
    client.subscribe(topic, 2)
    publisher = connected(version=version)
    for payload in (b"released", b"sent"):
        publisher.publish(topic, payload, 2)
    released, sent = client.take(PUBLISH), client.take(PUBLISH)
    client.send(acknowledge(PUBREC, released.packet_id))
    client.take(PUBREL)
    client.unsubscribe(topic)
    client.drop()
    client = connected(client_id, version, **session)
    publisher.publish(topic, b"no", 2)
    first, second = client.next(), client.next()
    assert (first.kind, first.packet_id) == (PUBREL, released.packet_id)
    assert (second.packet_id, second.payload, second.dup) == (sent.packet_id, b"sent", True)
    client.send(acknowledge(PUBCOMP, released.packet_id), acknowledge(PUBREC, sent.packet_id))
    assert client.take(PUBREL).packet_id == sent.packet_id
    client.send(acknowledge(PUBCOMP, sent.packet_id))
    client.nothing()


def test_unsubscribe_from_several(connected: Connect, version: int, live: str) -> None:
    """[MQTT-3.10.4-6] [MQTT-3.11.3-1]"""
    client = connected(version=version)
    client.subscribe(f"{live}/a", 0)
    client.subscribe(f"{live}/b", 0)
    client.send(unsubscribe(77, f"{live}/a", f"{live}/none", f"{live}/b", version=version))
    answer = client.take(UNSUBACK)
    assert answer.packet_id == 77
    assert answer.reasons == ([0, 0x11, 0] if version == 5 else [])
    for name in "ab":
        client.publish(f"{live}/{name}", b"x")
    client.nothing()


def test_deliveries_under_way_are_completed_after_unsubscribe(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.10.4-3]"""
    client = connected(version=version)
    client.subscribe(topic, 2)
    client.publish(topic, b"x", 1)
    client.publish(topic, b"y", 2)
    client.unsubscribe(topic)
    assert client.messages(2) == [b"x", b"y"]


def test_a_publisher_gets_its_own_messages(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.3.2-3]"""
    client = connected(version=version)
    client.subscribe(topic, 1)
    client.publish(topic, b"x", 1)
    assert client.message().payload == b"x"


def test_messages_of_one_topic_keep_their_order(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-4.6.0-5], v5 [MQTT-4.6.0-6]"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(topic, 2)
    payloads = [b"%d" % n for n in range(60)]
    for n, payload in enumerate(payloads):
        publisher.publish(topic, payload, 1 + n % 2 if n % 5 else 1)
    assert client.messages(60) == payloads


def test_each_publisher_s_messages_keep_their_order_for_each_subscriber(
    connected: Connect, version: int, topic: str
) -> None:
    """v3 [MQTT-4.6.0-6], v5 [MQTT-4.6.0-5] [MQTT-4.6.0-6]: several of both, through one wildcard, at every QoS"""
    publishers = [connected(version=version) for _ in range(3)]
    subscribers = [connected(version=version) for _ in range(3)]
    for granted, subscriber in enumerate(subscribers):
        subscriber.subscribe(f"{topic}/+", granted)
    for n in range(1, 61):
        for index, publisher in enumerate(publishers):
            packet = publish(f"{topic}/same", b"%d %d" % (index, n), version=version, qos=2, packet_id=n)
            publisher.send(packet)
    for publisher in publishers:
        for n in range(1, 61):
            assert publisher.take(PUBREC).packet_id == n
            publisher.send(acknowledge(PUBREL, n))
    orders = []
    for subscriber in subscribers:
        got = [tuple(map(int, payload.split())) for payload in subscriber.messages(180)]
        for index in range(3):
            assert [n for publisher, n in got if publisher == index] == list(range(1, 61))
        orders.append(got)
    assert orders[0] == orders[1] == orders[2], "in the order in which the server got them"


def test_a_message_of_no_bytes(connected: Connect, version: int, topic: str) -> None:
    """Section 3.3.3: a payload of length zero is valid, and without RETAIN means nothing else"""
    client, publisher = connected(version=version), connected(version=version)
    publisher.publish(topic, b"kept", 1, retain=True)
    client.subscribe(topic, 2)
    assert client.message().payload == b"kept"
    for qos in (0, 1, 2):
        publisher.publish(topic, b"", qos)
        message = client.message()
        assert (message.payload, message.qos, message.retain) == (b"", qos, False)
    late = connected(version=version)
    late.subscribe(topic, 0)
    assert late.message().payload == b"kept"


def test_user_properties_in_subscribe_are_taken(connected: Connect, live: str) -> None:
    """v5 sections 3.8.2.1.3 and 3.10.2.1.2"""
    client = connected(version=5)
    assert client.subscribe(live, 0, {"user_property": [("a", "b"), ("a", "b")]}) == 0


def test_suback_comes_before_or_after_but_messages_flow(connected: Connect, version: int, live: str) -> None:
    """v3 section 3.8.4, v5 section 3.8.4: PUBLISH packets may come before SUBACK"""
    client, publisher = connected(version=version), connected(version=version)
    publisher.publish(live, b"kept", 1, retain=True)
    client.send(subscribe(1, (live, 1), version=version))
    assert {client.next().kind, client.next().kind} == {SUBACK, PUBLISH}


SHARED_INVALID = ["$share//a", "$share/a+b/c", "$share/a#/c", "$share/name", "$share/name/", "$share/"]


@pytest.mark.parametrize("topic_filter", SHARED_INVALID)
def test_shared_subscriptions_that_are_none(connected: Connect, topic_filter: str) -> None:
    """v5 [MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    client = connected(version=5)
    client.send(subscribe(1, (topic_filter, 0), version=5))
    answer = client.next()
    if answer.kind == SUBACK:
        assert answer.reasons[0] in (0x8F, 0x9E, 0x80)
    else:
        assert answer.reason in (0x81, 0x82, 0x8F)


def test_no_local_on_a_shared_subscription(connected: Connect, live: str) -> None:
    """v5 [MQTT-3.8.3-4]"""
    client = connected(version=5)
    client.send(subscribe(1, (f"$share/group/{live}", NO_LOCAL), version=5))
    client.refused(0x82)


# --- Subscription options and identifiers of MQTT 5.0 (sections 3.8.2.1.2 and 3.8.3.1)


RETAIN_AS_PUBLISHED = 8
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


# --- Topic names, topic filters, and which matches which (section 4.7)


MATCHES = [
    ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/a/b"]),
    ("sport/#", ["sport", "sport/a", "sport/"]),
    ("sport/tennis/+", ["sport/tennis/a", "sport/tennis/"]),
    ("sport/+", ["sport/", "sport/a"]),
    ("+/tennis/#", ["a/tennis", "a/tennis/b"]),
    ("sport/+/player1", ["sport/tennis/player1", "sport//player1"]),
    ("+/+", ["/finance", "a/b"]),
    ("/+", ["/finance"]),
    ("/#", ["/finance", "/", "/a/b"]),
    ("a//b", ["a//b"]),
    ("a/b/", ["a/b/"]),
    ("Case", ["Case"]),
    ("with space/ü", ["with space/ü"]),
]
MISSES = [
    ("sport/tennis/+", ["sport/tennis", "sport/tennis/a/b"]),
    ("sport/+", ["sport"]),
    ("+", ["/finance", "a/b"]),
    ("a/b", ["a/b/", "/a/b", "a/B", "a"]),
    ("Case", ["case", "CASE"]),
    ("a/+/c", ["a/b/d", "a/b/c/d"]),
    ("sport/#", ["sports", "a/sport"]),
    ("\u212b", ["\u00c5"]),
]


@pytest.mark.parametrize(("topic_filter", "topics"), MATCHES, ids=[name for name, _ in MATCHES])
def test_filters_match(connected: Connect, version: int, live: str, topic_filter: str, topics: list[str]) -> None:
    """[MQTT-4.7.1-2] [MQTT-4.7.1-3] [MQTT-3.3.2-3], v3 [MQTT-3.8.3-2], v5 [MQTT-4.7.1-1]"""
    client = connected(version=version)
    assert client.subscribe(f"{live}/{topic_filter}", 0) == 0
    for topic in topics:
        client.publish(f"{live}/{topic}", b"x")
        assert client.message().topic == f"{live}/{topic}"


@pytest.mark.parametrize(("topic_filter", "topics"), MISSES, ids=[name for name, _ in MISSES])
def test_filters_do_not_match(
    connected: Connect, version: int, live: str, topic_filter: str, topics: list[str]
) -> None:
    """[MQTT-4.7.3-4] [MQTT-4.7.1-3]: character by character, nothing is normalised"""
    client = connected(version=version)
    client.subscribe(f"{live}/{topic_filter}", 0)
    client.subscribe(f"{live}/end", 0)
    for topic in topics:
        client.publish(f"{live}/{topic}", b"no")
    client.publish(f"{live}/end", b"end")
    assert client.message().payload == b"end"


EMPTY_LEVELS = [
    ("/", ["/"], ["//", "a/"]),
    ("//", ["//"], ["/", "///"]),
    ("+/+", ["/", "/a", "a/"], ["//"]),
    ("/+", ["/", "/a"], ["//", "a/"]),
    ("+/+/+", ["//", "a//b"], ["/"]),
    ("/#", ["/", "//", "/a/b"], ["a/"]),
    ("+//#", ["//", "a//", "a//b/c"], ["a/b/c"]),
    ("#", ["/", "//", "a", "a//b"], []),
]


@pytest.mark.parametrize(("topic_filter", "hits", "misses"), EMPTY_LEVELS, ids=[name for name, _, _ in EMPTY_LEVELS])
def test_levels_of_no_characters(  # noqa: PLR0917
    connected: Connect, version: int, client_id: str, topic_filter: str, hits: list[str], misses: list[str]
) -> None:
    """[MQTT-4.7.3-1], v3 [MQTT-4.7.1-2] [MQTT-4.7.1-3], v5 [MQTT-4.7.1-1] [MQTT-4.7.1-2], section 4.7.3: an empty level
    is a level, and '/' alone is a topic of two"""
    client, publisher = connected(version=version), connected(version=version)
    assert client.subscribe(topic_filter, 1) == 1
    client.subscribe(f"end/{client_id}", 1)
    for topic in [*hits, *misses, f"end/{client_id}"]:
        publisher.publish(topic, f"{client_id} {topic}".encode(), 1)
    got: list[str] = []
    while f"end/{client_id}" not in got:
        message = client.message()
        if message.payload.startswith(client_id.encode() + b" "):  # '#' has others' retained messages too
            got.append(message.topic)
    assert got == [*hits, f"end/{client_id}"]


@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/conformance", "+"])
def test_wildcards_do_not_match_dollar_topics(connected: Connect, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.2-1]"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(topic_filter, 0)
    publisher.publish("$conformance/conformance" if "/" in topic_filter else "$conformance", b"no")
    try:
        while True:
            assert not client.message(0.3).topic.startswith("$")
    except TimeoutError:
        pass


def test_sys_topics_match_their_own_filter(connected: Connect, version: int) -> None:
    """[MQTT-4.7.2-1]: $SYS/# gets what the server tells of itself"""
    client = connected(version=version)
    assert client.subscribe("$SYS/#", 0) == 0
    assert client.message().topic.startswith("$SYS/")


def test_the_longest_topic(connected: Connect, version: int, live: str) -> None:
    """[MQTT-4.7.3-3]: 65,535 bytes where the packet limit allows; here nearly all of it"""
    client = connected(version=version)
    assert client.subscribe(f"{live}/+", 0) == 0
    topic = f"{live}/".ljust(65_500, "x")
    client.publish(topic, b"x")
    assert client.message().topic == topic
