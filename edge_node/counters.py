"""Counters of clients, whatever they speak: plain integers that only the event loop's thread changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start, except where a line says "now"."""

    connections: int = 0
    """Open connections now, whatever their clients speak."""
    connections_accepted: int = 0
    connections_refused: int = 0
    """Clients refused because the limit was reached."""
    connect_timeouts: int = 0
    """Connections that sent no CONNECT in time."""
    keep_alive_timeouts: int = 0
    write_timeouts: int = 0
    """Clients that did not read what they were sent."""
    protocol_errors: int = 0
    """Connections closed because the client broke the protocol."""
    takeovers: int = 0
    """Connections closed because their client identifier connected again."""
    clients_expelled: int = 0
    """Connections closed because their user was removed or has another password."""
    sessions: int = 0
    """Sessions kept in memory now, connected or not."""
    sessions_evicted: int = 0
    """Sessions deleted because there were too many."""
    sessions_expired: int = 0
    sessions_refused: int = 0
    """CONNECTs refused because there were too many sessions, all of them connected."""
    subscriptions: int = 0
    """Subscriptions now."""
    subscriptions_refused: int = 0
    """Subscriptions over the limit of one session, too long, or not allowed."""
    publishes_received: int = 0
    """Publishes received, without repeated ones at QoS 2."""
    publishes_repeated: int = 0
    """QoS 2 publishes whose packet identifier was still open: acknowledged, not stored again."""
    publishes_unrouted: int = 0
    """Publishes whose topic no stream of the configuration matches, kept, live or refused."""
    publish_bytes_received: int = 0
    """Payload bytes received."""
    publishes_denied: int = 0
    """Publishes that access rules forbid: not stored, not delivered."""
    publishes_resent: int = 0
    """QoS 1 publishes recognised in the log and not stored again."""
    retained_refused: int = 0
    """Retained messages not kept because a limit was reached."""
    packets_received: int = 0
    """Packets of all kinds received."""
    bytes_received: int = 0
    """Bytes read from clients."""
    bytes_sent: int = 0
    wills_published: int = 0
    wills_refused: int = 0
    """CONNECTs refused because there was no room for their wills."""
    wills_waiting: int = 0
    """Wills that are due and not stored yet because the log or the disk has no room, now."""
    will_bytes: int = 0
    """Memory that wills take now, roughly."""
    acks_sent: int = 0
    """PUBACKs and PUBRECs, each after its record was durable."""
    log_refusals: int = 0
    """Reads refused because the log was full or had failed; their publishes were not acknowledged."""
    backpressure_pauses: int = 0
    """Pauses in reading because too much waited for the disk."""
    receive_maximum_pauses: int = 0
    """Pauses in reading from a client because too many of its publishes waited for their answer."""
    deliveries_sent: int = 0
    deliveries_dropped: int = 0
    """Deliveries that a slow or absent subscriber had no room for."""
    deliveries_too_large: int = 0
    """Deliveries longer than the client takes."""
    deliveries_lost: int = 0
    """Records that the log no longer had when a session that was behind came to read them."""
    messages_expired: int = 0
    """Deliveries not sent because the message had expired."""
    sessions_behind: int = 0
    """Times that a session fell behind and began to read from the log."""


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
