"""AMQP 0-9-1 as a part of the node. Imported where the configuration has a listener for it, and only there. The first
client loads the protocol and its tables: an idle node saves this megabyte."""

from __future__ import annotations

import asyncio

from weft.bounds import Bound, Quota
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp.client import AmqpContext, AmqpCounters, AmqpSettings
from weft.edge_node.servers.clients.context import Foundation, ProtocolContext, ProtocolPart
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.protocols.amqp.frames import PROTOCOL_HEADER


class Amqp(ProtocolPart):
    """All AMQP 0-9-1 connections. Belongs to the event loop's thread."""

    name = "AMQP 0-9-1"
    prefixes = (PROTOCOL_HEADER,)
    greeting = PROTOCOL_HEADER

    def __init__(self, context: ProtocolContext, queues: Queues, settings: AmqpSettings) -> None:
        """Connect them to the context and its queues."""
        self.counters = AmqpCounters()
        quota = Quota.of("queues.channels", settings.channels_total_max, settings.limits.user_share, "AMQP channels")
        channels = Bound(quota, context.refusals)
        self._shared = AmqpContext(context, queues, settings, channels, self.counters)

    def connect(self, authenticator: Authenticator, accepted: AcceptedConnection) -> asyncio.Protocol:
        """Return the protocol object of a connection."""
        from weft.edge_node.servers.amqp.connection import AmqpConnection

        return AmqpConnection(self._shared, authenticator, accepted)

    async def close(self) -> None:
        """Close all connections: the node stops."""
        for client in list(self._shared.clients):
            client.shut_down()
        for over in list(self._shared.lingering):
            over.end()

    def permissions_changed(self) -> None:
        """Close the connections of users that are no longer admitted."""
        for client in list(self._shared.clients):
            if client.peer is not None and not client.peer.identity.admitted:
                client.expel()


def make(foundation: Foundation) -> Amqp:
    """Create the part, with the queues that such listeners have."""
    assert foundation.queues is not None
    return Amqp(foundation.context, foundation.queues, AmqpSettings.of(foundation.config, foundation.software))
