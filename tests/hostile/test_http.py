"""One client by HTTP has the node work hard, holds what it never ends, or reads nothing; others are served."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from examples.demo.fabric import Service, free_port
from tests.hostile.edge import GuardedEdge
from tests.hostile.flood import flood
from tests.hostile.good_client import GoodClient, at_most
from tests.hostile.hub import GuardedHub
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, Patience, wait_until
from weft.protocols.link import PAIR_PATH
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Subscribe, Subscription
from weft.replication.flow_control import LINK_PATH

pytestmark = pytest.mark.processes

UNDISTURBED_S, ATTACK_S = 0.7, 2.5
FACTOR = 10
"""The well-behaved client's p99 may be so many times the undisturbed one."""
LEAST_S = 0.04
"""Undisturbed p99 below which the comparison would measure the machine."""
LOGIN = "Basic " + base64.b64encode(b"mallory:mallory").decode()
HEAD = f"Host: 127.0.0.1\r\nAuthorization: {LOGIN}\r\n".encode()
JSON = b"Content-Type: application/json\r\n"
EVENTS = b"Content-Type: application/cloudevents-batch+json\r\n"


def request(path: str, body: bytes, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n%b\r\n%b" % (path.encode(), HEAD, len(body), more, body)


def pings() -> bytes:
    return b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20_000


def refusals() -> bytes:
    return request("/v1/topics/secret/x", b"1") * 10_000


def small_posts() -> bytes:
    return request("/v1/topics/public/x", b"1") * 10_000


def new_topics() -> bytes:
    return b"".join(request(f"/v1/topics/public/x/{number}", b"1") for number in range(20_000))


def long_arrays() -> bytes:
    return request(
        "/v1/topics/public/x", b"[" + b",".join([b'"x"'] * 9_999) + b"]", b"Content-Type: application/json\r\n"
    )


def arrays_of_too_many() -> bytes:
    return request("/v1/topics/public/x", b"[" + b"1," * 150_000 + b"1]", JSON)


def many_points() -> bytes:
    line = b'm,a=1,b=2,c=3 f=1i,g=2.5,h=t,i="text" 1700000000\n'
    return request("/api/v2/write?bucket=public&precision=s", line * 9_000)


def many_events() -> bytes:
    event = b'{"specversion":"1.0","id":"1","source":"a","type":"b","c":"d","e":1,"f":true,"data":1}'
    return request("/v1/topics/public/x", b"[" + b",".join([event] * 9_000) + b"]", EVENTS)


def keys() -> bytes:
    return b"".join(
        request("/v1/topics/public/x", b"1", f"Idempotency-Key: {number}\r\n".encode()) for number in range(10_000)
    )


@pytest.mark.parametrize(
    ("made", "connections"),
    [
        pytest.param(small_posts, 50, marks=pytest.mark.slow),
        *(
            pytest.param(made, count, marks=pytest.mark.search)
            for made, count in SLICE.some(
                [
                    (pings, 1),
                    (refusals, 10),
                    (new_topics, 1),
                    (long_arrays, 4),
                    (arrays_of_too_many, 4),
                    (many_points, 4),
                    (many_events, 4),
                    (keys, 10),
                ],
                ci=3,
            )
        ),
    ],
)
def test_others_are_served_between_the_turns_of_one_user(
    edge: GuardedEdge, tmp_path: Path, made: Callable[[], bytes], connections: int
) -> None:
    (tmp_path / "requests").write_bytes(made())
    with GoodClient(edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        flood(edge.posts_port, tmp_path / "requests", ATTACK_S, connections)
        attacked = good.take()
        at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)


def post(edge: GuardedEdge, user: str, body: bytes) -> int:
    login = "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{edge.posts_port}/v1/streams/telemetry/plant/a/b/telemetry", body, {"Authorization": login}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        return int(json.load(answer)["count"])


def again(edge: GuardedEdge, body: bytes) -> int:
    """Post as a client does whose connection broke: until it is known who sends, all of an address share one share."""
    patience = Patience()
    while True:
        try:
            return post(edge, "alice", body)
        except OSError:
            assert not patience.is_over()
            time.sleep(0.05)


@pytest.fixture
def small(tmp_path: Path) -> GuardedEdge:
    return GuardedEdge(tmp_path, "unfinished: 8MiB, connections: 400, half_open: 200")


def test_bodies_that_never_end_take_a_share_of_the_memory(small: GuardedEdge) -> None:
    edge = small
    edge.start()
    clients = []
    try:
        with pytest.raises(urllib.error.HTTPError, match="403"):
            post(edge, "mallory", b"1")  # until its password is known, it is the address that is charged
        assert post(edge, "alice", b"1") == 1
        before = edge.memory_bytes()
        for _ in range(60):
            client = socket.create_connection(("127.0.0.1", edge.posts_port))
            client.settimeout(PATIENCE_S)
            clients.append(client)
            with contextlib.suppress(OSError):  # the share is used up
                client.sendall(b"POST /v1/topics/public/x HTTP/1.1\r\n%bContent-Length: 1000000\r\n\r\n" % HEAD)
                client.sendall(b"x" * 900_000)
        assert again(edge, b'"%b"' % (b"x" * 900_000)) == 1
        assert edge.memory_bytes() - before < 32 << 20  # with what malloc keeps; all of them have 54 MB
        assert 'bound="limits.user_share of limits.unfinished",owner="user mallory"' in edge.metrics()
    finally:
        for client in clients:
            client.close()
        edge.stop()


def test_heads_that_never_end_keep_no_one_out(small: GuardedEdge) -> None:
    edge = small
    edge.start()
    clients = []
    try:
        for number in range(600):
            client = socket.create_connection(("127.0.0.1", edge.posts_port))
            clients.append(client)
            with contextlib.suppress(OSError):
                client.sendall(b"POST /v1/topics/public/x HTTP/1.1\r\nX: %d\r\n" % number)
        assert post(edge, "alice", b"1") == 1
    finally:
        for client in clients:
            client.close()
        edge.stop()


def test_one_user_has_a_share_of_the_connections(small: GuardedEdge) -> None:
    edge = small
    edge.start()
    clients = []
    try:
        answers = []
        for _ in range(120):
            client = socket.create_connection(("127.0.0.1", edge.posts_port))
            client.settimeout(PATIENCE_S)
            clients.append(client)
            client.sendall(request("/v1/topics/public/x", b"1"))
            answers.append(client.recv(12)[9:12])
        assert answers == [b"200"] * 100 + [b"503"] * 20
        assert post(edge, "alice", b"1") == 1
    finally:
        for client in clients:
            client.close()
        edge.stop()


# --- Idle connections to the status page take no place of devices: the MQTT door stays open, and the log its files


FILES_MAX = 400
"""Files that the node may open: a flood of connections is over the sooner."""
CONNECTIONS = 600


def closed(edge: GuardedEdge) -> float:
    """How often the metrics say that the bound was met."""
    with urllib.request.urlopen(f"http://127.0.0.1:{edge.http_port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if 'refusals_total{bound="limits.http_connections"' in line)


@pytest.mark.slow
def test_a_node_serves_devices_while_its_status_page_is_flooded(tmp_path: Path) -> None:
    edge = GuardedEdge(tmp_path, "http_connections: 20")
    edge.command = ["sh", "-c", f'ulimit -n {FILES_MAX}; exec "$@"', "sh", *edge.command]
    edge.start()
    process = psutil.Process(edge.pid)
    try:
        with GoodClient(edge, "device") as good:
            before = process.num_fds()
            flood = [
                socket.create_connection(("127.0.0.1", edge.http_port), timeout=PATIENCE_S) for _ in range(CONNECTIONS)
            ]
            wait_until(lambda: process.num_fds() <= before + 20, what="closing the idle connections")
            assert closed(edge) >= CONNECTIONS - 20
            with GoodClient(edge, "alice", "newcomer"):
                assert edge.status()["mqtt"]["connections"] == 2
            for each in flood:
                each.close()
            at_most(2.0, good.take().longest)
            wait_until(lambda: process.num_fds() <= before, what="giving the files back")
        assert "limits.http_connections" in edge.log_path.read_text()
    finally:
        edge.stop()


# --- A body that is small on the wire and long once it is unpacked, or parsed, is no long step of any server's loop
#
# Every socket that a node listens at gets them, whatever it speaks: also one that comes later.


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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells where a process listens")
def test_packed_bodies_are_no_work_of_a_hub(hub: GuardedHub) -> None:
    heard = attack(hub, {"/nothing": "", PAIR_PATH: "", "/v1/messages": f"Bearer {hub.admin}"})
    assert list(heard) == [hub.port]
    assert b"HTTP/1.1 415 Unsupported Media Type" in heard[hub.port]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells where a process listens")
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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells where a process listens")
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


# --- A page of a stranger, open in a browser on the machine, reads and publishes nothing through loopback listeners
#
# Its owner has the page's host name resolved to 127.0.0.1 (DNS rebinding), so that the browser takes page and listener
# for one origin.


STRANGER = "page.stranger.example"
EDGE = """\
node: press-1
data_dir: {folder}/data
listeners: {{ws: {{bind: "127.0.0.1:{ws}"}}}}
http: {{bind: "127.0.0.1:{http}"{hosts}}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: {folder}/store\nshards: 1\nprocesses: 1\n{hosts}"


class WebEdge(Service):
    def __init__(self, folder: Path, hosts: str = "") -> None:
        self.ws, self.http = free_port(), free_port()
        config = folder / "edge.yaml"
        config.write_text(EDGE.format(folder=folder, ws=self.ws, http=self.http, hosts=hosts))
        super().__init__(folder, "edge", ["edge", "run", str(config)], f"http://127.0.0.1:{self.http}/status")


class WebHub(Service):
    def __init__(self, folder: Path, hosts: str = "") -> None:
        self.port = free_port()
        config = folder / "hub.yaml"
        config.write_text(HUB.format(folder=folder, port=self.port, hosts=hosts))
        super().__init__(folder, "hub", ["hub", "run", str(config)], f"http://127.0.0.1:{self.port}/v1/status")


@pytest.fixture
def web_pages_edge(tmp_path: Path) -> Iterator[WebEdge]:
    node = WebEdge(tmp_path)
    node.start()
    try:
        yield node
    finally:
        node.stop()


async def fetch(port: int, path: str, host: str) -> tuple[int, str]:
    """What a browser gets that has resolved ``host`` to this machine."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers={"Host": f"{host}:{port}"}) as answer,
    ):
        return answer.status, await answer.text()


async def speak_mqtt(port: int, host: str, origin: str) -> bytes:
    """Connect and subscribe to everything, as the page at ``origin`` does; return the answers."""
    headers: dict[str, Any] = {"Host": f"{host}:{port}", "Origin": origin}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/mqtt", headers=headers, protocols=("mqtt",)) as socket,
    ):
        await socket.send_bytes(encode(Connect("page"), 4))
        await socket.send_bytes(encode(Subscribe(1, (Subscription("#", 0),)), 4))
        received = b""
        while len(received) < 9:
            received += await socket.receive_bytes(timeout=PATIENCE_S)
        return received


