"""What the protocol promised holds across the end of the node, by SIGTERM and by SIGKILL (sections 4.1, 4.3, 4.4)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.conftest import Broker
from tests.conformance.raw_client import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Client, acknowledge, publish


class Setting:
    """A broker and how it ends."""

    def __init__(self, broker: Broker, end: str, version: int) -> None:
        self.broker, self.end, self.version = broker, end, version

    def restart(self) -> None:
        getattr(self.broker, self.end)()
        self.broker.start()

    def connect(self, client_id: str = "", *, present: bool | None = None) -> Client:
        client = Client(self.broker.port, self.version)
        expiry = {"session_expiry_interval": 3600} if self.version == 5 else None
        answer = client.connect(client_id, clean=not client_id, properties_=expiry if client_id else None)
        assert present is None or answer.session_present is present
        return client


@pytest.fixture(params=["kill", "stop"])
def setting(own_broker: Broker, version: int, request: pytest.FixtureRequest) -> Setting:
    return Setting(own_broker, request.param, version)


@pytest.fixture(params=["kept/a", "live/a"])
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_session_is_resumed(setting: Setting, topic: str) -> None:
    """v3 [MQTT-3.1.2-4] [MQTT-3.2.2-2], v5 [MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT-3.2.2-3], [MQTT-4.1.0-1]"""
    client = setting.connect("device")
    client.subscribe(topic, 1)
    client.subscribe("live/other", 1)
    client.unsubscribe("live/other")
    setting.restart()
    client = setting.connect("device", present=True)
    publisher = setting.connect()
    publisher.publish("live/other", b"no", 1)
    publisher.publish(topic, b"x", 1)
    assert client.message().payload == b"x"
    client.nothing()


def test_a_clean_session_is_not(setting: Setting) -> None:
    """v3 [MQTT-3.1.2-6] [MQTT-3.2.2-3], v5 [MQTT-4.1.0-2] [MQTT-3.2.2-2]"""
    client = Client(setting.broker.port, setting.version)
    client.connect("device")
    client.subscribe("live/a", 1)
    setting.restart()
    client = setting.connect("device", present=False)
    setting.connect().publish("live/a", b"x", 1)
    client.nothing()


def test_messages_for_who_is_away(setting: Setting, topic: str) -> None:
    """v3 [MQTT-3.1.2-5] [MQTT-4.5.0-1], v5 [MQTT-3.1.2-23] [MQTT-4.5.0-1]: acknowledged is kept"""
    client = setting.connect("device")
    client.subscribe(topic, 2)
    client.disconnect()
    publisher = setting.connect()
    for n in range(20):
        publisher.publish(topic, b"%d" % n, 1 + n % 2)
    setting.restart()
    client = setting.connect("device", present=True)
    messages = [client.message() for _ in range(20)]
    for qos in (1, 2):  # the order is promised for each QoS [MQTT-4.6.0-5]
        got = [message.payload for message in messages if message.qos == qos]
        assert got == [b"%d" % n for n in range(20) if 1 + n % 2 == qos]
    client.nothing()


def test_what_was_acknowledged_does_not_come_again(setting: Setting, topic: str) -> None:
    """v3 [MQTT-4.3.2-1] [MQTT-4.3.3-1], v5 [MQTT-4.3.2-3] [MQTT-4.3.3-5]: QoS 2 never; QoS 1 at most what was
    acknowledged in the moment of the kill"""
    client = setting.connect("device")
    client.subscribe(topic, 2)
    publisher = setting.connect()
    for n in range(10):
        publisher.publish(topic, b"%d" % n, 2)
    assert client.messages(10) == [b"%d" % n for n in range(10)]
    client.ping()
    setting.restart()
    client = setting.connect("device", present=True)
    setting.connect().publish(topic, b"new", 2)
    packets = [client.next()]
    while packets[-1].kind != PUBLISH:  # a PUBREL whose PUBCOMP was not on disk yet may come again
        assert packets[-1].kind == PUBREL
        packets.append(client.next())
    assert packets[-1].payload == b"new"


def test_redelivery_of_qos_1(setting: Setting, topic: str) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.6.0-1]: same identifiers with DUP, in order; then what was never sent"""
    client = setting.connect("device")
    client.subscribe(topic, 1)
    publisher = setting.connect()
    for n in range(3):
        publisher.publish(topic, b"%d" % n, 1)
    sent = [client.take(PUBLISH) for _ in range(3)]
    client.vanish()
    publisher.publish(topic, b"3", 1)
    setting.restart()
    client = setting.connect("device", present=True)
    again = [client.take(PUBLISH) for _ in range(4)]
    assert [m.payload for m in again] == [b"0", b"1", b"2", b"3"]
    assert [m.packet_id for m in again[:3]] == [m.packet_id for m in sent]
    assert all(m.dup for m in again[:3])
    if setting.end == "stop":  # after a kill the node cannot know that it never sent the last one
        assert not again[3].dup


