"""How a server ends a connection: what it says, what may follow, and that it closes (section 3.14)."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from tests.conformance.conftest import PACKET_BYTES_MAX, Broker, Connect
from tests.conformance.raw_client import (
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    Client,
    Will,
    acknowledge,
    disconnect,
    packet,
    publish,
    subscribe,
)

CAUSES: dict[str, tuple[Callable[[int], bytes], int]] = {
    "malformed": (lambda _: packet(PINGREQ, 1, b""), 0x81),
    "not for servers": (lambda _: packet(13, 0, b""), 0x82),
    "too large": (lambda version: publish("live/a", bytes(PACKET_BYTES_MAX), version=version)[:50], 0x95),
    "topic with a wildcard": (lambda version: publish("a/#", b"", version=version), 0x90),
    "no filter": (lambda version: subscribe(1, version=version), 0x82),
}


@pytest.mark.parametrize(("wrong", "code"), CAUSES.values(), ids=CAUSES)
def test_nothing_follows_disconnect(
    connected: Connect, version: int, live: str, wrong: Callable[[int], bytes], code: int
) -> None:
    """v5 [MQTT-3.14.4-1]: DISCONNECT is the last packet, though messages for the client keep coming; in MQTT 3.1.1
    there is none"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(live, 0)
    flood = [publish(live, b"%d" % n, version=version) for n in range(200)]
    publisher.send(*flood)
    client.send(wrong(version))
    publisher.send(*flood)
    publisher.ping()
    got = client.closed()
    if version == 5:
        assert got[-1].kind == DISCONNECT
        assert got[-1].reason == code
        got.pop()
    assert {message.kind for message in got} <= {PUBLISH}


def test_nothing_follows_disconnect_of_a_take_over(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.14.4-1] [MQTT-3.1.4-3]: what comes after it is the new connection's"""
    session = {"session_expiry_interval": 60}
    first = connected(client_id, 5, properties_=session)
    first.subscribe(topic, 1)
    publisher = connected(version=5)
    publisher.send(*[publish(topic, b"%d" % n, version=5, qos=1, packet_id=n) for n in range(1, 21)])
    second = connected(client_id, 5, clean=False, properties_=session)
    for _ in range(20):
        publisher.take(PUBACK)
    before = first.closed()
    assert (before[-1].kind, before[-1].reason) == (DISCONNECT, 0x8E)
    assert {message.kind for message in before[:-1]} <= {PUBLISH}
    assert second.messages(20) == [b"%d" % n for n in range(1, 21)]


def send_for_ever(client: Client) -> None:
    """Until the other side says that it does not read any more."""
    for _ in range(200):
        client.send(packet(PINGREQ, 0, b""))
        select.select([], [], [], 0.01)


@pytest.mark.parametrize("wrong", [packet(PINGREQ, 1, b""), packet(13, 0, b"")], ids=["malformed", "not for servers"])
def test_the_connection_is_closed_in_both_directions(connected: Connect, version: int, wrong: bytes) -> None:
    """v5 [MQTT-3.14.4-2] [MQTT-4.13.1-1], v3 [MQTT-4.8.0-1]: the server does not wait for the client to close"""
    client = connected(version=version)
    client.send(wrong)
    client.closed()
    with pytest.raises(ConnectionError):
        send_for_ever(client)


def test_the_server_closes_after_the_client_s_disconnect(connected: Connect, version: int) -> None:
    """Section 3.14.4: though the client has not; and nothing is answered"""
    client = connected(version=version)
    client.send(disconnect(), packet(PINGREQ, 0, b""))
    assert client.closed() == []


def test_a_node_that_stops_says_so(own_broker: Broker, version: int) -> None:
    """v5 [MQTT-3.14.4-1] [MQTT-3.14.4-2]: 0x8B, and nothing behind it"""
    clients = [Client(own_broker.port, version) for _ in range(3)]
    for client in clients:
        client.connect("")
    own_broker.stop()
    for client in clients:
        reports = [(each.kind, each.reason) for each in client.closed()]
        assert reports == ([(DISCONNECT, 0x8B)] if version == 5 else [])


def test_from_no_session_to_one_is_told_as_a_protocol_error(
    connected: Connect, client: Connect, client_id: str
) -> None:
    """v5 section 3.14.2.2.2: DISCONNECT may not give a session to who connected without; and the will comes"""
    watching = connected(version=5)
    watching.subscribe(f"live/{client_id}")
    leaving = connected(client_id, 5, will=Will(f"live/{client_id}"))
    leaving.send(disconnect(0, {"session_expiry_interval": 60}))
    leaving.refused(0x82)
    assert watching.message().payload == b"gone"
    assert not client(5).connect(client_id, clean=False).session_present


def test_acknowledgements_behind_a_violation_are_not_processed(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """v5 [MQTT-4.13.1-1], v3 [MQTT-4.8.0-1]: the connection ends where the fault is, so the message comes again"""
    expiry = {"session_expiry_interval": 60} if version == 5 else None
    client = connected(client_id, version, clean=False, properties_=expiry)
    client.subscribe(topic, 1)
    connected(version=version).publish(topic, b"x", 1)
    message = client.take(PUBLISH)
    client.send(packet(PINGREQ, 1, b""), acknowledge(PUBACK, message.packet_id))
    client.closed()
    again = connected(client_id, version, clean=False, properties_=expiry).take(PUBLISH)
    assert (again.packet_id, again.payload, again.dup) == (message.packet_id, b"x", True)
