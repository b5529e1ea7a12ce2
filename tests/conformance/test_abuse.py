"""Clients that misbehave harm themselves: others are served as before (v3 [MQTT-4.8.0-2], v5 [MQTT-4.13.1-1])."""

from __future__ import annotations

import random

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.raw_client import PUBACK, SUBACK, Client, connect, publish, subscribe

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
