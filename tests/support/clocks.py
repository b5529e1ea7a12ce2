"""Clocks that stand still until a test sets them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds, as ``time.monotonic`` counts them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
