"""``weft hub stream delete`` beside a running hub and an edge, as real processes."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

TOPIC = "plant/a/b/telemetry"
EDGE = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/{{line}}/{{machine}}/telemetry"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}}}
"""
HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: 1
commit_interval: 20ms
tables: {{interval: 1s}}
"""


@pytest.mark.slow
def test_a_stream_is_deleted_and_begins_again_where_it_ended(start: Start, tmp_path: Path) -> None:
    port = free_port()
    edge_yaml, hub_yaml = tmp_path / "edge.yaml", tmp_path / "hub.yaml"
    edge_yaml.write_text(EDGE.format(port=port))
    hub_yaml.write_text(HUB.format(port=port))
    hub, edge = start("hub", hub_yaml), start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, [f"first {i}" for i in range(10)])

    def table_rows() -> int:
        return sum(stream["table_rows"] or 0 for stream in hub.json("v1/streams")["streams"])

    def tables() -> list[dict[str, Any]]:
        return [each for each in hub.json("v1/status")["tables"] if each["tenant"] == "default"]

    def deleted_rows() -> list[dict[str, Any]]:
        table = DeltaTable(str(tmp_path / "store" / "tables" / "default" / "telemetry"))
        found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return found

    wait_until(lambda: table_rows() == 10, what="the rows")
    arguments = ("hub", "stream", "delete", hub_yaml, "default/telemetry", "--reason", "trial is over", "--by", "mara")
    refused = weft(*arguments, "--yes")
    assert refused.exit_code == 1
    assert "edges still send to default/telemetry: press-shop-7, the last" in str(refused.exception)
    assert edge.stop() == 0
    done = weft(*arguments, "--yes", "--force")
    (shard,) = {row["_shard"] for row in deleted_rows()}
    later = f"Rows of a later stream begin at {json.dumps({str(at): 10 * (at == shard) for at in range(2)})}"
    assert done.output.splitlines() == [
        "deleted stream telemetry of tenant default, with 1 lane and 10 records; its table stays, and a later "
        "stream of this name continues in it: trial is over",
        f"Use another name for a stream with another meaning. {later}, as `starting` of a read",
        "The log keeps the records until its retention",
    ]
    wait_until(lambda: not hub.json("v1/streams")["streams"], what="the stream to leave the list")
    wait_until(lambda: not tables(), what="the stream to leave the status")
    assert weft(*arguments, "--yes").output == f"stream telemetry of tenant default is deleted already. {later}\n"
    edge = start("edge", edge_yaml)
    publish(edge.mqtt_port, TOPIC, [f"second {i}" for i in range(5)])
    wait_until(lambda: table_rows() == 15, what="the rows of the stream that is back")
    found = DeltaTable(str(tmp_path / "store" / "tables" / "default" / "telemetry")).to_pyarrow_table()
    payloads = [f"first {i}".encode() for i in range(10)] + [f"second {i}".encode() for i in range(5)]
    table = found.sort_by("_offset")
    assert table.column("payload").to_pylist() == payloads
    assert table.column("_offset").to_pylist() == list(range(15))
    assert set(table.column("line").to_pylist()) == {"a"}


# --- Three hub hosts on one store, and edges of which two lose their power: one command at any host says so


SILENT_EDGES_HUB = """\
listen: 127.0.0.1:{port}
advertise: ["http://127.0.0.1:{port}"]
store: store
shards: 8
processes: 1
commit_interval: 20ms
mark_interval: 1s
"""
SILENT_EDGES_EDGE = """\
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


@pytest.mark.slow
def test_any_host_names_the_edges_that_are_gone(start: Start, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    configs = [tmp_path / f"hub-{port}.yaml" for port in ports]
    for port, config in zip(ports, configs, strict=True):
        config.write_text(SILENT_EDGES_HUB.format(port=port))
        start("hub", config)
    names = [f"http://127.0.0.1:{port}" for port in ports]
    edges = {}
    for number in range(EDGES):
        config = tmp_path / f"edge-{number}.yaml"
        config.write_text(SILENT_EDGES_EDGE.format(number=number, hubs=", ".join(f'"{name}"' for name in names)))
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
