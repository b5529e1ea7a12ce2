"""A running node takes changed streams and links over: clients stay connected, and no message goes astray."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.support.processes import STOP_S_MAX, Log, Node, Start, publish, weft
from tests.support.waiting import PATIENCE_S, Patience, wait_until
from weft.output import Failed, Refused

pytestmark = pytest.mark.processes

EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/{{line}}/telemetry"}}
links:
  cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}
"""
ALARMS = '  alarms: {from: "plant/{line}/alarm"}\nlinks:'
HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ncommit_interval: 20ms\ntables: null\n"


class Pair:
    """An edge and its hub."""

    def __init__(self, start: Start, folder: Path) -> None:
        port = free_port()
        self.config, hub = folder / "edge.yaml", folder / "hub.yaml"
        self.text = EDGE.format(port=port, http=free_port())
        self.config.write_text(self.text)
        hub.write_text(HUB.format(port=port))
        self.hub, self.edge = start("hub", hub), start("edge", self.config)

    def change(self, before: str, after: str) -> None:
        assert before in self.text
        self.text = self.text.replace(before, after)
        self.config.write_text(self.text)

    def reload(self) -> str:
        return weft("edge", "reload", self.config).output

    def payloads(self, stream: str) -> list[str]:
        streams = {each["stream"] for each in self.hub.json("v1/streams")["streams"]}
        if stream not in streams:
            return []
        return [each["payload"] for each in self.hub.json(f"v1/streams/{stream}/records?limit=1000")["records"]]


@pytest.fixture
def pair(start: Start, tmp_path: Path) -> Pair:
    return Pair(start, tmp_path)


def client(name: str, port: int, got: queue.Queue[str]) -> paho.Client:
    """A client with a persistent session that subscribes to everything of the plant."""
    found = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
    subscribed: queue.Queue[bool] = queue.Queue()
    found.on_message = lambda _client, _data, message: got.put(message.payload.decode())
    found.on_subscribe = lambda *_: subscribed.put(True)
    found.connect("127.0.0.1", port)
    found.loop_start()
    found.subscribe("plant/#", qos=1)
    assert subscribed.get(timeout=PATIENCE_S)
    return found


def link(edge: Node, name: str) -> dict[str, Any]:
    found: dict[str, Any] = edge.json("status")["links"][name]
    return found


def test_a_new_stream_takes_messages_at_once_and_its_records_reach_the_hub(pair: Pair) -> None:
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["before"])
    pair.change("links:", ALARMS)
    assert "configuration 2" in (said := pair.reload())
    assert "streams.alarms (new)" in said
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["after"])
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["as ever"])
    wait_until(lambda: pair.payloads("alarms") == ["after"])
    wait_until(lambda: pair.payloads("telemetry") == ["as ever"])
    facts = pair.edge.json("status")["configuration"]
    assert (facts["number"], facts["restart"], facts["refused"]) == (2, [], "")


@pytest.mark.slow
def test_sessions_that_are_away_get_what_is_published_to_a_new_stream(pair: Pair) -> None:
    got: queue.Queue[str] = queue.Queue()
    away = client("away", pair.edge.mqtt_port, got)
    away.disconnect()
    away.loop_stop()
    there = client("there", pair.edge.mqtt_port, got)
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["to no stream"])
    pair.change("links:", ALARMS)
    pair.reload()
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["to the new stream"])
    assert [got.get(timeout=PATIENCE_S), got.get(timeout=PATIENCE_S)] == ["to no stream", "to the new stream"]
    there.disconnect()
    there.loop_stop()
    back = client("away", pair.edge.mqtt_port, got)
    assert sorted([got.get(timeout=PATIENCE_S), got.get(timeout=PATIENCE_S)]) == ["to no stream", "to the new stream"]
    back.disconnect()
    back.loop_stop()
    assert got.empty()


@pytest.mark.slow
def test_a_stream_that_is_gone_takes_no_more_and_what_it_has_stays(pair: Pair) -> None:
    pair.change("links:", ALARMS)
    pair.reload()
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["kept"])
    wait_until(lambda: pair.payloads("alarms") == ["kept"])
    pair.change(ALARMS, "links:")
    assert "streams.alarms (gone)" in pair.reload()
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["unrouted"])
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["flows"])
    wait_until(lambda: pair.payloads("telemetry") == ["flows"])
    assert pair.edge.json("status")["streams"]["unrouted"]["next_seq"] == 1
    assert pair.edge.json("status")["streams"]["alarms"]["next_seq"] == 1


