"""MQTT over WebSocket (MQTT 5.0 section 6): aiohttp speaks it, and here it looks like any other transport."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from edge_node.door_counters import DoorCounters
from edge_node.listeners.admission import Visit
from edge_node.listeners.settings import WebSocketSettings

PROTOCOLS = ("mqtt", "mqttv3.1")
"""The subprotocol [MQTT-6.0.0-3], and what clients of MQTT 3.1 ask for."""
CLOSE_TIMEOUT_S = 2.0
"""How long a client may take to answer our closing frame."""
VISITS_MIN = 64
"""Connections without an upgrade that are kept in mind before those that ended are looked for."""
HIGH_WATER_BYTES = 64 << 10
"""As asyncio's own transports."""

Connect = Callable[[asyncio.Transport, Visit], asyncio.Protocol]
"""Makes the MQTT connection of a WebSocket that is open."""


class WebSockets:
    """The WebSocket side of one listener."""

    def __init__(
        self, settings: WebSocketSettings, connect: Connect, *, bytes_max: int, counters: DoorCounters
    ) -> None:
        """Serve ``settings.path`` and nothing else.

        Args:
            bytes_max: longest message. It may be in any number of fragments, which are kept until it is whole.
        """
        self._settings = settings
        self._connect = connect
        self._bytes_max = bytes_max
        self._counters = counters
        self._visits: dict[object, Visit] = {}
        """By aiohttp's protocol of the connection: what has not asked for its upgrade yet."""
        self._visits_max = VISITS_MIN
        self._server = web.Server(self._upgrade, access_log=None)

    def welcome(self, _transport: asyncio.Transport, visit: Visit) -> asyncio.BaseProtocol:
        """Speak HTTP with a new connection."""
        protocol = self._server()
        if len(self._visits) >= self._visits_max:  # some ended without a word
            self._visits = {each: known for each, known in self._visits.items() if not known.is_over}
            self._visits_max = max(2 * len(self._visits), VISITS_MIN)
        self._visits[protocol] = visit
        return protocol

    async def close(self) -> None:
        """End all connections."""
        await self._server.shutdown(CLOSE_TIMEOUT_S)

    async def _upgrade(self, request: web.BaseRequest) -> web.StreamResponse:
        visit = self._visits.pop(request.protocol, None)
        refusal = self._refusal(request)
        if visit is None or refusal is not None:
            self._counters.handshakes_failed += 1
            response = refusal or web.Response(status=400, text="one upgrade for each connection\n")
            response.force_close()
            return response
        websocket = web.WebSocketResponse(
            protocols=PROTOCOLS, max_msg_size=self._bytes_max, compress=False, timeout=CLOSE_TIMEOUT_S
        )
        await websocket.prepare(request)
        transport = WebSocketTransport(websocket, cast(asyncio.Transport, request.transport))
        await transport.serve(self._connect(transport, visit))
        return websocket

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        if request.path != self._settings.path:
            return web.Response(status=404, text=f"MQTT is at {self._settings.path}\n")
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return web.Response(status=426, headers={"Upgrade": "websocket"}, text="this is MQTT over WebSocket\n")
        asked = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if not any(protocol in asked for protocol in PROTOCOLS):
            return web.Response(status=400, text="expected the WebSocket subprotocol mqtt [MQTT-6.0.0-3]\n")
        origin = request.headers.get("Origin")
        if origin is not None and not self._is_welcome(origin, request.headers.get("Host", "")):
            return web.Response(status=403, text="pages of this origin may not connect; `origins` says which may\n")
        return None

    def _is_welcome(self, origin: str, host: str) -> bool:
        """Whether pages of an origin may connect: otherwise any page in a browser could speak to a local node."""
        if self._settings.origins is not None:
            return "*" in self._settings.origins or origin in self._settings.origins
        with contextlib.suppress(ValueError):
            return urlsplit(origin).hostname == urlsplit(f"//{host}").hostname
        return False


class WebSocketTransport(asyncio.Transport):
    """A WebSocket as an asyncio transport: what is written goes out as binary messages [MQTT-6.0.0-1]."""

    def __init__(self, websocket: web.WebSocketResponse, transport: asyncio.Transport) -> None:
        super().__init__()
        self._websocket = websocket
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.Protocol
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_held = False
        """Whether the protocol was told to pause writing."""
        self._is_closing = False
        self._writer: asyncio.Task[None] | None = None
        self._reading_again: asyncio.Future[None] | None = None
        """While reading is paused."""

    async def serve(self, protocol: asyncio.Protocol) -> None:
        """Carry messages to a protocol until the WebSocket ends."""
        self._protocol = protocol
        protocol.connection_made(self)
        kind = None
        try:
            while not self._is_closing:
                if self._reading_again is not None:
                    await self._reading_again
                message = await self._websocket.receive()
                kind = message.type
                if kind is not WSMsgType.BINARY:
                    break
                if not self._is_closing:
                    protocol.data_received(message.data)
            if self._writer is not None:
                await self._writer
            # A text message is no MQTT [MQTT-6.0.0-1]; after any other this does nothing.
            with contextlib.suppress(ConnectionError):
                await self._websocket.close(code=1003 if kind is WSMsgType.TEXT else 1000)
        finally:
            self._is_closing = True
            if self._writer is not None:
                self._writer.cancel()
            protocol.connection_lost(None)

    # --- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, as part of the next message."""
        if self._is_closing or not data:
            return
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())
        if self._waiting_bytes > self._high and not self._is_held:
            self._is_held = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken."""
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to pause and resume the protocol's writing."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)."""
        return self._low, self._high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket beneath knows."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether it is closed, or being closed."""
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Hand over no message until ``resume_reading``; what comes meanwhile fills aiohttp's bounded buffer."""
        if self._reading_again is None:
            self._reading_again = self._loop.create_future()

    def resume_reading(self) -> None:
        """Hand over messages again."""
        again, self._reading_again = self._reading_again, None
        if again is not None and not again.done():
            again.set_result(None)

    def close(self) -> None:
        """Send what waits, then close."""
        if not self._is_closing:
            self._is_closing = True
            self._writer = self._loop.create_task(self._finish(self._writer))
            self.resume_reading()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._transport.abort()
        self.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand messages to another protocol from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who messages are handed to."""
        return self._protocol

    async def _write(self) -> None:
        try:
            while self._waiting:
                data = b"".join(self._waiting)
                self._waiting.clear()
                await self._websocket.send_bytes(data)  # waits while the socket does not take more
                self._waiting_bytes -= len(data)
                if self._is_held and self._waiting_bytes <= self._low:
                    self._is_held = False
                    self._protocol.resume_writing()
        except (ConnectionError, RuntimeError):  # aiohttp's words for a socket that is gone; the reader sees it as well
            self._waiting.clear()
        finally:
            if self._writer is asyncio.current_task():
                self._writer = None

    async def _finish(self, writer: asyncio.Task[None] | None) -> None:
        if writer is not None:
            await writer
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._websocket.close()
