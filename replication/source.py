"""What a sender needs of a log. ``edge_node/links.py`` joins it to the segment log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from protocols.chunk import GapRange, Mark
from protocols.ranges import SEQ_END, RangeSet


class OfferedLane(NamedTuple):
    """A lane that a link carries."""

    lane: int
    """Its number in the log, also the ``stream`` of its batches."""
    stream: str
    topics: tuple[str, ...]


class LaneState(NamedTuple):
    """What a log says of one lane at one instant."""

    held: RangeSet
    """Durable records that can be read now. Whoever gives the set away does not change it afterwards."""
    end: int
    """One past the last sequence number ever assigned."""
    gaps: list[GapRange]
    mark: Mark
    known_end: int = SEQ_END
    """A receiver that holds numbers from here on has them from a log that forgot: neither was this one opened with them
    nor did it give them to anybody since."""


class LogSource(Protocol):
    """A log to replicate. Everything but ``read`` is called on the event loop's thread and must not block."""

    def lanes(self) -> list[OfferedLane]:
        """The lanes to carry; the same for as long as the link runs."""
        ...

    def state(self, lane: int) -> LaneState:
        """What the log has of ``lane`` now."""
        ...

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Durable batches as stored: the first one holds ``seq`` or, when that is in a hole, what comes next.

        At least one batch if anything is held from ``seq`` on, about ``bytes_max`` bytes of them. Raises ``OSError``
        or ``CodecError`` when the log cannot be read.
        """
        ...

    def released(self, lane: int, ranges: RangeSet) -> None:
        """The receiver has made ``ranges`` durable: for this link the log may forget them."""

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the event loop's thread after each durable commit. Returns how to stop that."""
        ...
