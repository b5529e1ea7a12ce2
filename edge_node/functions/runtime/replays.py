"""Derived streams that are computed again, each into a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.edge_node.functions.runtime.derived import Derived

REPLAYS_MAX = 8
"""Maximum number of concurrent replays."""


class ReplayProgress(NamedTuple):
    """Progress of a replay."""

    rows: int
    """Rows read since the request."""
    left: int
    """Records still to read; 0 when the replay is done."""


class ReplayRefused(Exception):
    """A refused replay; the text has the reason and the remedy."""


class Replay:
    """One running replay. It is done when it has read, durably, the records that the inputs had at the request."""

    def __init__(self, derived: Derived, ends: Mapping[str, int]) -> None:
        """Follow a derived stream that was created for this.

        Args:
            ends: input -> number of the first record that it need not read.
        """
        self.derived = derived
        self._ends = ends
        self._read = derived.positions()

    def has_read(self, name: str, seq: int) -> None:
        """Set the durable position in an input."""
        self._read[name] = max(seq, self._read.get(name, 0))

    def progress(self) -> ReplayProgress:
        """Return its progress."""
        left = sum(max(0, end - self._read.get(name, 0)) for name, end in self._ends.items())
        return ReplayProgress(self.derived.counters.rows_in, left)
