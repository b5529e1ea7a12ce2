"""Counters of HTTP: plain integers that only the event loop's thread changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HttpCounters:
    """Totals since the start of what only HTTP has, except where a line says "now"."""

    http_requests: int = 0
    http_messages: int = 0
    """Messages in requests, stored or not."""
    http_refused: int = 0
    """Requests answered with a status from 400 to 499, without ``http_throttled``."""
    http_throttled: int = 0
    """Requests answered with 429: too much waits for the disk, or too many readers."""
    http_errors: int = 0
    """Requests answered with a status from 500 on."""
    http_timeouts: int = 0
    """Connections closed because a request did not come whole in time."""
    http_repeated: int = 0
    """Requests recognised by their idempotency key, whose messages were stored before."""
    http_misfits_refused: int = 0
    """Requests refused because a message does not fit the stream that they name."""
    http_misfits_taken: int = 0
    """Messages taken although they do not fit the stream."""
    http_keys: int = 0
    """Idempotency keys remembered now."""
    http_keys_forgotten: int = 0
    """Idempotency keys forgotten before their time."""
    http_readers: int = 0
    """Requests that go on reading events now."""
    http_events: int = 0
    """Events sent."""
    http_events_dropped: int = 0
    """Live messages that a slow reader did not get."""
