"""The time of a record, and how far it can be trusted: the one rule for tables, the API and Spark.

A record has the stamp of its edge's wall clock. Two things can be wrong with it, and the chunk that holds the record
says all that is needed to put them right, so every reader gives the record the same time, whenever it reads:

- The clock had not been set (a machine without a battery clock, before the network was there). When the edge found out
  what the time was, the chunk has a clock notice of that boot: the time is its offset on top of the boot's monotonic
  clock (``corrected``).
- The clock was set back behind a moment that had been claimed complete. Then the chunk has that mark as the lane's
  ``floor``, and the record comes just behind it (``stepped``).

The stamp itself is kept beside a time that differs from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weft.protocols.batch import BatchHeader, ClockState
from weft.protocols.chunk_footer import ClockUpdate, LaneUpdate, Mark

UNSYNCED, SYNCED, FUTURE, CORRECTED, STEPPED = range(5)
CLOCKS = ("unsynced", "synced", "future", "corrected", "stepped")
"""Names of the states of a record's time, by these numbers."""
FUTURE_US = 5 * 60 * 1_000_000
"""Microseconds by which a time may lie after the record's receipt by the hub; beyond them it is ``future``."""

TIME_END = 1 << 62
"""Time from which on a correction is taken for damage, ns: in the year 2116."""

BootKey = tuple[str, str, int, int]
"""(tenant, edge, log id, boot id)."""


class RecordTime(NamedTuple):
    """The time of one record."""

    time: int
    """Nanoseconds since 1970."""
    clock: int
    """Index into ``CLOCKS``."""
    stamp: int | None
    """The edge's own stamp where it differs, ns."""


class BatchTimes(NamedTuple):
    """Rule for the times of the records of one batch in one chunk."""

    clock: int
    """``UNSYNCED``, ``SYNCED`` or ``CORRECTED``."""
    shift: int
    """Nanoseconds to add to the stamps."""
    floor: Mark | None

    @property
    def changes(self) -> bool:
        """Return whether a record may get another time than its stamp."""
        return self.clock == CORRECTED or self.floor is not None

    def of(self, stamp: int, seq: int, received: int) -> RecordTime:
        """Return the time of a record.

        Args:
            received: when the hub took the record in, ns.
        """
        time, floor = stamp + self.shift, self.floor
        if floor is not None and seq >= floor.seq and time <= floor.time:
            return RecordTime(behind(floor), STEPPED, stamp)
        clock = FUTURE if time // 1000 - FUTURE_US > received // 1000 else self.clock
        return RecordTime(time, clock, stamp if self.clock == CORRECTED else None)


def behind(floor: Mark) -> int:
    """Return the time of a stepped record, ns: the first whole microsecond behind the mark, as tables have times."""
    return (floor.time // 1000 + 1) * 1000


def known_clocks(clocks: Iterable[ClockUpdate]) -> dict[BootKey, int]:
    """Return boot -> its clock's offset, of a chunk's clock notices."""
    return {(clock.tenant, clock.edge, clock.log_id, clock.boot_id): clock.offset for clock in clocks}


def batch_times(header: BatchHeader, lane: LaneUpdate, clocks: dict[BootKey, int]) -> BatchTimes:
    """Return the rule for a batch.

    Args:
        lane: the footer's entry of the batch's lane.
        clocks: of the same chunk.
    """
    if header.clock is ClockState.SYNCED:
        return BatchTimes(SYNCED, 0, lane.floor)
    offset = clocks.get((lane.tenant, lane.edge, lane.log_id, header.boot_id))
    correction = None if offset is None else shift(header, offset)
    return BatchTimes(UNSYNCED if correction is None else CORRECTED, correction or 0, lane.floor)


def shift(header: BatchHeader, offset: int) -> int | None:
    """Return the nanoseconds to add to a batch's stamps, given its boot's time minus its monotonic clock.

    The header has both clocks as they stood at the first record, so it does not matter where the wall clock stood. None
    when the numbers cannot be clocks.
    """
    time = offset + header.monotonic
    if not 0 <= time < TIME_END or not 0 <= time + header.last_time - header.first_time < TIME_END:
        return None
    return time - header.first_time
