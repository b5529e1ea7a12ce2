"""Class basic, as those see it who read queues (AMQP 0-9-1 section 1.8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, Returned, serving
from tests.support.waiting import PATIENCE_S
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import commands

Basic, Channel, Queue, Tx = commands.Basic, commands.Channel, commands.Queue, commands.Tx


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AmqpNode]:
    async with serving(tmp_path) as serves:
        yield serves


@pytest.fixture
async def client(node: AmqpNode) -> RawClient:
    client = await RawClient.connect(node.port, channels=2)
    await client.ask(Queue.Declare(0, "q", durable=True), Queue.DeclareOk)
    return client


def fill(client: RawClient, count: int) -> None:
    for n in range(count):
        client.publish("q", b"%d" % n, exchange="")


async def consuming(client: RawClient, tag: str = "tag", channel: int = 1, **options: Any) -> None:
    await client.ask(Basic.Consume(0, "q", tag, **options), Basic.ConsumeOk, channel)


async def deliveries(client: RawClient, count: int) -> list[Returned]:
    return [await client.content(Basic.Deliver) for _ in range(count)]


async def left(client: RawClient, channel: int = 2) -> int:
    found: Any = await client.ask(Queue.Declare(0, "q", passive=True), Queue.DeclareOk, channel)
    return int(found.message_count)


async def test_a_delivery_says_where_it_comes_from(client: RawClient) -> None:
    """basic.consume: queue, consumer-tag; basic.consume-ok: consumer-tag; basic.deliver: consumer-tag, delivery-tag,
    redelivered, exchange, routing-key."""
    properties = pika.BasicProperties(content_type="text/plain", headers={"n": 1}, delivery_mode=2, priority=3)
    data = b"".join(properties.encode())
    await consuming(client, "mine")
    client.publish("q", b"body", exchange="", properties=data)
    (found,) = await deliveries(client, 1)
    assert dict(found.method) == {
        "consumer_tag": "mine",
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
    }
    again = pika.BasicProperties()
    again.decode(found.properties)
    assert (again, found.body) == (properties, b"body")


async def test_a_consumer_without_a_tag_gets_one(client: RawClient) -> None:
    """basic.consume: consumer-tag; 530 not-allowed for one that is in use."""
    answer: Any = await client.ask(Basic.Consume(0, "q"), Basic.ConsumeOk)
    assert answer.consumer_tag.startswith("amq.ctag-")
    client.send(Basic.Consume(0, "q", answer.consumer_tag), channel=1)
    assert (await client.connection_error()).reply_code == ReplyCode.NOT_ALLOWED


async def test_long_messages_are_delivered_in_frames_that_the_client_takes(node: AmqpNode, client: RawClient) -> None:
    """connection.tune-ok: frame-max."""
    small = await RawClient.connect(node.port, frame_max=4096)
    await small.ask(Basic.Consume(0, "q", "tag"), Basic.ConsumeOk)
    body = bytes(range(256)) * 64
    client.publish("q", body, exchange="")
    await small.expect(Basic.Deliver)
    sizes = [len(frame.payload) + 8 for _ in range(6) if (frame := await small.frame()) is not None]
    assert max(sizes) == 4096


async def test_prefetch_bounds_what_is_not_acknowledged(client: RawClient) -> None:
    """basic.qos: prefetch-count; basic.qos-ok; basic.ack: delivery-tag."""
    await client.ask(Basic.Qos(prefetch_count=2), Basic.QosOk)
    await consuming(client)
    fill(client, 5)
    first = await deliveries(client, 2)
    assert await client.silent()
    client.send(Basic.Ack(first[0].method.delivery_tag), channel=1)
    (third,) = await deliveries(client, 1)
    assert third.body == b"2"
    assert await client.silent()


async def test_a_channel_may_have_one_prefetch_for_all_its_consumers(client: RawClient) -> None:
    """basic.qos: global, prefetch-size; 540 not-implemented for a prefetch-size."""
    await client.ask(Basic.Qos(prefetch_count=3, global_=True), Basic.QosOk)
    await consuming(client, "a")
    await consuming(client, "b")
    fill(client, 10)
    await deliveries(client, 3)
    assert await client.silent()
    await client.ask(Basic.Qos(prefetch_count=5, global_=True), Basic.QosOk)
    await deliveries(client, 2)
    assert await client.silent()
    client.send(Basic.Qos(prefetch_size=1000), channel=1)
    assert (await client.connection_error()).reply_code == ReplyCode.NOT_IMPLEMENTED


async def test_acknowledging_many_at_once(client: RawClient) -> None:
    """basic.ack: delivery-tag, multiple; 0 stands for all."""
    await consuming(client)
    fill(client, 6)
    found = await deliveries(client, 6)
    client.send(Basic.Ack(found[2].method.delivery_tag, True), channel=1)
    client.send(Basic.Ack(0, True), channel=1)
    await client.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk)
    assert await left(client) == 0


async def test_what_was_not_acknowledged_comes_again(client: RawClient) -> None:
    """basic.deliver: redelivered; channel.close gives back what is not acknowledged."""
    await consuming(client)
    fill(client, 3)
    found = await deliveries(client, 3)
    client.send(Basic.Ack(found[0].method.delivery_tag), channel=1)
    await client.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk)
    await consuming(client, channel=2)
    again = await deliveries(client, 2)
    assert [(each.body, each.method.redelivered) for each in again] == [(b"1", True), (b"2", True)]


@pytest.mark.parametrize(
    "method", [Basic.Ack(7), Basic.Nack(7), Basic.Reject(7), Basic.Ack(7, True), Basic.Ack(0)], ids=lambda m: m.name
)
async def test_an_unknown_delivery_tag_ends_the_channel(client: RawClient, method: Any) -> None:
    """406 precondition-failed at basic.ack, basic.nack and basic.reject."""
    await consuming(client)
    fill(client, 1)
    await deliveries(client, 1)
    client.send(method, channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_a_tag_counts_once_and_on_its_own_channel(client: RawClient) -> None:
    await consuming(client)
    fill(client, 2)
    found = await deliveries(client, 2)
    tag = found[0].method.delivery_tag
    client.send(Basic.Ack(tag), channel=2)
    assert (await client.channel_error(2)).reply_code == ReplyCode.PRECONDITION_FAILED
    client.send(Basic.Ack(tag), Basic.Ack(tag), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_rejecting(client: RawClient) -> None:
    """basic.reject: delivery-tag, requeue; basic.nack: delivery-tag, multiple, requeue."""
    await client.ask(Queue.Declare(0, "dead"), Queue.DeclareOk)
    await client.ask(
        Queue.Declare(0, "w", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
        Queue.DeclareOk,
    )
    for n in range(4):
        client.publish("w", b"%d" % n, exchange="")
    await client.ask(Basic.Qos(prefetch_count=4), Basic.QosOk)
    await client.ask(Basic.Consume(0, "w", "tag"), Basic.ConsumeOk)
    found = await deliveries(client, 4)
    client.send(Basic.Reject(found[0].method.delivery_tag, requeue=True), channel=1)
    (again,) = await deliveries(client, 1)
    assert (again.body, again.method.redelivered) == (b"0", True)
    client.send(Basic.Reject(again.method.delivery_tag, requeue=False), channel=1)
    client.send(Basic.Nack(found[3].method.delivery_tag, True, False), channel=1)
    await client.ask(Basic.Consume(0, "dead", "rest", no_ack=True), Basic.ConsumeOk, 2)
    dead = await deliveries(client, 4)
    assert sorted(each.body for each in dead) == [b"0", b"1", b"2", b"3"]
    properties = pika.BasicProperties()
    properties.decode(dead[0].properties)
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("w", "rejected", 1)


async def test_recovering(client: RawClient) -> None:
    """basic.recover: requeue; basic.recover-ok; basic.recover-async: requeue."""
    await consuming(client)
    fill(client, 2)
    await deliveries(client, 2)
    await client.ask(Basic.Recover(requeue=True), Basic.RecoverOk)
    again = await deliveries(client, 2)
    assert [(each.body, each.method.redelivered) for each in again] == [(b"0", True), (b"1", True)]
    with pytest.warns(DeprecationWarning, match="deprecated"):
        client.send(Basic.RecoverAsync(requeue=True), channel=1)
    again = await deliveries(client, 2)
    assert [each.method.delivery_tag for each in again] == [5, 6]


async def test_a_consumer_that_acknowledges_nothing(client: RawClient) -> None:
    """basic.consume: no-ack; basic.get: no-ack."""
    await consuming(client, no_ack=True)
    fill(client, 3)
    await deliveries(client, 3)
    client.send(Basic.Ack(1), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    assert await left(client) == 0


async def test_an_exclusive_consumer_is_alone(client: RawClient) -> None:
    """basic.consume: exclusive; 403 access-refused."""
    await consuming(client, exclusive=True)
    client.send(Basic.Consume(0, "q", "other"), channel=2)
    assert (await client.channel_error(2)).reply_code == ReplyCode.ACCESS_REFUSED
    await client.ask(Basic.Cancel("tag"), Basic.CancelOk)
    await consuming(client, "other", 2)
    client.send(Basic.Consume(0, "q", "third", exclusive=True), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.ACCESS_REFUSED


async def test_consumers_with_a_higher_priority_come_first(client: RawClient) -> None:
    """basic.consume: arguments (`x-priority`); 406 precondition-failed for one that is no integer."""
    await consuming(client, "low")
    await consuming(client, "high", 2, arguments={"x-priority": 5})
    fill(client, 3)
    found = await deliveries(client, 3)
    assert {each.method.consumer_tag for each in found} == {"high"}
    client.send(Basic.Consume(0, "q", "odd", arguments={"x-priority": "first"}), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_no_local_is_passed_over(client: RawClient) -> None:
    """basic.consume: no-local. RabbitMQ passes it over as well: clients set it and expect that."""
    await consuming(client, no_local=True)
    fill(client, 1)
    await deliveries(client, 1)


async def test_cancelling(client: RawClient) -> None:
    """basic.cancel: consumer-tag; basic.cancel-ok: consumer-tag; what was delivered may still be acknowledged."""
    await consuming(client)
    fill(client, 1)
    (found,) = await deliveries(client, 1)
    assert (await client.ask(Basic.Cancel("tag"), Basic.CancelOk)).consumer_tag == "tag"
    assert (await client.ask(Basic.Cancel("unknown"), Basic.CancelOk)).consumer_tag == "unknown"
    client.send(Basic.Ack(found.method.delivery_tag), channel=1)
    fill(client, 1)
    assert await left(client, 1) == 1


async def test_who_wants_to_know_is_told_that_a_queue_is_gone(node: AmqpNode, client: RawClient) -> None:
    """basic.cancel from the node: consumer-tag, nowait; its answer basic.cancel-ok is passed over."""
    aware = await RawClient.connect(node.port, capabilities={"consumer_cancel_notify": True})
    await aware.ask(Basic.Consume(0, "q", "mine"), Basic.ConsumeOk)
    await consuming(client)
    await client.ask(Queue.Delete(0, "q"), Queue.DeleteOk, 2)
    cancelled = await aware.expect(Basic.Cancel)
    assert (cancelled.consumer_tag, cancelled.nowait) == ("mine", True)
    aware.send(Basic.CancelOk("mine"), channel=1)
    await aware.ask(Queue.Declare(0, "q"), Queue.DeclareOk)
    assert await client.silent()


async def test_who_deletes_a_queue_is_answered_before_its_consumers_are_cancelled(node: AmqpNode) -> None:
    """basic.cancel from the node, to the channel that deletes the queue: RabbitMQ's order, which Kombu relies on."""
    aware = await RawClient.connect(node.port, capabilities={"consumer_cancel_notify": True})
    for delete in (Queue.Delete(0, "q"), Queue.Delete(0, "q", False, False, True)):
        await aware.ask(Queue.Declare(0, "q"), Queue.DeclareOk)
        await consuming(aware, "mine")
        aware.send(delete, channel=1)
        if not delete.nowait:
            await aware.expect(Queue.DeleteOk)
        assert (await aware.expect(Basic.Cancel)).consumer_tag == "mine"