@pytest.mark.slow
def test_a_new_link_brings_records_and_the_other_link_goes_on(pair: Pair, start: Start, tmp_path: Path) -> None:
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["one"])
    wait_until(lambda: link(pair.edge, "cloud")["pending_records"] == 0 and pair.payloads("telemetry") == ["one"])
    port = free_port()
    (tmp_path / "second").mkdir()
    (tmp_path / "second/hub.yaml").write_text(HUB.format(port=port))
    second = start("hub", tmp_path / "second/hub.yaml")
    pair.change("links:", f'links:\n  lab: {{to: "http://127.0.0.1:{port}", retry_min: 50ms}}')
    assert "links.lab (new)" in pair.reload()
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["two"])
    wait_until(lambda: pair.payloads("telemetry") == ["one", "two"])
    wait_until(lambda: any(each["records"] for each in second.json("v1/streams")["streams"]))
    pair.change(f'  lab: {{to: "http://127.0.0.1:{port}", retry_min: 50ms}}\n', "")
    assert "links.lab (gone)" in pair.reload()
    assert list(pair.edge.json("status")["links"]) == ["cloud"]
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["three"])
    wait_until(lambda: pair.payloads("telemetry") == ["one", "two", "three"])
    wait_until(lambda: link(pair.edge, "cloud")["pending_records"] == 0)


@pytest.mark.slow
def test_a_link_with_other_settings_reconnects_and_sends_nothing_twice(pair: Pair) -> None:
    for at in range(4):
        publish(pair.edge.mqtt_port, "plant/a/telemetry", [str(at)])
        pair.change("retry_max: 200ms" if at == 0 else f"retry_max: {200 + at}ms", f"retry_max: {201 + at}ms")
        assert "links.cloud.retry_max" in pair.reload()
    wait_until(lambda: pair.payloads("telemetry") == ["0", "1", "2", "3"])
    wait_until(lambda: link(pair.edge, "cloud")["state"] == "connected")


def test_a_file_that_is_wrong_is_refused_and_the_node_goes_on(pair: Pair) -> None:
    pair.change("links:", ALARMS.replace('/alarm"', '/#/x"'))
    assert isinstance(weft("edge", "reload", pair.config).exception, Refused), "the command sees it itself"
    assert isinstance(weft("edge", "reload", pair.config.parent / "data").exception, Failed), "and so does the node"
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["flows"])
    wait_until(lambda: pair.payloads("telemetry") == ["flows"])
    facts = pair.edge.json("status")["configuration"]
    assert facts["number"] == 1
    assert "'#' must be the whole last level" in facts["refused"]
    pair.change("/#/x", "/#")
    pair.change("links:", "  hot:\n    from_stream: telemetry\n    functions:\n      - where: rms >\nlinks:")
    place = r"edge.yaml:\d+: streams.hot.functions\[0\].where: column 6"
    with pytest.raises(Failed, match=place):
        raise weft("edge", "reload", pair.config.parent / "data").exception or AssertionError
    pair.change("rms >", "default(rms, 0) > 1")
    pair.reload()
    assert "version 2 (" in weft("edge", "status", pair.config).output


@pytest.mark.slow
def test_a_hang_up_does_the_same(pair: Pair) -> None:
    pair.change("links:", ALARMS)
    pair.change("64MiB", "128MiB")
    pair.edge.process.send_signal(signal.SIGHUP)
    wait_until(lambda: pair.edge.json("status")["configuration"]["restart"] == ["disk.budget"])
    publish(pair.edge.mqtt_port, "plant/a/alarm", ["after"])
    wait_until(lambda: pair.payloads("alarms") == ["after"])


DERIVED = """\
  hot:
    from_stream: telemetry
    functions:
      - dedupe: {by: id, within: 1h}
      - where: rms > 2
links:"""


def readings(edge: Node, *values: tuple[int, float]) -> None:
    publish(edge.mqtt_port, "plant/a/telemetry", [json.dumps({"id": id_, "rms": rms}) for id_, rms in values])


def ids(pair: Pair, stream: str) -> list[int]:
    return [json.loads(payload)["id"] for payload in pair.payloads(stream)]


def test_functions_change_while_the_node_runs_and_keep_what_they_remember(pair: Pair) -> None:
    pair.change('from: "plant/{line}/telemetry"', 'from: "plant/{line}/telemetry", payload: json')
    readings(pair.edge, (1, 3.0))
    pair.change("links:", DERIVED)
    assert "streams.hot (new)" in pair.reload()
    readings(pair.edge, (2, 1.0), (3, 5.0), (3, 5.0))
    wait_until(lambda: ids(pair, "hot") == [1, 3], what="the new functions read the log from its beginning")
    pair.change("rms > 2", "rms > 4")
    assert "streams.hot.functions[1].where" in pair.reload()
    readings(pair.edge, (3, 5.0), (4, 3.0), (5, 6.0))
    wait_until(lambda: ids(pair, "hot") == [1, 3, 5], what="the new condition holds, and dedupe remembers 3")
    pair.change("rms > 4", "rms >")
    assert isinstance(weft("edge", "reload", pair.config).exception, Failed)
    assert "edge.yaml:12: streams.hot.functions[1].where: " in pair.edge.json("status")["configuration"]["refused"]
    readings(pair.edge, (6, 7.0))
    wait_until(lambda: ids(pair, "hot") == [1, 3, 5, 6])
    pair.change(DERIVED.replace("rms > 2", "rms >"), "links:")
    assert "streams.hot (gone)" in pair.reload()
    readings(pair.edge, (7, 8.0))
    wait_until(lambda: len(pair.payloads("telemetry")) == 9)
    wait_until(lambda: pair.edge.json("status")["functions"] == {})
    assert ids(pair, "hot") == [1, 3, 5, 6]


