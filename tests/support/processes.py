"""Real `weft ... run` processes for tests: started, asked, killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from click.testing import CliRunner, Result
from paho.mqtt.enums import CallbackAPIVersion

from weft.cli import cli

READY_S_MAX = 20.0
STOP_S_MAX = 10.0


class Node:
    """One process. ``ready`` is the line it printed once it served."""

    def __init__(self, kind: str, config: Path, weft: Sequence[str] = (sys.executable, "-m", "weft")) -> None:
        started = time.perf_counter()
        self.process = subprocess.Popen([*weft, kind, "run", str(config)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        self.start_s = time.perf_counter() - started
        assert "ready" in self.ready, f"{kind} did not start: {self.ready!r}"

    @property
    def url(self) -> str:
        """Of the status page or the hub, with a slash at the end."""
        return "http" + self.ready.strip().rpartition("http")[2].rstrip("/") + "/"

    @property
    def mqtt_port(self) -> int:
        return int(self.ready.partition("MQTT at 127.0.0.1:")[2].partition(",")[0])

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            body: str = answer.read().decode()
            return body

    def json(self, path: str) -> Any:
        return json.loads(self.text(path))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S_MAX)


Start = Callable[[str, Path], Node]
"""Starts an edge or a hub with its configuration."""


class Log:
    """Standard error of the processes that a test has started."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.text = ""

    def has(self, sentence: str) -> bool:
        self.text += self._capfd.readouterr().err
        return sentence in self.text


def weft(*arguments: object, answer: str | None = None) -> Result:
    """A command in this process; what it raises stands in the result."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=answer, standalone_mode=False)


def publish(port: int, topic: str, payloads: list[str]) -> None:
    """Publish at QoS 1 and wait until every message is acknowledged."""
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        for sent in [client.publish(topic, payload, qos=1) for payload in payloads]:
            sent.wait_for_publish(20)
            assert sent.is_published()
    finally:
        client.disconnect()
        client.loop_stop()
