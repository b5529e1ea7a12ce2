"""The log lines of a source: each change once, repetitions ever more rarely."""

from __future__ import annotations

import logging

from weft.config.log_lines.repeats import left_out
from weft.config.log_lines.up_and_down import UpAndDown
from weft.config.units import approximate_duration

log = logging.getLogger(__name__)


class SourceLog:
    """The lines of one source. Every call takes monotonic seconds."""

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._state = UpAndDown(now)

    def connected(self, url: str, now: float) -> None:
        """Log that messages can come."""
        told = self._state.up(now)
        if told is None:
            return
        after = f", after {approximate_duration(told.away_s)}{' away' if told.again else ''}"
        log.info(
            "source %s: connected %sto %s%s",
            self._name, "again " if told.again else "", url, after if told.again or told.failures else "",
        )  # fmt: skip

    def failed(self, url: str, reason: str, retry_s: float, now: float) -> None:
        """Log a failed attempt, or the end of a connection.

        Args:
            reason: for people; brokers wrote parts of it.
        """
        told = self._state.down(reason, now)
        if told is None:
            return
        what = f"disconnected after {approximate_duration(told.since_s)}" if told.was_up else "not connected"
        log.warning(
            "source %s: %s: %s: %s (next try in %.1f s%s)", self._name, what, url, reason, retry_s,
            left_out(told.left_out),
        )  # fmt: skip
