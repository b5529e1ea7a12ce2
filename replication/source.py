"""The contract between a sender and the log that it replicates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from weft.protocols.chunk import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane
from weft.protocols.link import Clock
from weft.protocols.origin import Origin
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import Range, RangeSet
from weft.replication.events import LaneEnded, LaneTaken


def nothing_acknowledged() -> list[tuple[str, list[Range]]]:
    """Return nothing: for logs that do not record acknowledgements of hubs."""
    return []


def no_origin(_number: int) -> Origin | None:
    """Explain no origin: for logs that hold only records of devices."""
    return None


def no_clock(_boot: int) -> Clock | None:
    """Correct no boot's clock: for logs whose owner tells the clocks of its boots for all lanes at once."""
    return None


def ignore(_answer: LaneTaken | LaneEnded) -> None:
    """Ignore the answer: for logs whose lanes the link alone offers again."""


class OfferedLane(NamedTuple):
    """A lane that a link carries."""

    lane: int
    """Number of the lane in the source. The link gives lanes numbers of its own."""
    stream: str
    topics: tuple[str, ...]
    payload: PayloadKind = PayloadKind.BYTES
    """Declared kind of the stream's payloads."""
    identity: Lane | None = None
    """Identity of the lane, when it is not the link's own."""
    flags: LaneFlag = LaneFlag(0)
    origin: Callable[[int], Origin | None] = no_origin
    """Look-up of the origins that the lane's batches name, by their numbers in its log; None for unknown ones."""
    acknowledged: Callable[[], list[tuple[str, list[Range]]]] = nothing_acknowledged
    """Look-up of the ranges that hubs acknowledged before this connection, by cluster id."""
    epoch: int | None = None
    """Epoch of the lane, when it is not the link's: that of a lane whose owner learns it from the WELCOME."""
    clock: Callable[[int], Clock | None] = no_clock
    """Look-up of the notice that corrects the batches of a boot whose clock was not set, of a lane that is relayed."""
    is_background: bool = False
    """True when the lane is read only while no other lane has anything to send."""
    continues_hub: bool = False
    """True when the lane takes its next number from LANE_OPENED: the hub may hold records that this log never had, and
    the owner judges them."""
    answered: Callable[[LaneTaken | LaneEnded], None] = ignore
    """Called with the hub's answer to each offer of the lane, and when the lane is closed later."""


class LaneSnapshot(NamedTuple):
    """A log's state of one lane at one instant."""

    held: RangeSet
    """Durable records that can be read now. The set does not change afterwards."""
    end: int
    """Sequence number after the last one ever assigned."""
    gaps: list[GapRange]
    mark: Mark | None
    """None while the owner makes no claim."""
    is_settled: bool = False
    """True when the mark is about this instant: all appended records are durable, and no function has pending rows."""


class LogSource(Protocol):
    """A log to replicate (``edge_node.links.source.SegmentLogSource``, which may not be imported here).

    Lanes are identified by the source's numbers here (``OfferedLane.lane``).

    All calls come on the event loop's thread, and must not block, except ``read`` and ``prepare_to_send``.
    """

    def lanes(self) -> list[OfferedLane]:
        """Return the lanes to carry now. ``listen`` reports changes."""
        ...

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        """Return the log's state of these lanes now, with one reading of the clock for the marks of all."""
        ...

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        """Return durable batches as stored: the first one holds ``seq`` or, if that is in a hole, the next held number.

        At least one batch if anything is held from ``seq`` on, about ``bytes_max`` bytes of them. Raises ``OSError`` or
        ``CodecError`` when the log cannot be read. The batches are sent after ``prepare_to_send``.
        """
        ...

    def high_watermark(self, hub: str, lane: int) -> int:
        """Return the end of the numbers of ``lane`` that the hub can hold. If it holds more, this log has lost some.

        ``hub`` is the ``cluster_id`` of its WELCOME, which the hub's store never changes. Empty for a hub to which
        other clusters relay what this log sent to them: it can hold what was sent to any hub.
        """
        ...

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        """Prepare to send records or gaps up to these ends to ``hub``: lane -> one past the last. The hub's ranges of
        each of these lanes have been compared with ``high_watermark`` on this connection.

        Returns when the ends are durable, so that a later opening of the log knows them. Raises ``OSError`` when they
        cannot be made durable: then nothing may be sent.
        """
        ...

    def released(self, lane: int, ranges: RangeSet) -> None:
        """Note that the receiver has made ``ranges`` durable: for this link the log may forget them."""

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        """Call ``callback`` on the event loop's thread after each durable commit, with the touched lanes.

        None means any lane, or a change of ``lanes``. Return a function that ends this.
        """
        ...
