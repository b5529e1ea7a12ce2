"""What one client sends in one piece costs one step of the loop little, with every bound of a message filled."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient, at_most
from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, link_to, records
from tests.hostile.test_amqp1 import BEGIN, OPENED, attach
from tests.hostile.test_amqp1 import frame as frame_of_1_0
from tests.hostile.test_http import JSON, request
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import PROTOCOL_HEADER
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.amqp1 import described, encode, fields, uint
from weft.protocols.link import Ack
from weft.protocols.mqtt.encoder import encode as encode_mqtt
from weft.protocols.mqtt.packets import (
    Connect,
    PingReq,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
)
from weft.replication.runner import LINK_PATH

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MIB = 1 << 20
PACKET_BYTES = MIB - 64
TOPIC_BYTES = 65_535

Basic, Channel, Connection, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEdge]:
    """One node for all of them."""
    edge = GuardedEdge(tmp_path_factory.mktemp("steps"), amqp=True)
    edge.start()
    try:
        yield edge
    finally:
        edge.stop()


# --- MQTT


def mqtt(*packets: bytes, version: Version = Version.V5) -> bytes:
    hello = encode_mqtt(Connect("many", username="mallory", password=b"mallory", version=version), version)
    return b"".join((hello, *packets, encode_mqtt(PingReq(), version)))


def many_filters() -> bytes:
    filters = [f"public/{number:x}" for number in range(PACKET_BYTES // 15)]
    subscribed = encode_mqtt(Subscribe(1, tuple(Subscription(each, 0) for each in filters)), 5)
    return mqtt(subscribed, encode_mqtt(Unsubscribe(2, tuple(filters)), 5))


def deep_filters() -> bytes:
    filters = tuple(Subscription(f"public/{number}" + "/+" * 32_000, 0) for number in range(15))
    return mqtt(encode_mqtt(Subscribe(1, filters), 5))


def deep_topics() -> bytes:
    topics = (b"public/%d" % number + b"/" * (TOPIC_BYTES - 16) for number in range(15))
    return mqtt(*(encode_mqtt(Publish(topic, b"", 1, packet_id=at + 1), 5) for at, topic in enumerate(topics)))


def many_properties() -> bytes:
    pairs = (("", ""),) * (PACKET_BYTES // 5 - 10)
    return mqtt(encode_mqtt(Publish(b"public/x", b"", 1, packet_id=1, properties=Properties(user_properties=pairs)), 5))


def many_properties_of_a_subscription() -> bytes:
    pairs = (("", ""),) * (PACKET_BYTES // 5 - 10)
    return mqtt(encode_mqtt(Subscribe(1, (Subscription("public/x", 0),), Properties(user_properties=pairs)), 5))


# --- HTTP


def posted(body: bytes, more: bytes = b"", path: str = "/v1/topics/public/x") -> bytes:
    return request(path, body, more + b"Connection: close\r\n")


def short_lines() -> bytes:
    return posted(b"1\n" * (MIB // 2 - 8), b"Content-Type: application/x-ndjson\r\n")


def short_elements() -> bytes:
    return posted(b"[" + b"1," * (MIB // 2 - 8) + b"1]", JSON)


def nested_arrays() -> bytes:
    return posted(b"[" * (MIB // 2 - 8) + b"]" * (MIB // 2 - 8), JSON)


def wide_row() -> bytes:
    return posted(b"{" + b",".join(b'"%x":1' % number for number in range(95_000)) + b"}", JSON)


def wide_rows_of_a_stream() -> bytes:
    row = b"{" + b",".join(b'"%x":1' % number for number in range(5_000)) + b"}"
    return posted(b"[" + b",".join([row] * 20) + b"]", JSON)


def many_header_lines() -> bytes:
    return posted(b"1", b"a:\r\n" * 3_900)


def short_points() -> bytes:
    return posted(b"m a=1\n" * (MIB // 6 - 8), path="/api/v2/write?bucket=public&precision=s")


def wide_point() -> bytes:
    fields = b",".join(b"%x=1" % number for number in range(130_000))
    return posted(b"m " + fields[: MIB - 100].rpartition(b",")[0] + b"\n", path="/api/v2/write?bucket=public")


def many_tags() -> bytes:
    tags = b",".join(b"%x=1" % number for number in range(130_000))
    return posted(b"m," + tags[: MIB - 100].rpartition(b",")[0] + b" a=1\n", path="/api/v2/write?bucket=public")


# --- AMQP 0-9-1


def amqp(*data: bytes) -> bytes:
    start = Connection.StartOk({"capabilities": {}}, "PLAIN", "\0mallory\0mallory")
    opened = [write_method(each, 0) for each in (start, Connection.TuneOk(0, 0, 0), Connection.Open("/"))]
    close = write_method(Connection.Close(200, "", 0, 0), 0)
    return b"".join((PROTOCOL_HEADER, *opened, write_method(Channel.Open(), 1), *data, close))


def sent(properties: bytes = b"\0\0", body: bytes = b"", key: str = "public.x") -> bytes:
    method = write_method(Basic.Publish(exchange="amq.topic", routing_key=key), 1)
    return method + write_content(1, properties, body, 1 << 17)


def table(content: bytes) -> bytes:
    return b"\x20\0" + len(content).to_bytes(4, "big") + content


def many_headers() -> bytes:
    return amqp(sent(table(b"".join(b"\x04%04xV" % number for number in range(20_000)))))


def nested_headers() -> bytes:
    content = b""
    while len(content) < 120_000:
        content = b"\0F" + len(content).to_bytes(4, "big") + content
    return amqp(sent(table(content)))


def many_values() -> bytes:
    values = b"V" * 120_000
    return amqp(sent(table(b"\x01aA" + len(values).to_bytes(4, "big") + values)))


def many_arguments() -> bytes:
    arguments = {f"{number:x}": None for number in range(15_000)}
    return amqp(write_method(Queue.Declare(queue="public.x", arguments=arguments), 1))


def deep_keys() -> bytes:
    binds = (
        Queue.Bind(queue="public.q", exchange="amq.topic", routing_key=f"public.{at}" + ".*" * 120) for at in range(300)
    )
    return amqp(
        write_method(Queue.Declare(queue="public.q"), 1),
        *(write_method(each, 1) for each in binds),
        *(sent(key=f"public.{at}" + "." * 240) for at in range(2_000)),
        write_method(Queue.Delete(queue="public.q"), 1),
    )


def parts_of_a_body() -> bytes:
    body = b"".join(b"\x03\0\x01\0\0\0\x01x\xce" for _ in range(MIB // 9))
    head = sent(body=b"x")[: -len(b"\x03\0\x01\0\0\0\x01x\xce")]
    size = (MIB // 9).to_bytes(8, "big")
    return amqp(head.replace((1).to_bytes(8, "big"), size, 1) + body)


# --- AMQP 1.0


def transfer(message: bytes) -> bytes:
    head = described(0x14, fields([uint(0), uint(0), encode(b"0"), uint(0), encode(False)]))
    return OPENED + frame_of_1_0(BEGIN) + attach("sends", receives=False) + frame_of_1_0(head + message) + END


END = frame_of_1_0(described(0x18, fields([])))


def many_application_properties() -> bytes:
    return transfer(described(0x74, encode({f"{at:x}": None for at in range(40_000)})) + described(0x75, encode(b"x")))


def nested_lists() -> bytes:
    value = b"\x45"
    while len(value) < 500_000:
        size = len(value) + 4
        value = b"\xd0" + size.to_bytes(4, "big") + b"\0\0\0\1" + value
    return transfer(b"\0\x53\x77" + value)


def many_sections() -> bytes:
    return transfer(b"\0\x53\x75\xa0\0" * 100_000)


CASES: dict[str, list[Callable[[], bytes]]] = {
    "mqtt": [many_filters, deep_filters, deep_topics, many_properties, many_properties_of_a_subscription],
    "http": [
        short_lines,
        short_elements,
        nested_arrays,
        wide_row,
        wide_rows_of_a_stream,
        many_header_lines,
        short_points,
        wide_point,
        many_tags,
    ],
    "amqp": [many_headers, nested_headers, many_values, many_arguments, deep_keys, parts_of_a_body],
    "amqp 1.0": [many_application_properties, nested_lists, many_sections],
}


def answers(port: int, data: bytes, enough: Callable[[bytes], bool]) -> bytes:
    """Send and read at once, until the node has said enough or closes the connection."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:

        def send() -> None:
            with contextlib.suppress(OSError):  # the node refuses it, and closes
                connection.sendall(data)

        sender = threading.Thread(target=send)
        sender.start()
        with contextlib.suppress(ConnectionError):
            while not enough(heard) and (more := connection.recv(1 << 16)):
                heard += more
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        sender.join()
    return heard


@pytest.mark.parametrize(("protocol", "made"), [(protocol, made) for protocol in CASES for made in CASES[protocol]])
def test_what_comes_in_one_piece_is_handled_in_short_steps(
    node: GuardedEdge, protocol: str, made: Callable[[], bytes]
) -> None:
    port = {"mqtt": node.mqtt_port, "http": node.posts_port}.get(protocol, node.amqp_port)
    with GoodClient(node, "device") as good:
        # PINGRESP does not wait for the disk, as acknowledgements do that may come behind it.
        heard = answers(port, made(), lambda said: protocol == "mqtt" and b"\xd0\0" in said)
        assert heard
        good.take()


# --- Floods of the smallest frames of a WebSocket, by every way that has one: others wait no longer than for a turn
#
# One read of a socket has room for 43,690 frames of six bytes, all of which a library handles in one step. A client of
# a node's MQTT listener sends them before it says who it is.


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
