"""The bytes that a sender may have in flight, which follow the rate of acknowledgements.

A window as large as the hub allows would put minutes of data into the buffers of a slow link: newer data could not
overtake it, and all of it would be sent again after a lost connection.
"""

from __future__ import annotations

from collections import deque

from weft.replication.liveness import SECOND

FLOOR_BYTES = 64 << 10
START_BYTES = 256 << 10
AHEAD = 3 * SECOND
"""Time whose acknowledged bytes may be in flight, beyond the hub's shortest time to acknowledge."""
PERIOD = SECOND // 2
DELAYS = 16
"""Number of acknowledgement times kept; the shortest counts, as the others include the queue that the window makes."""


class SendWindow:
    """The window of one connection. All times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ahead = AHEAD
        self._most = 0
        self._since = 0
        self._acked = 0
        self._limited = False
        self._probe: tuple[int, int, int] | None = None
        """(lane, last number, time) of one batch in flight, whose acknowledgement is timed."""
        self._delays: deque[int] = deque(maxlen=DELAYS)

    def allow(self, most: int, start: int = START_BYTES) -> None:
        """Set the largest window that both ends allow, and the first one."""
        self._most = most
        self.bytes = min(start, most)

    def sent(self, lane: int, last: int, now: int, *, was_empty: bool) -> None:
        """Note that a batch up to the number ``last`` is sent; ``was_empty`` if nothing else was in flight."""
        if was_empty:
            if self._acked and self._delays:
                # Everything was acknowledged at once, before a period ended, as by a hub that commits everything
                # together.
                self._follow(now)
            self._since, self._acked, self._limited = now, 0, False
        if self._probe is None:
            self._probe = lane, last, now

    def was_full(self) -> None:
        """Note that a batch had to wait for the window."""
        self._limited = True

    def forget(self, lane: int) -> None:
        """Note that a lane was closed."""
        if self._probe is not None and self._probe[0] == lane:
            self._probe = None

    def acknowledged(self, size: int, lane: int, first: int, end: int, now: int) -> None:
        """Note that ``[first, end)`` of a lane was acknowledged, so that ``size`` bytes are no longer in flight."""
        self._acked += size
        if self._probe is not None and self._probe[0] == lane and first <= self._probe[1] < end:
            self._delays.append(now - self._probe[2])
            self._probe = None
        elapsed = now - self._since
        if elapsed < PERIOD or not self._acked or not self._delays:
            return
        self._follow(now)
        self._since, self._acked, self._limited = now, 0, False

    def _follow(self, now: int) -> None:
        """Set the window by the bytes acknowledged since the last time."""
        wanted = self._acked * (min(self._delays) + self.ahead) // max(1, now - self._since)
        # The rate of a sender that had nothing to send is not the possible rate.
        if self._limited or wanted > self.bytes:
            self.bytes = min(self._most, max(FLOOR_BYTES, wanted))
