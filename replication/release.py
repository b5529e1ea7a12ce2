"""Records that every party has read durably, so that the log may forget them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from weft.protocols.ranges import Range, RangeSet


class Party(NamedTuple):
    """A reader of streams that must release a record before the log may forget it. A link and a function may share a
    name."""

    kind: Literal["link", "function"]
    name: str

    def __str__(self) -> str:
        """Return kind and name, for people."""
        return f"{self.kind} {self.name}"


class ReleaseLedger:
    """A ledger of released records. A link releases records when its hub has them, a function when its results and its
    place in the stream are durable. The log may forget a record when every party to its stream has released it. Streams
    without a party are not in the ledger: their records are never released here.

    Args:
        parties: stream number -> the parties to it.
        release: called with the records that every party has.
    """

    def __init__(self, parties: Mapping[int, Iterable[Party]], release: Callable[[int, RangeSet], None]) -> None:
        self._release = release
        self._has = {stream: {party: RangeSet() for party in named} for stream, named in parties.items()}
        self.watch: Callable[[Party, int, RangeSet], None] | None = None
        """Called with all that a party releases."""

    def join(self, party: Party, stream: int) -> None:
        """Make records of ``stream`` wait for one more party from now on. Released records remain released."""
        self._has.setdefault(stream, {}).setdefault(party, RangeSet())

    def knows(self, stream: int) -> bool:
        """Return whether records of ``stream`` wait for a party."""
        return stream in self._has

    def parties(self, stream: int) -> Collection[Party]:
        """Return the parties that records of ``stream`` wait for."""
        return self._has.get(stream, {}).keys()

    def leave(self, party: Party, stream: int) -> None:
        """Make records of ``stream`` wait no longer for a party. Records that waited only for it are released, unless
        it was the last party: records of a stream without one are left to retention."""
        left = self._has.get(stream, {})
        if left.pop(party, None) is None:
            return
        if not left:
            del self._has[stream]
            return
        self._release_common(stream, next(iter(left.values())))

    def released(self, party: Party, stream: int, ranges: RangeSet) -> None:
        """Note that ``party`` has ``ranges`` of ``stream``, durably."""
        self._has[stream][party].update(ranges)
        if self.watch is not None:
            self.watch(party, stream, ranges)
        self._release_common(stream, ranges)

    def lacks(self, party: Party, stream: int, ranges: Iterable[Range]) -> int:
        """Return the count of these numbers that ``party`` has not released."""
        has = self._has[stream][party]
        return sum(end - first for run in ranges for first, end in has.missing(*run))

    def _release_common(self, stream: int, ranges: RangeSet) -> None:
        """Release the part of ``ranges`` that all parties have."""
        common = ranges
        for has in self._has[stream].values():
            if has is not ranges:
                common = intersection(common, has)
        if len(common):
            self._release(stream, common)


def intersection(left: Iterable[Range], right: RangeSet) -> RangeSet:
    """Return the numbers in both sets."""
    common = RangeSet()
    for first, end in left:
        at = first
        for missing_first, missing_end in right.missing(first, end):
            common.add(at, missing_first)
            at = missing_end
        common.add(at, end)
    return common
