"""A listener whose protocol only echoes: what comes before the protocol is what is tested."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from tests.support.waiting import PATIENCE_S, until
from weft.config.units import Address
from weft.edge_node.counters import Counters, ListenerCounters
from weft.edge_node.servers.listeners.listeners import WebSockets
from weft.edge_node.servers.listeners.settings import ListenerSettings
from weft.network.accepting import Acceptor
from weft.network.admission import Admission, AdmissionLimits, NetworkConnection


class Echo(asyncio.Protocol):
    """Sends back what comes, and is let in with the first byte, as with a CONNECT."""

    def __init__(self, listener: EchoListener, connection: NetworkConnection) -> None:
        self.listener, self.connection = listener, connection
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.received = b""
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.connection.transport = self.transport
        self.listener.echoes.append(self)

    def data_received(self, data: bytes) -> None:
        self.connection.opened()
        self.received += data
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.connection.closed()


@dataclass
class EchoListener:
    """One listener and what is behind it."""

    admission: Admission
    counters: Counters
    listener_counters: ListenerCounters
    acceptor: Acceptor = None  # type: ignore[assignment]
    echoes: list[Echo] = field(default_factory=list)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)
    """Those that stay until the end."""

    @property
    def port(self) -> int:
        assert isinstance(self.acceptor.bound, Address)
        return self.acceptor.bound.port

    async def open(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, **options)

    async def works(self, **options: Any) -> bool:
        """Whether a new client gets an echo."""
        reader, writer = await self.open(**options)
        writer.write(b"hello")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await reader.readexactly(5) == b"hello"
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        finally:
            writer.close()


@asynccontextmanager
async def echoing(
    *, tls: ssl.SSLContext | None = None, limits: AdmissionLimits = AdmissionLimits(), **options: Any
) -> AsyncIterator[EchoListener]:
    settings = ListenerSettings(**{"bind": Address("127.0.0.1", 0)} | options)
    counters, listener_counters = Counters(), ListenerCounters()
    listener = EchoListener(Admission(limits, counters, listener_counters), counters, listener_counters)
    websockets = None
    make_protocol: Any = lambda _transport, connection: Echo(listener, connection)  # noqa: E731
    if settings.websocket is not None:
        websockets = WebSockets(settings.websocket, make_protocol, listener.admission)
        make_protocol = websockets.make_protocol
    listener.acceptor = Acceptor(
        make_protocol, listener.admission, name=settings.name, bind=settings.bind, proxies=settings.proxies
    )
    listener.acceptor.tls = tls
    await listener.acceptor.start()
    listener.acceptor.accept()
    try:
        yield listener
    finally:
        listener.acceptor.stop()
        for client in listener.clients:
            client.transport.abort()
        for echo in listener.echoes:
            echo.transport.abort()
        if websockets is not None:
            await websockets.close()
        listener.admission.close()
        await until(lambda: all("lost" in echo.calls for echo in listener.echoes))
