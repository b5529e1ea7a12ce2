"""basic.publish with confirms, returns and everything that can be wrong with it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.edge_node.servers.amqp.harness import AmqpNode, RawClient, serving
from tests.edge_node.servers.mqtt.harness import SyncGate
from tests.support.waiting import PATIENCE_S
from weft.config.limits import EdgeLimits
from weft.edge_node.ingest.record import Destination, Gathering, Route
from weft.edge_node.queues.definitions import origin_of
from weft.edge_node.servers.amqp.client import KNOWN_BYTES_MAX, AmqpSettings, Target, Targets
from weft.protocols.amqp.content import write_content, write_properties
from weft.protocols.amqp.frames import BODY, HEADER, Form, ReplyCode, frame, scan
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import EXPIRES, MESSAGE_ID, REPLY_TO
from weft.protocols.ranges import PackedHeaders
from weft.storage.segment_log import LogSettings

Basic, Confirm = commands.Basic, commands.Confirm


async def confirming(node: AmqpNode, **options: Any) -> RawClient:
    client = await RawClient.connect(node.port, **options)
    await client.ask(Confirm.Select(), Confirm.SelectOk)
    return client


async def confirmed(client: RawClient, upto: int, channel: int = 1) -> None:
    """Wait for acks up to a delivery tag; they only grow, and none is a nack."""
    tag = 0
    while tag < upto:
        ack = await client.expect(Basic.Ack, channel)
        assert ack.delivery_tag > tag
        assert ack.multiple or ack.delivery_tag == tag + 1
        tag = ack.delivery_tag
    assert tag == upto


async def test_a_message_is_a_record_of_the_stream_that_its_topic_matches(tmp_path: Path) -> None:
    """basic.publish: exchange, routing-key; the topic exchange's keys are the topics of all protocols."""
    async with serving(tmp_path) as node:
        client = await confirming(node)
        client.publish("plant.1.temperature", b"21.5")
        await confirmed(client, 1)
        (record,) = await node.stored()
        assert (record.key, record.payload, record.headers) == (b"plant/1/temperature", b"21.5", ())


