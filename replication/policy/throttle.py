"""A hub's request for a slower pace: its tenant is at a quota. Monotonic nanoseconds."""

from __future__ import annotations

from weft.protocols.link.throttle import Throttled
from weft.replication.liveness import SECOND

SHOWN = 10 * SECOND
"""Time after the last wait for which a link counts as slowed: between two waits it sends some messages."""


class Throttle:
    """The last request of a connection.

    Args:
        now: time of its arrival.
    """

    def __init__(self, told: Throttled, now: int) -> None:
        self.until = now + told.wait
        """Time up to which no data is sent."""
        self.rate = told.bytes_per_second
        """Bytes a second that the link can expect, for the size of messages; 0 if unknown."""
        self._reason = told.reason

    def why(self, now: int) -> str:
        """Return why the link is slow, for people; empty when it no longer is."""
        if not self._reason or now >= self.until + SHOWN:
            return ""
        wait = max(0, self.until - now) / SECOND
        return f"throttled by the hub's quota: {self._reason}" + (f"; data waits {wait:.0f} s" if wait >= 1 else "")
