"""MQTT over WebSocket (MQTT 5.0 section 6): a connection that looks like any other transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from edge_node.listeners.admission import Admission, Visit
from edge_node.listeners.settings import WebSocketSettings
from edge_node.listeners.websocket_frames import (
    BINARY,
    CLOSE,
    GOING_AWAY,
    NORMAL,
    PING,
    PONG,
    BadFrame,
    Frames,
    closing,
    frame,
)
from edge_node.listeners.websocket_upgrade import END, HEAD_BYTES_MAX, Refused, upgrade

CLOSE_TIMEOUT_S = 2.0
"""How long a client may take to answer our closing frame."""

Connect = Callable[[asyncio.Transport, Visit], asyncio.Protocol]
"""Makes the MQTT connection of a WebSocket that is open."""


class WebSockets:
    """The WebSocket side of one listener."""

    def __init__(self, settings: WebSocketSettings, connect: Connect, admission: Admission) -> None:
        """Serve ``settings.path`` and nothing else."""
        self.settings = settings
        self.connect = connect
        self.admission = admission
        self._open: set[WebSocket] = set()
        self._all_left: asyncio.Future[None] | None = None

    def welcome(self, _transport: asyncio.Transport, visit: Visit) -> asyncio.Protocol:
        """Speak HTTP with a new connection."""
        return WebSocket(self, visit)

    async def close(self) -> None:
        """End all connections; clients have ``CLOSE_TIMEOUT_S`` to answer a closing frame."""
        if self._open:
            self._all_left = asyncio.get_running_loop().create_future()
            for each in list(self._open):
                each.go_away()
            await self._all_left

    def arrived(self, connection: WebSocket) -> None:
        """A connection was made; it has not asked for its upgrade yet."""
        self._open.add(connection)

    def left(self, connection: WebSocket) -> None:
        """A connection has ended."""
        self._open.discard(connection)
        if not self._open and self._all_left is not None and not self._all_left.done():
            self._all_left.set_result(None)


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """One connection: the protocol of its socket, and the transport of its MQTT side.

    What is written goes out as binary messages [MQTT-6.0.0-1]; a packet may be spread over many, and one may hold many
    [MQTT-6.0.0-2].
    """

    __slots__ = ("_frames", "_head", "_owner", "_protocol", "_timer", "_transport", "_visit")

    def __init__(self, owner: WebSockets, visit: Visit) -> None:
        super().__init__()
        self._owner = owner
        self._visit = visit
        self._transport: asyncio.Transport
        self._head = b""
        """Of the HTTP request, until it is whole."""
        self._frames: Frames | None = None
        """None before the upgrade, and once nothing is read any more."""
        self._protocol: asyncio.Protocol | None = None
        """Who messages are handed to, from the upgrade on."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs from our closing frame on."""

    # --- asyncio.Protocol, of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request; the admission minds how long."""
        self._transport = cast(asyncio.Transport, transport)
        self._owner.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._frames is not None:
            self._read(self._frames, data)
        elif self._protocol is None and not self._transport.is_closing():
            self._read_head(data)

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, whoever closed it."""
        self._frames = None
        self._owner.left(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        else:
            self._visit.closed()

    # --- asyncio.Transport, of the MQTT connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send as one message."""
        if self._timer is None and data:
            self._transport.write(frame(BINARY, bytes(data)))

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken."""
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When to pause and resume the protocol's writing."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high)."""
        return self._transport.get_write_buffer_limits()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket beneath knows."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether it is closed, or being closed."""
        return self._timer is not None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def close(self) -> None:
        """Send what waits and a closing frame; then wait a little for the client's."""
        self._close(NORMAL)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand messages to another protocol from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who messages are handed to."""
        assert self._protocol is not None
        return self._protocol

    # --- inside

    def go_away(self) -> None:
        """The listener ends."""
        self._close(GOING_AWAY) if self._protocol is not None else self._transport.abort()

    def _read_head(self, data: bytes) -> None:
        head, end, rest = (self._head + data).partition(END)
        try:
            if not end:
                self._head = head
            if len(head) > HEAD_BYTES_MAX:
                raise Refused(431, f"a request of more than {HEAD_BYTES_MAX} bytes")
            if not end:
                return
            answer = upgrade(head, self._owner.settings)
        except Refused as error:
            admission = self._owner.admission
            admission.door_counters.handshakes_failed += 1
            admission.complain("websocket", "no WebSocket with %s: %s", self._visit.name, error)
            self._transport.write(error.answer)
            self._transport.close()
            return
        self._head = b""
        self._transport.write(answer)
        self._frames = Frames(self._owner.admission.limits.websocket_message_bytes_max)
        self._protocol = self._owner.connect(self, self._visit)
        self._protocol.connection_made(self)
        if rest:
            self.data_received(rest)

    def _read(self, frames: Frames, data: bytes) -> None:
        messages: list[bytes] = []
        code = None
        try:
            for opcode, payload in frames.receive(data):
                if opcode == BINARY:
                    messages.append(payload)
                elif opcode == PING:
                    self._transport.write(frame(PONG, payload))
                elif opcode == CLOSE:
                    code = NORMAL
                    break
        except BadFrame as error:
            code = error.code
            self._owner.admission.complain("frame", "closed WebSocket of %s: %s", self._visit.name, error)
        if messages and self._protocol is not None and self._timer is None:
            self._protocol.data_received(messages[0] if len(messages) == 1 else b"".join(messages))
        if code is not None:
            self._frames = None
            if self._timer is None:
                self._transport.write(closing(code))
            self._transport.close()

    def _close(self, code: int) -> None:
        if self._timer is not None or self._transport.is_closing():
            return
        self._transport.write(closing(code))
        self._timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        self._transport.resume_reading()
