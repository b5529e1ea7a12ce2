"""A well-behaved client beside an attack: it publishes a little, and measures how long each acknowledgement takes."""

from __future__ import annotations

import socket
import threading

from tests.hostile.edge import GuardedEdge
from tests.hostile.waits import Waits, summary
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Publish

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
