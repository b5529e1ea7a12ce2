"""Properties of messages, topic aliases, flow control and packet sizes (MQTT 5.0 sections 3.3.2.3, 4.9)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.raw_client import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Client, acknowledge, publish

EVERYTHING = {
    "payload_format_indicator": 1,
    "content_type": "application/json; charset=utf-8",
    "response_topic": "answers/ü/here",
    "correlation_data": bytes(range(256)),
    "user_property": [("z", "1"), ("a", "2"), ("z", "3"), ("z", "1"), ("", ""), ("ü", "€")],
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_passed_on_unaltered(connected: Connect, topic: str, qos: int) -> None:
    """v5 [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    client = connected(version=5)
    client.subscribe(topic, 2)
    client.publish(topic, b"\xc3\xbc", qos, properties_=EVERYTHING)
    assert client.message().properties == EVERYTHING


@pytest.mark.parametrize("qos", [1, 2])
def test_properties_are_kept_for_who_is_away(connected: Connect, topic: str, client_id: str, qos: int) -> None:
    """v5 [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    options = {"properties_": {"session_expiry_interval": 60}}
    away = connected(client_id, 5, **options)
    away.subscribe(topic, 2)
    away.disconnect()
    connected(version=5).publish(topic, b"x", qos, properties_=EVERYTHING)
    back = connected(client_id, 5, clean=False, **options)
    assert back.message().properties == EVERYTHING


def test_each_property_on_its_own(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.2-4] [MQTT-3.3.2-20]: zero and empty are values"""
    client = connected(version=5)
    client.subscribe(topic, 1)
    alone = [{name: value} for name, value in EVERYTHING.items()]
    for said in [*alone, {"payload_format_indicator": 0}, {"content_type": ""}, {"correlation_data": b""}]:
        client.publish(topic, b"x", 1, properties_=said)
        assert client.message().properties in (said, {} if said == {"payload_format_indicator": 0} else said)


def test_duplicates_and_order_of_user_properties(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.2-17] [MQTT-3.3.2-18]: a hundred, among other properties, every one where it was"""
    client = connected(version=5)
    client.subscribe(topic, 1)
    pairs = [(f"k{n % 3}", f"v{n % 5}") for n in range(100)]
    said = {"content_type": "x", "user_property": pairs, "correlation_data": b"1"}
    client.publish(topic, b"x", 1, properties_=said)
    assert client.message().user_properties == pairs


def test_older_clients_get_the_message_without_properties(connected: Connect, topic: str) -> None:
    """[MQTT-3.3.2-3]"""
    old, new = connected(version=4), connected(version=5)
    old.subscribe(topic, 1)
    new.publish(topic, b"x", 1, properties_=EVERYTHING)
    assert old.message().payload == b"x"


def test_payload_format_is_not_the_server_s_business(connected: Connect, live: str) -> None:
    """v5 section 3.3.2.3.2: it may check, and then it says 0x99"""
    client = connected(version=5)
    client.subscribe(live, 0)
    answer = client.publish(live, b"\xff", 1, properties_={"payload_format_indicator": 1})
    assert answer is not None
    assert answer.reason in (0, 0x99)


def test_request_and_response(connected: Connect, live: str) -> None:
    """v5 section 4.10"""
    asking, answering = connected(version=5), connected(version=5)
    asking.subscribe(f"{live}/answers", 1)
    answering.subscribe(f"{live}/questions", 1)
    said = {"response_topic": f"{live}/answers", "correlation_data": b"42"}
    asking.publish(f"{live}/questions", b"?", 1, properties_=said)
    question = answering.message().properties
    answering.publish(
        question["response_topic"], b"!", 1, properties_={"correlation_data": question["correlation_data"]}
    )
    answer = asking.message()
    assert (answer.payload, answer.properties) == (b"!", {"correlation_data": b"42"})


# --- topic aliases, from the client


def send_alias(client: Client, topic: str, alias: int, payload: bytes) -> None:
    client.send(publish(topic, payload, version=5, properties_={"topic_alias": alias}))


def test_an_alias_stands_for_its_topic(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.2-12], section 3.3.2.3.4: also mixed with full topics, and after it was set again"""
    client = connected(version=5)
    client.subscribe(f"{topic}/#", 0)
    send_alias(client, f"{topic}/a", 1, b"1")
    send_alias(client, "", 1, b"2")
    send_alias(client, f"{topic}/b", 2, b"3")
    send_alias(client, "", 1, b"4")
    send_alias(client, f"{topic}/c", 1, b"5")
    send_alias(client, "", 1, b"6")
    send_alias(client, "", 2, b"7")
    client.publish(f"{topic}/a", b"8")
    got = [client.message() for _ in range(8)]
    assert [(m.topic.rpartition("/")[2], m.payload) for m in got] == list(
        zip("aabaccba", [b"%d" % n for n in range(1, 9)], strict=True)
    )
    assert not any("topic_alias" in message.properties for message in got), "[MQTT-3.3.2-7]"


@pytest.mark.parametrize("qos", [1, 2])
def test_aliases_at_qos_1_and_2(connected: Connect, topic: str, qos: int) -> None:
    """v5 [MQTT-3.3.2-12]"""
    client = connected(version=5)
    client.subscribe(topic, 2)
    client.publish(topic, b"1", qos, properties_={"topic_alias": 1})
    client.publish("", b"2", qos, properties_={"topic_alias": 1})
    assert client.messages(2) == [b"1", b"2"]


def test_the_largest_alias_and_one_more(connected: Connect, client: Connect, live: str) -> None:
    """v5 [MQTT-3.2.2-17] [MQTT-3.3.2-9] [MQTT-3.3.2-12], section 3.2.2.3.8"""
    opened = client(5)
    maximum = opened.connect("").properties["topic_alias_maximum"]
    opened.subscribe(live, 0)
    send_alias(opened, live, maximum, b"x")
    send_alias(opened, "", maximum, b"y")
    assert opened.messages(2) == [b"x", b"y"]
    if maximum < 65_535:
        send_alias(opened, live, maximum + 1, b"z")
        opened.refused(0x94)


def test_alias_zero(connected: Connect, live: str) -> None:
    """v5 [MQTT-3.3.2-8]"""
    client = connected(version=5)
    send_alias(client, live, 0, b"x")
    client.refused(0x94, 0x82)


def test_an_alias_that_was_never_given(connected: Connect) -> None:
    """v5 section 3.3.2.3.4: a protocol error"""
    client = connected(version=5)
    send_alias(client, "", 1, b"x")
    client.refused(0x82)


def test_aliases_end_with_the_connection(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.3.2-7], section 3.3.2.3.4"""
    options = {"properties_": {"session_expiry_interval": 60}}
    first = connected(client_id, 5, **options)
    send_alias(first, topic, 1, b"x")
    first.disconnect()
    second = connected(client_id, 5, clean=False, **options)
    send_alias(second, "", 1, b"y")
    second.refused(0x82)


def test_an_alias_with_a_topic_that_is_none(connected: Connect) -> None:
    """v5 [MQTT-3.3.2-2]"""
    client = connected(version=5)
    send_alias(client, "a/#", 1, b"x")
    client.refused(0x90, 0x81, 0x82)


# --- topic aliases, to the client


def test_no_aliases_for_who_takes_none(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-27] [MQTT-3.1.2-26]"""
    for said in (None, {"topic_alias_maximum": 0}):
        client = connected(version=5, properties_=said)
        client.subscribe(topic, 0)
        for _ in range(5):
            client.publish(topic, b"x")
        for _ in range(5):
            message = client.message()
            assert message.topic == topic
            assert "topic_alias" not in message.properties


@pytest.mark.parametrize("qos", [0, 1])
def test_aliases_for_who_takes_them(connected: Connect, topic: str, qos: int) -> None:
    """v5 [MQTT-3.1.2-26] [MQTT-3.3.2-10] [MQTT-3.3.2-11]: each alias within the maximum and given before use"""
    client = connected(version=5, properties_={"topic_alias_maximum": 2})
    client.subscribe(f"{topic}/#", qos)
    names = [f"{topic}/{n % 4}" for n in range(40)]
    for name in names:
        client.publish(name, name.encode(), qos)
    known: dict[int, str] = {}
    for name in names:
        message = client.message()
        alias = message.properties.get("topic_alias")
        assert alias is None or 1 <= alias <= 2
        if alias is not None and message.topic:
            known[alias] = message.topic
        found = message.topic or known[alias or 0]
        assert (found, message.payload) == (name, name.encode())


# --- flow control, to the client


@pytest.mark.parametrize(
    ("maximum", "qos"),
    [(1, 1), (3, 2), (20, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 2), (3, 1), (20, 2)))],
)
def test_receive_maximum_of_the_client(connected: Connect, topic: str, maximum: int, qos: int) -> None:
    """v5 [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]: no more than that unacknowledged, and then it continues"""
    client, publisher = connected(version=5, properties_={"receive_maximum": maximum}), connected(version=5)
    client.subscribe(topic, qos)
    for n in range(maximum * 2 + 1):
        publisher.publish(topic, b"%d" % n, qos)
    open_ = [client.take(PUBLISH) for _ in range(maximum)]
    client.nothing()
    if qos == 2:  # the quota comes back with PUBCOMP, not with PUBREC
        client.send(acknowledge(PUBREC, open_[0].packet_id))
        client.take(PUBREL)
        client.nothing()
        client.send(acknowledge(PUBCOMP, open_[0].packet_id))
    else:
        client.send(acknowledge(PUBACK, open_[0].packet_id))
    assert client.take(PUBLISH).payload == b"%d" % maximum
    client.nothing()


