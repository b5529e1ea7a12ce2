"""The gaps of one lane: disjoint ranges with reasons, ascending. The cost of a change depends on the touched gaps, not
on all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from weft.protocols.chunk_index.footer import GapRange
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason


def _first(gap: GapRange) -> int:
    return gap.first


def _end(gap: GapRange) -> int:
    return gap.end


class GapSet:
    """Gaps of a lane. Neighbours with the same reason are one gap."""

    __slots__ = ("_absent", "_gaps")

    def __init__(self, gaps: Iterable[GapRange] = ()) -> None:
        """Start with the gaps of another set: ascending, disjoint, and joined if neighbours have the same reason."""
        self._gaps = list(gaps)
        # Kept separately too, so that a notice that overrides them need not search all gaps.
        self._absent = RangeSet((gap.first, gap.end) for gap in self._gaps if gap.reason == GapReason.ABSENT)

    def copy(self) -> GapSet:
        """Return an independent set with the same gaps."""
        twin = GapSet.__new__(GapSet)
        twin._gaps, twin._absent = self._gaps.copy(), self._absent.copy()
        return twin

    def touches(self, first: int, end: int) -> bool:
        """Return whether a gap has numbers of ``[first, end)``."""
        low, high = self._touched(first, end)
        return low < high

    def within(self, first: int, end: int) -> list[Range]:
        """Return the parts of gaps that lie in ``[first, end)``, ascending."""
        low, high = self._touched(first, end)
        return [(max(gap.first, first), min(gap.end, end)) for gap in self._gaps[low:high]]

    def absent_within(self, first: int, end: int) -> list[Range]:
        """Return the parts of ABSENT gaps that lie in ``[first, end)``, ascending."""
        return self._absent.within(first, end) if self._absent else []

    def first_absent(self) -> int | None:
        """Return the lowest number of an ABSENT gap."""
        return next(iter(self._absent))[0] if self._absent else None

    def surrounds(self, first: int, end: int) -> bool:
        """Return whether one gap extends beyond both ends of ``[first, end)``: without these numbers it would be
        two."""
        low, high = self._touched(first, end)
        return high - low == 1 and self._gaps[low].first < first and end < self._gaps[low].end

    def remove(self, first: int, end: int) -> None:
        """Remove ``[first, end)`` from all gaps."""
        low, high = self._touched(first, end)
        if low >= high:
            return
        before, after = self._gaps[low], self._gaps[high - 1]
        kept = []
        if before.first < first:
            kept.append(GapRange(before.first, first, before.reason))
        if after.end > end:
            kept.append(GapRange(end, after.end, after.reason))
        self._gaps[low:high] = kept
        self._absent.remove(first, end)

    def put(self, gap: GapRange) -> None:
        """Add a gap, which replaces other gaps in its range."""
        self.remove(gap.first, gap.end)
        gaps, first, end = self._gaps, gap.first, gap.end
        low = high = bisect_right(gaps, first, key=_end)
        if low and gaps[low - 1].end == first and gaps[low - 1].reason == gap.reason:
            low -= 1
            first = gaps[low].first
        if high < len(gaps) and gaps[high].first == end and gaps[high].reason == gap.reason:
            end = gaps[high].end
            high += 1
        gaps[low:high] = [gap if (first, end) == (gap.first, gap.end) else GapRange(first, end, gap.reason)]
        if gap.reason == GapReason.ABSENT:
            self._absent.add(gap.first, gap.end)

    def _touched(self, first: int, end: int) -> tuple[int, int]:
        """Return the indexes, half-open, of the gaps with numbers in ``[first, end)``."""
        gaps = self._gaps
        if not gaps or first >= gaps[-1].end:  # nearly always: the next numbers
            return 0, 0
        return bisect_right(gaps, first, key=_end), bisect_left(gaps, end, key=_first)

    def __iter__(self) -> Iterator[GapRange]:
        return iter(self._gaps)

    def __len__(self) -> int:
        return len(self._gaps)

    def __eq__(self, other: object) -> bool:
        return self._gaps == other._gaps if isinstance(other, GapSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GapSet({self._gaps!r})"
