"""One producer lane, without I/O: its missing rows, their sequence numbers, and its batches that are not durable yet.

The hub's answer about the lane (LANE_OPENED) is the only source of numbers. After a lost connection, the opening on the
next one reports which records arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.positions import Position
from weft.protocols.chunk import Mark
from weft.protocols.lane import Lane
from weft.protocols.ranges import Range, RangeSet
from weft.replication.sender_lane import LinkLaneState
from weft.replication.source import LaneSnapshot


class Superseded(SinkError):
    """Another task has taken over the lane. Its rows are the same, so this one stops."""


def went_back(lane: Lane, held: int, acked: int) -> SinkError:
    """Return the error for a hub that has fewer records than it acknowledged."""
    return SinkError(
        f"the hub has {held} records of lane {lane} and acknowledged {acked} before: its store went back to an earlier "
        "state. Start the query under another name, at the rows that the stream lacks"
    )


class Sealed(Superseded):
    """The first lane of a source shard is sealed: the query was spread, and goes on in other lanes."""


SEALED_EPOCH = (1 << 63) - 1
"""Epoch of a first lane that no attempt can take over again, of whichever release: no epoch is higher."""
EPOCH_STEP = 1 << 20
"""Epochs that take over a lane of a spread query are multiples of it (about a millisecond), and those in between belong
to the attempt that took it over, and to the next ones that rely on its facts."""


class Claim(Enum):
    """Kinds of an attempt's claim to a lane."""

    NEWEST = 1
    """Claim by the hub's clock, on every connection: for the only lane of a source shard, whose end shows others."""
    TAKE_OVER = 2
    """Claim by the hub's clock at first, and then as ``NEXT``."""
    NEXT = 3
    """Claim by the next epoch only: it fails if another attempt has claimed the lane meanwhile, even without a row."""
    SEAL = 4
    """Claim by ``SEALED_EPOCH``: no other follows."""
    RELAY = 5
    """No claim: only marks are sent."""


class LaneFact(NamedTuple):
    """A fact about a lane: when it was durable, record ``end - 1`` was its last one, and with it the source shard's."""

    end: int
    position: Position | None
    """Position of the source shard's last row; None without any. It is in another lane while ``end`` is 0."""
    epoch: int = 0
    """Highest known epoch of the lane."""
    is_sealed: bool = False
    """True when the first lane of the source shard is sealed."""
    behind: str = ""
    """Ends of the source shard's other lanes, as in the header ``weft.position-behind``."""


class Batch(NamedTuple):
    """A batch of the lane."""

    first: int
    end: int
    data: bytes


