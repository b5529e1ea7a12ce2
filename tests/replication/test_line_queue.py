"""The queue before a slow line: short with ``fresh_first``, left to the kernel otherwise."""

from __future__ import annotations

import contextlib
import fcntl
import socket
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from weft.replication.liveness import SECOND
from weft.replication.policy import LINE_RATE, MESSAGE_BYTES_MIN, Order, PolicyRules, SendPolicy
from weft.replication.runner.control import QUEUE_NS, SIOCOUTQNSD, LineQueue

FRESH = PolicyRules(order=Order.FRESH_FIRST)
USUAL = 256 << 10


@pytest.fixture
def full() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection whose sender has more to send than its peer takes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        with socket.create_connection(server.getsockname()) as ours, server.accept()[0] as theirs:
            ours.setblocking(False)
            for _ in range(64):
                try:
                    ours.send(bytes(64 << 10))
                except BlockingIOError:
                    break
            yield ours, theirs


def held_until(policy: SendPolicy, queue: LineQueue, now: int) -> int | None:
    policy.look(now, now)
    queue.look(policy, now)
    assert policy.is_held == (policy.deadline() is not None)
    return policy.deadline()


def test_data_waits_while_the_queue_before_the_line_is_long(full: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = full
    policy, queue = SendPolicy(FRESH), LineQueue(ours)
    queue.look(policy, SECOND)
    policy.line_rate = LINE_RATE  # loopback is no slow line
    until = held_until(policy, queue, SECOND + 1)
    assert until is not None
    assert SECOND < until < SECOND + QUEUE_NS
    theirs.setblocking(False)

    def is_drained() -> bool:
        with contextlib.suppress(BlockingIOError):
            while theirs.recv(1 << 20):
                pass
        return not any(fcntl.ioctl(ours.fileno(), SIOCOUTQNSD, bytes(4)))

    wait_until(is_drained, 10, "the queue to be empty")
    assert held_until(policy, queue, SECOND + 1 + QUEUE_NS) is None


def test_data_does_not_wait_in_another_order_or_before_a_fast_line(full: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = full
    assert held_until(SendPolicy(PolicyRules()), LineQueue(ours), SECOND) is None
    fast = SendPolicy(FRESH)
    fast.line_rate = 100 << 20
    assert held_until(fast, LineQueue(ours), SECOND) is None
    assert held_until(SendPolicy(FRESH), LineQueue(None), SECOND) is None


def test_a_system_that_does_not_tell_its_queue_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.replication.runner.control.SIOCOUTQNSD", SIOCOUTQNSD + 0x100)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        assert held_until(SendPolicy(FRESH), LineQueue(ours), SECOND) is None


def test_messages_last_a_quarter_of_a_second_on_the_line() -> None:
    policy = SendPolicy(FRESH)
    assert policy.message_bytes(USUAL) == LINE_RATE // 4
    policy.line_rate = 100
    assert policy.message_bytes(USUAL) == MESSAGE_BYTES_MIN
    policy.line_rate = 100 << 20
    assert policy.message_bytes(USUAL) == USUAL
    assert SendPolicy(PolicyRules()).message_bytes(USUAL) == USUAL
