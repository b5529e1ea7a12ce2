"""An edge node as a real process, and what clients see of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho

from tests.support import forked
from tests.support.waiting import PATIENCE_S
from weft.demo.fabric import free_port

STREAM = "load"

EDGE_YAML = """\
node: cut
data_dir: {tree}
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: {budget}, segment: {segment}}}
streams:
  load: {{{stream}}}
"""


class Node:
    """``weft edge run`` with its data in ``tree``; as a context it is killed at the end."""

    def __init__(
        self,
        folder: Path,
        tree: Path,
        *,
        budget: str = "64MiB",
        segment: str = "1MiB",
        more: str = "",
        links: str = "",
        popen: type[subprocess.Popen[Any]] = forked.Popen,
    ) -> None:
        """Write the configuration.

        Args:
            more: further settings of the stream, such as ``when_full: drop_oldest``.
            links: a section to append.
            popen: `subprocess.Popen` starts an interpreter of its own, whose memory can be measured.
        """
        self.tree = tree
        self.mqtt, self.http = free_port(), free_port()
        self.output = folder / "node.log"
        self.config = folder / "edge.yaml"
        stream = 'from: "load/{device}/count"' + (f", {more}" if more else "")
        self.config.write_text(
            EDGE_YAML.format(
                tree=tree, mqtt=self.mqtt, http=self.http, budget=budget, segment=segment, stream=stream
            ) + links
        )  # fmt: skip
        self._popen = popen
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Start it and wait until it serves."""
        with self.output.open("ab") as output:
            self.process = self._popen(
                [sys.executable, "-m", "weft", "edge", "run", str(self.config)],
                stdout=output, stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.mqtt)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(f"the node did not start:\n{self.output.read_text()[-3000:]}")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def status(self) -> Any:
        """Its status document."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/status", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Client:
    """A paho client that collects what it is sent."""

    def __init__(self, port: int, name: str, *, clean: bool = True) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.session_present = False
        self._answers: list[str] = []
        self._paho = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean)
        self._paho.on_connect = self._on_connect
        self._paho.on_subscribe = lambda *_: self._answers.append("subscribed")
        self._paho.on_message = lambda _, __, message: self.messages.append((message.topic, message.payload))
        self._paho.connect("127.0.0.1", port)
        self._paho.loop_start()
        self.wait(lambda: "connected" in self._answers, "CONNACK")

    def _on_connect(self, _: object, __: object, flags: paho.ConnectFlags, *___: object) -> None:
        self.session_present = flags.session_present
        self._answers.append("connected")

    def subscribe(self, topics: Iterable[str]) -> None:
        """At QoS 1; returns once the server has acknowledged."""
        self._paho.subscribe([(topic, 1) for topic in topics])
        self.wait(lambda: "subscribed" in self._answers, "SUBACK")

    def wait(self, condition: Any, what: str) -> None:
        """Until the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come"
            time.sleep(0.005)

    def close(self) -> None:
        """Disconnect."""
        self._paho.disconnect()
        self._paho.loop_stop()
