"""A node with narrow limits: that it announces them, that it holds clients to them, that up to them all is well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import Broker, Connect
from tests.conformance.raw_client import PUBACK, PUBCOMP, PUBREC, PUBREL, acknowledge, connect, publish
from tests.support.speed import Stopwatch

RECEIVE_MAXIMUM, KEEP_ALIVE_S, SESSION_EXPIRY_S, FILTER_BYTES = 5, 2, 100, 63 << 10
LIMITS = f"""\
  receive_maximum: {RECEIVE_MAXIMUM}
  keep_alive: {KEEP_ALIVE_S}s
  session_expiry: {SESSION_EXPIRY_S}s
  topic_alias_maximum: 0
  inflight: 3
  filter: 63KiB
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one of this module."""
    started = Broker(tmp_path_factory.mktemp("limits"), LIMITS)
    started.start()
    yield started
    started.kill()


def test_connack_tells_them(client: Connect) -> None:
    """v5 [MQTT-3.2.2-21], sections 3.2.2.3.2, 3.2.2.3.3, 3.2.2.3.8 and 3.2.2.3.14"""
    asked = {"session_expiry_interval": 5000}
    said = client(5).connect("", keep_alive=60, properties_=asked).properties
    assert said["receive_maximum"] == RECEIVE_MAXIMUM
    assert said["server_keep_alive"] == KEEP_ALIVE_S
    assert said["session_expiry_interval"] == SESSION_EXPIRY_S
    assert said.get("topic_alias_maximum", 0) == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_a_burst_beyond_the_receive_maximum(connected: Connect, topic: str, qos: int) -> None:
    """v5 [MQTT-3.3.4-7], section 3.3.4: 0x93 is allowed, and would make the client send again what is stored; it is
    read more slowly instead, and each message is taken once"""
    watching, client = connected(version=5), connected(version=5)
    watching.subscribe(topic, qos)
    numbers = range(1, 100 * RECEIVE_MAXIMUM + 1)
    client.send(*[publish(topic, b"%d" % n, version=5, qos=qos, packet_id=n) for n in numbers])
    assert [client.take(PUBACK if qos == 1 else PUBREC).packet_id for _ in numbers] == [*numbers]
    if qos == 2:
        client.send(*[acknowledge(PUBREL, n) for n in numbers])
        assert [client.take(PUBCOMP).packet_id for _ in numbers] == [*numbers]
    assert watching.messages(len(numbers)) == [b"%d" % n for n in numbers]
    watching.nothing()
    client.ping()


def test_qos_2_without_pubrel(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-7] [MQTT-4.3.3-10]: a client that has its PUBRECs, and sends on before any PUBREL, can still end
    every exchange; a message whose identifier is open is not taken again"""
    watching, client = connected(version=5), connected(version=5)
    watching.subscribe(topic, 1)
    numbers = range(1, 3 * RECEIVE_MAXIMUM + 1)
    for n in numbers:
        client.send(publish(topic, b"%d" % n, version=5, qos=2, packet_id=n))
        assert client.take(PUBREC).reason == 0
    client.send(publish(topic, b"again", version=5, qos=2, packet_id=1, dup=True))
    assert client.take(PUBREC).packet_id == 1
    for n in numbers:
        client.send(acknowledge(PUBREL, n))
        assert (client.take(PUBCOMP).packet_id, client.publish(topic, b"", 1).reason) == (n, 0)  # type: ignore[union-attr]
    taken = [payload for payload in watching.messages(2 * len(numbers)) if payload]
    assert taken == [b"%d" % n for n in numbers]


@pytest.mark.parametrize("qos", [1, 2])
def test_as_many_as_the_receive_maximum_again_and_again(connected: Connect, topic: str, qos: int) -> None:
    """v5 [MQTT-3.3.4-7]: PUBACK and PUBCOMP give the place back"""
    client = connected(version=5)
    numbers = range(1, RECEIVE_MAXIMUM + 1)
    for _ in range(10):
        client.send(*[publish(topic, b"", version=5, qos=qos, packet_id=n) for n in numbers])
        assert [client.take(PUBACK if qos == 1 else PUBREC).packet_id for _ in numbers] == [*numbers]
        if qos == 2:
            client.send(*[acknowledge(PUBREL, n) for n in numbers])
            assert [client.take(PUBCOMP).packet_id for _ in numbers] == [*numbers]


