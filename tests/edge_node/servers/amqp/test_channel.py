"""Classes channel, confirm and tx (AMQP 0-9-1 sections 1.5 and 1.9)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.waiting import PATIENCE_S
from weft.config.limits import EdgeLimits
from weft.edge_node.access.identity import AccessDenied, Denial
from weft.edge_node.ingest.record import COPY_COST
from weft.edge_node.servers.amqp import publishing
from weft.edge_node.servers.amqp.client import AmqpSettings
from weft.edge_node.servers.amqp.publishing import Publishing
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import FRAME_BYTES_MIN, ReplyCode
from weft.protocols.amqp.methods import Method, commands
from weft.protocols.amqp.typed_values import Float32, Int8, Int16, Int64, UInt8, UInt16, UInt32
from weft.storage.segment_log import LogSettings

Basic, Channel, Confirm, Queue, Tx = commands.Basic, commands.Channel, commands.Confirm, commands.Queue, commands.Tx


async def test_a_channel_is_closed_when_what_came_before_is_durable(tmp_path: Path) -> None:
    """channel.open, channel.open-ok, channel.close, channel.close-ok: then its number is free again."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("plant.1.a", b"x")
        await client.ask(Channel.Close(200, "bye", 0, 0), Channel.CloseOk)
        assert node.log.durable_end(node.log.streams()["telemetry"]) == 1
        await client.ask(Channel.Open(), Channel.OpenOk)
        client.publish("plant.1.a", b"y")
        await client.ask(Channel.Close(200, "bye", 0, 0), Channel.CloseOk)
        assert [record.payload for record in await node.stored()] == [b"x", b"y"]
        assert node.counters.amqp_channels == 0


async def test_both_sides_may_close_a_channel_at_once(tmp_path: Path) -> None:
    """channel.close: reply-code, reply-text, class-id, method-id."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("a", b"x", exchange="nowhere")
        client.send(Channel.Close(200, "bye", 0, 0), channel=1)
        error = await client.expect(Channel.Close)
        assert (error.reply_code, error.class_id, error.method_id) == (404, 60, 40)
        assert "nowhere" in error.reply_text
        await client.expect(Channel.CloseOk)
        client.send(Channel.CloseOk(), channel=1)
        await client.ask(Channel.Open(), Channel.OpenOk)


async def test_channels_are_bounded_for_each_user(tmp_path: Path) -> None:
    """506 resource-error."""
    settings = AmqpSettings(limits=EdgeLimits(user_share=0.4), channels_total_max=10)
    async with serving(tmp_path, settings=settings) as node:
        client = await RawClient.connect(node.port, channels=3, user=b"ann")
        other = await RawClient.connect(node.port, channels=1, user=b"ann")
        other.send(Channel.Open(), channel=2)
        assert (await other.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        await RawClient.connect(node.port, channels=4, user=b"bob")
        await client.ask(Channel.Open(), Channel.OpenOk, 4)
        assert [each.bound for each in node.refusals] == ["limits.user_share of queues.channels"]


async def test_a_transaction_is_stored_as_a_whole_when_it_is_committed(tmp_path: Path) -> None:
    """tx.select, tx.select-ok, tx.commit, tx.commit-ok after the fsync."""
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for n in range(3):
            client.publish("plant.1.a", b"%d" % n)
        client.publish("alarm.a", b"3")
        assert await client.silent()
        assert await node.stored() == []
        with gate.held():
            client.send(Tx.Commit(), channel=1)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            assert await client.silent()
        await client.expect(Tx.CommitOk)
        assert [record.payload for record in await node.stored()] == [b"0", b"1", b"2"]
        assert [record.payload for record in await node.stored("alarms")] == [b"3"]
        assert node.context.unfinished.used == 0


async def test_what_is_rolled_back_is_forgotten(tmp_path: Path) -> None:
    """tx.rollback, tx.rollback-ok; the end of a channel rolls back as well."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, channels=2)
        for channel in (1, 2):
            await client.ask(Tx.Select(), Tx.SelectOk, channel)
            client.publish("plant.1.a", b"no", channel=channel)
        await client.ask(Tx.Rollback(), Tx.RollbackOk)
        await client.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk, 2)
        client.publish("plant.1.a", b"yes")
        await client.ask(Tx.Commit(), Tx.CommitOk)
        assert [record.payload for record in await node.stored()] == [b"yes"]


