"""A node with a listener for AMQP 1.0, and clients of Proton's and of raw bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.waiting import PATIENCE_S

pytest.importorskip("proton", reason="python-qpid-proton is not installed: pip install weft-fabric[amqp1]")

from proton import ConnectionException, Delivery, Message, Terminus, symbol, timestamp, ulong
from proton.reactor import AtMostOnce, DurableSubscription, Filter, LinkOption
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender, LinkDetached, SendException

from tests.edge_node.servers.mqtt.harness import BrokerNode, Guest, running
from weft.edge_node.queues.limits import QueueLimits
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp1.connection import Amqp1Connection
from weft.edge_node.servers.amqp1.context import Amqp1Context
from weft.edge_node.servers.listeners.listeners import ByPrefix
from weft.protocols.amqp1 import AMQP, SASL

__all__ = [
    "AMQP",
    "PATIENCE_S",
    "SASL",
    "Amqp",
    "AtMostOnce",
    "BlockingReceiver",
    "BlockingSender",
    "ConnectionException",
    "Delivery",
    "DurableSubscription",
    "Filter",
    "LinkDetached",
    "LinkOption",
    "Message",
    "ProtonClient",
    "Raw",
    "SendException",
    "SettlesSecond",
    "Terminus",
    "amqp",
    "in_thread",
    "symbol",
    "timestamp",
    "ulong",
]

Answer = TypeVar("Answer")


class SettlesSecond(LinkOption):  # type: ignore[misc]
    """A link whose receiver settles after its sender: ``rcv-settle-mode`` second."""

    def apply(self, link: Any) -> None:
        link.rcv_settle_mode = link.RCV_SECOND


async def in_thread(work: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
    """Do what a blocking client does, while the node continues."""
    return await asyncio.wait_for(asyncio.to_thread(work, *arguments, **named), PATIENCE_S)


@dataclass
class Amqp:
    """A node and its port for AMQP."""

    node: BrokerNode
    parts: Amqp1Context
    port: int

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    async def client(self, container: str = "container", **options: Any) -> ProtonClient:
        return await in_thread(ProtonClient, self.url, container, **options)


class ProtonClient:
    """A blocking connection of Proton's; call its methods through ``in_thread``."""

    def __init__(self, url: str, container: str, **options: Any) -> None:
        from proton.reactor import Container

        self.links = 0
        own = Container()
        own.container_id = container
        self.connection = BlockingConnection(
            url, timeout=PATIENCE_S, container=own, allowed_mechs=options.pop("mechanisms", "ANONYMOUS"), **options
        )

    def sender(self, address: str | None, **options: Any) -> BlockingSender:
        self.links += 1
        return self.connection.create_sender(address, name=f"sender-{self.links}", **options)

    def receiver(self, address: str | None, credit: int = 100, **options: Any) -> BlockingReceiver:
        return self.connection.create_receiver(address, credit=credit, **options)

    def send(self, address: str | None, *messages: Message) -> None:
        sender = self.sender(address)
        if len(messages) > 1:  # all at once
            deliveries = [sender.link.send(message) for message in messages]
            self.connection.wait(lambda: all(each.settled for each in deliveries), timeout=PATIENCE_S)
            assert {each.remote_state for each in deliveries} == {Delivery.ACCEPTED}
        else:
            sender.send(messages[0])
        sender.close()

    def receive(self, receiver: BlockingReceiver, count: int) -> list[Message]:
        found = []
        for _ in range(count):
            found.append(receiver.receive(timeout=PATIENCE_S))
            receiver.accept()
        self.connection.wait(lambda: self.connection.conn.transport.pending() <= 0, timeout=PATIENCE_S)
        return found

    async def close(self) -> None:
        with suppress(Exception):
            await in_thread(self.connection.close)

    def drop(self) -> None:
        """End the connection without a word."""
        own = socket.socket(fileno=self.connection.conn.transport._selectable.fileno())
        own.shutdown(socket.SHUT_RDWR)
        own.detach()


class Raw:
    """A client that sends what a test gives it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    async def until(self, wanted: bytes) -> None:
        """Read until something has come."""
        async with asyncio.timeout(PATIENCE_S):
            await self.reader.readuntil(wanted)

    async def all(self) -> bytes:
        """Return everything until the node closes the connection."""
        found = b""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    more = await self.reader.read(1 << 16)
                except ConnectionResetError:
                    return found
                if not more:
                    return found
                found += more


@asynccontextmanager
async def amqp(
    directory: Path, *, kill: bool = False, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Amqp]:
    """A node until the block ends.

    Args:
        kill: whether it ends without saving anything.
    """
    async with running(directory, kill=kill, **settings) as node:
        context = node.context
        queues = Queues(
            node.log,
            context.ingest,
            node.state.backlog,
            QueueLimits(),
            context.refusals,
            context.round_robin,
            context.wheel,
            context.wall_clock,
        )
        parts = Amqp1Context(context, node.log, "edge-1", "test", queues)
        parts.start()
        choices = {
            header: lambda authenticator, accepted: Amqp1Connection(parts, authenticator, accepted)
            for header in (AMQP, SASL)
        }
        server = await asyncio.get_running_loop().create_server(
            lambda: ByPrefix(
                node.authenticator, Guest(node.counters), choices, AMQP, "AMQP", node.context.disconnect_log
            ),
            "127.0.0.1",
            0,
            ssl=tls,
        )
        try:
            yield Amqp(node, parts, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            if kill:
                parts.kept.save = lambda: None  # type: ignore[method-assign]
            parts.close()
            if not kill:
                queues.close()
            await asyncio.sleep(0)
