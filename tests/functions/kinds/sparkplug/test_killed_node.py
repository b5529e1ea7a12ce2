"""A node that is killed while an edge node talks: what it acknowledged is there, and each message counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.functions.kinds.sparkplug.edge_node_client import EdgeNodeClient
from tests.support.processes import Node, weft
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes
CONFIG = """\
node: press-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams:
  sparkplug: {from: "spBv1.0/#", payload: sparkplug}
  metrics:
    from_stream: sparkplug
    functions: [sparkplug: {rebirth_every: 1s, reorder: 1s}]
"""
ROUNDS, EACH = 4, 80


def tail(folder: Path, stream: str) -> str:
    said = weft("edge", "tail", folder / "edge.yaml", stream, "--json", "--last", 10_000)
    assert said.exception is None, said.output
    return said.stdout


def rows_of(lines: list[dict[str, Any]]) -> list[Any]:
    return [(each["time_ns"], each.get("key", each.get("topic")), each["payload"], each["headers"]) for each in lines]


@pytest.mark.slow
def test_metrics_of_a_node_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(CONFIG)
    sent: list[tuple[float, Any]] = []
    for number in range(ROUNDS):
        node = Node("edge", tmp_path / "edge.yaml")
        with EdgeNodeClient(node.mqtt_port, bd_seq=number, qos=1) as edge_node:
            for at in range(EACH):
                value = float(number * EACH + at)
                sent.append((value, edge_node.measure(value)))
                if at % 20 == 7:
                    edge_node.lose_a_message()
            half = sent[-EACH // 2][1]
            wait_until(half.is_published)
            if number < ROUNDS - 1:
                node.kill()
                continue
            wait_until(sent[-1][1].is_published)
    wait_until(lambda: '"NDEATH"' in tail(tmp_path, "metrics")[-3000:], 60)
    wait_until(lambda: node.json("status")["functions"]["metrics"]["lag_records"] == 0, 60)
    assert node.stop() == 0
    found = [json.loads(line) for line in tail(tmp_path, "metrics").splitlines()]
    values = [json.loads(each["payload"])["value"] for each in found if each["key"] == "plant/line1//temperature"]
    acknowledged = {value for value, info in sent if info.is_published()}
    assert acknowledged <= set(values)
    assert len(acknowledged) > EACH * ROUNDS // 2
    assert None in values, "the deaths of those connections that the kills have ended"
    # The records are those that the messages in the log give without any kill, one by one.
    (tmp_path / "sample.jsonl").write_text(tail(tmp_path, "sparkplug"))
    said = weft(
        "edge", "test-function", tmp_path / "edge.yaml", "metrics", "--input", tmp_path / "sample.jsonl", "--json"
    )
    assert said.exception is None, said.output
    tried = [json.loads(line) for line in said.stdout.splitlines()]
    out = [one for each in tried for one in each.get("outcomes", ()) if one["outcome"] == "out"]
    assert rows_of(found) == rows_of(out)
