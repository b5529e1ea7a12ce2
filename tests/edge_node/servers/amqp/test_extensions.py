"""What RabbitMQ adds to AMQP 0-9-1 and client libraries use: CC and BCC, direct reply-to, connection.update-secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from weft.edge_node.access.identity import AccessDenied, Denial
from weft.protocols.amqp.frames import ReplyCode
from weft.protocols.amqp.methods import commands
from weft.protocols.amqp.typed_values import Float32, Int8, Int16, Int64, UInt8, UInt16, UInt32

Basic, Channel, Confirm, Connection, Queue = (
    commands.Basic,
    commands.Channel,
    commands.Confirm,
    commands.Connection,
    commands.Queue,
)
REPLIES = "amq.rabbitmq.reply-to"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AmqpNode]:
    async with serving(tmp_path) as serves:
        yield serves


@pytest.fixture
async def client(node: AmqpNode) -> RawClient:
    client = await RawClient.connect(node.port, channels=2)
    for name in "abc":
        await client.ask(Queue.Declare(0, name), Queue.DeclareOk)
    await client.ask(Confirm.Select(), Confirm.SelectOk)
    return client


def properties(**values: Any) -> bytes:
    return b"".join(pika.BasicProperties(**values).encode())


def read(data: bytes) -> pika.BasicProperties:
    found = pika.BasicProperties()
    found.decode(data)
    return found


async def got(client: RawClient, queue: str) -> Any:
    client.send(Basic.Get(0, queue, True), channel=2)
    return await client.content(Basic.GetOk)


async def test_further_routing_keys(client: RawClient) -> None:
    """basic.publish: routing-key; each of CC and BCC is one more. BCC is not shown to consumers, and a queue gets one
    copy whatever the number of keys that lead to it."""
    data = properties(headers={"CC": ["b", "b"], "BCC": ["c", "a"], "n": 1})
    client.publish("a", b"to all", exchange="", properties=data, mandatory=True)
    await client.expect(Basic.Ack, 1)
    for name in "abc":
        found = await got(client, name)
        assert (found.body, found.method.routing_key, found.method.message_count) == (b"to all", "a", 0)
        assert read(found.properties).headers == {"CC": ["b", "b"], "n": 1}


async def test_a_message_is_routed_if_one_of_its_keys_is(client: RawClient) -> None:
    """basic.publish: mandatory; basic.return: routing-key."""
    data = properties(headers={"BCC": ["b"]})
    client.publish("nobody", b"x", exchange="", properties=data, mandatory=True)
    await client.expect(Basic.Ack, 1)
    client.publish("nobody", b"x", exchange="", properties=properties(headers={"CC": ["none"]}), mandatory=True)
    assert (await client.content(Basic.Return)).method.routing_key == "nobody"


@pytest.mark.parametrize("value", ["b", 1, [1], ["x" * 256], ["b"] * 257])
async def test_further_routing_keys_that_cannot_be(client: RawClient, value: Any) -> None:
    """406 precondition-failed."""
    client.publish("a", b"x", exchange="", properties=properties(headers={"CC": value}))
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_access_rules_hold_for_further_routing_keys(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        node.authenticator.may = lambda what, topic: what != "publish" or topic != "secret"
        client = await RawClient.connect(node.port)
        for name in ("a", "secret"):
            await client.ask(Queue.Declare(0, name), Queue.DeclareOk)
        client.publish("a", b"x", exchange="", properties=properties(headers={"BCC": ["secret"]}))
        assert (await client.channel_error()).reply_code == ReplyCode.ACCESS_REFUSED


async def test_direct_reply_to(node: AmqpNode, client: RawClient) -> None:
    """basic.consume: queue, no-ack; a request says where its answer goes, and the answer comes to that channel."""
    await client.ask(Basic.Consume(0, REPLIES, "answers", no_ack=True), Basic.ConsumeOk)
    server = await RawClient.connect(node.port)
    for n in range(3):  # the later ones are recognised by their bytes
        client.publish("a", b"%d" % n, exchange="", properties=properties(reply_to=REPLIES))
        await client.expect(Basic.Ack, 1)
        server.send(Basic.Get(0, "a", True), channel=1)
        request = await server.content(Basic.GetOk)
        answer_to = read(request.properties).reply_to
        assert answer_to is not None
        assert answer_to.startswith(f"{REPLIES}.")
        server.publish(answer_to, b"answer to " + request.body, exchange="", mandatory=True)
        answer = await client.content(Basic.Deliver)
        assert (answer.body, answer.method.exchange, answer.method.routing_key) == (b"answer to %d" % n, "", answer_to)


async def test_who_answers_may_ask_whether_anybody_waits(node: AmqpNode, client: RawClient) -> None:
    """queue.declare: queue, passive; 404 once the channel is closed, and a mandatory answer comes back."""
    await client.ask(Basic.Consume(0, REPLIES, "answers", no_ack=True), Basic.ConsumeOk)
    client.publish("a", exchange="", properties=properties(reply_to=REPLIES))
    await client.expect(Basic.Ack, 1)
    answer_to = read((await got(client, "a")).properties).reply_to
    assert answer_to is not None
    server = await RawClient.connect(node.port)
    for name in (REPLIES, answer_to):
        found: Any = await server.ask(Queue.Declare(0, name, passive=True), Queue.DeclareOk)
        assert (found.queue, found.message_count, found.consumer_count) == (name, 0, 1)
    await client.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk)
    server.publish(answer_to, b"late", exchange="", mandatory=True)
    assert (await server.content(Basic.Return)).body == b"late"
    server.send(Queue.Declare(0, answer_to, passive=True), channel=1)
    assert (await server.channel_error()).reply_code == ReplyCode.NOT_FOUND


async def test_direct_reply_to_has_its_rules(client: RawClient) -> None:
    """406 precondition-failed: with acknowledgements, twice on a channel, or a request without a consumer."""
    client.send(Basic.Consume(0, REPLIES), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    await client.ask(Basic.Consume(0, REPLIES, "1", no_ack=True), Basic.ConsumeOk)
    client.send(Basic.Consume(0, REPLIES, "2", no_ack=True), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    await client.ask(Basic.Consume(0, REPLIES, "1", no_ack=True), Basic.ConsumeOk)
    await client.ask(Basic.Cancel("1"), Basic.CancelOk)
    client.publish("a", exchange="", properties=properties(reply_to=REPLIES))
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_a_request_after_another_consumer_has_another_queue(client: RawClient) -> None:
    """The name of the queue before, with which messages were recognised, is forgotten."""
    names = set()
    for _ in range(2):
        await client.ask(Basic.Consume(0, REPLIES, "1", no_ack=True), Basic.ConsumeOk)
        for _ in range(2):
            client.publish("a", exchange="", properties=properties(reply_to=REPLIES))
            await client.expect(Basic.Ack, 1)
            names.add(read((await got(client, "a")).properties).reply_to)
        await client.ask(Basic.Cancel("1"), Basic.CancelOk)
    assert len(names) == 2


async def test_a_new_secret_changes_no_rights(
    node: AmqpNode, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    """connection.update-secret: new-secret, reason; connection.update-secret-ok: for a wrong one, too, which is logged.
    A connection whose user has another password ends all the same."""
    await client.ask(Connection.UpdateSecret("right", "it runs out"), Connection.UpdateSecretOk, 0)
    assert "not the user's password" not in caplog.text
    node.authenticator.refuse = AccessDenied(Denial.WRONG, "wrong password")
    await client.ask(Connection.UpdateSecret("wrong", "it runs out"), Connection.UpdateSecretOk, 0)
    assert "not the user's password" in caplog.text
    client.publish("a", exchange="")
    await client.expect(Basic.Ack, 1)
    node.authenticator.removed.add("guest")
    node.amqp.permissions_changed()
    assert (await client.connection_error()).reply_code == ReplyCode.CONNECTION_FORCED


@pytest.mark.parametrize("kind", [int, Int8, UInt8, Int16, UInt16, UInt32, Int64])
async def test_arguments_are_integers_of_any_length(client: RawClient, kind: type[int]) -> None:
    """queue.declare: arguments; queue.bind: arguments; clients write small numbers in few octets. It is the same queue,
    and the same binding, whatever the type."""
    limits = {"x-max-length": kind(2), "x-max-priority": kind(3)}
    for arguments in (limits, {name: int(value) for name, value in limits.items()}):
        await client.ask(Queue.Declare(0, "small", arguments=arguments), Queue.DeclareOk)
    for value in (kind(3), 3, [kind(3), Float32(0.5)]):
        bind = Queue.Bind(0, "small", "amq.headers", "", arguments={"x-match": "any", "level": value})
        await client.ask(bind, Queue.BindOk)
    client.publish("", b"x", exchange="amq.headers", properties=properties(headers={"level": 3}), mandatory=True)
    await client.expect(Basic.Ack, 1)
    assert (await got(client, "small")).body == b"x"
    consume = Basic.Consume(0, "small", "tag", arguments={"x-priority": kind(5)})
    await client.ask(consume, Basic.ConsumeOk)


async def test_queues_whose_messages_live_for_years(client: RawClient) -> None:
    """queue.declare: arguments; Celery delays tasks by queues with times to live of up to 2 ** 27 s."""
    arguments = {
        "x-message-ttl": 1000 << 27,
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "amq.topic",
        "x-dead-letter-strategy": "at-least-once",
    }
    await client.ask(Queue.Declare(0, "years", durable=True, arguments=arguments), Queue.DeclareOk)
    client.publish("years", b"x", exchange="")
    await client.expect(Basic.Ack, 1)
    assert (await got(client, "years")).body == b"x"
