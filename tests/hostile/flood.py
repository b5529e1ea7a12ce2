"""An attacker in a process of its own, so that it shares no interpreter lock with the well-behaved client."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect


def flood(port: int, packets: Path, seconds: float) -> None:
    """Log in as ``mallory`` and send the same packets again and again; answers are read and thrown away."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.flood", str(port), str(packets), str(seconds)], check=False
    )
    assert done.returncode == 0


def _drain(connection: socket.socket) -> None:
    try:
        while connection.recv(1 << 20):
            pass
    except OSError:
        return


def _main(port: int, packets: Path, seconds: float) -> None:
    data = memoryview(packets.read_bytes())
    deadline = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(encode(Connect("attacker", username="mallory", password=b"mallory"), 4))
        assert connection.recv(4)[3] == 0
        threading.Thread(target=_drain, args=(connection,), daemon=True).start()
        connection.settimeout(0.5)
        sent = 0
        while time.monotonic() < deadline:
            try:
                sent += connection.send(data[sent % len(data) :])
            except TimeoutError:
                continue
        connection.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
