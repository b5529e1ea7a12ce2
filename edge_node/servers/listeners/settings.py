"""Settings of one listener."""

from __future__ import annotations

from dataclasses import dataclass

from weft.config.units import Address, UnixSocket
from weft.network.settings import Network
from weft.network.tls.files import TlsFiles

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
