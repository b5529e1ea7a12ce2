"""SIGKILL hub and edge while windows are pulled: each record of a window is a row of the table once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from examples.demo.fabric import free_port
from tests.support.outcomes import outcome
from tests.support.processes import Node, publish
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
RECORDS = 30_000
KILLS = 12
HUB = """\
listen: 127.0.0.1:{port}
store: {folder}/store
processes: 1
shards: 2
tables: {{interval: 1s}}
"""
EDGE = """\
node: press-7
data_dir: {folder}/data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 256MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/#"}}
  vibration: {{from: "raw/#", replicate: false}}
links:
  uplink:
    to: "http://127.0.0.1:{port}"
    pull: {{streams: [vibration], rate: {rate}}}
    retry_min: 50ms
    retry_max: 200ms
"""


class Fabric:
    """A hub and an edge that are killed and started again."""

    def __init__(self, folder: Path, rate: str) -> None:
        self.folder, self.port = folder, free_port()
        for name, text in (("hub", HUB), ("edge", EDGE)):
            (folder / f"{name}.yaml").write_text(text.format(port=self.port, folder=folder, rate=rate))
        self.log = (folder / "log").open("ab")
        self.nodes = {kind: self.start(kind) for kind in ("hub", "edge")}
        self.kills: Counter[str] = Counter()

    def start(self, kind: str) -> Node:
        return Node(kind, self.folder / f"{kind}.yaml", stderr=self.log)

    def kill(self, kind: str) -> None:
        self.nodes[kind].kill()
        self.kills[kind] += 1
        self.nodes[kind] = self.start(kind)

    def command(self, *arguments: str) -> tuple[int, Any]:
        """Run a command of ``weft hub`` and return its status and answer."""
        hub = str(self.folder / "hub.yaml")
        called = [sys.executable, "-m", "weft", "hub", arguments[0], hub, *arguments[1:], "--json"]
        done = subprocess.run(called, capture_output=True, timeout=PATIENCE_S, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else done.stderr.decode()

    def rows(self, stream: str) -> list[int]:
        """Return the numbers of a stream's rows in its table."""
        place = self.folder / "store" / "tables" / "default" / stream
        if not DeltaTable.is_deltatable(str(place)):
            return []  # the folder comes before the first version
        numbers: list[int] = DeltaTable(place).to_pyarrow_table(columns=["_seq"])["_seq"].to_pylist()
        return numbers

    def is_linked(self) -> bool:
        status, answer = self.command("pulls")
        return status == 0 and answer["pulls"] == []

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.log.close()


def test_every_record_of_overlapping_windows_is_a_row_once(tmp_path: Path) -> None:
    fabric, rng = Fabric(tmp_path, "100kB/s"), random.Random(7)
    try:
        edge = fabric.nodes["edge"]
        begin = time.time()
        publish(edge.mqtt_port, "plant/1", ["{}"])
        wait_until(lambda: fabric.rows("telemetry") == [0])
        times = []
        for part in range(10):
            times.append(time.time())
            publish(edge.mqtt_port, "raw/x", [f"{each:08d}" for each in range(part * 3000, (part + 1) * 3000)])
            time.sleep(0.2)
        end = time.time()
        windows = [(begin, times[4]), (times[3], times[8]), (times[6], end)]
        ids = []
        for since, until in windows:
            status, asked = fabric.command("pull", "press-7", "vibration", "--from", _at(since), "--to", _at(until))
            assert status == 0, asked
            ids.append(asked["id"])
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.2, 1.5))
            fabric.kill(rng.choice(("hub", "edge")))
        states = {}
        until_s = time.monotonic() + 240
        while time.monotonic() < until_s:
            status, answer = fabric.command("pulls")
            states = {each["id"]: each for each in answer["pulls"]} if status == 0 else {}
            if states and all(each["state"] == "done" for each in states.values()):
                break
            time.sleep(0.5)
        assert [states[each]["state"] for each in ids] == ["done"] * 3, states
        with outcome():
            assert all(each["records"] == each["records_received"] for each in states.values())
        wait_until(lambda: len(fabric.rows("vibration")) >= RECORDS, seconds=PATIENCE_S)
        with outcome():
            assert sorted(fabric.rows("vibration")) == list(range(RECORDS))
        audit = [sys.executable, "-m", "weft", "audit", "vibration", "--store", str(tmp_path / "store"), "--payloads"]
        reported = subprocess.run(audit, capture_output=True, timeout=PATIENCE_S, check=False, text=True)
        assert reported.returncode == 0, reported.stdout + reported.stderr
        print(f"{RECORDS} records, kills {dict(fabric.kills)}")
    finally:
        fabric.close()
    assert min(fabric.kills["hub"], fabric.kills["edge"]) > 0, fabric.kills


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}"
