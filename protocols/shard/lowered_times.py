"""Times by the hub's clock that a TIME record lowers: a wrong clock wrote them, and an operator says the right time.

Ages count from these times. One in the future would keep a lane for as long as the clock was ahead, and then end it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from weft.protocols.chunk_index.footer import Control
from weft.protocols.fields import Seq, unpack
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.open_gaps import OpenGap, in_order
from weft.protocols.shard.snapshot import Skip


class TimeBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a TIME record."""

    time: Seq
    """Nanoseconds since 1970. Later times in the shard's state become this one."""
    reason: str


_TIME = msgspec.msgpack.Decoder(TimeBody)
_replace = msgspec.structs.replace


def told_time(control: Control, created: int) -> int:
    """Return the time that a TIME record tells, at most that of its chunk (``created``): the clock of the chunk's
    writer was held against others.

    Raises:
        Corrupt: the record's body is malformed.
    """
    return min(unpack(_TIME, control.body, "a TIME record").time, created)


def lowered_lane(held: LaneState, time: int) -> LaneState:
    """Return a lane's state without times of the hub's clock after ``time``; ``held`` itself if it has none."""
    retired, conflict = held.retired, held.conflict
    late = conflict is not None and conflict.time > time
    if held.last_seen <= time and not late and (retired is None or retired.time <= time):
        return held
    new = held.successor()
    if held.last_seen > time:
        new.last_seen = time
    if retired is not None and retired.time > time:
        new.retired = _replace(retired, time=time)
    if conflict is not None and conflict.time > time:
        new.conflict = _replace(conflict, time=time)
    return new


def lowered_skips(skips: Sequence[Skip], time: int) -> list[Skip]:
    """Return the skipped ranges of a stream without times after ``time``."""
    return [skip if skip.time <= time else _replace(skip, time=time) for skip in skips]


def lowered_gaps(gaps: Sequence[OpenGap], time: int) -> list[OpenGap]:
    """Return the open gaps of a stream without ends after ``time``, in their order. What ended before ``time`` by the
    right clock did not end later."""
    return in_order(gap if gap.until <= time else _replace(gap, until=time) for gap in gaps)
