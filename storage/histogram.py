"""Counts of durations by bucket, from which Prometheus computes percentiles."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds for the waits of clients: from a fast disk's fsync to a failing store."""


class Histogram:
    """Durations in seconds. Not synchronised: only one thread observes, or its owner's lock guards it.

    Args:
        bounds: upper bounds of the buckets, ascending; one more bucket counts longer durations.
    """

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Counts per bucket, not cumulated."""
        self.seconds = 0.0
        """Sum of all durations."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.seconds += seconds
        self.counts[bisect_left(self.bounds, seconds)] += 1

    def copy(self) -> Histogram:
        """Return a copy with the present counts."""
        copied = Histogram(self.bounds)
        copied.add(self)
        return copied

    def add(self, other: Histogram) -> None:
        """Add the counts of another with the same bounds."""
        self.seconds += other.seconds
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
