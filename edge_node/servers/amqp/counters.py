"""Counters of AMQP 0-9-1: plain integers that only the event loop's thread changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AmqpCounters:
    """Totals since the start of what only AMQP 0-9-1 has, except where a line says "now"."""

    amqp_channels: int = 0
    """Open channels now."""
    amqp_channel_errors: int = 0
    """Channels closed with an exception."""
    amqp_connection_errors: int = 0
    """Connections closed with an exception."""
    amqp_returned: int = 0
    """Mandatory messages returned because no queue takes them."""
    amqp_nacked: int = 0
    """Messages nacked because the log or a queue refused them."""
    amqp_transactions: int = 0
    """Transactions committed."""
    amqp_blocked: int = 0
    """Times that the node told a client that it is blocked."""
