"""The demo's processes: a hub and edge nodes with real configuration files. Tests and benchmarks start theirs here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
WEFT = (sys.executable, "-m", "weft")

HUB_YAML = """\
listen: 127.0.0.1:{hub_port}
store: {directory}/store
shards: 2
processes: 1
tables: {{interval: 1s}}
{settings}"""

EDGE_YAML = """\
node: {name}
data_dir: {directory}/{name}
listeners:
  mqtt: {{bind: 127.0.0.1:{mqtt_port}}}
  amqp: {{bind: 127.0.0.1:{amqp_port}}}
  http: {{bind: 127.0.0.1:{post_port}}}
http: {{bind: 127.0.0.1:{http_port}}}
disk: {{budget: 1GiB}}
streams:
  telemetry:
    from: "sensors/{{device}}/telemetry"
{streams}links:
  cloud:
    to: http://127.0.0.1:{link_port}
{link_settings}"""


class FabricError(RuntimeError):
    """A failed process of the demo; the sentence names its log file."""


# Below the ports that systems give to outgoing connections (32768 and up on Linux): a client that tries again and again
# while its server is down may otherwise be given the server's own port, connect to itself, and keep it.
_candidates = itertools.cycle(random.sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """Return a free TCP port on loopback; two calls in a row never return the same."""
    while True:
        port = next(_candidates)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get_json(url: str, timeout_s: float = 5.0) -> Any:
    """Return the JSON document at ``url``. Raises ``OSError`` when the request fails."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


class Service:
    """A `weft ... run` process that can be killed and started again."""

    popen: type[subprocess.Popen[Any]] = subprocess.Popen
    """Starter of the process; tests have a faster one."""

    def __init__(self, directory: Path, name: str, arguments: list[str], status_url: str) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._arguments = arguments
        self._status_url = status_url
        self._process: subprocess.Popen[Any] | None = None
        self.command = [*WEFT]
        self.environment: dict[str, str] = {}
        """Variables for the process beside those of this one."""

    def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            FabricError: it ended, or did not answer within ``READY_TIMEOUT_S``.
        """
        with self.log_path.open("ab") as log:
            self._process = self.popen(
                [*self.command, *self._arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                get_json(self._status_url)
            except OSError:
                if self._process.poll() is not None:
                    raise FabricError(f"{self.name} ended at once; see {self.log_path}") from None
                time.sleep(0.05)
            else:
                return
        raise FabricError(f"{self.name} did not answer within {READY_TIMEOUT_S:.0f} s; see {self.log_path}")

    def status(self) -> Any:
        """Return the process's own status document.

        Raises:
            FabricError: it does not answer.
        """
        return self.ask(self._status_url)

    def ask(self, url: str) -> Any:
        """Return a JSON document of the process.

        Raises:
            FabricError: it does not answer.
        """
        try:
            return get_json(url)
        except OSError as error:
            raise FabricError(f"{self.name} does not answer ({error}); see {self.log_path}") from error

    @property
    def pid(self) -> int:
        """Return the process id of the running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL, which leaves the process no time to clean up."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL when the process has not ended after ``STOP_TIMEOUT_S``."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Edge(Service):
    """An edge node of the demo, with its configuration."""

    def __init__(self, directory: Path, name: str, link_port: int, streams: str = "", link_settings: str = "") -> None:
        """Write the node's configuration.

        Args:
            streams: YAML of streams besides ``telemetry``.
            link_settings: YAML of the link's settings besides ``to``.
        """
        self._streams, self._link_settings = streams, link_settings
        self.mqtt_port, self.amqp_port, self.post_port, self._http_port = (free_port() for _ in range(4))
        self._directory = directory
        self.config_path = directory / f"{name}.yaml"
        self.url = f"http://127.0.0.1:{self._http_port}"
        super().__init__(directory, name, ["edge", "run", str(self.config_path)], f"{self.url}/status")
        self.point_link_at(link_port)

    @property
    def ports(self) -> dict[str, int]:
        """Return the ports for devices, by protocol."""
        return {"mqtt": self.mqtt_port, "amqp": self.amqp_port, "http": self.post_port}

    @property
    def data_dir(self) -> str:
        """Return the folder of the node's log."""
        return str(self._directory / self.name)

    def point_link_at(self, link_port: int) -> None:
        """Write a configuration whose link goes to this port; a running process keeps the old one."""
        text = EDGE_YAML.format(
            name=self.name,
            directory=self._directory,
            mqtt_port=self.mqtt_port,
            amqp_port=self.amqp_port,
            post_port=self.post_port,
            http_port=self._http_port,
            link_port=link_port,
            streams=self._streams,
            link_settings=self._link_settings,
        )
        self.config_path.write_text(text)


class DemoHub(Service):
    """The demo's hub node, with its configuration."""

    def __init__(self, directory: Path, settings: str = "") -> None:
        """Write the node's configuration, with ``settings`` in YAML besides what each hub here has."""
        self.port = free_port()
        self.store = str(directory / "store")
        self.config_path = directory / "hub.yaml"
        self.config_path.write_text(HUB_YAML.format(hub_port=self.port, directory=directory, settings=settings))
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(directory, "hub", ["hub", "run", str(self.config_path)], f"{self.url}/v1/status")

    def records(self) -> int:
        """Return the number of records of all streams in the hub's log."""
        return sum(records for records, _ in self.counts().values())

    def table_rows(self) -> int:
        """Return the number of records of all streams that are table rows."""
        return sum(rows for _, rows in self.counts().values())

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return stream -> (records in the hub's log, those of them that are table rows)."""
        return {each["stream"]: (each["records"], each["table_rows"] or 0) for each in self._streams()}

    def complete_up_to(self) -> dict[str, str | None]:
        """Return stream -> moment up to which it is complete; None if the hub claims nothing."""
        return {each["stream"]: each["complete_up_to"] for each in self._streams()}

    def _streams(self) -> list[dict[str, Any]]:
        streams: list[dict[str, Any]] = self.ask(f"{self.url}/v1/streams")["streams"]
        return streams


# A network that can be cut: a TCP relay between an edge and the hub, in a thread of its own.

_READ_BYTES = 256 << 10
_SLOW_BYTES = 2 << 10
SLOW_BYTES_PER_S = 8 << 10
"""Rate of a line that came back, so that a person sees the backlog drain: that of a modem of GPRS."""


class Relay:
    """A relay to ``target_port`` on loopback, until ``cut`` and again after ``restore``."""

    def __init__(self, target_port: int) -> None:
        self._is_slow = False
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._up = True
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="demo-network", daemon=True)
        self._thread.start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._up:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, far_writer))
                group.create_task(self._copy(far_reader, writer))
        except* OSError:
            pass
        finally:
            far_writer.close()

    def cut(self) -> None:
        """Drop every connection and refuse new ones."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        self._up = False
        for task in self._connections:
            task.cancel()

    def restore(self) -> None:
        """Let connections through again, at the rate of a slow line."""
        self._is_slow = True
        self._up = True

    def close(self) -> None:
        """Cut for good and end the thread."""
        self.cut()
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_SLOW_BYTES if self._is_slow else _READ_BYTES):
                writer.write(data)
                await writer.drain()
                if self._is_slow:
                    await asyncio.sleep(len(data) / SLOW_BYTES_PER_S)
        writer.close()
