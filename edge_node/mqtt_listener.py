"""The MQTT server: accepts clients and keeps their number within bounds."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from edge_node.counters import Counters
from edge_node.ingest import Ingest
from edge_node.mqtt_connection import MqttConnection
from edge_node.sessions import Sessions
from protocols.mqtt.publish_run import SCAN_PACKET_BYTES_MIN
from storage.segment_log.settings import RECORD_BYTES_MAX

log = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that the kernel may hold before they are accepted: all devices of a plant reconnect at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSettings:
    """One MQTT listener. Clients are anonymous: the address must be one that only trusted clients reach."""

    host: str = "127.0.0.1"
    port: int = 1883
    """0 takes a free one."""
    connections_max: int = 10_000
    packet_bytes_max: int = 1 << 20
    """Longest packet, fixed header included; a longer one is refused on its first bytes."""
    connect_timeout_s: float = 10.0
    """From the connection to CONNECT."""
    write_timeout_s: float = 60.0
    """How long a client may leave unread what it was sent."""
    subscriber_queue_bytes_max: int = 1 << 20
    """Bytes written to one client and not yet taken by its socket: past it deliveries at QoS 0 are dropped, and the
    client is not read."""

    def __post_init__(self) -> None:
        if not SCAN_PACKET_BYTES_MIN <= self.packet_bytes_max <= RECORD_BYTES_MAX:
            raise ValueError(
                f"packet_bytes_max must be {SCAN_PACKET_BYTES_MIN} to {RECORD_BYTES_MAX}, got {self.packet_bytes_max}"
            )


class MqttListener:
    """Listens on one address. Everything happens on the event loop's thread."""

    def __init__(self, ingest: Ingest, sessions: Sessions, settings: MqttSettings, counters: Counters) -> None:
        self.ingest = ingest
        self.sessions = sessions
        self.settings = settings
        self.counters = counters
        self.loop = asyncio.get_running_loop()
        self.port = settings.port
        """The TCP port; once started, the one that was bound."""
        self._connections: set[MqttConnection] = set()
        self._server: asyncio.Server | None = None
        self._full = False

    async def start(self) -> None:
        """Bind and accept.

        Raises:
            OSError: the address cannot be bound.
        """
        settings = self.settings
        self._server = await self.loop.create_server(
            lambda: MqttConnection(self), settings.host, settings.port, backlog=BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop accepting and close every connection. Wills are not published; unacknowledged publishes come again."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.shut_down()
        await self._server.wait_closed()

    def admit(self, connection: MqttConnection, peer: str) -> bool:
        """Count a new connection in, or refuse it when there are too many. Logs the first refusal of each rush."""
        if len(self._connections) >= self.settings.connections_max:
            self.counters.connections_refused += 1
            if not self._full:
                log.warning(
                    "refused MQTT client at %s: %d connections are open, the limit; raise connections_max for more",
                    peer, len(self._connections),
                )  # fmt: skip
            self._full = True
            return False
        self._connections.add(connection)
        self.counters.connections_accepted += 1
        self.counters.connections = len(self._connections)
        return True

    def leave(self, connection: MqttConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._full = False
        self.counters.connections = len(self._connections)
        self.ingest.back_pressure.leave(connection)
