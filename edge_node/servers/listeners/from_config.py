"""Settings of listeners and of admission, from the node's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from weft.config.intake.listeners import Listener, Tls, WebSocket, bind_of, protocol_of
from weft.config.models import EdgeConfig
from weft.config.units import Address, parse_listen
from weft.edge_node.servers.listeners.settings import ListenerSettings, WebSocketSettings
from weft.network.settings import AdmissionLimits
from weft.network.tls.files import TlsFiles

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
