"""The work of one Spark task: send the rows of some source shards to the hub, with a lane for each shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_sinks.errors import SinkError
from spark_sinks.sinks.stream.beginning import StoredHub, begin
from spark_sinks.sinks.stream.encoding import BATCH_BYTES, BATCH_ROWS, BatchEncoder, Row
from spark_sinks.sinks.stream.lane import LaneFact, ProducerLane, Superseded
from spark_sinks.sinks.stream.link import Link
from spark_sinks.sinks.stream.positions import Position
from spark_sinks.sinks.stream.rows import rows_of
from spark_sinks.sinks.stream.settings import ProducerSettings
from spark_sinks.sinks.stream.source import chunk_of

RESULT = pa.schema([
    pa.field("shard", pa.int32()), pa.field("end", pa.int64()), pa.field("offset", pa.int64()),
    pa.field("ordinal", pa.int32()), pa.field("epoch", pa.int64()), pa.field("seen_offset", pa.int64()),
    pa.field("seen_ordinal", pa.int32()), pa.field("sent", pa.int64()), pa.field("skipped", pa.int64()),
    pa.field("is_sealed", pa.bool_()), pa.field("behind", pa.string()),
])  # fmt: skip
"""Columns of a task's answer: one row for each lane, when everything is durable."""
RESULT_SQL = (
    "shard int, end long, offset long, ordinal int, epoch long, seen_offset long, seen_ordinal int, sent long, "
    "skipped long, is_sealed boolean, behind string"
)
_WHOLE_FACTOR = 8
"""Rows of one source record stay in one batch up to this many times the usual size."""


@dataclass(frozen=True)
class SendTask:
    """The function of a task. ``run`` gets the rows of a partition in the order of ``rows.ordered``."""

    settings: ProducerSettings
    facts: Mapping[int, LaneFact] = field(default_factory=dict)
    """Facts about lanes, by source shard, from earlier micro-batches."""
    floors: Mapping[int, Position] = field(default_factory=dict)
    """Highest position of earlier micro-batches, by source shard."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows, and yield a row of ``RESULT`` for each lane.

        Raises:
            SinkError: a row is not valid, or the hub refuses.
            Superseded: another attempt has taken over.
        """
        sender = _Sender(self)
        try:
            for shard, row in rows_of(batches):
                sender.take(shard, row)
            yield sender.finish()
        except Superseded:
            sender.abandon()
            raise
        finally:
            sender.close()


@dataclass
class _LaneWork:
    """A lane and the rows that wait for their batch."""

    shard: int
    link: Link
    lane: ProducerLane
    seen: Position
    waiting: list[Row] = field(default_factory=list)
    waiting_bytes: int = 0
    sent: int = 0


class _Sender:
    def __init__(self, task: SendTask) -> None:
        self._task = task
        self._settings = task.settings
        self._hub = StoredHub(self._settings, self._cluster_id)
        self._links: dict[str, Link] = {}
        """Links by edge: one, unless the rows come from elsewhere than ``rows.ordered``."""
        self._works: dict[int, _LaneWork] = {}
        self._last: _LaneWork | None = None

    def take(self, shard: int, row: Row) -> None:
        """Add the next row in order."""
        floor = self._task.floors.get(shard)
        if floor is not None and row.position <= floor:
            raise SinkError(
                f"a row of offset {row.position.offset} of shard {shard} comes behind rows of an earlier micro-batch, "
                f"of offset {floor.offset}. Give each row the _shard and _offset of the record whose arrival caused it"
            )
        work = self._works.get(shard)
        if work is not self._last and self._last is not None:
            self._flush(self._last)
        if work is None:
            work = self._works[shard] = self._begin(shard, row.position)
        self._last, work.seen = work, row.position
        if not work.lane.wants(row.position):
            return
        full = work.waiting_bytes >= BATCH_BYTES or len(work.waiting) >= BATCH_ROWS
        if full and (row.position.offset != work.waiting[-1].position.offset or self._is_too_long(work)):
            self._flush(work)
        work.waiting.append(row)
        work.waiting_bytes += row.bytes

    def _is_too_long(self, work: _LaneWork) -> bool:
        bytes_max = min(_WHOLE_FACTOR * BATCH_BYTES, work.link.batch_bytes_max // 2)
        return work.waiting_bytes >= bytes_max or len(work.waiting) >= _WHOLE_FACTOR * BATCH_ROWS

    def _begin(self, shard: int, seen: Position) -> _LaneWork:
        """Claim a shard's lane, and find its position."""
        edge = self._settings.edge_of(shard)
        link = self._links.get(edge)
        if link is None:
            link = self._links[edge] = self._hub.link(edge)
        lane = begin(self._settings, self._hub, link, shard, self._task.facts.get(shard))
        return _LaneWork(shard, link, lane, seen)

    def _cluster_id(self) -> str:
        return next((link.cluster_id for link in self._links.values() if link.cluster_id), "")

    def _flush(self, work: _LaneWork) -> None:
        """Send the waiting rows; memory holds the window and one batch."""
        rows = work.waiting
        if not rows:
            return
        lane, last = work.lane, rows[-1]
        # The hub stores whole batches, so a lane always ends with the last row of one.
        rows[-1] = last.behind(lane.behind).at_chunk(chunk_of(self._settings, work.shard, last.position.offset))
        encoder = BatchEncoder(lane.identity.log_id, work.link.batch_bytes_max)
        lane.add(encoder.encode(rows, lane.end), last.position)
        work.link.send(lane)
        work.sent += len(rows)
        work.waiting, work.waiting_bytes = [], 0

    def finish(self) -> pa.RecordBatch:
        """Wait until everything is durable, and return the task's answer."""
        for work in self._works.values():
            self._flush(work)
        for link in self._links.values():
            link.wait_until_durable()
        rows = []
        for shard, work in self._works.items():
            end, position, epoch, is_sealed, behind = work.lane.fact
            assert position is not None  # every lane has got a row, or had one
            rows.append((shard, end, *position, epoch, *work.seen, work.sent, work.lane.skipped, is_sealed, behind))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(RESULT)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, RESULT, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=RESULT)

    def abandon(self) -> None:
        """Drop the connections without a handshake."""
        for link in self._links.values():
            link.abandon()

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()
