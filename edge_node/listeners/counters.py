"""Counters of listeners, admission, authentication and reloads. The event loop's thread changes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ListenerCounters:
    """Totals since the start, except where a line says "now"."""

    connections_rate_limited: int = 0
    """Connections closed at once because their address connected too often, or has too many connections."""
    connections_half_open: int = 0
    """Connections accepted and not yet admitted, now: their proxy header, TLS handshake, WebSocket upgrade, CONNECT or
    password check is not complete."""
    half_open_evicted: int = 0
    """Half-open connections closed for newer ones, because there were too many."""
    handshakes_failed: int = 0
    """TLS handshakes and WebSocket upgrades that failed."""
    proxy_headers_refused: int = 0
    """Connections without a valid PROXY header, or from an address that is no trusted proxy."""
    accept_pauses: int = 0
    """Pauses in accepting because the process had no file descriptor left."""
    authentications_refused: int = 0
    """CONNECTs that were refused."""
    authentications_turned_away: int = 0
    """CONNECTs refused because too many passwords were waiting to be checked; part of the former."""
    authentications_waiting: int = 0
    """Passwords waiting to be checked, now."""
    reloads: int = 0
    """Reloads of users, access rules or certificates."""
    reload_failures: int = 0
    """Failed reloads: a changed file could not be used, and its former content stayed in force."""
