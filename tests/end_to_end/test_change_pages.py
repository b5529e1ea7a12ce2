"""The pages that say how to change Weft, followed to the letter on a copy of the code."""

from __future__ import annotations

import json
import platform
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from deltalake import DeltaTable
from paho.mqtt import publish
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.architecture.house import PACKAGES, ROOT
from tests.support.change_pages import PAGES, follow, of_the_tree
from tests.support.processes import Log, Node
from tests.support.waiting import PATIENCE_S, wait_until

SENT = re.compile(r"^    (plant/\S+ .*)$", re.M)

pytestmark = pytest.mark.slow


def followed(page_name: str, folder: Path) -> tuple[str, list[str]]:
    """Make what a page says, new files and lines that are changed, in a copy of the product's packages. Return the
    page, and the words that run ``weft`` there."""
    page = (PAGES / page_name).read_text()
    made = follow(f"docs/change/{page_name}", page, of_the_tree)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return page, ["env", "-C", str(folder), sys.executable, "-m", "weft"]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The folder of the copy, whose configuration of the page is ``edge.yaml``."""
    return tmp_path / "code"


def with_free_ports(code: Path) -> Path:
    """The page's configuration, for a test beside others."""
    config = code / "tried.yaml"
    config.write_text(re.sub(r"127\.0\.0\.1:(1883|8080)", "127.0.0.1:0", (code / "edge.yaml").read_text()))
    return config


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_protocol_is_a_module_a_line_and_a_name(code: Path) -> None:
    page, weft = followed("add-a-protocol.md", code)
    config = with_free_ports(code)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config.write_text(config.read_text().replace(":2003", f":{port}"))
    lines = SENT.findall(page)
    assert len(lines) == 2
    node = Node("edge", config, weft, popen=subprocess.Popen)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall("".join(f"{line}\n" for line in lines).encode())
            answers = b""
            while answers.count(b"\n") < len(lines):
                more = client.recv(100)
                assert more, answers
                answers += more
        assert answers == b"stored\n" * len(lines)
        assert node.json("status")["streams"]["telemetry"]["durable_end"] == len(lines)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(b"no/\xff/topic x\n")
            assert client.recv(100) == b"", "what cannot be stored is not answered"
    finally:
        assert node.stop() == 0


def test_a_setting_is_a_field_and_its_use(code: Path) -> None:
    page, weft = followed("add-a-setting.md", code)
    config = with_free_ports(code)
    checked = ran(*weft, "edge", "check", str(config))
    assert checked.returncode == 0, checked.stderr
    node = Node("edge", config, weft, popen=subprocess.Popen)
    try:
        assert node.json("status")["links"]["uplink"]["note"] == "LTE, SIM 4711"
    finally:
        assert node.stop() == 0
    config.write_text(config.read_text().replace('"LTE, SIM 4711"', "[4711]"))
    refused = ran(*weft, "edge", "check", str(config))
    assert refused.returncode == 2
    (said,) = re.findall(r"^    edge\.yaml(:\d+: links.+)$", page, re.M)
    assert said in refused.stderr


def test_a_metric_is_a_counter_and_its_help(code: Path) -> None:
    _, weft = followed("add-a-metric.md", code)
    node = Node("edge", with_free_ports(code), weft, popen=subprocess.Popen)
    try:
        publish.single("plant/1", b"", qos=1, hostname="127.0.0.1", port=node.mqtt_port)
        publish.single("plant/1", b"21.5", qos=1, hostname="127.0.0.1", port=node.mqtt_port)
        text = node.text("metrics")
        assert "weft_edge_publishes_empty_total 1.0" in text.splitlines()
        assert "# HELP weft_edge_publishes_empty_total Messages received without a payload." in text
    finally:
        assert node.stop() == 0


def test_a_command_is_a_module_and_a_line(code: Path) -> None:
    page, weft = followed("add-a-command.md", code)
    command = [*weft, "edge", "streams", str(code / "edge.yaml")]
    (said,) = re.findall(r"^    (\{.+\})$", page, re.M)
    assert json.loads(ran(*command, "--json").stdout) == json.loads(said)
    assert "hall/+/meter" in ran(*command).stdout
    assert "topics that each takes" in ran(*weft, "edge", "streams", "--help").stdout
    (code / "edge.yaml").write_text("node: press-7\nstream: {}\n")
    refused = ran(*command)
    assert refused.returncode == 2
    assert ":2: stream" in refused.stderr


