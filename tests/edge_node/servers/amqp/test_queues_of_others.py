"""A user without any right to the topics of another neither takes, blocks, squats nor sees that user's queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from weft.edge_node.access.authentication import Accounts
from weft.edge_node.access.identity import parse
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import Method, commands

Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue
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
    assert await refused(mallory, Basic.Consume(queue="secret.auto")) == (
        "ACCESS_REFUSED - access rules do not let the user read this queue: add the line `queue read secret.auto`"
    )
    await mallory.ask(Basic.Cancel(consumer_tag="any"), Basic.CancelOk)
    await mallory.close()
    assert await waiting(alice, "secret.auto") == 5


@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True}])
async def test_a_queue_is_not_blocked(alice: RawClient, mallory: RawClient, arguments: dict[str, Any]) -> None:
    """403 access-refused at basic.consume: exclusive; basic.get."""
    await declared(alice, "secret.jobs", arguments=arguments)
    for options in ({"exclusive": True}, {}, {"arguments": {"x-priority": 10}}):
        await refused(mallory, Basic.Consume(queue="secret.jobs", **options))
    await refused(mallory, Basic.Get(queue="secret.jobs"))
    await alice.ask(Basic.Consume(queue="secret.jobs"), Basic.ConsumeOk)
    publish(alice, "secret.jobs", b"job")
    assert (await alice.content(Basic.Deliver)).body == b"job"


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
    for method in (Queue.Declare, Queue.Purge, Queue.Delete, Basic.Get, Basic.Consume, unbind):
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
    await bob.ask(Basic.Consume(queue="secret.jobs"), Basic.ConsumeOk)
    delivery = await bob.content(Basic.Deliver)
    assert delivery.body == b"job"
    bob.send(Basic.Ack(delivery_tag=delivery.method.delivery_tag), channel=1)
    assert "`queue write secret.jobs`" in await refused(bob, Queue.Delete(queue="secret.jobs"))
    assert await waiting(alice, "secret.jobs") == 0


async def test_a_consumer_that_loses_the_right_is_cancelled(
    node: AmqpNode, alice: RawClient, mallory: RawClient
) -> None:
    """basic.cancel, from the node, where the client understands it."""
    rules(node, RULES + "topic read secret/#\n")
    await declared(alice, "secret.jobs", auto_delete=True)
    await mallory.ask(Basic.Consume(queue="secret.jobs", consumer_tag="tag", exclusive=True), Basic.ConsumeOk)
    publish(alice, "secret.jobs", b"job")
    delivery = await mallory.content(Basic.Deliver)
    rules(node, RULES)
    assert (await mallory.expect(Basic.Cancel)).consumer_tag == "tag"
    await alice.ask(Basic.Consume(queue="secret.jobs"), Basic.ConsumeOk)
    again = await alice.content(Basic.Deliver)
    assert (again.body, again.method.redelivered) == (b"job", True)
    mallory.send(Basic.Ack(delivery_tag=delivery.method.delivery_tag), channel=1)  # means nothing any more
    await refused(mallory, Basic.Consume(queue="secret.jobs"))
    alice.send(Basic.Nack(delivery_tag=again.method.delivery_tag, requeue=True), channel=1)
    assert (await alice.content(Basic.Deliver)).body == b"job"


async def test_names_that_the_node_gives_need_no_rule(node: AmqpNode) -> None:
    """Answers come to queues without a name of their own, and by direct reply-to, to who may read their topics."""
    rules(node, "user alice\ntopic read amq/#\nuser bob\ntopic write amq/#\n")
    alice, bob = [await RawClient.connect(node.port, user=user) for user in (b"alice", b"bob")]
    own = (await declared(alice, "", exclusive=True)).queue
    for queue in (own, "amq.rabbitmq.reply-to"):
        await alice.ask(Basic.Consume(queue=queue, no_ack=True), Basic.ConsumeOk)
    publish(bob, own, b"answer")
    assert (await alice.content(Basic.Deliver)).body == b"answer"
    await refused(bob, Basic.Consume(queue=own))
