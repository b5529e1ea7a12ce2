"""Classes exchange and queue, method by method (AMQP 0-9-1 sections 1.6 and 1.7, and RabbitMQ's exchange bindings)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from weft.edge_node.servers.amqp.client import AmqpSettings
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import Method, commands

ANY_OF: Any = {"x-match": "any", "a": 1, "b": True}
Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AmqpNode]:
    async with serving(tmp_path) as serves:
        yield serves


@pytest.fixture
async def client(node: AmqpNode) -> RawClient:
    return await RawClient.connect(node.port)


async def declared(client: RawClient, queue: str = "", **options: Any) -> Any:
    return await client.ask(Queue.Declare(0, queue, **options), Queue.DeclareOk)


async def bound(client: RawClient, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
    await client.ask(Queue.Bind(0, queue, exchange, key, arguments=arguments), Queue.BindOk)


async def got(client: RawClient, queue: str) -> bytes | None:
    """The body of the next message of a queue, None where there is none. Publishes of the channel come first."""
    client.send(Basic.Get(0, queue, True), channel=1)
    frame = await client.frame()
    assert frame is not None
    if frame.payload.startswith(Basic.GetEmpty.index.to_bytes(4, "big")):
        return None
    header = await client.frame()
    assert header is not None
    body = b""
    while len(body) < int.from_bytes(header.payload[4:12], "big"):
        piece = await client.frame()
        assert piece is not None
        body += piece.payload
    return body


async def refused(client: RawClient, method: Method, channel: int = 1) -> int:
    client.send(method, channel=channel)
    error: Any = await client.channel_error(channel)
    assert (error.class_id << 16 | error.method_id) == method.index
    return int(error.reply_code)


# --- class exchange


async def test_exchanges_of_every_type(client: RawClient) -> None:
    """exchange.declare: exchange, type; exchange.declare-ok; exchange.delete: exchange; exchange.delete-ok."""
    for kind in ("direct", "fanout", "topic", "headers"):
        await client.ask(Exchange.Declare(0, "x", kind), Exchange.DeclareOk)
        await declared(client, "q")
        await bound(client, "q", "x", "a.*" if kind == "topic" else "a.b", **({"n": 1} if kind == "headers" else {}))
        table = b"\x20\x00\x00\x00\x00\x07\x01nI\0\0\0\1"
        client.publish("a.b", b"yes", exchange="x", properties=table)
        client.publish("c.d", b"no", exchange="x")
        assert await got(client, "q") == b"yes"
        assert await got(client, "q") == (b"no" if kind == "fanout" else None)
        await client.ask(Exchange.Delete(0, "x"), Exchange.DeleteOk)
        await client.ask(Queue.Delete(0, "q"), Queue.DeleteOk)
    assert await refused(client, Exchange.Declare(0, "x", "direct", passive=True)) == ReplyCode.NOT_FOUND


async def test_an_unknown_type_ends_the_connection(client: RawClient) -> None:
    """503 command-invalid."""
    client.send(Exchange.Declare(0, "x", "x-odd"), channel=1)
    assert (await client.connection_error()).reply_code == ReplyCode.COMMAND_INVALID


async def test_exchanges_that_are_always_there(client: RawClient) -> None:
    """exchange.declare: passive, exchange; names that begin with `amq.` are reserved: 403 access-refused."""
    for name in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        await client.ask(Exchange.Declare(0, name, passive=True), Exchange.DeclareOk)
        assert await refused(client, Exchange.Delete(0, name)) == ReplyCode.ACCESS_REFUSED
    for method in (
        Exchange.Declare(0, "amq.mine", "direct"),
        Exchange.Declare(0, "", "direct", durable=True),
        Exchange.Declare(0, "", "x-odd"),
        Exchange.Declare(0, "", passive=True),
    ):
        assert await refused(client, method) == ReplyCode.ACCESS_REFUSED


async def test_a_declaration_must_be_the_same(client: RawClient) -> None:
    """exchange.declare: durable, auto-delete, internal, type, arguments; 406 precondition-failed where they differ."""
    await client.ask(Exchange.Declare(0, "x", "direct", durable=True), Exchange.DeclareOk)
    await client.ask(Exchange.Declare(0, "x", "direct", durable=True), Exchange.DeclareOk)
    for other in (
        Exchange.Declare(0, "x", "direct"),
        Exchange.Declare(0, "x", "topic", durable=True),
        Exchange.Declare(0, "x", "direct", durable=True, auto_delete=True),
        Exchange.Declare(0, "x", "direct", durable=True, internal=True),
        Exchange.Declare(0, "x", "direct", durable=True, arguments={"alternate-exchange": "y"}),
    ):
        assert await refused(client, other) == ReplyCode.PRECONDITION_FAILED


async def test_nobody_publishes_to_an_internal_exchange(client: RawClient) -> None:
    """exchange.declare: internal; exchange.bind: destination, source, routing-key, arguments; exchange.bind-ok;
    exchange.unbind: destination, source, routing-key, arguments; exchange.unbind-ok."""
    await client.ask(Exchange.Declare(0, "inside", "fanout", internal=True), Exchange.DeclareOk)
    await declared(client, "q")
    await bound(client, "q", "inside")
    await client.ask(Exchange.Bind(0, "inside", "amq.direct", "k"), Exchange.BindOk)
    client.publish("k", b"through", exchange="amq.direct")
    assert await got(client, "q") == b"through"
    await client.ask(Exchange.Unbind(0, "inside", "amq.direct", "k"), Exchange.UnbindOk)
    client.publish("k", b"not", exchange="amq.direct")
    assert await got(client, "q") is None
    client.publish("k", b"x", exchange="inside")
    assert (await client.channel_error()).reply_code == ReplyCode.ACCESS_REFUSED


async def test_an_exchange_in_use_stays_if_that_is_asked(client: RawClient) -> None:
    """exchange.delete: if-unused; 406 precondition-failed."""
    await client.ask(Exchange.Declare(0, "x", "fanout"), Exchange.DeclareOk)
    await declared(client, "q")
    await bound(client, "q", "x")
    assert await refused(client, Exchange.Delete(0, "x", if_unused=True)) == ReplyCode.PRECONDITION_FAILED
    await client.ask(Exchange.Delete(0, "x"), Exchange.DeleteOk)


async def test_an_exchange_goes_with_its_last_binding(client: RawClient) -> None:
    """exchange.declare: auto-delete."""
    await client.ask(Exchange.Declare(0, "x", "fanout", auto_delete=True), Exchange.DeclareOk)
    await declared(client, "q")
    await bound(client, "q", "x")
    await client.ask(Queue.Unbind(0, "q", "x"), Queue.UnbindOk)
    assert await refused(client, Exchange.Declare(0, "x", passive=True)) == ReplyCode.NOT_FOUND


async def test_what_nothing_takes_goes_to_the_alternate_exchange(client: RawClient) -> None:
    """exchange.declare: arguments (`alternate-exchange`)."""
    await client.ask(
        Exchange.Declare(0, "x", "direct", arguments={"alternate-exchange": "amq.fanout"}), Exchange.DeclareOk
    )
    await declared(client, "rest")
    await bound(client, "rest", "amq.fanout")
    client.publish("nobody", b"x", exchange="x", mandatory=True)
    assert await got(client, "rest") == b"x"


async def test_methods_that_want_no_answer_get_none(client: RawClient) -> None:
    """exchange.declare: nowait; exchange.delete: nowait; exchange.bind: nowait; exchange.unbind: nowait; queue.declare:
    nowait; queue.bind: nowait; queue.purge: nowait; queue.delete: nowait; basic.consume: nowait; basic.cancel: nowait.
    """
    client.send(
        Exchange.Declare(0, "x", "direct", nowait=True),
        Exchange.Bind(0, "x", "amq.direct", "k", nowait=True),
        Exchange.Unbind(0, "x", "amq.direct", "k", nowait=True),
        Queue.Declare(0, "q", nowait=True),
        Queue.Bind(0, "q", "x", "k", nowait=True),
        Queue.Purge(0, "q", nowait=True),
        Basic.Consume(0, "q", "tag", nowait=True),
        Basic.Cancel("tag", nowait=True),
        Queue.Delete(0, "q", nowait=True),
        Exchange.Delete(0, "x", nowait=True),
        channel=1,
    )
    found = await declared(client, "next")
    assert found.queue == "next"


# --- class queue


async def test_declaring_a_queue(client: RawClient) -> None:
    """queue.declare: queue, passive; queue.declare-ok: queue, message-count, consumer-count."""
    found = await declared(client, "q")
    assert (found.queue, found.message_count, found.consumer_count) == ("q", 0, 0)
    client.publish("q", b"1", exchange="")
    client.publish("q", b"2", exchange="")
    found = await declared(client, "q", passive=True)
    assert found.message_count == 2
    assert await refused(client, Queue.Declare(0, "other", passive=True)) == ReplyCode.NOT_FOUND
    assert await refused(client, Queue.Declare(0, "amq.mine")) == ReplyCode.ACCESS_REFUSED


async def test_a_queue_without_a_name_gets_one(client: RawClient) -> None:
    """queue.declare: queue; queue.bind: queue, routing-key; an empty name is that of the queue declared last."""
    name = (await declared(client)).queue
    assert name.startswith("amq.gen-")
    assert (await declared(client, name, passive=True)).queue == name
    await bound(client, "", "amq.direct", "")
    client.publish(name, b"by its name", exchange="amq.direct")
    assert await got(client, "") == b"by its name"
    await client.ask(Queue.Purge(0, ""), Queue.PurgeOk)
    assert (await client.ask(Queue.Delete(0, ""), Queue.DeleteOk)).message_count == 0


async def test_a_queue_must_be_the_same(client: RawClient) -> None:
    """queue.declare: durable, exclusive, auto-delete, arguments; 406 precondition-failed where they differ, 405
    resource-locked where one declaration is exclusive and the other is not."""
    await declared(client, "q", durable=True)
    for other in (
        Queue.Declare(0, "q"),
        Queue.Declare(0, "q", durable=True, auto_delete=True),
        Queue.Declare(0, "q", durable=True, arguments={"x-max-length": 5}),
        Queue.Declare(0, "w", arguments={"x-message-ttl": "soon"}),
        Queue.Declare(0, "w", arguments={"x-queue-type": "stream"}, durable=True),
        Queue.Declare(0, "w", arguments={"x-queue-type": "odd"}),
    ):
        assert await refused(client, other) == ReplyCode.PRECONDITION_FAILED
    await declared(client, "mine", exclusive=True, durable=True)
    for other in (
        Queue.Declare(0, "q", durable=True, exclusive=True),
        Queue.Declare(0, "mine", durable=True),
        Queue.Declare(0, "mine"),
    ):
        assert await refused(client, other) == ReplyCode.RESOURCE_LOCKED
    await declared(client, "mine", exclusive=True, durable=True)


async def test_an_exclusive_queue_is_of_one_connection(node: AmqpNode, client: RawClient) -> None:
    """queue.declare: exclusive; 405 resource-locked; it goes with its connection."""
    await declared(client, "mine", exclusive=True)
    other = await RawClient.connect(node.port)
    for method in (Queue.Declare(0, "mine", passive=True), Basic.Consume(0, "mine"), Queue.Delete(0, "mine")):
        assert await refused(other, method) == ReplyCode.RESOURCE_LOCKED
    client.send(commands.Connection.Close(200, "bye", 0, 0))
    await client.expect(commands.Connection.CloseOk)
    assert await refused(other, Queue.Declare(0, "mine", passive=True)) == ReplyCode.NOT_FOUND


async def test_deleting_a_queue(client: RawClient) -> None:
    """queue.delete: queue, if-unused, if-empty; queue.delete-ok: message-count."""
    await declared(client, "q")
    client.publish("q", b"x", exchange="")
    assert await refused(client, Queue.Delete(0, "q", if_empty=True)) == ReplyCode.PRECONDITION_FAILED
    await client.ask(Basic.Consume(0, "q", "tag", no_ack=False), Basic.ConsumeOk)
    await client.content(Basic.Deliver)
    assert await refused(client, Queue.Delete(0, "q", if_unused=True)) == ReplyCode.PRECONDITION_FAILED
    assert (await client.ask(Queue.Delete(0, "q"), Queue.DeleteOk)).message_count == 1
    assert (await client.ask(Queue.Delete(0, "q"), Queue.DeleteOk)).message_count == 0


async def test_purging_a_queue(client: RawClient) -> None:
    """queue.purge: queue; queue.purge-ok: message-count; delivered messages stay."""
    await declared(client, "q")
    for n in range(3):
        client.publish("q", b"%d" % n, exchange="")
    delivery = await client.ask(Basic.Get(0, "q"), Basic.GetOk)
    assert delivery.message_count == 2
    for _ in range(2):
        await client.frame()  # its content
    assert (await client.ask(Queue.Purge(0, "q"), Queue.PurgeOk)).message_count == 2
    client.send(Basic.Reject(delivery.delivery_tag, requeue=True), channel=1)
    assert await got(client, "q") == b"0"
    assert await refused(client, Queue.Purge(0, "other")) == ReplyCode.NOT_FOUND


async def test_bindings_come_and_go(client: RawClient) -> None:
    """queue.bind: queue, exchange, routing-key, arguments; queue.bind-ok; queue.unbind: queue, exchange, routing-key,
    arguments; queue.unbind-ok."""
    await declared(client, "q")
    await bound(client, "q", "amq.headers", **ANY_OF)
    table = b"\x20\x00\x00\x00\x00\x04\x01bt\x01"
    client.publish("", b"yes", exchange="amq.headers", properties=table)
    client.publish("", b"no", exchange="amq.headers")
    assert await got(client, "q") == b"yes"
    assert await got(client, "q") is None
    await client.ask(Queue.Unbind(0, "q", "amq.headers", "", arguments=ANY_OF), Queue.UnbindOk)
    client.publish("", b"no", exchange="amq.headers", properties=table)
    assert await got(client, "q") is None
    for method in (Queue.Bind(0, "other", "amq.direct", "k"), Queue.Bind(0, "q", "other", "k")):
        assert await refused(client, method) == ReplyCode.NOT_FOUND
    assert await refused(client, Queue.Bind(0, "q", "", "k")) == ReplyCode.ACCESS_REFUSED


async def test_unbinding_what_is_gone_is_no_error(client: RawClient) -> None:
    """queue.unbind, queue.unbind-ok, exchange.unbind, exchange.unbind-ok: programs unbind as they end, when consumers
    and bindings have taken their queues and exchanges with them."""
    await declared(client, "q")
    for method in (
        Queue.Unbind(0, "gone", "amq.topic", "k"),
        Queue.Unbind(0, "q", "gone", "k"),
        Queue.Unbind(0, "q", "amq.topic", "never bound"),
    ):
        await client.ask(method, Queue.UnbindOk)
    for ends in (("gone", "amq.fanout"), ("amq.fanout", "gone"), ("amq.fanout", "amq.topic")):
        await client.ask(Exchange.Unbind(0, *ends, "k"), Exchange.UnbindOk)
    assert await refused(client, Queue.Unbind(0, "q", "", "k")) == ReplyCode.ACCESS_REFUSED


async def test_access_rules_hold_for_bindings(node: AmqpNode) -> None:
    """403 access-refused at queue.bind, where the user may not subscribe to what it would get."""
    node.authenticator.may = lambda what, topic: not topic.startswith("secret")
    client = await RawClient.connect(node.port, user=b"ann")
    await declared(client, "q")
    assert await refused(client, Queue.Bind(0, "q", "amq.topic", "secret.#")) == ReplyCode.ACCESS_REFUSED
    await bound(client, "q", "amq.topic", "open.#")
    client.publish("open.a", b"x")
    assert await got(client, "q") == b"x"


async def test_bindings_take_effect_for_publishers_that_are_at_it(node: AmqpNode, client: RawClient) -> None:
    """What the hot path remembers is forgotten."""
    publisher = await RawClient.connect(node.port)
    await publisher.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for n in range(3):
        publisher.publish("a", b"%d" % n, exchange="amq.direct")
        await publisher.expect(Basic.Ack)
    await declared(client, "q")
    await bound(client, "q", "amq.direct", "a")
    publisher.publish("a", b"3", exchange="amq.direct")
    await publisher.expect(Basic.Ack)
    assert await got(client, "q") == b"3"
    await client.ask(Queue.Unbind(0, "q", "amq.direct", "a"), Queue.UnbindOk)
    publisher.publish("a", b"4", exchange="amq.direct")
    await publisher.expect(Basic.Ack)
    assert await got(client, "q") is None


async def test_virtual_hosts_have_exchanges_and_queues_of_their_own(tmp_path: Path) -> None:
    """connection.open: virtual-host; "full separation of exchanges, queues, and all associated entities"."""
    settings = AmqpSettings(vhosts={"anyone": {"/": "", "factory": "plant/7"}})
    async with serving(tmp_path, settings=settings) as node:
        inside, outside = await RawClient.connect(node.port, vhost="factory"), await RawClient.connect(node.port)
        for client in (inside, outside):
            assert (await declared(client, "q")).queue == "q"
            await client.ask(Exchange.Declare(0, "x", "direct"), Exchange.DeclareOk)
            await bound(client, "q", "x", "k")
            await bound(client, "q", "amq.topic", "line.*")
        inside.publish("k", b"in", exchange="x")
        inside.publish("line.3", b"topic")
        inside.publish("q", b"default", exchange="")
        found = await inside.ask(Basic.Get(0, "q", True), Basic.GetOk)
        assert (found.exchange, found.routing_key) == ("x", "k")
        for _ in range(2):
            await inside.frame()
        found = await inside.ask(Basic.Get(0, "q", True), Basic.GetOk)
        assert (found.exchange, found.routing_key) == ("amq.topic", "line.3")
        for _ in range(2):
            await inside.frame()
        assert await got(inside, "q") == b"default"
        assert await got(outside, "q") is None
        outside.publish("plant.7.line.3", b"all the same a topic")
        assert await got(inside, "q") == b"all the same a topic"


# --- Names that clients give to exchanges and queues: those that cannot be shown are refused, all others are answered


@pytest.fixture
async def names_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RawClient]:
    """A client that sends names which pamqp takes for invalid: other libraries send them."""
    for method in (Queue.Declare, Exchange.Declare, Basic.Publish):
        monkeypatch.setattr(method, "validate", lambda _: None)
    async with serving(tmp_path) as node:
        yield await RawClient.connect(node.port)


@pytest.mark.parametrize("name", ["a\x1b]0;x", "a\nlog line", "a\x7f"])
async def test_names_with_control_characters_are_refused(names_client: RawClient, name: str) -> None:
    """406 precondition-failed at queue.declare and exchange.declare; the connection continues."""
    for method in (Queue.Declare(queue=name), Exchange.Declare(exchange=name, exchange_type="fanout")):
        names_client.send(method, channel=1)
        assert (await names_client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    names_client.send(Queue.Declare(queue=name, passive=True), channel=1)
    assert (await names_client.channel_error()).reply_code == ReplyCode.NOT_FOUND


@pytest.mark.parametrize("name", ["schlüssel", "a*b", "a.(1)", "訊息"])
async def test_names_of_other_characters_are_answered(names_client: RawClient, name: str) -> None:
    """queue.declare-ok: queue; basic.return: exchange."""
    assert (await names_client.ask(Queue.Declare(queue=name), Queue.DeclareOk)).queue == name
    names_client.publish(name, b"x", exchange="")
    assert (await names_client.ask(Queue.Declare(queue=name, passive=True), Queue.DeclareOk)).message_count == 1
    await names_client.ask(Exchange.Declare(exchange=name, exchange_type="fanout"), Exchange.DeclareOk)
    names_client.publish("x", b"x", exchange=name, mandatory=True)
    assert (await names_client.content(Basic.Return)).method.exchange == name