def test_redelivery_of_qos_2_before_pubrec(setting: Setting, topic: str) -> None:
    """[MQTT-4.4.0-1], v3 [MQTT-4.3.3-1], v5 [MQTT-4.3.3-3]"""
    client = setting.connect("device")
    client.subscribe(topic, 2)
    setting.connect().publish(topic, b"x", 2)
    sent = client.take(PUBLISH)
    setting.restart()
    client = setting.connect("device", present=True)
    again = client.take(PUBLISH)
    assert (again.packet_id, again.payload, again.qos, again.dup) == (sent.packet_id, b"x", 2, True)


def test_redelivery_of_pubrel(setting: Setting, topic: str) -> None:
    """[MQTT-4.4.0-1], v3 [MQTT-4.3.3-1], v5 [MQTT-4.3.3-5] [MQTT-4.3.3-6]: once PUBREL was seen the message never
    comes again"""
    client = setting.connect("device")
    client.subscribe(topic, 2)
    setting.connect().publish(topic, b"x", 2)
    sent = client.take(PUBLISH)
    client.send(acknowledge(PUBREC, sent.packet_id))
    client.take(PUBREL)
    setting.restart()
    client = setting.connect("device", present=True)
    release = client.next()
    assert (release.kind, release.packet_id) == (PUBREL, sent.packet_id)
    client.send(acknowledge(PUBCOMP, sent.packet_id))
    client.nothing()


def test_redelivery_of_retained_messages(setting: Setting) -> None:
    """[MQTT-4.4.0-1], v3 [MQTT-3.3.1-8], v5 [MQTT-3.3.1-8]: what a subscription brought, though its topic has another
    message by now"""
    publisher = setting.connect()
    for topic in ("kept/1", "live/2", "live/3"):
        publisher.publish(topic, b"old", 2, retain=True)
    client = setting.connect("device")
    client.subscribe("+/1", 1)
    client.subscribe("live/+", 2)
    sent = {message.topic: message for message in (client.take(PUBLISH) for _ in range(3))}
    client.vanish()
    publisher.publish("kept/1", b"new", 1, retain=True)
    publisher.publish("live/2", b"", 1, retain=True)
    setting.restart()
    client = setting.connect("device", present=True)
    again = {message.topic: message for message in (client.take(PUBLISH) for _ in range(3))}
    assert again.keys() == sent.keys()
    for topic, message in sent.items():
        found = again[topic]
        assert (found.packet_id, found.payload, found.qos) == (message.packet_id, b"old", message.qos)
        assert (found.retain, found.dup) == (True, True)


def test_identifiers_in_use_are_not_given_to_others(setting: Setting, topic: str) -> None:
    """v3 [MQTT-2.3.1-4], v5 [MQTT-2.2.1-4]"""
    client = setting.connect("device")
    client.subscribe(topic, 2)
    publisher = setting.connect()
    publisher.publish(topic, b"1", 1)
    publisher.publish(topic, b"2", 2)
    used = {client.take(PUBLISH).packet_id for _ in range(2)}
    setting.restart()
    client = setting.connect("device", present=True)
    assert {client.take(PUBLISH).packet_id for _ in range(2)} == used
    publisher = setting.connect()
    for n in range(10):
        publisher.publish(topic, b"%d" % n, 1)
        assert client.take(PUBLISH).packet_id not in used


def test_qos_2_from_the_client_exactly_once(setting: Setting, topic: str) -> None:
    """v3 [MQTT-4.3.3-2], v5 [MQTT-4.3.3-10]: an identifier that was answered with PUBREC is known"""
    watching = setting.connect("watching")
    watching.subscribe(topic, 2)
    client = setting.connect("device")
    client.send(publish(topic, b"once", version=setting.version, qos=2, packet_id=9))
    client.take(PUBREC)
    setting.restart()
    client = setting.connect("device", present=True)
    client.send(publish(topic, b"once", version=setting.version, qos=2, packet_id=9, dup=True))
    assert client.take(PUBREC).packet_id == 9
    client.send(acknowledge(PUBREL, 9))
    answer = client.take(PUBCOMP)
    assert (answer.packet_id, answer.reason) == (9, 0)
    watching = setting.connect("watching", present=True)
    assert watching.message().payload == b"once"
    watching.nothing()


