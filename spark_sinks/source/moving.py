"""Move of a query from one region's store to another's: its position, in the offsets of the other log.

Offsets are each region's own. What is the same is the lane and the sequence number of a record, so a position is
translated in two steps: from offsets to what has been read of each lane, and from there to the first offset of the
other log with a record that has not been read (``elsewhere`` has what comes after it and has been).

What was read is what the first region's log holds, except what it has from the position on. So its store is needed, and
its records from the position on, but not those before it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_sinks.blocking import run
from spark_sinks.errors import ReadError
from spark_sinks.source.options import Offsets, ReadOptions
from spark_sinks.source.partitions import LANE_COLUMNS, LaneName, ReadElsewhere, lane_name, read_partition
from spark_sinks.source.readers import Bookmarks, encode, moved, offsets_of, plan
from spark_sinks.source.stream_log import StreamLog, subset
from weft.protocols.chunk_index import Chunk
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard import snapshot
from weft.protocols.shard.lane_state import lane_of
from weft.storage.object_store import NotFound, ObjectStore, PreconditionFailed, StoreUnfit, open_store

AHEAD_MAX = 32
"""Maximum number of chunk indexes that are requested at once."""
_Lanes = dict[LaneName, RangeSet]


class MovedPosition(NamedTuple):
    """A position in the log of another region."""

    position: dict[str, Any]
    """Offsets by shard, in the form of a checkpoint."""
    read: int
    """Records that the query has read, by the states of both regions."""
    unread: int
    """Records in the other log that it has not read: it reads them first."""
    coming: int
    """Records that it has read and that the other log lacks: they are left out when they arrive."""


def moved_position(position: Any, there: ReadOptions, here: ReadOptions) -> MovedPosition:
    """Return the position of a query that has read one region up to a position, in the log of another region.

    Both logs may grow meanwhile; what they get later is unread in both.

    Args:
        position: as in a checkpoint of the region ``there``.
        here: the stream in the region to continue in.

    Raises:
        ReadError: a store does not answer or lacks the stream, both are the same cluster, the position is not of
            ``there``, or records behind it are in neither its log nor its table.
    """
    left, target = run(StreamLog.open(there)), run(StreamLog.open(here))
    if left.cluster.cluster_id == target.cluster.cluster_id:
        raise ReadError("both stores are of the same cluster, whose checkpoints stay valid when a store is moved")
    run(left.extend())
    run(target.extend())
    start = offsets_of(run(Bookmarks(left).compared(position)))
    records = target.records(map(lane_name, target.topics))
    before, later = ReadElsewhere.of(position), _later(left, start)
    # Of lanes that were silent for months, either may have the records alone.
    named = {*map(lane_name, left.topics), *later, *(name for name, _ in before.items())}
    records |= run(_ended(target, [name for name in named if name not in records]))
    read = _read(left, later, before, records)
    unread = {name: new for name, held in records.items() if (new := held.minus(read.get(name, ())))}
    begin, behind = run(_begin(target, unread))
    coming = {name: new for name, had in read.items() if (new := had.minus(records.get(name, ())))}
    if behind is not None:
        read_there = {name: _both(had, behind.get(name), coming.get(name)) for name, had in read.items()}
    else:
        read_there = read  # nothing is lost by naming more
    places = run(moved(target, begin, {}))
    return MovedPosition(encode(places, ReadElsewhere(read_there)), _count(read), _count(unread), _count(coming))


def _later(log: StreamLog, start: Offsets) -> _Lanes:
    """Return the records of a log from a position on."""
    found: _Lanes = {}
    for name, ranges in _rows(log, start, log.heads):
        found.setdefault(name, RangeSet()).update(ranges)
    return found


def _read(log: StreamLog, later: _Lanes, before: ReadElsewhere, others: Mapping[LaneName, RangeSet]) -> _Lanes:
    """Return the records that a query has read: those of its log without those from its position on, and those that it
    had read in a region before.

    Args:
        others: lanes of the other region. Those that left the states of this log are looked up.
    """
    held = log.records(map(lane_name, log.topics))
    held |= run(_ended(log, [name for name in others if name not in held]))
    for name, ranges in later.items():
        held[name] = held.get(name, RangeSet()).minus(ranges)
    for name, ranges in before.items():
        held.setdefault(name, RangeSet()).update(ranges)
    return held


async def _ended(log: StreamLog, names: list[LaneName]) -> _Lanes:
    """Return the records of lanes that left the states, because their edges were silent for months."""
    found: _Lanes = {}
    for state in log.states if any(state.drops for state in log.states) else ():
        for edge, log_id in names:
            lane = Lane(log.options.tenant, edge, int(log_id, 16), log.options.stream)
            if (kept := await log.log_of(state.shard).ended(lane, state.n)) is not None:
                records = snapshot.lane_state(snapshot.decode_lane(kept)).records
                found.setdefault((edge, log_id), RangeSet()).update(records)
    return found


def _rows(log: StreamLog, start: Offsets, end: Offsets) -> Iterator[tuple[LaneName, RangeSet]]:
    """Yield lanes and sequence numbers of the records between two positions; a lane may come several times."""
    for rows in _batches(log, start, end, LANE_COLUMNS):
        yield from _lanes_of(rows)


def _batches(log: StreamLog, start: Offsets, end: Offsets, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    schema = subset(log.stored, columns)
    for task in run(plan(log, log.opened_table, start, end)):
        yield from read_partition(task, schema)


def _lanes_of(rows: pa.RecordBatch) -> Iterator[tuple[LaneName, RangeSet]]:
    """Yield the runs of consecutive numbers of each lane."""
    edges, logs = (rows.column(name).dictionary_encode() for name in LANE_COLUMNS[:2])
    edge_at, log_at, numbers = edges.indices.to_numpy(), logs.indices.to_numpy(), rows.column("_seq").to_numpy()
    breaks = (np.diff(edge_at) != 0) | (np.diff(log_at) != 0) | (np.diff(numbers) != 1)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist()]
    for first, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        name = edges.dictionary[edge_at[first]].as_py(), logs.dictionary[log_at[first]].as_py()
        yield name, RangeSet([(int(numbers[first]), int(numbers[end - 1]) + 1)])


async def _begin(log: StreamLog, unread: Mapping[LaneName, RangeSet]) -> tuple[Offsets, _Lanes | None]:
    """Return the first offset of each shard with an unread record or a later one, and the records from there on; None
    when some are in the table alone.

    Chunks are looked at from the end of the log back, until all unread records are found.
    """
    search = _Search(log, unread)
    for state in reversed(log.states):  # shards of splits have the last records of the lanes that moved
        await search.back(state.shard)
    if not search.left:
        return search.begin, search.behind
    return await search.in_table(), None


class _Search:
    """The search for unread records in a log, from its end."""

    def __init__(self, log: StreamLog, unread: Mapping[LaneName, RangeSet]) -> None:
        self._log = log
        self.left: _Lanes = {name: ranges.copy() for name, ranges in unread.items()}
        """Unread records that are not found yet."""
        self.begin = dict(log.heads)
        self.behind: _Lanes = {}
        """Records from ``begin`` on, by whole chunks."""

    async def back(self, shard: int) -> None:
        """Look at the chunks of a shard from its end on, while it may have one of the records."""
        state, log = self._log.state(shard), self._log.log_of(shard)
        own = self._log.options.tenant, self._log.options.stream
        names = {lane_name(lane) for lane in state.stream_lanes(*own)}
        passed: list[tuple[LaneName, RangeSet]] = []
        n, low = state.n, (await log.manifest())[0].watermark
        # Of a shard that was split, lanes may be in a newer one now; of one that dropped lanes, in none.
        has_more = bool(state.splits or state.drops)
        while n >= low and self.left and (has_more or not names.isdisjoint(self.left)):
            numbers = range(n, max(low - 1, n - AHEAD_MAX), -1)
            for chunk in await asyncio.gather(*(log.index(number, self._log.only) for number in numbers)):
                if chunk is None:
                    return  # collected meanwhile: what is before it is in the table
                passed += self._records(chunk)
                if self._takes(chunk):
                    for name, ranges in passed:
                        self.behind.setdefault(name, RangeSet()).update(ranges)
                    passed.clear()
            n = numbers[-1] - 1

    def _records(self, chunk: Chunk) -> list[tuple[LaneName, RangeSet]]:
        own = self._log.options.tenant, self._log.options.stream
        sections = [each for each in chunk.footer.streams if (each.tenant, each.stream) == own]
        return [
            (lane_name(lane_of(update)), RangeSet(update.ranges))
            for section in sections
            for update in chunk.footer.lanes_of(section)
            if (update.tenant, update.stream) == own and update.ranges
        ]

    def _takes(self, chunk: Chunk) -> bool:
        """Take the found records out, and return whether the chunk has one: its shard then begins with it."""
        is_found = False
        for name, ranges in self._records(chunk):
            if (wanted := self.left.get(name)) is None:
                continue
            rest = wanted.minus(ranges)
            if rest == wanted:
                continue
            is_found = True
            if rest:
                self.left[name] = rest
            else:
                del self.left[name]
        if is_found:
            own = self._log.options.tenant, self._log.options.stream
            first = min(each.base_offset for each in chunk.footer.streams if (each.tenant, each.stream) == own)
            self.begin[chunk.header.shard] = first
        return is_found

    async def in_table(self) -> Offsets:
        """Return the first offsets, with those of the records that are left in the table. It reads the rows of their
        edges; records that are not there either cannot be read by anyone."""
        edges = frozenset(edge for edge, _ in self.left)
        log = await StreamLog.open(replace(self._log.options, edges=edges))
        if (table := log.opened_table) is None:
            return self.begin
        end = {shard: min(offset, table.ends[shard]) for shard, offset in self.begin.items()}
        end |= dict.fromkeys(log.heads.keys() - end.keys(), 0)
        start = {shard: min(end[shard], log.first_offset(shard, table)) for shard in end}
        return await asyncio.to_thread(self._first_rows, log, start, end)

    def _first_rows(self, log: StreamLog, start: Offsets, end: Offsets) -> Offsets:
        found = dict(self.begin)
        left = ReadElsewhere(self.left)
        for rows in _batches(log, start, end, (*LANE_COLUMNS, "_shard", "_offset")):
            wanted = rows.filter(pc.invert(left.mask(rows)))
            places = zip(wanted.column("_shard").to_pylist(), wanted.column("_offset").to_pylist(), strict=True)
            for shard, offset in places:
                found[shard] = min(found[shard], offset)
        return found


def _both(had: RangeSet, *others: RangeSet | None) -> RangeSet:
    """Return the part of a set that is in one of others."""
    rest = had
    for other in others:
        rest = rest.minus(other or ())
    return had.minus(rest)


def _count(lanes: Mapping[LaneName, RangeSet]) -> int:
    return sum(ranges.count() for ranges in lanes.values())


# The position of a query in a checkpoint of Spark's streaming engine, read and replaced while the query is stopped.
#
# Spark writes ``offsets/N`` before batch N and ``commits/N`` after it: a version, a line about the batch, and a line
# for each source. A query that starts again continues from the last file. Only the text of one file is replaced: its
# state, such as that of aggregates, stays.

VERSION = "v1"
"""First line of the files of the releases of Spark that Weft supports."""
BYTES_MAX = 4 << 20
"""Maximum size of a replaced file: Spark writes the position twice in each micro-batch."""
_HEAD_LINES = 2


class SparkCheckpoint:
    """A checkpoint whose last batch is complete.

    Args:
        folder: a path, or the URI of a folder in an object store.

    Raises:
        ReadError: it is no checkpoint of a query with one source, or its last batch is not complete.
        StoreError: the store does not answer.
    """

    def __init__(self, folder: str) -> None:
        uri = folder.replace("s3a://", "s3://", 1) if folder.startswith("s3a://") else folder
        try:
            self._store: ObjectStore = open_store(uri)
        except (ValueError, StoreUnfit) as error:
            raise ReadError(f"checkpoint: {error}") from error
        self._folder = folder
        planned, done = self._last("offsets"), self._last("commits")
        if planned is None:
            raise ReadError(f"checkpoint: {folder} has no offsets of a streaming query; name its checkpointLocation")
        if planned != done:
            raise ReadError(
                f"checkpoint: batch {planned} of the query in {folder} is not complete: its sink may have some rows of "
                "it. Run the query once more on its present store, with trigger(availableNow=True), and then move it"
            )
        self._key = f"offsets/{planned}"
        found = run(self._store.get(self._key))
        self._etag = found.etag
        self._lines = bytes(found.data).decode(errors="replace").splitlines()
        if self._lines[:1] != [VERSION] or len(self._lines) != _HEAD_LINES + 1:
            raise ReadError(
                f"checkpoint: {folder}/{self._key} is of a query with several sources, or of another release of Spark. "
                "Only a query with one source can be moved"
            )

    @property
    def position(self) -> Any:
        """Return the source's position after the last batch.

        Raises:
            ReadError: it is not JSON.
        """
        try:
            return json.loads(self._lines[_HEAD_LINES])
        except (ValueError, RecursionError):
            raise ReadError(f"checkpoint: {self._folder}/{self._key} is of another source") from None

    def replace(self, position: Any) -> None:
        """Replace the position. Durable when this returns; a crash before leaves the earlier one.

        Raises:
            ReadError: the query runs, and wrote it meanwhile; or the new one is too long.
            StoreError: the store does not answer.
        """
        data = "\n".join([*self._lines[:_HEAD_LINES], json.dumps(position, separators=(",", ":"))]).encode()
        if len(data) > BYTES_MAX:
            raise ReadError(
                f"the new position has {len(data)} bytes, and the limit is {BYTES_MAX}. Of too many lanes, the other "
                "region lacks what the query has read: wait until its link has caught up, and move the query then"
            )
        self._forget_checksum()
        try:
            run(self._store.swap(self._key, data, self._etag))
        except (PreconditionFailed, NotFound):
            raise ReadError(f"checkpoint: the query in {self._folder} runs; stop it first") from None

    def _last(self, kind: str) -> int | None:
        numbers = [item.key.rpartition("/")[2] for item in run(self._store.list(f"{kind}/"))]
        return max((int(number) for number in numbers if number.isdecimal()), default=None)

    def _forget_checksum(self) -> None:
        """Remove the file in which Hadoop keeps a local file's checksum: without it, the file is not compared."""
        path, _ = self._store.location(self._key)
        if "://" not in path:
            folder, name = os.path.split(path)
            with suppress(FileNotFoundError):
                os.remove(os.path.join(folder, f".{name}.crc"))
