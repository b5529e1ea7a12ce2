"""One user by AMQP 1.0 never reads, keeps to no credit, or holds what it does not use; others are served."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from collections.abc import Iterator

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient, at_most
from tests.hostile.test_queues import MIB, connected, is_open
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.amqp.typed_values import Symbol
from weft.protocols.amqp1 import AMQP, SASL, described, encode, fields, ubyte, uint
from weft.protocols.mqtt.encoder import encode as encode_mqtt
from weft.protocols.mqtt.packets import Connect, Publish

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("proton") is None, reason="python-qpid-proton is not installed"),
]
P99_S = 3.0
"""Longest p99 of a well-behaved client meanwhile, on a busy machine."""
SHARE = 100
"""Connections of one user."""
SESSIONS = 64


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedEdge]:
    """One node for all attacks."""
    limits = f"connections: {4 * SHARE}"
    node = GuardedEdge(tmp_path_factory.mktemp("attacked"), limits, amqp=True)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


LOGIN = described(0x41, fields([encode(Symbol("PLAIN")), encode(b"\0mallory\0mallory")]))
OPENED = SASL + frame(LOGIN, kind=1) + AMQP + frame(described(0x10, fields([encode("mallory"), encode("host")])))
BEGIN = described(0x11, fields([encode(None), uint(0), uint(1_000_000), uint(1_000_000)]))


def attach(name: str, *, receives: bool) -> bytes:
    source = described(0x28, fields([encode("public/x")]))
    target = described(0x29, fields([encode("public/x")]))
    ends = [source, target, encode(None), encode(None), uint(0)]
    return frame(described(0x12, fields([encode(name), uint(0), encode(receives), ubyte(2), ubyte(0), *ends])))


def test_receivers_that_never_read_hold_little(edge: GuardedEdge) -> None:
    credit = [uint(0), uint(1_000_000), uint(0), uint(1_000_000), uint(0), uint(0), uint(1_000_000)]
    wants = OPENED + frame(BEGIN) + attach("wants", receives=True) + frame(described(0x13, fields(credit)))
    before, deaf = edge.memory_bytes(), []
    for _ in range(40):
        each = socket.socket()
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.connect(("127.0.0.1", edge.amqp_port))
        each.sendall(wants)
        deaf.append(each)
    publisher = socket.create_connection(("127.0.0.1", edge.mqtt_port), timeout=PATIENCE_S)
    with GoodClient(edge, "device") as good:
        publisher.sendall(encode_mqtt(Connect("publisher", username="mallory", password=b"mallory"), 4))
        assert publisher.recv(4)[3] == 0
        most = 0
        for number in range(1, 301):
            publisher.sendall(encode_mqtt(Publish(b"public/x", bytes(60_000), 1, packet_id=number), 4))
            assert publisher.recv(4)[:2] == b"\x40\x02"
            most = max(most, edge.memory_bytes())
        good.take()
        assert most - before < 150 * MIB
        assert figure(edge, "weft_edge_deliveries_dropped_total") == 0, "what they do not take waits in the log"
    for each in (*deaf, publisher):
        each.close()


def figure(edge: GuardedEdge, name: str) -> float:
    return sum(float(line.split()[-1]) for line in edge.metrics().splitlines() if line.startswith(name))


def test_who_keeps_to_no_credit_is_closed_and_keeps_no_one_waiting(edge: GuardedEdge) -> None:
    message = described(0x75, encode(b"x"))
    heads = ([uint(0), uint(number), encode(b"%d" % number), uint(0), encode(False)] for number in range(20_000))
    transfers = b"".join(frame(described(0x14, fields(head)) + message) for head in heads)
    with GoodClient(edge, "device") as good:
        before = edge.memory_bytes()
        held = connected(edge, 30, OPENED + frame(BEGIN) + attach("sends", receives=False) + transfers)
        wait_until(lambda: not any(map(is_open, held)), 60, "the end of those beyond their window")
        at_most(P99_S, good.take().p99)
        assert edge.memory_bytes() - before < 150 * MIB
    for each in held:
        each.close()


def test_sessions_that_are_held_open_take_little_and_a_share(edge: GuardedEdge) -> None:
    begun = OPENED + b"".join(frame(BEGIN, channel) for channel in range(SESSIONS))
    with GoodClient(edge, "device") as good:
        before = edge.memory_bytes()
        held = connected(edge, SHARE + 20, begun)
        try:
            wait_until(lambda: sum(map(is_open, held)) <= SHARE, 60, "the end of those beyond the share")
            # Sessions count as links: of as many connections as one user may have, some have too many.
            refused = 'bound="limits.user_share of limits.subscriptions_total",owner="user mallory"'
            wait_until(lambda: refused in edge.metrics(), 60, "the end of those with too many sessions")
            at_most(P99_S, good.take().p99)
            assert edge.memory_bytes() - before < 100 * MIB
        finally:
            for each in held:
                with contextlib.suppress(OSError):
                    each.close()
