"""Records of one stream in chunks, as a planner knows them from indexes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from spark_sinks.source.options import ReadOptions
from spark_sinks.source.positions import nanoseconds
from weft.protocols.chunk import ClockUpdate, LaneUpdate, StreamSection
from weft.storage.table.record_time import behind

RECENT_CHUNKS_MAX = 4096
"""Maximum number of indexes of recent chunks that a running query keeps per shard, so that a micro-batch reads no index
twice."""

RECENT_LANES_MAX = 256 << 10
"""Maximum number of lanes in them, per shard: 2 MiB."""

REQUEST_BYTES = 32 << 10
"""Cost of one request of a section, in bytes, so that a task with many tiny chunks does not take long."""


class ChunkSlice(NamedTuple):
    """The records of the stream in chunk ``n``."""

    n: int
    section: StreamSection
    lanes: tuple[LaneUpdate, ...]
    """Lanes that the section names by number, without their changes to the hub's state."""
    clocks: tuple[ClockUpdate, ...] = ()
    """Clock notices for the section."""
    footer_crc: int = 0
    created: int = 0
    """Time at which the hub made the chunk, ns since 1970."""

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.section.base_offset + self.section.count

    @property
    def cost(self) -> int:
        """Return the bytes to read, plus the cost of the request in bytes."""
        return self.section.length + REQUEST_BYTES

    @property
    def last_time(self) -> int:
        """Return the latest time that a record can have, ns. Records of a clock that stepped back count from their
        lane's floor, which the section's own range does not include."""
        floors = [behind(lane.floor) for lane in self.lanes if lane.floor is not None]
        return max(self.section.last_time, *floors) if floors else self.section.last_time

    def may_match(self, options: ReadOptions) -> bool:
        """Return whether the options may select a record of the chunk."""
        return (
            (options.since is None or self.last_time >= nanoseconds(options.since))
            and (options.until is None or self.section.first_time < nanoseconds(options.until))
            and (options.edges is None or any(lane.edge in options.edges for lane in self.lanes))
        )


class RecentSlices(deque[ChunkSlice]):
    """The newest slices of a shard, within both bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes = 0

    def add(self, pieces: Iterable[ChunkSlice]) -> None:
        """Append slices; the oldest leave."""
        for piece in pieces:
            self.append(piece)
            self._lanes += len(piece.lanes)
        while len(self) > 1 and (len(self) > RECENT_CHUNKS_MAX or self._lanes > RECENT_LANES_MAX):
            self._lanes -= len(self.popleft().lanes)

    def forget(self) -> None:
        """Remove all."""
        self.clear()
        self._lanes = 0
