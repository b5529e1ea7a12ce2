"""One client has the node work hard; another one waits no longer than for its turn."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.flood import mqtt_flood
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import Waits, at_most
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S
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
