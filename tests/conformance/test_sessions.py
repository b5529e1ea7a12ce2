"""Session state, take-over, offline messages, expiry and keep-alive (sections 3.1.2, 3.1.4, 4.1)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.conftest import Broker, Connect
from tests.conformance.raw_client import DISCONNECT, PUBACK, PUBLISH, Closed, disconnect, publish
from tests.support.speed import Stopwatch

PERSISTENT = {"session_expiry_interval": 60}
NEVER = 0xFFFFFFFF


def persistent(version: int) -> dict[str, object]:
    return {"clean": False, "properties_": PERSISTENT if version == 5 else None}


def test_session_present(connected: Connect, client: Connect, version: int, client_id: str) -> None:
    """v3 [MQTT-3.2.2-1] [MQTT-3.2.2-2] [MQTT-3.2.2-3], v5 [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-3.1.2-6]"""
    options = persistent(version)
    for clean, expected in ((False, False), (False, True), (True, False)):
        opened = client(version)
        assert opened.connect(client_id, **{**options, "clean": clean}).session_present is expected
        opened.disconnect()
    opened = client(version)
    assert opened.connect(client_id, **options).session_present is (version == 5), (
        "in 3.1.1 a clean session ends with its connection; in MQTT 5 its expiry interval says when"
    )


def test_clean_discards_the_session(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-3.1.2-6], v5 [MQTT-3.1.2-4]"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    first.disconnect()
    publisher = connected(version=version)
    publisher.publish(topic, b"offline", 1)
    clean = connected(client_id, version, clean=True)
    publisher.publish(topic, b"online", 1)
    clean.nothing()
    clean.disconnect()
    last = connected(client_id, version, **persistent(version))
    publisher.publish(topic, b"later", 1)
    last.nothing()


def test_a_clean_session_ends_with_its_connection(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-3.1.2-6] [MQTT-4.1.0-2], v5 [MQTT-4.1.0-2]"""
    first = connected(client_id, version, clean=True)
    first.subscribe(topic, 1)
    first.vanish()
    connected(version=version).publish(topic, b"x", 1)
    connected(client_id, version, **persistent(version)).nothing()


def test_subscriptions_are_resumed(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-3.1.2-4] [MQTT-4.1.0-1], v5 [MQTT-3.1.2-5] [MQTT-3.1.2-23]"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    first.subscribe(f"{topic}/gone", 1)
    first.unsubscribe(f"{topic}/gone")
    first.disconnect()
    second = connected(client_id, version, **persistent(version))
    publisher = connected(version=version)
    publisher.publish(f"{topic}/gone", b"no", 1)
    publisher.publish(topic, b"yes", 1)
    assert second.message().payload == b"yes"


@pytest.mark.parametrize("leave", ["disconnect", "drop"])
def test_messages_for_who_is_away(connected: Connect, version: int, topic: str, client_id: str, leave: str) -> None:
    """v3 [MQTT-3.1.2-5] [MQTT-4.5.0-1], v5 [MQTT-3.1.2-23] [MQTT-4.5.0-1]: QoS 1 and 2, in order, not as duplicates"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 2)
    getattr(first, leave)()
    time.sleep(0.1)
    publisher = connected(version=version)
    for n in range(40):
        publisher.publish(topic, b"%d" % n, 1 + n % 2)
    second = connected(client_id, version, **persistent(version))
    messages = [second.message() for _ in range(40)]
    for qos in (1, 2):  # the order is promised for each QoS [MQTT-4.6.0-5]
        got = [message.payload for message in messages if message.qos == qos]
        assert got == [b"%d" % n for n in range(40) if 1 + n % 2 == qos]
    assert not any(message.dup for message in messages)
    second.nothing()
    second.disconnect()
    connected(client_id, version, **persistent(version)).nothing()


def test_wildcard_subscriptions_of_who_is_away(connected: Connect, version: int, client_id: str) -> None:
    """v3 [MQTT-3.1.2-5], v5 [MQTT-3.1.2-23]: across topics that are kept and that are not, overlapping too"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(f"+/{client_id}/#", 1)
    first.subscribe(f"kept/{client_id}/+", 1)
    first.disconnect()
    publisher = connected(version=version)
    for n in range(6):
        publisher.publish(f"{'kept' if n % 2 else 'live'}/{client_id}/{n}", b"%d" % n, 1)
    second = connected(client_id, version, **persistent(version))
    missing = {b"%d" % n for n in range(6)}
    while missing:
        missing.discard(second.message().payload)


