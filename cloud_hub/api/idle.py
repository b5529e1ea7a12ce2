"""Bound on idle connections: without it, anyone who can reach the port could use up all file descriptors.

aiohttp waits without limit for the head of a request, and needs the head before it can ask for a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

IDLE_S_MAX = 30.0
"""Longest wait of a connection for its (next) request, longer than Prometheus' usual interval."""
IDLE_MAX = 256
"""Maximum number of idle connections; above it, those that have been idle longest are closed."""
LOOK_INTERVAL_S = 1.0


class IdleConnections:
    """A guard that closes connections that have been idle for too long, or are too many. One per server.

    Args:
        connections: those that are open now.
        monotonic: seconds.
    """

    def __init__(self, connections: Callable[[], Iterable[web.RequestHandler]], monotonic: Callable[[], float]) -> None:
        self._connections = connections
        self._monotonic = monotonic
        self._busy: set[asyncio.BaseTransport] = set()
        self._idle_since: dict[asyncio.Transport, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the checks."""
        self._task = asyncio.create_task(self._run(), name="idle-connections")

    async def close(self) -> None:
        """Stop the checks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Track the connections with a request under way."""
        transport = request.transport
        if transport is None:
            return await handler(request)
        self._busy.add(transport)
        try:
            return await handler(request)
        finally:
            self._busy.discard(transport)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Close the connections that are due."""
        now = self._monotonic()
        open_now = [connection.transport for connection in self._connections()]
        idle = [transport for transport in open_now if transport is not None and transport not in self._busy]
        self._idle_since = {transport: self._idle_since.get(transport, now) for transport in idle}
        longest_first = sorted(idle, key=self._idle_since.__getitem__)
        too_many = max(0, len(idle) - IDLE_MAX)
        for at, transport in enumerate(longest_first):
            if at < too_many or now - self._idle_since[transport] >= IDLE_S_MAX:
                transport.abort()
