"""A running node under damaged conversations: it serves a good client all along, and is as small afterwards as before.

When something is wrong, the seed is printed, and the place of the last bytes sent.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.watched_node import Healthy, WatchedNode
from tests.fuzz.conversations import cut, damaged, seeds
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S

QUICK_S = 1.5
BATCH = 12
"""Bad clients at a time."""
GROWTH_BYTES_MAX = 16 << 20
"""What the heap may be larger after the second half of a run than after the first."""
LIMITS = """\
  sessions: 200
  retained: 200
  half_open: 100
  retained_size: 1MiB
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WatchedNode]:
    started = WatchedNode(tmp_path, LIMITS)
    yield started
    started.kill()


def wrong(node: WatchedNode) -> list[str]:
    """Lines of the log that no client may bring about."""
    return node.lines(r" (ERROR|CRITICAL) |Traceback|Exception|never retrieved|Task was destroyed")


def misbehave(node: WatchedNode, pieces: list[bytes], chance: random.Random) -> socket.socket | None:
    """Send it all, or as much as the node takes; None where the connection is gone by then."""
    port = node.ws if pieces[0][:4] == b"GET " else node.mqtt
    if chance.random() < 0.05:
        port = node.ws + node.mqtt - port
    opened = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    opened.settimeout(0.5)
    try:
        for data in cut(b"".join(pieces), chance):
            opened.sendall(data)
            if chance.random() < 0.3:
                opened.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    opened.recv(4096)
                opened.settimeout(0.5)
    except OSError:
        opened.close()
        return None
    return opened


def leave(opened: socket.socket, chance: random.Random) -> None:
    with contextlib.suppress(OSError):
        match chance.randrange(4):
            case 0:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
            case 1:
                opened.shutdown(socket.SHUT_WR)
                opened.setblocking(False)
                opened.recv(1 << 16)
            case 2:
                opened.shutdown(socket.SHUT_RD)
            case _:
                pass
    opened.close()


def fuzz(node: WatchedNode, healthy: Healthy, seconds: float, chance: random.Random, last: deque[bytes]) -> int:
    """Batches of bad clients until the time is over; how many there were."""
    known, count, end = seeds(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        staying = []
        for _ in range(BATCH):
            pieces = damaged(chance.choice(known), known, chance)
            last.append(b"".join(pieces))
            opened = misbehave(node, pieces, chance)
            if opened is not None:
                staying.append(opened)
        assert healthy.is_served()
        for opened in staying:
            leave(opened, chance)
        count += BATCH
        assert node.is_running, "the node died"
    return count


def run(node: WatchedNode, seconds: float, seed: int) -> int:
    chance, last = random.Random(seed), deque[bytes](maxlen=2 * BATCH)
    healthy = Healthy(node)
    try:
        count = fuzz(node, healthy, seconds / 2, chance, last)
        node.settles(connections=1, connections_half_open=0, sessions=1)
        before = node.memory
        count += fuzz(node, healthy, seconds / 2, chance, last)
        node.settles(connections=1, connections_half_open=0, sessions=1)
        assert healthy.is_served()
        assert node.memory - before < GROWTH_BYTES_MAX
        assert not wrong(node)
    except BaseException as error:
        sent = node.written.with_name("sent")
        sent.write_text("\n".join(data.hex() for data in last))
        raise AssertionError(f"seed {seed}, sent {sent}, log {node.log}: {error}") from error
    return count


@pytest.mark.slow
def test_damaged_conversations(node: WatchedNode) -> None:
    assert run(node, QUICK_S, seed=5) >= 5 * BATCH
    assert node.metric("protocol_errors_total") > 10


@pytest.mark.search
@pytest.mark.timeout(600)
def test_damaged_conversations_for_longer(node: WatchedNode) -> None:
    run(node, SLICE.amount(ci=12.0, night=60.0), SLICE.seed)
