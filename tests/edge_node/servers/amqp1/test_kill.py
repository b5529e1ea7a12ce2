"""A node that is killed while clients of AMQP 1.0 send and receive: nothing that it accepted is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.edge_node.servers.amqp1.harness import (
    BlockingReceiver,
    ConnectionException,
    Delivery,
    DurableSubscription,
    Filter,
    Message,
    ProtonClient,
    symbol,
)
from tests.support.processes import Node
from tests.support.waiting import PATIENCE_S

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


def send_until_killed(client: ProtonClient, node: Node) -> list[bytes]:
    """Keep messages in flight, kill the node in the midst of them, and return those that were accepted."""
    sender, sent, accepted = client.sender("plant/1/x"), [], 0
    try:
        for number in range(100 * ACCEPTED_MIN):
            sent.append(sender.link.send(Message(body=b"%d" % number, inferred=True)))
            if len(sent) - accepted < IN_FLIGHT:
                continue
            client.connection.wait(lambda at=accepted: sent[at].settled, timeout=PATIENCE_S)
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
    accepted = send_until_killed(ProtonClient(url, "sender"), node)
    assert len(accepted) >= ACCEPTED_MIN
    node = Node("edge", config)
    try:
        client = ProtonClient(url, "reader")
        options = Filter({symbol("weft:offset-spec"): "first"})
        receiver = client.receiver("stream/telemetry", options=options)
        found = [bytes(each.body) for each in client.receive(receiver, len(accepted))]
        assert found == accepted
        client.connection.close()
    finally:
        node.kill()


@pytest.mark.slow
def test_a_durable_receiver_goes_on_after_its_node_was_killed(tmp_path: Path) -> None:
    """SIGKILL while a receiver accepts: every message comes, and what may have been sent before says so."""
    port, count = free_port(), 2 * ACCEPTED_MIN
    config = tmp_path / "edge.yaml"
    config.write_text(CONFIG.format(port=port))
    url = f"amqp://127.0.0.1:{port}"
    node = Node("edge", config)
    sender = ProtonClient(url, "sender")
    bodies = [b"%d" % number for number in range(count)]
    sender.send("plant/1/x", *[Message(body=body, inferred=True) for body in bodies])
    before: list[bytes] = []
    receiver = durable(ProtonClient(url, "reader"))
    try:
        for _ in range(count):
            message = receiver.receive(timeout=PATIENCE_S)
            before.append(bytes(message.body))
            receiver.accept()
            if len(before) == ACCEPTED_MIN:
                node.kill()
    except ConnectionException:
        pass
    assert ACCEPTED_MIN <= len(before) < count
    node = Node("edge", config)
    try:
        client = ProtonClient(url, "reader")
        receiver = durable(client)
        after: list[bytes] = []
        while not after or after[-1] != bodies[-1]:
            message = receiver.receive(timeout=PATIENCE_S)
            after.append(bytes(message.body))
            assert message.delivery_count or after[-1] not in before, "what was received before is not flagged"
            receiver.accept()
        assert [body for body in bodies if body not in {*before, *after}] == []
        assert after == bodies[-len(after) :]
        client.connection.close()
    finally:
        node.kill()


def durable(client: ProtonClient) -> BlockingReceiver:
    """The reader's link, the same every time."""
    options = [DurableSubscription(), Filter({symbol("weft:offset-spec"): "first"})]
    return client.receiver("stream/telemetry", name="my-link", options=options)
