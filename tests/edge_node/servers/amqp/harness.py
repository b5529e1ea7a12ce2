"""A node with queues and AMQP 0-9-1 over a real log, and a client that sends exactly what a test gives it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.edge_node.servers.mqtt.harness import BrokerNode, Guest, running
from tests.support.waiting import PATIENCE_S
from weft.bounds import Refusals
from weft.edge_node.queues.limits import QueueLimits
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp.client import AmqpCounters, AmqpSettings
from weft.edge_node.servers.amqp.part import Amqp
from weft.edge_node.servers.listeners.listeners import ByPrefix
from weft.protocols.amqp.content import write_content
from weft.protocols.amqp.frames import (
    BODY,
    FRAME_BYTES_MIN,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    Frame,
    read_frame,
)
from weft.protocols.amqp.methods import Method, commands, read_method, write_method

PATTERNS = {"telemetry": ["plant/{line}/#"], "alarms": ["alarm/+"]}
MethodT = TypeVar("MethodT", bound=Method)


@dataclass
class AmqpNode:
    node: BrokerNode
    amqp: Amqp
    queues: Queues
    counters: AmqpCounters
    refusals: Refusals
    port: int

    @property
    def counters_of_node(self) -> Any:
        return self.node.counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    settings: AmqpSettings = AmqpSettings(),
    patterns: dict[str, list[str]] = PATTERNS,
    queue_limits: QueueLimits = QueueLimits(),
    **options: Any,
) -> AsyncIterator[AmqpNode]:
    async with running(directory, patterns=patterns, **options) as node:
        refusals = node.context.refusals
        queues = Queues(
            node.log,
            node.context.ingest,
            node.state.backlog,
            queue_limits,
            refusals,
            node.context.round_robin,
            node.context.wheel,
            time.time_ns,
        )
        amqp = Amqp(node.context, queues, settings)
        server = await asyncio.get_running_loop().create_server(
            lambda: ByPrefix(
                node.authenticator,
                Guest(node.counters),
                {PROTOCOL_HEADER: amqp.connect},
                PROTOCOL_HEADER,
                "AMQP",
                node.context.disconnect_log,
            ),
            "127.0.0.1",
            0,
        )
        try:
            yield AmqpNode(node, amqp, queues, amqp.counters, refusals, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            await amqp.close()
            queues.close()


@dataclass
class Returned:
    """A message as a client gets it."""

    method: Any
    properties: bytes
    body: bytes


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._data = b""
        self.server: Any = None
        """connection.start."""
        self.terms: Any = None
        """connection.tune."""

    @classmethod
    async def open(cls, port: int, *, receive_bytes: int = 0) -> RawClient:
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=connection))

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        vhost: str = "/",
        user: bytes = b"guest",
        password: bytes = b"guest",
        heartbeat: int = 0,
        channels: int = 1,
        frame_max: int = 0,
        capabilities: dict[str, bool] | None = None,
        receive_bytes: int = 0,
        name: str = "",
    ) -> RawClient:
        client = await cls.open(port, receive_bytes=receive_bytes)
        client.send(PROTOCOL_HEADER)
        client.server = await client.expect(commands.Connection.Start)
        properties: dict[str, Any] = {"capabilities": capabilities or {}}
        if name:
            properties["connection_name"] = name
        client.send(commands.Connection.StartOk(properties, "PLAIN", (b"\0" + user + b"\0" + password).decode()))
        client.terms = await client.expect(commands.Connection.Tune)
        client.send(commands.Connection.TuneOk(0, frame_max, heartbeat), commands.Connection.Open(vhost))
        await client.expect(commands.Connection.OpenOk)
        for number in range(1, channels + 1):
            await client.ask(commands.Channel.Open(), commands.Channel.OpenOk, number)
        return client

    def send(self, *what: bytes | Method, channel: int = 0) -> None:
        self.writer.write(b"".join(each if isinstance(each, bytes) else write_method(each, channel) for each in what))

    def publish(
        self,
        key: str,
        body: bytes = b"",
        *,
        exchange: str = "amq.topic",
        properties: bytes = b"\0\0",
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        method = commands.Basic.Publish(0, exchange, key, mandatory, immediate)
        self.send(write_method(method, channel) + write_content(channel, properties, body, FRAME_BYTES_MIN))

    async def ask(self, method: Method, answer: type[MethodT], channel: int = 1) -> MethodT:
        self.send(method, channel=channel)
        return await self.expect(answer, channel)

    async def expect(self, kind: type[MethodT], channel: int | None = None) -> MethodT:
        frame = await self.frame()
        assert frame is not None, f"the connection was closed instead of {kind.name}"
        assert frame.kind == METHOD, frame
        method = read_method(frame.payload)
        assert isinstance(method, kind), dict(method) | {"name": method.name}
        assert channel is None or frame.channel == channel
        return method

    async def content(self, kind: type[Method]) -> Returned:
        """A method with its content."""
        method = await self.expect(kind)
        header = await self.frame()
        assert header is not None
        assert header.kind == HEADER
        size, body = int.from_bytes(header.payload[4:12], "big"), b""
        while len(body) < size:
            piece = await self.frame()
            assert piece is not None
            assert piece.kind == BODY
            body += piece.payload
        return Returned(method, header.payload[12:], body)

    async def frame(self, *, heartbeats: bool = False) -> Frame | None:
        """The next frame; None once the node has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = read_frame(self._data, 0, 1 << 24)
                if found is not None:
                    frame, end = found
                    self._data = self._data[end:]
                    if heartbeats or frame.kind != HEARTBEAT:
                        return frame
                    continue
                try:
                    more = await self.reader.read(1 << 16)
                except ConnectionResetError:
                    more = b""
                if not more:
                    return None
                self._data += more

    async def octets(self, count: int) -> bytes:
        """The next octets, whatever they are."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(count)

    async def closed(self) -> bool:
        """Whether the node closes the connection without another frame."""
        return await self.frame() is None

    async def leave(self) -> None:
        """Close the connection, as clients do once its end is agreed on; the node closes it then."""
        self.writer.write_eof()
        assert await self.closed()

    async def connection_error(self) -> commands.Connection.Close:
        """The exception with which the node closes the connection, which is then closed in good order."""
        found = await self.expect(commands.Connection.Close, 0)
        self.send(commands.Connection.CloseOk())
        await self.leave()
        return found

    async def channel_error(self, channel: int = 1) -> commands.Channel.Close:
        """The exception with which the node closes a channel, which is then open again."""
        found = await self.expect(commands.Channel.Close, channel)
        self.send(commands.Channel.CloseOk(), channel=channel)
        await self.ask(commands.Channel.Open(), commands.Channel.OpenOk, channel)
        return found

    async def silent(self) -> bool:
        """Whether nothing has come although the event loop has had time to send it."""
        for _ in range(20):
            await asyncio.sleep(0.001)
        return not (self._data or self.reader._buffer)  # type: ignore[attr-defined]

    async def close(self) -> None:
        self.writer.close()
