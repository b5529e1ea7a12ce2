"""SIGKILL an edge and the hub at random moments under QoS 1 load, then count every message in log and table."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub, Edge, Service
from tests.support import forked
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store

pytestmark = pytest.mark.processes
STREAM = "load"
STRAYS = 1
"""Devices whose topics no stream matches."""
DRAIN_TIMEOUT_S = 120.0
LOAD_TIMEOUT_S = 60.0


class Load:
    """The device process.

    Args:
        strays: devices whose topics no stream matches.
        options: further ones of the process, as it takes them.
    """

    def __init__(self, port: int, strays: int = 0, options: Sequence[str] = ()) -> None:
        arguments = ["--port", str(port), "--strays", str(strays), *options]
        self._process = forked.Popen(
            [sys.executable, "-m", "tests.end_to_end.load", *arguments], stdout=subprocess.PIPE, text=True
        )

    def finish(self) -> dict[str, int]:
        """Stop publishing, wait for the last acks, and return the messages acked to each device."""
        self._process.terminate()
        output, _ = self._process.communicate(timeout=LOAD_TIMEOUT_S)
        counts: dict[str, int] = json.loads(output)
        return counts

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def make_edge(directory: Path, hub: DemoHub) -> Edge:
    edge = Edge(directory, "edge", hub.port)
    text = (
        edge.config_path.read_text()
        .replace("telemetry:", f"{STREAM}:")
        .replace("sensors/{device}/telemetry", "load/{device}/count")
    )
    edge.config_path.write_text(text)
    return edge


def wait_until_drained(edge: Edge, hub: DemoHub, stream: str = STREAM) -> int:
    """Wait until the table has a row for every record of the edge's log; the number of rows."""
    expected = edge.status()["streams"][stream]["durable_end"]
    wait_until(
        lambda: hub.table_rows() == expected,
        DRAIN_TIMEOUT_S,
        lambda: f"{expected} records expected; {hub.status()}; {edge.status()}",
        interval_s=0.1,
    )
    return int(expected)


@outcome()
def check_every_message(store: ObjectStore, acked: dict[str, int]) -> Counter[str]:
    """Each device's numbers are all there, and every copy but one is flagged as sent again."""
    from deltalake import DeltaTable

    uri, options = store.location(table_key("default", STREAM))
    rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload", "_resent"])
    found: dict[str, Counter[int]] = {}
    unflagged: Counter[tuple[str, int]] = Counter()
    for device, payload, resent in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(device, Counter())[int(payload)] += 1
        if not resent:
            unflagged[device, int(payload)] += 1
    for device, count in acked.items():
        assert sorted(found[device]) == list(range(count)), f"{device}: acked messages are missing"
    assert max(unflagged.values()) == 1, "a message is there twice without the flag"
    copies = sum(sum(numbers.values()) - len(numbers) for numbers in found.values())
    return Counter(messages=sum(acked.values()), rows=rows.num_rows, copies=copies)


@outcome()
def check_every_stray(edge: Edge, acked: dict[str, int]) -> None:
    """The same of what no stream matches, in the edge's log: it goes to no hub."""
    sql = "SELECT key, payload, resent FROM unrouted"
    asked = forked.run(
        [sys.executable, "-m", "weft", "edge", "query", str(edge.config_path), sql, "--json"],
        stdout=subprocess.PIPE,
        check=True,
    )
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    for device, count in acked.items():
        of_device = [row for row in rows if row["key"] == f"stray/{device}"]
        assert {int(row["payload"]) for row in of_device} == set(range(count)), f"{device}: acked messages are missing"
        unflagged = Counter(row["payload"] for row in of_device if not row["resent"])
        assert max(unflagged.values()) == 1, "a message is there twice without the flag"


def run_kills(directory: Path, kills: int, seed: int) -> Counter[str]:
    """``kills`` SIGKILLs of the edge and as many of the hub under load; what was counted afterwards."""
    chance = random.Random(seed)
    hub = DemoHub(directory)
    edge = make_edge(directory, hub)
    load = None
    try:
        hub.start()
        edge.start()
        load = Load(edge.mqtt_port, STRAYS)
        victims: list[Service] = [edge, hub] * kills
        chance.shuffle(victims)
        for victim in victims:
            time.sleep(chance.uniform(0.0, 0.8))  # the random moment is the test
            victim.kill()
            victim.start()
        acked = load.finish()
        wait_until_drained(edge, hub)
    finally:
        if load is not None:
            load.kill()
        edge.stop()
        hub.stop()
    report = asyncio.run(audit(open_store(hub.store), "default", STREAM))
    assert report.agrees, report.problems
    assert report.total("log_doubled") == report.total("table_doubled") == report.total("holes") == 0
    assert not any(lane.gaps for lane in report.lanes)
    strays = {device: acked.pop(device) for device in list(acked) if device.startswith("stray-")}
    assert len(strays) == STRAYS
    check_every_stray(edge, strays)
    counted = check_every_message(open_store(hub.store), acked)
    assert counted["rows"] == report.total("table_records") == report.total("records")
    assert counted["copies"] <= report.total("resent")
    return counted


@pytest.mark.timeout(180)
def test_no_acked_message_is_lost_or_doubled_by_kills(tmp_path: Path) -> None:
    counted = run_kills(tmp_path, kills=2, seed=20261120)
    assert counted["messages"] > 100  # some between the kills, on a busy machine too


@pytest.mark.search
@pytest.mark.timeout(1500)
def test_many_kills_of_edge_and_hub(tmp_path: Path) -> None:
    kills = SLICE.amount(ci=4, night=100)
    counted = run_kills(tmp_path, kills, seed=SLICE.seed)
    print(f"{2 * kills} kills: {dict(counted)}")
    assert counted["messages"] > 20 * kills
