"""`weft log dump`: what is on an edge's disk, told without changing it."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from click.exceptions import Abort
from click.testing import Result
from crc32c import crc32c
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.protocols.strategies import make_batch
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.edge_node.control.client import DropRequest, ask_drop
from weft.edge_node.timing import clock_reader, wall_clock
from weft.output import Failed, Refused
from weft.protocols.batch import BatchHeader
from weft.protocols.lane import OriginKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    EntryKind,
    GapReason,
    SegmentHeader,
    StreamEntry,
    encode_entry_header,
    encode_header,
    encode_streams,
    file_name,
)
from weft.storage.filesystem import File, OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.scan import inspect_segment


def open_log(folder: Path, settings: LogSettings) -> SegmentLog:
    return SegmentLog.open(
        str(folder),
        settings,
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.Random(1).getrandbits,
        post=lambda callback: callback(),
        start_writer=False,
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    log = open_log(tmp_path / "data", LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20))
    yield log
    log.close()


def append(log: SegmentLog, *payloads: bytes) -> None:
    log.append(log.stream("telemetry"), 7, [b"plant/a"] * len(payloads), list(payloads))
    log.committer.run_once()


def dump(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    done = weft("log", "dump", path, "--json", *options)
    assert done.exception is None, done.exception
    return done.return_value, [json.loads(line) for line in done.output.splitlines()]


def test_batches_and_records_of_a_running_log(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one", b"two")
    status, lines = dump(tmp_path / "data", "--records")
    assert status == 0
    assert lines[0]["log_id"] == f"{log.log_id:016x}"
    (batch,) = [line for line in lines if line.get("kind") == "batch"]
    assert (batch["first"], batch["end"], batch["first_time"]) == (0, 2, 7)
    records = [line for line in lines if line.get("kind") == "record"]
    assert [(each["seq"], each["key"], each["payload"]) for each in records] == [
        (0, "plant/a", "one"),
        (1, "plant/a", "two"),
    ]


def test_a_sealed_segment_ends_with_its_footer(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    status, lines = dump(file)
    assert status == 0
    assert lines[-1]["kind"] == "footer"
    assert lines[-1]["value"]["streams"] == {"1": "telemetry"}


def test_damage_is_named_and_is_exit_status_1(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    data = bytearray(file.read_bytes())
    data[data.index(b"one")] ^= 1
    file.write_bytes(data)
    file.chmod(0o400)
    status, lines = dump(file, "--records")
    assert status == 1
    (error,) = [line["error"] for line in lines if "error" in line]
    assert "checksum" in error
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["two"]
    assert lines[-1]["kind"] == "footer"


def test_a_file_kept_aside_is_shown_though_its_header_is_gone(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    file.write_bytes(bytes(32) + file.read_bytes()[32:])
    aside = file.rename(f"{file}.damaged")
    status, lines = dump(aside, "--records")
    assert status == 1
    assert "expected a segment" in lines[0]["error"]
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["one"]


def test_a_file_that_is_no_segment_is_told(tmp_path: Path) -> None:
    for content in (b"", b"x" * 10_000):
        path = tmp_path / "notes.txt"
        path.write_bytes(content)
        status, lines = dump(path)
        assert status == 1
        assert len(lines) == 1


def test_text_for_people_is_one_line_per_entry(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"\xff\n")
    lines = weft("log", "dump", tmp_path / "data", "--records").output.splitlines()
    assert f" log_id={log.log_id:016x} created=20" in lines[0]
    batch = next(line for line in lines if " batch " in line)
    assert "name=telemetry first=0 end=1 first_time=1970-01-01T00:00:00.000000007Z" in batch
    records = [line.split() for line in lines if "plant/a" in line]
    assert records == [
        ["1970-01-01T00:00:00.000000007Z", "0", "plant/a", "one"],
        ["1970-01-01T00:00:00.000000007Z", "1", "plant/a", "hex:ff0a"],
    ]


def test_a_record_of_a_dump_is_told_as_everywhere_else(log: SegmentLog, tmp_path: Path) -> None:
    log.append(log.stream("telemetry"), 7, [b"plant/a"], [b"\xff"], {0: (("unit", "C"),)}, {0: 1})
    log.committer.run_once()
    _, lines = dump(tmp_path / "data", "--records")
    assert [line for line in lines if line.get("kind") == "record"] == [
        {
            "kind": "record",
            "seq": 0,
            "time": "1970-01-01T00:00:00.000000007Z",
            "time_ns": 7,
            "key": "plant/a",
            "payload_base64": "/w==",
            "headers": [["unit", "C"]],
            "flags": ["retained"],
        }
    ]


def test_a_batch_of_a_function_names_it(log: SegmentLog, tmp_path: Path) -> None:
    number = log.origin(OriginKind.FUNCTION, "calm", "3", b"\x8a\x1f\x03\xc4\x00")
    append(log, b"one")
    log.append(log.stream("calm"), 7, [b"plant/a"], [b"two"], origin=number)
    log.committer.run_once()
    _, lines = dump(tmp_path / "data")
    batches = [line for line in lines if line.get("kind") == "batch"]
    assert [line.get("origin") for line in batches] == [None, "calm@3#8a1f03c4"]
    assert " origin=calm@3#8a1f03c4" in weft("log", "dump", tmp_path / "data").output


def test_a_node_is_named_by_its_configuration_too(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    config = tmp_path / "edge.yaml"
    config.write_text("node: press-shop-7\ndata_dir: data\n")
    assert dump(config, "--records") == dump(tmp_path / "data", "--records")
    config.write_text("node: press-shop-7\ndata_dir: elsewhere\n")
    assert "holds no log" in str(weft("log", "dump", config).exception)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    done = weft("log", "dump", tmp_path)
    assert isinstance(done.exception, Failed)
    assert "holds no log" in str(done.exception)


def test_a_torn_tail_is_told_and_is_no_damage(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    append(log, b"two")
    (file,) = (tmp_path / "data").glob("*.seg")
    data = bytearray(file.read_bytes())
    data[data.index(b"two")] ^= 1
    file.write_bytes(data)
    status, lines = dump(tmp_path / "data", "--records")
    assert status == 0
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["one"]
    assert "nothing after this point was acknowledged" in lines[-1]["torn"]
    assert lines[-1]["offset"] == next(line["offset"] for line in lines if "error" in line)


def test_a_segment_deleted_while_the_log_is_dumped_is_told(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"one")
    listed = os.listdir(tmp_path / "data")
    monkeypatch.setattr(os, "listdir", lambda _: [*listed, "00000000000000000007.seg"])
    status, lines = dump(tmp_path / "data", "--records")
    assert status == 0
    assert [line["payload"] for line in lines if line.get("kind") == "record"] == ["one"]
    assert "deleted" in lines[-1]


def test_what_an_earlier_file_left_behind_is_never_shown_as_records(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    (file,) = (tmp_path / "data").glob("*.seg")
    header, entries = file.read_bytes()[:32], file.read_bytes()[32:]
    moved = tmp_path / "00000000000000000032.seg"
    moved.write_bytes(header + bytes(32) + entries)
    _, lines = dump(moved, "--records")
    assert [line for line in lines if line.get("kind") == "record"] == []
    for empty in (b"", header, header + bytes(1 << 20)):
        moved.write_bytes(empty)
        _, lines = dump(moved)
        assert len(lines) == 1


def drop(path: Path, *arguments: str, answer: str | None = None) -> Result:
    return weft("log", "drop", path, *arguments, answer=answer)


def test_a_backlog_is_dropped_once_the_operator_has_said_so(log: SegmentLog, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    assert "Stop the node first" in str(drop(data, "telemetry", "--all").exception)
    log.close()
    asked = drop(data, "telemetry", "--below", "2", answer="n\n")
    assert "drop 2 records of telemetry, received from 1970-01-01 00:00:00 UTC to 1970" in asked.output
    assert isinstance(asked.exception, Abort)
    done = drop(data, "telemetry", "--below", "2", answer="y\n")
    assert done.exception is None
    assert "dropped 2 records of telemetry" in done.output
    _, lines = dump(data, "--records")
    notices = [line["value"] for line in lines if line.get("kind") == "gap"]
    assert [(notice["first"], notice["end"], notice["reason"]) for notice in notices] == [(0, 2, GapReason.OPERATOR)]
    done = drop(data, "telemetry", "--all", "--yes", "--json")
    assert json.loads(done.output) == {"stream": "telemetry", "records": 1, "ranges": [[2, 3]]}
    assert "nothing was changed" in drop(data, "telemetry", "--all").output


def test_what_cannot_be_dropped_is_refused_with_a_sentence(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"one")
    log.close()
    data = tmp_path / "data"
    assert "it has telemetry" in str(drop(data, "vibration", "--all").exception)
    assert "either --below SEQ or --all" in str(drop(data, "telemetry").exception)
    assert "either --below SEQ or --all" in str(drop(data, "telemetry", "--all", "--below", "3").exception)
    assert isinstance(drop(tmp_path, "telemetry", "--all").exception, Failed)
    assert not list(tmp_path.glob("*.seg"))


def test_a_view_of_a_log_that_is_being_written_shows_no_holes(tmp_path: Path) -> None:
    """A commit that is not there when its place is read, and is followed by others a moment later, is no damage."""
    log = open_log(tmp_path / "data", LogSettings(segment_bytes=4 << 20, budget_bytes=32 << 20))
    append(log, random.Random(1).randbytes(900_000))
    (file,) = (tmp_path / "data").glob("*.seg")
    seen: list[Any] = []
    for found in inspect_segment(str(file), _AppendsAtFirstRead(log), is_newest=True):
        assert found.problem is None, found
        seen.append(found.value)
    assert sum(isinstance(value, BatchHeader) for value in seen) == 3
    log.close()


class _AppendsAtFirstRead(OSFileSystem):
    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    def open(self, path: str, *, read_only: bool = False) -> File:
        file = super().open(path, read_only=read_only)
        read_at, reads = file.read_at, 0

        def read(offset: int, length: int) -> bytes:
            nonlocal reads
            data = read_at(offset, length)
            reads += 1
            if reads == 3:
                # After the header and the place of a footer came a window; what is appended now it shows as zeros.
                append(self._log, b"two")
                append(self._log, random.Random(1).randbytes(2000))
            return data

        file.read_at = read  # type: ignore[method-assign]
        return file


TOPIC = "plant/a/m1/telemetry"
EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: null
disk: {{budget: 16MiB, segment: 1MiB}}
state: {{topics_log: 4MiB}}
streams: {{telemetry: {{from: "plant/+/+/telemetry"}}, alarms: {{from: "plant/+/+/alarm"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 1\ncommit_interval: 20ms\ntables: null\n"


@pytest.fixture
def edge_yaml(tmp_path: Path) -> Path:
    """A node whose link leads nowhere until a hub is started with the ``hub.yaml`` beside it."""
    port = free_port()
    (tmp_path / "hub.yaml").write_text(HUB.format(port=port))
    path = tmp_path / "edge.yaml"
    path.write_text(EDGE.format(port=port))
    return path


def telemetry(folder: Path) -> dict[str, Any]:
    """What the files say of the stream."""
    done = weft("edge", "status", folder, "--json")
    found: dict[str, Any] = json.loads(done.output)["streams"]["telemetry"]
    return found


def fill(port: int) -> int:
    """Publish until the node refuses; how many messages were acknowledged."""
    acked = [0]
    client = paho.Client(CallbackAPIVersion.VERSION2)
    refused = threading.Event()

    def count(*_: object) -> None:
        acked[0] += 1

    def closed(*_: object) -> None:
        refused.set()

    client.on_publish, client.on_disconnect = count, closed
    client.connect("127.0.0.1", port)
    client.loop_start()
    chance = random.Random(1)
    for _ in range(300):
        client.publish(TOPIC, chance.randbytes(100_000), qos=1)
    assert refused.wait(PATIENCE_S), "the log never became full"
    client.disconnect()
    client.loop_stop()
    return acked[0]


@pytest.mark.slow
@pytest.mark.processes
def test_a_full_node_goes_on_by_itself_once_its_backlog_is_dropped(start: Start, edge_yaml: Path) -> None:
    folder = edge_yaml.parent / "data"
    node = start("edge", edge_yaml)
    assert fill(node.mqtt_port) > 50
    held = telemetry(folder)["held"]
    done = drop(edge_yaml, "telemetry", "--all", answer="y\n")
    assert done.exception is None
    assert f"drop {held} records of telemetry, received from 20" in done.output
    assert (f"dropped {held} records of telemetry; the hubs get a gap notice when their links connect") in done.output
    assert (telemetry(folder)["held"], telemetry(folder)["lost"]) == (0, {"operator": held})
    publish(node.mqtt_port, TOPIC, ["new"] * 10)

    hub = start("hub", edge_yaml.parent / "hub.yaml")

    def lane() -> dict[str, Any]:
        lanes = hub.json("v1/streams/telemetry/completeness")["lanes"] if hub.json("v1/streams")["streams"] else []
        return lanes[0] if lanes else {}

    wait_until(lambda: lane().get("complete_below_seq") == held + 10)
    assert lane()["gaps"] == [{"first": 0, "end": held, "reason": "operator"}]
    records = hub.json("v1/streams/telemetry/records")["records"]
    assert [record["seq"] for record in records] == list(range(held, held + 10))
    assert node.stop() == 0
    assert not (folder / "control.sock").exists()


@pytest.mark.processes
def test_what_comes_after_the_question_stays(start: Start, edge_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = edge_yaml.parent / "data"
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ["old"] * 20)

    def confirm(question: str, **_: object) -> bool:
        assert question.startswith("drop 20 records of telemetry")
        publish(node.mqtt_port, TOPIC, ["new"] * 20)
        return True

    monkeypatch.setattr("click.confirm", confirm)
    done = drop(folder, "telemetry", "--all", "--json")
    assert json.loads(done.output) == {"stream": "telemetry", "records": 20, "ranges": [[0, 20]]}
    assert telemetry(folder)["held"] == 20
    assert "has no stream vibration; it has alarms, telemetry" in str(drop(folder, "vibration", "--all").exception)
    assert "alarms has no such records" in drop(folder, "alarms", "--all", "--yes").output
    (folder / "control.sock").unlink()
    refused = drop(folder, "telemetry", "--all")
    assert isinstance(refused.exception, Failed), "an earlier release has no such socket"
    assert "Stop the node first" in str(refused.exception)
    assert telemetry(folder)["held"] == 20
    assert node.stop() == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    "delay_s", [*(pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in (0.0, 0.003, 0.009)), 0.001]
)
def test_a_node_that_is_killed_meanwhile_has_the_records_or_their_notice(
    start: Start, edge_yaml: Path, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    asked = threading.Event()

    def ask(directory: str, request: DropRequest) -> RangeSet:
        asked.set()
        return ask_drop(directory, request)

    monkeypatch.setattr("weft.edge_node.inspect.maintenance.ask_drop", ask)
    folder = edge_yaml.parent / "data"
    # With a link, a node that was killed asks its hub for ten seconds what it holds.
    edge_yaml.write_text(edge_yaml.read_text().partition("links:")[0])
    node = start("edge", edge_yaml)
    for _ in range(10):
        publish(node.mqtt_port, TOPIC, ["21.5"] * 20)
    results: list[Result] = []
    asking = threading.Thread(target=lambda: results.append(drop(folder, "telemetry", "--below", "100", "--yes")))
    asking.start()
    assert asked.wait(PATIENCE_S)
    time.sleep(delay_s)  # the random moment is the test
    node.kill()
    asking.join()
    node = start("edge", edge_yaml)
    found = telemetry(folder)
    lost = found["lost"].get("operator", 0)
    assert (found["held"] + lost, found["next_seq"], found["records_lost"]) == (200, 200, lost)
    if results[0].exception is None:
        assert f"dropped {lost} records" in results[0].output
    else:
        assert isinstance(results[0].exception, Failed)
    assert drop(folder, "telemetry", "--below", "100", "--yes").exception is None
    assert (telemetry(folder)["held"], telemetry(folder)["lost"]) == (100, {"operator": 100})


# --- A disk comes back: `weft edge import` brings what it still holds to the hub, under its old log, once


IMPORT_TOPIC = "plant/a/b/telemetry"
IMPORT_EDGE = """\
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
IMPORT_HUB = """\
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
        text = IMPORT_EDGE.format(http=self.http, port=self.port, streams=", ".join(streams), more=more)
        self.edge_yaml.write_text(text)

    def hub(self) -> Node:
        path = self.folder / "hub.yaml"
        path.write_text(IMPORT_HUB.format(port=self.port, store=self.store, processes=self.processes))
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


@pytest.mark.processes
@pytest.mark.slow
def test_every_acknowledged_record_of_a_disk_that_came_back_is_at_the_hub_once(fabric: Fabric) -> None:
    hub = fabric.hub()
    edge = fabric.edge()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(0, 50))
    wait_until(lambda: len(payloads(hub)) == 50)
    hub.kill()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(50, 80))  # acknowledged, and on this disk alone
    aside = fabric.disk_fails(edge)
    edge = fabric.edge()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(80, 100))
    hub = fabric.hub()
    wait_until(lambda: len(payloads(hub)) == 70)

    assert weft("edge", "import", fabric.edge_yaml, aside).exception is None
    assert not aside.exists()
    wait_until(lambda: fabric.is_done(edge))
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(100, 110))  # its own log continues beside it
    wait_until(lambda: len(payloads(hub)) == 110)
    assert payloads(hub) == numbered(0, 110)
    counts = sorted((lane["edge"], lane["records"], lane["holes"]) for lane in fabric.audit())
    assert counts == [("press-1", 30, 0), ("press-1", 80, 0)]

    [log_id] = fabric.imports(edge)
    assert weft("edge", "import", fabric.edge_yaml, "--delete-done").exception is None
    assert not (fabric.data / "imported" / f"{log_id}.done").exists()
    wait_until(lambda: fabric.imports(edge) == {})


@pytest.mark.processes
@pytest.mark.slow
def test_an_import_of_an_encrypted_log_outlives_kills_of_node_and_hub(fabric: Fabric) -> None:
    key = fabric.folder / "key"
    key.write_text("11" * 32)
    key.chmod(0o600)
    fabric.streams(TELEMETRY, more="encryption: {key_file: key}")
    fabric.processes = 2
    edge = fabric.edge()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(0, 60))
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


@pytest.mark.processes
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


@pytest.mark.processes
@pytest.mark.slow
def test_what_is_not_an_earlier_log_of_this_node_is_refused(fabric: Fabric) -> None:
    edge = fabric.edge()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(0, 5))

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


# --- ``weft edge replay``: what functions made is made again, record for record


REPLAY_TOPIC = "plant/m1/telemetry"
REPLAY_EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{port}"}}
disk: {{budget: 64MiB, segment: 1MiB}}
streams:
  telemetry: {{from: "plant/{{machine}}/telemetry", payload: json}}
  hot: {{from_stream: telemetry, functions: [{{where: "temperature > 50"}}]}}
"""


