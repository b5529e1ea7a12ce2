"""MQTT as a part of the node, and streams as another."""

from __future__ import annotations

import asyncio

from weft.config.models import EdgeConfig
from weft.edge_node.check.streams import intake_patterns, stream_policies, suppressed_streams
from weft.edge_node.part import Part, Undo
from weft.edge_node.servers.clients.context import ProtocolContext, ProtocolPart
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.edge_node.servers.mqtt.connection import ClientConnection
from weft.edge_node.servers.mqtt.server import MqttServer, MqttSettings
from weft.edge_node.sessions.broker_state import BrokerState


class Mqtt(ProtocolPart):
    """All MQTT connections and sessions."""

    name = "MQTT"

    def __init__(self, config: EdgeConfig, software: str, context: ProtocolContext, state: BrokerState) -> None:
        """Connect the server to context and state.

        Args:
            software: name and version of the node, for its clients.
        """
        self.server = MqttServer(context, state, MqttSettings.of(config, software))

    def connect(self, authenticator: Authenticator, accepted: AcceptedConnection) -> asyncio.Protocol:
        """Return a connection of a listener."""
        return ClientConnection(self.server, authenticator, accepted)

    def start(self) -> None:
        """Restore the sessions of the last run."""
        self.server.start()

    def permissions_changed(self) -> None:
        """Check the clients' rights again."""
        self.server.sessions.permissions_changed()

    async def close(self) -> None:
        """Close every connection."""
        self.server.close()


class Streams(Part):
    """Streams: their retention, and the topics that devices publish to."""

    name = "streams"

    def __init__(self, context: ProtocolContext, server: MqttServer) -> None:
        """Connect to the log's policies and the routes of clients."""
        self._context = context
        self._server = server

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        """Route by the patterns of ``now``. Removed streams keep their records and their retention.

        Raises:
            ValueError: the log cannot have one of the streams, or a pattern is not valid.
        """
        self._put(now)
        return lambda: self._put(before)

    def _put(self, config: EdgeConfig) -> None:
        log, server = self._context.log, self._server
        policies = {log.stream(name): policy for name, policy in stream_policies(config).items()}
        suppressed = suppressed_streams(config, log)
        server.sessions.add_streams(self._context.reroute(intake_patterns(config)))
        server.resent.suppress(suppressed)
        for stream, policy in policies.items():
            log.set_policy(stream, policy)
