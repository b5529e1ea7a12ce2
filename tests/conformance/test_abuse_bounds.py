"""Clients that want too much: the node stays small, says so in its log, and serves others (v5 section 5.4.5)."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.raw_client import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    Client,
    Closed,
    acknowledge,
    connect,
    packet,
    publish,
    subscribe,
)
from tests.conformance.watched_node import Healthy, WatchedNode
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S, Patience

pytestmark = pytest.mark.search(turns=4)
MIB = 1 << 20
CONNECTIONS, HALF_OPEN, SESSIONS = 200, 50, 300
SUBSCRIPTIONS, SUBSCRIPTIONS_TOTAL = 500, 2000
RETAINED, LEVELS = 500, 128
LIMITS = f"""\
  connections: {CONNECTIONS}
  half_open: {HALF_OPEN}
  sessions: {SESSIONS}
  subscriptions: {SUBSCRIPTIONS}
  subscriptions_total: {SUBSCRIPTIONS_TOTAL}
  user_share: 100%
  retained: {RETAINED}
  retained_size: 2MiB
"""
QUOTA_EXCEEDED = 0x97
LEVEL_BYTES = 450
"""What a level of a filter costs that no other filter has."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WatchedNode]:
    started = WatchedNode(tmp_path, LIMITS)
    yield started
    started.kill()


@pytest.fixture
def healthy(node: WatchedNode) -> Healthy:
    return Healthy(node)


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def connected(node: WatchedNode, client_id: str = "", version: int = 5, **options: object) -> Client:
    client = Client(node.mqtt, version)
    client.connect(client_id, **options)
    return client


# --- connections


