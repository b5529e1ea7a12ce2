"""Wills, and how connections end (sections 3.1.2.5, 3.1.3.2 and 3.14)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.conftest import Broker, Connect
from tests.conformance.raw_client import DISCONNECT, Client, Will, disconnect, packet, publish
from tests.support.speed import Stopwatch

PERSISTENT = {"session_expiry_interval": 60}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_is_published_when_the_client_is_lost(connected: Connect, version: int, topic: str, qos: int) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-9], v3 [MQTT-3.1.2-16], v5 [MQTT-3.1.2-14]"""
    watching = connected(version=version)
    watching.subscribe(topic, 2)
    lost = connected(version=version, will=Will(topic, b"gone", qos))
    lost.drop()
    message = watching.message()
    assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)
    watching.nothing()


def test_no_will_after_disconnect(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.1.2-10], v3 [MQTT-3.14.4-3], v5 [MQTT-3.14.4-3] [MQTT-3.1.2-8]"""
    watching = connected(version=version)
    watching.subscribe(topic, 0)
    connected(version=version, will=Will(topic)).disconnect()
    watching.nothing()


def test_no_will_without_the_flag(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.1.2-12], v5 [MQTT-3.1.2-7]"""
    watching = connected(version=version)
    watching.subscribe(topic, 0)
    connected(version=version).drop()
    watching.nothing()


def test_the_will_of_a_protocol_error(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.1.2-8]: the server closes because of what the client did"""
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    wrong = connected(version=version, will=Will(topic, b"gone", 1))
    wrong.send(packet(12, 1, b""))
    wrong.closed()
    assert watching.message().payload == b"gone"


def test_a_retained_will(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.1.2-17], v5 [MQTT-3.1.2-15]"""
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    connected(version=version, will=Will(topic, b"gone", 1, retain=True)).drop()
    watching.message()
    late = connected(version=version)
    late.subscribe(topic, 1)
    message = late.message()
    assert (message.payload, message.retain) == (b"gone", True)


def test_an_empty_will(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-3.1.2-9] section 3.1.3.3: zero bytes are a message"""
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    connected(version=version, will=Will(topic, b"", 1)).drop()
    assert watching.message().payload == b""


def test_the_will_of_a_client_that_is_taken_over(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-8], v3 [MQTT-3.1.4-2], v5 [MQTT-3.1.4-3]: the first connection was closed without DISCONNECT"""
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    connected(client_id, version, will=Will(topic, b"gone", 1))
    connected(client_id, version)
    assert watching.message().payload == b"gone"


