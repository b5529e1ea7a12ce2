"""Messages on their whole way, from each protocol to a table: their traces, and the longest."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from paho.mqtt.client import MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from examples.demo.fabric import DemoHub, free_port
from tests.edge_node.servers.clients import Amqp, Amqp1, Http, Mqtt, Way
from tests.end_to_end.test_kills import STREAM, make_edge, wait_until_drained
from tests.support.collector import collecting
from tests.support.mqtt_client import BlockingPaho
from tests.support.processes import Node
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

# --- A trace of a message's whole way: its publisher, an edge process, the link, a hub process, and the table


TRACE_ID, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.slow
def test_a_trace_goes_from_the_publisher_to_the_row_in_the_table(tmp_path: Path) -> None:
    with collecting() as collector:
        tracing, port = f"tracing: {{endpoint: {collector.url}}}\n", free_port()
        hub_file, edge_file = tmp_path / "hub.yaml", tmp_path / "edge.yaml"
        hub_file.write_text(
            f"listen: 127.0.0.1:{port}\nstore: {tmp_path / 'store'}\ntables: {{interval: 50ms}}\n{tracing}"
        )
        edge_file.write_text(
            f"node: press-7\ndata_dir: {tmp_path / 'data'}\nhttp: {{bind: 127.0.0.1:{free_port()}}}\n"
            f"listeners: {{mqtt: {{bind: 127.0.0.1:{free_port()}}}}}\n"
            f"streams: {{telemetry: {{from: plant/#}}}}\n{tracing}"
            f"links: {{up: {{to: http://127.0.0.1:{port}}}}}\n"
        )
        hub, edge = Node("hub", hub_file), Node("edge", edge_file)
        try:
            client = BlockingPaho("press", protocol=MQTTv5)
            client.connect(edge.mqtt_port)
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = ("traceparent", f"00-{TRACE_ID}-{PARENT}-01")
            client.publish("plant/1", b"21")
            client.paho.publish("plant/1", b"22", 1, properties=properties).wait_for_publish(10)
            client.publish("plant/1", b"23")
            client.close()
            accept, link, commit, table = collector.wait("weft accept", "weft link", "weft commit", "weft table")
        finally:
            edge.stop()
            hub.stop()
    assert {span.trace for span in collector.spans} == {TRACE_ID}
    assert len(collector.spans) == 4, "the messages without a context have none"
    assert [span.parent for span in (accept, link, commit, table)] == [PARENT, accept.span, accept.span, commit.span]
    assert link.attributes["weft.link"] == "up"
    lane = {"weft.tenant": "default", "weft.edge": "press-7", "weft.stream": "telemetry", "weft.seq": 1}
    lane["weft.log"] = accept.attributes["weft.log"]
    for span in (accept, link, commit, table):
        assert lane.items() <= span.attributes.items()
        assert span.end >= span.start
        assert not span.error
    assert commit.attributes["weft.offset"] == 1
    assert {"weft.chunk", "weft.shard"} <= commit.attributes.keys()
    assert table.attributes["weft.table_version"] >= 1
    assert (accept.resource["service.name"], table.resource["service.name"]) == ("weft-edge", "weft-hub")


# --- The longest messages that a node can be set to take, on their way from each protocol to a row of the hub's table


LONGEST = 16 << 20
HEAD_BYTES = 64
"""Room for what MQTT and AMQP 1.0 have beside the payload: there the bound is one on packets and messages."""


def payloads_of(hub: DemoHub) -> Mapping[str, str]:
    """Device -> digest of the payload of its row."""
    from deltalake import DeltaTable

    uri, options = open_store(hub.store).location(table_key("default", STREAM))
    rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload"]).to_pylist()
    return {row["device"]: hashlib.sha256(row["payload"]).hexdigest() for row in rows}


@pytest.mark.processes
@pytest.mark.slow
def test_the_longest_message_of_each_protocol_is_a_row(tmp_path: Path) -> None:
    hub = DemoHub(tmp_path, "limits: {record: 17MiB}\n")
    edge = make_edge(tmp_path, hub)
    edge.config_path.write_text(edge.config_path.read_text() + "limits: {message: 16MiB}\n")
    sent = {}
    try:
        hub.start()
        edge.start()
        clients = [
            (Mqtt, edge.mqtt_port, HEAD_BYTES),
            (Amqp, edge.amqp_port, 0),
            (Amqp1, edge.amqp_port, HEAD_BYTES),
            (Http, edge.post_port, 0),
        ]
        for make, port, head_bytes in clients:
            body = random.Random(make.__name__).randbytes(LONGEST - head_bytes)  # nothing compresses it
            client = make(Way(port))
            client.connect()
            assert client.publish(f"load/{make.__name__}/count", body), make
            client.close()
            sent[make.__name__] = hashlib.sha256(body).hexdigest()
        assert wait_until_drained(edge, hub) == len(clients)
    finally:
        edge.stop()
        hub.stop()
    assert payloads_of(hub) == sent
