"""Three hub hosts on one store, and edges of which two lose their power: one command at any host says so."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes]
HUB = """\
listen: 127.0.0.1:{port}
advertise: ["http://127.0.0.1:{port}"]
store: store
shards: 8
processes: 1
commit_interval: 20ms
mark_interval: 1s
"""
EDGE = """\
node: press-{number}
data_dir: data-{number}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
links: {{cloud: {{to: [{hubs}], retry_min: 50ms, retry_max: 1s, mark_interval: 1s}}}}
"""
EDGES, GONE, SAID_S_MAX = 5, ("press-1", "press-3"), 30.0
JOIN_S = 90.0
"""Time in which three processes know each other: half a minute, on a busy machine."""


def as_json(*words: str | Path) -> Any:
    done = weft(*words, "--json")
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


def connected(config: Path) -> dict[str, str | None]:
    """Each edge that a host knows, and the process that it is linked to."""
    return {each["edge"]: each["connected_at"] for each in as_json("hub", "status", config)["edges"]}


def test_any_host_names_the_edges_that_are_gone(start: Start, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    configs = [tmp_path / f"hub-{port}.yaml" for port in ports]
    for port, config in zip(ports, configs, strict=True):
        config.write_text(HUB.format(port=port))
        start("hub", config)
    names = [f"http://127.0.0.1:{port}" for port in ports]
    edges = {}
    for number in range(EDGES):
        config = tmp_path / f"edge-{number}.yaml"
        config.write_text(EDGE.format(number=number, hubs=", ".join(f'"{name}"' for name in names)))
        edges[f"press-{number}"] = edge = start("edge", config)
        publish(edge.mqtt_port, "plant/a/b/telemetry", ["m"])

    def owned() -> bool:
        nodes = as_json("hub", "nodes", configs[0])["nodes"]
        return sorted(shard for each in nodes for shard in each["owns"]) == list(range(8)) and all(
            each["owns"] and set(each["owns"]) <= set(each["shards"]) for each in nodes
        )

    wait_until(owned, JOIN_S, what="each host to own some shards")

    def all_linked(config: Path) -> bool:
        found = connected(config)
        return len(found) == EDGES and set(found.values()) <= set(names)

    for config in configs:
        wait_until(partial(all_linked, config), JOIN_S, what="all edges to be linked")

    killed = time.monotonic()
    for name in GONE:
        edges[name].kill()
    wanted = {name: name in GONE for name in edges}

    def says_so(config: Path) -> bool:
        return {name: at is None for name, at in connected(config).items()} == wanted

    for config in configs:
        wait_until(partial(says_so, config), SAID_S_MAX, what="the two edges to be missed")
    took_s = time.monotonic() - killed
    print(f"all three hosts named the two edges {took_s:.1f} s after they lost their power")
    for config in configs:
        text = weft("hub", "status", config).output
        assert f"{EDGES} edges: {EDGES - 2} connected, 2 not connected, 0 with an alarm" in text
        rows = [line.split("\t")[0] for line in text.splitlines() if line.startswith("default/press-")]
        assert rows[:2] == [f"default/{name}" for name in GONE], "who is not connected comes first"
        (stream,) = as_json("streams", config)["streams"]
        (held_back,) = stream["held_back_by"]
        assert (held_back["edge"] in GONE, held_back["reason"]) == (True, "late")
        assert "(late)" in weft("streams", config).output
