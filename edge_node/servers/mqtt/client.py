"""Interface of a client's connection for handshake, packet handlers and publishes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.clients.connected import Connected
from weft.edge_node.servers.clients.reading import Reading
from weft.edge_node.servers.listeners.door import Arrival
from weft.edge_node.sessions.session import Session
from weft.protocols.mqtt.errors import MqttError
from weft.protocols.mqtt.packets import Packet
from weft.protocols.mqtt.reason_codes import ReasonCode


class MqttClient(Connected, Protocol):
    """One client's connection (``ClientConnection``). Only it has the transport, and it ends the other parts with it.

    Every call belongs to the event loop's thread. Calls that close the connection may be repeated when it is closed.
    """

    arrival: Arrival
    """The connection in its listener's counts."""
    reading: Reading
    """Pauses and turns."""

    @property
    def is_open(self) -> bool:
        """Return whether data can still be sent to the client."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole packets; do nothing once it is closed."""

    def send_all(self, parts: Sequence[bytes]) -> None:
        """Write whole packets in parts."""

    def answer(self, packet: Packet) -> None:
        """Write one packet in the client's version."""

    def welcome(self, session: Session, routes: RouteCache) -> None:
        """Handle packets for this session from now on. The caller then sends CONNACK, and calls ``reading.go_on``."""

    def fail(self, error: MqttError, level: int = logging.WARNING) -> None:
        """Refuse CONNECT and close."""

    def refuse(self, error: BaseException) -> None:
        """Close: the client's messages could not be stored, so they must not be acknowledged."""

    def displace(self, code: ReasonCode) -> None:
        """Close: the session belongs to another connection now [MQTT-3.1.4-3], or has ended."""

    def said_goodbye(self, code: int, *, with_will: bool) -> None:
        """Close after DISCONNECT."""

    def shut_down(self) -> None:
        """Close because the node stops, without publishing the will."""
