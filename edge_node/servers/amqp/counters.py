"""Counters of AMQP 0-9-1: plain integers that only the event loop's thread changes. The help of their metrics says what
each counts (``config/metrics/edge``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AmqpCounters:
    """Totals since the start of what only AMQP 0-9-1 has; those whose metric is a gauge are of now."""

    amqp_channels: int = 0
    amqp_channel_errors: int = 0
    amqp_connection_errors: int = 0
    amqp_returned: int = 0
    amqp_nacked: int = 0
    amqp_transactions: int = 0
    amqp_blocked: int = 0
