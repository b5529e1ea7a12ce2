"""One client has the node work hard; another one waits no longer than for its turn."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.flood import fan_out_flood, mqtt_flood
from tests.hostile.good_client import GoodClient, Waits, at_most
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, PingReq, Publish, Subscribe, Subscription, Unsubscribe

pytestmark = pytest.mark.processes

UNDISTURBED_S, ATTACK_S = 0.7, 2.5
FACTOR = 10
"""The well-behaved client's p99 may be so many times the undisturbed one."""
CONNECTIONS = 300
LEAST_S = 0.04
"""Undisturbed p99 below which the comparison would measure the machine."""


def pings() -> bytes:
    return encode(PingReq(), 4) * 50_000


def churn() -> bytes:
    pair = encode(Subscribe(1, (Subscription("public/x", 0),)), 4) + encode(Unsubscribe(2, ("public/x",)), 4)
    return pair * 2_000


def many_filters() -> bytes:
    filters = tuple(Subscription(f"public/{number}/+/x", 0) for number in range(900))
    return (encode(Subscribe(1, filters), 4) + encode(Unsubscribe(2, tuple(f.filter for f in filters)), 4)) * 20


def small_publishes() -> bytes:
    return encode(Publish(b"public/x", b"", 0), 4) * 50_000


def new_topics() -> bytes:
    return b"".join(encode(Publish(b"public/x/%d" % number, b"", 0), 4) for number in range(50_000))


def few_pings() -> bytes:
    return encode(PingReq(), 4) * 60


def acknowledged_publishes() -> bytes:
    return b"".join(encode(Publish(b"public/x", b"", 1, packet_id=number), 4) for number in range(1, 1_000))


def measured(
    edge: GuardedEdge, good: GoodClient, folder: Path, packets: bytes, connections: int = 1
) -> tuple[Waits, Waits]:
    """Return the waits of the well-behaved client: undisturbed, and while each connection sends these packets."""
    (folder / "packets").write_bytes(packets)
    time.sleep(UNDISTURBED_S)  # what is measured
    undisturbed = good.take()
    mqtt_flood(edge.mqtt_port, folder / "packets", ATTACK_S, connections)
    return undisturbed, good.take()


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        churn,
        *(
            pytest.param(made, marks=pytest.mark.search)
            for made in SLICE.some([pings, many_filters, small_publishes, new_topics], ci=2)
        ),
    ],
    ids=lambda made: made.__name__,
)
def test_others_are_served_between_the_turns_of_one_client(
    edge: GuardedEdge, tmp_path: Path, made: Callable[[], bytes]
) -> None:
    with GoodClient(edge, "device") as good:
        undisturbed, attacked = measured(edge, good, tmp_path, made())
        at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)
        time.sleep(UNDISTURBED_S)  # what is measured
        after = good.take()
        at_most(FACTOR * max(undisturbed.p99, LEAST_S), after.p99, undisturbed, after)


@pytest.mark.slow
@pytest.mark.parametrize("made", [acknowledged_publishes, few_pings], ids=lambda made: made.__name__)
def test_others_are_served_between_the_turns_of_many_connections_of_one_user(
    edge: GuardedEdge, tmp_path: Path, made: Callable[[], bytes]
) -> None:
    """None of them sends more than a turn's work; together they send seconds of it."""
    with GoodClient(edge, "device") as good:
        undisturbed, attacked = measured(edge, good, tmp_path, made(), CONNECTIONS)
        at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.longest, undisturbed, attacked)


def test_a_client_that_sent_much_gets_all_answers(edge: GuardedEdge) -> None:
    count = 20_000
    with socket.create_connection(("127.0.0.1", edge.mqtt_port), timeout=PATIENCE_S) as connection:
        connection.sendall(encode(Connect("busy", username="mallory", password=b"mallory"), 4))
        assert connection.recv(4)[3] == 0
        sender = threading.Thread(target=connection.sendall, args=(encode(PingReq(), 4) * count,))
        sender.start()
        heard = b""
        while len(heard) < 2 * count:
            heard += connection.recv(1 << 16)
        sender.join()
    assert heard == b"\xd0\0" * count


# --- A user with many subscribers publishes as much as can be: the node serves others, and delivers it all the same


LOGIN = base64.b64encode(b"mallory:mallory")
SUBSCRIBERS = 400
FLEET = 150


