"""Nodes with sources, in the test's own process."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiomqtt

from tests.support import live_node
from tests.support.live_node import LiveNode
from tests.support.outcomes import outcome
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.sources.part import SourcesPart
from weft.edge_node.sources.status import SourceStatus
from weft.protocols.batch import Flag, Record

NODE = """\
node: a
data_dir: {name}
http: null
disk: {{budget: 64MiB, segment: 4MiB}}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
streams:
  telemetry: {{from: "plant/#"}}
"""


# A stream that no link carries drops what it has no room for.
FULL = NODE.replace('"plant/#"}}', '["plant/#", "+"], retain: {{size: 1MiB}}}}\n  other: {{from: "other/#"}}') + (
    'links: {{cloud: {{to: "http://127.0.0.1:1", streams: [telemetry]}}}}\n'
)


class SourceNode(LiveNode):
    """A node with sources."""

    def source(self, name: str = "plant") -> SourceStatus:
        return next(each for each in self.node.part(SourcesPart).statuses() if each.name == name)

    def durable(self, stream: str = "telemetry") -> int:
        return self.node.log.durable_end(self.node.log.stream(stream))

    async def whole(self, count: int, seconds: float = 30) -> list[Record]:
        """All records, once there are so many different ones."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.stored()
                if len({record.payload for record in found}) >= count:
                    return found
                await asyncio.sleep(0.02)

    async def takes(self, count: int, sending: asyncio.Task[None]) -> None:
        """Wait for so many more messages, or for the end of what is sent."""
        wanted = self.source().messages + count
        await until(lambda: self.source().messages >= wanted or sending.done())


@asynccontextmanager
async def running(folder: Path, sources: str, node: str = NODE, name: str = "data") -> AsyncIterator[SourceNode]:
    async with live_node.running(folder, node.format(name=name) + sources) as found:
        yield SourceNode(found, folder)


def mqtt_source(port: int, more: str = "", keep_alive: str = "2s") -> str:
    return (
        f'sources:\n  plant:\n    mqtt:\n      url: "mqtt://127.0.0.1:{port}"\n      topics: "plant/#"\n'
        f"      retry_min: 20ms\n      retry_max: 200ms\n      keep_alive: {keep_alive}\n{more}"
    )


async def publish(port: int, payloads: list[bytes], topic: str = "plant/a", qos: int = 1) -> None:
    """Publish to a broker, and wait for its acknowledgements."""
    async with aiomqtt.Client("127.0.0.1", port) as client:
        await asyncio.gather(*(client.publish(topic, payload, qos, timeout=PATIENCE_S) for payload in payloads))


@outcome()
def assert_whole(found: list[Record], payloads: list[bytes]) -> None:
    """Every message is there, and all of its records but one are flagged as suspected duplicates."""
    copies = Counter(record.payload for record in found)
    assert set(copies) == set(payloads)
    flagged = Counter(record.payload for record in found if record.flags & Flag.DUPLICATE_SUSPECTED)
    unflagged = {payload: copies[payload] - flagged[payload] for payload in copies}
    assert {payload: count for payload, count in unflagged.items() if count > 1} == {}


# --- A publisher of AMQP 0-9-1 that sends any bytes as routing key and properties, as brokers take them and libraries
# do not


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