async def test_a_transaction_that_finds_no_room_is_not_stored_at_all(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1 << 20, budget_bytes=4 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(80):
            client.publish("plant.1.a", os.urandom(60_000))
        client.send(Tx.Commit(), channel=1)
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        assert await node.stored() == []


async def test_a_transaction_takes_no_more_memory_than_its_user_may_have(tmp_path: Path) -> None:
    async with serving(tmp_path, unfinished_bytes=400_000) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(10_000):
            client.publish("plant.1.a", b"x")
        assert (await client.connection_error()).reply_code == ReplyCode.RESOURCE_ERROR
        assert await node.stored() == []


async def test_a_transaction_that_would_be_a_long_step_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """406 precondition-failed at the publish that is one too many; what came before it is rolled back."""
    monkeypatch.setattr(publishing, "TRANSACTION_COST_MAX", 10 * COPY_COST)
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Queue.Declare(0, "work"), Queue.DeclareOk)
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(10):
            client.publish("work", b"good", exchange="")
        await client.ask(Tx.Commit(), Tx.CommitOk)
        for _ in range(11):
            client.publish("work", b"too many", exchange="")
        error = await client.expect(Channel.Close)
        assert (error.reply_code, error.class_id, error.method_id) == (406, 60, 40)
        assert "commit more often" in error.reply_text
        client.send(Channel.CloseOk(), channel=1)
        await client.ask(Channel.Open(), Channel.OpenOk)
        found = await client.ask(Queue.Declare(0, "work", passive=True), Queue.DeclareOk)
        assert found.message_count == 10


async def test_confirms_and_transactions_exclude_each_other(tmp_path: Path) -> None:
    """406 precondition-failed, also for tx.commit and tx.rollback without tx.select."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        await client.ask(Tx.Select(), Tx.SelectOk)
        client.send(Confirm.Select(), channel=1)
        assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
        await client.ask(Confirm.Select(), Confirm.SelectOk)
        client.send(Tx.Select(), channel=1)
        assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
        for method in (Tx.Commit(), Tx.Rollback()):
            client.send(method, channel=1)
            assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_messages_of_a_channel_that_had_no_transaction_before_are_in_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        for _ in range(3):
            client.publish("plant.1.a", b"before")
        await client.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(3):
            client.publish("plant.1.a", b"within")
        await client.ask(Tx.Rollback(), Tx.RollbackOk)
        assert [record.payload for record in await node.stored()] == [b"before"] * 3


# --- Channels and connections that end while something is still to be answered


EndingsBasic, EndingsChannel, Connection, EndingsQueue = (
    commands.Basic,
    commands.Channel,
    commands.Connection,
    commands.Queue,
)


async def test_a_channel_whose_publishes_find_no_room_is_not_closed_in_good_order(tmp_path: Path) -> None:
    """channel.close-ok says that what came before is stored: without confirms a client has no other word for it."""
    settings = LogSettings(segment_bytes=1 << 16, budget_bytes=1 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await RawClient.connect(node.port)
        frame, closed = None, 0
        for _ in range(2_000):
            body = write_content(1, b"\0\0", os.urandom(4_000), FRAME_BYTES_MIN)
            client.send(
                EndingsBasic.Publish(0, "amq.topic", "plant.1.a"),
                body,
                EndingsChannel.Close(200, "bye", 0, 0),
                channel=1,
            )
            frame = await client.frame()
            assert frame is not None
            if frame.payload[:4] != EndingsChannel.CloseOk.index.to_bytes(4, "big"):
                break
            closed += 1
            await client.ask(EndingsChannel.Open(), EndingsChannel.OpenOk)
        assert frame is not None
        assert frame.payload[:4] == Connection.Close.index.to_bytes(4, "big")
        assert len(await node.stored()) == closed


@pytest.mark.parametrize("close", [EndingsChannel.Close(200, "bye", 0, 0), Connection.Close(200, "bye", 0, 0)])
async def test_no_close_is_answered_when_the_disk_failed(tmp_path: Path, close: Method) -> None:
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port)
        with gate.held():
            client.publish("plant.1.a", b"x")
            client.send(close, channel=1 if isinstance(close, EndingsChannel.Close) else 0)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            gate.error = OSError(5, "the disk is gone")
        answer = await client.frame()
        assert answer is None or answer.payload[:4] == Connection.Close.index.to_bytes(4, "big")
        if answer is not None:
            assert int.from_bytes(answer.payload[4:6], "big") == ReplyCode.INTERNAL_ERROR


async def test_a_channel_that_closes_takes_no_message_that_it_still_waited_for(tmp_path: Path) -> None:
    """basic.get of a message whose commit is not over."""
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port, channels=2)
        await client.ask(EndingsQueue.Declare(0, "q", durable=True), EndingsQueue.DeclareOk)
        client.publish("q", b"x", exchange="")
        assert (await client.ask(EndingsQueue.Declare(0, "q", passive=True), EndingsQueue.DeclareOk)).message_count == 1
        with gate.held():
            client.send(EndingsBasic.Get(0, "q"), channel=1)
            client.publish("nowhere", b"x", exchange="nowhere")
            error = await client.expect(EndingsChannel.Close, 1)
            assert error.reply_code == ReplyCode.NOT_FOUND
        client.send(EndingsChannel.CloseOk(), channel=1)
        await client.ask(EndingsChannel.Open(), EndingsChannel.OpenOk, 1)
        await client.ask(EndingsBasic.Get(0, "q"), EndingsBasic.GetOk, 2)


@pytest.mark.parametrize(
    "method", [EndingsQueue.Delete(0, "q"), EndingsQueue.Purge(0, "q"), EndingsQueue.Unbind(0, "q", "amq.topic", "a")]
)
async def test_what_was_taken_away_is_gone_for_good_when_that_is_answered(tmp_path: Path, method: Method) -> None:
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await RawClient.connect(node.port)
        await client.ask(EndingsQueue.Declare(0, "q", durable=True), EndingsQueue.DeclareOk)
        await client.ask(EndingsQueue.Bind(0, "q", "amq.topic", "a"), EndingsQueue.BindOk)
        client.publish("q", b"x", exchange="")
        await client.ask(EndingsQueue.Declare(0, "q", passive=True), EndingsQueue.DeclareOk)
        with gate.held():
            client.send(method, channel=1)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            assert await client.silent()
        frame = await client.frame()
        assert frame is not None
        assert frame.payload[:4] == (method.index + 1).to_bytes(4, "big")


async def test_a_mistake_of_the_node_ends_the_connection_that_met_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client waited for its turn, so that nothing above would close it."""

    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        monkeypatch.setattr(Publishing, "check", fail)
        client.publish("plant.1.a", b"x")
        assert (await client.connection_error()).reply_code == ReplyCode.INTERNAL_ERROR


