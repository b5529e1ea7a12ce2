"""A listener whose protocol only echoes: what comes before the protocol is what is tested."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from weft.config.units import Address
from weft.edge_node.counters import Counters
from weft.edge_node.listeners.accepting import Acceptor
from weft.edge_node.listeners.admission import Admission, Visit
from weft.edge_node.listeners.counters import DoorCounters
from weft.edge_node.listeners.settings import DoorLimits, ListenerSettings
from weft.edge_node.listeners.websocket import WebSockets

PATIENCE_S = 10.0


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something that no event tells has come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Echo(asyncio.Protocol):
    """Sends back what comes, and is let in with the first byte, as with a CONNECT."""

    def __init__(self, door: Door, visit: Visit) -> None:
        self.door, self.visit = door, visit
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.received = b""
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.visit.ending = self.transport
        self.door.echoes.append(self)

    def data_received(self, data: bytes) -> None:
        self.visit.opened()
        self.received += data
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.visit.closed()


@dataclass
class Door:
    """One listener and what is behind it."""

    admission: Admission
    counters: Counters
    door_counters: DoorCounters
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
    *, tls: ssl.SSLContext | None = None, limits: DoorLimits = DoorLimits(), **listener: Any
) -> AsyncIterator[Door]:
    settings = ListenerSettings(**{"bind": Address("127.0.0.1", 0)} | listener)
    counters, door_counters = Counters(), DoorCounters()
    door = Door(Admission(limits, counters, door_counters), counters, door_counters)
    websockets = None
    welcome: Any = lambda _transport, visit: Echo(door, visit)  # noqa: E731
    if settings.websocket is not None:
        websockets = WebSockets(settings.websocket, welcome, door.admission)
        welcome = websockets.welcome
    door.acceptor = Acceptor(settings, door.admission, welcome)
    door.acceptor.tls = tls
    await door.acceptor.start()
    try:
        yield door
    finally:
        door.acceptor.stop()
        for client in door.clients:
            client.transport.abort()
        for echo in door.echoes:
            echo.transport.abort()
        if websockets is not None:
            await websockets.close()
        door.admission.close()
        await until(lambda: all("lost" in echo.calls for echo in door.echoes))