def records(config: Path, stream: str) -> list[dict[str, Any]]:
    done = weft("edge", "tail", config, stream, "--json", "--from", "-1d")
    assert done.exception is None, done.exception
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [{name: value for name, value in record.items() if name not in {"stream", "origin"}} for record in found]


def wait_for(node: Node, rows: int) -> None:
    wait_until(lambda: node.json("status")["functions"]["hot"]["rows_in"] == rows)


def replay(config: Path, into: str, stream: str = "hot") -> dict[str, Any]:
    done = weft("edge", "replay", config, stream, "--into", into, "--json")
    if done.exception is not None:
        raise done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.processes
def test_a_replay_goes_on_where_it_ended_also_after_a_kill(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    config.write_text(REPLAY_EDGE.format(port=free_port()))
    node = start("edge", config)
    publish(node.mqtt_port, REPLAY_TOPIC, [json.dumps({"temperature": 40 + number}) for number in range(30)])
    wait_for(node, 30)
    assert replay(config, "again")["rows"] == 30
    expected = records(config, "hot")
    assert len(expected) == 19
    assert records(config, "again") == expected
    node.kill()
    node = start("edge", config)
    publish(node.mqtt_port, REPLAY_TOPIC, [json.dumps({"temperature": 60})])
    wait_for(node, 1)
    assert replay(config, "again")["rows"] == 1
    assert records(config, "again") == records(config, "hot")
    for into, stream, said in (
        ("telemetry", "hot", "is a stream of the node already"),
        ("no name", "hot", "cannot name a stream"),
        ("other", "warm", "Derived streams: hot"),
    ):
        with pytest.raises(Failed, match=said):
            replay(config, into, stream)


# --- A log that a later release wrote: every command that reads it says so, and none calls it damage or changes it


EVENT_TIME = 8


def write_log(directory: Path, *, version: int = 1, columns: int = 0) -> None:
    data = encode_header(SegmentHeader(77, 0, 0, version))
    later = bytearray(make_batch(3))
    later[9] |= columns
    struct.pack_into("<I", later, 4, crc32c(bytes(later[8:])))
    mark = encode_streams({1: StreamEntry("telemetry", 0)})
    for kind, body in ((EntryKind.STREAMS, mark), (EntryKind.STREAMS, mark), (EntryKind.BATCH, bytes(later))):
        data += encode_entry_header(len(data), kind, body) + body
    directory.mkdir()
    (directory / file_name(0)).write_bytes(data)


@pytest.mark.parametrize("later", [{"version": 3}, {"columns": EVENT_TIME}], ids=["header", "batch"])
def test_commands_that_look_into_a_log_of_a_later_release(tmp_path: Path, later: dict[str, int]) -> None:
    directory, config = tmp_path / "data", tmp_path / "edge.yaml"
    write_log(directory, **later)
    config.write_text(f"node: pi\ndata_dir: {directory}\nstreams: {{telemetry: {{from: 't/#'}}}}\nhttp: null\n")
    before = (directory / file_name(0)).read_bytes()
    for arguments in (
        ["log", "dump", str(directory)],
        ["edge", "status", str(config)],
        ["edge", "tail", str(config), "--from", "0"],
        ["edge", "query", str(config), "SELECT count(*) FROM telemetry"],
        ["edge", "run", str(config)],
    ):
        done = weft(*arguments)
        said = f"{done.output}\n{done.exception}"
        assert done.exception is not None, arguments
        assert "later release" in said, (arguments, said)
        assert "damage" not in said, (arguments, said)
        assert "torn" not in said, (arguments, said)
    assert (directory / file_name(0)).read_bytes() == before
    assert [path.name for path in directory.glob("*.seg*")] == [file_name(0)]
