"""A disk comes back: `weft edge import` brings what it still holds to the hub, under its old log, once."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import wait_until
from weft.output import Failed, Refused

pytestmark = pytest.mark.processes

TOPIC = "plant/a/b/telemetry"
EDGE = """\
node: press-1
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{{streams}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", hold_at_start: 200ms, retry_min: 50ms, retry_max: 200ms}}}}
{more}
"""
TELEMETRY = 'telemetry: {from: "plant/{line}/{machine}/telemetry"}'
OTHER = 'quality: {from: "quality/#"}'
HUB = """\
listen: 127.0.0.1:{port}
store: {store}
shards: 2
processes: {processes}
commit_interval: 20ms
tables: {{interval: 100ms}}
"""


class Fabric:
    """One edge node and one hub, in one folder."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder, self.start = folder, start
        self.port, self.http = free_port(), free_port()
        self.edge_yaml, self.data = folder / "edge.yaml", folder / "data"
        self.store = folder / "store"
        self.processes = 1
        """Of the hub."""
        self.streams(TELEMETRY)

    def streams(self, *streams: str, more: str = "") -> None:
        text = EDGE.format(http=self.http, port=self.port, streams=", ".join(streams), more=more)
        self.edge_yaml.write_text(text)

    def hub(self) -> Node:
        path = self.folder / "hub.yaml"
        path.write_text(HUB.format(port=self.port, store=self.store, processes=self.processes))
        return self.start("hub", path)

    def edge(self) -> Node:
        return self.start("edge", self.edge_yaml)

    def disk_fails(self, edge: Node) -> Path:
        """The node dies with its disk, which is mended later; its next start makes an empty data_dir."""
        edge.kill()
        aside = self.folder / "kept-aside"
        self.data.rename(aside)
        return aside

    def starts_empty(self) -> None:
        self.edge().kill()

    def imports(self, edge: Node) -> dict[str, Any]:
        found: dict[str, Any] = edge.json("status")["imported"]
        return found

    def is_done(self, edge: Node) -> bool:
        states = [each["state"] for each in self.imports(edge).values()]
        return bool(states) and set(states) == {"done"}

    def audit(self) -> list[dict[str, Any]]:
        result = weft("audit", "telemetry", "--store", self.store, "--json")
        assert result.return_value in (None, 0), result.output
        report = json.loads(result.stdout)
        assert report["problems"] == []
        lanes: list[dict[str, Any]] = report["lanes"]
        return lanes


@pytest.fixture
def fabric(tmp_path: Path, start: Start) -> Fabric:
    return Fabric(tmp_path, start)


def numbered(first: int, end: int) -> list[str]:
    return [f"message {number}" for number in range(first, end)]


def payloads(hub: Node, stream: str = "telemetry") -> list[str]:
    try:
        found = hub.json(f"v1/streams/{stream}/records?limit=10000")["records"]
    except urllib.error.HTTPError:
        return []
    return sorted((record["payload"] for record in found), key=lambda payload: int(payload.split()[-1]))


@pytest.mark.slow
def test_every_acknowledged_record_of_a_disk_that_came_back_is_at_the_hub_once(fabric: Fabric) -> None:
    hub = fabric.hub()
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 50))
    wait_until(lambda: len(payloads(hub)) == 50)
    hub.kill()
    publish(edge.mqtt_port, TOPIC, numbered(50, 80))  # acknowledged, and on this disk alone
    aside = fabric.disk_fails(edge)
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(80, 100))
    hub = fabric.hub()
    wait_until(lambda: len(payloads(hub)) == 70)

    assert weft("edge", "import", fabric.edge_yaml, aside).exception is None
    assert not aside.exists()
    wait_until(lambda: fabric.is_done(edge))
    publish(edge.mqtt_port, TOPIC, numbered(100, 110))  # its own log continues beside it
    wait_until(lambda: len(payloads(hub)) == 110)
    assert payloads(hub) == numbered(0, 110)
    counts = sorted((lane["edge"], lane["records"], lane["holes"]) for lane in fabric.audit())
    assert counts == [("press-1", 30, 0), ("press-1", 80, 0)]

    [log_id] = fabric.imports(edge)
    assert weft("edge", "import", fabric.edge_yaml, "--delete-done").exception is None
    assert not (fabric.data / "imported" / f"{log_id}.done").exists()
    wait_until(lambda: fabric.imports(edge) == {})


