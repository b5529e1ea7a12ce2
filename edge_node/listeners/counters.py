"""Counters of listeners, admission, authentication and reloads. The event loop's thread changes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ListenerCounters:
    """Totals since the start, except where a line says "now"."""

    connections_rate_limited: int = 0
    """Closed at once because their address connected too often, or has too many connections."""
    connections_half_open: int = 0
    """Accepted and not yet let in, now: proxy header, TLS handshake, WebSocket upgrade, CONNECT or password to come."""
    half_open_evicted: int = 0
    """Given up for newer ones, because too many were half open."""
    handshakes_failed: int = 0
    """TLS handshakes and WebSocket upgrades that came to nothing."""
    proxy_headers_refused: int = 0
    """Connections without a good PROXY header, or from an address that is no trusted proxy."""
    accept_pauses: int = 0
    """Times that nothing was accepted because the process had no file descriptor left."""
    authentications_refused: int = 0
    """CONNECTs that were not let in."""
    authentications_turned_away: int = 0
    """Among them: too many passwords waited to be checked."""
    authentications_waiting: int = 0
    """Passwords that wait to be checked, now."""
    reloads: int = 0
    """Users, access rules or certificates that were read anew."""
    reload_failures: int = 0
    """Times that a changed file could not be used, and what was read before stayed in force."""