@pytest.mark.parametrize("hub_is_changed", [True, False])
def test_a_frame_goes_to_hubs_that_know_its_feature(code: Path, hub_is_changed: bool) -> None:
    _, weft = followed("add-a-frame.md", code)
    hub_config, own = code / "tried-hub.yaml", [sys.executable, "-m", "weft"]
    hub_config.write_text((code / "hub.yaml").read_text().replace(":8090", ":0"))
    with Log(code / "log") as said:
        hub = Node("hub", hub_config, weft if hub_is_changed else own, said.file, subprocess.Popen)
        config = with_free_ports(code)
        config.write_text(config.read_text().replace("http://127.0.0.1:8090", hub.url.rstrip("/")))
        node = Node("edge", config, weft, popen=subprocess.Popen)
        try:
            wait_until(lambda: node.json("status")["links"]["uplink"]["state"] == "connected")
            if hub_is_changed:
                wait_until(lambda: said.has(f"default/press-7 runs on '{platform.machine()}'"))
        finally:
            assert (node.stop(), hub.stop()) == (0, 0)
        assert said.has("runs on") == hub_is_changed
        assert "REFUSE" not in said.text


def test_a_column_comes_to_tables_that_are_there(code: Path) -> None:
    _, weft = followed("add-a-column.md", code)
    (code / "tried-hub.yaml").write_text((code / "hub.yaml").read_text().replace(":8090", ":0"))
    typed = Properties(PacketTypes.PUBLISH)
    typed.ContentType = "application/json"

    def table_after(own: list[str], rows: int, properties: Properties | None) -> dict[str, list[Any]]:
        hub = Node("hub", code / "tried-hub.yaml", own, popen=subprocess.Popen)
        config = with_free_ports(code)
        config.write_text(config.read_text().replace("http://127.0.0.1:8090", hub.url.rstrip("/")))
        node = Node("edge", config, weft, popen=subprocess.Popen)
        table = code / "hub" / "tables" / "default" / "telemetry"
        try:
            client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
            client.connect("127.0.0.1", node.mqtt_port)
            client.loop_start()
            client.publish("plant/1", b"{}", 1, properties=properties).wait_for_publish(PATIENCE_S)
            client.disconnect()
            client.loop_stop()
            wait_until(lambda: DeltaTable.is_deltatable(str(table)) and DeltaTable(str(table)).count() == rows)
        finally:
            assert (node.stop(), hub.stop()) == (0, 0)
        found: dict[str, list[Any]] = DeltaTable(str(table)).to_pyarrow_table().sort_by("_offset").to_pydict()
        return found

    before = table_after([sys.executable, "-m", "weft"], 1, typed)
    assert "_content_type" not in before
    assert table_after(weft, 2, typed)["_content_type"] == [None, "application/json"]
    assert table_after(weft, 3, None)["_content_type"] == [None, "application/json", None]


@pytest.mark.spark
def test_a_sink_is_a_section_a_call_and_a_line(code: Path) -> None:
    _, weft = followed("add-a-sink.md", code)
    hub_config, edge_config = code / "hub.yaml", code / "edge.yaml"
    hub_config.write_text("listen: 127.0.0.1:0\nstore: hub\n")
    hub = Node("hub", hub_config, weft, popen=subprocess.Popen)
    edge_config.write_text(
        'node: press-7\ndata_dir: data\nhttp: {bind: "127.0.0.1:0"}\nlisteners: {mqtt: {bind: "127.0.0.1:0"}}\n'
        f'streams: {{telemetry: {{from: "plant/#"}}}}\nlinks: {{up: {{to: "{hub.url.rstrip("/")}"}}}}\n'
    )
    node = Node("edge", edge_config, weft, popen=subprocess.Popen)
    try:
        for number in range(5):
            publish.single("plant/1", str(number), qos=1, hostname="127.0.0.1", port=node.mqtt_port)
        wait_until(lambda: node.json("status")["links"]["up"]["records_acked"] >= 5)
    finally:
        assert (node.stop(), hub.stop()) == (0, 0)
    command = [*weft, "spark", "run", str(code / "pipeline.yaml"), "--master", "local[1]", "--once"]
    for _ in range(2):
        done = ran(*command)
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for file in sorted((code / "lines").glob("*.jsonl")) for line in file.open()]
    assert rows == [{"_key": "plant/1", "value": str(number)} for number in range(5)]
