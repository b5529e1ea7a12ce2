"""SIGKILL hub and edge while messages go down: each is in the edge's log once, or expired and reported."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from examples.demo.fabric import free_port
from tests.storage.segment_log.helpers import open_log
from tests.support.outcomes import outcome
from tests.support.processes import Node, publish
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.batch import records
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings

pytestmark = pytest.mark.processes

MESSAGES = SLICE.amount(ci=1000, night=10_000)
EXPIRING = 20
"""Every so many messages, one has hardly any time."""
SENDERS = SLICE.amount(ci=8, night=64)
SETTINGS = LogSettings(segment_bytes=4 << 20, budget_bytes=64 << 20, tail_bytes=0)
HUB = """\
listen: 127.0.0.1:{port}
store: {folder}/store
processes: 1
shards: 2
tables: null
"""
EDGE = """\
node: press-1
data_dir: {folder}/data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{uplink: {{to: "http://127.0.0.1:{port}", down: {{}}, retry_min: 50ms, retry_max: 200ms}}}}
"""


class Fabric:
    """A hub and an edge that are killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for name, text in (("hub", HUB), ("edge", EDGE)):
            (folder / f"{name}.yaml").write_text(text.format(port=self.port, folder=folder))
        self.log = (folder / "log").open("ab")
        self.nodes = {kind: self.start(kind) for kind in ("hub", "edge")}
        self.kills: Counter[str] = Counter()

    def start(self, kind: str) -> Node:
        return Node(kind, self.folder / f"{kind}.yaml", stderr=self.log)

    def kill(self, kind: str) -> None:
        self.nodes[kind].kill()
        self.kills[kind] += 1
        self.nodes[kind] = self.start(kind)

    def post(self, name: str, expires_s: float) -> None:
        """Publish a message, again and again with its key until the hub says that it is stored."""
        body = {"edge": "press-1", "topic": "down/x", "payload": name, "expires_s": expires_s}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/messages", json.dumps(body).encode())
        request.add_header("Idempotency-Key", name)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()
                    return
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise
            except OSError:
                pass
            time.sleep(0.05)
        raise TimeoutError(name)

    def messages(self) -> Any:
        url = f"http://127.0.0.1:{self.port}/v1/messages?edge=press-1"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def reported(self) -> dict[str, list[tuple[int, str]]]:
        """Return the records of the hub's log: messages, and their outcomes."""
        found: dict[str, list[tuple[int, str]]] = {"messages": [], "outcomes": []}
        for shard in range(2):
            offset: int | None = 0
            while offset is not None:
                path = f"/v1/streams/weft-down/records?shard={shard}&offset={offset}&limit=10000"
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
                    page = json.load(answer)["records"]
                for record in page:
                    headers = dict(record["headers"])
                    kind = "outcomes" if "weft.outcome" in headers else "messages"
                    said = headers.get("weft.outcome", record["payload"])
                    found[kind].append((headers["weft.message"], said))
                offset = page[-1]["offset"] + 1 if page else None
        return found

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.log.close()


def stored(folder: Path) -> Counter[str]:
    """Return the payloads in the edge's stream of messages."""
    log = open_log(OSFileSystem(), SETTINGS, directory=str(folder / "data"))
    try:
        stream, seq, found = log.stream("weft-down"), 0, Counter[str]()
        while batches := log.read(stream, seq, 1 << 20):
            for data in batches:
                for record in records(data):
                    found[record.payload.decode()] += 1
                    seq = record.seq + 1
        return found
    finally:
        log.close()


@pytest.mark.search
@pytest.mark.timeout(1200)
def test_every_message_is_stored_once_or_expires(tmp_path: Path) -> None:
    fabric, rng = Fabric(tmp_path), random.Random(SLICE.seed)
    try:
        publish(fabric.nodes["edge"].mqtt_port, "plant/1", ["{}"])
        wait_until(lambda: bool(_edges(fabric)))
        names = iter(range(MESSAGES))
        guard, failed = threading.Lock(), list[BaseException]()

        def send() -> None:
            try:
                while True:
                    with guard:
                        number = next(names, None)
                    if number is None:
                        return
                    fabric.post(f"m{number}", 0.001 if number % EXPIRING == 0 else 3600)
            except BaseException as error:  # it is raised by the test
                failed.append(error)

        senders = [threading.Thread(target=send) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        first = rng.sample(("hub", "edge"), 2)  # each is killed, however few kills there are
        while any(sender.is_alive() for sender in senders):
            time.sleep(rng.uniform(0.3, 2.0))
            fabric.kill(first.pop() if first else rng.choice(("hub", "edge")))
        for sender in senders:
            sender.join()
        assert not failed, failed
        wait_until(lambda: not fabric.messages()["waiting"], seconds=PATIENCE_S)
        reported = fabric.reported()
    finally:
        fabric.close()
    assert min(fabric.kills["hub"], fabric.kills["edge"]) > 0, fabric.kills
    found, outcomes = stored(tmp_path), dict(reported["outcomes"])
    print(f"{MESSAGES} messages, kills {dict(fabric.kills)}, {Counter(outcomes.values())}")
    with outcome():
        assert [name for name, times in found.items() if times > 1] == []
        name_of = dict(reported["messages"])
        published = {name_of[number] for number, said in outcomes.items() if said == "published"}
        assert published == set(found)
        expired = {name_of[number] for number, said in outcomes.items() if said == "expired"}
        assert published | expired == {f"m{number}" for number in range(MESSAGES)}
    assert set(outcomes.values()) <= {"published", "expired"}


def _edges(fabric: Fabric) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{fabric.port}/v1/edges", timeout=PATIENCE_S) as answer:
        return json.load(answer)["edges"]


# --- SIGKILL hub and edge while windows are pulled: each record of a window is a row of the table once


RECORDS = 30_000
KILLS = 12
PULL_KILLS_HUB = """\
listen: 127.0.0.1:{port}
store: {folder}/store
processes: 1
shards: 2
tables: {{interval: 1s}}
"""
PULL_KILLS_EDGE = """\
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


class PullKillsFabric:
    """A hub and an edge that are killed and started again."""

    def __init__(self, folder: Path, rate: str) -> None:
        self.folder, self.port = folder, free_port()
        for name, text in (("hub", PULL_KILLS_HUB), ("edge", PULL_KILLS_EDGE)):
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_record_of_overlapping_windows_is_a_row_once(tmp_path: Path) -> None:
    fabric, rng = PullKillsFabric(tmp_path, "100kB/s"), random.Random(7)
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
