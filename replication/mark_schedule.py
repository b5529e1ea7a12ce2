"""Times at which the marks of a link's lanes are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.protocols.link import Frame, LastWords, Marks
from weft.replication.liveness import SECOND
from weft.replication.sender_lanes import SenderLanes

WITH_DATA = SECOND
"""Minimum time between two messages with marks of lanes that send data: their completeness is at most this late."""


class MarkSchedule:
    """Lanes whose marks are due: lanes with data soon after the data, idle lanes once an interval, all together.

    All times are monotonic nanoseconds.
    """

    def __init__(self, interval: int, now: int) -> None:
        self._interval = interval
        self._all_at = now + interval
        self._with_data_at = now
        self._sent_data: dict[int, None] = {}
        """Lanes that sent data since their last mark."""
        self.due: dict[int, None] = {}
        """Lanes whose marks are sent as soon as all records that they cover were sent."""
        self._ends = False

    @property
    def deadline(self) -> int:
        """Return the time from which ``stale`` and ``begin`` have something to do."""
        return min(self._all_at, self._with_data_at) if self._sent_data else self._all_at

    def sent_data(self, lane: int) -> None:
        """Note that a lane's data is sent now."""
        self._sent_data[lane] = None

    def opened(self, lane: int) -> None:
        """Note that a lane was opened: the receiver has no mark of this connection."""
        self.due[lane] = None

    def forget(self, lane: int) -> None:
        """Note that a lane is closed."""
        self._sent_data.pop(lane, None)
        self.due.pop(lane, None)

    def make_all_due(self) -> None:
        """Make the marks of all lanes due."""
        self._all_at = self._with_data_at

    def stale(self, lanes: Iterable[int], now: int, *, all_due: bool = False) -> list[int]:
        """Return the open lanes whose marks become due at ``now``; arguments as for ``begin``."""
        if self._all_go(now, all_due):
            return list(lanes)
        return list(self._sent_data) if now >= self._with_data_at else []

    def _all_go(self, now: int, early: bool) -> bool:
        return now >= self._all_at - (self._interval // 2 if early else 0)

    def begin(self, lanes: Iterable[int], now: int, *, all_due: bool = False) -> None:
        """Collect the lanes whose marks are due at ``now``.

        Args:
            lanes: all open lanes.
            all_due: another message is sent now, so it takes along the marks of all lanes whose interval is half over.
        """
        if self._all_go(now, all_due):
            self._all_at = now + self._interval
            self.due.update(dict.fromkeys(lanes))
            self._sent_data.clear()
        elif self._sent_data and now >= self._with_data_at:
            self.due.update(self._sent_data)
            self._sent_data.clear()
            self._with_data_at = now + WITH_DATA

    def end(self, lanes: Iterable[int]) -> bool:
        """Make a last mark of each lane due, once; return whether all of them were sent."""
        if not self._ends:
            self._ends = True
            self.due.update(dict.fromkeys(lanes))
        return not self.due

    def take_frames(self, lanes: SenderLanes, first_waiting: Callable[[int], int | None]) -> list[Frame]:
        """Return the due marks of lanes whose data has reached them, one frame for all lanes with one time.

        Args:
            first_waiting: the first record of a lane that was read and waits for the window, if any.
        """
        found: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        for key in list(self.due):
            lane = lanes[key]
            mark = lane.take_mark(first_waiting(key))
            if mark is not None:
                last = self._ends and lane.ends_with(mark)
                found.setdefault((mark.time, last), []).append((lane.number, mark.seq))
                del self.due[key]
        return [(LastWords if last else Marks)(time, pairs) for (time, last), pairs in found.items()]
