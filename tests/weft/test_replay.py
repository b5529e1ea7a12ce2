"""``weft edge replay``: what functions made is made again, record for record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import wait_until
from weft.output import Failed

pytestmark = pytest.mark.processes
TOPIC = "plant/m1/telemetry"
EDGE = """\
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


def test_a_replay_goes_on_where_it_ended_also_after_a_kill(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    config.write_text(EDGE.format(port=free_port()))
    node = start("edge", config)
    publish(node.mqtt_port, TOPIC, [json.dumps({"temperature": 40 + number}) for number in range(30)])
    wait_for(node, 30)
    assert replay(config, "again")["rows"] == 30
    expected = records(config, "hot")
    assert len(expected) == 19
    assert records(config, "again") == expected
    node.kill()
    node = start("edge", config)
    publish(node.mqtt_port, TOPIC, [json.dumps({"temperature": 60})])
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
