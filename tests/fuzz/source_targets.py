"""Targets of sources: what an external broker sends that is broken, or means harm."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from typing import Any

from tests.fuzz.target import NOW, Target, check_storable
from weft.edge_node.ingest.record import Destination, Route
from weft.edge_node.sources.amqp import Delivery, FrameReader, convert
from weft.edge_node.sources.connection import Memory, SourceContext, SourceDown, Topics
from weft.edge_node.sources.mqtt import MqttConnection, MqttTerms
from weft.edge_node.sources.status import SourceStatus
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.batch import HeaderPairs
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingResp,
    Properties,
    PubAck,
    Publish,
    PubRel,
    SubAck,
    UnsubAck,
    Version,
)

BODY_BYTES_MAX = 64 << 10
TOPICS = Topics()
ROUTE = Route(Destination((1,), False, False), live=False, marked=False)


class _Node:
    """The parts of a node that a source asks: everything is stored, and durable at once."""

    topic_levels_max = 32

    def __init__(self) -> None:
        self.batch = self.routing = self.back_pressure = self
        self.joined_bytes = 0
        self._answers: list[tuple[Any, bytes]] = []
        self._records: list[tuple[bytes, bytes, HeaderPairs]] = []

    def routes_of(self, _: object) -> _Node:
        return self

    def route(self, key: bytes) -> Route:
        return ROUTE

    def add(self, _: Route, key: bytes, payload: bytes, __: object, flags: int = 0, headers: HeaderPairs = ()) -> None:
        assert 0 <= flags < 256
        self._records.append((key, payload, headers))

    def answer(self, source: Any, answer: bytes) -> None:
        self._answers.append((source, answer))

    def relieve(self) -> None:
        pass

    def gathered(self) -> None:
        check_storable(self._records)
        answers = self._answers
        self._answers, self._records = [], []
        if answers:
            answers[0][0].acknowledge(b"".join(answer for _, answer in answers))

    def store(self) -> None:
        self.gathered()

    def join(self, _: object) -> None:
        pass

    leave = join

    def wait(self, _: object, work: Any) -> None:
        asyncio.get_running_loop().call_soon(work)


class _Broker(asyncio.Transport):
    """The broker's end: takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


async def _converse(connection: MqttConnection) -> None:
    with suppress(SourceDown):
        await connection.open()
        await connection.subscribe(["a/#", "b"], 1)
        await connection.unsubscribe(["b"])


async def _receive(data: bytes) -> None:
    version, size = (Version.V5, Version.V311)[data[0] & 1], data[0] >> 1 or len(data)
    node: Any = _Node()
    terms = MqttTerms("node", version, None, None, 60, 3600, 100, 64 << 10)
    status = SourceStatus("fuzz", "mqtt")
    topics = Topics([("x/{a}", "y/{a}")], "from/")
    connection = MqttConnection(
        SourceContext(node, node, lambda: NOW, Subscriptions()), status, topics, Memory(), terms
    )
    broker = _Broker()
    connection.connection_made(broker)
    talk = asyncio.create_task(_converse(connection))
    await asyncio.sleep(0)
    for at in range(1, len(data), size):
        if broker.closing:
            break
        connection.data_received(data[at : at + size])
        await asyncio.sleep(0)
    for _ in range(1000):  # until the turns that it waits for are over
        if not connection.is_held:
            break
        await asyncio.sleep(0)
    connection.connection_lost(None)
    await talk
    assert connection.ended.result()
    assert broker.closing


def _mqtt(data: bytes) -> None:
    """The first byte says which version is spoken, and in what pieces the rest comes."""
    if data:
        _loop().run_until_complete(_receive(data))


