"""Lanes that the other region refuses: each waits by itself, and the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.cloud_hub.regions.window import RelayedLane, WindowChunk
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.replication.events import LaneEnded
from weft.replication.source import OfferedLane

LANES_MAX = 1024
"""Maximum number of lanes that wait by themselves. The window waits for one more."""
AGAIN_S, AGAIN_MAX_S = 10.0, 600.0
"""Time after which a lane is offered again. It doubles with each refusal in a row, up to the second one."""
NAMED_MAX = 3
"""Maximum number of lanes that ``RefusedLanes.sentence`` names."""
OVER_SOON = frozenset({RefuseCode.OVERLOADED, RefuseCode.CLOSED})
"""Reasons that may be over when the link offers the lane again: a lane has to be refused twice for one of them."""


@dataclass
class _Refused:
    lane: RelayedLane
    offer: OfferedLane
    """The next offer of it."""
    reason: str = ""
    """The region's, with advice."""
    again_at: float = 0.0
    """Monotonic seconds from which it is offered again."""
    is_taken: bool = False
    """True when the region takes it by now."""
    first: int | None = None
    """Number of the first chunk behind the window with anything that the region lacks of it."""
    created: int = 0
    """Time of that chunk, nanoseconds since 1970."""
    passed: int = 0
    """Records that the window had passed before that chunk."""
    records: int = 0
    """Records behind the window that the region lacks of it."""


class RefusedLanes:
    """The lanes that wait, and what the window has left behind of them. It remembers where that begins: the position
    stays there."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Refused] = {}
        self._oldest: _Refused | None = None

    def __contains__(self, name: Lane) -> bool:
        """Return whether a lane waits."""
        return name in self._lanes

    @property
    def first(self) -> int | None:
        """Return the number of the first chunk behind the window with anything that the region lacks; None if there
        is none."""
        return None if self._oldest is None else self._oldest.first

    @property
    def created(self) -> int | None:
        """Return the time of that chunk, nanoseconds since 1970."""
        return None if self._oldest is None else self._oldest.created

    @property
    def passed(self) -> int | None:
        """Return the records that the window had passed before that chunk."""
        return None if self._oldest is None else self._oldest.passed

    @property
    def records(self) -> int:
        """Return the records behind the window that the region lacks."""
        return sum(each.records for each in self._lanes.values())

    @property
    def are_taken(self) -> bool:
        """Return whether the region takes one of the lanes by now."""
        return any(each.is_taken for each in self._lanes.values())

    def sentence(self) -> str:
        """Return the lanes and the region's reasons for people; empty without any."""
        if not self._lanes:
            return ""
        named = [
            f"stream {name.stream} of {name.edge}, tenant {name.tenant}: {each.reason}"
            for name, each in list(self._lanes.items())[:NAMED_MAX]
        ]
        if len(self._lanes) > NAMED_MAX:
            named.append(f"{len(self._lanes) - NAMED_MAX} more")
        return f"lanes that the region refuses wait, and the others go on: {'. '.join(named)}"

    # -- what the region answers

    def refuse(self, lane: RelayedLane, ended: LaneEnded, now: float) -> bool:
        """Note that the region refuses an offered lane or closes it. Return whether the lane waits by itself now; the
        link offers any other again."""
        if lane.offered is None or ended.code == RefuseCode.UNAVAILABLE:  # of this hub node alone
            return False
        lane.refusals = min(lane.refusals + 1, 64)
        refused = self._lanes.get(lane.lane)
        if refused is None:
            if len(self._lanes) >= LANES_MAX or (lane.refusals == 1 and ended.code in OVER_SOON):
                return False
            refused = self._lanes[lane.lane] = _Refused(lane, lane.offered)
        refused.reason, refused.is_taken = f"{ended.message}; {ended.advice}", False
        refused.again_at = now + min(AGAIN_S * 2 ** (lane.refusals - 1), AGAIN_MAX_S)
        lane.is_refused = True
        return True

    def taken(self, name: Lane) -> bool:
        """Note that the region takes a lane. Return whether it had waited."""
        if name in self._lanes:
            self._lanes[name].is_taken = True
        return name in self._lanes

    def offer(self, offered: OfferedLane) -> None:
        """Note how a lane that waits is offered from now on."""
        assert offered.identity is not None
        self._lanes[offered.identity].offer = offered

    def due(self, now: float) -> Iterator[tuple[RelayedLane, OfferedLane]]:
        """Iterate over the lanes that are to be offered again."""
        for each in self._lanes.values():
            if each.lane.offered is None and now >= each.again_at:
                yield each.lane, each.offer

    # -- what the window passes

    def leave_behind(self, lane: RelayedLane, chunk: WindowChunk, passed: int) -> None:
        """Note that the window passes a chunk of a lane that waits, behind ``passed`` records."""
        refused, lacking = self._lanes[lane.lane], lane.lacking(chunk.n)
        if lacking is None:
            return
        refused.records += lacking
        if refused.first is None:
            refused.first, refused.created, refused.passed = chunk.n, chunk.chunk.header.created, passed
            self._oldest = self._oldest or refused

    def go_back(self) -> None:
        """Forget what was left behind, which comes again, and the lanes that the region takes."""
        for name, each in list(self._lanes.items()):
            each.first, each.records = None, 0
            if each.is_taken:
                self._remove(name)
        self._oldest = None

    def lose(self, end: int, front: int) -> int | None:
        """Note that the chunks before ``end`` were collected; the window begins at ``front``. Return the first of them
        with anything that the region lacks; None if there is none."""
        first = self.first
        if first is None or first >= end:
            return None
        for name, each in list(self._lanes.items()):
            if each.first is not None and each.first < end:
                # What it lacks of the rest is unknown, so all stays counted while there may be any.
                each.first, each.records = (end, each.records) if end < front else (None, 0)
            if each.first is None and each.lane.is_idle and each.lane.offered is None:
                self._remove(name)
        behind = [each for each in self._lanes.values() if each.first is not None]
        self._oldest = min(behind, key=lambda each: each.first or 0, default=None)
        return first

    def _remove(self, name: Lane) -> None:
        self._lanes.pop(name).lane.is_refused = False
