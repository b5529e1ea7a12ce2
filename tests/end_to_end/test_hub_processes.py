"""A hub of two processes under load, each killed in turns, and their supervisor: every acknowledged message once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub, Edge, FabricError
from tests.end_to_end.test_kills import DRAIN_TIMEOUT_S, STREAM, Load, check_every_message
from tests.end_to_end.test_kills import make_edge as kills_make_edge
from tests.end_to_end.test_kills import wait_until_drained as kills_wait_until_drained
from tests.support import forked
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.protocols.shard.placement import ShardTree, shard_of
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import open_cluster
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


# --- Two hub nodes over one directory and edges that fail over between them, while nodes are killed and stopped


STOP_S = 22.0
"""Longer than a link waits for a peer that says nothing."""


class Fabric:
    """Two hub nodes with one store, and an edge that knows both."""

    def __init__(self, directory: Path) -> None:
        self.store = str(directory / "store")
        self.hubs = [self._hub(directory, name) for name in ("hub-a", "hub-b")]
        # An interpreter of its own at each start: forked processes share the order of their sets, and hubs must not.
        self.hubs[1].environment["PYTHONHASHSEED"] = "random"
        self.edge = kills_make_edge(directory, self.hubs[0])
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
        kills_wait_until_drained(fabric.edge, fabric.hubs[0])
    finally:
        if load is not None:
            load.kill()
        fabric.stop()
    assert check(fabric, acked) > 1000


# --- A shard that splits under load, in a hub of two processes that are killed: every acknowledged message once


_TREE = ShardTree(SHARDS, [0])
SPLIT_NAMES = [
    next(f"edge-{n}" for n in range(64) if _TREE.shard_of("default", f"edge-{n}") == shard) for shard in range(3)
]
"""An edge that stays in shard 0, one of another shard, and one that moves from shard 0 to shard 2."""
SILENT_S_MAX = 8.0
"""Longest time from a split to the next acknowledgement of an edge that moves, on a busy machine."""


def last_ack(edge: Edge) -> float:
    return float(edge.status()["links"]["cloud"]["last_ack"])


@pytest.mark.search
@pytest.mark.timeout(900)
def test_a_split_under_load_and_kills_loses_and_doubles_nothing(tmp_path: Path) -> None:
    assert [shard_of("default", name, SHARDS) for name in SPLIT_NAMES] == [0, 1, 0]
    chance = random.Random(SLICE.seed)
    hub = make_hub(tmp_path)
    edges = [make_edge(tmp_path, name, hub) for name in SPLIT_NAMES]
    acked: dict[str, int] = {}
    with under_load(hub, edges) as loads:
        time.sleep(chance.uniform(1.0, 3.0))  # the random moment is the test
        done = forked.run(
            [sys.executable, "-m", "weft", "hub", "split", str(hub.config_path), "0", "--yes"],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        assert done.stdout == "shard 0 is split: 1 edge moved to shard 2, 1 stay\n"
        split_at = time.time()
        # Nothing of the edge is acknowledged by the old shard any more.
        wait_until(lambda: last_ack(edges[2]) > split_at, SILENT_S_MAX, lambda: str(edges[2].status()["links"]))
        print(f"silent for {last_ack(edges[2]) - split_at:.2f} s")
        for victim in chance.sample(range(2), 2):
            time.sleep(chance.uniform(0.3, 1.5))
            kill_process(hub, victim)
        time.sleep(2.0)
        for load in loads:
            acked |= load.finish()
        wait_until_drained(edges, hub)
    check_once(hub, acked)
    store = open_store(hub.store)

    async def places() -> list[set[str]]:
        cluster = await open_cluster(store, None)
        states = await load_every_shard(first_logs(store, cluster))
        return [{lane.edge for lane in state.lanes if lane.tenant == "default"} for _, state in states]

    assert asyncio.run(places()) == [{SPLIT_NAMES[0]}, {SPLIT_NAMES[1]}, {SPLIT_NAMES[2]}]