def request(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %b\r\nContent-Length: %d\r\n%b\r\n%b" % (
        path,
        LOGIN,
        len(body),
        more,
        body,
    )


def publishes() -> bytes:
    return encode(Publish(b"public/x", b"", 0), 4) * 10_000


def fan_out_acknowledged_publishes() -> bytes:
    return b"".join(encode(Publish(b"public/x", b"", 1, packet_id=number), 4) for number in range(1, 10_000))


def one_publish() -> bytes:
    return encode(Publish(b"public/x", b"", 1, packet_id=1), 4)


def points() -> bytes:
    return request(b"/api/v2/write?bucket=public&precision=s", b"x a=1 1700000000\n" * 9_000)


def posts(count: int, messages: int, key: bytes = b"") -> bytes:
    body = b"[" + b",".join([b"1"] * messages) + b"]"
    json = b"Content-Type: application/json\r\n"
    keys = (b"Idempotency-Key: %b-%d\r\n" % (key, number) if key else b"" for number in range(count))
    return b"".join(request(b"/v1/topics/public/x", body, json + each) for each in keys)


def pipelined() -> bytes:
    return posts(600, 16)


def pipelined_once() -> bytes:
    return posts(600, 64, b"pipelined")


@pytest.fixture
def fan_out_edge(tmp_path: Path) -> Iterator[GuardedEdge]:
    users = SUBSCRIBERS + FLEET + 50
    limits = f"connections: {2 * users}, user_share: 50%, half_open: {2 * users}"
    node = GuardedEdge(tmp_path, limits)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.mark.search
@pytest.mark.parametrize(
    ("made", "qos"),
    SLICE.some(
        [
            (publishes, 0),
            (fan_out_acknowledged_publishes, 1),
            (one_publish, 0),
            (points, 0),
            (pipelined, 0),
            (pipelined_once, 0),
        ],
        ci=1,
    ),
)
def test_others_are_served_while_much_goes_to_many(
    fan_out_edge: GuardedEdge, tmp_path: Path, made: Callable[[], bytes], qos: int
) -> None:
    (tmp_path / "sent").write_bytes(made())
    port = (
        fan_out_edge.mqtt_port
        if made in (publishes, fan_out_acknowledged_publishes, one_publish)
        else fan_out_edge.posts_port
    )
    connections = FLEET if made is one_publish else 1
    with GoodClient(fan_out_edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        received = fan_out_flood(
            port, tmp_path / "sent", ATTACK_S, fan_out_edge.mqtt_port, SUBSCRIBERS, qos, connections
        )
        attacked = good.take()
    assert received > SUBSCRIBERS * 1000
    at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)


# --- A user publishes messages of megabytes to hundreds of clients of his own that read nothing: others are served,
# and a message is in memory once, however many clients get it


LONG_MESSAGES_UNDISTURBED_S = 0.7
BODY = b"x" * 4_000_000
MESSAGES = 5
HELD_BYTES_MAX = 128 << 20
"""Most memory that hundreds of clients and five messages may take: what sockets did not take of the pieces that were
written, and some messages. Copies for each client would be 800 MB and more."""

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
def long_messages_edge(tmp_path: Path) -> Iterator[GuardedEdge]:
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
    long_messages_edge: GuardedEdge, subscribe: Callable[[GuardedEdge, int], Client], count: int
) -> None:
    silent = [subscribe(long_messages_edge, number) for number in range(count)]
    with (
        GoodClient(long_messages_edge, "device") as good,
        contextlib.closing(opened(long_messages_edge, "publisher")) as publisher,
    ):
        before = long_messages_edge.memory_bytes()
        time.sleep(LONG_MESSAGES_UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        for number in range(1, MESSAGES + 1):
            publisher.sendall(encode(Publish(b"public/x", BODY, 1, packet_id=number), 4))
            assert publisher.recv(4)
            time.sleep(LONG_MESSAGES_UNDISTURBED_S)
        attacked = good.take()
        held = long_messages_edge.memory_bytes() - before
    assert len(silent) == count
    assert held < HELD_BYTES_MAX
    at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.longest, undisturbed, attacked, held >> 20)


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [b"\xff\xff\xff\xff\xff", b"\xe0\x00"], ids=["by_mistake", "in_order"])
def test_clients_that_leave_while_a_message_waits_for_them_leave_nothing_behind(
    long_messages_edge: GuardedEdge, leaves: bytes
) -> None:
    with contextlib.closing(opened(long_messages_edge, "publisher")) as publisher:
        before = open_files(long_messages_edge)
        silent = [mqtt(long_messages_edge, number, 0, version=5) for number in range(100)]
        publisher.sendall(encode(Publish(b"public/x", BODY, 1, packet_id=1), 4))
        assert publisher.recv(4)
        for client in silent:
            client.sendall(leaves)
        # The clients' ends stay open: the node does not wait for them.
        wait_until(lambda: open_files(long_messages_edge) <= before, what="the end of the connections")