@pytest.mark.slow
def test_functions_that_were_changed_go_on_where_they_were_after_a_kill(pair: Pair, start: Start) -> None:
    pair.change('from: "plant/{line}/telemetry"', 'from: "plant/{line}/telemetry", payload: json')
    pair.change("links:", DERIVED)
    pair.reload()
    readings(pair.edge, (1, 3.0))
    wait_until(lambda: ids(pair, "hot") == [1])
    pair.change("rms > 2", "rms > 4")
    pair.reload()
    readings(pair.edge, (2, 3.0), (3, 5.0))
    pair.edge.kill()
    edge = start("edge", pair.config)
    readings(edge, (1, 9.0), (4, 5.0))
    wait_until(lambda: ids(pair, "hot") == [1, 3, 4])
    assert edge.stop() == 0


# --- Signals to real nodes: SIGHUP never ends one, whenever it comes, and says what it did not apply


SIGNALS_EDGE = """\
node: press-shop-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
auth: {users_file: users}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams: {telemetry: {from: "plant/#"}}
"""
SIGNALS_HUB = "listen: 127.0.0.1:0\nstore: store\nshards: 1\ntables: null\n"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+: .+")


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "password").write_text("secret")
    assert weft("user", "add", "a", "--file", tmp_path / "users", "--password-file", tmp_path / "password")
    found = {"edge": tmp_path / "edge.yaml", "hub": tmp_path / "hub.yaml"}
    found["edge"].write_text(SIGNALS_EDGE)
    found["hub"].write_text(SIGNALS_HUB)
    return found


def hang_up(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGHUP)


@contextlib.contextmanager
def starting(kind: str, config: Path, log: Log) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "weft", kind, "run", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.file, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(STOP_S_MAX)


def handles(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal (proc(5): SigCgt)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (number - 1))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs proc(5)")
@pytest.mark.parametrize("kind", ["edge", "hub"])
def test_a_hang_up_while_a_node_starts_ends_nothing_and_is_not_forgotten(
    kind: str, configs: dict[str, Path], log: Log
) -> None:
    with starting(kind, configs[kind], log) as process:
        wait_until(lambda: handles(process, signal.SIGHUP))
        hang_up(process)
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        wait_until(lambda: log.has("SIGHUP: "))
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S_MAX) == 0
    assert log.has("SIGTERM: stopping")


@pytest.mark.parametrize("kind", ["edge", "hub"])
def test_a_hang_up_while_a_node_stops_is_no_crash(configs: dict[str, Path], start: Start, kind: str) -> None:
    process = start(kind, configs[kind]).process
    process.terminate()
    patience = Patience()
    while process.poll() is None and not patience.is_over():
        hang_up(process)
    assert process.wait(STOP_S_MAX) == 0


def test_an_edge_says_what_it_read_again_and_which_settings_need_a_restart(
    start: Start, configs: dict[str, Path], log: Log
) -> None:
    edge = start("edge", configs["edge"])
    hang_up(edge.process)
    wait_until(lambda: log.has("SIGHUP: reading again: users"))
    wait_until(lambda: log.has(f"no setting in {configs['edge']} has changed"))
    configs["edge"].write_text(
        SIGNALS_EDGE.replace("64MiB", "128MiB").replace("streams: {", "streams: {other: {from: x}, ")
    )
    hang_up(edge.process)
    wait_until(lambda: log.has("have changed and need a restart: disk.budget"))
    assert log.has("configuration 2 ")
    assert log.has(": streams.other (new)")
    configs["edge"].write_text(SIGNALS_EDGE.replace("64MiB", "as much as there is"))
    hang_up(edge.process)
    wait_until(lambda: log.has("is not valid, and the node could not start with it"))
    assert edge.json("status")["disk"]["budget_bytes"] == 64 << 20
    assert edge.stop() == 0


def test_a_hub_says_which_settings_need_a_restart(start: Start, configs: dict[str, Path], log: Log) -> None:
    hub = start("hub", configs["hub"])
    hang_up(hub.process)
    wait_until(lambda: log.has("SIGHUP: no certificate is set"))
    configs["hub"].write_text(SIGNALS_HUB.replace("shards: 1", "shards: 2"))
    hang_up(hub.process)
    wait_until(lambda: log.has("have changed and need a restart: shards"))
    assert hub.stop() == 0


def test_every_line_has_its_time_also_under_systemd(
    start: Start, configs: dict[str, Path], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1234567")
    for kind in ("edge", "hub"):
        node = start(kind, configs[kind])
        hang_up(node.process)
    wait_until(lambda: log.has("edge.yaml has changed") and log.has("hub.yaml has changed"))
    assert [line for line in log.text.splitlines() if not LINE.fullmatch(line)] == []
