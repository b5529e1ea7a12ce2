"""The flow of the how-to page in a real Node-RED, which publishes to a real node and hears its alerts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Node, weft
from tests.support.third_party import NODE_RED
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[2] / "docs/how-to/feed-from-node-red.md"
SETTINGS = 'module.exports = {flowFile: "flows.json", uiPort: 0, uiHost: "127.0.0.1", httpAdminRoot: false};\n'


@pytest.fixture(scope="module")
def node_red() -> Path:
    """The program."""
    try:
        return NODE_RED.obtain() / "node_modules/node-red/red.js"
    except LookupError as error:
        pytest.skip(str(error))


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def flow(port: int) -> list[dict[str, Any]]:
    """The flow of the page, on a tab as an import puts it."""
    nodes: list[dict[str, Any]] = json.loads(block("json"))
    for node in nodes:
        if node["type"] == "mqtt-broker":
            node["port"] = str(port)
        else:
            node["z"] = "tab"
        if node["type"] == "debug":
            node["console"] = "true"
    return [{"id": "tab", "type": "tab", "label": "weft"}, *nodes]


def test_the_flow_publishes_and_hears_alerts(node_red: Path, tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    text = block("yaml").replace("/var/lib/weft", str(tmp_path / "data"))
    config.write_text(text + 'listeners: {mqtt: {bind: "127.0.0.1:0"}}\nhttp: null\n')
    node = Node("edge", config)
    folder, heard = tmp_path / "node-red", tmp_path / "heard"
    folder.mkdir()
    (folder / "flows.json").write_text(json.dumps(flow(node.mqtt_port)))
    (folder / "settings.js").write_text(SETTINGS)
    with heard.open("w") as file:
        running = subprocess.Popen(
            ["node", str(node_red), "-u", str(folder), "-s", str(folder / "settings.js")],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            # A value each second, of which one in seven is hot.
            wait_until(lambda: "plant/l4/m1/telemetry" in heard.read_text(), 180, "an alert in Node-RED")
        finally:
            running.terminate()
            running.wait(PATIENCE_S)
            assert node.stop() == 0
    said = weft("edge", "tail", config, "telemetry", "--json", "--last", 1000)
    assert said.exception is None, said.output
    readings = [json.loads(json.loads(line)["payload"]) for line in said.stdout.splitlines()]
    assert readings
    assert all(set(reading) == {"temperature", "at"} for reading in readings)
