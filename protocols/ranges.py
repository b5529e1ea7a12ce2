"""Numbers from peers and disks, within bounds: ranges of sequence numbers, the unit of replication; fields of
msgpack, and the one way to unpack it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from weft.protocols.errors import Corrupt

# A set of sequence numbers as half-open ranges, the unit of replication.
#
# Ranges are sorted, disjoint and never touch: ``[0, 5) + [5, 9)`` is stored as ``[0, 9)``. All operations cost O(log
# n) to find the place, plus the touched ranges; n is the number of holes, not of records.

Range = tuple[int, int]

SEQ_END = (1 << 63) - 1
"""End of all sequence numbers and offsets. The bound itself still fits the signed 64-bit columns of tables."""


class RangeSet:
    """Half-open ranges ``[first, end)`` of sequence numbers."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    @classmethod
    def from_wire(cls, pairs: Iterable[Iterable[int]]) -> RangeSet:
        """Build a set from ``[[first, end], ...]`` from a peer: ascending, as ``to_wire`` writes them.

        Order is required, not restored: inserting a hostile order would take quadratic time.

        Raises:
            Corrupt: a pair is not two integers with ``0 <= first < end <= SEQ_END``, or does not start at or after the
                end of the pair before it.
        """
        result = cls()
        for pair in pairs:
            try:
                first, end = pair
            except (TypeError, ValueError):
                raise Corrupt(f"expected a range [first, end], got {pair!r}") from None
            if type(first) is not int or type(end) is not int or not 0 <= first < end <= SEQ_END:
                raise Corrupt(f"expected a range with 0 <= first < end <= {SEQ_END}, got [{first!r}, {end!r}]")
            if first < result.end:
                raise Corrupt(f"expected ascending ranges, got [{first}, {end}] after the end {result.end}")
            result.add(first, end)
        return result

    def to_wire(self) -> list[list[int]]:
        """Return the ranges as ``[[first, end], ...]``, ascending."""
        return [[first, end] for first, end in self]

    def add(self, first: int, end: int) -> None:
        """Add ``[first, end)``; an empty range changes nothing."""
        if first >= end:
            return
        if self._starts and first >= self._starts[-1]:  # nearly always: the next numbers, at the end
            if first > self._ends[-1]:
                self._starts.append(first)
                self._ends.append(end)
            elif end > self._ends[-1]:
                self._ends[-1] = end
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._starts, end)
        if low < high:
            first = min(first, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [first]
        self._ends[low:high] = [end]

    def update(self, other: Iterable[Range]) -> None:
        """Add every range of ``other``."""
        for first, end in other:
            self.add(first, end)

    def remove(self, first: int, end: int) -> None:
        """Remove ``[first, end)``, even if only a part of it is in the set."""
        if first >= end:
            return
        low = bisect_right(self._ends, first)
        high = bisect_left(self._starts, end)
        if low >= high:
            return
        starts, ends = [], []
        if self._starts[low] < first:
            starts.append(self._starts[low])
            ends.append(first)
        if self._ends[high - 1] > end:
            starts.append(end)
            ends.append(self._ends[high - 1])
        self._starts[low:high] = starts
        self._ends[low:high] = ends

    def minus(self, others: Iterable[Range]) -> RangeSet:
        """Return an independent set without the ``others``, which must be ascending and disjoint. Linear in both."""
        left = RangeSet()
        starts, ends, index, size = left._starts, left._ends, 0, len(self._starts)
        at = self._starts[0] if size else 0
        for first, end in others:
            while index < size and self._ends[index] <= first:
                if at < self._ends[index]:
                    starts.append(at)
                    ends.append(self._ends[index])
                index += 1
                at = self._starts[index] if index < size else 0
            if index == size:
                break
            if at < first:
                starts.append(at)
                ends.append(first)
            while index < size and self._ends[index] <= end:
                index += 1
                at = self._starts[index] if index < size else 0
            if index < size:
                at = max(at, end)
        if index < size:
            left._starts = [*starts, at, *self._starts[index + 1 :]]
            left._ends = [*ends, *self._ends[index:]]
        return left

    def missing(self, first: int, end: int) -> list[Range]:
        """Return the parts of ``[first, end)`` that the set lacks, ascending."""
        if not self._ends or first >= self._ends[-1]:  # nearly always: the next numbers
            return [(first, end)] if first < end else []
        gaps: list[Range] = []
        at = first
        for index in range(bisect_right(self._ends, first), len(self._starts)):
            start = self._starts[index]
            if start >= end:
                break
            if start > at:
                gaps.append((at, start))
            at = self._ends[index]
        if at < end:
            gaps.append((at, end))
        return gaps

    def within(self, first: int, end: int) -> list[Range]:
        """Return the parts of ``[first, end)`` that the set has, ascending."""
        low, high = bisect_right(self._ends, first), bisect_left(self._starts, end)
        return [(max(self._starts[at], first), min(self._ends[at], end)) for at in range(low, high)]

    def covers(self, first: int, end: int) -> bool:
        """Return whether every number of ``[first, end)`` is in the set; true for an empty range."""
        if first >= end:
            return True
        index = bisect_right(self._starts, first) - 1
        return index >= 0 and self._ends[index] >= end

    def contiguous_end(self, first: int = 0) -> int:
        """Return the end of the run that starts at ``first``, or ``first`` itself when it is not in the set."""
        starts, ends = self._starts, self._ends
        if len(starts) == 1:  # nearly always
            return ends[0] if starts[0] <= first < ends[0] else first
        index = bisect_right(starts, first) - 1
        return ends[index] if index >= 0 and ends[index] > first else first

    @property
    def end(self) -> int:
        """Return the end of the largest range: the largest number plus one; 0 when empty."""
        return self._ends[-1] if self._ends else 0

    def copy(self) -> RangeSet:
        """Return an independent set with the same ranges."""
        twin = RangeSet.__new__(RangeSet)
        twin._starts = self._starts.copy()
        twin._ends = self._ends.copy()
        return twin

    def continued(self, first: int, end: int) -> RangeSet | None:
        """Return an independent set with ``[first, end)`` added, if the set is one range that ends at ``first``;
        otherwise None."""
        starts, ends = self._starts, self._ends
        if len(ends) != 1 or ends[0] != first or first >= end:
            return None
        twin = _new(RangeSet)
        twin._starts, twin._ends = [starts[0]], [end]
        return twin

    def count(self) -> int:
        """Return the number of sequence numbers in the set."""
        return sum(self._ends) - sum(self._starts)

    def __contains__(self, seq: int) -> bool:
        return self.covers(seq, seq + 1)

    def __iter__(self) -> Iterator[Range]:
        if len(self._starts) == 1:  # nearly always
            return iter(((self._starts[0], self._ends[0]),))
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({list(self)!r})"


_new = RangeSet.__new__


# Bounded integers and lists for data from peers and disks, the one way to unpack msgpack, and headers that are packed
# once for many records.
#
# The bounds are part of the types, so a decoder refuses values that would later overflow a table's signed 64-bit
# column, a range set or an allocation. msgspec checks a list's length before it makes the list.

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1

U32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
U64 = Annotated[int, Meta(ge=0)]
"""Msgpack itself has no larger integers."""
Seq = Annotated[int, Meta(ge=0, le=SEQ_END)]
"""A sequence number or offset, or one past the last."""
Epoch = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
Nanoseconds = Annotated[int, Meta(ge=_INT64_MIN, le=_INT64_MAX)]
"""A time or a difference of times; the tables keep them in signed 64 bits."""

LIST_ITEMS_MAX = 1 << 20
"""Longest list in the index of a segment or a chunk."""
RANGES_MAX = 1 << 16
"""Maximum number of ranges of one lane in one message. Holes are few, and a set with more may be sent in part: the rest
is offered again and trimmed."""
TOPICS_MAX = 256
"""Maximum number of topic patterns of one stream."""

Ranges = Annotated[list[tuple[Seq, Seq]], Meta(max_length=RANGES_MAX)]
"""Half-open ranges in a message, ascending. ``RangeSet.from_wire`` checks their order."""
StoredRanges = Annotated[list[tuple[Seq, Seq]], Meta(max_length=LIST_ITEMS_MAX)]
"""Half-open ranges in an index, ascending; more than a full segment or chunk can have."""
Topics = Annotated[list[str], Meta(max_length=TOPICS_MAX)]

_Value = TypeVar("_Value")


def unpack(decoder: msgspec.msgpack.Decoder[_Value], body: bytes | bytearray | memoryview, what: str) -> _Value:
    """Decode msgpack from another writer.

    Args:
        what: names the value in the error, with its article.

    Raises:
        Corrupt: not msgpack, not of the decoder's type, out of bounds, not UTF-8, or nested too deeply.
    """
    try:
        return decoder.decode(body)
    # Text that is not UTF-8 and deep nesting surface as Python's own errors, not as msgspec's.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{what} does not decode: {error}") from error


Pair = tuple[str, str | bytes | int | float | bool | None]
"""Name and value of a header, as in ``batch.HeaderPairs``."""

pack = msgspec.msgpack.Encoder().encode
"""Encoder of a record's headers for a batch."""


class PackedHeaders(tuple[Pair, ...]):
    """Headers with their encoding in a batch. ``packed_headers`` makes them."""

    packed: bytes
    extended: tuple[Pair, PackedHeaders] | None

    def plus(self, pair: Pair) -> PackedHeaders:
        """Return the headers with one more. The same pair as in the previous call returns the same object."""
        if self.extended is None or self.extended[0] is not pair:
            self.extended = pair, packed_headers((*self, pair))
        return self.extended[1]


def packed_headers(pairs: tuple[Pair, ...]) -> PackedHeaders:
    """Return headers that the log need not measure and encode for each record. This pays for more than a few records.

    Raises:
        ValueError: an integer of more than 64 bits.
    """
    for _, value in pairs:
        if type(value) is int and not _INT64_MIN <= value <= _INT64_MAX:
            raise ValueError(f"the header value {value} has more than 64 bits: store it as text")
    found = PackedHeaders(pairs)
    found.packed, found.extended = pack(pairs), None
    return found