def test_qos_0_passes_a_full_window(connected: Connect, live: str) -> None:
    """v5 [MQTT-3.3.4-10] [MQTT-4.9.0-3]: everything but PUBLISH at QoS 1 and 2 continues, PINGRESP and SUBACK too"""
    client, publisher = connected(version=5, properties_={"receive_maximum": 1}), connected(version=5)
    client.subscribe(f"{live}/+", 1)
    publisher.publish(f"{live}/a", b"1", 1)
    publisher.publish(f"{live}/a", b"2", 1)
    assert client.take(PUBLISH).payload == b"1"
    client.ping()
    client.subscribe(f"{live}/b", 0)
    assert client.publish(f"{live}/c/d", b"x", 2) is not None
    publisher.publish(f"{live}/b", b"qos 0", 0)
    assert client.take(PUBLISH).qos == 0


def test_a_negative_pubrec_frees_the_window(connected: Connect, topic: str) -> None:
    """v5 [MQTT-4.9.0-2] section 4.9"""
    client, publisher = connected(version=5, properties_={"receive_maximum": 1}), connected(version=5)
    client.subscribe(topic, 2)
    for n in range(2):
        publisher.publish(topic, b"%d" % n, 2)
    first = client.take(PUBLISH)
    client.send(acknowledge(PUBREC, first.packet_id, reason=0x80))
    assert client.take(PUBLISH).payload == b"1"


