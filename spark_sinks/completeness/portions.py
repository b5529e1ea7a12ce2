"""Due windows, cut into commits of a bounded size, and the reads that bring the records of each.

A read costs a plan, however few records it brings. So windows with few records between them are read together, and the
records between are dropped after the read. A stream of few records over many windows takes as many commits as it has
windows with records, not as many as there are hours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from weft.protocols.ranges import Range, RangeSet

IsCheap = Callable[[int, int], bool]
"""Predicate: reading the records of windows ``[first, end)`` without need costs less than another read."""


@dataclass(slots=True)
class Portion:
    """The windows of one commit."""

    ranges: list[Range] = field(default_factory=list)
    """Windows to emit, including windows without records; ascending."""
    filled: list[Range] = field(default_factory=list)
    """Windows of the portion that can have records."""
    reads: list[Range] = field(default_factory=list)
    """Windows to read, which cover ``filled``."""

    @property
    def count(self) -> int:
        """Return the number of windows that can have records."""
        return sum(end - first for first, end in self.filled)

    @property
    def reads_more(self) -> bool:
        """Return whether the reads bring windows that must not be emitted."""
        return sum(end - first for first, end in self.reads) > self.count

    def fill(self, first: int, end: int, *, together: bool) -> None:
        """Add windows that can have records, and read them with the previous ones or on their own."""
        self.filled.append((first, end))
        if together and self.reads:
            self.reads[-1] = (self.reads[-1][0], end)
        else:
            self.reads.append((first, end))


def portions(
    windows: RangeSet, windows_max: int, reads_max: int, is_cheap: IsCheap, filled: RangeSet | None = None
) -> list[Portion]:
    """Return the windows in portions for one commit each, ascending.

    Args:
        windows_max: maximum number of windows of a portion that can have records.
        reads_max: maximum number of reads of a portion.
        filled: windows that have records; None means all.
    """
    held = None if filled is None else list(filled)
    found = [Portion()]
    for first, end in windows:
        at = first
        for start, stop in [(first, end)] if held is None else _parts(held, first, end):
            begin = start
            while begin < stop:
                last = found[-1]
                room = windows_max - last.count
                together = bool(last.reads) and (last.reads[-1][1] == begin or is_cheap(last.reads[-1][1], begin))
                if room <= 0 or (not together and len(last.reads) == reads_max):
                    if at < begin:
                        last.ranges.append((at, begin))
                    found.append(Portion())
                    at = begin
                    continue
                taken = min(room, stop - begin)
                last.fill(begin, begin + taken, together=together)
                begin += taken
        found[-1].ranges.append((at, end))
    return [portion for portion in found if portion.ranges]


def _parts(ranges: list[Range], first: int, end: int) -> Iterator[Range]:
    """Yield the parts of ascending ranges that lie in ``[first, end)``."""
    low = bisect_right(ranges, first, key=lambda each: each[1])
    for start, stop in ranges[low : bisect_left(ranges, end, key=lambda each: each[0])]:
        yield max(start, first), min(stop, end)
