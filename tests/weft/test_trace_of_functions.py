"""``weft trace`` over an edge node and a hub: from a row of a function to its messages, and from one to its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry", payload: json}}
  seconds:
    from_stream: telemetry
    functions:
      - set: {{double: v * 2}}
      - window: {{every: 1s, by: [machine], emit: {{n: count(), sum: sum(double)}}}}
  all: {{from_stream: seconds, functions: [{{sql: {{every: 1s, by: none, select: SELECT sum(n) AS n FROM input}}}}]}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ncommit_interval: 20ms\ntables: null\n"


def test_the_trail_goes_on_through_functions_of_the_edge(start: Start, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "edge.yaml").write_text(EDGE.format(port=port))
    (tmp_path / "hub.yaml").write_text(HUB.format(port=port))
    hub, edge = start("hub", tmp_path / "hub.yaml"), start("edge", tmp_path / "edge.yaml")
    for machine in ("m1", "m2"):
        publish(edge.mqtt_port, f"plant/a/{machine}/telemetry", [json.dumps({"v": at}) for at in range(17)])

    def rows(stream: str) -> list[dict[str, Any]]:
        if stream not in (each["stream"] for each in hub.json("v1/streams")["streams"]):
            return []
        found: list[dict[str, Any]] = hub.json(f"v1/streams/{stream}/records?limit=1000")["records"]
        return found

    def counted(stream: str) -> int:
        return sum(json.loads(row["payload"])["n"] for row in rows(stream))

    wait_until(lambda: counted("all") == counted("seconds") == len(rows("telemetry")) == 34, 60)
    log = rows("telemetry")[0]["log"]
    store = ("--store", str(tmp_path / "store"), "--json")

    def traced(stream: str, seq: int) -> list[dict[str, Any]]:
        name = f"press-shop-7/{log}/{seq}"
        (row,) = json.loads(weft("trace", *store, "--record", name, "--stream", stream).output)["rows"]
        found: list[dict[str, Any]] = row["made_of"][0]["records"][0]["made_of"]
        return found

    used: dict[int, tuple[str, int]] = {}
    for row in rows("seconds"):
        (step,) = traced("seconds", row["seq"])
        assert (step["stream"], step["is_exact"]) == ("telemetry", True)
        values = json.loads(row["payload"])
        assert sum(2 * json.loads(each["payload"])["v"] for each in step["records"]) == values["sum"]
        assert {each["key"] for each in step["records"]} == {f"plant/a/{values['machine']}/telemetry"}
        used |= {each["seq"]: ("seconds", row["seq"]) for each in step["records"]}
    assert sorted(used) == [*range(34)]
    (step,) = traced("all", 0)
    assert step["records"][0]["made_of"][0]["stream"] == "telemetry"
    name = f"press-shop-7/{log}/20"
    found = json.loads(weft("trace", *store, "--record", name, "--stream", "telemetry", "--forward").output)
    assert [(each["stream"], each["record"]["seq"]) for each in found["made"]][:1] == [used[20]]
    assert {each["stream"] for each in found["made"]} == {"seconds", "all"}