def test_the_window_is_full_again_after_a_reconnect(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-4.9.0-1] [MQTT-4.4.0-1]: what is sent again counts"""
    options = {"properties_": {"session_expiry_interval": 60, "receive_maximum": 2}}
    client = connected(client_id, 5, **options)
    client.subscribe(topic, 1)
    publisher = connected(version=5)
    for n in range(6):
        publisher.publish(topic, b"%d" % n, 1)
    for _ in range(2):
        client.take(PUBLISH)
    client.drop()
    back = connected(client_id, 5, clean=False, **options)
    assert [(m.payload, m.dup) for m in (back.take(PUBLISH), back.take(PUBLISH))] == [(b"0", True), (b"1", True)]
    back.nothing()


def test_a_full_window_keeps_order_and_loses_nothing(connected: Connect, version: int, topic: str) -> None:
    """v5 [MQTT-4.9.0-2], [MQTT-4.6.0-5]: far more than any window, read late"""
    said = {"receive_maximum": 5} if version == 5 else None
    client, publisher = connected(version=version, properties_=said), connected(version=version)
    client.subscribe(topic, 1)
    for n in range(300):
        publisher.publish(topic, b"%d" % n, 1)
    assert client.messages(300) == [b"%d" % n for n in range(300)]


# --- flow control, from the client


@pytest.mark.parametrize("qos", [1, 2])
def test_more_than_the_server_s_receive_maximum(client: Connect, topic: str, qos: int) -> None:
    """v5 [MQTT-3.3.4-7], section 3.3.4: the server may close with 0x93; this one reads on once it has answered"""
    opened = client(5)
    maximum = opened.connect("").properties["receive_maximum"]
    numbers = range(1, 3 * maximum + 1)
    opened.send(*[publish(topic, b"", version=5, qos=qos, packet_id=n) for n in numbers])
    answers = [opened.take(PUBACK if qos == 1 else PUBREC) for _ in numbers]
    assert [answer.packet_id for answer in answers] == [*numbers]
    assert all(answer.reason < 0x80 for answer in answers)
    opened.ping()


def test_as_many_as_the_server_s_receive_maximum(connected: Connect, client: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-7]: in one write"""
    opened = client(5)
    maximum = min(opened.connect("").properties.get("receive_maximum", 65_535), 2000)
    for _ in range(3):
        opened.send(*[publish(topic, b"", version=5, qos=1, packet_id=n) for n in range(1, maximum + 1)])
        assert [opened.take(PUBACK).packet_id for _ in range(maximum)] == list(range(1, maximum + 1))


