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
from weft.protocols.lane import Lane
from weft.protocols.ranges import Range


class Superseded(SinkError):
    """Another task has taken over the lane. Its rows are the same, so this one stops."""


def went_back(lane: Lane, held: int, acked: int) -> SinkError:
    """Return the error for a hub that has fewer records than it acknowledged."""
    return SinkError(
        f"the hub has {held} records of lane {lane} and acknowledged {acked} before: its store went back to an earlier "
        "state. Start the query under another name, at the rows that the stream lacks"
    )


class LaneFact(NamedTuple):
    """A fact about a lane that never changes: record ``end - 1`` has this position."""

    end: int
    position: Position | None
    """None when ``end`` is 0."""
    epoch: int = 0
    """Highest known epoch of the lane."""


class Batch(NamedTuple):
    """A batch of the lane."""

    first: int
    end: int
    data: bytes
    cost: int
    """Bytes of the window that it uses."""


class LinkLaneState(Enum):
    """State of a lane on the present connection."""

    CLOSED = 1
    OPENING = 2
    OPEN = 3


class ProducerLane:
    """A lane of one task attempt.

    ``opening`` and ``opened`` begin each connection, and ``resume`` follows the first opening. Then ``wants`` chooses
    rows and ``add`` accepts their batches. ``next_to_send`` returns these, and again after a lost connection.

    Args:
        epoch: the highest known epoch of the lane.
    """

    def __init__(self, identity: Lane, epoch: int = 0) -> None:
        self.identity = identity
        self.state = LinkLaneState.CLOSED
        self.epoch = epoch
        self.acked = 0
        """Numbers below are durable at the hub."""
        self.end = 0
        """The next number to assign."""
        self.position: Position | None = None
        """Position of record ``end - 1``."""
        self.skipped = 0
        """Rows that the lane had already."""
        self.is_known = False
        """True when the position that belongs to ``end`` is known."""
        self.in_flight = 0
        """Bytes of the window that batches take on this connection."""
        self._batches: deque[Batch] = deque()
        """Batches that are not durable, oldest first."""
        self._sent = 0
        """Number of these batches that were sent on this connection."""

    @property
    def is_durable(self) -> bool:
        """Return whether the hub has acknowledged everything."""
        return not self._batches

    @property
    def fact(self) -> LaneFact:
        """Return the present fact about the lane. Useful when everything is durable."""
        return LaneFact(self.end, self.position, self.epoch)

    def opening(self, epoch: int) -> None:
        """Record that the lane was offered with an epoch, on a new connection or again."""
        self.state, self.epoch = LinkLaneState.OPENING, epoch

    def lost(self) -> None:
        """Record the loss of the connection: its batches count as not sent."""
        self.state, self._sent, self.in_flight = LinkLaneState.CLOSED, 0, 0

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
        self.state = LinkLaneState.OPEN
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
        """Set the position of the lane's last record, found after the first opening.

        Raises:
            SinkError: an empty lane has a position, or a lane with records has none.
        """
        # A lane with records and an unknown position would send rows twice.
        if (position is None) != (self.end == 0):
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
    def next_to_send(self) -> Batch | None:
        """Return the oldest batch that this connection has not carried; None when there is none, or no lane."""
        if self.state is not LinkLaneState.OPEN or self._sent == len(self._batches):
            return None
        return self._batches[self._sent]

    def note_sent(self) -> None:
        """Record that the batch of ``next_to_send`` was sent."""
        self.in_flight += self._batches[self._sent].cost
        self._sent += 1

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
            settled = self._batches.popleft()
            if self._sent:
                self._sent -= 1
                self.in_flight -= settled.cost
        self.acked = max(self.acked, end)