def _mqtt_seeds() -> list[bytes]:
    said = Properties(
        content_type="text/plain", correlation_data=b"7", user_properties=(("a", "b"),), message_expiry_interval=9
    )
    packets: tuple[Packet, ...] = (
        ConnAck(False, 0),
        SubAck(1, (1, 2)),
        UnsubAck(2, (0,)),
        PingResp(),
        Publish(b"a/b", b"0"),
        Publish(b"x/b", b"1", 1, 5),
        Publish(b"a/b", b"2", 2, 6, True),
        PubRel(6),
        Publish(b"a/b", b"2", 2, 7),
        PubAck(9),
    )
    in_5 = (Publish(b"a", b"0", 1, 8, properties=said), Disconnect(0x8B))
    old = b"".join(encode(each, Version.V311) for each in packets)
    new = b"".join(encode(each, Version.V5) for each in (*packets, *in_5))
    return [
        b"\1" + old,
        b"\0" + new,
        b"\x06" + new,
        b"\0" + encode(ConnAck(False, 0x87), Version.V5),
        b"\1" + encode(ConnAck(False, 5), Version.V311),
        b"\1" + encode(ConnAck(False, 0), Version.V311) + encode(SubAck(1, (0x80, 1)), Version.V311),
        b"\0" + encode(ConnAck(False, 0), Version.V5) + encode(SubAck(1, (0x87,)), Version.V5),
        b"\0\x20\x02\0\1",
        b"\0\x20\3\0\0\0\xe0\1\x05",
        b"\1" + encode(ConnAck(False, 0), Version.V311) + encode(Publish(b"+/#", b"", 1, 7), Version.V311),
        b"\1" + encode(ConnAck(False, 0), Version.V311) + encode(Publish(b"a", b"", 1, 7), Version.V311) * 2_000,
        b"\1\x30\xff\xff\xff\x7f",
    ]


async def _deliveries(data: bytes) -> None:
    """The rest of a connection, and what is left of it for the client library."""
    taken: list[tuple[bytes, bytes, HeaderPairs]] = []

    def take(delivery: Delivery) -> None:
        assert delivery.size >= 0
        assert len(delivery.body) <= len(data)
        with suppress(ValueError):  # refused, and rejected
            found = convert(delivery, "queue", NOW)
            taken.append((TOPICS.key(found.topic), delivery.body, found.headers))

    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    frames, left = FrameReader(stream, BODY_BYTES_MAX, take), 0
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            left += len(await frames.readexactly(1))
    assert left <= len(data)
    check_storable(taken)


def _amqp(data: bytes) -> None:
    _loop().run_until_complete(_deliveries(data))


def _amqp_seeds() -> list[bytes]:
    def delivery(properties: bytes, body: bytes = b"payload", size: int | None = None) -> bytes:
        deliver = b"\0\x3c\0\x3c\1t" + bytes(7) + b"\1\0\2ex\3a.b"
        head = b"\0\x3c\0\0" + (len(body) if size is None else size).to_bytes(8, "big") + properties
        return b"".join([frame(1, 1, deliver), frame(2, 1, head), frame(3, 1, body) if body else b""])

    def table(body: bytes) -> bytes:
        return b"\x20\0" + len(body).to_bytes(4, "big") + body

    texts = b"\x04text\x04gzip"
    everything = texts + b"\0\0\0\0\2\4\1c\1r\x0260\1m" + bytes(4) + b"\x65S\xf1\0\1t\1u\1a\1z"
    return [
        delivery(b"\0\0") * 3 + frame(8, 0, b"") + frame(1, 0, b"\0\x0a\0\x32\0\0\0\0\0\0\0"),
        delivery(b"\xff\xfc" + everything),
        delivery(b"\xd8\x00" + texts + b"\x02\x05\1a\1b", b""),
        delivery(table(b"\1aI\0\0\0\5\1bS\0\0\0\1x\1ct\1\1dd\x7f\xf8\0\0\0\0\0\0\1fT" + bytes(8) + b"\1gV")),
        delivery(table(b"\1aD\2\0\0\0\7\1bF\0\0\0\5\1xs\0\5\1cA\0\0\0\3t\0V\1ex\0\0\0\2\xff\xfe")),
        delivery(table(b"\1al\xff\xff\xff\xff\xff\xff\xff\xff\1bL\x80" + bytes(7) + b"\1ci\xff\xff\xff\xff\1eB\xff")),
        delivery(table(b"\1aT\xff\xff\xff\xff\xff\xff\xff\xff\1bS\0\0\0\2\xff\xfe")),
        delivery(b"\0\x40" + b"\xff" * 8),
        delivery(b"\1\0\3abc"),
        delivery(b"\0\1\0\1\0\0"),
        delivery(table(b"\1aV" * 300)),
        delivery(b"\0\0", b"x", 1 << 62),
        delivery(b"\0\0", b"", 9) + frame(3, 1, b"") * 1_000,
        b"AMQP\0\0\x09\1",
        b"\1\0\1\x7f\xff\xff\xff",
        frame(1, 1, b"\0\x3c\0\x3c\xff"),
    ]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame of AMQP 0-9-1."""
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


TARGETS = {
    "source-mqtt": Target(_mqtt, _mqtt_seeds, head=1, memory_per_byte=256),
    "source-amqp": Target(_amqp, _amqp_seeds, memory_per_byte=256, longest=16 << 10, is_slow=True),
}
