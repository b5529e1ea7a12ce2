"""A node consumes a queue of a real RabbitMQ: what that sends is stored, and acknowledged once it is on disk."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import aio_pika
import pytest
from pamqp import commands, frame

from examples.demo.fabric import free_port
from tests.edge_node.sources.nodes import (
    FULL,
    NODE,
    RawMessage,
    SourceNode,
    assert_whole,
    long,
    publish_raw,
    running,
    short,
)
from tests.edge_node.sources.test_mqtt import noise, numbered
from tests.support.brokers import RABBITMQ, RabbitMq, proxy
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import RoundRobin
from weft.config.sources import AmqpSource
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.sources.amqp import AmqpConnection, Delivery
from weft.edge_node.sources.connection import Memory, SourceContext, Topics
from weft.edge_node.sources.status import SourceState, SourceStatus
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.batch import Flag


def amqp_source(port: int, queue: str, more: str = "      declare: durable\n") -> str:
    return (
        f'sources:\n  plant:\n    amqp:\n      url: "amqp://127.0.0.1:{port}"\n      queue: {queue}\n'
        f"      retry_min: 20ms\n      retry_max: 200ms\n      keep_alive: 5s\n{more}"
    )


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid4().hex[:8]}"


@asynccontextmanager
async def channel(port: int) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    async with await aio_pika.connect(host="127.0.0.1", port=port) as connection:
        yield await connection.channel()


async def publish(port: int, queue: str, payloads: list[bytes], **properties: object) -> None:
    """Publish to a durable queue, and wait for the confirms."""
    async with channel(port) as found:
        await found.declare_queue(queue, durable=True)
        messages = [aio_pika.Message(payload, delivery_mode=2, **properties) for payload in payloads]
        await asyncio.gather(*(found.default_exchange.publish(each, queue) for each in messages))


async def left(port: int, queue: str) -> int:
    async with channel(port) as found:
        declared = await found.declare_queue(queue, passive=True)
        return declared.declaration_result.message_count or 0


EVERYTHING = NODE.replace("plant/#", "#")


@pytest.mark.slow
async def test_messages_are_stored_and_acknowledged(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    await publish(rabbit.port, queue, numbered(1000))
    async with running(tmp_path, amqp_source(rabbit.port, queue, ""), EVERYTHING) as node:
        await until(lambda: node.source().acknowledged == 1000)
        found = await node.stored()
        assert [record.payload for record in found] == numbered(1000)
        assert {record.key for record in found} == {queue.encode()}
        assert not any(record.flags for record in found)
    assert await left(rabbit.port, queue) == 0


@pytest.mark.slow
async def test_properties_and_routing_keys_are_mapped(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    more = '      declare: durable\n      bind: {amq.topic: ["plant.*.rms"]}\n'
    sent = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
    async with running(tmp_path, amqp_source(rabbit.port, queue, more)) as node, channel(rabbit.port) as found:
        await until(lambda: node.source().state is SourceState.CONNECTED)
        exchange = await found.get_exchange("amq.topic")
        message = aio_pika.Message(
            b"1",
            content_type="text/plain",
            correlation_id="c",
            reply_to="r",
            message_id="m",
            priority=3,
            timestamp=sent,
            type="reading",
            headers={"unit": "mm/s", "count": 7, "ok": True},
        )
        await exchange.publish(message, "plant.press.rms")
        await until(lambda: node.durable() == 1)
        (record,) = await node.stored()
    assert record.key == b"plant/press/rms"
    headers = dict(record.headers)
    assert headers["weft.sent"] == int(sent.timestamp()) * 1_000_000_000
    assert {name: headers[name] for name in ("unit", "count", "ok", "weft.content-type", "weft.reply-to")} == {
        "unit": "mm/s",
        "count": 7,
        "ok": True,
        "weft.content-type": "text/plain",
        "weft.reply-to": "r",
    }
    assert (headers["weft.message-id"], headers["weft.priority"], headers["weft.subject"]) == ("m", 3, "reading")
    assert "amqp.exchange" not in headers


@pytest.mark.slow
async def test_connections_that_are_cut_lose_nothing(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    messages = numbered(3000)
    async with proxy(rabbit.port) as between:
        async with running(tmp_path, amqp_source(between.port, queue), EVERYTHING) as node:
            await until(lambda: node.source().connections)
            sending = asyncio.create_task(publish(rabbit.port, queue, messages))
            for cuts in range(4):
                await until(lambda cuts=cuts: node.source().connections == cuts + 1)  # type: ignore[misc]
                await node.takes(100, sending)
                between.cut()
            await sending
            assert_whole(await node.whole(len(messages), 60), messages)
            await until(lambda: node.source().connections == 5)
            await until(lambda: not node.source().unacknowledged)
    assert await left(rabbit.port, queue) == 0


@pytest.mark.slow
async def test_a_full_stream_is_not_acknowledged(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    payloads = [noise(20_000, number) for number in range(100)]
    source = amqp_source(rabbit.port, queue)
    async with running(tmp_path, source, FULL) as node:
        await publish(rabbit.port, queue, payloads)
        await until(lambda: "could not be stored" in node.source().last_error)
        assert node.source().acknowledged <= node.durable() < len(payloads)
        node.apply((FULL.format(name="data") + source).replace("1MiB", "32MiB"))
        assert_whole(await node.whole(len(payloads)), payloads)


@pytest.mark.slow
async def test_what_cannot_be_stored_goes_to_the_dead_letter_exchange(
    tmp_path: Path, rabbit: RabbitMq, queue: str
) -> None:
    async with channel(rabbit.port) as found:
        dead = await found.declare_queue(f"{queue}-dead", durable=True)
        await dead.bind("amq.fanout")
        await found.declare_queue(queue, durable=True, arguments={"x-dead-letter-exchange": "amq.fanout"})
        for payload in (b"1", b"x" * 2000, b"2"):
            await found.default_exchange.publish(aio_pika.Message(payload), queue)
        source = amqp_source(rabbit.port, queue, "      message: 1KiB\n")
        async with running(tmp_path, source, EVERYTHING) as node:
            await until(lambda: node.durable() == 2 and node.source().refused == 1)
            message = await asyncio.wait_for(first(dead), PATIENCE_S)
            assert message.body == b"x" * 2000
            await until(lambda: node.source().acknowledged == 2)
            assert [record.payload for record in await node.stored()] == [b"1", b"2"]


async def first(queue: aio_pika.abc.AbstractQueue) -> aio_pika.abc.AbstractIncomingMessage:
    while True:
        found = await queue.get(no_ack=True, fail=False)
        if found is not None:
            return found
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_missing_queue_is_named_and_taken_up_once_it_is_there(
    tmp_path: Path, rabbit: RabbitMq, queue: str
) -> None:
    async with running(tmp_path, amqp_source(rabbit.port, queue, ""), EVERYTHING) as node:
        await until(lambda: "Create it at the broker" in node.source().last_error)
        await publish(rabbit.port, queue, [b"1"])
        await until(lambda: node.durable() == 1)
        async with channel(rabbit.port) as found:
            await found.queue_delete(queue)
        await until(lambda: "was deleted" in node.source().last_error or "Create it" in node.source().last_error)


@pytest.mark.slow
async def test_a_wrong_password_is_named(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    (tmp_path / "password").write_text("wrong\n")
    more = "      username: guest\n      password_file: password\n      declare: durable\n"
    async with running(tmp_path, amqp_source(rabbit.port, queue, more), EVERYTHING) as node:
        await until(lambda: "Check `username`" in node.source().last_error)
        (tmp_path / "password").write_text("guest\n")
        await until(lambda: node.source().state is SourceState.CONNECTED)


@pytest.mark.slow
async def test_a_killed_rabbitmq_loses_nothing_that_it_has_confirmed(
    tmp_path: Path, rabbit: RabbitMq, queue: str
) -> None:
    async with running(tmp_path, amqp_source(rabbit.port, queue), EVERYTHING) as node:
        await until(lambda: node.source().connections)
        await publish(rabbit.port, queue, numbered(500))
        await until(lambda: node.source().messages >= 500)
        await asyncio.to_thread(rabbit.kill)
        await until(lambda: node.source().state is SourceState.WAITING)
        await asyncio.to_thread(rabbit.start)
        await until(lambda: node.source().connections == 2, 60)
        await publish(rabbit.port, queue, numbered(500, 500))
        assert_whole(await node.whole(1000, 60), numbered(1000))


@pytest.mark.slow
async def test_redelivered_messages_are_flagged(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    await publish(rabbit.port, queue, [b"1"])
    async with channel(rabbit.port) as found:  # takes it, and goes without an acknowledgement
        declared = await found.declare_queue(queue, passive=True)
        assert await declared.get(no_ack=False)
    async with running(tmp_path, amqp_source(rabbit.port, queue), EVERYTHING) as node:
        await until(lambda: node.durable() == 1)
        (record,) = await node.stored()
        assert record.flags == Flag.DUPLICATE_SUSPECTED
        assert node.source().duplicates == 1


@pytest.mark.slow
async def test_tls_client_certificate_and_external(tmp_path: Path) -> None:
    if not os.path.exists(RABBITMQ):
        pytest.skip("RabbitMQ is not installed: apt install rabbitmq-server")
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("weft-node")
    more = (
        f"ssl_options.cacertfile = {authority.path}\nssl_options.certfile = {server.certificate}\n"
        f"ssl_options.keyfile = {server.key}\nssl_options.verify = verify_peer\n"
        "ssl_options.fail_if_no_peer_cert = true\nauth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n"
        "ssl_cert_login_from = common_name\ndefault_user = weft-node\ndefault_pass = secret\n"
    )
    port = free_port()
    rabbit = await asyncio.to_thread(RabbitMq, more, "rabbitmq_auth_mechanism_ssl", port)
    declared = "      declare: durable\n"
    ca = f"      tls:\n        ca_file: {authority.path}\n"
    certificate = f"        certificate: {client.certificate}\n        key: {client.key}\n"
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    password = "      username: weft-node\n      password_file: password\n"
    try:
        for terms in (ca + certificate, password + ca + certificate):
            async with running(tmp_path, secure(port, declared + terms), EVERYTHING) as node:
                await until(connected(node))
        async with running(tmp_path, secure(port, declared + password + ca), EVERYTHING) as node:
            await until(lambda: "certificate" in node.source().last_error)
        unknown = ca.replace(authority.path, Authority(tmp_path, "stranger").path)
        async with running(tmp_path, secure(port, declared + unknown + certificate), EVERYTHING) as node:
            await until(lambda: "not trusted" in node.source().last_error)
    finally:
        await asyncio.to_thread(rabbit.close)


def connected(node: SourceNode) -> Callable[[], bool]:
    return lambda: node.source().state is SourceState.CONNECTED


def secure(port: int, more: str) -> str:
    return amqp_source(port, "secure", more).replace("amqp://", "amqps://")


@pytest.mark.slow
async def test_sources_change_while_the_node_runs(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    base, other = EVERYTHING.format(name="data"), f"{queue}-other"
    async with running(tmp_path, "", EVERYTHING) as node:
        await publish(rabbit.port, queue, [b"1"])
        await publish(rabbit.port, other, [b"2"])
        node.apply(base + amqp_source(rabbit.port, queue))
        await until(lambda: node.durable() == 1)
        node.apply(base + amqp_source(rabbit.port, other))
        await until(lambda: node.durable() == 2)
        await publish(rabbit.port, queue, [b"3"])
        assert await left(rabbit.port, queue) == 1, "nobody consumes it any more"
        await until(lambda: node.source().acknowledged == 1)
        node.apply(base)
        assert node.node.status.facts()["sources"] == {}
        async with channel(rabbit.port) as found:
            declared = await found.declare_queue(other, passive=True)
            async with asyncio.timeout(PATIENCE_S):
                while declared.declaration_result.consumer_count:
                    await asyncio.sleep(0.02)
                    declared = await found.declare_queue(other, passive=True)
        assert await left(rabbit.port, other) == 0
        assert not any(record.flags for record in await node.stored())


@pytest.mark.slow
async def test_two_nodes_consume_one_queue(tmp_path: Path, rabbit: RabbitMq, queue: str) -> None:
    source, two = amqp_source(rabbit.port, queue), EVERYTHING.replace("node: a", "node: b")
    async with running(tmp_path, source, EVERYTHING) as one, running(tmp_path, source, two, "other") as other:
        await until(lambda: one.source().connections and other.source().connections)
        await publish(rabbit.port, queue, numbered(400))
        await until(lambda: one.durable() + other.durable() == 400)
        halves = [[record.payload for record in await node.stored()] for node in (one, other)]
    assert all(halves)
    assert sorted(halves[0] + halves[1]) == sorted(numbered(400))
    assert await left(rabbit.port, queue) == 0


# --- Messages that brokers take from every client, and that a source cannot take: they do not stop their queue


__all__ = ["queue"]
HEADERS, CONTENT_TYPE, TIMESTAMP = b"\x20\x00", b"\x80\x00", b"\x00\x40"
REFUSED = [
    RawMessage(b"\xff\xfe", b"a routing key that is not UTF-8"),
    RawMessage(b"a", b"a content type that is not UTF-8", CONTENT_TYPE + short(b"\xff")),
    RawMessage(b"a", b"a field whose name is not UTF-8", HEADERS + long(short(b"\xff") + b"t\1")),
]
KEPT = [
    RawMessage(b"a.#.+", b"wildcards in the routing key"),
    RawMessage(b"a\0b", b"a zero byte in the routing key"),
    RawMessage(b"a", b"a time after the year 9999", TIMESTAMP + struct.pack(">Q", 1 << 63)),
    RawMessage(b"a", b"a field with such a time", HEADERS + long(short(b"t") + b"T" + struct.pack(">Q", 1 << 62))),
    RawMessage(b"a", b"a field of bytes", HEADERS + long(short(b"b") + b"S" + long(b"\xff"))),
    RawMessage(b"a", b"a field of nothing", HEADERS + long(short(b"n") + b"V")),
    RawMessage(b"last", b"what came behind them"),
]


@pytest.mark.slow
async def test_messages_that_libraries_cannot_decode_do_not_stop_a_queue(
    tmp_path: Path, rabbit: RabbitMq, queue: str
) -> None:
    async with channel(rabbit.port) as found:
        declared = await found.declare_queue(queue, durable=True)
        await declared.bind("amq.fanout")
        await publish_raw(rabbit.port, "amq.fanout", [*REFUSED, *KEPT])
        await declared.unbind("amq.fanout")
    async with running(tmp_path, amqp_source(rabbit.port, queue, "      prefetch: 3\n"), EVERYTHING) as node:
        await until(lambda: node.source().acknowledged == len(KEPT))
        stored = {record.payload: record for record in await node.stored()}
        assert list(stored) == [message.body for message in KEPT]
        assert node.source().refused == len(REFUSED)
        assert node.source().connections == 1
        assert dict(stored[b"a field of bytes"].headers)["b"] == b"\xff"
        assert dict(stored[b"wildcards in the routing key"].headers)["amqp.routing-key"] == "a.#.+"
    assert await left(rabbit.port, queue) == 0, "each was acknowledged or rejected"


@pytest.mark.slow
async def test_the_longest_message_is_stored_and_one_beyond_the_bound_is_refused(
    tmp_path: Path, rabbit: RabbitMq, queue: str
) -> None:
    async with channel(rabbit.port) as found:
        await found.declare_queue(queue, durable=True)
    long_one = RawMessage(queue.encode(), bytes(100_000) * 167 + b"x" * 77_200)
    await publish_raw_in_frames(rabbit.port, long_one)
    await publish_raw(rabbit.port, "", [RawMessage(queue.encode(), b"behind")])
    async with running(tmp_path, amqp_source(rabbit.port, queue, "      message: 16MiB\n"), EVERYTHING) as node:
        await until(lambda: node.source().acknowledged == 2)
        assert [len(record.payload) for record in await node.stored()] == [len(long_one.body), len(b"behind")]
    await publish_raw_in_frames(rabbit.port, long_one)
    await publish_raw(rabbit.port, "", [RawMessage(queue.encode(), b"behind")])
    shorter = amqp_source(rabbit.port, queue, "      message: 15MiB\n")
    async with running(tmp_path, shorter, EVERYTHING) as node:
        await until(lambda: node.source().acknowledged == 1)
        assert node.source().refused == 1
        assert node.source().connections == 1
        assert (await node.stored())[-1].payload == b"behind"


async def publish_raw_in_frames(port: int, message: RawMessage) -> None:
    import aio_pika

    async with channel(port) as found:
        await found.default_exchange.publish(aio_pika.Message(message.body), message.routing_key.decode())


# --- A consumer of an external queue whose messages the log refuses


async def test_nothing_is_taken_behind_a_message_that_the_log_has_refused() -> None:
    """The acknowledgement of a later one says "all up to here", and the broker would delete the one between."""
    ingest = cast(Any, SimpleNamespace(routing=SimpleNamespace(routes_of=lambda identity: None)))
    node = SourceContext(ingest, RoundRobin(lambda: None), time.time_ns, Subscriptions())
    taken = list[Any]()

    class Refused(AmqpConnection):
        def _take(self, message: Any) -> None:
            taken.append(message)
            if message.tag == 2:
                self.hold(Pause.DISK)

    settings = AmqpSource(url=("amqp://127.0.0.1",), queue="q")
    none = cast(Any, None)
    connection = Refused(node, SourceStatus("plant", "amqp"), Topics(), Memory(), settings, none, none)
    ahead: Any = connection._ahead
    first, second, third = (Delivery(tag, False, b"", b"", b"", 1, b"x") for tag in (1, 2, 3))
    ahead.extend([first, second, third])
    connection.resume()
    assert taken == [first, second]
    assert list(ahead) == [third]


async def test_a_broker_that_does_not_name_its_capabilities_is_said_to_be_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {
        "Connection.StartOk": commands.Connection.Tune(),
        "Connection.Open": commands.Connection.OpenOk(),
        "Channel.Open": commands.Channel.OpenOk(),
        "Basic.Qos": commands.Basic.QosOk(),
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(8)
            writer.write(frame.marshal(commands.Connection.Start(server_properties={}), 0))
            while True:
                head = await reader.readexactly(7)
                rest = await reader.readexactly(int.from_bytes(head[3:], "big") + 1)
                _, channel, command = frame.unmarshal(head + rest)
                if command.name in answers:
                    writer.write(frame.marshal(answers[command.name], channel))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        async with running(tmp_path, amqp_source(server.sockets[0].getsockname()[1], "q")) as node:
            await until(lambda: node.source().last_error != "")
            assert "names no capabilities when it greets" in node.source().last_error
        server.close()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