async def test_a_confirm_comes_after_the_fsync(tmp_path: Path) -> None:
    """confirm.select, confirm.select-ok, basic.ack from the node: delivery-tag, multiple."""
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate) as node:
        client = await confirming(node)
        with gate.held():
            for n in range(5):
                client.publish("plant.1.a", b"%d" % n)
            assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
            assert await client.silent()
        await confirmed(client, 5)
        assert [record.payload for record in await node.stored()] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_run_is_confirmed_with_few_acks(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await confirming(node)
        for n in range(2_000):
            client.publish("plant.1.a", b"%d" % n, properties=b"\x10\x00\x02")
        await confirmed(client, 2_000)
        records = await node.stored()
        assert [record.payload for record in records] == [b"%d" % n for n in range(2_000)]
        assert {record.headers for record in records} == {(("amqp.delivery-mode", 2),)}


async def test_each_channel_counts_for_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await confirming(node, channels=2)
        await client.ask(Confirm.Select(nowait=False), Confirm.SelectOk, 2)
        for channel in (1, 2, 2, 1, 2):
            client.publish("plant.1.a", b"x", channel=channel)
        tags = {1: 0, 2: 0}
        while tags != {1: 2, 2: 3}:
            found = await client.frame()
            assert found is not None
            tags[found.channel] = int.from_bytes(found.payload[4:12], "big")
        assert len(await node.stored()) == 5


async def test_without_confirms_nothing_is_answered(tmp_path: Path) -> None:
    """confirm.select: nowait."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("plant.1.a", b"1")
        assert len(await eventually_stored(node, 1)) == 1
        assert await client.silent()
        client.send(Confirm.Select(nowait=True), channel=1)
        client.publish("plant.1.a", b"2")
        await confirmed(client, 1)


async def eventually_stored(node: AmqpNode, count: int) -> list[Any]:
    async with asyncio.timeout(PATIENCE_S):
        while node.counters_of_node.publishes_received < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    found: list[Any] = await node.stored()
    return found


async def test_properties_are_headers_of_the_record(tmp_path: Path) -> None:
    """Content header: every property of class basic; the table is in docs/reference/message-headers.md."""
    properties = pika.BasicProperties(content_type="text/plain", headers={"line": 3}, message_id="m", type="alarm")
    async with serving(tmp_path) as node:
        client = await confirming(node)
        client.publish("plant.1.a", b"x", properties=b"".join(properties.encode()), exchange="amq.direct")
        await confirmed(client, 1)
        (record,) = await node.stored()
        assert dict(record.headers) == {
            "weft.content-type": "text/plain",
            "line": 3,
            "weft.message-id": "m",
            "weft.subject": "alarm",
            "amqp.exchange": "amq.direct",
        }


async def test_a_body_may_come_in_many_frames_and_reads(tmp_path: Path) -> None:
    """Content body frames, section 4.2.6: any split, also of frames over reads."""
    body = bytes(range(256)) * 100
    async with serving(tmp_path) as node:
        client = await confirming(node)
        head = write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1)
        head += frame(HEADER, 1, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\0\0")
        data = head + b"".join(frame(BODY, 1, body[at : at + 1000]) for at in range(0, len(body), 1000))
        for _ in range(2):
            for at in range(0, len(data), 777):
                client.send(data[at : at + 777])
                await asyncio.sleep(0)
        client.send(head.replace(len(body).to_bytes(8, "big"), bytes(8)))
        await confirmed(client, 3)
        assert [record.payload for record in await node.stored()] == [body, body, b""]
        assert node.context.unfinished.used == 0


async def test_channels_may_interleave_their_content(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port, channels=2)
        for step in range(3):
            for channel in (1, 2):
                head = write_method(Basic.Publish(0, "amq.topic", f"plant.{channel}.a"), channel)
                content = write_content(channel, b"\0\0", b"%d" % channel, 4096)
                split = len(content) - 9
                client.send((head, content[:split], content[split:])[step])
        records = await eventually_stored(node, 2)
        assert sorted((record.key, record.payload) for record in records) == [
            (b"plant/1/a", b"1"),
            (b"plant/2/a", b"2"),
        ]


async def test_content_out_of_order(tmp_path: Path) -> None:
    """505 unexpected-frame; 501 frame-error for content of another class, or more of it than was said."""
    head = write_method(Basic.Publish(0, "amq.topic", "plant.1.a"), 1)
    header = frame(HEADER, 1, b"\0\x3c\0\0" + (4).to_bytes(8, "big") + b"\0\0")
    bad = {
        frame(BODY, 1, b"x"): ReplyCode.UNEXPECTED_FRAME,
        header: ReplyCode.UNEXPECTED_FRAME,
        head + frame(BODY, 1, b"x"): ReplyCode.UNEXPECTED_FRAME,
        head + head: ReplyCode.UNEXPECTED_FRAME,
        head + header + header: ReplyCode.UNEXPECTED_FRAME,
        head + header + frame(BODY, 1, b"12345"): ReplyCode.FRAME_ERROR,
        head + frame(HEADER, 1, b"\0\x3d" + bytes(12)): ReplyCode.FRAME_ERROR,
        head + frame(HEADER, 1, b"\0\x3c"): ReplyCode.SYNTAX_ERROR,
        head + header.replace(b"\0\0\xce", b"\x80\0\xce") + frame(BODY, 1, b"1234"): ReplyCode.SYNTAX_ERROR,
    }
    async with serving(tmp_path) as node:
        for data, code in bad.items():
            client = await RawClient.connect(node.port)
            client.send(data)
            assert (await client.connection_error()).reply_code == code, data
        assert node.context.unfinished.used == 0


async def test_channel_exceptions_of_a_publish(tmp_path: Path) -> None:
    """404 not-found for an exchange that there is not, 311 content-too-large, 403 access-refused, 406
    precondition-failed for an expiration or a user-id that cannot be. The channel ends, the connection continues."""

    def may(what: str, topic: str) -> bool:
        return not topic.startswith("plant/secret")

    async with serving(tmp_path, settings=AmqpSettings(limits=EdgeLimits(message_bytes=100))) as node:
        node.authenticator.may = may
        client = await RawClient.connect(node.port, channels=2, user=b"ann")
        client.publish("plant.1.a", b"x", exchange="nowhere")
        client.publish("plant.1.a", b"passed over")
        error = await client.channel_error()
        assert error.reply_code == ReplyCode.NOT_FOUND
        assert (error.class_id, error.method_id) == (60, 40)
        client.publish("plant.1.a", bytes(101))
        assert (await client.channel_error()).reply_code == ReplyCode.CONTENT_TOO_LARGE
        client.publish("plant.secret", b"x")
        assert (await client.channel_error()).reply_code == ReplyCode.ACCESS_REFUSED
        for properties in (pika.BasicProperties(expiration="soon"), pika.BasicProperties(user_id="bob")):
            client.publish("plant.1.a", b"x", properties=b"".join(properties.encode()))
            assert (await client.channel_error()).reply_code == ReplyCode.PRECONDITION_FAILED
        client.publish("plant.1.a", b"ok", properties=b"".join(pika.BasicProperties(user_id="ann").encode()), channel=2)
        assert [record.payload for record in await eventually_stored(node, 1)] == [b"ok"]


async def test_access_that_is_taken_away_holds_for_the_next_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        allowed = True
        node.authenticator.may = lambda what, topic: allowed
        client = await confirming(node)
        for _ in range(3):
            client.publish("plant.1.a", b"x")
        await confirmed(client, 3)
        allowed = False
        node.mqtt.sessions.permissions_changed()
        client.publish("plant.1.a", b"x")
        assert (await client.channel_error()).reply_code == ReplyCode.ACCESS_REFUSED
        assert len(await node.stored()) == 3


async def test_immediate_is_not_implemented(tmp_path: Path) -> None:
    """basic.publish: immediate; 540 not-implemented. py-amqp compares the text, which is RabbitMQ's."""
    async with serving(tmp_path) as node:
        client = await RawClient.connect(node.port)
        client.publish("plant.1.a", b"x", immediate=True)
        error = await client.connection_error()
        assert (error.reply_code, error.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


async def test_mandatory_messages_that_nothing_takes_come_back(tmp_path: Path) -> None:
    """basic.publish: mandatory; basic.return: reply-code, reply-text, exchange, routing-key, before its confirm."""
    properties = b"".join(pika.BasicProperties(content_type="text/plain", headers={"a": 1}).encode())
    async with serving(tmp_path) as node:
        client = await confirming(node)
        client.publish("nobody", b"body", exchange="", properties=properties, mandatory=True)
        returned = await client.content(Basic.Return)
        assert returned.method.reply_code == ReplyCode.NO_ROUTE
        assert (returned.method.exchange, returned.method.routing_key) == ("", "nobody")
        assert (returned.properties, returned.body) == (properties, b"body")
        await confirmed(client, 1)
        client.publish("nobody", b"body", exchange="")
        assert (await client.expect(Basic.Ack)).delivery_tag == 2
        assert node.counters.amqp_returned == 1


async def test_a_stream_takes_mandatory_messages_of_the_topic_exchange(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        client = await confirming(node)
        for _ in range(3):
            client.publish("plant.1.a", b"x", mandatory=True)
        await confirmed(client, 3)
        assert node.counters.amqp_returned == 0


async def test_what_a_full_log_refuses_is_nacked(tmp_path: Path) -> None:
    """basic.nack from the node: delivery-tag; the connection continues, and nothing that was acked is missing."""
    settings = LogSettings(segment_bytes=1 << 20, budget_bytes=4 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await confirming(node)
        acked, nacked, sent = 0, 0, 0
        while not nacked and sent < 2_000:
            client.publish("plant.1.a", os.urandom(60_000))
            sent += 1
            answer = await client.frame()
            assert answer is not None
            assert int.from_bytes(answer.payload[4:12], "big") == sent
            acked += answer.payload[2:4] == b"\0\x50"
            nacked += answer.payload[2:4] == b"\0\x78"
        assert nacked
        assert len(await node.stored()) == acked
        assert node.counters.amqp_nacked == nacked


async def test_a_message_is_nacked_once_where_a_queue_and_the_log_are_full(tmp_path: Path) -> None:
    """basic.nack from the node: one of each tag, whatever refuses the message."""
    settings = LogSettings(segment_bytes=1 << 20, budget_bytes=4 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await confirming(node)
        arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
        await client.ask(commands.Queue.Declare(queue="full", arguments=arguments), commands.Queue.DeclareOk)
        acked, nacked, sent = set[int](), list[int](), 0
        while node.counters_of_node.log_refusals < 3 and sent < 3_000:
            for _ in range(3):  # in one turn of the loop: the queue refuses one, the log both others
                client.publish("plant.1.a", os.urandom(30_000))
                client.publish("full", b"x", exchange="")
            sent += 6
            while len(acked) + len(nacked) < sent:
                answer = await client.frame()
                assert answer is not None
                tag, multiple = int.from_bytes(answer.payload[4:12], "big"), answer.payload[12] & 1
                if answer.payload[2:4] == b"\0\x50":
                    acked |= {each for each in (range(1, tag + 1) if multiple else [tag]) if each not in nacked}
                else:
                    nacked.append(tag)
        assert len(nacked) > sent // 2, "the log has refused some"
        assert len(set(nacked)) == len(nacked)
        assert await client.silent()


async def test_without_confirms_a_full_log_ends_the_connection(tmp_path: Path) -> None:
    """506 resource-error."""
    settings = LogSettings(segment_bytes=1 << 20, budget_bytes=4 << 20)
    async with serving(tmp_path, log_settings=settings) as node:
        client = await RawClient.connect(node.port)
        for _ in range(100):
            client.publish("plant.1.a", os.urandom(60_000))
        assert (await client.expect(commands.Connection.Close)).reply_code == ReplyCode.RESOURCE_ERROR


async def test_a_client_that_is_held_for_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """connection.blocked: reason; connection.unblocked."""
    monkeypatch.setattr("weft.edge_node.servers.amqp.handshake.BLOCKED_AFTER_S", 0.05)
    gate = SyncGate()
    async with serving(tmp_path, filesystem=gate, pending_bytes=100_000) as node:
        client = await confirming(node, capabilities={"connection.blocked": True})
        unaware = await confirming(node)
        with gate.held():
            for each in (client, unaware):
                each.publish("plant.1.a", bytes(80_000))
            await client.expect(commands.Connection.Blocked)
        answers = {frame.payload[:4] for _ in range(2) if (frame := await client.frame()) is not None}
        assert answers == {each.index.to_bytes(4, "big") for each in (commands.Connection.Unblocked, Basic.Ack)}
        await confirmed(unaware, 1)
        assert node.counters.amqp_blocked == 1


@pytest.mark.parametrize("key", ["plant.1.a", "plant/1/a", "", "plant.+.a", "plant.#", "a" * 255])
async def test_keys_that_are_no_topics_are_kept_in_a_header(tmp_path: Path, key: str) -> None:
    async with serving(tmp_path, patterns={"telemetry": ["#"]}) as node:
        client = await confirming(node)
        client.publish(key, b"x")
        client.publish(key, b"y", exchange="amq.fanout")
        await confirmed(client, 2)
        for record in await node.stored():
            exchange = "amq.topic" if record.payload == b"x" else "amq.fanout"
            assert origin_of(record.key, record.headers) == (exchange, key)


# --- What a connection remembers of its publishes: found again by the bytes of their frames, bounded, and forgotten


PLAIN = b"\0\0"
ROUTE = Route(Destination((1,), False, False), live=False, marked=False)


class Channel:
    def __init__(self) -> None:
        self.count = 0

    def published(self, count: int) -> None:
        self.count += count


class Clock:
    now = 5
    left = 1

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def targets(clock: Clock) -> Targets:
    found = Targets(clock, lambda _: clock.left > 0)
    found.remember(method("a"), Target(Channel(), b"\0\1", b"a", (("amqp.exchange", "x"),), ROUTE))
    return found


def method(key: str) -> bytes:
    return write_method(commands.Basic.Publish(0, "amq.topic", key), 1)


def headers_of(targets: Targets, properties: bytes) -> object:
    form = targets.find(method("a"), properties)
    assert isinstance(form, Form)
    return form.headers


def identified(number: int) -> bytes:
    return write_properties(((MESSAGE_ID, f"m-{number}"),))


def test_properties_that_come_again_are_read_and_packed_once(targets: Targets) -> None:
    assert not isinstance(headers_of(targets, PLAIN), PackedHeaders)
    headers = headers_of(targets, PLAIN)
    assert isinstance(headers, PackedHeaders)
    assert headers == (("amqp.exchange", "x"),)
    assert headers_of(targets, PLAIN) is headers


def test_a_publisher_of_equal_messages_has_packed_headers_from_the_second_read_on(targets: Targets) -> None:
    message = method("a") + write_content(1, PLAIN, b"body", 1 << 17)
    found = []
    for _ in range(3):
        gathered = Gathering()
        assert scan(message * 2, 0, targets, gathered, 1 << 20) == 2 * len(message)
        (run,) = gathered.groups.values()
        found.append([type(pairs) is PackedHeaders for pairs in run.headers.values()])
    assert found == [[False, False], [True, True], [True, True]]


def test_messages_with_identifiers_of_their_own_are_taken_and_not_remembered(targets: Targets) -> None:
    for number in range(1_000):
        assert headers_of(targets, identified(number)) == ((MESSAGE_ID, f"m-{number}"), ("amqp.exchange", "x"))
    assert len(targets._forms) == 0
    assert len(targets._seen) <= 256


def test_what_is_remembered_is_bounded(targets: Targets) -> None:
    for number in range(1_000):
        for _ in range(2):
            targets.find(method("a"), identified(number))
    frames = [method(f"{number:0200}") for number in range(1_000)]
    for each in frames:
        targets.remember(each, Target(Channel(), b"\0\1", b"a", (), ROUTE))
    assert sum(targets.find(frame, PLAIN) is not None for frame in frames) < KNOWN_BYTES_MAX / 1_000


@pytest.mark.parametrize("properties", [b"", b"\xff", b"\x80\x00\x09short", b"\x00\x10\x01u"])
def test_what_is_malformed_or_names_a_user_is_left(targets: Targets, properties: bytes) -> None:
    assert targets.find(method("a"), properties) is None


@pytest.mark.parametrize("headers", [(("CC", "x"),), (("BCC", "x"),), ((REPLY_TO, "amq.rabbitmq.reply-to"),)])
def test_what_goes_elsewhere_than_its_method_says_is_left(targets: Targets, headers: HeaderPairs) -> None:
    assert targets.find(method("a"), write_properties(headers)) is None


def test_properties_are_read_while_the_turn_lasts(targets: Targets, clock: Clock) -> None:
    for _ in range(2):
        assert targets.find(method("a"), PLAIN) is not None
    clock.left = 0
    assert targets.find(method("a"), PLAIN) is not None, "what is known costs nothing"
    assert targets.find(method("a"), identified(1)) is None


def test_a_channel_that_closes_is_forgotten_alone(targets: Targets) -> None:
    other = Channel()
    targets.remember(method("b"), Target(other, b"\0\2", b"b", (), ROUTE))
    targets.forget(other)
    assert targets.find(method("b"), PLAIN) is None
    assert targets.find(method("a"), PLAIN) is not None


def test_each_message_that_expires_has_a_time_of_its_own(targets: Targets, clock: Clock) -> None:
    properties = b"\x01\x00\x011"  # expiration: one millisecond
    data = method("a") + write_content(1, properties, b"body", 4096)
    for _ in range(3):
        clock.now += 1_000
        gathered = Gathering()
        assert scan(data, 0, targets, gathered, 1 << 20) == len(data)
        assert (EXPIRES, clock.now + 1_000_000) in gathered.groups[ROUTE.destination].headers[0]
