"""What a sender needs of a log. ``edge_node/links/links.py`` joins it to the segment log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from weft.protocols.chunk import GapRange, Mark
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet


class OfferedLane(NamedTuple):
    """A lane that a link carries."""

    lane: int
    """Its number in the log, also the ``stream`` of its batches."""
    stream: str
    topics: tuple[str, ...]
    payload: PayloadKind = PayloadKind.BYTES
    """What the stream's payloads are said to be."""


class LaneState(NamedTuple):
    """What a log says of one lane at one instant."""

    held: RangeSet
    """Durable records that can be read now. Whoever gives the set away does not change it afterwards."""
    end: int
    """One past the last sequence number ever assigned."""
    gaps: list[GapRange]
    mark: Mark


class LogSource(Protocol):
    """A log to replicate. Everything but ``read`` and ``give`` must not block; all on the event loop's thread."""

    def lanes(self) -> list[OfferedLane]:
        """The lanes to carry; the same for as long as the link runs."""
        ...

    def state(self, lane: int) -> LaneState:
        """What the log has of ``lane`` now."""
        ...

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Durable batches as stored: the first one holds ``seq`` or, when that is in a hole, what comes next.

        At least one batch if anything is held from ``seq`` on, about ``bytes_max`` bytes of them. Raises ``OSError``
        or ``CodecError`` when the log cannot be read. To read is not yet to give: see ``give``.
        """
        ...

    def known_end(self, hub: str, lane: int) -> int:
        """One past the last number of ``lane`` that the hub can hold; more only if this log has forgotten some.

        ``hub`` is what its WELCOME calls ``cluster_id``, which the hub's store keeps for ever.
        """
        ...

    async def give(self, hub: str, ends: Mapping[int, int]) -> None:
        """The next message may name records or gaps to ``hub`` up to these ends: lane -> one past the last, for all
        lanes of the connection.

        Returns once a later opening of the log is certain to know of it. Raises ``OSError`` when that cannot be made
        durable: nothing may be sent then.
        """
        ...

    def released(self, lane: int, ranges: RangeSet) -> None:
        """The receiver has made ``ranges`` durable: for this link the log may forget them."""

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the event loop's thread after each durable commit. Returns how to stop that."""
        ...
