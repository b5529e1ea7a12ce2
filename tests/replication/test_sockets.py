"""What a link learns of the bytes in its socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.waiting import PATIENCE_S, wait_until
from weft.replication.runner.control import Drain

BUFFER_BYTES = 64 << 10


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        with socket.create_connection(server.getsockname()) as ours, server.accept()[0] as theirs:
            ours.setblocking(False)
            yield ours, theirs


def send(ours: socket.socket, size: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while size > 0:
            size -= ours.send(bytes(min(size, BUFFER_BYTES)))


def fill(ours: socket.socket, drain: Drain) -> None:
    """Send until the peer's machine takes no more."""
    send(ours, 32 * BUFFER_BYTES)
    assert drain.continues(again=False)
    wait_until(lambda: not drain.continues(again=True), 10, "the peer's buffer to be full")


def test_bytes_that_join_a_queue_are_none_that_leave(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    drain = Drain(ours)
    fill(ours, drain)
    for _ in range(5):
        send(ours, 1000)
        assert not drain.continues(again=True), "the peer has stopped, whatever joins the queue"


def test_bytes_that_leave_slowly_go_on(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    drain = Drain(ours)
    fill(ours, drain)
    assert drain.continues(again=False)
    theirs.settimeout(PATIENCE_S)
    for _ in range(4):
        assert theirs.recv(BUFFER_BYTES)
    wait_until(partial(drain.continues, again=True), 10, "the peer's machine to take some of what waits")


def test_new_bytes_say_nothing_of_those_before(pair: tuple[socket.socket, socket.socket]) -> None:
    """A peer's machine that takes everything at once, and a peer that reads nothing: the last bytes always wait."""
    ours, _ = pair
    drain = Drain(ours)
    continues = []
    for _ in range(20):
        send(ours, 100)
        continues.append(drain.continues(again=True))
    assert not any(continues)


def test_what_has_all_left_does_not_go_on(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    drain = Drain(ours)
    send(ours, 100)
    assert theirs.recv(100)
    wait_until(lambda: not drain.continues(again=False), 10, "the acknowledgement")
    assert not Drain(None).continues(again=False)
