"""enrich, python and alert in one chain of a real node, which is killed now and then: each record once, each alert."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.processes import Node, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes
CONFIG = """\
node: press-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams:
  telemetry: {from: "plant/{line}/{machine}/telemetry", payload: json}
  alerts: {from: "alerts/#"}
  scored:
    from_stream: telemetry
    payload: json
    functions:
      - enrich: {file: machines.csv, on: machine, fields: [site, limit], numbers: [limit]}
      - python: {file: score.py, timeout: 500ms}
      - alert:
          when: over
          topic: "alerts/{site}/{machine}"
          payload: {n: n, count: count}
"""
CODE = """
def process(record, ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    if record["n"] == 70:
        while True: pass
    return {"n": record["n"], "site": record["site"], "count": ctx.state["count"], "over": record["n"] % 50 > 40}
"""
ROUNDS, EACH = 4, 60


def tail(folder: Path, stream: str) -> list[Any]:
    said = weft("edge", "tail", folder / "edge.yaml", stream, "--json", "--last", 10_000)
    assert said.exception is None, said.output
    found = [json.loads(line) for line in said.output.splitlines()]
    return [json.loads(each["payload"]) for each in found if "payload" in each]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "edge.yaml").write_text(CONFIG)
    (tmp_path / "machines.csv").write_text("machine,site,limit\nm1,Graz,80\n")
    (tmp_path / "score.py").write_text(CODE)
    return tmp_path


@pytest.mark.slow
def test_a_chain_on_a_node_that_is_killed(folder: Path) -> None:
    heard: list[tuple[str, Any]] = []
    for number in range(ROUNDS):
        node = Node("edge", folder / "edge.yaml")
        listening = threading.Event()
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.on_subscribe = lambda *_, listening=listening: listening.set()
        client.on_message = lambda _client, _data, message: heard.append((message.topic, json.loads(message.payload)))
        client.connect("127.0.0.1", node.mqtt_port)
        client.subscribe("alerts/#", qos=1)
        client.loop_start()
        assert listening.wait(PATIENCE_S)
        rows = range(number * EACH, (number + 1) * EACH)
        publish(node.mqtt_port, "plant/a/m1/telemetry", [json.dumps({"n": n, "machine": "m1"}) for n in rows])
        if number < ROUNDS - 1:
            node.kill()
        else:
            wait_until(lambda: node.json("status")["functions"]["scored"]["lag_records"] == 0, 60)
            wait_until(lambda: len(tail(folder, "scored")) >= ROUNDS * EACH - 1, 60)
            assert node.stop() == 0
        client.loop_stop()
    kept = [n for n in range(ROUNDS * EACH) if n != 70]
    assert tail(folder, "scored") == [
        {"n": n, "site": "Graz", "count": at + 1, "over": n % 50 > 40} for at, n in enumerate(kept)
    ]
    assert tail(folder, "scored-errors") == [{"n": 70, "machine": "m1"}], "the payload as it came"
    begun = [{"n": n, "count": kept.index(n) + 1} for n in kept if n % 50 == 41]
    assert tail(folder, "alerts") == begun
    # What the killed node had published but not told to its subscriber yet is in the stream only.
    assert {topic for topic, _ in heard} <= {"alerts/Graz/m1"}
    assert [payload for _, payload in heard] == [each for each in begun if ("alerts/Graz/m1", each) in heard]
    assert begun[-1] in [payload for _, payload in heard]
