"""`weft edge tail`, `query`, `status` and `weft log dump` on nodes that run, were killed, and come back."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support import forked
from tests.support.processes import STOP_S_MAX, Log, Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft import free_resources
from weft.output import Failed, Refused

TOPIC = "plant/a/m1/telemetry"
EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{port}"}}
disk: {{budget: 64MiB, segment: 1MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}, alarms: {{from: "plant/+/+/alarm"}}}}
"""


@pytest.fixture
def edge_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(EDGE.format(port=free_port()))
    return path


def lines(*arguments: object) -> list[dict[str, Any]]:
    done = weft(*arguments, "--json")
    assert done.exception is None, done.exception
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def targets(edge_yaml: Path) -> tuple[Path, Path]:
    """A node is named by its configuration or by its folder."""
    return edge_yaml, edge_yaml.parent / "data"


def count(target: Path) -> int:
    (row,) = lines("edge", "query", target, "SELECT count(*) AS records FROM telemetry")
    found: int = row["records"]
    return found


class Follower:
    """A `weft edge tail --follow --json` process."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "weft", "edge", "tail", *map(str, arguments), "--follow", "--json"]
        self.process = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.items: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.items.extend(json.loads(line) for line in self.process.stdout)

    def end(self) -> tuple[int, str]:
        """End it as people do; return its status and what it said."""
        self.process.send_signal(signal.SIGINT)
        try:
            status = self.process.wait(STOP_S_MAX)
        finally:
            self.process.kill()
        self._thread.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        with self.process.stdout, self.process.stderr:
            return status, self.process.stderr.read()


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:  # ended before the folder that they follow is gone
    followers: list[Follower] = []

    def start(*arguments: object) -> Follower:
        followers.append(Follower(*arguments))
        return followers[-1]

    yield start
    for follower in followers:
        status, said = follower.end()
        assert not said, said
        assert status == 130, "Ctrl-C is the only end of --follow, and no fault"


@pytest.mark.processes
@pytest.mark.slow
def test_a_query_finds_every_acknowledged_record_and_no_other(start: Start, edge_yaml: Path) -> None:
    node = start("edge", edge_yaml)
    for end in (1, 2, 300):
        publish(node.mqtt_port, TOPIC, [f'{{"n": {i}}}' for i in range(end)])
        assert [count(target) for target in targets(edge_yaml)] == [
            node.json("status")["streams"]["telemetry"]["next_seq"]
        ] * 2
    node.kill()
    assert [count(target) for target in targets(edge_yaml)] == [303, 303]
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ["last"])
    assert [count(target) for target in targets(edge_yaml)] == [304, 304]
    assert node.stop() == 0
    assert [count(target) for target in targets(edge_yaml)] == [304, 304]


@pytest.mark.processes
@pytest.mark.slow
def test_while_devices_publish_nothing_acknowledged_is_missed_and_the_node_is_not_disturbed(
    start: Start, edge_yaml: Path
) -> None:
    node = start("edge", edge_yaml)
    payload = "x" * 1000
    sent = 4000
    device = threading.Thread(target=publish, args=(node.mqtt_port, TOPIC, [payload] * sent))
    device.start()
    while device.is_alive():
        known = node.json("status")["streams"]["telemetry"]["durable_end"]
        for target in targets(edge_yaml):
            rows = lines("edge", "query", target, "SELECT count(*) AS n, max(seq) AS last FROM telemetry")
            assert rows[0]["n"] >= known
            assert weft("log", "dump", targets(edge_yaml)[1]).return_value == 0
            assert rows[0]["n"] == (-1 if rows[0]["last"] is None else rows[0]["last"]) + 1
    device.join()
    assert count(edge_yaml) == sent
    assert node.json("status")["log_error"] is None
    assert node.stop() == 0


@pytest.mark.processes
def test_a_follower_sees_each_record_once_through_a_kill_and_a_restart(
    start: Start, follow: Callable[..., Follower], edge_yaml: Path
) -> None:
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ["first"])
    followers = [follow(target, "telemetry", "--seq", 0) for target in targets(edge_yaml)]
    filtered = follow(edge_yaml, "--last", 0, "--filter", "plant/+/+/alarm")
    for end in (500, 1000):
        publish(node.mqtt_port, TOPIC, [f"{end} {i} {'x' * 1500}" for i in range(end)])
        wait_until(lambda: all(len(each.items) >= end for each in followers))
        node.kill()
        node = start("edge", edge_yaml)
    publish(node.mqtt_port, "plant/a/m1/alarm", ["hot"])
    publish(node.mqtt_port, TOPIC, ["end"])
    for follower in followers:
        wait_until(lambda: follower.items[-1]["payload"] == "end")
        assert [item["seq"] for item in follower.items] == list(range(1502))
        assert {item["kind"] for item in follower.items} == {"record"}
        assert [item["payload"].partition(" x")[0] for item in follower.items] == [
            "first",
            *(f"500 {i}" for i in range(500)),
            *(f"1000 {i}" for i in range(1000)),
            "end",
        ]
    wait_until(lambda: filtered.items)
    assert [(item["stream"], item["key"], item["payload"]) for item in filtered.items] == [
        ("alarms", "plant/a/m1/alarm", "hot")
    ]


@pytest.mark.processes
def test_a_tail_for_people(start: Start, edge_yaml: Path) -> None:
    strange = "\x1b[2Jtext\nthat clears the screen"
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ["21.5", strange, "\0"])
    node.kill()
    shown = weft("edge", "tail", edge_yaml).stdout.splitlines()
    assert [line.partition(" ")[2] for line in shown] == [
        f"telemetry 0 {TOPIC} 21.5",
        f"telemetry 1 {TOPIC} hex:{strange.encode().hex()}",
        f"telemetry 2 {TOPIC} hex:00",
    ]
    assert len(weft("edge", "tail", edge_yaml, "--last", 2).stdout.splitlines()) == 2
    assert len(weft("edge", "tail", edge_yaml, "--from", "-10m").stdout.splitlines()) == 3
    assert weft("edge", "tail", edge_yaml, "--from", "2000-01-01", "telemetry", "--filter", "other/#").stdout == ""


@pytest.mark.processes
def test_tails_that_cannot_be(edge_yaml: Path) -> None:
    for arguments in (("--last", 1, "--seq", 1), ("--filter", "a#"), ("misspelt",), ("--seq", 1), ("--from", "soon")):
        done = weft("edge", "tail", edge_yaml, *arguments)
        assert isinstance(done.exception, Refused | Failed), arguments
    assert "holds no log" in str(weft("edge", "tail", edge_yaml).exception)
    assert "holds no log" in str(weft("edge", "tail", edge_yaml.parent).exception)


@pytest.mark.processes
def test_query_output(start: Start, edge_yaml: Path) -> None:
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ['{"t": 21.5}', '{"t": 19}'])
    node.kill()
    sql = "SELECT machine, payload ->> '$.t' AS t FROM telemetry WHERE time > now('-10m') ORDER BY t"
    assert lines("edge", "query", edge_yaml, sql) == [{"machine": "m1", "t": 19}, {"machine": "m1", "t": 21.5}]
    assert weft("edge", "query", edge_yaml, sql, "--csv").stdout == "machine,t\nm1,19\nm1,21.5\n"
    assert weft("edge", "query", edge_yaml, sql).stdout.splitlines() == [
        "machine  t",
        "-------  ----",
        "m1       19",
        "m1       21.5",
    ]
    assert lines("edge", "query", edge_yaml, "SELECT x'00ff' AS x, NULL AS n") == [{"x_base64": "AP8=", "n": None}]
    wrong = weft("edge", "query", edge_yaml, "SELECT * FROM misspelt").exception
    assert isinstance(wrong, Refused)
    assert "tables: telemetry, alarms, unrouted, weft_streams" in str(wrong)
    runaway = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    assert isinstance(weft("edge", "query", edge_yaml, runaway, "--timeout", "200ms").exception, Failed)
    assert isinstance(weft("edge", "query", edge_yaml, "SELECT seq FROM telemetry", "--rows-max", 1).exception, Failed)


@pytest.mark.processes
@pytest.mark.slow
def test_ctrl_c_ends_a_query(start: Start, edge_yaml: Path) -> None:
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ["x"])
    runaway = "SELECT 1 AS n FROM telemetry UNION ALL SELECT * FROM (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL "
    runaway += "SELECT x + 1 FROM c) SELECT count(*) FROM c)"
    code = (
        "import os, signal, sys, threading\n"
        "from weft.cli import main\n"
        "threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "edge", "query", str(edge_yaml), runaway, "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_status_of_a_node_that_runs_and_of_one_that_does_not(start: Start, edge_yaml: Path) -> None:
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, TOPIC, ["x"] * 100)
    config, folder = targets(edge_yaml)
    done = weft("edge", "status", config)
    assert done.return_value == 0
    assert "telemetry\t100\t100" in done.stdout
    live = json.loads(weft("edge", "status", config, "--json").stdout)
    assert live["running"] is True
    asked = weft("edge", "status", folder)
    assert asked.return_value == 0
    assert "running; read from its files: only its folder was named" in asked.stdout

    node.kill()
    segment = max(folder.glob("*.seg"))
    with segment.open("r+b") as file:
        file.seek(len(segment.read_bytes().rstrip(b"\0")) + 8)
        file.write(b"\x33" * 100)
    done = weft("edge", "status", config)
    assert done.return_value == 1
    assert "NOT RUNNING" in done.stdout
    assert "telemetry\t100\t100\t0" in done.stdout
    assert "next start     cuts" in done.stdout
    assert "never acknowledged" in done.stdout
    dead = json.loads(weft("edge", "status", config, "--json").stdout)
    assert dead["running"] is False
    assert dead["log_id"] == live["log_id"]
    assert dead["torn_bytes"] >= 100
    assert dead["disk"]["budget_bytes"] == 64 << 20
    assert dead["streams"]["telemetry"]["held"] == 100
    by_folder = json.loads(weft("edge", "status", folder, "--json").stdout)
    assert by_folder["streams"] == dead["streams"]
    assert weft("log", "dump", folder).return_value == 0, "what is torn is no damage"


@pytest.mark.processes
def test_what_no_stream_matches_is_on_disk_when_it_is_acknowledged_and_can_be_looked_at(
    start: Start, edge_yaml: Path, log: Log
) -> None:
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, "plant/a/m1/telemetri", [f"{i}" for i in range(100)])
    publish(node.mqtt_port, "test", ["x"])
    done = weft("edge", "status", edge_yaml)
    assert "unrouted\t101\t101" in done.stdout
    assert "101 messages that no stream matches since the start: kept in the stream unrouted" in done.stdout
    assert "plant/a/m1/telemetri: 100" in done.stdout
    node.kill()
    found = [line for line in log.text.splitlines() if "no stream matches" in line]
    assert len(found) == 1, "the first of them gets a line in the node's log"
    assert "INFO" in found[0]
    for target in targets(edge_yaml):
        (row,) = lines("edge", "query", target, "SELECT count(*) AS n FROM unrouted WHERE key LIKE '%telemetri'")
        assert row["n"] == 100
    assert "unrouted\t101\t101" in weft("edge", "status", edge_yaml).stdout
    node = start("edge", edge_yaml)
    tailed = lines("edge", "tail", edge_yaml, "unrouted", "--last", 2)
    assert [(each["key"], each["payload"]) for each in tailed] == [("plant/a/m1/telemetri", "99"), ("test", "x")]
    assert node.stop() == 0


@pytest.mark.processes
@pytest.mark.parametrize(("policy", "words"), [("live", "sent to subscribers and not kept"), ("refuse", "refused")])
def test_what_is_not_kept_by_choice_is_said_in_status_and_log(
    start: Start, edge_yaml: Path, policy: str, words: str, log: Log
) -> None:
    edge_yaml.write_text(edge_yaml.read_text() + f"unrouted: {policy}\nauth: {{refused_publish: acknowledge}}\n")
    node = start("edge", edge_yaml)
    assert f"0 messages that no stream matches since the start: {words}" in weft("edge", "status", edge_yaml).stdout
    publish(node.mqtt_port, "test", ["x", "y"])
    assert f"2 messages that no stream matches since the start: {words}" in weft("edge", "status", edge_yaml).stdout
    assert "unrouted" not in json.loads(weft("edge", "status", edge_yaml, "--json").stdout)["streams"]
    assert node.stop() == 0
    lines = [line for line in log.text.splitlines() if f"(`unrouted: {policy}`)" in line]
    assert len(lines) == 1
    assert "'test'" in lines[0]


@pytest.mark.processes
@pytest.mark.slow  # half a minute passes before a node looks for what is too old
def test_what_was_kept_still_ends_when_it_is_kept_no_more(start: Start, edge_yaml: Path) -> None:
    node = start("edge", edge_yaml)
    publish(node.mqtt_port, "test", ["x"] * 10)
    assert node.stop() == 0
    edge_yaml.write_text(edge_yaml.read_text() + "unrouted: {policy: live, time: 1s}\n")
    node = start("edge", edge_yaml)
    wait_until(lambda: node.json("status")["streams"]["unrouted"]["held"] == 0, 60)
    assert node.stop() == 0


@pytest.mark.processes
def test_status_of_a_stopped_node_says_what_its_next_start_finds(start: Start, edge_yaml: Path) -> None:
    node = start("edge", edge_yaml)
    folder = edge_yaml.parent / "data"
    for payload in ("one", "two", "three"):
        publish(node.mqtt_port, TOPIC, [payload])
    node.kill()
    sound = weft("edge", "status", edge_yaml).stdout
    assert "next start     finds nothing to repair" in sound

    (segment,) = folder.glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"two")] ^= 1
    segment.write_bytes(data)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = weft("edge", "status", edge_yaml)
    assert "finds 1 record lost, and writes gap notices for it: telemetry seq 1\n" in done.stdout
    assert f"keeps the damaged {segment} aside" in done.stdout
    assert done.stderr == ""
    coming = json.loads(weft("edge", "status", edge_yaml, "--json").stdout)["next_start"]
    assert coming["lost"] == [{"stream": "telemetry", "first": 1, "end": 2}]
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before

    start("edge", edge_yaml)
    shown = weft("edge", "status", edge_yaml).stdout
    assert re.search("^last start +found 1 record lost", shown, re.MULTILINE)
    assert "telemetry\t2\t3\t1 corruption" in shown
    assert json.loads(weft("edge", "status", edge_yaml, "--json").stdout)["recovery"]["records_lost"] == 1


@pytest.mark.processes
def test_status_without_a_log_says_so(edge_yaml: Path) -> None:
    done = weft("edge", "status", edge_yaml)
    assert isinstance(done.exception, Failed)
    assert "does not answer (Connection refused)" in str(done.exception)
    assert "holds no log" in str(done.exception)


# --- A query on a node's machine leaves the node its memory and its disk


@pytest.mark.parametrize(
    ("available_kib", "given_bytes"), [(8 << 20, 768 << 20), (512 << 10, 256 << 20), (10 << 10, 96 << 20)]
)
def test_half_of_the_memory_that_is_left_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_kib: int, given_bytes: int
) -> None:
    facts = tmp_path / "meminfo"
    facts.write_text(f"MemTotal:       8000000 kB\nMemAvailable:   {available_kib} kB\n")
    monkeypatch.setattr(free_resources, "_MEMORY_FACTS", facts)
    assert free_resources.within_free_memory(768 << 20) == given_bytes
    facts.unlink()
    assert free_resources.within_free_memory(768 << 20) == 768 << 20


def test_half_of_the_space_that_is_left_where_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def disk_usage(path: str) -> shutil._ntuple_diskusage:
        asked.append(path)
        return shutil._ntuple_diskusage(0, 0, 1000)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    assert (free_resources.within_free_space(400), free_resources.within_free_space(600)) == (400, 500)
    assert asked == [str(tmp_path)] * 2
    monkeypatch.delenv("SQLITE_TMPDIR")
    free_resources.within_free_space(1)
    assert asked[-1] == "/var/tmp"
