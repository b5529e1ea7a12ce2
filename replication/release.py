"""Records that every link has handed over, so that the log may forget them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from weft.protocols.ranges import Range, RangeSet


class ReleaseLedger:
    """A ledger of handed-over records. A record may go once every link that carries its stream has it at its hub.
    Streams that no link carries are not in it.

    Args:
        carriers: stream number -> names of the links that carry it.
        release: called with the records that every carrier has.
    """

    def __init__(self, carriers: Mapping[int, Iterable[str]], release: Callable[[int, RangeSet], None]) -> None:
        self._release = release
        self._has = {stream: {link: RangeSet() for link in links} for stream, links in carriers.items()}

    def released(self, link: str, stream: int, ranges: RangeSet) -> None:
        """Note that ``link`` has ``ranges`` of ``stream`` at its hub, durably."""
        carriers = self._has[stream]
        carriers[link].update(ranges)
        common = ranges
        for other, has in carriers.items():
            if other != link:
                common = intersection(common, has)
        if len(common):
            self._release(stream, common)

    def lacks(self, link: str, stream: int, ranges: Iterable[Range]) -> int:
        """Return how many of these numbers ``link`` is not known to have at its hub."""
        has = self._has[stream][link]
        return sum(end - first for run in ranges for first, end in has.missing(*run))


def intersection(left: Iterable[Range], right: RangeSet) -> RangeSet:
    """Return the numbers that both sets hold."""
    common = RangeSet()
    for first, end in left:
        at = first
        for missing_first, missing_end in right.missing(first, end):
            common.add(at, missing_first)
            at = missing_end
        common.add(at, end)
    return common
