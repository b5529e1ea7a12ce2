"""The longest messages that a node can be set to take, on their way from each protocol to a row of the hub's table."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.demo.fabric import DemoHub
from tests.edge_node.servers.clients import Amqp, Amqp1, Http, Mqtt, Way
from tests.end_to_end.test_kills import STREAM, make_edge, wait_until_drained
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

pytestmark = [pytest.mark.processes, pytest.mark.slow]
LONGEST = 16 << 20
HEAD_BYTES = 64
"""Room for what MQTT and AMQP 1.0 have beside the payload: there the bound is one on packets and messages."""


def payloads_of(hub: DemoHub) -> Mapping[str, str]:
    """Device -> digest of the payload of its row."""
    from deltalake import DeltaTable

    uri, options = open_store(hub.store).location(table_key("default", STREAM))
    rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload"]).to_pylist()
    return {row["device"]: hashlib.sha256(row["payload"]).hexdigest() for row in rows}


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
