"""Counts that both ends of a link share: ranges from the wire, and bytes on the way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from weft.protocols.errors import Corrupt
from weft.protocols.ranges import Range, RangeSet

RANGES_MAX = 1 << 16
"""Maximum number of ranges that one lane's set may have, and that one frame may carry."""


def checked_ranges(pairs: Sequence[Range], limit: int = RANGES_MAX) -> RangeSet:
    """Return the set of a peer's ``[[first, end], ...]``.

    Raises:
        Corrupt: more than ``limit`` ranges, or they are not ascending.
    """
    if len(pairs) > limit:
        raise Corrupt(f"{len(pairs)} ranges in one frame; at most {limit} are left to it")
    return RangeSet.from_wire(pairs)


class SentBatch(NamedTuple):
    """One batch on the way."""

    first: int
    end: int
    size: int
    """Bytes of the batch in the DATA frame."""
    time: int
    """Wall clock time of its first record, ns."""


class SentBatches:
    """Batches that were sent and are not acknowledged yet: the sender fills a window by it, the receiver checks it.

    The window's rule is the same on both ends: the sum of the sizes stays within ``window_bytes``. One batch may always
    be on the way, though, or a batch longer than the window could never go.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._lanes: dict[int, tuple[list[int], list[SentBatch]]] = {}

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self._lanes.values())

    def room(self, size: int, window_bytes: int) -> bool:
        """Return whether a batch of ``size`` bytes may go now."""
        return self.bytes == 0 or self.bytes + size <= window_bytes

    def add(self, lane: int, first: int, end: int, size: int, time: int) -> None:
        """Count a batch that is being sent; the arguments are those of ``SentBatch``."""
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = ([], [])
        firsts, entries = known
        sent = tuple.__new__(SentBatch, (first, end, size, time))
        if not firsts or first >= firsts[-1]:
            firsts.append(first)
            entries.append(sent)
        else:
            at = bisect_right(firsts, first)
            firsts.insert(at, first)
            entries.insert(at, sent)
        self.bytes += size

    def forget(self, lane: int) -> None:
        """Count a closed lane's batches as on the way no longer."""
        _, entries = self._lanes.pop(lane, ([], []))
        self.bytes -= sum(sent.size for sent in entries)

    def settle(self, lane: int, first: int, end: int, covered: RangeSet) -> None:
        """Forget the batches that an acknowledgement of ``[first, end)`` touches and ``covered`` now holds entirely."""
        firsts, entries = self._lanes.get(lane) or ([], [])
        if len(entries) == 1:  # often: a receiver's commit has all that came of the lane since the last
            if covered.covers(entries[0].first, entries[0].end):
                self.bytes -= entries[0].size
                firsts.clear()
                entries.clear()
            return
        low = max(0, bisect_right(firsts, first) - 1)
        high = bisect_left(firsts, end)
        kept = []
        for sent in entries[low:high]:
            if covered.covers(sent.first, sent.end):
                self.bytes -= sent.size
            else:
                kept.append(sent)
        firsts[low:high] = [sent.first for sent in kept]
        entries[low:high] = kept

    def oldest_time(self) -> int | None:
        """Return the wall clock time of the oldest record on the way, ns; None when there is none."""
        return min((entries[0].time for _, entries in self._lanes.values() if entries), default=None)
