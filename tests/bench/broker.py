"""A broker for the load generator: it answers as told and notes every message with its connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CONNACK = {4: b"\x20\x02\x00\x00", 5: b"\x20\x03\x00\x00\x00"}
PINGRESP = b"\xd0\x00"


@dataclass
class Message:
    client: str
    topic: str
    payload: bytes


@dataclass
class Broker:
    """``hold_until`` messages are taken before the first is acknowledged."""

    hold_until: int = 0
    port: int = 0
    messages: list[Message] = field(default_factory=list)
    clients: set[str] = field(default_factory=set)
    _held: list[tuple[asyncio.StreamWriter, bytes]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, version = "", 4
        try:
            while True:
                first, body = await packet(reader)
                if first >> 4 == 1:
                    version = body[6]
                    start = 12 + (version == 5)
                    client = body[start:].decode()
                    self.clients.add(client)
                    writer.write(CONNACK[version])
                elif first >> 4 == 3:
                    self._publish(client, version, first >> 1 & 3, body, writer)
                elif first >> 4 == 6:
                    writer.write(b"\x70\x02" + body)
                elif first >> 4 == 12:
                    writer.write(PINGRESP)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _publish(self, client: str, version: int, qos: int, body: bytes, writer: asyncio.StreamWriter) -> None:
        end = 2 + int.from_bytes(body[:2], "big")
        payload = body[end + (2 if qos else 0) + (version == 5) :]
        self.messages.append(Message(client, body[2:end].decode(), payload))
        if qos:
            self._held.append((writer, bytes([0x40 if qos == 1 else 0x50, 2]) + body[end : end + 2]))
        if len(self.messages) >= self.hold_until:
            for waiting, answer in self._held:
                waiting.write(answer)
            self._held.clear()


async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the first byte and the body of the next packet."""
    first, length, shift = (await reader.readexactly(1))[0], 0, 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return first, await reader.readexactly(length)


@asynccontextmanager
async def running(broker: Broker, tls: ssl.SSLContext | None = None) -> AsyncIterator[Broker]:
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        broker.port = server.sockets[0].getsockname()[1]
        yield broker