def test_a_will_is_published_once(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """[MQTT-3.1.2-10]: then it is no part of the session any more"""
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    connected(client_id, version, clean=False, will=Will(topic, b"gone", 1)).drop()
    assert watching.message().payload == b"gone"
    connected(client_id, version, clean=False).drop()
    watching.nothing()


def test_the_will_after_keep_alive(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.1.2-8], v3 [MQTT-3.1.2-24], v5 [MQTT-3.1.2-22]"""
    watching = connected(version=version)
    watching.subscribe(topic, 1)
    connected(version=version, keep_alive=1, will=Will(topic, b"silent", 1))
    assert watching.message().payload == b"silent"


# --- MQTT 5


def test_disconnect_with_will(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-10] section 3.14.2.1: reason 0x04 asks for the will"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    connected(version=5, will=Will(topic, b"asked", 1)).disconnect(0x04)
    assert watching.message().payload == b"asked"


@pytest.mark.parametrize("reason", [0x80, 0x81, 0x83, 0x98])
def test_disconnect_with_an_error_publishes_the_will(connected: Connect, topic: str, reason: int) -> None:
    """v5 [MQTT-3.1.2-8] [MQTT-3.14.4-3]: only 0x00 takes it back"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    connected(version=5, will=Will(topic, b"gone", 1)).disconnect(reason)
    assert watching.message().payload == b"gone"


@pytest.mark.parametrize("reason", [0x01, 0x8B, 0x8E, 0xFF])
def test_disconnect_with_a_code_that_clients_do_not_have(connected: Connect, reason: int) -> None:
    """v5 [MQTT-3.14.2-1]: the server closes either way"""
    client = connected(version=5)
    client.send(packet(DISCONNECT, 0, bytes([reason])))
    client.closed()


def test_the_will_has_its_properties(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.1.2-9] [MQTT-3.1.3-10], section 3.1.3.2"""
    said = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x00\x01",
        "user_property": [("b", "1"), ("a", "2"), ("b", "3")],
    }
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    connected(version=5, will=Will(topic, b"gone", 1, properties={**said, "message_expiry_interval": 100})).drop()
    found = watching.message().properties
    assert 98 <= found.pop("message_expiry_interval") <= 100
    assert found == said


def test_the_will_waits_for_its_delay(broker: Broker, connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.2-8], section 3.1.3.2.2"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    will = Will(topic, b"late", 1, properties={"will_delay_interval": 1})
    lost = connected(client_id, 5, will=will, properties_=PERSISTENT)
    stopwatch = Stopwatch(broker.pid)
    lost.drop()
    watching.nothing(0.7)
    assert watching.message().payload == b"late"
    assert stopwatch.by_the_clock() >= 0.9
    assert stopwatch.seconds() <= 3


def test_the_will_is_not_sent_when_the_client_is_back_in_time(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.3-9]"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    will = Will(topic, b"late", 1, properties={"will_delay_interval": 1})
    connected(client_id, 5, will=will, properties_=PERSISTENT).drop()
    time.sleep(0.2)  # the delay itself is what is tested
    connected(client_id, 5, clean=False, properties_=PERSISTENT)
    watching.nothing(1.5)


def test_a_delayed_will_comes_when_the_session_ends(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.2-8]: the delay or the session's end, whichever is first"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    will = Will(topic, b"ended", 1, properties={"will_delay_interval": 60})
    lost = connected(client_id, 5, will=will, properties_={"session_expiry_interval": 1})
    lost.drop()
    watching.nothing(0.5)
    assert watching.message().payload == b"ended"


def test_a_delayed_will_comes_at_once_without_a_session(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.2-8]: the session ends with the connection"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    will = Will(topic, b"ended", 1, properties={"will_delay_interval": 60})
    connected(client_id, 5, will=will).drop()
    assert watching.message(2).payload == b"ended"


def test_a_delayed_will_comes_when_the_session_is_cleaned(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.2-8] [MQTT-3.1.2-4]: clean start ends the session, and with it the delay"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    will = Will(topic, b"ended", 1, properties={"will_delay_interval": 60})
    connected(client_id, 5, will=will, properties_=PERSISTENT).drop()
    watching.nothing()
    connected(client_id, 5, clean=True)
    assert watching.message(2).payload == b"ended"


def test_take_over_with_a_delayed_will(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.1.3-9]: the client is back before the delay is over"""
    watching = connected(version=5)
    watching.subscribe(topic, 1)
    will = Will(topic, b"no", 1, properties={"will_delay_interval": 1})
    connected(client_id, 5, will=will, properties_=PERSISTENT)
    connected(client_id, 5, clean=False, properties_=PERSISTENT)
    watching.nothing(1.5)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_delayed_will_survives_the_node(own_broker: Broker, end: str) -> None:
    """v5 [MQTT-3.1.2-7] [MQTT-3.1.2-8], section 4.1: it is part of the session's state"""
    lost = Client(own_broker.port, 5)
    will = Will("live/will", b"late", 1, retain=True, properties={"will_delay_interval": 1})
    lost.connect("device", will=will, properties_=PERSISTENT)
    lost.drop()
    time.sleep(0.3)  # the node has to see that the client is gone
    getattr(own_broker, end)()
    own_broker.start()
    watching = Client(own_broker.port, 5)
    watching.connect("")
    watching.subscribe("live/will", 1)
    assert watching.message(10).payload == b"late"


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("clean", [False, True])
def test_the_wills_of_a_node_that_ends(own_broker: Broker, version: int, end: str, clean: bool) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10], v3 [MQTT-3.1.2-17], v5 [MQTT-3.1.2-15]: the server may publish them once it is
    there again; all of them, each once"""
    watching = Client(own_broker.port, version)
    watching.connect("watching", clean=False, properties_=PERSISTENT if version == 5 else None)
    watching.subscribe("+/gone/#", 2)
    watching.disconnect()
    lost = [Client(own_broker.port, version) for _ in range(3)]
    for number, (client, name) in enumerate(zip(lost, ("kept", "live", "live"), strict=True)):
        will = Will(f"{name}/gone/{number}", b"gone", 1 + number % 2, retain=True)
        client.connect(f"lost{number}", clean=clean, will=will)
    for ending in (end, "kill", "stop"):
        getattr(own_broker, ending)()
        own_broker.start()
    watching = Client(own_broker.port, version)
    assert watching.connect("watching", clean=False, properties_=PERSISTENT if version == 5 else None).session_present
    found = [watching.message(5) for _ in range(3)]
    assert sorted(message.topic for message in found) == ["kept/gone/0", "live/gone/1", "live/gone/2"]
    watching.nothing()
    late = Client(own_broker.port, version)
    late.connect("")
    late.subscribe("+/gone/#", 1)
    assert {(message.payload, message.retain) for message in (late.message() for _ in range(3))} == {(b"gone", True)}


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_no_will_after_the_node_of_who_said_goodbye(own_broker: Broker, version: int, end: str) -> None:
    """[MQTT-3.1.2-10], [MQTT-3.14.4-3]"""
    client = Client(own_broker.port, version)
    client.connect("device", will=Will("live/will", b"no", 1, retain=True))
    client.disconnect()
    other = Client(own_broker.port, version)
    kept = PERSISTENT if version == 5 else None
    other.connect(
        "other", clean=False, properties_=kept
    )  # its CONNACK is durable behind what the first client's end has noted
    getattr(own_broker, end)()
    own_broker.start()
    late = Client(own_broker.port, version)
    late.connect("")
    late.subscribe("live/will", 1)
    late.nothing()


def test_the_delay_counts_from_when_the_node_is_there_again(own_broker: Broker) -> None:
    """v5 [MQTT-3.1.2-8] [MQTT-3.1.3-9]: who is back in time is not missed"""
    will = Will("live/will", b"late", 1, retain=True, properties={"will_delay_interval": 2})
    clients = [Client(own_broker.port, 5) for _ in range(2)]
    for number, client in enumerate(clients):
        client.connect(f"device{number}", will=will, properties_=PERSISTENT)
    own_broker.kill()
    time.sleep(2.1)  # longer than the delay
    own_broker.start()
    back = Client(own_broker.port, 5)
    assert back.connect("device0", clean=False, properties_=PERSISTENT).session_present
    watching = Client(own_broker.port, 5)
    watching.connect("")
    watching.subscribe("live/will", 1)
    watching.nothing()
    assert watching.message(5).payload == b"late"
    watching.nothing(2.5)


def test_disconnect_in_3_1_1_ends_the_connection(connected: Connect, version: int, live: str) -> None:
    """v3 section 3.14.4, v5 section 3.14.4: what comes after DISCONNECT is not read"""
    watching = connected(version=version)
    watching.subscribe(live, 0)
    client = connected(version=version)
    client.send(disconnect(), publish(live, b"no", version=version))
    client.closed()
    watching.nothing()


def test_disconnect_takes_a_reason_string_and_user_properties(connected: Connect) -> None:
    """v5 section 3.14.2.2"""
    client = connected(version=5)
    client.disconnect(0, {"reason_string": "done", "user_property": [("a", "b")]})
