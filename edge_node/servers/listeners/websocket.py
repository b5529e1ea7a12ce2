"""MQTT over WebSocket (MQTT 5.0 section 6): the WebSocket side of one listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.edge_node.servers.listeners.settings import WebSocketSettings
from weft.network.admission import Admission, NetworkConnection

if TYPE_CHECKING:
    from weft.edge_node.servers.listeners.websocket_connection import WebSocketShared, WebSocketTransport

Connect = Callable[[asyncio.Transport, NetworkConnection], asyncio.Protocol]
"""Function that creates the MQTT connection of an open WebSocket."""


class WebSockets:
    """The WebSocket connections of a listener, from their HTTP request on."""

    def __init__(self, settings: WebSocketSettings, connect: Connect, admission: Admission) -> None:
        """Serve only ``settings.path``."""
        self._parts = (settings, connect, admission, self._opened, self._ended)
        self._shared: WebSocketShared | None = None
        self._open: set[WebSocketTransport] = set()
        self._all_left: asyncio.Future[None] | None = None

    def make_protocol(self, _transport: asyncio.Transport, connection: NetworkConnection) -> asyncio.Protocol:
        """Begin HTTP with a new connection."""
        # Imported here, so that a node does not load the library before it has such a client.
        from weft.edge_node.servers.listeners.websocket_connection import WebSocketShared, WebSocketTransport

        if self._shared is None:
            self._shared = WebSocketShared(*self._parts)
        return WebSocketTransport(self._shared, connection)

    async def close(self) -> None:
        """End all connections; clients have ``CLOSE_TIMEOUT_S`` to answer a closing frame."""
        if self._open:
            self._all_left = asyncio.get_running_loop().create_future()
            for each in list(self._open):
                each.go_away()
            await self._all_left

    def _opened(self, connection: WebSocketTransport) -> None:
        self._open.add(connection)

    def _ended(self, connection: WebSocketTransport) -> None:
        self._open.discard(connection)
        if not self._open and self._all_left is not None and not self._all_left.done():
            self._all_left.set_result(None)
