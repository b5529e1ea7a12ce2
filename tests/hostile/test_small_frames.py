"""Floods of the smallest frames of a WebSocket, by every way that has one: others wait no longer than for a turn.

One read of a socket has room for 43,690 frames of six bytes, all of which a library handles in one step. A client of a
node's MQTT listener sends them before it says who it is.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import time
from collections.abc import Iterator

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, link_to, records
from tests.hostile.waits import at_most
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.link import Ack
from weft.replication.runner import LINK_PATH

pytestmark = [pytest.mark.processes, pytest.mark.slow]
TAIL = "/v1/streams/telemetry/tail"
FLOOD_S = 2.0
SILENT_S = 1.0
EMPTY_MASK = b"\x80\0\0\0\0"
PINGS = (b"\x89" + EMPTY_MASK) * 40_000
"""Frames of a client (RFC 6455, section 5.2), masked with zeros."""
MESSAGES = (b"\x82" + EMPTY_MASK) * 40_000
PARTS = b"\x02" + EMPTY_MASK + (b"\x00" + EMPTY_MASK) * 40_000
"""A message that does not end, in empty parts."""
FLOODS = pytest.mark.parametrize("frames", [PINGS, MESSAGES, PARTS], ids=["pings", "messages", "parts"])


@contextlib.contextmanager
def opened(port: int, path: str, login: str) -> Iterator[socket.socket]:
    """Open a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {login}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        answer = connection.recv(4096)
        if answer.startswith(b"HTTP/1.1 429"):  # its earlier connections are not gone yet
            raise ConnectionRefusedError
        assert answer.startswith(b"HTTP/1.1 101"), answer
        yield connection


def flood(port: int, path: str, login: str, frames: bytes) -> None:
    """Send frames and read nothing, on as many connections as it takes: a server may close each."""
    until, sent = time.monotonic() + FLOOD_S, 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), opened(port, path, login) as connection:
            connection.settimeout(SILENT_S)
            while time.monotonic() < until:
                connection.sendall(frames)
                sent += len(frames)
    assert sent


@pytest.mark.parametrize("way", ["tail", "link"])
@FLOODS
async def test_links_of_others_hardly_notice(hub: GuardedHub, way: str, frames: bytes) -> None:
    async with link_to(hub, HOSTILE) as link:
        await link.greet()
        await link.open(link.opening())
        assert isinstance(await link.deliver(records(0)), Ack)
    token = hub.token("evil") if way == "tail" else hub.token(*HOSTILE)
    before = hub.memory_bytes()
    with GoodLink(hub) as good:
        await asyncio.to_thread(flood, hub.port, TAIL if way == "tail" else LINK_PATH, f"Bearer {token}", frames)
        at_most(1, good.take().p99)
    assert hub.memory_bytes() - before < 64 << 20


@pytest.mark.parametrize("way", ["mqtt", "events"])
@FLOODS
def test_devices_of_a_node_hardly_notice(edge: GuardedEdge, way: str, frames: bytes) -> None:
    login = "Basic " + base64.b64encode(b"mallory:mallory").decode()
    place = (edge.ws_port, "/mqtt") if way == "mqtt" else (edge.posts_port, "/v1/topics?filter=public/%23")
    before = edge.memory_bytes()
    with GoodClient(edge, "device") as good:
        flood(*place, login, frames)
        at_most(0.25, good.take().p99)
    wait_until(lambda: edge.memory_bytes() - before < 64 << 20, what="the memory of the node")
