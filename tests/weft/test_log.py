"""`weft log dump`: what is on an edge's disk, told without changing it."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from click.exceptions import Abort
from click.testing import Result
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.edge_node.control.client import DropRequest, ask_drop
from weft.edge_node.timing import clock_reader, wall_clock
from weft.output import Failed
from weft.protocols.batch import BatchHeader
from weft.protocols.lane import OriginKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
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
