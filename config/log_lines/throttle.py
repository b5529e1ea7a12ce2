"""A bound on log lines, so that a flood of bad connections cannot fill the disk with messages about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_MAX = 200
"""Maximum number of lines of one logger in an interval; metrics count all of them."""
INTERVAL_S = 10.0


class Throttle(logging.Filter):
    """A filter that passes the first lines of each interval. The next interval's first line says how many were left
    out."""

    def __init__(
        self,
        lines_max: int = LINES_MAX,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._interval_s = interval_s
        self._clock = clock
        self._began = -interval_s
        self._lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is within the bound. One thread at a time."""
        now = self._clock()
        if now - self._began >= self._interval_s:
            left_out, self._began, self._lines = self._lines - self._lines_max, now, 0
            if left_out > 0:
                record.msg = f"{record.getMessage()} ({left_out:,} lines before this one were left out)"
                record.args = None
        self._lines += 1
        return self._lines <= self._lines_max
