"""Real `weft ... run` processes for tests: started, asked, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import paho.mqtt.client as paho
from click.testing import CliRunner, Result
from paho.mqtt.enums import CallbackAPIVersion

from tests.support import forked
from tests.support.waiting import PATIENCE_S
from weft.cli import cli

STOP_S_MAX = PATIENCE_S


class Node:
    """One process. ``ready`` is the line it printed once it served.

    Args:
        stderr: where it writes its log; the tests' own by default.
        popen: `subprocess.Popen` starts an interpreter of its own, for what is measured of one: its memory, its start.
    """

    def __init__(
        self,
        kind: str,
        config: Path,
        weft: Sequence[str] = (sys.executable, "-m", "weft"),
        stderr: IO[bytes] | None = None,
        popen: type[subprocess.Popen[Any]] = forked.Popen,
    ) -> None:
        started = time.perf_counter()
        command = [*weft, kind, "run", str(config)]
        self.process = popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
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
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
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
    """Standard error of the processes that get ``file`` for it. A context.

    They append to a file of its own, which is only read here. `capfd` would not do: to empty its file it moves the one
    position that it shares with the processes, and what they write just then is lost or torn.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file: IO[bytes] = path.open("ab", buffering=0)

    @property
    def text(self) -> str:
        """What was written so far, up to the end of the last whole line."""
        return "".join(self._path.read_text().rpartition("\n")[:2])

    def has(self, sentence: str) -> bool:
        return sentence in self.text

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        sys.stderr.write(self._path.read_text())  # pytest shows it when the test has failed


def memory_bytes(pid: int) -> int:
    """Return the memory that a process has taken for itself, without what it has of files, such as libraries.

    A process that was forked comes to those bit by bit, as it runs, which would look like growth.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise LookupError(f"process {pid} has ended")


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
            sent.wait_for_publish(PATIENCE_S)
            assert sent.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


# --- An edge node as a process that is killed and started again, on the same ports and data


class EdgeProcess:
    """The node of one configuration; each start of it is a `Node`. A context, which kills it at the end.

    Args:
        folder: gets the configuration.
        text: of the configuration, with ports of its own.
        log: what the node writes to standard error is appended to it; the tests' own by default.
    """

    def __init__(self, folder: Path, text: str, log: Path | None = None) -> None:
        self.folder, self.log = folder, log
        self.config = folder / "edge.yaml"
        self.config.write_text(text)
        self._node: Node | None = None

    def start(self, environment: Mapping[str, str] = {}, popen: type[subprocess.Popen[Any]] = forked.Popen) -> None:
        """Start it and wait until it serves.

        Args:
            environment: variables beside those of the tests, or all of them.
            popen: `subprocess.Popen` starts an interpreter of its own, whose memory can be measured.
        """
        weft = [sys.executable, "-m", "weft"]
        if environment:
            others = (f"{name}={value}" for name, value in environment.items() if os.environ.get(name) != value)
            weft = ["env", *others, *weft]
        if self.log is None:
            self._node = Node("edge", self.config, weft, popen=popen)
            return
        with self.log.open("ab", buffering=0) as log:
            try:
                self._node = Node("edge", self.config, weft, log, popen)
            except AssertionError as failure:
                failure.add_note(self.log.read_text()[-3000:])
                raise

    @property
    def node(self) -> Node:
        """The process that was started last."""
        assert self._node is not None, "the node was never started"
        return self._node

    @property
    def pid(self) -> int:
        return self.node.process.pid

    @property
    def is_running(self) -> bool:
        return self._node is not None and self._node.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.is_running:
            self.node.kill()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self.node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
