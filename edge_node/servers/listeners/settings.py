"""Settings of one listener, and the bounds that all listeners share."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from weft.config.units import Address, UnixSocket

Network = IPv4Network | IPv6Network
LOOPBACK = Address("127.0.0.1", 1883)


class TlsUnusable(OSError):
    """Certificate, key, authorities or revocation lists that cannot be used. The text names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a listener with TLS."""

    certificate: str
    """File of the listener's own certificate, with the chain that clients need after it."""
    key: str
    client_ca: str | None = None
    """File of the authorities of client certificates; None asks clients for none."""
    crl_file: str | None = None
    """File of the authorities' revocation lists; None: no certificate is revoked before it expires."""
    client_certificate_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketSettings:
    """Settings of a WebSocket listener."""

    path: str = "/mqtt"
    origins: tuple[str, ...] | None = None
    """Origins of pages that may connect; None means the listener's own, ``("*",)`` all. Only browsers send one."""
    scheme: str = "http"
    """Scheme of the listener's own pages: ``https`` with TLS."""
    is_loopback: bool = True
    """True when only this machine reaches the listener, so that a host name in a request may belong to a stranger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings of one listener."""

    name: str = "mqtt"
    """Name for log lines."""
    protocol: str = "mqtt"
    """Protocol of its clients: ``mqtt``, ``amqp`` or ``http``."""
    bind: Address | UnixSocket = LOOPBACK
    tls: TlsFiles | None = None
    websocket: WebSocketSettings | None = None
    proxies: tuple[Network, ...] | None = None
    """Networks of proxies, whose connections begin with a PROXY header (version 2); None: no proxy."""
    anonymous: str = "loopback"
    """Admission of clients without a user name: ``never`` none, ``loopback`` those of this machine,
    ``allowed_beyond_loopback`` all."""


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
    websocket_message_bytes_max: int = 1 << 20
    """Longest WebSocket message; one packet may be spread over many, and one may hold many [MQTT-6.0.0-2]."""
