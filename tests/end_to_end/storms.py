"""A fabric of real processes that tests hurt: hub nodes over one store, edges with devices, and what must hold at the
end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from examples.demo.fabric import DemoHub, Edge, FabricError, free_port
from tests.end_to_end.test_kills import DRAIN_TIMEOUT_S, STREAM, Load, check_every_message, make_edge
from tests.support.outcomes import outcome
from tests.support.s3_servers import S3Server, StorePath, listens
from tests.support.waiting import Patience, wait_until
from weft.proofs.audit.audit import audit
from weft.storage.object_store import ObjectStore, open_store

DEVICES, RATE = 2, 100
"""Of each edge; messages a second of one device."""
SHARDS = 4
HUB_YAML = """\
listen: {address}:{port}
store: {store}
shards: {shards}
tables: {{interval: 1s}}
{settings}
"""


def free_ports(count: int) -> int:
    """Return the first of several free ports in a row."""
    while True:
        first = free_port()
        try:
            for port in range(first + 1, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


class HubNode(DemoHub):
    """A hub node of one or several processes.

    Args:
        port: the first of its ports; None takes free ones of this machine.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        store: str,
        processes: int,
        settings: str,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        shards: int = SHARDS,
    ) -> None:
        directory.mkdir(parents=True)
        super().__init__(directory)
        self.name = name
        self.port = free_ports(processes) if port is None else port
        self.url = f"http://{address}:{self.port}"
        self._address = address
        self._status_url = f"{self.url}/v1/status"
        self.config_path.write_text(
            HUB_YAML.format(address=address, port=self.port, store=store, shards=shards, settings=settings)
        )
        self._processes = processes
        self._arguments += ["--processes", str(processes)]

    def start(self) -> None:
        """Start the node; all its processes answer when this returns. One that cannot start would end the node."""
        super().start()
        for port in range(self.port, self.port + self._processes):
            wait_until(partial(listens, port, self._address), 60, f"a process of {self.name}")

    def worker(self, chance: random.Random) -> int:
        """Return the process id of one of the processes that the node's supervisor runs; those that it is about to
        start again are waited for."""
        supervisor = psutil.Process(self.pid)
        wait_until(supervisor.children, 60, f"a process of {self.name}")
        return chance.choice(supervisor.children()).pid

    def answers(self) -> bool:
        """Return whether the node answers now."""
        try:
            return bool(self.status())
        except FabricError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to the whole node at once, as the loss of its machine is."""
        os.killpg(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def pause(self) -> None:
        """Send SIGSTOP to the whole node: its sockets stay open and say nothing."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill_one(self, chance: random.Random) -> None:
        """Send SIGKILL to one of the node's working processes, which its supervisor starts again."""
        os.kill(self.worker(chance), signal.SIGKILL)


