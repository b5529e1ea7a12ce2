"""A data_dir is put back to an older copy: nothing is acknowledged under numbers that the hub has for other records."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import free_port
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from tests.weft.test_import import TOPIC, Fabric, numbered, payloads

pytestmark = pytest.mark.processes


@pytest.fixture
def fabric(tmp_path: Path, start: Start) -> Fabric:
    return Fabric(tmp_path, start)


def restore(fabric: Fabric, *, starts: int = 0) -> Node:
    """The hub has 50 messages of the copy that is put back, and 20 that came after it. The hub is away then.

    Args:
        starts: times that the node was started after the copy.
    """
    hub, edge, copy = fabric.hub(), fabric.edge(), fabric.folder / "copy"
    publish(edge.mqtt_port, TOPIC, numbered(0, 50))
    wait_until(lambda: len(payloads(hub)) == 50)
    shutil.copytree(fabric.data, copy, ignore=shutil.ignore_patterns("*.sock"))
    for _ in range(starts):
        edge.stop()
        edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(50, 70))
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
    device.publish(TOPIC, "message 1000", qos=1)
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
    publish(edge.mqtt_port, TOPIC, numbered(100, 103))
    edge.stop()
    edge = fabric.edge()
    publish(edge.mqtt_port, TOPIC, numbered(103, 105))
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
