"""Settings of a node's HTTP listeners."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.config.limits import EdgeLimits
from weft.config.models import EdgeConfig
from weft.config.streams import State

PENDING_MAX = 64
"""Requests of one connection that may wait for their answers: further ones are not parsed."""
CHECK_S = 5.0
"""Interval between checks of a connection's deadlines."""
BODY_BYTES_PER_S = 16 << 10
"""Minimum rate of a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Two sections of the configuration, and what no configuration sets; durations in seconds."""

    limits: EdgeLimits = field(default_factory=EdgeLimits)
    state: State = field(default_factory=State)
    records_max: int = 10_000
    """Maximum number of messages in a request."""
    head_s: float = 10.0
    """Longest time of a head from its first byte."""
    body_s: float = 30.0
    """The same of a body, and a second more for each ``BODY_BYTES_PER_S``."""
    idle_s: float = 75.0
    """Longest wait for the next request of a connection."""
    software: str = "weft"

    @classmethod
    def of(cls, config: EdgeConfig, software: str) -> HttpSettings:
        """Return the settings that a configuration has."""
        return cls(limits=config.limits, state=config.state, software=software)


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
