"""An attacker by HTTP or AMQP in a process of its own, which shares no interpreter lock with the good client."""

from __future__ import annotations

import selectors
import socket
import sys
import time
from pathlib import Path
from typing import cast

from tests.support import forked


def flood(port: int, requests: Path, seconds: float, connections: int = 1, once: int = 0) -> None:
    """Send the same requests again and again; answers are read and thrown away.

    Args:
        once: bytes at the beginning that each connection sends once.
    """
    arguments = [str(port), str(requests), str(seconds), str(connections), str(once)]
    done = forked.run([sys.executable, "-m", "tests.hostile.http_flood", *arguments], check=False)
    assert done.returncode == 0


def _main(port: int, requests: Path, seconds: float, count: int, once: int) -> None:
    data = memoryview(requests.read_bytes())
    sent: dict[socket.socket, int] = {}
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setblocking(False)
        sent[connection] = 0
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in sent:
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while (left := deadline - time.monotonic()) > 0 and sent:
            for key, events in selector.select(left):
                connection = cast(socket.socket, key.fileobj)
                try:
                    if events & selectors.EVENT_READ and not connection.recv(1 << 20):
                        raise ConnectionError
                    if events & selectors.EVENT_WRITE:
                        sent[connection] += connection.send(data[sent[connection] :])
                        if sent[connection] == len(data):
                            sent[connection] = once
                except BlockingIOError:
                    continue
                except ConnectionError:  # the node has closed it
                    selector.unregister(connection)
                    del sent[connection]
    for connection in sent:
        connection.close()


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