def open_files(edge: GuardedEdge) -> int:
    return len(list(Path(f"/proc/{edge.pid}/fd").iterdir()))


# --- Packets that never come whole take a share of the memory, and no more


MIB = 1 << 20
BEGUN_CONNECT = b"\x10\xdc\xd4\x03\0\4MQTT\5\2\0\0" + bytes(50_000)
"""Most of a CONNECT of 60,000 bytes."""
BEGUN_PUBLISH = b"\x30\xc0\x84\x3d\0\x08public/x" + bytes(900_000)
"""Most of a PUBLISH of 1,000,000 bytes."""


@contextmanager
def connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) for _ in range(count)
        ]


def send(each: socket.socket, data: bytes) -> None:
    try:
        each.sendall(data)
    except OSError:
        return  # the node has closed it


def is_open(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        return each.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def is_served(edge: GuardedEdge) -> None:
    with GoodClient(edge, "device", "another") as good:
        time.sleep(0.2)  # some messages
        assert good.take().acknowledged > 0


def test_a_connect_is_small(edge: GuardedEdge) -> None:
    before = edge.memory_bytes()
    with connections(edge.mqtt_port, 200) as held:
        for each in held:  # the fixed header of a CONNECT of 1,000,000 bytes, and as much of it as the node takes
            send(each, b"\x10\xc0\x84\x3d\0\4MQTT\5\2\0\0" + bytes(900_000))
        wait_until(lambda: not any(map(is_open, held)), 10, "the end of all connections")
        assert edge.memory_bytes() - before < 30 * MIB
    is_served(edge)


def test_begun_connects_have_a_share_of_the_memory(edge: GuardedEdge) -> None:
    with GoodClient(edge, "device") as good:
        before = edge.memory_bytes()
        with connections(edge.mqtt_port, 900) as held:
            for each in held:
                send(each, BEGUN_CONNECT)
            # A quarter of 128 MiB, in pieces of 50 kB.
            wait_until(lambda: sum(map(is_open, held)) < 680, 10, "the end of those beyond the share")
            assert edge.memory_bytes() - before < 80 * MIB
            good.take()
            is_served(edge)
        good.take()


def test_a_user_has_a_share_of_the_memory_for_begun_packets(edge: GuardedEdge) -> None:
    with GoodClient(edge, "device") as good:
        with connections(edge.mqtt_port, 150) as held:
            for number, each in enumerate(held):
                each.sendall(encode(Connect(f"m-{number}", username="mallory", password=b"mallory"), 4))
            assert all(each.recv(4)[3] == 0 for each in held)
            before = edge.memory_bytes()  # with what it took to check the passwords
            for each in held:
                send(each, BEGUN_PUBLISH)
            wait_until(lambda: sum(map(is_open, held)) < 40, 20, "the end of those beyond the share")
            assert edge.memory_bytes() - before < 100 * MIB
            # The victim's own packets come in parts, too, and have a share of their own.
            with socket.create_connection(("127.0.0.1", edge.mqtt_port), timeout=PATIENCE_S) as alice:
                alice.sendall(encode(Connect("alice", username="alice", password=b"alice"), 4))
                assert alice.recv(4)[3] == 0
                whole = b"\x32\xc0\x84\x3d\0\x08secret/x\0\1" + bytes(999_988)
                alice.sendall(whole[:500_000])
                alice.sendall(whole[500_000:])
                assert alice.recv(4) == b"\x40\2\0\1"
        good.take()
    is_served(edge)
    assert 'bound="limits.user_share of limits.unfinished",owner="user mallory"' in edge.metrics()
