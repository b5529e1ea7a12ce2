"""Ascending numbers of records in little memory: the order of a queue, whose messages stay in the log."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_DEAD_MAX = 1024
"""Number of runs taken from the front after which their memory is freed."""
_CHUNK = 32_768
"""Runs that are written at a time: half a megabyte."""


class SeqRuns:
    """Ascending numbers, taken from the front and added at the end.

    Neighbours are one run of 16 bytes: a queue that gets every message takes next to nothing at any length; one of many
    that get messages by turns takes 16 bytes a message.
    """

    __slots__ = ("_counts", "_firsts", "_head", "count")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._counts = array("Q")
        self._head = 0
        """Runs before this one are taken."""
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for first, end in self.runs():
            yield from range(first, end)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield [first, end) of each run."""
        for at in range(self._head, len(self._firsts)):
            first = self._firsts[at]
            yield first, first + self._counts[at]

    def append(self, seq: int) -> None:
        """Add a number after all others."""
        counts = self._counts
        if counts and self._head < len(counts) and self._firsts[-1] + counts[-1] == seq:
            counts[-1] += 1
        else:
            self._firsts.append(seq)
            counts.append(1)
        self.count += 1

    def extend(self, first: int, end: int) -> None:
        """Add a run after all others."""
        if first >= end:
            return
        self.append(first)
        self._counts[-1] += end - first - 1
        self.count += end - first - 1

    @property
    def first(self) -> int:
        """Return the lowest number. There must be one."""
        return self._firsts[self._head]

    @property
    def last(self) -> int:
        """Return the highest number. There must be one."""
        return self._firsts[-1] + self._counts[-1] - 1

    def pop(self) -> int:
        """Take the lowest number."""
        at = self._head
        seq = self._firsts[at]
        self.count -= 1
        if self._counts[at] > 1:
            self._firsts[at] = seq + 1
            self._counts[at] -= 1
            return seq
        self._head = at + 1
        if self._head >= _DEAD_MAX and self._head * 2 >= len(self._firsts):
            del self._firsts[: self._head], self._counts[: self._head]
            self._head = 0
        elif not self.count:
            self.clear()
        return seq

    def clear(self) -> None:
        """Remove all numbers."""
        del self._firsts[:], self._counts[:]
        self._head = self.count = 0

    def without(self, taken: SeqRuns) -> SeqRuns:
        """Return the numbers that are not in ``taken``."""
        left = SeqRuns()
        others = taken.runs()
        other = next(others, None)
        for begin, end in self.runs():
            at = begin
            while other is not None and other[0] < end:
                if other[1] > at:
                    left.extend(at, max(at, other[0]))
                    at = max(at, other[1])
                if other[1] > end:
                    break
                other = next(others, None)
            left.extend(at, end)
        return left

    def below(self, end: int) -> SeqRuns:
        """Return the numbers below ``end``."""
        left = SeqRuns()
        for first, last in self.runs():
            left.extend(first, min(last, end))
        return left

    def to_bytes(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the runs as two columns of numbers of 64 bits, firsts and counts: 32,768 runs at a time."""
        for at in range(self._head, len(self._firsts), _CHUNK):
            yield self._firsts[at : at + _CHUNK].tobytes(), self._counts[at : at + _CHUNK].tobytes()

    def add_bytes(self, firsts: bytes, counts: bytes) -> None:
        """Add runs that ``to_bytes`` yielded, after all others."""
        added = array("Q")
        added.frombytes(counts)
        self._firsts.frombytes(firsts)
        self._counts += added
        self.count += sum(added)
