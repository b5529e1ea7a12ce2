"""Bounds on connections of all listeners."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds on connections, over all listeners."""

    connections_max: int = 16_384
    """Maximum number of admitted clients. Half-open connections are counted by ``half_open_max``."""
    connections_per_address_max: int | None = None
    connection_rate_per_address: int = 200
    """Maximum rate of new connections from one address, per second. This machine's own clients are exempt."""
    connection_burst_per_address: int = 2_000
    """Number of connections that an address may open at once before the rate applies."""
    half_open_max: int = 1_024
    """Maximum number of half-open connections; above it, the oldest is closed."""
    connect_timeout_s: float = 10.0
    """Maximum time from accepting a connection to admitting its client."""
    section: str = "limits"
    """Section of these settings in the configuration, for log lines."""
    websocket_message_bytes_max: int = 1 << 20
    """Longest WebSocket message; one packet may be spread over many, and one may hold many [MQTT-6.0.0-2]."""
