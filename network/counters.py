"""Counters of connections, which an edge node and a hub have among others of their own."""

from __future__ import annotations

from typing import Protocol


class ConnectionCounters(Protocol):
    """Totals since the start; ``connections`` has the present number."""

    connections: int
    connections_accepted: int
    connections_refused: int
    connect_timeouts: int


class HandshakeCounters(Protocol):
    """Totals since the start; ``connections_half_open`` has the present number."""

    connections_rate_limited: int
    connections_half_open: int
    half_open_evicted: int
    handshakes_failed: int
    proxy_headers_refused: int
    accept_pauses: int


class ReloadCounters(Protocol):
    """Totals since the start."""

    reloads: int
    reload_failures: int