# --- maximum packet size


def test_as_large_as_the_server_said_and_one_byte_more(client: Connect, live: str) -> None:
    """v5 [MQTT-3.2.2-15], section 3.2.2.3.6: the whole packet counts, and 0x95 is the answer to more"""
    opened = client(5)
    maximum = opened.connect("").properties["maximum_packet_size"]
    empty = len(publish(live, bytes(20_000), version=5, qos=1, packet_id=1)) - 20_000
    largest = publish(live, bytes(maximum - empty), version=5, qos=1, packet_id=1)
    assert len(largest) == maximum
    opened.send(largest)
    assert opened.take(PUBACK).reason < 0x80
    opened.send(publish(live, bytes(maximum - empty + 1), version=5, qos=1, packet_id=2))
    opened.refused(0x95)


def test_as_large_as_the_client_takes_at_every_length(connected: Connect, live: str) -> None:
    """v5 [MQTT-3.1.2-24]: every size around the limit, the steps of the length field and with an identifier that the
    server adds"""
    for maximum in (60, 127, 128, 129, 130, 131):
        client, publisher = connected(version=5, properties_={"maximum_packet_size": maximum}), connected(version=5)
        client.subscribe(live, 0, {"subscription_identifier": 200})
        client.subscribe(f"{live}/end", 0)
        for size in range(maximum):
            publisher.publish(live, bytes(size))
        publisher.publish(f"{live}/end", b"end")
        got = []
        while (message := client.message()).payload != b"end":
            assert message.size <= maximum
            got.append(len(message.payload))
        assert got == list(range(len(got)))
        assert message.size <= maximum
        overhead = 2 + 2 + len(live) + 1 + 3  # fixed header, topic, property length, identifier
        assert len(got) - 1 in (maximum - overhead, maximum - overhead - 1)


def test_packets_too_large_for_the_client_are_not_sent(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-24] [MQTT-3.1.2-25]: left out, as if it had been delivered, and the next one comes"""
    client, publisher = connected(version=5, properties_={"maximum_packet_size": 100}), connected(version=5)
    client.subscribe(topic, 1)
    for qos in (0, 1):
        publisher.publish(topic, bytes(200), qos)
        publisher.publish(topic, b"small", qos)
        message = client.message()
        assert message.payload == b"small"
        assert message.size <= 100


def test_exactly_the_maximum_packet_size(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-24]: the limit is inclusive"""
    fits = 100 - 2 - 2 - len(topic) - 2 - 1
    client, publisher = connected(version=5, properties_={"maximum_packet_size": 100}), connected(version=5)
    client.subscribe(topic, 1)
    publisher.publish(topic, bytes(fits + 1), 1)
    publisher.publish(topic, bytes(fits), 1)
    message = client.message()
    assert (message.size, len(message.payload)) == (100, fits)


def test_too_large_for_one_and_not_for_another(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-24]"""
    small, large = connected(version=5, properties_={"maximum_packet_size": 50}), connected(version=5)
    small.subscribe(topic, 1)
    large.subscribe(topic, 1)
    large.publish(topic, bytes(100), 1)
    assert len(large.message().payload) == 100
    small.nothing()


def test_too_large_in_the_queue_of_who_is_away(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.2-25]: it must not block what is behind it"""
    session = {"session_expiry_interval": 60}
    away = connected(client_id, 5, properties_=session)
    away.subscribe(topic, 1)
    away.disconnect()
    publisher = connected(version=5)
    for payload in (b"1", bytes(200), b"2"):
        publisher.publish(topic, payload, 1)
    back = connected(client_id, 5, clean=False, properties_={**session, "maximum_packet_size": 100})
    assert back.messages(2) == [b"1", b"2"]


def test_user_properties_count_for_the_size(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-24]: the message cannot be made smaller by leaving them out"""
    client, publisher = connected(version=5, properties_={"maximum_packet_size": 100}), connected(version=5)
    client.subscribe(topic, 1)
    publisher.publish(topic, b"x", 1, properties_={"user_property": [("a", "b" * 100)]})
    client.nothing()
