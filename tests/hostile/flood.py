"""An attacker in a process of its own, so that it shares no interpreter lock with the well-behaved client."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from pathlib import Path
from typing import cast

from tests.support import forked
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, Subscribe, Subscription


def flood(port: int, data: Path, seconds: float, connections: int = 1, once: int = 0) -> None:
    """Send the same bytes again and again; answers are read and thrown away.

    Args:
        once: bytes at the beginning that each connection sends once.
    """
    _run(port, data, seconds, connections, once)


def mqtt_flood(port: int, packets: Path, seconds: float, connections: int = 1) -> None:
    """Log in as ``mallory`` and send the same packets again and again."""
    _run(port, packets, seconds, connections, 0, "mqtt")


def fan_out_flood(  # noqa: PLR0917
    port: int, data: Path, seconds: float, mqtt_port: int, subscribers: int, qos: int, connections: int = 1
) -> int:
    """Send the same bytes again and again while so many clients of ``mallory`` read ``public/#``; those at QoS 1 never
    acknowledge. Return the bytes that they got."""
    logs_in = "mqtt" if port == mqtt_port else "http"
    return int(_run(port, data, seconds, connections, 0, logs_in, mqtt_port, subscribers, qos))


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.hostile.flood", *map(str, arguments)]
    done = forked.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def _open(port: int, client_id: str | None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    if client_id is not None:
        connection.sendall(encode(Connect(client_id, username="mallory", password=b"mallory"), 4))
        assert connection.recv(4)[3] == 0
    connection.setblocking(False)
    return connection


def _listen(port: int, number: int, qos: int) -> socket.socket:
    connection = _open(port, f"subscriber-{number}")
    connection.sendall(encode(Subscribe(1, (Subscription("public/#", qos),)), 4))
    return connection


def _main(  # noqa: PLR0917
    port: int, file: Path, seconds: float, count: int, once: int, logs_in: bool, listening: tuple[int, int, int]
) -> None:
    mqtt_port, subscribers, qos = listening
    listeners = {_listen(mqtt_port, number, qos) for number in range(subscribers)}
    received = 0
    data = memoryview(file.read_bytes())
    sent = {_open(port, f"attacker-{number}" if logs_in else None): 0 for number in range(count)}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in sent:
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        for connection in listeners:
            selector.register(connection, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and sent:
            for key, events in selector.select(left):
                connection = cast(socket.socket, key.fileobj)
                try:
                    if events & selectors.EVENT_READ:
                        if not (got := connection.recv(1 << 20)):
                            raise ConnectionError
                        received += len(got) if connection in listeners else 0
                    if events & selectors.EVENT_WRITE:
                        sent[connection] += connection.send(data[sent[connection] :])
                        if sent[connection] == len(data):
                            sent[connection] = once
                except BlockingIOError:
                    continue
                except ConnectionError:  # the node has closed it
                    selector.unregister(connection)
                    sent.pop(connection, None)
    for connection in (*sent, *listeners):
        connection.close()
    sys.stdout.write(str(received))


if __name__ == "__main__":
    _main(
        int(sys.argv[1]),
        Path(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
        sys.argv[6:7] == ["mqtt"],
        tuple(map(int, sys.argv[7:])) or (0, 0, 0),  # type: ignore[arg-type]
    )
