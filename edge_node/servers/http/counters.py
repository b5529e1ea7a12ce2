"""Counters of HTTP: plain integers that only the event loop's thread changes. The help of their metrics defines each
(``config/metrics/http``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HttpCounters:
    """Totals since the start, specific to HTTP; counters whose metric is a gauge have the present value."""

    http_requests: int = 0
    http_messages: int = 0
    http_refused: int = 0
    http_throttled: int = 0
    http_errors: int = 0
    http_timeouts: int = 0
    http_repeated: int = 0
    http_misfits_refused: int = 0
    http_misfits_taken: int = 0
    http_keys: int = 0
    http_keys_forgotten: int = 0
    http_readers: int = 0
    http_events: int = 0
    http_events_dropped: int = 0
