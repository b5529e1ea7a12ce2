"""Planner from a range of offsets to Spark tasks: table files below the table's position, chunks above it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from spark_sinks.source.partitions import ChunkPartition, ReadContext, TablePartition
from spark_sinks.source.positions import Offsets, Position, check_offsets, nanoseconds
from spark_sinks.source.stream_log import ChunkSlice, StreamLog
from spark_sinks.source.tables import TableFile, TableSnapshot
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import lane_of

PARTITION_BYTES = 8 << 20
"""Stored bytes per task: about a second of work, so that a short tail still keeps a few cores busy."""
PARTITIONS_MAX = 1024
"""Maximum number of tasks of one read; a longer read gets larger tasks."""


async def resolve(option: str, position: Position, log: StreamLog, table: TableSnapshot | None) -> Offsets:
    """Return the offsets of a position in the log as it is now.

    A time as a start means the first chunk or table file with a record received then or later: no such record comes
    before it. As an end it means behind the last one with an earlier record.

    Raises:
        ReadError: offsets that the log does not have.
    """
    heads = log.heads
    if position == "latest":
        return heads
    if position == "earliest":
        return dict.fromkeys(heads, 0)
    if isinstance(position, datetime):
        return {shard: await _offset_at(option, position, shard, log, table) for shard in heads}
    assert isinstance(position, dict)
    check_offsets(option, position, heads)
    return position


async def _offset_at(option: str, moment: datetime, shard: int, log: StreamLog, table: TableSnapshot | None) -> int:
    tiered = table.ends[shard] if table else 0
    files = [file for file in table.files if file.may_hold(shard, 0, tiered)] if table else []
    tail = await log.slices(shard, tiered, log.heads[shard])
    at = nanoseconds(moment)
    if option == "ending":
        early = [piece.end for piece in tail if piece.section.first_time < at]
        early += [_end(file, tiered) for file in files if file.time_min is None or file.time_min < moment]
        return max(early, default=0)
    late = [piece.section.base_offset for piece in tail if piece.section.last_time >= at]
    late += [file.offset_min or 0 for file in files if file.may_reach(moment)]
    return min(late, default=log.heads[shard])


def _end(file: TableFile, tiered: int) -> int:
    return tiered if file.offset_max is None else min(tiered, file.offset_max + 1)


async def plan(log: StreamLog, table: TableSnapshot | None, start: Offsets, end: Offsets) -> list[InputPartition]:
    """Return tasks that together read every offset of ``[start, end)`` of every shard exactly once.

    Raises:
        ReadError: chunks of the range were deleted and the table does not have them.
    """
    context = ReadContext(log.options, log.cluster, tuple(log.fields), {}, log.payload)
    topics = log.topics
    partitions: list[InputPartition] = []
    for shard in sorted(start):
        first, last = start[shard], end[shard]
        tiered = max(first, min(last, table.ends[shard] if table else 0))
        if table and first < tiered:
            partitions += _from_table(context, table, shard, first, tiered)
        partitions += _from_chunks(context, topics, shard, tiered, last, await log.slices(shard, tiered, last))
    return partitions


def _from_table(
    context: ReadContext, table: TableSnapshot, shard: int, first: int, end: int
) -> Iterator[InputPartition]:
    """Yield tasks of equal parts of the range, each with the files that overlap it: right for any layout after an
    OPTIMIZE."""
    columns = table.columns
    files = [file for file in table.files if file.may_hold(shard, first, end)]
    parts = min(PARTITIONS_MAX, end - first, max(1, sum(file.size_bytes for file in files) // PARTITION_BYTES))
    cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
    for low, high in pairwise(cuts):
        paths = tuple(file.path for file in files if file.may_hold(shard, low, high))
        if paths:
            yield TablePartition(context, shard, low, high, table.uri, table.storage_options, paths, columns)


def _from_chunks(  # noqa: PLR0917
    context: ReadContext,
    topics: Mapping[Lane, list[str]],
    shard: int,
    first: int,
    end: int,
    slices: list[ChunkSlice],
) -> Iterator[InputPartition]:
    size = max(PARTITION_BYTES, sum(piece.section.length for piece in slices) // PARTITIONS_MAX)
    group: list[ChunkSlice] = []
    filled = 0
    for piece in slices:
        if group and filled + piece.section.length > size:
            yield ChunkPartition(_with_topics(context, topics, group), shard, first, end, tuple(group))
            group, filled = [], 0
        group.append(piece)
        filled += piece.section.length
    if group:
        yield ChunkPartition(_with_topics(context, topics, group), shard, first, end, tuple(group))


def _with_topics(context: ReadContext, topics: Mapping[Lane, list[str]], group: Iterable[ChunkSlice]) -> ReadContext:
    """Return the context with the topic patterns of the lanes of some chunks: a task gets no others. Of a fleet they
    would be megabytes in each task."""
    lanes = {lane_of(update) for piece in group for update in piece.lanes}
    return replace(context, topics={lane: topics[lane] for lane in lanes if lane in topics})
