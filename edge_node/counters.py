"""Counters of clients of all protocols: plain integers that only the event loop's thread changes.

Each is a metric, whose help in ``config/metrics`` defines it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start; counters whose metric is a gauge have the present value."""

    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connect_timeouts: int = 0
    keep_alive_timeouts: int = 0
    write_timeouts: int = 0
    protocol_errors: int = 0
    takeovers: int = 0
    clients_expelled: int = 0
    sessions: int = 0
    sessions_evicted: int = 0
    sessions_expired: int = 0
    sessions_refused: int = 0
    subscriptions: int = 0
    subscriptions_refused: int = 0
    publishes_received: int = 0
    publishes_repeated: int = 0
    publishes_unrouted: int = 0
    publish_bytes_received: int = 0
    publishes_denied: int = 0
    publishes_resent: int = 0
    retained_refused: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    wills_published: int = 0
    wills_refused: int = 0
    wills_waiting: int = 0
    will_bytes: int = 0
    acks_sent: int = 0
    log_refusals: int = 0
    backpressure_pauses: int = 0
    receive_maximum_pauses: int = 0
    deliveries_sent: int = 0
    deliveries_dropped: int = 0
    deliveries_too_large: int = 0
    deliveries_lost: int = 0
    messages_expired: int = 0
    sessions_behind: int = 0


@dataclass(slots=True)
class ListenerCounters:
    """Totals since the start; counters whose metric is a gauge have the present value."""

    connections_rate_limited: int = 0
    connections_half_open: int = 0
    half_open_evicted: int = 0
    handshakes_failed: int = 0
    proxy_headers_refused: int = 0
    accept_pauses: int = 0
    authentications_refused: int = 0
    authentications_turned_away: int = 0
    authentications_waiting: int = 0
    reloads: int = 0
    reload_failures: int = 0


@dataclass(slots=True)
class TraceCounters:
    """Totals of traced messages."""

    traced_messages: int = 0
    trace_rate_exceeded: int = 0
