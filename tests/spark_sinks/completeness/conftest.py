"""A fleet whose edges can go offline: hours of data, written into a log as a hub would."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.log_writer import Delivery, LogWriter
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.chunk_index import Mark
from weft.protocols.shard.placement import shard_of

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
MIDNIGHT = 1_700_006_400 * SECOND
"""2023-11-15T00:00:00Z."""
STREAM = "telemetry"
EDGES = ("press-1", "press-2", "paint-1")
PER_HOUR = 6
"""Records of an edge in an hour, one each ten minutes from the hour on."""


class Fleet:
    """Edges that take in records hour by hour, and a log that has what they delivered.

    An edge's record i was taken in at MIDNIGHT + 10 min * i, from machine m0 or m1 in turn, with i as its payload.
    """

    def __init__(self, root: str, shards: int = 2) -> None:
        self.root = root
        self.delivered = dict.fromkeys(EDGES, 0)
        """Number of the next record to deliver, per edge."""
        self.topic = "plant/{line}/{machine}/telemetry"
        self._writer = LogWriter(root, shards=shards, stream=STREAM)
        self._shards = shards

    def shard(self, edge: str) -> int:
        return shard_of("default", edge, self._shards)

    def hours(self, first: int, end: int, edges: Sequence[str] = EDGES) -> None:
        """The edges deliver the hours [first, end), an hour at a time, when each is over."""
        for hour in range(first, end):
            self.deliver(*(self.records(edge, (hour + 1) * PER_HOUR) for edge in edges), hour=hour + 1)

    def records(self, edge: str, end: int, mark: Mark | None = None) -> Delivery:
        """The edge's next records, up to number ``end``."""
        first = self.delivered[edge]
        self.delivered[edge] = end
        count = end - first
        encoded = [] if not count else [_encoded(first, count)]
        return Delivery(edge, encoded, EDGES.index(edge) + 1, [self.topic], mark=mark)

    def deliver(self, *deliveries: Delivery, hour: float) -> dict[int, int]:
        """Make chunks, at a time given in hours since MIDNIGHT; returns the log's end."""
        return self._writer.write(*deliveries, received=MIDNIGHT + int(hour * HOUR))

    def heads(self) -> dict[int, int]:
        return self._writer.write(received=0)


def _encoded(first: int, count: int) -> bytes:
    times = struct.pack(f"<{count}q", *(MIDNIGHT + HOUR // PER_HOUR * i for i in range(first, first + count)))
    keys = [f"plant/a/m{i % 2}/telemetry".encode() for i in range(first, first + count)]
    payloads = [str(i).encode() for i in range(first, first + count)]
    columns = batch.columns_from_lists(times, keys, payloads)
    return batch.encode(1, first, columns, ClockReading(1, first, ClockState.SYNCED))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(str(tmp_path / "hub"))
