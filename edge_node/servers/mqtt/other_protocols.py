"""Protocols of connections that never send CONNECT: people point browsers, probes and TLS clients at MQTT's port."""

from __future__ import annotations

_HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"PRI * HTTP/2")
_TLS_HANDSHAKE = b"\x16\x03"
"""Content type and major version of a TLS record (RFC 8446 section 5.1)."""
_PROXY = (b"PROXY ", b"\r\n\r\n\x00\r\nQUIT\n")


def named(data: bytes) -> str | None:
    """Name the protocol of a connection's first bytes, and the remedy; None for an unknown one."""
    if data.startswith(_HTTP_METHODS):
        return (
            "it speaks HTTP and this is a port for MQTT. The status page is at `http.bind`, MQTT over WebSocket at `ws`"
        )
    if data.startswith(_TLS_HANDSHAKE):
        return "it speaks TLS and this listener has none. Connect without TLS, or give the listener `tls`"
    if data.startswith(_PROXY):
        return "it sends a PROXY header and this listener expects none. Set `proxy_protocol`, or connect directly"
    return None
