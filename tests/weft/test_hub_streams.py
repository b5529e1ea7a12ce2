"""``weft hub stream delete`` beside a running hub and an edge, as real processes."""

from __future__ import annotations

import json
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
