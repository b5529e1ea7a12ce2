"""Estimates of the work that a link still has before it, by its present rate."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from weft.replication.liveness import SECOND

WINDOW_NS = 60 * SECOND
"""Time over which the rate is taken: commits of a hub come in steps."""
SHORTEST_NS = 5 * SECOND
RECORDS_MIN = 20
"""Records after whose way to the hub their mean size is known well enough to say it."""


class _Sample(NamedTuple):
    at: int
    pending: int


class Estimates:
    """Estimates of one link, from a sample about once a second. Times in monotonic or wall ns, all of one clock."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._records = 0
        self._bytes = 0

    def sample(self, now: int, pending: int) -> None:
        """Note how many records wait at ``now``."""
        if self._samples and now < self._samples[-1].at:
            self._samples.clear()  # the clock was set back
        self._samples.append(_Sample(now, pending))
        while now - self._samples[0].at > WINDOW_NS:
            self._samples.popleft()

    def sent(self, records: int, size: int) -> None:
        """Note that ``records`` were acknowledged, and ``size`` bytes were sent for them."""
        self._records += records
        self._bytes += size

    def drain_seconds(self) -> float | None:
        """Return the seconds until nothing waits at the present rate; None where it grows, stands, or is unknown."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        if not last.pending:
            return 0.0
        drained = first.pending - last.pending
        if last.at - first.at < SHORTEST_NS or drained <= 0:
            return None
        return last.pending * (last.at - first.at) / drained / SECOND

    def pending_bytes(self) -> int | None:
        """Return about how many bytes the waiting records are on the wire; None before enough were sent to know."""
        if not self._samples:
            return None
        pending = self._samples[-1].pending
        if not pending:
            return 0
        return pending * self._bytes // self._records if self._records >= RECORDS_MIN else None
