"""The two forms of events of a tail: server-sent events, and messages of a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import web

from weft.replication.runner.socket_messages import SocketReader

WRITE_S = 10.0
"""Longest time that a reader may take to read an event: slower ones are disconnected, and go on from their position."""
CLIENT_BYTES_MAX = 1024
"""Longest message of a client, which has nothing to say."""
HEARTBEAT_S = 30.0


class TailWriter(Protocol):
    """Events to one reader."""

    @property
    def is_open(self) -> bool:
        """Return whether the reader is there."""
        ...

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer the request."""
        ...

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event, with its ``position``. Raise ``TimeoutError`` if the reader does not read."""
        ...

    async def idle(self) -> None:
        """Show the reader, and proxies between, that the connection is alive."""

    async def end(self, event: dict[str, Any] | None) -> None:
        """End, with the reason as the last event."""
        ...


class SentEvents:
    """Server-sent events: the position is the identifier at which a browser goes on."""

    def __init__(self) -> None:
        self._stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._request: web.Request | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the connection is open."""
        transport = self._request.transport if self._request is not None else None
        return transport is not None and not transport.is_closing()

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Send the head, and a comment that shows it to readers that wait for a line."""
        self._request = request
        async with asyncio.timeout(WRITE_S):
            await self._stream.prepare(request)
            await self._stream.write(b":\n\n")
        return self._stream

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event."""
        head = f"id: {event['position']}\n".encode()
        async with asyncio.timeout(WRITE_S):
            await self._stream.write(head + b"data: " + msgspec.json.encode(event) + b"\n\n")

    async def idle(self) -> None:
        """Send a comment."""
        async with asyncio.timeout(WRITE_S):
            await self._stream.write(b":\n\n")

    async def end(self, event: dict[str, Any] | None) -> None:
        """End the answer."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(WRITE_S):
                if event is not None:
                    await self._stream.write(b"event: end\ndata: " + msgspec.json.encode(event) + b"\n\n")
                await self._stream.write_eof()


class SocketMessages:
    """Messages of a WebSocket (RFC 6455): each event is one, as text."""

    def __init__(self) -> None:
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=CLIENT_BYTES_MAX, compress=False, timeout=WRITE_S, autoping=False
        )
        self._reading: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def is_open(self) -> bool:
        """Return whether the connection is open: a client that says something other than that it leaves is ended."""
        is_read = self._reading is not None and not self._reading.done()
        return is_read and not self._socket.closed and not self._is_ending

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Answer the handshake."""
        async with asyncio.timeout(WRITE_S):
            await self._socket.prepare(request)
        self._reading = asyncio.create_task(self._read(), name="tail-socket")
        return self._socket

    async def _read(self) -> None:
        messages = SocketReader(self._socket)
        message = await messages.next()  # returns when the client leaves, or says something
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            self._is_ending = True
            await messages.close(aiohttp.WSCloseCode.UNSUPPORTED_DATA, b"a tail takes no messages", WRITE_S)

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event."""
        async with asyncio.timeout(WRITE_S):
            await self._socket.send_str(msgspec.json.encode(event).decode())

    async def idle(self) -> None:
        """Do nothing: pings of the protocol show it."""

    async def end(self, event: dict[str, Any] | None) -> None:
        """Close: as going away, or for the reason of the last event."""
        if self._is_ending and self._reading is not None:
            await asyncio.wait([self._reading])
            return
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2 * WRITE_S):
                if event is not None and not self._socket.closed:
                    await self.send(event)
                code = aiohttp.WSCloseCode.GOING_AWAY if event is None else aiohttp.WSCloseCode.POLICY_VIOLATION
                await self._socket.close(code=code)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
