"""AMQP 1.0 as a part of the node. The engine is loaded with the first client."""

from __future__ import annotations

import asyncio

from weft.edge_node.servers.amqp1.context import Amqp1Context
from weft.edge_node.servers.clients.context import Foundation, ProtocolPart
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.protocols.amqp1 import AMQP, SASL


class Amqp1(ProtocolPart):
    """All AMQP 1.0 connections."""

    name = "AMQP 1.0"
    prefixes = (AMQP, SASL)

    def __init__(self, foundation: Foundation) -> None:
        """Restore the links of the last run."""
        context = foundation.context
        self._parts = Amqp1Context(context, context.log, foundation.config.node, foundation.software, foundation.queues)
        self._parts.start()

    def connect(self, authenticator: Authenticator, accepted: AcceptedConnection) -> asyncio.Protocol:
        """Return a connection of a listener."""
        from weft.edge_node.servers.amqp1.connection import Amqp1Connection

        return Amqp1Connection(self._parts, authenticator, accepted)

    def permissions_changed(self) -> None:
        """Check the clients' rights again."""
        self._parts.permissions_changed()

    async def close(self) -> None:
        """Close every connection. Unsettled messages are sent again."""
        self._parts.close()


make = Amqp1
