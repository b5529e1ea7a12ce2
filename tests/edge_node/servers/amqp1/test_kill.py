"""A node that is killed while a client of AMQP 1.0 sends: nothing that it accepted is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edge_node.servers.amqp1.harness import Client, ConnectionException, Delivery, Filter, Message, symbol
from tests.support.processes import Node
from weft.demo.fabric import free_port

pytestmark = pytest.mark.processes

CONFIG = """\
node: press-shop-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}, amqp: {{bind: "127.0.0.1:{port}"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/#"}}
"""
IN_FLIGHT = 100
ACCEPTED_MIN = 300


def send_until_killed(client: Client, node: Node) -> list[bytes]:
    """Keep messages in flight, kill the node in the midst of them, and return those that were accepted."""
    sender, sent, accepted = client.sender("plant/1/x"), [], 0
    try:
        for number in range(100 * ACCEPTED_MIN):
            sent.append(sender.link.send(Message(body=b"%d" % number, inferred=True)))
            if len(sent) - accepted < IN_FLIGHT:
                continue
            client.connection.wait(lambda at=accepted: sent[at].settled, timeout=30)
            accepted += 1
            if accepted == ACCEPTED_MIN:
                node.kill()
    except ConnectionException:
        pass
    return [b"%d" % at for at, each in enumerate(sent) if each.remote_state == Delivery.ACCEPTED]


def test_nothing_that_was_accepted_is_lost(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "edge.yaml"
    config.write_text(CONFIG.format(port=port))
    url = f"amqp://127.0.0.1:{port}"
    node = Node("edge", config)
    accepted = send_until_killed(Client(url, "sender"), node)
    assert len(accepted) >= ACCEPTED_MIN
    node = Node("edge", config)
    try:
        client = Client(url, "reader")
        options = Filter({symbol("weft:offset-spec"): "first"})
        receiver = client.receiver("stream/telemetry", options=options)
        found = [bytes(each.body) for each in client.receive(receiver, len(accepted))]
        assert found == accepted
        client.connection.close()
    finally:
        node.kill()
