"""Estimate of how long an outage of the hub the node survives: the free part of its disk budget over the growth of the
log."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from weft.config.units import YEAR_S, approximate_duration

SAMPLE_INTERVAL_S = 10.0
WINDOW_SAMPLES_MAX = 360
"""Number of samples: an hour, so that devices that report every few minutes still give a rate."""
ELAPSED_S_MIN = 1.0


class OutageEstimate:
    """Samples of the bytes written by the log, and estimates from them. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW_SAMPLES_MAX)

    def sample(self, now: float, bytes_written: int) -> None:
        """Note the number of bytes written by the log since the node started."""
        self._samples.append((now, bytes_written))

    def bytes_per_second(self, now: float, bytes_written: int) -> float | None:
        """Return the growth of the log over the window of samples; None until there are enough."""
        if not self._samples:
            return None
        then, written_then = self._samples[0]
        elapsed = now - then
        return (bytes_written - written_then) / elapsed if elapsed >= ELAPSED_S_MIN else None

    def seconds_left(self, now: float, bytes_written: int, bytes_free: int) -> float | None:
        """Return the seconds until ``bytes_free`` are full at the rate of the last hour, 0 when they are full.

        None when no records come in, or the rate is unknown.
        """
        if bytes_free <= 0:
            return 0.0
        rate = self.bytes_per_second(now, bytes_written)
        return bytes_free / rate if rate else None


def outage_left(facts: Mapping[str, Any]) -> str:
    """Return the estimate in the facts of a running node (``NodeStatus.facts``), as text."""
    disk, left = facts["disk"], facts["disk"]["outage_seconds_left"]
    if facts["log_error"]:
        return "none: the log has stopped"
    if facts["log_full"] or left == 0:
        return "none: the log is full"
    if left is None:
        return "unknown yet" if disk["bytes_per_second"] is None else "unlimited while no records come in"
    return f"{outage_duration(left)} at the rate of the last hour"


def outage_duration(seconds: float) -> str:
    """Return the length of an outage, as text.

    A node that took three messages in its last hour would need centuries to fill its disk. No plan needs such a number,
    and one busy hour makes it wrong: beyond a year it is not shown.
    """
    return "more than a year" if seconds > YEAR_S else approximate_duration(seconds)