def test_qos_2_identifier_is_free_after_pubcomp(setting: Setting, topic: str) -> None:
    """v3 [MQTT-4.3.3-2], v5 [MQTT-4.3.3-12]: after the restart it is a new message's"""
    watching = setting.connect("watching")
    watching.subscribe(topic, 2)
    client = setting.connect("device")
    client.send(publish(topic, b"1", version=setting.version, qos=2, packet_id=9))
    client.take(PUBREC)
    client.send(acknowledge(PUBREL, 9))
    client.take(PUBCOMP)
    setting.restart()
    client = setting.connect("device", present=True)
    client.send(publish(topic, b"2", version=setting.version, qos=2, packet_id=9))
    client.take(PUBREC)
    watching = setting.connect("watching", present=True)
    assert watching.messages(2) == [b"1", b"2"]


def test_acknowledged_messages_of_many_windows_survive(setting: Setting, topic: str) -> None:
    """v3 [MQTT-4.5.0-1], v5 [MQTT-4.5.0-1]"""
    away = setting.connect("device")
    away.subscribe(topic, 1)
    away.disconnect()
    publisher = setting.connect()
    publisher.send(*[publish(topic, b"%d" % n, version=setting.version, qos=1, packet_id=n) for n in range(1, 500)])
    for n in range(1, 500):
        assert publisher.take(PUBACK).packet_id == n
    setting.restart()
    away = setting.connect("device", present=True)
    assert away.messages(499) == [b"%d" % n for n in range(1, 500)]
    away.ping()
    setting.restart()
    away = setting.connect("device", present=True)
    setting.connect().publish(topic, b"new", 1)
    seen = [away.message()]
    while seen[-1].payload != b"new":
        seen.append(away.message())
    assert all(message.dup for message in seen[:-1]), "what comes again was in flight at the kill, and says so"


def test_subscription_options_survive(own_broker: Broker) -> None:
    """v5 section 4.1, [MQTT-3.8.3-3] [MQTT-3.3.1-13] [MQTT-3.3.4-3]"""
    options = {"clean": False, "properties_": {"session_expiry_interval": 3600}}
    client = Client(own_broker.port, 5)
    client.connect("device", **options)
    client.subscribe("live/a", 1 | 0x04 | 0x08, {"subscription_identifier": 7})
    own_broker.kill()
    own_broker.start()
    client = Client(own_broker.port, 5)
    assert client.connect("device", **options).session_present
    client.publish("live/a", b"own", 1)
    other = Client(own_broker.port, 5)
    other.connect("")
    other.publish("live/a", b"other", 1, retain=True)
    message = client.message()
    assert (message.payload, message.retain) == (b"other", True)
    assert message.properties["subscription_identifier"] == [7]


def test_expiry_goes_on_while_the_node_is_down(own_broker: Broker) -> None:
    """v5 [MQTT-4.1.0-2] [MQTT-3.1.2-23]"""
    for name, seconds in (("short", 1), ("long", 3600)):
        client = Client(own_broker.port, 5)
        client.connect(name, properties_={"session_expiry_interval": seconds})
        client.disconnect()
    own_broker.stop()
    own_broker.start()
    time.sleep(1.2)
    for name, present in (("short", False), ("long", True)):
        client = Client(own_broker.port, 5)
        assert client.connect(name, clean=False).session_present is present


def test_a_group_s_messages_are_completed_once(setting: Setting, topic: str) -> None:
    """v5 [MQTT-4.8.2-5]: what one member has at QoS 2 is no other's after the node has ended"""
    members = [setting.connect(name) for name in ("m0", "m1")]
    for member in members:
        member.subscribe(f"$share/g/{topic}", 2)
    publisher = setting.connect()
    for number in range(8):
        publisher.publish(topic, b"%d" % number, 2)
    assert sorted(member.message().payload for member in members for _ in range(4)) == [b"%d" % n for n in range(8)]
    setting.restart()
    members = [setting.connect(name, present=True) for name in ("m0", "m1")]
    publisher = setting.connect()
    for _ in members:
        publisher.publish(topic, b"new", 2)
    assert [member.take(PUBLISH).payload for member in members] == [b"new", b"new"]


def test_the_node_says_that_it_stops(own_broker: Broker) -> None:
    """v5 section 3.14.2.1: DISCONNECT 0x8B"""
    client = Client(own_broker.port, 5)
    client.connect("device")
    own_broker.stop()
    client.refused(0x8B)
    own_broker.start()
