"""A publisher of AMQP 0-9-1 that sends any bytes as routing key and properties, as brokers take them and libraries do
not."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

from tests.support.waiting import PATIENCE_S


class RawMessage(NamedTuple):
    """A message; the properties are a content header from its flags on."""

    routing_key: bytes
    body: bytes
    properties: bytes = b"\0\0"


def short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


async def publish_raw(port: int, exchange: str, messages: list[RawMessage]) -> None:
    """Publish, and wait for the confirms."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def answer(class_id: int, method_id: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                kind, _, size = struct.unpack(">BHI", await reader.readexactly(7))
                payload = await reader.readexactly(size + 1)
                if kind == 1 and payload.startswith(struct.pack(">HH", class_id, method_id)):
                    return

    writer.write(b"AMQP\0\0\x09\x01")
    await answer(10, 10)
    writer.write(method(0, 10, 11, long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US")))
    await answer(10, 30)
    writer.write(method(0, 10, 31, struct.pack(">HIH", 10, 131_072, 0)) + method(0, 10, 40, short(b"/") + b"\0\0"))
    await answer(10, 41)
    writer.write(method(1, 20, 10, short(b"")) + method(1, 85, 10, b"\0"))
    await answer(85, 11)
    for message in messages:
        header = struct.pack(">HHQ", 60, 0, len(message.body)) + message.properties
        where = b"\0\0" + short(exchange.encode()) + short(message.routing_key) + b"\0"
        writer.write(method(1, 60, 40, where) + frame(2, 1, header) + frame(3, 1, message.body))
        await answer(60, 80)
    writer.close()