@pytest.mark.slow
def test_an_import_of_an_encrypted_log_outlives_kills_of_node_and_hub(fabric: Fabric) -> None:
    key = fabric.folder / "key"
    key.write_text("11" * 32)
    key.chmod(0o600)
    fabric.streams(TELEMETRY, more="encryption: {key_file: key}")
    fabric.processes = 2
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 60))
    aside = fabric.disk_fails(edge)
    assert "Start the node once" in str(weft("edge", "import", fabric.edge_yaml, aside).exception)
    fabric.starts_empty()
    result = weft("edge", "import", fabric.edge_yaml, aside, "--json")  # while the node does not run
    assert result.exception is None
    assert json.loads(result.stdout)["records"] == {"telemetry": 60}
    for _ in range(3):
        hub, edge = fabric.hub(), fabric.edge()
        edge.kill()
        hub.kill()
    hub, edge = fabric.hub(), fabric.edge()
    wait_until(lambda: fabric.is_done(edge))
    assert payloads(hub) == numbered(0, 60)
    assert sum(lane["records"] for lane in fabric.audit()) == 60


@pytest.mark.slow
def test_records_that_no_link_carries_stay_and_are_named(fabric: Fabric) -> None:
    fabric.streams(TELEMETRY, OTHER)
    edge = fabric.edge()
    publish(edge.mqtt_port, "quality/a", numbered(0, 5))
    aside = fabric.disk_fails(edge)
    fabric.streams(TELEMETRY)
    fabric.starts_empty()
    assert weft("edge", "import", fabric.edge_yaml, aside).exception is None
    hub, edge = fabric.hub(), fabric.edge()
    wait_until(lambda: any(each["trouble"] for each in fabric.imports(edge).values()))
    [found] = fabric.imports(edge).values()
    assert (found["state"], found["not_carried"]) == ("waiting", {"quality": 5})
    assert "no link carries quality (5 records)" in found["trouble"]
    edge.stop()
    fabric.streams(TELEMETRY, OTHER)
    edge = fabric.edge()
    wait_until(lambda: fabric.is_done(edge))
    assert payloads(hub, "quality") == numbered(0, 5)


@pytest.mark.slow
def test_what_is_not_an_earlier_log_of_this_node_is_refused(fabric: Fabric) -> None:
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(0, 5))

    def refusal(*arguments: object, kind: type[Exception] = Failed) -> str:
        error = weft("edge", "import", fabric.edge_yaml, *arguments).exception
        assert isinstance(error, kind), error
        return str(error)

    copy = fabric.folder / "copy"
    shutil.copytree(fabric.data, copy, ignore=shutil.ignore_patterns("*.sock"))
    assert "is the node's own log" in refusal(copy)
    os.mkfifo(copy / "pipe")
    assert "pipe is not a regular file" in refusal(copy)
    (copy / "pipe").unlink()
    assert "holds no log" in refusal(fabric.folder)
    refusal(kind=Refused)
    refusal(copy, "--delete-done", kind=Refused)
    aside = fabric.disk_fails(edge)
    edge = fabric.edge()
    twin = fabric.folder / "twin.yaml"
    twin.write_text(
        fabric.edge_yaml.read_text().replace("data_dir: data", f"data_dir: {aside}").replace(str(fabric.http), "0")
    )
    running = fabric.start("edge", twin)
    assert "a node runs with" in refusal(aside)
    running.stop()
    assert weft("edge", "import", fabric.edge_yaml, aside).exception is None
    wait_until(lambda: fabric.imports(edge) != {})
    [log_id] = fabric.imports(edge)
    # The node continues, and writes a file under a name of its own before it has its name.
    shutil.copytree(fabric.data / "imported" / log_id, aside, ignore=shutil.ignore_patterns("*.sock", "*.new"))
    assert "was imported before" in refusal(aside)
