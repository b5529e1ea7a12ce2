"""WebSocket as a transport (chapter 6)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.conftest import Broker
from tests.conformance.raw_client import (
    CONNACK,
    CONTINUATION,
    PING,
    PUBACK,
    TEXT,
    Client,
    Refused,
    WebSocket,
    connect,
    publish,
    subscribe,
)

Open = Callable[[], tuple[WebSocket, Client]]


@pytest.fixture
def web(broker: Broker, version: int) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def open_web() -> tuple[WebSocket, Client]:
            transport = WebSocket(broker.web_port)
            stack.callback(transport.close)
            return transport, Client(broker.web_port, version, transport)

        yield open_web


def test_the_subprotocol_is_mqtt(broker: Broker) -> None:
    """[MQTT-6.0.0-3] [MQTT-6.0.0-4]"""
    transport = WebSocket(broker.web_port, subprotocols="chat, mqtt")
    assert transport.subprotocol == "mqtt"
    transport.close()


@pytest.mark.parametrize("subprotocols", [None, "chat", "mqttv3.1x"])
def test_other_subprotocols_are_refused(broker: Broker, subprotocols: str | None) -> None:
    """[MQTT-6.0.0-3] [MQTT-6.0.0-4]: no connection, or one that is closed before it says anything"""
    try:
        transport = WebSocket(broker.web_port, subprotocols=subprotocols)
    except Refused:
        return
    assert transport.subprotocol != "chat"
    client = Client(broker.web_port, 4, transport)
    client.send(connect("", version=4))
    assert client.closed() == []


def test_publish_and_subscribe(web: Open, version: int, topic: str) -> None:
    """[MQTT-6.0.0-1]"""
    _, client = web()
    client.connect("")
    client.subscribe(topic, 2)
    for qos in (0, 1, 2):
        client.publish(topic, bytes(30_000), qos)
        assert client.message().qos == qos
    client.ping()
    client.disconnect()


def test_text_frames_end_the_connection(web: Open, version: int) -> None:
    """[MQTT-6.0.0-1]"""
    transport, client = web()
    client.connect("")
    transport.send_frame(TEXT, b"\xc0\x00")
    client.closed()


def test_packets_need_not_begin_with_frames(web: Open, version: int, live: str) -> None:
    """[MQTT-6.0.0-2]: several in one frame, one in several frames, frames in fragments"""
    transport, client = web()
    data = connect("", version=version) + subscribe(1, (live, 1), version=version)
    data += publish(live, b"hello", version=version, qos=1, packet_id=9)
    transport.sendall(data[:40])
    for byte in data[40:50]:
        transport.sendall(bytes([byte]))
    transport.send_frame(2, data[50:52], final=False)
    transport.send_frame(PING, b"in between")
    transport.send_frame(CONTINUATION, data[52:])
    assert client.next().kind == CONNACK
    assert client.message().payload == b"hello"
    assert client.take(PUBACK).packet_id == 9


def test_a_session_over_both_transports(web: Open, broker: Broker, version: int, topic: str, client_id: str) -> None:
    """[MQTT-3.1.4-2] [MQTT-3.1.4-3] [MQTT-4.2.0-1]: it belongs to the client, however it connects"""
    expiry = {"session_expiry_interval": 60} if version == 5 else None
    _, client = web()
    client.connect(client_id, clean=False, properties_=expiry)
    client.subscribe(topic, 1)
    plain = Client(broker.port, version)
    assert plain.connect(client_id, clean=False, properties_=expiry).session_present
    client.closed()
    plain.publish(topic, b"x", 1)
    assert plain.message().payload == b"x"
    plain.drop()
