"""HTTP as a part of the node. The first client loads the protocol: an idle node saves this megabyte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.config.models import EdgeConfig
from weft.edge_node.part import Undo
from weft.edge_node.servers.clients.context import Foundation, ProtocolPart
from weft.edge_node.servers.http.idempotency import IdempotencyKeys
from weft.edge_node.servers.http.settings import HttpCounters, HttpSettings
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.edge_node.streams import HTTP_STREAM

if TYPE_CHECKING:
    from weft.edge_node.servers.http.connection import HttpConnection
    from weft.edge_node.servers.http.service import HttpService


class Http(ProtocolPart):
    """All HTTP connections of a node. Belongs to the event loop's thread."""

    name = "HTTP"

    def __init__(self, foundation: Foundation) -> None:
        """Restore the idempotency keys.

        Raises:
            OSError, LogError: the log cannot be read.
        """
        context = foundation.context
        log, settings = context.log, HttpSettings.of(foundation.config, foundation.software)
        self.counters = HttpCounters()
        keys = IdempotencyKeys(log, log.stream(HTTP_STREAM), settings, self.counters, context.wall_clock)
        self._parts = (log, context, settings, self.counters, context.refusals, keys, context.wall_clock)
        self._config = foundation.config
        self._service: HttpService | None = None

    @property
    def service(self) -> HttpService:
        """Return the shared service of connections, created at the first call."""
        if self._service is None:
            from weft.edge_node.servers.http.service import HttpService

            self._service = HttpService(self._config, *self._parts)
        return self._service

    def connect(self, authenticator: Authenticator, accepted: AcceptedConnection) -> HttpConnection:
        """Return a connection of a listener."""
        return self.service.make_connection(authenticator, accepted)

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Accept messages for the streams of ``now``. Return the undo."""
        self._use(now)
        return lambda: self._use(before)

    def _use(self, config: EdgeConfig) -> None:
        self._config = config
        if self._service is not None:
            self._service.use(config)

    def permissions_changed(self) -> None:
        """Check again what readers may read: users or access rules were read again."""
        if self._service is not None:
            self._service.permissions_changed()

    async def close(self) -> None:
        """Close all connections. Clients send unanswered requests again."""
        if self._service is not None:
            self._service.close()


make = Http
