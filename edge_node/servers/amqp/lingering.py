"""The last seconds of a connection whose end was agreed on, until its client closes it.

A socket that is closed while bytes of the client are unread is reset: the client may lose connection.close-ok with it,
and its next write fails. Clients write until they have read close-ok, and some queue messages behind their close.
"""

from __future__ import annotations

import asyncio

from weft.edge_node.servers.amqp.client import Shared
from weft.edge_node.servers.clients.place import Place
from weft.edge_node.servers.listeners.door import Arrival
from weft.network.shared_buffer import SharedBufferProtocol

LINGER_S_MAX = 5.0
LINGER_BYTES_MAX = 64 << 20
"""Number of dropped bytes after which the node closes the connection."""


class Lingering(asyncio.Protocol):
    """Reader that drops the bytes that a client still sends. The connection counts for its address and user
    meanwhile."""

    __slots__ = ("_arrival", "_bytes_left", "_place", "_shared", "_transport", "wheel_slot")

    def __init__(self, shared: Shared, transport: asyncio.Transport, arrival: Arrival, place: Place) -> None:
        """Take the transport over."""
        self.wheel_slot = -1
        self._shared = shared
        self._arrival = arrival
        self._place = place
        self._transport = transport
        self._bytes_left = LINGER_BYTES_MAX
        is_tls = transport.get_extra_info("sslcontext") is not None
        transport.set_protocol(SharedBufferProtocol(self) if is_tls else self)
        shared.lingering.add(self)
        shared.context.wheel.set(self, shared.context.clock() + LINGER_S_MAX)
        if not transport.is_closing():
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Drop the bytes."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Free the connection's places: the client or the node has closed it."""
        self._shared.context.wheel.cancel(self)
        self._shared.lingering.discard(self)
        self._place.free()
        self._arrival.closed()

    def due(self, now: float) -> float | None:  # noqa: ARG002
        """Close the connection of a client that does not close it."""
        self.end()
        return None

    def end(self) -> None:
        """Close the connection. Bytes that the client has not read are dropped."""
        (self._transport.abort if self._transport.get_write_buffer_size() else self._transport.close)()
