"""A well-behaved client beside an attack: it publishes a little, and measures how long each acknowledgement takes."""

from __future__ import annotations

import socket
import threading
from typing import NamedTuple

import pytest

from tests.hostile.edge import GuardedEdge
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Publish

# --- Times that a well-behaved client waited for acknowledgements, and what a test allows of them


MEASURED_AGAIN = pytest.mark.flaky(reruns=2, only_rerun=["WaitedTooLong", "LongSteps"])
"""Of all attacks, since they measure waits and steps on a machine that others use as well, and whose host takes time
that the process is charged for: what an attack causes is there every time. Whatever else is wrong fails at once."""


class WaitedTooLong(AssertionError):
    """A wait that was longer than a test allows."""


def at_most(most_s: float, waited_s: float, *seen: object) -> None:
    """Fail a test whose client waited longer.

    Raises:
        WaitedTooLong: with everything that was seen.
    """
    if not waited_s <= most_s:
        raise WaitedTooLong(f"{waited_s:.3f} s, and at most {most_s:.3f} s are allowed", *seen)


class Waits(NamedTuple):
    """Times to acknowledgements in seconds, as a `Stopwatch` measures them."""

    acknowledged: int
    p99: float
    longest: float


def summary(waits: list[float]) -> Waits:
    """Return what is said of some waits, of which there is at least one."""
    assert waits, "the well-behaved client got no acknowledgement at all"
    ordered = sorted(waits)
    return Waits(len(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1])


# --- good client


TOPIC = b"plant/a/b/telemetry"
INTERVAL_S = 0.02


class GoodClient(threading.Thread):
    """Publishes at QoS 1, one message after the other; never gives up. A context."""

    def __init__(self, edge: GuardedEdge, user: str | None = None, client_id: str = "well-behaved") -> None:
        super().__init__(daemon=True)
        self._node = edge.pid
        self._socket = socket.create_connection(("127.0.0.1", edge.mqtt_port), timeout=PATIENCE_S)
        self._send(Connect(client_id, username=user, password=None if user is None else user.encode()))
        assert self._read(4)[3] == 0, "the well-behaved client is let in"
        self._stopping = threading.Event()
        self._waits: list[float] = []
        self._failure: BaseException | None = None

    def _send(self, *packets: Connect | Publish) -> None:
        self._socket.sendall(b"".join(encode(packet, 4) for packet in packets))

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the node closed the connection of the well-behaved client"
            data += more
        return data

    def run(self) -> None:
        number = 0
        stopwatch = Stopwatch(self._node)
        try:
            while not self._stopping.wait(INTERVAL_S):
                number = number % 65_535 + 1
                stopwatch.start()
                self._send(Publish(TOPIC, b'{"value": 21.5}', 1, packet_id=number))
                assert self._read(4) == b"\x40\x02" + number.to_bytes(2, "big")
                self._waits.append(stopwatch.seconds())
        except BaseException as failure:
            self._failure = failure

    def __enter__(self) -> GoodClient:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)
        self._socket.close()

    def take(self) -> Waits:
        """Return the waits since the last call; that of the message on the way where there is no other."""
        wait_until(lambda: self._waits or self._failure, PATIENCE_S, "an acknowledgement to the well-behaved client")
        if self._failure is not None:
            raise AssertionError("the well-behaved client was harmed") from self._failure
        waits, self._waits = self._waits, []
        return summary(waits)
