"""Packets that never come whole take a share of the memory, and no more."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect

pytestmark = pytest.mark.processes
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
