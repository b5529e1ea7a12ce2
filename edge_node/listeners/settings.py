"""What one listener is, and the bounds that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from weft.config.units import Address, UnixSocket

Network = IPv4Network | IPv6Network
LOOPBACK = Address("127.0.0.1", 1883)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a listener with TLS."""

    certificate: str
    """The listener's own, with the chain that clients need after it."""
    key: str
    client_ca: str | None = None
    """Authorities of client certificates; None asks clients for none."""
    client_certificate_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketSettings:
    """How a WebSocket listener is reached."""

    path: str = "/mqtt"
    origins: tuple[str, ...] | None = None
    """Pages that may connect; None is those of the listener's own host, ``("*",)`` all. Only browsers say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One listener."""

    name: str = "mqtt"
    """For log lines."""
    bind: Address | UnixSocket = LOOPBACK
    tls: TlsFiles | None = None
    websocket: WebSocketSettings | None = None
    proxies: tuple[Network, ...] | None = None
    """Where connections may come from, each with a PROXY header (version 2) before anything else; None: no proxy."""
    anonymous: str = "loopback"
    """Who may come in without a name: ``never`` anybody, ``loopback`` this machine, ``allowed_beyond_loopback`` all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds on connections, over all listeners."""

    connections_max: int = 16_384
    """Clients that are let in. Connections that are not are counted by ``half_open_max``."""
    connections_per_address_max: int | None = None
    connection_rate_per_address: int = 200
    """New connections a second from one address. This machine's own clients are not held to it."""
    connection_burst_per_address: int = 2_000
    """Connections that an address may make at once before the rate holds."""
    half_open_max: int = 1_024
    """Connections not yet let in; past it the one that has taken longest is given up."""
    connect_timeout_s: float = 10.0
    """From accepting a connection to letting its client in."""
    websocket_message_bytes_max: int = 1 << 20
    """Longest WebSocket message; one packet may be spread over many, and one may hold many [MQTT-6.0.0-2]."""
