"""Settings of a node's HTTP listeners."""

from __future__ import annotations

from dataclasses import dataclass

from weft.bounds import one_share
from weft.config.models import EdgeConfig

PENDING_MAX = 64
"""Requests of one connection that may wait for their answers: further ones are not parsed."""
CHECK_S = 5.0
"""Interval between checks of a connection's deadlines."""
BODY_BYTES_PER_S = 16 << 10
"""Minimum rate of a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds, names and windows; durations in seconds."""

    body_bytes_max: int = 1 << 20
    """Longest body of a request, as sent and unpacked."""
    message_bytes_max: int = 1 << 20
    """The same for a body that is one message and is stored unchanged."""
    records_max: int = 10_000
    """Maximum number of messages in a request."""
    readers_max: int = 256
    """Maximum number of open readers of events and topics."""
    readers_per_user_max: int = 64
    write_timeout_s: float = 20.0
    head_s: float = 10.0
    """Longest time of a head from its first byte."""
    body_s: float = 30.0
    """The same of a body, and a second more for each ``BODY_BYTES_PER_S``."""
    idle_s: float = 75.0
    """Longest wait for the next request of a connection."""
    window_s: float = 86_400.0
    """Time for which idempotency keys are remembered."""
    keys_max: int = 100_000
    """Maximum number of remembered idempotency keys."""
    keys_per_user_max: int = 25_000
    software: str = "weft"

    @classmethod
    def of(cls, config: EdgeConfig, software: str) -> HttpSettings:
        """Return the settings that a configuration has."""
        limits, state = config.limits, config.state
        return cls(
            body_bytes_max=limits.request_bytes,
            message_bytes_max=limits.message_bytes,
            readers_max=limits.http_readers,
            readers_per_user_max=one_share(limits.http_readers_per_user, limits.http_readers),
            write_timeout_s=limits.write_timeout_s,
            window_s=state.idempotency_window_s,
            keys_max=state.idempotency_keys,
            keys_per_user_max=one_share(state.idempotency_keys_per_user, state.idempotency_keys),
            software=software,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """Pages whose requests one listener accepts."""

    origins: tuple[str, ...] = ()
    """Origins of permitted pages, beside the listener's own; ``*`` for all."""
    scheme: str = "http"
    is_loopback: bool = True
    """True when only this machine reaches the listener, so that a host name in a request may belong to a stranger."""


# Counters of HTTP: plain integers that only the event loop's thread changes. The help of their metrics defines each
# (``config/metrics/http``).


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