class ProducerLane:
    """A lane of one task attempt.

    ``opening`` and ``opened`` begin each connection, and ``resume`` follows the first opening. Then ``wants`` chooses
    rows and ``add`` accepts their batches. A ``Sender`` gets them by ``snapshot`` and ``read`` until they are durable.

    Args:
        epoch: the highest known epoch of the lane.
        claim: how the attempt claims it. ``NEXT`` requires the epoch.
    """

    def __init__(self, identity: Lane, epoch: int = 0, claim: Claim = Claim.NEWEST) -> None:
        self.identity = identity
        self.state = LinkLaneState.CLOSED
        self.epoch, self.claim = epoch, claim
        self._was_open, self._was_next = False, claim is Claim.NEXT
        self.acked = 0
        """Numbers below are durable at the hub."""
        self.end = 0
        """The next number to assign."""
        self.position: Position | None = None
        """Position of record ``end - 1``."""
        self.behind = ""
        """Ends of the source shard's other lanes, for the last record of each batch."""
        self.skipped = 0
        """Rows that the lane had already."""
        self.is_known = False
        """True when the position that belongs to ``end`` is known."""
        self.complete_up_to: int | None = None
        """Moment (ns since 1970) up to which no record beyond ``end`` can come; None without a claim."""
        self._batches: deque[Batch] = deque()
        """Batches that are not durable, oldest first."""

    @property
    def is_durable(self) -> bool:
        """Return whether the hub has acknowledged everything."""
        return not self._batches

    @property
    def fact(self) -> LaneFact:
        """Return the present fact about the lane. Useful when everything is durable."""
        return LaneFact(self.end, self.position, self.epoch, self.is_exact, self.behind)

    @property
    def is_exact(self) -> bool:
        """Return whether an attempt that another one has overtaken must stop, even if it has nothing to send: the other
        one may go on in another lane."""
        return self.claim in (Claim.TAKE_OVER, Claim.NEXT)

    @property
    def is_next(self) -> bool:
        """Return whether the first opening was by ``Claim.NEXT``: no other attempt has claimed the lane since."""
        return self._was_next

    def offer(self, clock: int) -> int:
        """Return the epoch with which to offer the lane, on a new connection or again.

        Args:
            clock: the hub's, ns since 1970.

        Raises:
            Superseded: no epoch is left between this attempt's and those of others.
        """
        self.state = LinkLaneState.OPENING
        if self.claim is Claim.NEXT and (self.epoch + 1) % EPOCH_STEP == 0:
            self._lose_claim()
        match self.claim:
            case Claim.NEXT:
                self.epoch += 1
            case Claim.NEWEST:
                # A known epoch takes precedence if the clock was set back, or another node's is behind.
                self.epoch = max(clock, self.epoch + 1)
            case Claim.TAKE_OVER:
                self.epoch = -(-max(clock, self.epoch + 1) // EPOCH_STEP) * EPOCH_STEP
            case Claim.SEAL:
                self.epoch = SEALED_EPOCH
        return self.epoch

    def refused(self, held: int) -> None:
        """Consider that the hub refused an epoch of the link, perhaps of another lane.

        Args:
            held: the epoch of this lane in the hub's log.

        Raises:
            Sealed: the lane is sealed.
            Superseded: another attempt has the lane.
        """
        if self.state is not LinkLaneState.OPENING:
            if held > self.epoch and (self.is_exact or not self.is_durable):
                raise self._overtaken()
        elif held == SEALED_EPOCH:
            raise Sealed(f"lane {self.identity} is sealed: the query was spread since")
        elif self.claim is Claim.NEXT and held >= self.epoch:
            self._lose_claim()
        self.epoch = max(self.epoch, held)

    def _lose_claim(self) -> None:
        """Take the lane over again, if nothing was done under the former claim."""
        if self._was_open:
            raise self._overtaken()
        self.claim, self._was_next = Claim.TAKE_OVER, False

    def _overtaken(self) -> Superseded:
        return Superseded(
            f"another task sends for {self.identity.edge} now, so this one stops; nothing is lost or doubled. Two "
            "queries must not have one name"
        )

    def opened(self, held: Iterable[Range]) -> None:
        """Apply the hub's answer about the lane.

        Raises:
            SinkError: the lane has holes, so no producer wrote it; or it has fewer records than were acknowledged.
            Superseded: another task has sent more than this one.
        """
        ranges = list(held)
        end = ranges[0][1] if ranges else 0
        # A producer sends in order from 0, so its lane is one range.
        if len(ranges) > 1 or (ranges and ranges[0][0] != 0):
            raise SinkError(f"lane {self.identity} has holes, which no sink leaves; give the query another name")
        self.state, self._was_open = LinkLaneState.OPEN, True
        if self.claim is Claim.TAKE_OVER:
            self.claim = Claim.NEXT
        # First opening: the hub's end decides where this attempt continues.
        if not self.is_known:
            self.acked = self.end = end
            return
        if end < self.acked:
            raise went_back(self.identity, end, self.acked)
        # The hub stores whole batches, so any other end is of another task's batch.
        if end not in (self.acked, *(batch.end for batch in self._batches)):
            raise Superseded(
                f"another task has sent records of lane {self.identity} meanwhile; nothing is lost or doubled"
            )
        self._settle(end)

    def resume(self, position: Position | None) -> None:
        """Set the position of the source shard's last row, found after the first opening: that of the lane's last
        record, or of one in a lane of another spread.

        Raises:
            SinkError: an empty lane has a position and no other lane, or a lane with records has none.
        """
        # A lane with records and an unknown position would send rows twice.
        if (position is None and self.end) or (position is not None and not self.end and not self.is_exact):
            raise SinkError(f"lane {self.identity} ends at {self.end}, and its last record's position is {position}")
        self.position, self.is_known = position, True

    def wants(self, position: Position) -> bool:
        """Return whether the lane lacks the row with a position."""
        if self.position is None or position > self.position:
            return True
        self.skipped += 1
        return False

    def add(self, batch: Batch, last: Position) -> None:
        """Add a batch that begins at ``end``.

        Args:
            last: position of its last record.

        Raises:
            ValueError: the batch does not continue the lane, or its positions do not ascend.
        """
        if batch.first != self.end or batch.end <= batch.first:
            raise ValueError(f"batch [{batch.first}, {batch.end}) does not continue a lane that ends at {self.end}")
        if self.position is not None and last <= self.position:
            raise ValueError(f"position {last} after {self.position}")
        self.end, self.position = batch.end, last
        self._batches.append(batch)

    @property
    def snapshot(self) -> LaneSnapshot:
        """Return the state of the lane for a ``Sender``, which can read the batches that are not durable."""
        first = self._batches[0].first if self._batches else self.end
        held = RangeSet([(first, self.end)] if first < self.end else [])
        mark = None if self.complete_up_to is None else Mark(self.complete_up_to, self.end)
        return LaneSnapshot(held, self.end, [], mark)

    def read(self, seq: int, bytes_max: int) -> list[bytes]:
        """Return the batches from the one with ``seq`` on: at least that one, and about ``bytes_max`` bytes."""
        found: list[bytes] = []
        size = 0
        for batch in self._batches:
            if batch.end > seq and (not found or size + len(batch.data) <= bytes_max):
                found.append(batch.data)
                size += len(batch.data)
        return found

    def acknowledged(self, ranges: Iterable[Range]) -> None:
        """Apply an ACK.

        Raises:
            Superseded: the hub has records of the lane that this task did not send.
        """
        # Only a range that continues the acknowledged records: numbers before a hole are not durable yet.
        end = max((end for first, end in ranges if first <= self.acked), default=0)
        if end > self.end:
            raise Superseded(
                f"another task has sent records of lane {self.identity} meanwhile; nothing is lost or doubled"
            )
        self._settle(end)

    def _settle(self, end: int) -> None:
        """Forget the batches below ``end``. A batch that the hub has in part is sent again: the hub trims the records
        that it has."""
        while self._batches and self._batches[0].end <= end:
            self._batches.popleft()
        self.acked = max(self.acked, end)
