"""Clients that send: what is stored, and when it is settled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.edge_node.servers.amqp1.harness import (
    AtMostOnce,
    BlockingReceiver,
    ConnectionException,
    Delivery,
    DurableSubscription,
    Filter,
    LinkDetached,
    Message,
    ProtonClient,
    SendException,
    SettlesSecond,
    amqp,
    in_thread,
    symbol,
)
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.processes import Node
from tests.support.waiting import PATIENCE_S
from weft.edge_node.servers.amqp1.incoming import CREDIT
from weft.protocols.batch import Flag


async def test_a_message_is_stored_with_its_topic_and_accepted(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        await in_thread(client.send, "plant/7/temperature", Message(body=b"21.5", inferred=True))
        (record,) = await node.node.stored()
        assert (record.key, record.payload) == (b"plant/7/temperature", b"21.5")
        await client.close()


async def test_messages_keep_their_own_headers_among_many_that_differ_in_payload_alone(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        subjects = [*"aaaa", *"bab", *"cdefcdefaa", *"bbb"]
        messages = [
            Message(body=b"%d" % number, inferred=True, subject=subject, properties={"unit": subject * 2})
            for number, subject in enumerate(subjects)
        ]
        await in_thread(client.send, "plant/7/x", *messages)
        stored = [(record.payload, dict(record.headers)) for record in await node.node.stored()]
        assert stored == [
            (b"%d" % number, {"unit": subject * 2, "weft.subject": subject}) for number, subject in enumerate(subjects)
        ]
        await client.close()


async def test_each_message_has_its_own_time_to_live(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        sender = await in_thread(client.sender, "plant/7/x")
        for _ in range(4):
            await in_thread(sender.send, Message(body=b"x", inferred=True, ttl=60))
        expire = [dict(record.headers)["weft.expires"] for record in await node.node.stored()]
        assert len(set(expire)) == 4
        await client.close()


async def test_it_is_accepted_after_the_sync_and_not_before(tmp_path: Path) -> None:
    gate = SyncGate()
    async with amqp(tmp_path, filesystem=gate) as node:
        client = await node.client()
        sender = await in_thread(client.sender, "plant/7/temperature")
        with gate.held():
            sending = asyncio.ensure_future(in_thread(sender.send, Message(body=b"x", inferred=True)))
            await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            await asyncio.sleep(0.05)
            assert not sending.done()
        await sending
        await client.close()


async def test_many_are_in_flight_at_a_time(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()

        def send() -> None:
            sender = client.sender("plant/7/temperature")
            deliveries = [sender.link.send(Message(body=b"%d" % i, inferred=True)) for i in range(1000)]
            client.connection.wait(lambda: all(each.settled for each in deliveries), timeout=PATIENCE_S)
            assert {each.remote_state for each in deliveries} == {deliveries[0].ACCEPTED}

        await in_thread(send)
        assert [record.payload for record in await node.node.stored()] == [b"%d" % i for i in range(1000)]
        await client.close()


async def test_settled_messages_are_of_qos_0(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        sender = await in_thread(client.sender, "plant/7/temperature", options=AtMostOnce())
        await in_thread(sender.send, Message(body=b"x", inferred=True))
        await in_thread(client.send, "plant/7/temperature", Message(body=b"y", inferred=True))
        assert [bool(record.flags & Flag.PUBLISHED_QOS0) for record in await node.node.stored()] == [True, False]
        await client.close()


async def test_a_link_may_be_settled_second(tmp_path: Path) -> None:
    """What was stored is accepted, and not settled before the client has: until then it takes up credit."""
    async with amqp(tmp_path, message_bytes=1000) as node:
        client = await node.client()

        def send() -> None:
            sender = client.sender("plant/7/temperature", options=SettlesSecond())
            link = sender.link
            assert link.remote_rcv_settle_mode == link.RCV_SECOND
            client.connection.wait(lambda: link.credit == CREDIT, timeout=PATIENCE_S)
            sent = [link.send(Message(body=b"%d" % i, inferred=True)) for i in range(CREDIT - 1)]
            sent.append(link.send(Message(body=bytes(2000), inferred=True)))
            client.connection.wait(lambda: all(each.remote_state for each in sent), timeout=PATIENCE_S)
            assert [each.remote_state for each in sent] == [sent[0].ACCEPTED] * (CREDIT - 1) + [sent[0].REJECTED]
            assert not any(each.settled for each in sent)
            assert link.credit == 0
            for each in sent:
                each.settle()
            client.connection.wait(lambda: link.credit == CREDIT, timeout=PATIENCE_S)
            more = link.send(Message(body=b"one more", inferred=True))
            client.connection.wait(lambda: more.remote_state == more.ACCEPTED, timeout=PATIENCE_S)

        await in_thread(send)
        assert len(await node.node.stored()) == CREDIT
        await client.close()


async def test_a_stream_takes_messages_of_any_topic(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        messages = [
            Message(body=b"1", inferred=True, subject="a/b"),
            Message(body=b"2", inferred=True, address="c/d"),
            Message(body=b"3", inferred=True),
        ]
        await in_thread(client.send, "stream/telemetry", *messages)
        assert [(record.key, record.payload) for record in await node.node.stored()] == [
            (b"a/b", b"1"),
            (b"c/d", b"2"),
            (b"telemetry", b"3"),
        ]
        await client.close()


async def test_each_message_may_say_where_it_goes(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        client = await node.client()
        await in_thread(client.send, None, Message(body=b"1", inferred=True, address="topic/plant/1/x"))
        await in_thread(
            client.send, None, Message(body=b"2", inferred=True, address="stream/telemetry", subject="plant/2/x")
        )
        assert [(record.key, dict(record.headers)) for record in await node.node.stored()] == [
            (b"plant/1/x", {}),
            (b"plant/2/x", {"weft.subject": "plant/2/x"}),
        ]
        with pytest.raises(SendException):
            await in_thread(client.send, None, Message(body=b"2", inferred=True))
        await client.close()


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("stream/nothing", "amqp:not-found"),
        ("stream/weft-sessions", "amqp:not-found"),
        ("plant/+/x", "amqp:invalid-field"),
        ("forbidden/x", "amqp:unauthorized-access"),
        ("x" * 2000, "amqp:not-found"),
    ],
)
async def test_a_link_that_cannot_be_is_refused_with_a_reason(tmp_path: Path, address: str, condition: str) -> None:
    async with amqp(tmp_path) as node:
        node.node.authenticator.may = lambda what, topic: not topic.startswith("forbidden")
        client = await node.client()
        with pytest.raises(LinkDetached) as refused:
            await in_thread(client.send, address, Message(body=b"x"))
        assert refused.value.condition == condition
        await in_thread(client.send, "plant/1/x", Message(body=b"x"))  # the connection continues
        await client.close()


async def test_a_message_that_may_not_be_published_is_rejected(tmp_path: Path) -> None:
    async with amqp(tmp_path) as node:
        node.node.authenticator.may = lambda what, topic: not topic.startswith("forbidden")
        client = await node.client()

        def send() -> None:
            sender = client.sender("stream/telemetry")
            delivery = sender.link.send(Message(body=b"x", subject="forbidden/x"))
            client.connection.wait(lambda: delivery.settled, timeout=PATIENCE_S)
            assert delivery.remote_state == delivery.REJECTED
            assert delivery.remote.condition.name == "amqp:unauthorized-access"
            sender.send(Message(body=b"y", subject="allowed/x"))

        await in_thread(send)
        assert [record.key for record in await node.node.stored()] == [b"allowed/x"]
        await client.close()


async def test_a_message_of_many_transfers_is_one_record(tmp_path: Path) -> None:
    body = bytes(range(256)) * 3000
    async with amqp(tmp_path) as node:
        client = await node.client()
        await in_thread(client.send, "plant/1/x", Message(body=body, inferred=True))
        (record,) = await node.node.stored()
        assert record.payload == body
        await client.close()


async def test_a_message_that_is_too_long_closes_its_link(tmp_path: Path) -> None:
    async with amqp(tmp_path, message_bytes=100_000) as node:
        client = await node.client()
        with pytest.raises((LinkDetached, SendException)) as refused:
            await in_thread(client.send, "plant/1/x", Message(body=bytes(300_000), inferred=True))
        if isinstance(refused.value, LinkDetached):
            assert refused.value.condition == "amqp:link:message-size-exceeded"
        assert await node.node.stored() == []
        await client.close()


async def test_what_is_stored_apart_is_answered_apart(tmp_path: Path) -> None:
    """Of one read: else a refusal of the later messages would settle those that were stored before, and the answer for
    these would accept later ones that are not on disk."""
    async with amqp(tmp_path) as node:
        client = await node.client()
        connection: Any = next(iter(node.parts.connections))
        sending, batch = connection._links.sending, node.node.context.ingest.batch
        first = sending.run()
        assert sending.run() is first
        batch.answer(first, b"")
        batch.store()
        assert sending.run() is not first
        await client.close()


# --- A node that is killed while clients of AMQP 1.0 send and receive: nothing that it accepted is lost


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


@pytest.mark.processes
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


@pytest.mark.processes
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
