"""`weft edge doctor` beside running nodes, with TLS, and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.certificates import Authority
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import wait_until

HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: 1
tls: {{certificate: hub.crt, key: hub.key}}
"""
EDGE = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:{mqtt}"}}}}
http: null
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "#"}}}}
links: {{cloud: {{to: "https://127.0.0.1:{port}", ca_file: authority.pem, retry_max: 1s}}}}
"""
MACHINE = {"clock", "open files", "disk speed", "certificates"}
"""Checks about the machine of the test."""

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def doctor(config: Path) -> tuple[dict[tuple[str, str], str], int]:
    """(check, state) -> what is said last, and the exit status."""
    result = weft("edge", "doctor", config, "--json")
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["good"] == all(line["state"] != "act" for line in answer["lines"])
    return {(line["check"], line["state"]): line["says"] for line in answer["lines"]}, result.return_value


def test_the_doctor_beside_running_nodes_and_after_the_hub_is_gone(start: Start, tmp_path: Path) -> None:
    port, mqtt = free_port(), free_port()
    Authority(tmp_path).sign("hub")
    hub_yaml, edge_yaml = tmp_path / "hub.yaml", tmp_path / "edge.yaml"
    hub_yaml.write_text(HUB.format(port=port))
    edge_yaml.write_text(EDGE.format(port=port, mqtt=mqtt))
    before, status = doctor(edge_yaml)
    assert "Check that the hub runs" in before["link cloud", "act"]
    assert before["disk speed", "unknown"].endswith("The first start of the node creates it")
    assert before["ports", "good"] == "all are free"
    assert status == 1

    hub = start("hub", hub_yaml)
    node: Node = start("edge", edge_yaml)
    wait_until(lambda: ("link cloud", "act") not in doctor(edge_yaml)[0], what=lambda: doctor(edge_yaml))
    found, _ = doctor(edge_yaml)
    assert "is ready" in found["link cloud", "good"]
    assert f"127.0.0.1:{port}" in found["clock", "good"]
    assert "were not tried" in found["ports", "unknown"]
    assert ("disk space", "good") in found
    assert "the node may open" in found.get(("open files", "good"), "") + found.get(("open files", "act"), "")
    publish(mqtt, "a", ["x"] * 10)
    assert doctor(edge_yaml)[0].keys() == found.keys()
    assert node.process.poll() is None

    hub.kill()
    gone, status = doctor(edge_yaml)
    assert "cannot connect" in gone["link cloud", "act"]
    assert status == 1


def test_a_configuration_that_is_wrong_is_status_2(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text("node: a\n")
    assert "data_dir" in str(weft("edge", "doctor", path).exception)
