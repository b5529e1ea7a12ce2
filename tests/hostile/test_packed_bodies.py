"""A body that is small on the wire and long once it is unpacked, or parsed, is no long step of any server's loop.

Every socket that a node listens at gets them, whatever it speaks: also one that comes later.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import socket
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import Service
from tests.hostile.edge import GuardedEdge
from tests.hostile.hub import GuardedHub
from tests.support.waiting import PATIENCE_S
from weft.protocols.link import PAIR_PATH
from weft.replication.flow_control import LINK_PATH

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc tells where a process listens"),
]
UNPACKED_BYTES = 64 << 20
"""0.15 s of processor time to unpack, from 65 kB."""
REFUSED = {400, 401, 403, 404, 405, 413, 415}
LISTENS = "0A"
"""State of such a socket in /proc/net/tcp."""


Place = int | str
"""A TCP port, or the path of a socket of the machine."""


def listeners(pid: int) -> Iterator[Place]:
    """Yield where a process listens."""
    own = set()
    for each in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            own.add(os.readlink(f"/proc/{pid}/fd/{each}"))
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENS and f"socket:[{fields[9]}]" in own:
            yield int(fields[1].rpartition(":")[2], 16)
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "00010000" and f"socket:[{fields[6]}]" in own:  # it accepts connections
            yield fields[7]


def asked(at: Place, data: bytes) -> bytes:
    """Send to a listener, and return what it says until it ends the connection. Nothing is read before all is sent."""
    with socket.socket(socket.AF_UNIX if isinstance(at, str) else socket.AF_INET) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(at if isinstance(at, str) else ("127.0.0.1", at))
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        heard = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                heard += more
        return heard


def requests(path: str, login: str, coding: str, body: bytes) -> Iterator[bytes]:
    """Yield a request with a length, and one in chunks of a byte each."""
    fields = f"Host: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Encoding: {coding}\r\n"
    head = f"POST {path} HTTP/1.1\r\n{fields}{f'Authorization: {login}{chr(13)}{chr(10)}' if login else ''}".encode()
    yield head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in body[: 1 << 16])
    yield head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@functools.cache
def bodies() -> dict[str, bytes]:
    return {
        "gzip": zlib.compress(bytes(UNPACKED_BYTES), 9, 31),
        "deflate": zlib.compress(bytes(UNPACKED_BYTES), 9),
        "identity": b"[" * 3_000_000,
    }


def attack(node: Service, asks: dict[str, str]) -> dict[Place, set[bytes]]:
    """Send all bodies to all listeners of a node; return the answers' first lines of those that speak HTTP."""
    heard: dict[Place, set[bytes]] = {}
    for at in listeners(node.pid):
        for path, login in asks.items():
            for coding, body in bodies().items():
                for data in requests(path, login, coding, body):
                    said = asked(at, data)
                    if said.startswith(b"HTTP/"):
                        head = said.partition(b"\r\n\r\n")[0]
                        assert not re.search(rb"aiohttp|python", head, re.IGNORECASE), head
                        assert int(said.split()[1]) in REFUSED, said
                        heard.setdefault(at, set()).add(said.partition(b"\r\n")[0])
    return heard


def test_packed_bodies_are_no_work_of_a_hub(hub: GuardedHub) -> None:
    heard = attack(hub, {"/nothing": "", PAIR_PATH: "", "/v1/messages": f"Bearer {hub.admin}"})
    assert list(heard) == [hub.port]
    assert b"HTTP/1.1 415 Unsupported Media Type" in heard[hub.port]


def test_packed_bodies_are_no_work_of_an_edge(edge: GuardedEdge) -> None:
    login = "Basic " + base64.b64encode(b"mallory:mallory").decode()
    heard = attack(edge, {"/nothing": "", "/replay": "", "/v1/topics/public/x": login})
    control = str(edge.folder / "data" / "control.sock")
    assert {edge.http_port, edge.posts_port, edge.ws_port, control} == heard.keys()


def offers(path: str, token: str, protocol: str = "") -> bytes:
    """A handshake of a WebSocket that would rather have its messages packed."""
    login = f"Authorization: {token}\r\n" if token else ""
    named = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{login}{named}"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    ).encode()


PACKED_FRAME = b"\xc2\x80\0\0\0\0"
"""RSV1, with which a message is packed (RFC 7692, section 6)."""


def test_no_web_socket_takes_packed_messages(hub: GuardedHub, edge: GuardedEdge) -> None:
    login = "Basic " + base64.b64encode(b"alice:alice").decode()
    for port, offer in (
        (hub.port, offers(LINK_PATH, f"Bearer {hub.token('evil', 'mallory')}")),
        (edge.ws_port, offers("/mqtt", "", "mqtt")),
        (edge.posts_port, offers("/v1/streams/telemetry/events", login)),
    ):
        said = asked(port, offer + PACKED_FRAME)
        head = said.partition(b"\r\n\r\n")[0]
        assert head.startswith(b"HTTP/1.1 101 "), said
        assert b"extensions" not in head.lower()
        assert b"\x03\xea" in said, "closed for a protocol error"