def test_a_repeated_qos_2_publish_takes_no_second_place(connected: Connect, topic: str) -> None:
    """v5 [MQTT-4.3.3-10], section 4.9: or a client could not send again what it must"""
    session = {"session_expiry_interval": 60}
    client = connected("again", 5, properties_=session)
    sent = [publish(topic, b"x", version=5, qos=2, packet_id=n) for n in range(1, RECEIVE_MAXIMUM + 1)]
    client.send(*sent)
    for _ in sent:
        client.take(PUBREC)
    client.drop()
    client = connected("again", 5, clean=False, properties_=session)
    client.send(*[bytes([each[0] | 8]) + each[1:] for each in sent])
    assert [client.take(PUBREC).reason for _ in sent] == [0] * RECEIVE_MAXIMUM
    client.send(*[acknowledge(PUBREL, n) for n in range(1, RECEIVE_MAXIMUM + 1)])
    assert [client.take(PUBCOMP).reason for _ in sent] == [0] * RECEIVE_MAXIMUM
    assert client.publish(topic, b"y", 2) is not None


def test_qos_0_needs_no_place(connected: Connect, live: str) -> None:
    """v5 section 4.9: it is not counted"""
    client = connected(version=5)
    client.subscribe(live, 0)
    client.send(*[publish(live, b"", version=5, qos=2, packet_id=n) for n in range(1, RECEIVE_MAXIMUM + 1)])
    client.send(*[publish(live, b"qos 0", version=5)] * 20)
    assert client.messages(RECEIVE_MAXIMUM + 20).count(b"qos 0") == 20


@pytest.mark.parametrize("keep_alive", [0, 60])
def test_the_server_s_keep_alive_counts(broker: Broker, client: Connect, keep_alive: int) -> None:
    """v5 [MQTT-3.1.2-21] [MQTT-3.2.2-21] [MQTT-3.1.2-22]: one and a half times what CONNACK said,
    also for who wanted none"""
    opened, stopwatch = client(5), Stopwatch(broker.pid)
    assert opened.connect("", keep_alive=keep_alive).properties["server_keep_alive"] == KEEP_ALIVE_S
    opened.refused(0x8D)
    assert stopwatch.by_the_clock() >= 1.5 * KEEP_ALIVE_S - 0.1
    assert stopwatch.seconds() <= 1.5 * KEEP_ALIVE_S + 2


def test_a_shorter_keep_alive_is_the_client_s(broker: Broker, client: Connect) -> None:
    """v5 [MQTT-3.2.2-22]: nothing is said of it, and it is held"""
    opened, stopwatch = client(5), Stopwatch(broker.pid)
    assert "server_keep_alive" not in opened.connect("", keep_alive=1).properties
    opened.refused(0x8D)
    assert stopwatch.by_the_clock() >= 1.4
    assert stopwatch.seconds() < 1.5 * KEEP_ALIVE_S


def test_no_topic_alias_where_none_was_announced(connected: Connect, live: str) -> None:
    """v5 [MQTT-3.2.2-18] [MQTT-3.2.2-17]"""
    client = connected(version=5)
    client.send(publish(live, b"", version=5, properties_={"topic_alias": 1}))
    client.refused(0x94)


@pytest.mark.parametrize("maximum", [2, 3, 50])
def test_the_smaller_of_both_windows_holds(connected: Connect, topic: str, maximum: int) -> None:
    """v5 [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]: the send quota begins at no more than the receive maximum"""
    client, publisher = connected(version=5, properties_={"receive_maximum": maximum}), connected(version=5)
    client.subscribe(topic, 1)
    for n in range(8):
        publisher.publish(topic, b"%d" % n, 1)
    first = [client.message(acknowledged=False) for _ in range(min(maximum, 3))]
    client.nothing()
    for message in first:
        client.send(acknowledge(PUBACK, message.packet_id))
    assert client.messages(8 - len(first)) == [b"%d" % n for n in range(len(first), 8)]


def test_the_longest_filter(connected: Connect, version: int, live: str) -> None:
    """[MQTT-4.7.3-3] [MQTT-3.8.3-1], v3 [MQTT-3.9.3-2], v5 [MQTT-3.9.3-2]: as much as the node's limits allow, which
    may be all that MQTT has; one byte more is refused in SUBACK, and the connection stays"""
    client = connected(version=version)
    longest = f"{live}/+/".ljust(FILTER_BYTES, "x")
    assert client.subscribe(longest, 0) == 0
    topic = longest.replace("+", "a")
    client.publish(topic, b"x")
    assert client.message().topic == topic
    assert client.subscribe(longest + "x", 0) == (0x8F if version == 5 else 0x80)
    assert client.unsubscribe(longest).reasons == ([0] if version == 5 else [])
    client.publish(topic, b"x")
    client.nothing()


def test_the_session_lasts_as_long_as_connack_said(client: Connect, client_id: str) -> None:
    """v5 section 3.2.2.3.2: 0xFFFFFFFF is bounded too, and a shorter time is left as it is"""
    longest = client(5).connect(client_id, properties_={"session_expiry_interval": 0xFFFFFFFF})
    assert longest.properties["session_expiry_interval"] == SESSION_EXPIRY_S
    shorter = client(5)
    shorter.send(connect(f"{client_id}-2", version=5, properties_={"session_expiry_interval": 10}))
    assert "session_expiry_interval" not in shorter.next().properties
