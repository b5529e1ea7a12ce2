"""A node of its own process, watched from outside: its metrics, memory and log. And a client that may be harmed."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import psutil

from examples.demo.fabric import free_port
from tests.conformance.raw_client import Client
from tests.support.certificates import Authority
from tests.support.processes import EdgeProcess
from tests.support.waiting import PATIENCE_S, wait_until

CONFIG = """\
node: watched
data_dir: {directory}/data
http: {{bind: "127.0.0.1:{pages}"}}
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
  ws: {{bind: "127.0.0.1:{ws}"}}
  tls: {{bind: "127.0.0.1:{tls}", tls: {{certificate: {certificate}, key: {key}}}}}
streams:
  kept: {{from: "kept/#"}}
disk: {{budget: 256MiB, segment: 4MiB}}
limits:
  message: 64KiB
  connect_timeout: 1s
  write_timeout: 2s
  session_expiry: 1s
  tail: 1MiB
  session_queues: 4MiB
  send_queue: 256KiB
"""


class WatchedNode(EdgeProcess):
    """A running node. ``limits`` are lines for its configuration."""

    def __init__(self, directory: Path, limits: str) -> None:
        self.mqtt, self.ws, self.tls, self.pages = (free_port() for _ in range(4))
        own = Authority(directory).sign("node")
        text = CONFIG.format(
            directory=directory,
            mqtt=self.mqtt,
            ws=self.ws,
            tls=self.tls,
            pages=self.pages,
            certificate=own.certificate,
            key=own.key,
        )
        self.written = directory / "log"
        super().__init__(directory, text + limits, self.written)
        self.start(popen=subprocess.Popen)  # its memory is measured

    def metric(self, name: str) -> float:
        """The value of ``weft_edge_<name>``."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.pages}/metrics", timeout=PATIENCE_S).read().decode()
        found = re.search(rf"^weft_edge_{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        assert found, f"no metric {name}"
        return float(found[1])

    def settles(self, **expected: float) -> None:
        """Wait until metrics have these values."""
        wait_until(lambda: self.figures(expected) == expected, what=lambda: f"{self.figures(expected)}, not {expected}")

    def figures(self, names: Iterable[str]) -> dict[str, float]:
        return {name: self.metric(name) for name in names}

    @property
    def memory(self) -> int:
        """Bytes that are the process's alone."""
        return psutil.Process(self.pid).memory_full_info().uss

    def lines(self, pattern: str) -> list[str]:
        """Lines of its log in which something is found."""
        return [line for line in self.written.read_text().splitlines() if re.search(pattern, line)]


class Healthy:
    """Publishes to itself at QoS 1, misses no acknowledgement and no message, and waits for none long."""

    def __init__(self, node: WatchedNode, client_id: str = "healthy") -> None:
        self._client = Client(node.mqtt, 5)
        self._client.connect(client_id, keep_alive=60)
        self._topics = (f"{client_id}/own", f"kept/{client_id}")
        for topic in self._topics:
            self._client.subscribe(topic, 1)
        self._number = 0

    def is_served(self) -> bool:
        """Whether it is; no wait is longer than the client allows."""
        for topic in self._topics:
            self._number += 1
            answer = self._client.publish(topic, b"%d" % self._number, 1)
            if answer is None or answer.reason or self._client.message().payload != b"%d" % self._number:
                return False
        return True

    def leave(self) -> None:
        """With DISCONNECT."""
        self._client.disconnect()
