"""Settings of listeners and of admission, and the interface of a listener for its accepted connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Protocol

from weft.config.listeners import Listener, Tls, WebSocket, bind_of, protocol_of
from weft.config.models import EdgeConfig
from weft.config.units import Address, UnixSocket, parse_listen
from weft.edge_node.access.identity import Credentials, Identity
from weft.network.admission import AdmissionLimits, Network
from weft.network.tls import TlsFiles

# Settings of one listener.

LOOPBACK = Address("127.0.0.1", 1883)


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


# Interface of a listener for its accepted connections. Listeners implement it; tests have their own.


class Authenticator(Protocol):
    """Authentication by one listener."""

    @property
    def name(self) -> str:
        """Return the listener's name in the configuration."""
        ...

    async def authenticate(self, credentials: Credentials, transport: Any, address: str) -> Identity:
        """Return the identity of an admitted client. The connection is not read meanwhile.

        Args:
            transport: source of ``peername``, ``ssl_object``, ... by ``get_extra_info``.
            address: address of the client, for charges; empty for this machine.

        Raises:
            AccessDenied: it is refused.
        """
        ...


class AcceptedConnection(Protocol):
    """One connection in its listener's counts. Until ``opened`` the listener bounds the client's time."""

    name: str
    """The client's address, for log lines."""
    origin: str
    """Address for charges, for IPv6 the /64; empty for this machine."""

    async def room(self) -> bool:
        """Return whether there is room for one more client; wait a moment for one that leaves.

        Call it before ``opened``, except for a client whose other connection is about to be closed.
        """
        ...

    def opened(self) -> None:
        """Note that the client was admitted."""

    def closed(self) -> None:
        """Note that the connection has ended. Called once."""


# Settings of listeners and of admission, from the node's configuration.

WEBSOCKET_NAMES = ("ws", "wss")
"""Names of listeners that use WebSocket without a section for it."""


def listener_settings(config: EdgeConfig) -> Iterator[ListenerSettings]:
    """Yield the settings of every listener that is not switched off."""
    for name, listener in config.listeners.items():
        if listener is None:
            continue
        proxy = listener.proxy_protocol
        yield ListenerSettings(
            name=name,
            protocol=protocol_of(name, listener),
            bind=parse_listen(bind_of(name, listener)),
            tls=None if listener.tls is None else _tls(listener.tls),
            websocket=_websocket(name, listener),
            proxies=None if proxy is None else tuple(ip_network(network) for network in proxy.trusted),
            anonymous=listener.anonymous,
        )


def admission_limits(config: EdgeConfig) -> AdmissionLimits:
    """Return the bounds on connections."""
    limits = config.limits
    return AdmissionLimits(
        connections_max=limits.connections,
        connections_per_address_max=limits.connections_per_address,
        connection_rate_per_address=limits.connection_rate,
        connection_burst_per_address=limits.connection_burst,
        half_open_max=limits.half_open,
        connect_timeout_s=limits.connect_timeout_s,
        websocket_message_bytes_max=limits.message_bytes,
    )


def _tls(tls: Tls) -> TlsFiles:
    return TlsFiles(
        certificate=tls.certificate,
        key=tls.key,
        client_ca=tls.client_ca,
        crl_file=tls.crl_file,
        client_certificate_required=tls.client_certificate == "required",
    )


def _websocket(name: str, listener: Listener) -> WebSocketSettings | None:
    if listener.websocket is None and name not in WEBSOCKET_NAMES:
        return None
    section = listener.websocket or WebSocket()
    bind = parse_listen(bind_of(name, listener))
    return WebSocketSettings(
        path=section.path,
        origins=section.origins,
        scheme="http" if listener.tls is None else "https",
        is_loopback=isinstance(bind, Address) and bind.is_loopback,  # no browser reaches a unix socket by itself
    )
