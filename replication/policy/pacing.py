"""Pace of a link's data: a bucket of bytes, and transfers apart from each other. Monotonic nanoseconds."""

from __future__ import annotations

from weft.replication.liveness import SECOND


class TokenBucket:
    """Bytes that may be sent at once: those of a second. A message may take more than there are, and those after it
    wait until they have come back, so that the mean is right without a message being cut."""

    def __init__(self, rate: int, now: int) -> None:
        self.rate = rate
        self._owed = 0
        """Bytes times ``SECOND`` that were sent beyond the rate; the bucket is empty above ``rate * SECOND``."""
        self._at = now

    def take(self, size: int, now: int) -> None:
        """Count bytes sent at ``now``."""
        self._owed = max(0, self._owed - (now - self._at) * self.rate) + size * SECOND
        self._at = now

    def refills_at(self) -> int:
        """Return the time from which bytes may be sent."""
        over = self._owed - self.rate * SECOND
        return self._at + -(-over // self.rate) if over >= 0 else self._at


class Transfers:
    """Transfers of data at least ``every`` apart. One transfer has all that waits, until nothing is left."""

    def __init__(self, every: int, now: int) -> None:
        self.every = every
        self.opens_at = now
        """Time from which data may be sent."""
        self._began: int | None = None

    def sent(self, now: int) -> None:
        """Note that data is sent: a transfer begins, if none goes on."""
        if self._began is None:
            self._began = now

    def is_drained(self) -> None:
        """Note that nothing is left to send: the transfer ends."""
        if self._began is not None:
            self.opens_at = self._began + self.every
            self._began = None
