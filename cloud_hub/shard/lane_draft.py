"""Additions of the next chunk to one lane."""

from __future__ import annotations

from weft.cloud_hub.shard.lane_session import LaneSession
from weft.protocols.chunk import GapRange, LaneFlag, LaneUpdate, Mark
from weft.protocols.origin import ORIGINS_MAX, Origin, by_number
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.lane_state import LaneState

LANE_BYTES, RANGE_BYTES = 100, 24
"""Maximum bytes of a lane without its names, and of a range or gap, in the footer."""
_LAST_WORD = int(LaneFlag.LAST_WORD)


class LaneDraft:
    """Additions of the chunk to one lane. Most have only a run of records and a mark, and need no other objects."""

    __slots__ = ("floor", "index", "mark", "named", "origins", "payload", "pieces", "run", "session", "told", "topics")

    def __init__(self, session: LaneSession, index: int) -> None:
        self.session = session
        self.index = index
        self.run: Range | None = None
        """The records, if they are one run that was added at once."""
        self.pieces: RangeSet | None = None
        """The records, if they are not one run."""
        self.told: LaneState | None = None
        """Gaps that the chunk adds, in ascending order, independent of the sender's order."""
        self.mark: Mark | None = None
        self.topics: list[str] | None = None
        self.payload: int | None = None
        self.origins: list[Origin] = []
        self.named: set[int] | None = None
        """Numbers of origins that the records' batches name; None if all are of devices."""
        self.floor: Mark | None = None

    @property
    def ranges(self) -> list[Range]:
        if self.run is not None:
            return [self.run]
        return list(self.pieces) if self.pieces is not None else []

    @property
    def gaps(self) -> list[GapRange]:
        return list(self.told.gaps) if self.told is not None else []

    def name_origin(self, number: int) -> None:
        """Note that a batch of the lane names an origin."""
        self.named = self.named if self.named is not None else set()
        self.named.add(number)

    def take_origins(self, held: LaneState, tells: bool) -> None:
        """Choose the chunk's origins: all that its batches name, so that its rows do not depend on later declarations,
        and with ``tells`` those that are new to the lane."""
        told = self.session.origins
        found = by_number(held.new_origins(told.values())) if tells else {}
        if self.named:
            known = by_number(held.origins) if not told.keys() >= self.named else {}
            named = {number: told.get(number) or known.get(number) for number in sorted(self.named)}
            found = {number: origin for number, origin in named.items() if origin is not None} | found
        self.origins = [found[number] for number in sorted([*found][:ORIGINS_MAX])]

    def index_bytes(self) -> int:
        """Return an upper estimate of the lane's bytes in the footer."""
        lane = self.session.lane
        size = LANE_BYTES + RANGE_BYTES + len(lane.tenant) + len(lane.edge) + len(lane.stream)
        if self.topics is None and not self.origins and self.pieces is None and self.told is None:
            return size
        topics = sum(len(topic.encode()) + 5 for topic in self.topics or ())
        origins = sum(4 * (len(origin.name) + len(origin.version)) + len(origin.hash) + 24 for origin in self.origins)
        return size + topics + origins + RANGE_BYTES * (len(self.ranges) + len(self.gaps))

    def update(self) -> LaneUpdate:
        """Return the footer's entry of the lane."""
        session, flags = self.session, self.session.flags
        if self.mark is not None and session.says_last_word:
            flags |= _LAST_WORD
        return LaneUpdate(
            *session.lane, session.epoch, self.ranges, self.gaps, self.mark, self.topics, self.payload, self.origins,
            self.floor, flags,
        )  # fmt: skip
