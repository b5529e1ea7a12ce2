"""Lines in the program's log about records that went, because they were too old, before any hub had them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

LINES_INTERVAL_S = 600.0
"""Seconds between two lines about one stream. A stream that loses all the time says so now and then."""


@dataclass
class _Stream:
    count: int = 0
    first: int = 0
    end: int = 0
    silent_until: float = float("-inf")


class ExpiryLog:
    """Records of each stream that expired since its last line. For the writer thread."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def add(self, stream: str, first: int, end: int) -> None:
        """Note that records ``[first, end)`` were dropped: no hub had them."""
        entry = self._streams.setdefault(stream, _Stream())
        entry.first = min(entry.first, first) if entry.count else first
        entry.end = max(entry.end, end)
        entry.count += end - first

    def write(self, now: float) -> None:
        """Write the lines that are due.

        Args:
            now: monotonic clock, in seconds.
        """
        for name, entry in self._streams.items():
            if entry.count and now >= entry.silent_until:
                logger.warning(
                    "stream %s: %d records (seq %d to %d) were older than retain.time and are dropped; no hub had "
                    "them. Restore the link to the hub, or raise the stream's retain.time",
                    name, entry.count, entry.first, entry.end - 1,
                )  # fmt: skip
                entry.count = entry.end = 0
                entry.silent_until = now + LINES_INTERVAL_S