def test_retained_messages_are_not_sent_again_on_resume(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """[MQTT-3.3.1-6]: they come with a subscription, not with a session"""
    first = connected(client_id, version, **persistent(version))
    first.publish(topic, b"kept", 1, retain=True)
    first.subscribe(topic, 1)
    first.message()
    first.disconnect()
    connected(client_id, version, **persistent(version)).nothing()


def test_retain_flag_of_messages_for_who_is_away(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-3.3.1-9], v5 [MQTT-3.3.1-12]: the subscription was established, so RETAIN is 0"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    first.disconnect()
    connected(version=version).publish(topic, b"x", 1, retain=True)
    second = connected(client_id, version, **persistent(version))
    assert not second.message().retain


def test_more_than_fits_a_window_for_who_is_away(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-3.1.2-5], v5 [MQTT-3.1.2-23]: three thousand messages, then live ones, all in order"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    first.disconnect()
    publisher = connected(version=version)
    for start in range(0, 3000, 500):
        publisher.send(
            *[publish(topic, b"%d" % n, version=version, qos=1, packet_id=n + 1) for n in range(start, start + 500)]
        )
        for _ in range(500):
            publisher.take(PUBACK)
    second = connected(client_id, version, **persistent(version))
    got = second.messages(100)
    publisher.publish(topic, b"3000", 1)
    got += second.messages(2901)
    assert got == [b"%d" % n for n in range(3001)]


def test_take_over(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-3.1.4-2], v5 [MQTT-3.1.4-3]: DISCONNECT 0x8E in MQTT 5, and the new connection works"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    second = connected(client_id, version, **persistent(version))
    first.refused(0x8E)
    connected(version=version).publish(topic, b"x", 1)
    assert second.message().payload == b"x"


def test_take_over_resends_what_was_under_way(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """[MQTT-4.4.0-1], v3 [MQTT-3.1.4-2], v5 [MQTT-3.1.4-3]"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    connected(version=version).publish(topic, b"x", 1)
    message = first.take(PUBLISH)
    second = connected(client_id, version, **persistent(version))
    redelivered = second.take(PUBLISH)
    assert (redelivered.packet_id, redelivered.payload, redelivered.dup) == (message.packet_id, b"x", True)


def test_take_over_between_versions(connected: Connect, client: Connect, topic: str, client_id: str) -> None:
    """[MQTT-3.1.4-2] [MQTT-3.1.4-3]: a device that was updated keeps its session"""
    old = connected(client_id, 4, clean=False)
    old.subscribe(topic, 1)
    new = client(5)
    assert new.connect(client_id, clean=False, properties_=PERSISTENT).session_present
    connected().publish(topic, b"x", 1)
    assert new.message().payload == b"x"


def test_unfinished_messages_of_a_take_over_by_clean_start(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """v3 [MQTT-3.1.2-6], v5 [MQTT-3.1.2-4]"""
    first = connected(client_id, version, **persistent(version))
    first.subscribe(topic, 1)
    connected(version=version).publish(topic, b"x", 1)
    first.take(PUBLISH)
    connected(client_id, version, clean=True).nothing()


# --- keep-alive


def test_silence_ends_the_connection(broker: Broker, connected: Connect, version: int) -> None:
    """v3 [MQTT-3.1.2-24], v5 [MQTT-3.1.2-22]: after one and a half times the keep-alive; MQTT 5 says 0x8D"""
    stopwatch = Stopwatch(broker.pid)
    client = connected(version=version, keep_alive=1)
    client.refused(0x8D)
    assert stopwatch.by_the_clock() >= 1.4
    assert stopwatch.seconds() <= 3.5


def test_any_packet_keeps_alive(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-3.1.2-23], v5 [MQTT-3.1.2-20]"""
    client = connected(version=version, keep_alive=1)
    for n in range(4):
        client.nothing(0.8)
        client.ping() if n % 2 else client.publish(live, b"x")
    client.nothing(0.1)


def test_what_is_received_keeps_nothing_alive(broker: Broker, connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-3.1.2-24], v5 [MQTT-3.1.2-22]: the client has to speak, being sent messages does not count"""
    client, publisher = connected(version=version, keep_alive=1), connected(version=version)
    client.subscribe(live, 0)
    stopwatch = Stopwatch(broker.pid)
    try:
        while stopwatch.seconds() < 4:
            publisher.publish(live, b"x")
            client.message()
            time.sleep(0.2)
    except Closed:
        pass
    assert stopwatch.seconds() < 4


def test_keep_alive_zero(connected: Connect, version: int) -> None:
    """v3 section 3.1.2.10, v5 section 3.1.2.10: no limit (within what the server imposes)"""
    connected(version=version, keep_alive=0).nothing(2.5)


def test_server_keep_alive_is_meant(client: Connect) -> None:
    """v5 [MQTT-3.1.2-21] [MQTT-3.2.2-21]: it is only there when the client's own does not hold"""
    answer = client(5).connect("", keep_alive=30)
    assert answer.properties.get("server_keep_alive", 30) <= 30


# --- MQTT 5: expiry


def test_a_session_expires(client: Connect, client_id: str) -> None:
    """v5 [MQTT-3.1.2-23] [MQTT-4.1.0-2]"""
    for present in (False, False):
        opened = client(5)
        answer = opened.connect(client_id, clean=False, properties_={"session_expiry_interval": 1})
        assert answer.session_present is present
        opened.drop()
        time.sleep(2.2)


def test_a_session_is_there_until_it_expires(client: Connect, client_id: str) -> None:
    """v5 [MQTT-3.1.2-23] [MQTT-4.1.0-1]: connected, nothing expires"""
    opened = client(5)
    opened.connect(client_id, properties_={"session_expiry_interval": 1})
    opened.nothing(2.0)
    opened.vanish()
    assert client(5).connect(client_id, clean=False).session_present


@pytest.mark.parametrize("interval", [None, 0])
def test_no_expiry_interval_ends_with_the_connection(client: Connect, client_id: str, interval: int | None) -> None:
    """v5 section 3.1.2.11.2"""
    opened = client(5)
    opened.connect(client_id, properties_=None if interval is None else {"session_expiry_interval": interval})
    opened.disconnect()
    assert not client(5).connect(client_id, clean=False).session_present


def test_a_session_without_end(client: Connect, client_id: str) -> None:
    """v5 section 3.1.2.11.2: 0xFFFFFFFF; a server that bounds it says so"""
    opened = client(5)
    answer = opened.connect(client_id, properties_={"session_expiry_interval": NEVER})
    assert answer.properties.get("session_expiry_interval", NEVER) > 0
    opened.disconnect()
    assert client(5).connect(client_id, clean=False).session_present


def test_disconnect_changes_the_expiry(client: Connect, client_id: str) -> None:
    """v5 section 3.14.2.2.2: zero ends the session at once"""
    opened = client(5)
    opened.connect(client_id, properties_=PERSISTENT)
    opened.disconnect(0, {"session_expiry_interval": 0})
    assert not client(5).connect(client_id, clean=False).session_present


def test_disconnect_prolongs_the_expiry(client: Connect, client_id: str) -> None:
    """v5 section 3.14.2.2.2"""
    opened = client(5)
    opened.connect(client_id, properties_={"session_expiry_interval": 1})
    opened.disconnect(0, {"session_expiry_interval": 60})
    time.sleep(2.0)
    assert client(5).connect(client_id, clean=False).session_present


def test_disconnect_cannot_make_a_session_outlive_its_connection(client: Connect, client_id: str) -> None:
    """v5 section 3.14.2.2.2: from zero to something is a protocol error"""
    opened = client(5)
    opened.connect(client_id)
    opened.send(disconnect(0, {"session_expiry_interval": 60}))
    packets = opened.closed()
    assert [(packet.kind, packet.reason) for packet in packets] in ([], [(DISCONNECT, 0x82)])
    assert not client(5).connect(client_id, clean=False).session_present


def test_clean_start_with_expiry(client: Connect, client_id: str) -> None:
    """v5 [MQTT-3.1.2-4] [MQTT-3.1.2-5]: a new session that lasts"""
    for clean, present in ((True, False), (False, True), (True, False)):
        opened = client(5)
        assert opened.connect(client_id, clean=clean, properties_=PERSISTENT).session_present is present
        opened.disconnect()


def test_messages_expire_for_who_is_away(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.3.2-5] [MQTT-3.3.2-6]: the wait is taken off the interval"""
    first = connected(client_id, 5, properties_=PERSISTENT)
    first.subscribe(topic, 1)
    first.disconnect()
    publisher = connected(version=5)
    publisher.publish(topic, b"short", 1, properties_={"message_expiry_interval": 1})
    publisher.publish(topic, b"long", 1, properties_={"message_expiry_interval": 100})
    publisher.publish(topic, b"ever", 1)
    time.sleep(2.1)
    second = connected(client_id, 5, clean=False, properties_=PERSISTENT)
    message = second.message()
    assert message.payload == b"long"
    assert 90 <= message.properties["message_expiry_interval"] <= 98
    message = second.message()
    assert (message.payload, message.properties) == (b"ever", {})
    second.nothing()


def test_expiry_of_what_is_passed_on_at_once(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.2-6]"""
    client = connected(version=5)
    client.subscribe(topic, 1)
    client.publish(topic, b"x", 1, properties_={"message_expiry_interval": 10})
    assert 9 <= client.message().properties["message_expiry_interval"] <= 10


def test_a_message_under_way_does_not_expire(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-4.3.3-7] [MQTT-4.3.3-13]: once it was sent its handshake is completed"""
    first = connected(client_id, 5, properties_=PERSISTENT)
    first.subscribe(topic, 2)
    connected(version=5).publish(topic, b"x", 2, properties_={"message_expiry_interval": 1})
    sent = first.take(PUBLISH)
    first.drop()
    time.sleep(1.6)
    second = connected(client_id, 5, clean=False, properties_=PERSISTENT)
    message = second.message()
    assert (message.packet_id, message.payload, message.dup) == (sent.packet_id, b"x", True)
