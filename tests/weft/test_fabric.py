"""An edge and a hub as real processes: acknowledged messages arrive, through kills, under tokens."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import sys
import threading
import urllib.error
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.support import forked
from tests.support.processes import Log, Node, Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from tests.weft.test_edge_log import IMPORT_TOPIC, Fabric, numbered, payloads

pytestmark = pytest.mark.processes

TOPIC = "plant/a/b/telemetry"

EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms{token}}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ncommit_interval: 20ms\ntables: null\n"


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Path, Path]:
    port = free_port()
    edge, hub = tmp_path / "edge.yaml", tmp_path / "hub.yaml"
    edge.write_text(EDGE.format(port=port, token=""))
    hub.write_text(HUB.format(port=port))
    return edge, hub


def records(hub: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hub.json("v1/streams/telemetry/records?limit=10000")["records"]
    return found


def stored(hub: Node) -> int:
    return sum(stream["records"] for stream in hub.json("v1/streams")["streams"])


@pytest.mark.slow  # end_to_end/test_kills.py is quick
@pytest.mark.parametrize("processes", [1, 2])
def test_acknowledged_messages_reach_the_hub_once_though_both_are_killed(
    start: Start, configs: tuple[Path, Path], processes: int
) -> None:
    edge_yaml, hub_yaml = configs
    hub_yaml.write_text(hub_yaml.read_text().replace("processes: 1", f"processes: {processes}"))
    hub, edge = start("hub", hub_yaml), start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, [f"first {i}" for i in range(100)])
    wait_until(lambda: stored(hub) == 100)
    hub.kill()
    publish(edge.mqtt_port, TOPIC, [f"second {i}" for i in range(100)])
    edge.kill()
    hub, edge = start("hub", hub_yaml), start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, [f"third {i}" for i in range(100)])
    wait_until(lambda: stored(hub) >= 300)
    expected = [f"{word} {i}" for word in ("first", "second", "third") for i in range(100)]
    assert [record["payload"] for record in records(hub)] == expected
    assert [record["seq"] for record in records(hub)] == list(range(300))
    wait_until(lambda: edge.json("status")["links"]["cloud"]["pending_records"] == 0)
    assert edge.stop() == 0
    assert hub.stop() == 0


def probe(node: Node, path: str) -> tuple[int, str]:
    """What a load balancer gets: it follows no link and has no token."""
    try:
        return 200, node.text(path)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_a_full_log_says_so_and_devices_are_acknowledged_again_once_the_link_is_back(
    start: Start, configs: tuple[Path, Path], log: Log
) -> None:
    edge_yaml, hub_yaml = configs
    edge_yaml.write_text(edge_yaml.read_text().replace("budget: 64MiB, segment: 4MiB", "budget: 16MiB, segment: 1MiB"))
    edge = start("edge", edge_yaml)
    chance = random.Random(1)
    payloads = [chance.randbytes(150_000) for _ in range(200)]
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="device")
    client.reconnect_delay_set(0.1, 0.2)
    client.connect("127.0.0.1", edge.mqtt_port)
    client.loop_start()
    try:
        sent = [client.publish(TOPIC, payload, qos=1) for payload in payloads]
        wait_until(lambda: log.has("devices get no acknowledgements"))
        wait_until(lambda: "Restore the link to the hub" in (edge.json("status")["log_full"] or ""))
        wait_until(lambda: "weft_edge_log_full 1.0" in edge.text("metrics"))
        wait_until(lambda: "Restore the link to the hub" in edge.text("tables"))
        assert not all(each.is_published() for each in sent)
        assert probe(edge, "readyz") == (503, "not ready: the log is full: devices get no acknowledgements\n")
        assert probe(edge, "healthz") == (200, "healthy\n"), "a restart would make no room"

        hub = start("hub", hub_yaml)
        wait_until(lambda: all(each.is_published() for each in sent), 60)
    finally:
        client.disconnect()
        client.loop_stop()
    # The last messages may fill the log once more; it says so until the hub has acknowledged them too.
    wait_until(lambda: edge.json("status")["log_full"] is None)
    assert "weft_edge_log_full 0.0" in edge.text("metrics")
    assert probe(edge, "readyz") == (200, "ready\n")
    wait_until(lambda: log.has("the log has room again"))
    end = edge.json("status")["streams"]["telemetry"]["durable_end"]
    wait_until(lambda: stored(hub) == end)
    assert edge.json("status")["disk"]["bytes"] <= 16 << 20


@pytest.mark.slow
def test_a_hub_with_tokens_takes_the_edge_that_has_one(start: Start, configs: tuple[Path, Path]) -> None:
    edge_yaml, hub_yaml = configs
    folder = edge_yaml.parent
    arguments = ["hub", "token", "add", hub_yaml, "shop", "--scope", "edge", "--edge", "press-shop-7"]
    (folder / "token").write_text(weft(*arguments).stdout)
    hub, edge = start("hub", hub_yaml), start("edge", edge_yaml)
    assert [probe(hub, path) for path in ("healthz", "readyz")] == [(200, "healthy\n"), (200, "ready\n")]
    assert probe(hub, "metrics")[0] == 401
    wait_until(lambda: edge.json("status")["links"]["cloud"]["state"] == "refused")
    assert probe(edge, "readyz") == (200, "ready\n"), "a node takes messages while no hub takes its records"
    assert "requires a token (401) and the link has none" in edge.json("status")["links"]["cloud"]["last_error"]
    assert edge.stop() == 0

    edge_yaml.write_text(EDGE.format(port=hub.url.strip("/").rpartition(":")[2], token=", token_file: token"))
    edge = start("edge", edge_yaml)
    wait_until(lambda: edge.json("status")["links"]["cloud"]["state"] == "connected")


@pytest.mark.slow
def test_status_commands_show_running_nodes(start: Start, configs: tuple[Path, Path]) -> None:
    edge_yaml, hub_yaml = configs
    edge_yaml.write_text(
        edge_yaml.read_text().replace('http: {bind: "127.0.0.1:0"}', f"http: {{bind: 127.0.0.1:{free_port()}}}")
    )
    start("hub", hub_yaml)
    edge = start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, ["hello"])
    wait_until(lambda: edge.json("status")["links"]["cloud"]["records_acked"] == 1)
    wait_until(lambda: edge.json("status")["links"]["cloud"]["pending_records"] == 0)
    shown = weft("edge", "status", edge_yaml).output
    assert "default/press-shop-7" in shown
    assert "cloud\tconnected\t0" in shown
    shown = weft("hub", "status", hub_yaml).output
    assert "default/press-shop-7" in shown


def test_a_function_that_cannot_start_is_named_with_its_error_at_hub_and_edge(
    start: Start, configs: tuple[Path, Path]
) -> None:
    edge_yaml, hub_yaml = configs
    text = edge_yaml.read_text().replace('http: {bind: "127.0.0.1:0"}', f"http: {{bind: 127.0.0.1:{free_port()}}}")
    calm = 'telemetry", payload: json}, calm: {from_stream: telemetry, functions: [{python: score.py}]}}'
    edge_yaml.write_text(text.replace('telemetry"}}', calm))
    (edge_yaml.parent / "score.py").write_text(
        "def setup(ctx):\n    raise OSError('no model')\ndef process(record, ctx):\n    return record\n"
    )
    hub, edge = start("hub", hub_yaml), start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, ['{"n": 1}'])

    def alarm() -> dict[str, Any] | None:
        found = [each for edges in hub.json("v1/edges")["edges"] for each in edges["alarms"]]
        return next((each for each in found if each["reason"] == "functions_fail"), None)

    wait_until(lambda: alarm() is not None)
    known = alarm()
    assert known is not None
    assert (known["stream"], known["since"]) == ("calm", None), hub.json("v1/streams/calm/completeness")["lanes"]
    assert "no model" in known["why"]
    (listed,) = hub.json("v1/edges")["edges"]
    assert listed["complete_up_to"] is None
    shown = weft("hub", "status", hub_yaml, "--trouble").output + json.dumps(hub.json("v1/streams/calm/completeness"))
    assert "no model" in shown
    assert "years" not in shown
    assert "retire " not in shown
    assert "1970" not in shown
    here = weft("edge", "status", edge_yaml).output
    assert re.search(r"FUNCTIONS.*no model", here)
    facts = edge.json("status")["functions"]["calm"]
    assert (facts["lag_records"], facts["lag_seconds"]) == (None, None)


def test_the_audit_agrees_once_the_table_has_everything(start: Start, configs: tuple[Path, Path]) -> None:
    edge_yaml, hub_yaml = configs
    hub_yaml.write_text(hub_yaml.read_text().replace("tables: null", "tables: {interval: 100ms}"))
    store = str(edge_yaml.parent / "store")
    hub, edge = start("hub", hub_yaml), start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, [f"message {i}" for i in range(100)])
    wait_until(lambda: sum(table["rows_moved"] for table in hub.json("v1/status")["tables"]) == 100)
    done = weft("audit", "telemetry", "--store", store, "--json")
    (lane,) = json.loads(done.output)["lanes"]
    assert (lane["edge"], lane["records"], lane["table_records"], lane["waiting"]) == ("press-shop-7", 100, 100, 0)
    assert audit_exit_status("telemetry", store) == 0
    assert audit_exit_status("misspelt", store) == 1
    assert edge.stop() == 0
    shown = weft("streams", hub_yaml).output
    assert "telemetry\t100\t" in shown
    assert "tables/default/telemetry (version " in shown
    assert "machine string" in shown
    wait_until(lambda: "1 edge: 0 connected, 1 not connected" in weft("hub", "status", hub_yaml).output)
    gone = weft("hub", "status", hub_yaml).output
    assert "default/press-shop-7\t" in gone, "an edge that is gone stays in the list"
    assert re.search(r" ago\tnone\t0\.1\.0\t[^\t]+\t0\t", gone), "how long its disk lasts stands before what is missing"
    assert hub.stop() == 0


def audit_exit_status(stream: str, store: str) -> int:
    done = forked.run(
        [sys.executable, "-m", "weft", "audit", stream, "--store", store], check=False, timeout=PATIENCE_S
    )
    return done.returncode


# --- A data_dir is put back to an older copy: nothing is acknowledged under numbers that the hub has for other
# records


@pytest.fixture
def fabric(tmp_path: Path, start: Start) -> Fabric:
    return Fabric(tmp_path, start)


def restore(fabric: Fabric, *, starts: int = 0) -> Node:
    """The hub has 50 messages of the copy that is put back, and 20 that came after it. The hub is away then.

    Args:
        starts: times that the node was started after the copy.
    """
    hub, edge, copy = fabric.hub(), fabric.edge(), fabric.folder / "copy"
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(0, 50))
    wait_until(lambda: len(payloads(hub)) == 50)
    shutil.copytree(fabric.data, copy, ignore=shutil.ignore_patterns("*.sock"))
    for _ in range(starts):
        edge.stop()
        edge = fabric.edge()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(50, 70))
    wait_until(lambda: len(payloads(hub)) == 70)
    edge.kill()
    hub.stop()
    shutil.rmtree(fabric.data)
    copy.rename(fabric.data)
    return hub


def holds_at_start(fabric: Fabric, seconds: str) -> int:
    """Set the time, and a port for MQTT, which is returned."""
    port = free_port()
    text = fabric.edge_yaml.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}")
    fabric.edge_yaml.write_text(text.replace("hold_at_start: 200ms", f"hold_at_start: {seconds}"))
    return port


def refused_link(edge: Node) -> dict[str, Any]:
    def link() -> dict[str, Any]:
        found: dict[str, Any] = edge.json("status")["links"]["cloud"]
        return found

    wait_until(lambda: link()["state"] == "conflict")
    return link()


def test_a_restored_copy_acknowledges_nothing_before_its_hub_was_asked(fabric: Fabric) -> None:
    restore(fabric)
    port = holds_at_start(fabric, "600s")
    found: list[Node] = []
    thread = threading.Thread(target=lambda: found.append(fabric.edge()), daemon=True)
    thread.start()
    device, acknowledged, ended = paho.Client(CallbackAPIVersion.VERSION2, "device"), [], threading.Event()
    device.on_publish = lambda *_: acknowledged.append(1)
    device.on_disconnect = lambda *_: ended.set()

    def connects() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            device.connect("127.0.0.1", port)
            return True
        return False

    wait_until(connects)  # in the kernel: the node accepts no client yet
    device.publish(IMPORT_TOPIC, "message 1000", qos=1)
    device.loop_start()
    assert not found
    hub = fabric.hub()
    thread.join(PATIENCE_S)
    [edge] = found
    assert ended.wait(PATIENCE_S)
    device.loop_stop()
    link = refused_link(edge)
    assert "restored from an old copy" in link["last_error"]
    assert not acknowledged
    assert payloads(hub) == numbered(0, 70)


@pytest.mark.slow
@pytest.mark.parametrize("starts", [1, 3])
def test_a_restored_copy_is_called_one_at_once_though_its_epoch_is_spent(fabric: Fabric, starts: int) -> None:
    restore(fabric, starts=starts)
    fabric.hub()
    link = refused_link(fabric.edge())
    assert "holds records of stream telemetry up to seq 70, and this log has them up to 50 only" in link["last_error"]
    assert "restored from an old copy" in link["last_error"]
    assert "has taken over" not in link["last_error"]


@pytest.mark.slow
def test_what_a_refused_copy_took_comes_to_the_hub_as_new_records_once(fabric: Fabric) -> None:
    restore(fabric)
    holds_at_start(fabric, "0s")
    edge = fabric.edge()  # without its hub, so it takes messages
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(100, 103))
    edge.stop()
    edge = fabric.edge()
    publish(edge.mqtt_port, IMPORT_TOPIC, numbered(103, 105))
    hub = fabric.hub()
    refused_link(edge)
    wait_until((fabric.data / "links" / "conflicts").exists)
    aside = fabric.disk_fails(edge)
    edge = fabric.edge()
    refusal = weft("edge", "import", fabric.edge_yaml, aside).exception
    assert "Give --as-new" in str(refusal)

    for _ in range(2):
        result = weft("edge", "import", fabric.edge_yaml, aside, "--as-new", "--json")
        assert result.exception is None
        assert json.loads(result.stdout)["records"] == {"telemetry": 5}
        wait_until(lambda: fabric.is_done(edge))
        found = hub.json("v1/streams/telemetry/records?limit=1000")["records"]
        forks = {record["seq"]: dict(record["headers"])["weft.forked-from"] for record in found if "headers" in record}
        own = [record for record in found if "headers" in record]
        assert [record["payload"] for record in own] == numbered(100, 105)
        numbers = {seq: fork.partition(":")[2] for seq, fork in forks.items()}
        assert numbers == {0: "50", 1: "51", 2: "52", 3: "53", 4: "54"}
        assert payloads(hub) == numbered(0, 70) + numbered(100, 105)
        assert weft("edge", "import", fabric.edge_yaml, "--delete-done").exception is None
        wait_until(lambda: fabric.imports(edge) == {})
    assert aside.exists()
    assert weft("edge", "import", fabric.edge_yaml, aside, "--as-new").exception is None
    assert "was imported before" in str(weft("edge", "import", fabric.edge_yaml, aside, "--as-new").exception)
