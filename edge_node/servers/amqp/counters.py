"""Counters of AMQP 0-9-1: plain integers that only the event loop's thread changes. The help of their metrics defines
each (``config/metrics/edge``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AmqpCounters:
    """Totals since the start, specific to AMQP 0-9-1; counters whose metric is a gauge have the present value."""

    amqp_channels: int = 0
    amqp_channel_errors: int = 0
    amqp_connection_errors: int = 0
    amqp_returned: int = 0
    amqp_nacked: int = 0
    amqp_transactions: int = 0
    amqp_blocked: int = 0