@pytest.mark.parametrize("is_clients", [True, False], ids=["the client closes", "the node closes"])
async def test_what_a_client_sends_behind_its_last_word_is_no_reset(tmp_path: Path, is_clients: bool) -> None:
    """connection.close, connection.close-ok: the node reads and drops until the client closes the connection."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        if is_clients:
            client.send(Connection.Close(200, "bye", 0, 0))
        else:
            client.send(b"\x03\0\x00\0\0\0\x01x\xce")
            await client.expect(Connection.Close)
            client.send(Connection.CloseOk())
        for _ in range(30):
            client.publish("plant.1.a", b"x" * 8192)
            await client.writer.drain()
            await asyncio.sleep(0.001)  # each write is a segment of its own, as those of clients are
        if is_clients:
            await client.expect(Connection.CloseOk)
        client.publish("plant.1.a", b"after close-ok")
        client.writer.write_eof()
        assert await client.reader.read() == b"", "no reset, and nothing more is answered"
        assert await node.stored() == []
        assert node.counters_of_node.connections == 0


async def test_a_client_that_never_closes_is_closed_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By time, by bytes, and when the node stops; it counts as a connection of its user until then."""
    module = "weft.edge_node.servers.amqp.connection"
    async with serving(tmp_path) as node:

        async def closing() -> RawClient:
            client = await RawClient.connect(node.port)
            await client.ask(Connection.Close(200, "bye", 0, 0), Connection.CloseOk, 0)
            return client

        stays = await closing()
        assert node.counters_of_node.connections == 1
        monkeypatch.setattr(f"{module}.LINGER_BYTES_MAX", 1 << 20)
        floods = await closing()
        floods.send(b"x" * (2 << 20))
        assert await floods.closed()
        monkeypatch.setattr(f"{module}.LINGER_S_MAX", 0.1)
        assert await (await closing()).closed()
        await node.amqp.close()
        assert await stays.closed()