def test_a_flood_of_connections(node: WatchedNode, healthy: Healthy) -> None:
    """More than may be let in: refused after a moment, told in one line; and there is room as soon as some have gone"""
    before = node.memory
    staying = [connected(node) for _ in range(CONNECTIONS - 1)]
    for _ in range(5 * CONNECTIONS // HALF_OPEN):
        refused = [opened(node.mqtt) for _ in range(HALF_OPEN)]
        for each in refused:
            each.sendall(connect("x"))
        assert healthy.is_served()
        for each in refused:
            assert each.recv(10) == bytes.fromhex("20020003"), "the server is unavailable"
            assert each.recv(10) == b""
            each.close()
    assert node.metric("connections_refused_total") == 5 * CONNECTIONS
    assert node.memory - before < 4 * MIB
    assert 1 <= len(node.lines(r"WARNING .* connections are open, the limit")) <= 3
    staying.pop().drop()
    node.settles(connections=CONNECTIONS - 1)
    connected(node).ping()
    for client in staying:
        client.drop()
    node.settles(connections=1, sessions=1)


HALF = {
    "tcp": ("mqtt", b""),
    "connect": ("mqtt", connect("half")[:8]),
    "tls": ("tls", b""),
    "tls hello": ("tls", bytes.fromhex("16030100c8010000c40303") + bytes(30)),
    "websocket": ("ws", b"GET /mqtt HTTP/1.1\r\nHost: x\r\n"),
}


@pytest.mark.parametrize(("listener", "begun"), HALF.values(), ids=HALF)
def test_half_open_connections(node: WatchedNode, healthy: Healthy, listener: str, begun: bytes) -> None:
    """The newest few stay, the others give way; who speaks gets in meanwhile; in the end all of them are gone"""
    before, half = node.memory, []
    for n in range(8 * HALF_OPEN):
        half.append(opened(getattr(node, listener)))
        with contextlib.suppress(ConnectionError):
            half[-1].sendall(begun)
        if n % HALF_OPEN == 0:
            assert node.metric("connections_half_open") <= HALF_OPEN
            assert healthy.is_served()
            connected(node).disconnect()
    assert node.metric("half_open_evicted_total") >= 6 * HALF_OPEN
    assert node.memory - before < 16 * MIB
    node.settles(connections=1, connections_half_open=0)
    assert 1 <= len(node.lines(r"WARNING .*more than 50 connections are half open")) <= 3
    assert healthy.is_served()
    for each in half:
        each.close()


def test_all_clients_of_a_full_node_come_back_at_once(node: WatchedNode, healthy: Healthy) -> None:
    """Whether they have left, or their old connections only look alive; and though others try to keep them out"""
    clients = [connected(node, f"c{n}") for n in range(CONNECTIONS - 1)]
    for attempt in range(5):
        silent = [opened(node.mqtt) for _ in range(HALF_OPEN)]
        if attempt % 2:
            for client in clients:
                client.drop()
        back = []
        for n in range(0, len(clients), HALF_OPEN // 2):
            some = [Client(node.mqtt, 5) for _ in clients[n : n + HALF_OPEN // 2]]
            for index, client in enumerate(some, n):
                client.send(connect(f"{attempt if attempt % 2 else 'c'}{index}", version=5))
            assert [client.next().reason for client in some] == [0] * len(some)
            back += some
        for client in clients:
            client.drop()
        for connection in silent:
            connection.close()
        clients = back
        for client in clients:
            client.ping()
        if attempt % 2:  # under their first names again
            for n, client in enumerate(clients):
                client.drop()
                clients[n] = connected(node, f"c{n}")
    assert node.metric("connections_refused_total") == 0
    assert healthy.is_served()
    for client in clients:
        client.drop()
    node.settles(connections=1, connections_half_open=0, sessions=1)


def test_connects_that_come_a_byte_at_a_time(node: WatchedNode, healthy: Healthy) -> None:
    """However busy they look, they have ``connect_timeout`` and no more"""
    slow = [opened(node.mqtt) for _ in range(HALF_OPEN // 2)]
    whole, stopwatch = connect("slow" * 20), Stopwatch(node.pid)
    for byte in whole[:-1]:
        for each in list(slow):
            try:
                each.sendall(bytes([byte]))
            except ConnectionError:
                slow.remove(each)
        if not slow:
            break
        select.select([], [], [], 0.05)
    assert not slow, "all were closed before CONNECT was whole"
    assert stopwatch.seconds() < 4
    node.settles(connections=1, connections_half_open=0)
    assert node.metric("connect_timeouts_total") == HALF_OPEN // 2
    assert node.lines(r"WARNING .*not admitted within 1 s")
    assert healthy.is_served()


def test_a_handshake_that_comes_a_byte_at_a_time(node: WatchedNode, healthy: Healthy) -> None:
    """So have TLS handshakes"""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    slow, stopwatch = opened(node.tls), Stopwatch(node.pid)
    with contextlib.suppress(ConnectionError):
        for byte in outgoing.read():
            slow.sendall(bytes([byte]))
            select.select([], [], [], 0.02)
    assert stopwatch.seconds() < 5
    node.settles(connections=1, connections_half_open=0)
    assert healthy.is_served()


# --- packets


@pytest.mark.parametrize("before_connect", [True, False])
def test_packets_that_claim_to_be_huge(node: WatchedNode, healthy: Healthy, before_connect: bool) -> None:
    """Refused on their first bytes: nothing is kept for what is not there"""
    before = node.memory
    huge = b"\x30\xff\xff\xff\x7f" + bytes(1000)
    for _ in range(CONNECTIONS - 1):
        client = Client(node.mqtt, 5)
        if not before_connect:
            client.connect("")
        client.send(huge)
        assert all(each.reason == 0x95 for each in client.closed())
        client.drop()
    assert node.memory - before < 4 * MIB
    assert node.lines(r"WARNING .*65536")
    node.settles(connections=1)
    assert healthy.is_served()


def test_packets_that_never_end(node: WatchedNode, healthy: Healthy) -> None:
    """As large as allowed, all but their last byte, from everybody at once: bounded by limits.message for each"""
    before = node.memory
    almost = publish("live/a", bytes(60_000), version=5)[:-1]
    clients = [connected(node) for _ in range(CONNECTIONS - 1)]
    for client in clients:
        client.send(almost)
    assert healthy.is_served()
    assert node.memory - before < CONNECTIONS * (64 << 10) + 8 * MIB
    for client in clients:
        client.drop()
    node.settles(connections=1)


def test_all_packet_identifiers_open(node: WatchedNode, healthy: Healthy) -> None:
    """v3 [MQTT-2.3.1-2]: MQTT 3.1.1 has no receive maximum; every identifier at once is taken, and completed"""
    before = node.memory
    client = connected(node, "greedy", 4)
    for start in range(1, 65_536, 1000):
        numbers = range(start, min(start + 1000, 65_536))
        client.send(*[publish("live/a", b"x" * 50, qos=2, packet_id=n) for n in numbers])
        assert [client.take(PUBREC).packet_id for _ in numbers] == [*numbers]
    client.send(publish("live/a", b"again", qos=2, packet_id=1, dup=True))
    assert client.take(PUBREC).packet_id == 1
    assert node.memory - before < 24 * MIB
    assert healthy.is_served()
    for start in range(1, 65_536, 1000):
        numbers = range(start, min(start + 1000, 65_536))
        client.send(*[acknowledge(PUBREL, n) for n in numbers])
        assert [client.take(PUBCOMP).packet_id for _ in numbers] == [*numbers]
    client.disconnect()


# --- what is read late or never


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_client_that_never_reads(node: WatchedNode, healthy: Healthy, granted: int) -> None:
    """What waits for it is bounded, and after ``write_timeout`` it is closed; its publisher does not wait for it"""
    before = node.memory
    deaf = connected(node, "deaf", 4)
    deaf.subscribe("live/flood", granted)
    publisher = connected(node)
    for start in range(1, 1001, 20):
        numbers = range(start, start + 20)
        publisher.send(*[publish("live/flood", bytes(50_000), version=5, qos=1, packet_id=n) for n in numbers])
        for _ in numbers:
            publisher.take(PUBACK)
        if start % 200 == 1:
            assert healthy.is_served()
    assert node.memory - before < 24 * MIB
    if granted == 0:
        node.settles(connections=2)
        assert node.lines(r"WARNING .*'deaf'.* did not read what it was sent for 2 s")
    else:  # what was sent is one window, which the socket took; the rest waits in the log
        assert node.metric("deliveries_dropped_total") == 0
    assert healthy.is_served()


def test_a_client_that_reads_and_never_acknowledges(node: WatchedNode, healthy: Healthy) -> None:
    """It gets a window of messages and no more, and costs no more than its queue"""
    before = node.memory
    client = connected(node, "mute", 5, properties_={"session_expiry_interval": 60})
    client.subscribe("kept/flood", 1)
    publisher = connected(node)
    for start in range(1, 5001, 100):
        numbers = range(start, start + 100)
        publisher.send(*[publish("kept/flood", bytes(2000), version=5, qos=1, packet_id=n) for n in numbers])
        for _ in numbers:
            publisher.take(PUBACK)
    got = [client.take(PUBLISH) for _ in range(100)]
    client.nothing()
    assert node.memory - before < 16 * MIB
    assert healthy.is_served()
    for message in got:
        client.send(acknowledge(PUBACK, message.packet_id))
    assert len(client.messages(4900)) == 4900, "nothing was lost"


def test_questions_whose_answers_are_not_read(node: WatchedNode, healthy: Healthy) -> None:
    """Packets that are answered, by the million: past a bound the client is not read any more, and then closed"""
    before = node.memory
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # or some ten million answers fit between the two
    client.connect(("127.0.0.1", node.mqtt))
    client.sendall(connect("asking"))
    client.setblocking(False)
    questions = publish("live/a", b"", qos=1, packet_id=1) * 3000 + packet(12, 0, b"")
    patience = Patience(60)
    with contextlib.suppress(ConnectionError):
        while not patience.is_over():
            _, writable, _ = select.select([], [client], [], 0.5)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    client.send(questions)
    assert not patience.is_over(), "it was never closed"
    assert node.memory - before < 16 * MIB
    assert node.lines(r"WARNING .*'asking'.* did not read what it was sent for 2 s")
    assert healthy.is_served()
    client.close()


# --- subscriptions


def bomb_same(n: int) -> str:
    return "#" if n % 2 else "live/#"


def bomb_distinct(n: int) -> str:
    return f"live/{n}/+/{n}/#"


def bomb_deep(n: int) -> str:
    return "/".join("+" if level % 2 else str(n) for level in range(LEVELS))


@pytest.mark.parametrize(
    ("bomb", "granted", "levels"),
    [(bomb_same, 5000, 2), (bomb_distinct, SUBSCRIPTIONS, 5), (bomb_deep, SUBSCRIPTIONS, LEVELS)],
    ids=["the same", "distinct", "deep"],
)
def test_subscription_bombs(
    node: WatchedNode, healthy: Healthy, bomb: Callable[[int], str], granted: int, levels: int
) -> None:
    """v5 [MQTT-3.8.4-7] [MQTT-3.9.3-2], v3 [MQTT-3.9.3-2]: up to the limits of a session, and of all of them"""
    before = node.memory
    clients = [connected(node) for _ in range(2 * SUBSCRIPTIONS_TOTAL // SUBSCRIPTIONS)]
    counts = []
    for number, client in enumerate(clients):
        reasons: list[int] = []
        for start in range(0, 5000, 50):
            filters = [(bomb(number * 10_000 + n), 0) for n in range(start, start + 50)]
            client.send(subscribe(1, *filters, version=5))
            reasons += client.take(SUBACK).reasons
        assert set(reasons) <= {0, QUOTA_EXCEEDED}
        counts.append(reasons.count(0))
    assert 0 < counts[0] <= granted, "as many as limits.subscriptions and limits.filters_size allow"
    assert node.metric("subscriptions") <= SUBSCRIPTIONS_TOTAL
    assert node.memory - before < SUBSCRIPTIONS_TOTAL * (2000 + levels * LEVEL_BYTES) + 8 * MIB
    assert healthy.is_served()
    for client in clients:
        client.drop()
    node.settles(connections=1, subscriptions=2)
    assert healthy.is_served()


def test_filters_are_bounded_by_their_memory(tmp_path: Path) -> None:
    """v5 [MQTT-3.8.4-7]: as long as MQTT allows, and as many as there is room for; unsubscribing makes room again"""
    node = WatchedNode(tmp_path, f"{LIMITS}  filters_size: 256KiB\n  filters_total_size: 1MiB\n")
    try:
        healthy = Healthy(node)
        clients = [connected(node) for _ in range(6)]
        granted = []
        for number, client in enumerate(clients):
            codes = [client.subscribe(f"{number}/{n}/".ljust(64_000, "x")) for n in range(8)]
            assert set(codes) <= {0, QUOTA_EXCEEDED}
            granted.append(codes.count(0))
        assert granted == [4, 4, 4, 4, 0, 0]
        assert clients[0].unsubscribe("0/0/".ljust(64_000, "x")).reasons == [0]
        assert clients[0].subscribe("0/9/".ljust(64_000, "x")) == 0
        assert node.metric("subscriptions_refused_total") == 6 * 8 - 16
        assert healthy.is_served()
        for client in clients:
            client.drop()
        node.settles(connections=1, subscriptions=2)
        again = connected(node)
        assert [again.subscribe(f"{n}/".ljust(64_000, "x")) for n in range(5)] == [0] * 4 + [QUOTA_EXCEEDED]
    finally:
        node.kill()


def test_filters_that_are_too_deep(node: WatchedNode, healthy: Healthy) -> None:
    client = connected(node)
    for levels, code in ((LEVELS, 0), (LEVELS + 1, 0x8F), (10_000, 0x8F)):
        assert client.subscribe("/".join("a" * levels)) == code
    assert healthy.is_served()


def test_retained_messages_asked_for_again_and_again(node: WatchedNode, healthy: Healthy) -> None:
    """A small packet that asks for much: by one that does not read, a thousand times"""
    publisher = connected(node)
    for n in range(RETAINED):
        publisher.publish(f"live/{n}", bytes(2000), 1, retain=True)
    before = node.memory
    client = connected(node, "greedy")
    again = [subscribe(1, ("live/#", qos), version=5) for qos in (0, 1, 2) * 300]
    with contextlib.suppress(ConnectionError):
        client.send(*again)
    for _ in range(5):
        assert healthy.is_served()
    assert node.memory - before < 16 * MIB
    client.drop()
    node.settles(connections=2)
    assert healthy.is_served()


# --- topics


def test_a_flood_of_retained_messages(node: WatchedNode, healthy: Healthy) -> None:
    """v5 section 3.4.2.1: past the limit a message is refused as such, and replacing one works still"""
    before, client = node.memory, connected(node)
    reasons = []
    for start in range(0, 10 * RETAINED, 500):
        numbers = range(start + 1, start + 501)
        client.send(*[publish(f"live/{n}", bytes(500), version=5, qos=1, packet_id=n, retain=True) for n in numbers])
        reasons += [client.take(PUBACK).reason for _ in numbers]
    assert [reason < 0x80 for reason in reasons] == [True] * RETAINED + [False] * 9 * RETAINED
    assert set(reasons[RETAINED:]) == {QUOTA_EXCEEDED}
    assert node.metric("retained") == RETAINED
    assert node.metric("retained_refused_total") == 9 * RETAINED
    assert node.memory - before < 12 * MIB
    answer = client.publish("live/1", b"new", 1, retain=True)
    assert answer is not None
    assert answer.reason < 0x80
    assert healthy.is_served()


@pytest.mark.parametrize("stream", ["live", "kept"])
def test_an_explosion_of_topics(node: WatchedNode, healthy: Healthy, stream: str) -> None:
    """What is remembered of topics has an end: a second flood of others costs next to nothing more"""
    watching = connected(node)
    watching.subscribe("+/+/+/none", 0)
    client = connected(node, version=4)
    used = []
    for start in (0, 150_000, 300_000):
        for n in range(start, start + 150_000, 500):
            client.send(*[publish(f"{stream}/device-{n + k}/{'x' * 40}", b"x") for k in range(500)])
        client.publish("live/end", b"", 1)
        assert healthy.is_served()
        used.append(node.memory)
    assert used[0] < 180 * MIB
    assert used[2] - used[1] < 16 * MIB
    assert healthy.is_served()


def test_an_explosion_of_sessions(node: WatchedNode, healthy: Healthy) -> None:
    """Sessions of clients that never come back: the one longest away goes first, the healthy one never"""
    before = node.memory
    for n in range(5 * SESSIONS):
        client = Client(node.mqtt, 4)
        try:
            client.connect(f"ghost-{n}", clean=False)
            client.subscribe(f"kept/ghost/{n}", 1)
            client.disconnect()
        except Closed:
            pytest.fail("a new client is let in as long as others are away")
    assert node.metric("sessions") <= SESSIONS
    assert node.memory - before < 16 * MIB
    assert healthy.is_served()
