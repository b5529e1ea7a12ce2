"""AMQP 0-9-1 as a part of the node. Imported where the configuration has a listener for it, and only there. The first
client loads the protocol and its tables: a megabyte that an idle node does without."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from weft.bounds import Bound, Refusals, one_share
from weft.config.listeners import protocol_of
from weft.config.models import EdgeConfig
from weft.edge_node.counters import AmqpCounters
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp.client import Shared
from weft.edge_node.servers.amqp.settings import AmqpSettings
from weft.edge_node.servers.broker.broker import Broker
from weft.edge_node.servers.listeners.door import Arrival, Door


class Amqp:
    """All AMQP 0-9-1 connections. Belongs to the event loop's thread."""

    def __init__(
        self, broker: Broker, queues: Queues, settings: AmqpSettings, counters: AmqpCounters, refusals: Refusals
    ) -> None:
        """Join them to the broker and its queues."""
        channels = Bound(
            settings.channels_total_max, settings.channels_per_user_max, refusals,
            "queues.channels", "queues.channels_per_user", "AMQP channels",
        )  # fmt: skip
        self._shared = Shared(broker, queues, settings, channels, counters)

    def connect(self, door: Door, arrival: Arrival) -> asyncio.Protocol:
        """Return the side of a connection that knows the protocol."""
        from weft.edge_node.servers.amqp.connection import AmqpConnection

        return AmqpConnection(self._shared, door, arrival)

    def close(self) -> None:
        """Close all connections: the node stops."""
        for client in list(self._shared.clients):
            client.shut_down()
        for over in list(self._shared.lingering):
            over.end()

    def permissions_changed(self) -> None:
        """Close the connections of users that are not let in any more."""
        for client in list(self._shared.clients):
            if client.peer is not None and not client.peer.identity.admitted:
                client.expel()


def amqp_settings(config: EdgeConfig, software: str) -> AmqpSettings:
    """Return the bounds on AMQP clients, from the node's configuration."""
    queues = config.queues
    vhosts: dict[str, Mapping[str, str]] = {
        name: {vhost: prefix or "" for vhost, prefix in listener.vhosts.items()}
        for name, listener in config.listeners.items()
        if listener is not None and listener.vhosts is not None and protocol_of(name, listener) == "amqp"
    }
    return AmqpSettings(
        channels_total_max=queues.channels,
        channels_per_user_max=one_share(queues.channels_per_user, queues.channels),
        message_bytes_max=config.limits.message_bytes,
        software=software,
        vhosts=vhosts,
    )
