"""A hub of two processes under load, each killed in turns, and their supervisor: every acknowledged message once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub, Edge, FabricError
from tests.end_to_end.test_kills import DRAIN_TIMEOUT_S, STREAM, Load, check_every_message
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.protocols.shard.placement import shard_of
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes
SHARDS = 2
NAMES = [next(f"edge-{n}" for n in range(64) if shard_of("default", f"edge-{n}", SHARDS) == s) for s in range(SHARDS)]
"""An edge of each process's shard."""


def make_edge(directory: Path, name: str, hub: DemoHub) -> Edge:
    edge = Edge(directory, name, hub.port)
    text = edge.config_path.read_text().replace("telemetry:", f"{STREAM}:")
    text = text.replace("sensors/{device}/telemetry", "load/{device}/count")
    link = f"to: {hub.url}\n    retry_min: 50ms\n    retry_max: 500ms"
    edge.config_path.write_text(text.replace(f"to: {hub.url}", link))
    return edge


def make_hub(directory: Path) -> DemoHub:
    hub = DemoHub(directory)
    text = hub.config_path.read_text()
    assert "processes: 1" in text
    assert f"shards: {SHARDS}" in text
    hub.config_path.write_text(text.replace("processes: 1", "processes: 2"))
    return hub


def kill_process(hub: DemoHub, number: int) -> None:
    """SIGKILL a process of the hub; its supervisor starts it again."""
    pids = Path(f"/proc/{hub.pid}/task/{hub.pid}/children").read_text().split()
    for pid in pids:
        if f"--part\0{number}/" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(int(pid), signal.SIGKILL)


def kill_supervisor(hub: DemoHub) -> None:
    hub.kill()
    hub.start()


def wait_until_drained(edges: list[Edge], hub: DemoHub) -> None:
    expected = sum(edge.status()["streams"][STREAM]["durable_end"] for edge in edges)
    rows = -1

    def is_drained() -> bool:
        nonlocal rows
        with contextlib.suppress(FabricError):  # the process that answers is being started again
            rows = hub.table_rows()
        return bool(rows == expected)

    wait_until(is_drained, DRAIN_TIMEOUT_S, lambda: f"{rows} rows of {expected} records", interval_s=0.1)


@contextlib.contextmanager
def under_load(hub: DemoHub, edges: list[Edge]) -> Iterator[list[Load]]:
    """Run a hub, edges, and two devices of each, until the end of the block."""
    loads: list[Load] = []
    try:
        for service in (hub, *edges):
            service.start()
        loads += [Load(edge.mqtt_port, options=["--prefix", edge.name, "--devices", "2"]) for edge in edges]
        yield loads
    finally:
        for load in loads:
            load.kill()
        for service in (*edges, hub):
            service.stop()


@outcome()
def check_once(hub: DemoHub, acked: dict[str, int]) -> None:
    """Every acknowledged message is in log and table once."""
    store = open_store(hub.store)
    report = asyncio.run(audit(store, "default", STREAM))
    assert report.agrees, report.problems
    assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
    counted = check_every_message(store, acked)
    assert counted["rows"] == report.total("table_records") == report.total("records")
    assert counted["messages"] > 500


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs proc(5)")
@pytest.mark.search
@pytest.mark.timeout(900)
def test_killed_processes_of_a_hub_lose_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(SLICE.seed)
    hub = make_hub(tmp_path)
    edges = [make_edge(tmp_path, name, hub) for name in NAMES]
    acked: dict[str, int] = {}
    with under_load(hub, edges) as loads:
        for _ in range(SLICE.amount(ci=1, night=10)):
            for victim in chance.sample(range(3), 3):
                time.sleep(chance.uniform(0.3, 1.5))  # the random moment is the test
                kill_supervisor(hub) if victim == 2 else kill_process(hub, victim)
        for load in loads:
            acked |= load.finish()
        wait_until_drained(edges, hub)
    check_once(hub, acked)
