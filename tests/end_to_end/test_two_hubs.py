"""Two hub nodes over one directory and edges that fail over between them, while nodes are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub
from tests.end_to_end.test_kills import STREAM, Load, check_every_message, make_edge, wait_until_drained
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from weft.proofs.audit.audit import audit
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes
STOP_S = 22.0
"""Longer than a link waits for a peer that says nothing."""


class Fabric:
    """Two hub nodes with one store, and an edge that knows both."""

    def __init__(self, directory: Path) -> None:
        self.store = str(directory / "store")
        self.hubs = [self._hub(directory, name) for name in ("hub-a", "hub-b")]
        # An interpreter of its own at each start: forked processes share the order of their sets, and hubs must not.
        self.hubs[1].environment["PYTHONHASHSEED"] = "random"
        self.edge = make_edge(directory, self.hubs[0])
        urls = ", ".join(f'"{hub.url}"' for hub in self.hubs)
        link = f"to: [{urls}]\n    retry_min: 50ms\n    retry_max: 500ms"
        text = self.edge.config_path.read_text()
        self.edge.config_path.write_text(text.replace(f"to: {self.hubs[0].url}", link))

    def _hub(self, directory: Path, name: str) -> DemoHub:
        (directory / name).mkdir()
        hub = DemoHub(directory / name)
        hub.config_path.write_text(hub.config_path.read_text().replace(hub.store, self.store))
        return hub

    def start(self) -> None:
        for service in (*self.hubs, self.edge):
            service.start()

    def stop(self) -> None:
        for service in (self.edge, *self.hubs):
            service.stop()


@outcome()
def check(fabric: Fabric, acked: dict[str, int]) -> int:
    """Every acked message once in log and table; how many there are."""
    report = asyncio.run(audit(open_store(fabric.store), "default", STREAM))
    assert report.agrees, report.problems
    assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
    counted = check_every_message(open_store(fabric.store), acked)
    assert counted["rows"] == report.total("table_records") == report.total("records")
    return counted["messages"]


def kill(hub: DemoHub, chance: random.Random) -> None:
    hub.kill()
    time.sleep(chance.uniform(0.0, 0.8))
    hub.start()


def pause(hub: DemoHub, _: random.Random) -> None:
    """The node comes back with batches in its socket that another node has committed meanwhile."""
    os.kill(hub.pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(hub.pid, signal.SIGCONT)


@pytest.mark.search(turns=2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("hurt", "times"), [(kill, SLICE.amount(ci=5, night=30)), (pause, SLICE.amount(ci=1, night=4))]
)
def test_two_nodes_of_one_store_lose_and_double_nothing(tmp_path: Path, hurt: object, times: int) -> None:
    assert callable(hurt)
    chance = random.Random(SLICE.seed)
    fabric = Fabric(tmp_path)
    load = None
    try:
        fabric.start()
        load = Load(fabric.edge.mqtt_port)
        for _ in range(times):
            time.sleep(chance.uniform(0.1, 1.0))  # the random moment is the test
            hurt(chance.choice(fabric.hubs), chance)
        acked = load.finish()
        wait_until_drained(fabric.edge, fabric.hubs[0])
    finally:
        if load is not None:
            load.kill()
        fabric.stop()
    assert check(fabric, acked) > 1000
