"""How long an outage of the hub the node survives: the free part of its disk budget over how fast the log grows."""

from __future__ import annotations

from collections import deque

SAMPLE_INTERVAL_S = 10.0
WINDOW_SAMPLES_MAX = 360
"""An hour of samples: devices that report every few minutes still give a rate."""
ELAPSED_S_MIN = 1.0


class OutageEstimate:
    """Samples of how much the log has written, and what follows from them. ``now`` is monotonic seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=WINDOW_SAMPLES_MAX)

    def sample(self, now: float, bytes_written: int) -> None:
        """Note how many bytes the log has written since the node started."""
        self._samples.append((now, bytes_written))

    def bytes_per_second(self, now: float, bytes_written: int) -> float | None:
        """How fast the log grows, over the window of samples; None until there is something to go by."""
        if not self._samples:
            return None
        then, written_then = self._samples[0]
        elapsed = now - then
        return (bytes_written - written_then) / elapsed if elapsed >= ELAPSED_S_MIN else None

    def seconds_left(self, now: float, bytes_written: int, bytes_free: int) -> float | None:
        """Seconds until ``bytes_free`` are full at the present rate; None when nothing comes in or nothing is known."""
        rate = self.bytes_per_second(now, bytes_written)
        return max(bytes_free, 0) / rate if rate else None
