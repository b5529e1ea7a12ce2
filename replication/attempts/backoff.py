"""Waits between attempts to connect."""

from __future__ import annotations

import random
from collections.abc import Sized


class Backoff:
    """Waits between attempts: doubled per round through the URLs, with full jitter."""

    def __init__(self, urls: Sized, least_s: float, most_s: float, rng: random.Random) -> None:
        """Start without a failure.

        Args:
            urls: the URLs that are tried in turn.
            least_s: shortest wait.
            most_s: longest wait.
        """
        self._urls = len(urls)
        self._least_s = least_s
        self._most_s = most_s
        self._rng = rng
        self.failures = 0

    def reset(self) -> None:
        """Note that the connection was useful: a later failure starts with the shortest wait."""
        self.failures = 0

    def next_wait_s(self) -> float:
        """Count a failure and draw the wait, between ``least_s`` and at most ``most_s``."""
        rounds = min(self.failures // self._urls, 32)
        self.failures += 1
        least, most = self._least_s, self._most_s
        return self._rng.uniform(min(least, most), min(most, least * 2 ** (rounds + 1)))
