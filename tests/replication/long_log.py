"""A log in memory of many batches, whose state and reads cost the same however long it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from tests.replication.model import WALL, ModelLog, make_batch
from weft.protocols.chunk_index import Mark
from weft.protocols.ranges import RangeSet
from weft.replication.source import LaneSnapshot


class LongLog(ModelLog):
    """A log that only grows. Each batch is made when it is read."""

    def __init__(self, streams: dict[int, str], size: int = 20) -> None:
        super().__init__(streams)
        self.size = size
        self.firsts: dict[int, list[int]] = {lane: [] for lane in streams}

    def append(self, lane: int, count: int, size: int = 20, origin: int = 0) -> None:
        self.firsts[lane].append(self.ends[lane])
        self.ends[lane] += count
        for listener in self.listeners:
            listener([lane])

    def append_many(self, lane: int, batches: int, count: int) -> None:
        for _ in range(batches):
            self.append(lane, count)

    def held(self, lane: int) -> RangeSet:
        return RangeSet([(0, self.ends[lane])] if self.ends[lane] else [])

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        return {lane: self.state(lane) for lane in lanes}

    def state(self, lane: int) -> LaneSnapshot:
        return LaneSnapshot(self.held(lane), self.ends[lane], [], Mark(WALL + self.ends[lane] - 1, self.ends[lane]))

    def read_now(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        found: list[bytes] = []
        total, firsts = 0, self.firsts[lane]
        at = max(0, bisect_right(firsts, seq) - 1)
        while at < len(firsts) and seq < self.ends[lane]:
            end = firsts[at + 1] if at + 1 < len(firsts) else self.ends[lane]
            batch = make_batch(lane, firsts[at], end - firsts[at], self.size)
            total += len(batch)
            if found and total > bytes_max:
                break
            found.append(batch)
            at += 1
        return found
