"""The time of a record, and its reliability: the one rule for tables, the API and Spark.

A record has the timestamp of its edge's wall clock. It can be wrong in two ways, and the record's chunk has all
information for the correction, so every reader gets the same time, whenever it reads:

- The clock had not been set (a machine without a battery clock, before the network was there). If the edge learned the
  time later, the chunk has a clock notice of that boot: the time is the boot's monotonic clock plus the notice's offset
  (``corrected``).
- The clock was set back before a moment that had been claimed complete. Then the chunk has that mark as the lane's
  ``floor``, and the record's time is just after it (``stepped``).

The timestamp itself is kept beside a time that differs from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weft.protocols.batch import BatchHeader, ClockState
from weft.protocols.chunk_index.footer import ClockUpdate, LaneUpdate, Mark

UNSYNCED, SYNCED, FUTURE, CORRECTED, STEPPED = range(5)
CLOCKS = ("unsynced", "synced", "future", "corrected", "stepped")
"""Names of the states of a record's time, by number."""
FUTURE_US = 5 * 60 * 1_000_000
"""Microseconds by which a time may be after the record's receipt by the hub; beyond them it is ``future``."""

TIME_END = 1 << 62
"""Time from which on a correction counts as damage, ns: in the year 2116."""

BootKey = tuple[str, str, int, int]
"""(tenant, edge, log id, boot id)."""


class RecordTime(NamedTuple):
    """The time of one record."""

    time: int
    """Nanoseconds since 1970."""
    clock: int
    """Index into ``CLOCKS``."""
    stamp: int | None
    """The edge's own timestamp if it differs, ns."""


class BatchTimes(NamedTuple):
    """Rule for the times of the records of one batch in one chunk."""

    clock: int
    """``UNSYNCED``, ``SYNCED`` or ``CORRECTED``."""
    shift: int
    """Nanoseconds to add to the timestamps."""
    floor: Mark | None

    @property
    def changes(self) -> bool:
        """Return whether a record may get another time than its timestamp."""
        return self.clock == CORRECTED or self.floor is not None

    def of(self, stamp: int, seq: int, received: int) -> RecordTime:
        """Return the time of a record.

        Args:
            received: time at which the hub received the record, ns.
        """
        time, floor = stamp + self.shift, self.floor
        if floor is not None and seq >= floor.seq and time <= floor.time:
            return RecordTime(behind(floor), STEPPED, stamp)
        clock = FUTURE if time // 1000 - FUTURE_US > received // 1000 else self.clock
        return RecordTime(time, clock, stamp if self.clock == CORRECTED else None)


def behind(floor: Mark) -> int:
    """Return the time of a stepped record, ns: the first whole microsecond after the mark, the unit of tables."""
    return (floor.time // 1000 + 1) * 1000


def known_clocks(clocks: Iterable[ClockUpdate]) -> dict[BootKey, int]:
    """Return boot -> its clock's offset, from a chunk's clock notices."""
    return {(clock.tenant, clock.edge, clock.log_id, clock.boot_id): clock.offset for clock in clocks}


def batch_times(header: BatchHeader, lane: LaneUpdate, clocks: dict[BootKey, int]) -> BatchTimes:
    """Return the rule for a batch.

    Args:
        lane: the footer's entry of the batch's lane.
        clocks: clock offsets of the same chunk.
    """
    if header.clock is ClockState.SYNCED:
        return BatchTimes(SYNCED, 0, lane.floor)
    offset = clocks.get((lane.tenant, lane.edge, lane.log_id, header.boot_id))
    correction = None if offset is None else shift(header, offset)
    return BatchTimes(UNSYNCED if correction is None else CORRECTED, correction or 0, lane.floor)


def shift(header: BatchHeader, offset: int) -> int | None:
    """Return the nanoseconds to add to a batch's timestamps, given its boot's time minus its monotonic clock.

    The header has the readings of both clocks at the first record, so the result does not depend on the wall clock.
    None if the numbers cannot be clocks.
    """
    time = offset + header.monotonic
    if not 0 <= time < TIME_END or not 0 <= time + header.last_time - header.first_time < TIME_END:
        return None
    return time - header.first_time