# --- What RabbitMQ adds to AMQP 0-9-1 and client libraries use: CC and BCC, direct reply-to, connection.update-secret


ExtensionsConfirm = commands.Confirm
REPLIES = "amq.rabbitmq.reply-to"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AmqpNode]:
    async with serving(tmp_path) as serves:
        yield serves


@pytest.fixture
async def client(node: AmqpNode) -> RawClient:
    client = await RawClient.connect(node.port, channels=2)
    for name in "abc":
        await client.ask(EndingsQueue.Declare(0, name), EndingsQueue.DeclareOk)
    await client.ask(ExtensionsConfirm.Select(), ExtensionsConfirm.SelectOk)
    return client


def properties(**values: Any) -> bytes:
    return b"".join(pika.BasicProperties(**values).encode())


def read(data: bytes) -> pika.BasicProperties:
    found = pika.BasicProperties()
    found.decode(data)
    return found


async def got(client: RawClient, queue: str) -> Any:
    client.send(EndingsBasic.Get(0, queue, True), channel=2)
    return await client.content(EndingsBasic.GetOk)


async def test_further_routing_keys(client: RawClient) -> None:
    """basic.publish: routing-key; each of CC and BCC is one more. BCC is not shown to consumers, and a queue gets one
    copy whatever the number of keys that lead to it."""
    data = properties(headers={"CC": ["b", "b"], "BCC": ["c", "a"], "n": 1})
    client.publish("a", b"to all", exchange="", properties=data, mandatory=True)
    await client.expect(EndingsBasic.Ack, 1)
    for name in "abc":
        found = await got(client, name)
        assert (found.body, found.method.routing_key, found.method.message_count) == (b"to all", "a", 0)
        assert read(found.properties).headers == {"CC": ["b", "b"], "n": 1}


async def test_a_message_is_routed_if_one_of_its_keys_is(client: RawClient) -> None:
    """basic.publish: mandatory; basic.return: routing-key."""
    data = properties(headers={"BCC": ["b"]})
    client.publish("nobody", b"x", exchange="", properties=data, mandatory=True)
    await client.expect(EndingsBasic.Ack, 1)
    client.publish("nobody", b"x", exchange="", properties=properties(headers={"CC": ["none"]}), mandatory=True)
    assert (await client.content(EndingsBasic.Return)).method.routing_key == "nobody"


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
            await client.ask(EndingsQueue.Declare(0, name), EndingsQueue.DeclareOk)
        client.publish("a", b"x", exchange="", properties=properties(headers={"BCC": ["secret"]}))
        assert (await client.channel_error()).reply_code == ReplyCode.ACCESS_REFUSED


async def test_direct_reply_to(node: AmqpNode, client: RawClient) -> None:
    """basic.consume: queue, no-ack; a request says where its answer goes, and the answer comes to that channel."""
    await client.ask(EndingsBasic.Consume(0, REPLIES, "answers", no_ack=True), EndingsBasic.ConsumeOk)
    server = await RawClient.connect(node.port)
    for n in range(3):  # the later ones are recognised by their bytes
        client.publish("a", b"%d" % n, exchange="", properties=properties(reply_to=REPLIES))
        await client.expect(EndingsBasic.Ack, 1)
        server.send(EndingsBasic.Get(0, "a", True), channel=1)
        request = await server.content(EndingsBasic.GetOk)
        answer_to = read(request.properties).reply_to
        assert answer_to is not None
        assert answer_to.startswith(f"{REPLIES}.")
        server.publish(answer_to, b"answer to " + request.body, exchange="", mandatory=True)
        answer = await client.content(EndingsBasic.Deliver)
        assert (answer.body, answer.method.exchange, answer.method.routing_key) == (b"answer to %d" % n, "", answer_to)