async def test_a_stranger_s_name_reads_no_page_of_a_node(web_pages_edge: WebEdge) -> None:
    for path in ("/", "/status", "/metrics", "/healthz"):
        status, text = await fetch(web_pages_edge.http, path, STRANGER)
        assert status == HTTPStatus.MISDIRECTED_REQUEST
        assert "`http.hosts`" in text
        assert "press-1" not in text
    for own in ("127.0.0.1", "localhost", "[::1]"):
        assert (await fetch(web_pages_edge.http, "/status", own))[0] == HTTPStatus.OK


async def test_a_stranger_s_page_is_no_mqtt_client(web_pages_edge: WebEdge) -> None:
    port = web_pages_edge.ws
    for host, origin in (
        (STRANGER, f"http://{STRANGER}:{port}"),
        ("127.0.0.1", f"http://{STRANGER}:{port}"),
        ("localhost", "http://localhost:3000"),
        ("localhost", f"https://localhost:{port}"),
        ("localhost", "null"),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await speak_mqtt(port, host, origin)
        assert refused.value.status == HTTPStatus.FORBIDDEN
    for own in ("127.0.0.1", "localhost"):
        assert await speak_mqtt(port, own, f"http://{own}:{port}") == b"\x20\x02\x00\x00\x90\x03\x00\x01\x00"


async def test_a_stranger_s_name_reads_nothing_of_a_hub(tmp_path: Path) -> None:
    hub = WebHub(tmp_path)
    hub.start()
    try:
        for path in ("/v1/status", "/v1/streams", "/v1/streams/telemetry/records", "/metrics"):
            status, text = await fetch(hub.port, path, STRANGER)
            assert status == HTTPStatus.MISDIRECTED_REQUEST
            assert "`hosts`" in text
        assert (await fetch(hub.port, "/v1/streams", "localhost"))[0] == HTTPStatus.OK
    finally:
        hub.stop()


async def test_names_that_the_configuration_gives_are_the_server_s_own(tmp_path: Path) -> None:
    edge = WebEdge(tmp_path, hosts=", hosts: edge.example.com")
    hub = WebHub(tmp_path, hosts="hosts: [hub.example.com, Hub.internal]\n")
    await asyncio.gather(*map(asyncio.to_thread, (edge.start, hub.start)))
    try:
        assert (await fetch(edge.http, "/status", "Edge.example.com"))[0] == HTTPStatus.OK
        assert (await fetch(hub.port, "/v1/streams", "hub.internal"))[0] == HTTPStatus.OK
        for port, path in ((edge.http, "/status"), (hub.port, "/v1/streams")):
            assert (await fetch(port, path, STRANGER))[0] == HTTPStatus.MISDIRECTED_REQUEST
    finally:
        edge.stop()
        hub.stop()