class Fabric:
    """Hub nodes with one store, and edges that know all of them.

    Args:
        server: holds the store, with a way of its own for each node; without one the store is a folder.
        processes: of each hub node.
        hub_settings, link_settings: further lines of the configurations.
    """

    def __init__(
        self,
        directory: Path,
        server: S3Server | None = None,
        *,
        nodes: int = 2,
        processes: int = 1,
        edges: int = 2,
        hub_settings: str = "",
        link_settings: str = "",
    ) -> None:
        self.server = server
        self.paths = [StorePath(server.port) for _ in range(nodes)] if server else []
        uri = f"{server.uri}/hub" if server else str(directory / "store")
        self.hubs = [HubNode(directory / f"hub-{at}", f"hub-{at}", uri, processes, hub_settings) for at in range(nodes)]
        for hub, path in zip(self.hubs, self.paths, strict=False):
            assert server is not None
            hub.environment = server.options(path.port)
        self.store: ObjectStore = open_store(uri, server.options() if server else None)
        self.edges = [self._edge(directory / f"edge-{at}", at, link_settings) for at in range(edges)]
        self._loads: list[Load] = []

    def _edge(self, directory: Path, at: int, link_settings: str) -> Edge:
        directory.mkdir()
        edge = make_edge(directory, self.hubs[0])
        # Each edge has another node first.
        order = [self.hubs[(at + i) % len(self.hubs)] for i in range(len(self.hubs))]
        urls = ", ".join(f'"{hub.url}"' for hub in order)
        link = f"to: [{urls}]\n    retry_min: 50ms\n    retry_max: 500ms{link_settings}"
        text = edge.config_path.read_text().replace("node: edge\n", f"node: edge-{at}\n")
        edge.config_path.write_text(text.replace(f"to: {self.hubs[0].url}", link))
        return edge

    def start(self) -> None:
        """Start everything, and the devices."""
        for service in (*self.hubs, *self.edges):
            service.start()
        for at, edge in enumerate(self.edges):
            options = ["--devices", str(DEVICES), "--rate", str(RATE), "--prefix", f"edge-{at}-"]
            self._loads.append(Load(edge.mqtt_port, options=options))

    def stop(self) -> None:
        """End all processes."""
        for load in self._loads:
            load.kill()
        for hub in self.hubs:
            try:
                hub.resume()
            except (ProcessLookupError, AssertionError):
                continue
        for service in (*self.edges, *self.hubs):
            service.stop()
        for path in self.paths:
            path.close()

    def finish(self, *, audited: bool = True) -> Counter[str]:
        """Stop the devices, wait until the table has everything, and count every message.

        Every acked message is in log and table once, whatever became of the nodes.

        Args:
            audited: False where this release cannot read the cluster.
        """
        acked: dict[str, int] = {}
        for load in self._loads:
            acked |= load.finish()
        self._wait_until_drained()
        counted = check_every_message(self.store, acked)
        if not audited:
            return counted
        report = asyncio.run(audit(self.store, "default", STREAM))
        with outcome():
            assert report.agrees, report.problems
            assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
            assert not any(lane.gaps for lane in report.lanes)
            assert counted["rows"] == report.total("table_records") == report.total("records")
        return counted

    def _wait_until_drained(self) -> None:
        expected = sum(edge.status()["streams"][STREAM]["durable_end"] for edge in self.edges)
        rows = -1

        def is_drained() -> bool:
            nonlocal rows
            with contextlib.suppress(FabricError, OSError):
                rows = self.hubs[0].table_rows()
            return bool(rows == expected)

        wait_until(
            is_drained,
            DRAIN_TIMEOUT_S,
            lambda: f"{rows} of {expected} rows are drained; {self.reported()}",
            interval_s=0.2,
        )

    def reported(self) -> str:
        """Return what the nodes say, for a failure's message."""
        return "; ".join(f"{edge.name}: {self.link(edge)}" for edge in self.edges)

    def link(self, edge: Edge) -> Any:
        """Return the status of an edge's link."""
        return edge.status()["links"]["cloud"]

    def hub_of(self, edge: Edge) -> HubNode | None:
        """Return the node that an edge's link goes to."""
        link = self.link(edge)
        port = int(link["url"].rstrip("/").rpartition(":")[2] or 0)
        found = [hub for hub in self.hubs if hub.port <= port < hub.port + 16]
        return found[0] if found and link["state"] == "connected" else None

    def until_all_linked(self) -> None:
        """Wait until each edge has a link."""
        for edge in self.edges:
            wait_until(partial(self.hub_of, edge), 60, f"a link of {edge.name}")

    def seconds_to_acks(self, edge: Edge, since: float, seconds_max: float) -> float:
        """Wait for an acknowledgement of a hub that came after ``since`` (``time.time``).

        Returns:
            Seconds from then to the acknowledgement, about.
        """
        patience = Patience(seconds_max)
        while True:
            last = self.link(edge)["last_ack"]
            if last is not None and last > since:
                return float(last - since)
            assert not patience.is_over(), f"no acknowledgement within {seconds_max} s: {self.link(edge)}"
            time.sleep(0.05)


@contextmanager
def running(fabric: Fabric) -> Iterator[Fabric]:
    """Run a fabric until the end of the block."""
    try:
        fabric.start()
        yield fabric
    finally:
        fabric.stop()


def storm(fabric: Fabric, hurts: list[Callable[[random.Random], None]], times: int, seed: int) -> Counter[str]:
    """Hurt a running fabric at random moments, each way as often as the others; then count every message."""
    chance = random.Random(seed)
    order = [hurts[at % len(hurts)] for at in range(times)]
    chance.shuffle(order)
    with running(fabric):
        for hurt in order:
            time.sleep(chance.uniform(0.1, 0.8))  # the random moment is the test
            hurt(chance)
        return fabric.finish()