async def test_who_answers_may_ask_whether_anybody_waits(node: AmqpNode, client: RawClient) -> None:
    """queue.declare: queue, passive; 404 once the channel is closed, and a mandatory answer comes back."""
    await client.ask(EndingsBasic.Consume(0, REPLIES, "answers", no_ack=True), EndingsBasic.ConsumeOk)
    client.publish("a", exchange="", properties=properties(reply_to=REPLIES))
    await client.expect(EndingsBasic.Ack, 1)
    answer_to = read((await got(client, "a")).properties).reply_to
    assert answer_to is not None
    server = await RawClient.connect(node.port)
    for name in (REPLIES, answer_to):
        found: Any = await server.ask(EndingsQueue.Declare(0, name, passive=True), EndingsQueue.DeclareOk)
        assert (found.queue, found.message_count, found.consumer_count) == (name, 0, 1)
    await client.ask(EndingsChannel.Close(200, "", 0, 0), EndingsChannel.CloseOk)
    server.publish(answer_to, b"late", exchange="", mandatory=True)
    assert (await server.content(EndingsBasic.Return)).body == b"late"
    server.send(EndingsQueue.Declare(0, answer_to, passive=True), channel=1)
    assert (await server.channel_error()).reply_code == ReplyCode.NOT_FOUND


async def test_direct_reply_to_has_its_rules(client: RawClient) -> None:
    """406 precondition-failed: with acknowledgements, twice on a channel, or a request without a consumer."""
    client.send(EndingsBasic.Consume(0, REPLIES), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    await client.ask(EndingsBasic.Consume(0, REPLIES, "1", no_ack=True), EndingsBasic.ConsumeOk)
    client.send(EndingsBasic.Consume(0, REPLIES, "2", no_ack=True), channel=1)
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
    await client.ask(EndingsBasic.Consume(0, REPLIES, "1", no_ack=True), EndingsBasic.ConsumeOk)
    await client.ask(EndingsBasic.Cancel("1"), EndingsBasic.CancelOk)
    client.publish("a", exchange="", properties=properties(reply_to=REPLIES))
    assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED


async def test_a_request_after_another_consumer_has_another_queue(client: RawClient) -> None:
    """The name of the queue before, with which messages were recognised, is forgotten."""
    names = set()
    for _ in range(2):
        await client.ask(EndingsBasic.Consume(0, REPLIES, "1", no_ack=True), EndingsBasic.ConsumeOk)
        for _ in range(2):
            client.publish("a", exchange="", properties=properties(reply_to=REPLIES))
            await client.expect(EndingsBasic.Ack, 1)
            names.add(read((await got(client, "a")).properties).reply_to)
        await client.ask(EndingsBasic.Cancel("1"), EndingsBasic.CancelOk)
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
    await client.expect(EndingsBasic.Ack, 1)
    node.authenticator.removed.add("guest")
    node.amqp.permissions_changed()
    assert (await client.connection_error()).reply_code == ReplyCode.CONNECTION_FORCED


@pytest.mark.parametrize("kind", [int, Int8, UInt8, Int16, UInt16, UInt32, Int64])
async def test_arguments_are_integers_of_any_length(client: RawClient, kind: type[int]) -> None:
    """queue.declare: arguments; queue.bind: arguments; clients write small numbers in few octets. It is the same queue,
    and the same binding, whatever the type."""
    limits = {"x-max-length": kind(2), "x-max-priority": kind(3)}
    for arguments in (limits, {name: int(value) for name, value in limits.items()}):
        await client.ask(EndingsQueue.Declare(0, "small", arguments=arguments), EndingsQueue.DeclareOk)
    for value in (kind(3), 3, [kind(3), Float32(0.5)]):
        bind = EndingsQueue.Bind(0, "small", "amq.headers", "", arguments={"x-match": "any", "level": value})
        await client.ask(bind, EndingsQueue.BindOk)
    client.publish("", b"x", exchange="amq.headers", properties=properties(headers={"level": 3}), mandatory=True)
    await client.expect(EndingsBasic.Ack, 1)
    assert (await got(client, "small")).body == b"x"
    consume = EndingsBasic.Consume(0, "small", "tag", arguments={"x-priority": kind(5)})
    await client.ask(consume, EndingsBasic.ConsumeOk)


async def test_queues_whose_messages_live_for_years(client: RawClient) -> None:
    """queue.declare: arguments; Celery delays tasks by queues with times to live of up to 2 ** 27 s."""
    arguments = {
        "x-message-ttl": 1000 << 27,
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "amq.topic",
        "x-dead-letter-strategy": "at-least-once",
    }
    await client.ask(EndingsQueue.Declare(0, "years", durable=True, arguments=arguments), EndingsQueue.DeclareOk)
    client.publish("years", b"x", exchange="")
    await client.expect(EndingsBasic.Ack, 1)
    assert (await got(client, "years")).body == b"x"
