"""Back-pressure: while too many bytes wait for the disk, no publisher is read."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from weft.storage.segment_log import SegmentLog


class Pause(IntEnum):
    """Reasons why a client is not read, combined as bits. Reading resumes when none is left."""

    DISK = 1
    """Too many bytes of all clients wait for the disk."""
    WRITE = 2
    """The client does not read the data sent to it."""
    ACKS = 4
    """More of its own acknowledgements wait for the disk than its receive maximum."""
    ASKING = 8
    """A packet of the client waits for a result from elsewhere: its password check, or whether a publish is a
    repeat."""
    TURN = 16
    """The client has had its turn: the rest of what it sent waits until others have had theirs."""


class Publisher(Protocol):
    """A source of records that can be paused."""

    def hold(self, reason: Pause) -> None:
        """Stop reading."""

    def release(self, reason: Pause) -> None:
        """Resume reading, if no other reason remains. Do nothing if the reason did not hold."""


class BackPressure:
    """Holds all publishers from the moment the bound is passed until half of it is free.

    Data already read from a publisher is still appended, so the log's pending bytes exceed the bound by at most one
    read.
    """

    def __init__(self, log: SegmentLog, pending_bytes_max: int) -> None:
        self._log = log
        self._pending_bytes_max = pending_bytes_max
        self._publishers: set[Publisher] = set()
        self.holding = False
        self.pauses = 0
        """Number of times that the bound was passed."""

    def join(self, publisher: Publisher) -> None:
        """Add a publisher; it is held at once if the others are."""
        if publisher not in self._publishers:
            self._publishers.add(publisher)
            if self.holding:
                publisher.hold(Pause.DISK)

    def leave(self, publisher: Publisher) -> None:
        """Forget a publisher; do nothing if it never joined."""
        self._publishers.discard(publisher)

    def appended(self) -> None:
        """Hold all publishers once the bound is passed. Must be called after every append."""
        if self._log.pending_bytes > self._pending_bytes_max and not self.holding:
            self.holding = True
            self.pauses += 1
            for publisher in self._publishers:
                publisher.hold(Pause.DISK)
            self._log.on_durable(self._durable)

    def _durable(self, error: BaseException | None) -> None:
        # After an error nothing becomes durable any more: publishers resume, and each append reports the error to its
        # client.
        if error is None and self._log.pending_bytes > self._pending_bytes_max // 2:
            self._log.on_durable(self._durable)
            return
        self.holding = False
        for publisher in list(self._publishers):
            publisher.release(Pause.DISK)
