"""Clients that want to make the node hold, or do, more than their share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import parse
from weft.protocols.amqp.frames import HEADER, HEARTBEAT_FRAME, PROTOCOL_HEADER, ReplyCode, frame
from weft.protocols.amqp.methods import Method, commands, write_method

Basic, Confirm = commands.Basic, commands.Confirm


def begun(channel: int, size: int) -> bytes:
    """Most of a message."""
    head = write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), channel)
    head += frame(HEADER, channel, b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0")
    return head + frame(3, channel, bytes(size - 1))


async def test_messages_that_never_come_whole_take_a_share_of_the_memory(tmp_path: Path) -> None:
    """506 resource-error, and nothing stays charged."""
    async with serving(tmp_path, unfinished_bytes=1_000_000, user_share=0.3) as node:
        client = await RawClient.connect(node.port, user=b"mallory", channels=10)
        for channel in range(1, 11):
            client.send(begun(channel, 50_000))
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        assert node.context.unfinished.used == 0
        other = await RawClient.connect(node.port, user=b"ann", channels=2)
        other.send(begun(1, 50_000))
        await other.ask(Confirm.Select(), Confirm.SelectOk, 2)
        assert node.context.unfinished.used >= 49_999
        await other.close()
        async with asyncio.timeout(PATIENCE_S):
            while node.context.unfinished.used:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_a_frame_that_never_comes_whole_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.servers.amqp.connection.CLOSE_S_MAX", 0.1)
    async with serving(tmp_path, unfinished_bytes=200_000) as node:
        client = await RawClient.connect(node.port)
        client.send(b"\x03\0\x01\0\1\0\0" + bytes(60_000))
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR


async def test_a_channel_has_so_many_gets_that_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """406 precondition-failed; the other channels continue, and nothing stays charged."""
    monkeypatch.setattr("weft.edge_node.servers.amqp.consuming.GETS_MAX", 20)
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port, channels=2)
        await client.ask(commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        await client.ask(Confirm.Select(), Confirm.SelectOk)
        client.publish("q", b"1", exchange="")
        await client.expect(Basic.Ack)
        with gate.held():
            client.send(*[Basic.Get(queue="q", no_ack=True)] * 21, channel=1)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                while node.queues.bounds.unacknowledged.used:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        closed = await client.expect(commands.Channel.Close, 1)
        assert closed.reply_code == ReplyCode.PRECONDITION_FAILED
        client.send(commands.Channel.CloseOk(), channel=1)
        client.send(Basic.Get(queue="q", no_ack=True), channel=2)
        assert (await client.content(Basic.GetOk)).body == b"1"


@pytest.mark.parametrize("data", [b"\x01\0\0\x7f\xff\xff\xff", b"\x01\0\0\0\0\x40\0" + bytes(10)])
async def test_frames_of_strangers_are_short(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.open(node.port)
        client.send(PROTOCOL_HEADER)
        await client.expect(commands.Connection.Start)
        client.send(data)
        assert await client.closed()


@pytest.mark.parametrize("size", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
async def test_a_body_that_cannot_be_taken_is_refused_when_it_is_announced(tmp_path: Path, size: int) -> None:
    """311 content-too-large, and nothing is held for it."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.send(write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1))
        client.send(frame(HEADER, 1, b"\0\x3c\0\0" + size.to_bytes(8, "big") + b"\0\0"))
        assert (await client.channel_error()).reply_code == ReplyCode.CONTENT_TOO_LARGE
        assert node.context.unfinished.used == 0


