"""Derived streams that are computed again, each into a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.edge_node.functions.runtime.derived import Derived

REPLAYS_MAX = 8
"""Most replays that run at one time."""


class ReplayProgress(NamedTuple):
    """Progress of a replay."""

    rows: int
    """Rows that it has read since it was asked for."""
    left: int
    """Records that it still has to read; 0 when it is done."""


class ReplayRefused(Exception):
    """A replay that is not begun; the sentence says why, and what to do."""


class Replay:
    """One replay that runs. It is done when it has read, durably, what the inputs had when it was asked for."""

    def __init__(self, derived: Derived, ends: Mapping[str, int]) -> None:
        """Follow a derived stream that was made for this.

        Args:
            ends: input -> number of the first record that it need not read.
        """
        self.derived = derived
        self._ends = ends
        self._read = derived.positions()

    def has_read(self, name: str, seq: int) -> None:
        """Note how far an input was read, durably."""
        self._read[name] = max(seq, self._read.get(name, 0))

    def progress(self) -> ReplayProgress:
        """Return how far it is."""
        left = sum(max(0, end - self._read.get(name, 0)) for name, end in self._ends.items())
        return ReplayProgress(self.derived.counters.rows_in, left)
