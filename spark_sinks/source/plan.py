"""Planner from a range of offsets to Spark tasks: table files below the table's position, chunks above it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from spark_sinks.source.file_index import TableFile
from spark_sinks.source.partitions import ChunkPart, ReadContext, TableAccess, TablePart, Task
from spark_sinks.source.positions import Offsets, Position, check_offsets, nanoseconds
from spark_sinks.source.slices import ChunkSlice
from spark_sinks.source.stream_log import MissingOffsets, StreamLog
from spark_sinks.source.tables import TableSnapshot
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import lane_of

PARTITION_BYTES = 16 << 20
"""Stored bytes per task: some tenths of a second of work, so that a short tail still keeps a few cores busy and the
fixed cost of a task stays small."""
TABLE_PARTITION_BYTES = 32 << 20
"""Bytes of table files per task. Ranges of offsets cut through row groups, which both neighbours then read."""
PARTITIONS_MAX = 1024
"""Maximum number of tasks of one read; a longer read gets larger tasks."""


async def resolve(option: str, position: Position, log: StreamLog, table: TableSnapshot | None) -> Offsets:
    """Return the offsets of a position in the log as it is now.

    A time as a start means the first chunk or table file with a record received then or later: no such record comes
    before it. As an end, it means the position after the last chunk or file with an earlier record.

    Raises:
        ReadError: the log does not have these offsets.
    """
    heads = log.heads
    if position == "latest":
        return heads
    if position == "earliest":
        # Rows that the table's owner has deleted are not a loss for a read from the earliest row.
        return {shard: min(heads[shard], log.first_offset(shard, table)) for shard in heads}
    if isinstance(position, datetime):
        return {shard: await _offset_at(option, position, shard, log, table) for shard in heads}
    assert isinstance(position, dict)
    check_offsets(option, position, heads)
    return position


async def _offset_at(option: str, moment: datetime, shard: int, log: StreamLog, table: TableSnapshot | None) -> int:
    tiered = table.ends[shard] if table else 0
    files = list(table.files.overlapping(shard, 0, tiered)) if table else []
    tail = await log.slices(shard, tiered, log.heads[shard])
    at = nanoseconds(moment)
    if option == "ending":
        early = [piece.end for piece in tail if piece.section.first_time < at]
        early += [_end(file, tiered) for file in files if file.time_min is None or file.time_min < moment]
        return max(early, default=0)
    late = [piece.section.base_offset for piece in tail if piece.last_time >= at]
    late += [file.offset_min or 0 for file in files if file.may_reach(moment)]
    return min(late, default=log.heads[shard])


def _end(file: TableFile, tiered: int) -> int:
    return tiered if file.offset_max is None else min(tiered, file.offset_max + 1)


class _Sized(NamedTuple):
    """A part of a read with its cost."""

    part: ChunkPart | TablePart
    bytes: int


async def plan(
    log: StreamLog, table: TableSnapshot | None, start: Offsets, end: Offsets, again: str = ReadContext.again
) -> list[Task]:
    """Return tasks that together read every selected record of ``[start, end)`` of every shard exactly once.

    Shards, table files and chunks that cannot hold a selected record have no task. Large parts are split, and small
    ones, of all shards and of both tiers, share tasks of about ``PARTITION_BYTES``.

    Args:
        again: advice to the user when objects are deleted before a task reads them.

    Raises:
        MissingOffsets: records of the range are neither in the log nor in the table.
    """
    shards = log.shards_of(log.options.edges)
    ranges = {shard: (start[shard], end[shard]) for shard in sorted(start) if shard in shards}
    files: list[tuple[int, int, int, list[TableFile]]] = []
    chunks: list[tuple[int, int, int, list[ChunkSlice]]] = []
    for shard, (first, last) in ranges.items():
        tiered = max(first, min(last, table.ends[shard] if table else 0))
        if table and first < tiered:
            check_in_table(log, table, shard, first, tiered)
            files.append((shard, first, tiered, _selected(table, log, shard, first, tiered)))
        found = [piece for piece in await log.slices(shard, tiered, last) if piece.may_match(log.options)]
        chunks.append((shard, tiered, last, found))
    total = sum(file.size_bytes for *_, some in files for file in some)
    total += sum(piece.cost for *_, some in chunks for piece in some)
    size = max(PARTITION_BYTES, total // PARTITIONS_MAX)
    sized = [part for known in files for part in _from_table(*known, size)]
    sized += [part for known in chunks for part in _from_chunks(*known, size)]
    shared = ReadContext(log.options, log.cluster, tuple(log.fields), {}, log.payload, again=again)
    access = TableAccess(table.uri, table.storage_options, table.columns) if table else None
    topics = log.topics if chunks else {}
    return [Task(_context(shared, access, topics, parts), tuple(parts)) for parts in _packed(sized, size)]


def check_in_table(log: StreamLog, table: TableSnapshot, shard: int, first: int, end: int) -> None:
    """Check that the table still has the rows from ``first`` on: its owner may have deleted the oldest ones.

    Raises:
        Missing: they are gone, and the read must not continue without them.
    """
    low = min(end, table.first_offset(shard))
    if first < low and log.options.fail_on_data_loss and log.not_skipped(shard, first, low):
        raise MissingOffsets(
            f"offsets {first} to {low} of shard {shard} were removed from the table, and from the log before. To go on "
            f'without them, set .option("fail_on_data_loss", "false"), or start from offset {low} with a new checkpoint'
        )


def _selected(table: TableSnapshot, log: StreamLog, shard: int, first: int, end: int) -> list[TableFile]:
    return [file for file in table.files.overlapping(shard, first, end) if file.may_match(log.options)]


def _from_table(shard: int, first: int, end: int, files: list[TableFile], size: int) -> Iterator[_Sized]:
    """Yield equal parts of a range, each with the files that overlap it: right for any layout after an OPTIMIZE."""
    if not files:
        return
    first = max(first, min(file.offset_min or 0 for file in files))
    end = max(_end(file, end) for file in files)
    total = sum(file.size_bytes for file in files)
    parts = min(PARTITIONS_MAX, end - first, max(1, -(-total // max(size, TABLE_PARTITION_BYTES))))
    cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
    for low, high in pairwise(cuts):
        paths = tuple(file.path for file in files if file.may_hold(shard, low, high))
        if paths:
            yield _Sized(TablePart(shard, low, high, paths), total // parts)


def _from_chunks(shard: int, first: int, end: int, slices: list[ChunkSlice], size: int) -> Iterator[_Sized]:
    """Yield runs of chunks. A chunk is never split: its section is one request with one checksum, and of bounded
    size."""
    group: list[ChunkSlice] = []
    filled = 0
    for piece in slices:
        if group and filled + piece.cost > size:
            yield _Sized(ChunkPart(shard, first, end, tuple(group)), filled)
            group, filled = [], 0
        group.append(piece)
        filled += piece.cost
    if group:
        yield _Sized(ChunkPart(shard, first, end, tuple(group)), filled)


def _packed(sized: Iterable[_Sized], size: int) -> Iterator[list[ChunkPart | TablePart]]:
    """Yield the parts of each task. The largest come first, so that no long task starts when the others are done."""
    tasks: list[list[ChunkPart | TablePart]] = []
    filled = 0
    for part, weight in sorted(sized, key=lambda item: -item.bytes):
        if not tasks or filled + weight > size:
            tasks.append([])
            filled = 0
        tasks[-1].append(part)
        filled += weight
    yield from tasks


def _context(
    shared: ReadContext,
    table: TableAccess | None,
    topics: Mapping[Lane, list[str]],
    parts: Iterable[ChunkPart | TablePart],
) -> ReadContext:
    """Return the context with only the parts' topic patterns: those of a fleet would be megabytes in each task."""
    slices = [piece for part in parts if isinstance(part, ChunkPart) for piece in part.slices]
    lanes = {lane_of(update) for piece in slices for update in piece.lanes}
    needs_table = any(isinstance(part, TablePart) for part in parts)
    return replace(
        shared,
        topics={lane: topics[lane] for lane in lanes if lane in topics},
        table=table if needs_table else None,
    )