async def test_a_frame_longer_than_was_agreed_is_refused_by_its_length(tmp_path: Path) -> None:
    """501 frame-error, before its bytes have come."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.send(b"\x03\0\1\xff\xff\xff\xff")
        assert (await client.connection_error()).reply_code == ReplyCode.FRAME_ERROR
        assert node.context.unfinished.used == 0


FLOODS = {
    "heartbeats": HEARTBEAT_FRAME * 60_000,
    "methods": write_method(Basic.Qos(prefetch_count=1), 1) * 30_000,
    "declarations": write_method(commands.Queue.Declare(0, "q", passive=True), 1) * 10_000,
    "empty publishes": write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1) * 0
    + (write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1) + frame(HEADER, 1, b"\0\x3c" + bytes(12))) * 20_000,
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_does_not_hold_up_others(tmp_path: Path, flood: str) -> None:
    """A client's turn ends after some milliseconds, whatever it has sent."""
    async with serving(tmp_path) as node:
        mallory = await RawClient.connect(node.port, user=b"mallory")
        await mallory.ask(commands.Queue.Declare(0, "q"), commands.Queue.DeclareOk)
        ann = await RawClient.connect(node.port, user=b"ann")
        await ann.ask(Confirm.Select(), Confirm.SelectOk)
        mallory.send(FLOODS[flood])
        reading = asyncio.create_task(drain(mallory))
        waits = []
        for _ in range(10):
            stopwatch = Stopwatch()
            ann.publish("plant.1.a", b"x")
            await ann.expect(Basic.Ack)
            waits.append(stopwatch.seconds())
        assert sorted(waits)[5] < 0.5
        reading.cancel()


async def drain(client: RawClient) -> None:
    while await client.reader.read(1 << 16):
        pass


async def test_publishers_wait_while_too_much_waits_for_the_disk(tmp_path: Path) -> None:
    """Back-pressure: one turn of reads beyond the bound, and no more."""
    from tests.edge_node.servers.mqtt.harness import SyncGate

    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate, pending_bytes=200_000) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Confirm.Select(), Confirm.SelectOk)
        with gate.held():
            sent = asyncio.create_task(flood(client, 400))
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            await asyncio.sleep(0.2)
            assert node.log.pending_bytes < 2 << 20
            assert not sent.done()
        await sent
        tag = 0
        while tag < 400:
            ack: Any = await client.expect(Basic.Ack)
            tag = ack.delivery_tag


async def flood(client: RawClient, count: int) -> None:
    for _ in range(count):
        client.publish("plant.1.a", bytes(60_000))
        await client.writer.drain()


async def test_counters_tell_of_channels(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, channels=3)
        assert node.counters.amqp_channels == 3
        await client.close()
        await gone(node)
        assert node.counters.amqp_channels == 0
        assert node.amqp._shared.channels.used == 0


async def gone(node: AmqpNode) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while node.amqp._shared.clients:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# --- A user without any right to the topics of another neither takes, blocks, squats nor sees that user's queues


QueuesOfOthersBasic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue
RULES = """\
user alice
topic readwrite secret/#
user mallory
topic readwrite public/#
"""
NOTIFIED = {"consumer_cancel_notify": True}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AmqpNode]:
    async with serving(tmp_path) as serves:
        serves.authenticator.accounts = Accounts(acl=parse(RULES, "acl"))
        serves.authenticator.accounts.watch(serves.queues.revocation.begin)
        yield serves


@pytest.fixture
async def alice(node: AmqpNode) -> RawClient:
    return await RawClient.connect(node.port, user=b"alice")


@pytest.fixture
async def mallory(node: AmqpNode) -> RawClient:
    return await RawClient.connect(node.port, user=b"mallory", capabilities=NOTIFIED)


def rules(node: AmqpNode, text: str) -> None:
    node.authenticator.accounts.replace(acl=parse(text, "acl"))


async def refused(client: RawClient, method: Method) -> str:
    """The sentence with which access rules close the channel; it is open again."""
    client.send(method, channel=1)
    error: Any = await client.channel_error()
    assert (error.reply_code, error.class_id << 16 | error.method_id) == (ReplyCode.ACCESS_REFUSED, method.index)
    return str(error.reply_text)


async def declared(client: RawClient, name: str, **options: Any) -> Any:
    return await client.ask(Queue.Declare(queue=name, **options), Queue.DeclareOk)


async def waiting(client: RawClient, name: str) -> int:
    return int((await declared(client, name, passive=True)).message_count)


