"""Positions of a table in the log: the offsets below which it has all rows.

They are Delta transactions, committed with the rows: application ``weft-sink/CLUSTER/TENANT/STREAM/SHARD/NAME``,
version = the offset after the last. A checkpoint of Spark, or its absence, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_sinks.errors import SinkError

SHARD, OFFSET, STREAM = "_shard", "_offset", "_stream"
PREFIX = "weft-sink"
_CLUSTER_DIGITS = 15
"""Hexadecimal digits of a cluster's id that fit into a transaction's version, which has 63 bits."""

StreamShard = tuple[str, int]
Positions = dict[StreamShard, int]
"""Per (stream, shard) the offset below which all rows are in the table."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The streams whose offsets a table keeps, for one writer."""

    cluster_id: str
    """Identity of the hub's store, 32 hexadecimal digits."""
    shards: int
    tenant: str
    streams: tuple[str, ...]
    name: str
    """Name of the writer. Two writers of different rows of a stream into one table need two names."""

    def apps(self) -> dict[str, StreamShard]:
        """Return the application ids of all positions."""
        return {self.app((stream, shard)): (stream, shard) for stream in self.streams for shard in range(self.shards)}

    def app(self, place: StreamShard) -> str:
        """Return the application id of a position."""
        return f"{PREFIX}/{self.cluster_id}/{self.tenant}/{place[0]}/{place[1]}/{self.name}"

    def cluster_app(self, stream: str) -> str:
        """Return the application id under which a table stores the hub's identity."""
        return f"{PREFIX}/{self.tenant}/{stream}/{self.name}/cluster"

    @property
    def cluster_number(self) -> int:
        """Return the identity as the version of a transaction."""
        return int(self.cluster_id[:_CLUSTER_DIGITS], 16)


@dataclass(frozen=True, slots=True)
class PositionFilter:
    """A filter against rows that the table has already, for executors."""

    streams: tuple[str, ...]
    positions: Mapping[StreamShard, int]
    floors: Mapping[StreamShard, int] = field(default_factory=dict)
    """Per (stream, shard) the end of the earlier micro-batches of this run."""

    def new_rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Positions]:
        """Return the rows from the positions on, and the end of their offsets.

        Raises:
            SinkError: a row without a position, of another stream, or below rows of an earlier micro-batch: it would be
                skipped as one that the table has.
        """
        shards, offsets = _numbers(batch, SHARD), _numbers(batch, OFFSET)
        new = np.zeros(batch.num_rows, bool)
        ends: Positions = {}
        for stream, of_stream in self._streams(batch):
            for shard in np.unique(shards[of_stream]).tolist():
                of_shard = of_stream & (shards == shard)
                self._check_floor(stream, shard, offsets[of_shard])
                rows = of_shard & (offsets >= self.positions.get((stream, shard), 0))
                if rows.any():
                    new |= rows
                    ends[stream, shard] = int(offsets[rows].max()) + 1
        return (batch if new.all() else batch.filter(pa.array(new))), ends

    def _check_floor(self, stream: str, shard: int, offsets: np.ndarray) -> None:
        floor = self.floors.get((stream, shard), 0)
        if int(offsets.min()) < floor:
            raise SinkError(
                f"a row of offset {offsets.min()} of shard {shard} of {stream} comes behind rows of an earlier "
                f"micro-batch, which ended at {floor}. Give each row the {SHARD} and {OFFSET} of the record that made "
                "it now. For results of windows give the sink keys and order_by, and no store"
            )

    def _streams(self, batch: pa.RecordBatch) -> list[tuple[str, np.ndarray]]:
        if len(self.streams) == 1:
            return [(self.streams[0], np.ones(batch.num_rows, bool))]
        named = batch.column(STREAM)
        found = [(stream, _mask(pc.equal(named, stream))) for stream in self.streams]
        if sum(int(mask.sum()) for _, mask in found) != batch.num_rows:
            others = sorted(set(map(str, pc.unique(named).to_pylist())) - set(self.streams))
            raise SinkError(
                f"column {STREAM} names {', '.join(others)}; the sink was made for {', '.join(self.streams)}. Add the "
                "stream to the sink, or correct the column"
            )
        return found


def merged_ends(all_ends: Sequence[Positions]) -> Positions:
    """Return the highest end per shard."""
    found: Positions = {}
    for ends in all_ends:
        for place, end in ends.items():
            found[place] = max(end, found.get(place, 0))
    return found


def _mask(values: pa.Array) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    column = batch.column(name)
    if column.null_count:
        raise SinkError(
            f"{column.null_count} rows have no {name}: they came from no record of the stream, or a join made them. "
            f"Give each row the {SHARD} and {OFFSET} of the record that caused it"
        )
    numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if len(numbers) and numbers.min() < 0:
        raise SinkError(f"a row has the {name} {numbers.min()}; leave it as the source has it")
    return numbers