async def test_getting_one_by_one(client: RawClient) -> None:
    """basic.get: queue, no-ack; basic.get-ok: delivery-tag, redelivered, exchange, routing-key, message-count;
    basic.get-empty."""
    await client.ask(Basic.Get(0, "q"), Basic.GetEmpty)
    fill(client, 2)
    client.send(Basic.Get(0, "q"), channel=1)
    found = await client.content(Basic.GetOk)
    assert dict(found.method) == {
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 1,
    }
    assert found.body == b"0"
    client.send(Basic.Nack(1, False, True), Basic.Get(0, "q", True), channel=1)
    found = await client.content(Basic.GetOk)
    assert (found.method.delivery_tag, found.method.redelivered, found.body) == (2, True, b"0")
    client.send(Basic.Get(0, "other"), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.NOT_FOUND


async def test_flow_pauses_deliveries(client: RawClient) -> None:
    """channel.flow: active; channel.flow-ok: active."""
    await consuming(client, no_ack=True)
    assert (await client.ask(Channel.Flow(False), Channel.FlowOk)).active is False
    fill(client, 2)
    assert await client.silent()
    client.send(Channel.Flow(True), channel=1)
    assert (await client.expect(Channel.FlowOk)).active is True
    await deliveries(client, 2)


async def test_acknowledgements_count_when_the_transaction_is_committed(client: RawClient) -> None:
    """tx.commit and tx.rollback of acknowledgements, in one commit with publishes; rolled back, they are open again."""
    await consuming(client)
    fill(client, 2)
    await deliveries(client, 2)
    await client.ask(Tx.Select(), Tx.SelectOk)
    client.send(Basic.Ack(1), channel=1)
    await client.ask(Tx.Rollback(), Tx.RollbackOk)
    client.send(Basic.Ack(1), channel=1)
    await client.ask(Tx.Commit(), Tx.CommitOk)
    client.send(Basic.Ack(2), channel=1)
    await client.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk)
    assert await left(client) == 1


async def test_a_client_that_reads_nothing_is_sent_no_more_and_ends(node: AmqpNode, client: RawClient) -> None:
    """What waits for a slow client's socket is bounded, and so is the time that it may take."""
    deaf = await RawClient.connect(node.port, receive_bytes=4096)
    await deaf.ask(Basic.Consume(0, "q", "deaf", no_ack=True), Basic.ConsumeOk)
    deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        client.publish("q", bytes(100_000), exchange="")
    async with asyncio.timeout(PATIENCE_S):
        while not await left(client):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        await deaf.content(Basic.Deliver)


async def test_access_rules_hold_for_deliveries(node: AmqpNode, client: RawClient) -> None:
    await client.ask(Queue.Bind(0, "q", "amq.topic", "#"), Queue.BindOk)
    node.authenticator.may = lambda what, topic: what != "read" or not topic.startswith("secret")
    ann = await RawClient.connect(node.port, user=b"ann")
    await ann.ask(Basic.Consume(0, "q", "tag", no_ack=True), Basic.ConsumeOk)
    client.publish("secret.a", b"not for ann")
    client.publish("open.a", b"for ann")
    found = await ann.content(Basic.Deliver)
    assert found.body == b"for ann"
