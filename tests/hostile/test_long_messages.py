"""A user publishes messages of megabytes to hundreds of clients of his own that read nothing: others are served, and a
message is in memory once, however many clients get it."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription

pytestmark = pytest.mark.processes
UNDISTURBED_S = 0.7
FACTOR = 10
LEAST_S = 0.04
"""As in ``test_http``."""
BODY = b"x" * 4_000_000
MESSAGES = 5
HELD_BYTES_MAX = 128 << 20
"""Most memory that hundreds of clients and five messages may take: what sockets did not take of the pieces that were
written, and some messages. Copies for each client would be 800 MB and more."""
LOGIN = base64.b64encode(b"mallory:mallory")

Client = Any
"""What keeps a connection open."""


def mqtt(edge: GuardedEdge, number: int, qos: int, version: int = 4) -> Client:
    client = opened(edge, f"silent-{number}", version)
    client.sendall(encode(Subscribe(1, (Subscription("public/#", qos),)), version))
    assert client.recv(100)
    return client


def events(edge: GuardedEdge, _: int, path: bytes) -> Client:
    client = socket.create_connection(("127.0.0.1", edge.posts_port), timeout=PATIENCE_S)
    client.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %b\r\n\r\n" % (path, LOGIN))
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    return client


def amqp(edge: GuardedEdge, _: int) -> Client:
    import pika

    url = f"amqp://mallory:mallory@127.0.0.1:{edge.amqp_port}/%2F?heartbeat=0"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "public.#")
    channel.basic_consume(queue, lambda *_: None)
    return connection


def amqp1(edge: GuardedEdge, _: int) -> Client:
    from proton.utils import BlockingConnection

    connection = BlockingConnection(
        f"amqp://127.0.0.1:{edge.amqp_port}", user="mallory", password="mallory", allowed_mechs="PLAIN"
    )
    connection.create_receiver("public/#", credit=10)
    return connection


def opened(edge: GuardedEdge, client_id: str, version: int = 4) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the system takes little for it
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", edge.mqtt_port))
    client.sendall(encode(Connect(client_id, version=version, username="mallory", password=b"mallory"), version))
    assert client.recv(100)
    return client


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[GuardedEdge]:
    limits = "connections: 2000, http_readers: 400, user_share: 50%"
    node = GuardedEdge(tmp_path, limits, ", public: {from: public/#}", amqp=True)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.mark.search
@pytest.mark.parametrize(
    ("subscribe", "count"),
    SLICE.some(
        [
            pytest.param(partial(mqtt, qos=0), 250, id="mqtt_0"),
            pytest.param(partial(mqtt, qos=1), 250, id="mqtt_1"),
            pytest.param(partial(mqtt, qos=2, version=5), 250, id="mqtt_5"),
            pytest.param(partial(events, path=b"/v1/topics?filter=public/%23"), 200, id="topics"),
            pytest.param(partial(events, path=b"/v1/streams/public/events"), 200, id="stream"),
            pytest.param(amqp, 200, id="amqp"),
            pytest.param(
                amqp1,
                200,
                id="amqp1",
                marks=pytest.mark.skipif(importlib.util.find_spec("proton") is None, reason="qpid-proton is missing"),
            ),
        ],
        ci=2,
    ),
)
def test_others_are_served_while_long_messages_go_to_many(
    edge: GuardedEdge, subscribe: Callable[[GuardedEdge, int], Client], count: int
) -> None:
    silent = [subscribe(edge, number) for number in range(count)]
    with GoodClient(edge, "device") as good, contextlib.closing(opened(edge, "publisher")) as publisher:
        before = edge.memory_bytes()
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        for number in range(1, MESSAGES + 1):
            publisher.sendall(encode(Publish(b"public/x", BODY, 1, packet_id=number), 4))
            assert publisher.recv(4)
            time.sleep(UNDISTURBED_S)
        attacked = good.take()
        held = edge.memory_bytes() - before
    assert len(silent) == count
    assert held < HELD_BYTES_MAX
    at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.longest, undisturbed, attacked, held >> 20)


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [b"\xff\xff\xff\xff\xff", b"\xe0\x00"], ids=["by_mistake", "in_order"])
def test_clients_that_leave_while_a_message_waits_for_them_leave_nothing_behind(
    edge: GuardedEdge, leaves: bytes
) -> None:
    with contextlib.closing(opened(edge, "publisher")) as publisher:
        before = open_files(edge)
        silent = [mqtt(edge, number, 0, version=5) for number in range(100)]
        publisher.sendall(encode(Publish(b"public/x", BODY, 1, packet_id=1), 4))
        assert publisher.recv(4)
        for client in silent:
            client.sendall(leaves)
        # The clients' ends stay open: the node does not wait for them.
        wait_until(lambda: open_files(edge) <= before, what="the end of the connections")


def open_files(edge: GuardedEdge) -> int:
    return len(list(Path(f"/proc/{edge.pid}/fd").iterdir()))
