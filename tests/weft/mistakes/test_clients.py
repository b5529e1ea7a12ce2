"""What a node's log says of connections that never become MQTT clients: what they spoke, and never `None`."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S, wait_until
from tests.weft.mistakes import surroundings
from tests.weft.mistakes.place import Place, made
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect

CLIENTS = [
    (
        "a browser at the MQTT port",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "client without a CONNECT at <client>: it speaks HTTP and this is a port for MQTT. The status page is at "
        "`http.bind`, MQTT over WebSocket at `ws`",
    ),
    (
        "TLS to a listener without it",
        bytes.fromhex("16030100c8010000c40303") + bytes(100),
        "client without a CONNECT at <client>: it speaks TLS and this listener has none. Connect without TLS, or give "
        "the listener `tls`",
    ),
    (
        "a balancer's PROXY header that is not expected",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 5 1883\r\n" + encode(Connect("press-7" * 10)),
        "client without a CONNECT at <client>: it sends a PROXY header and this listener expects none. Set "
        "`proxy_protocol`, or connect directly",
    ),
    ("bytes of no protocol", b"\xff\xff", "client without a CONNECT at <client>: "),
    ("a probe that says nothing", b"", "client without a CONNECT at <client>: connection lost (closed by the client)"),
    ("a packet before CONNECT", bytes.fromhex("c000"), "client without a CONNECT at <client>: "),
]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with made() as found, surroundings.running(found):
        yield found


@pytest.mark.parametrize(("did", "data", "says"), CLIENTS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_connection_that_is_no_client(did: str, data: bytes, says: str, place: Place) -> None:
    log = Path(place.filled("<node>.stderr", Path()))
    with socket.create_connection(("127.0.0.1", int(place.filled("<node mqtt>", Path())))) as client:
        name = ":".join(map(str, client.getsockname()))
        client.sendall(data)
        if data:
            client.settimeout(PATIENCE_S)
            while client.recv(100):
                pass
    wait_until(lambda: name in log.read_text())
    (line,) = [line for line in log.read_text().splitlines() if name in line]
    assert f"closed MQTT {says}".replace("<client>", name) in line
    assert "None" not in line


def test_a_client_that_is_refused_is_named(place: Place) -> None:
    log = Path(place.filled("<node>.stderr", Path()))
    with socket.create_connection(("127.0.0.1", int(place.filled("<node mqtt>", Path())))) as client:
        client.sendall(encode(Connect("press-7", username="anna", password=b"wrong")))
        client.settimeout(PATIENCE_S)
        assert client.recv(100)
    wait_until(lambda: "wrong password or no such user" in log.read_text())
    lines = [line for line in log.read_text().splitlines() if "wrong password" in line]
    (line,) = [line for line in lines if "weft.events" not in line]
    assert re.search(r"closed MQTT client 'press-7' at 127\.0\.0\.1:\d+: wrong password or no such user: 'anna'", line)
