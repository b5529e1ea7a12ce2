"""Messages that brokers take from every client, and that a source cannot take: they do not stop their queue."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.edge_node.sources.nodes import running
from tests.edge_node.sources.raw_publisher import RawMessage, long, publish_raw, short
from tests.edge_node.sources.test_amqp_source import EVERYTHING, amqp_source, channel, left, queue
from tests.support.brokers import RabbitMq
from tests.support.waiting import until

pytestmark = pytest.mark.slow
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
