"""The contract between a sender and the log that it replicates: lanes, epochs, and records that every party has
read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple, Protocol

from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.lane import Lane, Origin
from weft.protocols.link import Clock
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import Range, RangeSet
from weft.replication.events import LaneEnded, LaneTaken

# The contract between a sender and the log that it replicates.


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
    tells_safe: bool = False
    """True when gaps of reason ``ABSENT`` are numbers that are safe elsewhere, and the sender names them also where the
    receiver has the records, which need not keep these."""
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


# Records that every party has read durably, so that the log may forget them.


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


# A log's epoch as decimal text, in a place of its owner's choice.

EPOCH_BYTES_MAX: Final = 32
STANDING_MAX: Final = 64


class Epochs:
    """A log's epoch, shared by all its links. Every call blocks on the disk.

    Edge links and links between hubs store it in different places, so two functions read and write it.

    Args:
        place: path or address of the epoch, for error messages.
        read: returns the last written text; raises ``FileNotFoundError`` before the first.
        write: replaces the text durably, or not at all.
    """

    def __init__(self, place: str, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        self._place = place
        self._read = read
        self._write = write
        self._lock = threading.Lock()
        self._base: int | None = None
        """Epoch that was stored before the first proposal."""
        self._standing: list[int] = []
        """Proposals that were not withdrawn, the newest last."""

    def propose(self) -> int:
        """Return the next epoch, durable when this returns.

        Raises:
            OSError: the epoch cannot be read or replaced.
            ValueError: the stored text is not a number.
        """
        with self._lock:
            current = self._current()
            if self._base is None:
                self._base = current
            epoch = current + 1
            self._write(b"%d\n" % epoch)
            self._standing = [*self._standing, epoch][-STANDING_MAX:]
            return epoch

    def withdraw(self, epoch: int) -> None:
        """Note that no hub accepted ``epoch``: propose it again, unless a later proposal is still in use.

        Raises as ``propose``.
        """
        with self._lock:
            current = self._current()
            if epoch in self._standing:
                self._standing.remove(epoch)
                epoch = max([self._base or 0, *self._standing])
            elif epoch == current:
                epoch -= 1
            else:
                return
            if epoch < current:
                self._write(b"%d\n" % epoch)

    def _current(self) -> int:
        try:
            data = self._read()
        except FileNotFoundError:
            return 0
        if len(data) > EPOCH_BYTES_MAX or not data.strip().isdigit():
            raise ValueError(
                f"{self._place} holds no epoch; if no copy of this node runs elsewhere, start a new data_dir"
            )
        return int(data)
