"""Costs of queues: of many, and of many messages in one (``./run bench queues``).

A node of its own is started, and a client that speaks AMQP 0-9-1 by the same code as the node. Prints memory of the
node, and seconds until it serves clients again after a SIGKILL.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from examples.demo.fabric import free_port
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import PROTOCOL_HEADER
from weft.protocols.amqp.methods import Method, commands, read_method, write_method

Basic, Queue = commands.Basic, commands.Queue
CONFIG = """\
node: bench
data_dir: {folder}/data
http: null
listeners: {{amqp: {{bind: "127.0.0.1:{port}"}}}}
disk: {{budget: 2GiB}}
queues: {{size: 1GiB}}
limits: {{user_share: 100%}}
"""
BODY = b"x" * 64
CHUNK = 500
DELIVERY_FRAMES = 3


class Client:
    """One connection with one channel, which reads frames in large pieces."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._data = bytearray()
        self._at = 0
        self._socket.sendall(PROTOCOL_HEADER)
        self.method()
        self.send(write_method(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0))
        self.method()
        self.send(
            write_method(commands.Connection.TuneOk(0, 0, 0), 0),
            write_method(commands.Connection.Open("/"), 0),
            write_method(commands.Channel.Open(), 1),
        )
        self.method()
        self.method()

    def send(self, *parts: bytes) -> None:
        """Send frames."""
        self._socket.sendall(b"".join(parts))

    def frame(self) -> tuple[int, memoryview]:
        """Return kind and payload of the next frame."""
        while True:
            left = len(self._data) - self._at
            if left >= 7:
                (size,) = struct.unpack_from(">I", self._data, self._at + 3)
                if left >= size + 8:
                    kind, start = self._data[self._at], self._at + 7
                    self._at += size + 8
                    return kind, memoryview(bytes(self._data[start : start + size]))
            del self._data[: self._at]
            self._at = 0
            more = self._socket.recv(1 << 20)
            if not more:
                raise ConnectionError("the node closed the connection")
            self._data += more

    def method(self) -> Method:
        """Return the next frame, which is a method."""
        return read_method(bytes(self.frame()[1]))

    def ask_all(self, methods: Iterable[Method]) -> None:
        """Have many methods answered."""
        waiting = iter(methods)
        while part := list(itertools.islice(waiting, CHUNK)):
            self.send(*(write_method(each, 1) for each in part))
            for _ in part:
                self.method()


class Node:
    """A node in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._file = folder / "edge.yaml"
        self._file.write_text(CONFIG.format(folder=folder, port=self.port))
        self.start()

    def start(self) -> float:
        """Start it; return the seconds until a client may declare something."""
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft", "edge", "run", str(self._file)], stderr=subprocess.DEVNULL
        )
        while True:
            try:
                Client(self.port)
            except OSError:
                time.sleep(0.02)  # another process is asked
                if self._process.poll() is not None:
                    raise RuntimeError("the node did not start: see its log") from None
            else:
                return time.perf_counter() - begun

    def restart(self) -> float:
        """Kill it and start it again; return the seconds until it serves."""
        self._process.kill()
        self._process.wait()
        return self.start()

    def memory_mb(self) -> float:
        """Return its resident memory."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / (1 << 20)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


def many_queues(node: Node, count: int) -> None:
    """Declare and bind queues, each durable, and start again."""
    client, before, begun = Client(node.port), node.memory_mb(), time.perf_counter()
    client.ask_all(Queue.Declare(queue=f"q{number}", durable=True) for number in range(count))
    client.ask_all(
        Queue.Bind(queue=f"q{number}", exchange="amq.direct", routing_key=f"k{number}") for number in range(count)
    )
    took = time.perf_counter() - begun
    print(f"{count:,} queues, each bound: {took:.1f} s, {node.memory_mb() - before:.0f} MB more", flush=True)
    print(f"  started again in {node.restart():.2f} s, {node.memory_mb():.0f} MB in all", flush=True)


def backlog(node: Node, count: int) -> None:
    """Fill one queue, start again, and empty it."""
    client = Client(node.port)
    client.ask_all([Queue.Declare(queue="backlog", durable=True), commands.Confirm.Select()])
    before, begun = node.memory_mb(), time.perf_counter()
    message = write_method(Basic.Publish(exchange="", routing_key="backlog"), 1)
    message += write_content(1, b"\x10\x00\x02", BODY, 1 << 17)
    confirmed = 0
    for sent in range(CHUNK, count + 1, CHUNK):
        client.send(message * CHUNK)
        while confirmed < sent - 20 * CHUNK or (sent == count and confirmed < count):
            confirmed = int(client.method().delivery_tag)
    took = time.perf_counter() - begun
    print(f"{count:,} messages of {len(BODY)} bytes: {count / took:,.0f} confirmed/s", flush=True)
    print(f"  {node.memory_mb() - before:.0f} MB more", flush=True)
    print(f"  started again in {node.restart():.2f} s, {node.memory_mb():.0f} MB in all", flush=True)
    client, begun, most = Client(node.port), time.perf_counter(), 0.0
    client.ask_all([Basic.Qos(prefetch_count=2_000), Basic.Consume(queue="backlog")])
    for taken in range(1, count + 1):
        for _ in range(DELIVERY_FRAMES):
            client.frame()
        if not taken % 500:
            client.send(write_method(Basic.Ack(taken, True), 1))
        if not taken % 50_000:
            most = max(most, node.memory_mb())
    took = time.perf_counter() - begun
    print(f"  {count / took:,.0f} consumed/s, at most {most:.0f} MB", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("WEFT_BENCH_DIR")) as folder:
        node = Node(Path(folder))
        try:
            print(f"a node that serves AMQP: {node.memory_mb():.0f} MB", flush=True)
            many_queues(node, options.queues)
            backlog(node, options.messages)
        finally:
            node.stop()


if __name__ == "__main__":
    main()