def publish(client: RawClient, key: str, *bodies: bytes, exchange: str = "") -> None:
    for body in bodies:
        client.publish(key, body, exchange=exchange)


async def test_a_queue_that_goes_with_its_last_consumer_is_not_destroyed(alice: RawClient, mallory: RawClient) -> None:
    """403 access-refused at basic.consume."""
    await declared(alice, "secret.auto", auto_delete=True)
    publish(alice, "secret.auto", *[b"x"] * 5)
    assert await waiting(alice, "secret.auto") == 5
    assert await refused(mallory, QueuesOfOthersBasic.Consume(queue="secret.auto")) == (
        "ACCESS_REFUSED - access rules do not let the user read this queue: add the line `queue read secret.auto`"
    )
    await mallory.ask(QueuesOfOthersBasic.Cancel(consumer_tag="any"), QueuesOfOthersBasic.CancelOk)
    await mallory.close()
    assert await waiting(alice, "secret.auto") == 5


@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True}])
async def test_a_queue_is_not_blocked(alice: RawClient, mallory: RawClient, arguments: dict[str, Any]) -> None:
    """403 access-refused at basic.consume: exclusive; basic.get."""
    await declared(alice, "secret.jobs", arguments=arguments)
    for options in ({"exclusive": True}, {}, {"arguments": {"x-priority": 10}}):
        await refused(mallory, QueuesOfOthersBasic.Consume(queue="secret.jobs", **options))
    await refused(mallory, QueuesOfOthersBasic.Get(queue="secret.jobs"))
    await alice.ask(QueuesOfOthersBasic.Consume(queue="secret.jobs"), QueuesOfOthersBasic.ConsumeOk)
    publish(alice, "secret.jobs", b"job")
    assert (await alice.content(QueuesOfOthersBasic.Deliver)).body == b"job"


async def test_a_name_is_not_squatted(alice: RawClient, mallory: RawClient) -> None:
    """403 access-refused at queue.declare; exchange.declare; queue.purge; queue.delete; exchange.delete."""
    for options in ({}, {"durable": True}, {"exclusive": True}, {"auto_delete": True}):
        assert "`queue declare secret.next`" in await refused(mallory, Queue.Declare(queue="secret.next", **options))
    exchange = Exchange.Declare(exchange="secret.x", exchange_type="fanout")
    assert "`queue declare secret.x`" in await refused(mallory, exchange)
    await declared(alice, "secret.next", durable=True)
    await alice.ask(exchange, Exchange.DeclareOk)
    publish(alice, "secret.next", b"kept")
    for method in (Queue.Purge(queue="secret.next"), Queue.Delete(queue="secret.next")):
        assert "`queue write secret.next`" in await refused(mallory, method)
    await refused(mallory, Exchange.Delete(exchange="secret.x"))
    assert await waiting(alice, "secret.next") == 1


async def test_messages_are_not_counted(alice: RawClient, mallory: RawClient) -> None:
    """403 access-refused at queue.declare: passive; queue.bind; exchange.bind."""
    await declared(alice, "secret.jobs")
    publish(alice, "secret.jobs", b"x")
    unbind = partial(Queue.Unbind, exchange="amq.topic", routing_key="public.a")
    for method in (
        Queue.Declare,
        Queue.Purge,
        Queue.Delete,
        QueuesOfOthersBasic.Get,
        QueuesOfOthersBasic.Consume,
        unbind,
    ):
        for options in ({"passive": True}, {}) if method is Queue.Declare else ({},):
            seen = await refused(mallory, method(queue="secret.jobs", **options))
            assert await refused(mallory, method(queue="secret.none", **options)) == seen.replace("jobs", "none")
    await alice.ask(Exchange.Declare(exchange="secret.fan", exchange_type="fanout"), Exchange.DeclareOk)
    await declared(mallory, "public.q")
    await mallory.ask(Exchange.Declare(exchange="public.m", exchange_type="fanout"), Exchange.DeclareOk)
    for method in (
        Queue.Bind(queue="public.q", exchange="secret.fan"),
        Exchange.Bind(destination="public.m", source="secret.fan"),
        Exchange.Bind(destination="secret.fan", source="public.m"),
        Queue.Bind(queue="secret.jobs", exchange="public.m"),
    ):
        await refused(mallory, method)
    publish(alice, "secret.x", b"x", exchange="secret.fan")
    assert await waiting(alice, "secret.jobs") == 1
    assert await waiting(mallory, "public.q") == 0


async def test_a_worker_with_a_rule_for_the_queue_does_its_work(node: AmqpNode, alice: RawClient) -> None:
    rules(node, RULES + "user bob\nqueue read secret.#\ntopic read secret/jobs\n")
    await declared(alice, "secret.jobs", durable=True)
    publish(alice, "secret.jobs", b"job")
    await declared(alice, "secret.jobs", durable=True)  # answered after what was published before
    bob = await RawClient.connect(node.port, user=b"bob")
    assert (await declared(bob, "secret.jobs", durable=True)).message_count == 1
    await bob.ask(QueuesOfOthersBasic.Consume(queue="secret.jobs"), QueuesOfOthersBasic.ConsumeOk)
    delivery = await bob.content(QueuesOfOthersBasic.Deliver)
    assert delivery.body == b"job"
    bob.send(QueuesOfOthersBasic.Ack(delivery_tag=delivery.method.delivery_tag), channel=1)
    assert "`queue write secret.jobs`" in await refused(bob, Queue.Delete(queue="secret.jobs"))
    assert await waiting(alice, "secret.jobs") == 0


async def test_a_consumer_that_loses_the_right_is_cancelled(
    node: AmqpNode, alice: RawClient, mallory: RawClient
) -> None:
    """basic.cancel, from the node, where the client understands it."""
    rules(node, RULES + "topic read secret/#\n")
    await declared(alice, "secret.jobs", auto_delete=True)
    await mallory.ask(
        QueuesOfOthersBasic.Consume(queue="secret.jobs", consumer_tag="tag", exclusive=True),
        QueuesOfOthersBasic.ConsumeOk,
    )
    publish(alice, "secret.jobs", b"job")
    delivery = await mallory.content(QueuesOfOthersBasic.Deliver)
    rules(node, RULES)
    assert (await mallory.expect(QueuesOfOthersBasic.Cancel)).consumer_tag == "tag"
    await alice.ask(QueuesOfOthersBasic.Consume(queue="secret.jobs"), QueuesOfOthersBasic.ConsumeOk)
    again = await alice.content(QueuesOfOthersBasic.Deliver)
    assert (again.body, again.method.redelivered) == (b"job", True)
    mallory.send(
        QueuesOfOthersBasic.Ack(delivery_tag=delivery.method.delivery_tag), channel=1
    )  # means nothing any more
    await refused(mallory, QueuesOfOthersBasic.Consume(queue="secret.jobs"))
    alice.send(QueuesOfOthersBasic.Nack(delivery_tag=again.method.delivery_tag, requeue=True), channel=1)
    assert (await alice.content(QueuesOfOthersBasic.Deliver)).body == b"job"


async def test_names_that_the_node_gives_need_no_rule(node: AmqpNode) -> None:
    """Answers come to queues without a name of their own, and by direct reply-to, to who may read their topics."""
    rules(node, "user alice\ntopic read amq/#\nuser bob\ntopic write amq/#\n")
    alice, bob = [await RawClient.connect(node.port, user=user) for user in (b"alice", b"bob")]
    own = (await declared(alice, "", exclusive=True)).queue
    for queue in (own, "amq.rabbitmq.reply-to"):
        await alice.ask(QueuesOfOthersBasic.Consume(queue=queue, no_ack=True), QueuesOfOthersBasic.ConsumeOk)
    publish(bob, own, b"answer")
    assert (await alice.content(QueuesOfOthersBasic.Deliver)).body == b"answer"
    await refused(bob, QueuesOfOthersBasic.Consume(queue=own))
