"""Retention of the table of all rows: whole files whose newest row is too old, or that are too much, are removed.

Files go from the beginning of each shard on, so what is left of a shard is a range of offsets up to its position. The
rows are declared as a deletion first, and the audit takes them for removed and not for missing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weft.cloud_hub.facts.streams import TableDocument
from weft.config.units import format_duration, format_size
from weft.protocols.chunk_index import StreamKey
from weft.protocols.ranges import Range, RangeSet
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import deletion_key, table_key
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.protocol import ObjectFile
from weft.storage.table.actions import DataFile, TableError, app_ids
from weft.storage.table.deletions import FORMAT, RANGES_MAX, Deletion, declare, stored_deletions
from weft.storage.table.delta import in_thread
from weft.storage.table.delta_log import Rewrite, TableLog, rewrite
from weft.storage.table.files import SmallFiles

# Places of rows: their numbers by lane and their offsets by shard, as runs.

TYPES = {"_shard": pa.int32(), "_offset": pa.int64(), "_edge": pa.string(), "_log": pa.string(), "_seq": pa.int64()}
"""Columns that name a row."""
PLACE = [*TYPES]


class Places:
    """A collector of places."""

    def __init__(self) -> None:
        self.lanes: dict[tuple[str, str], RangeSet] = defaultdict(RangeSet)
        """(edge, log id) -> numbers"""
        self.offsets: dict[int, RangeSet] = defaultdict(RangeSet)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(each.count() for each in self.offsets.values())

    @property
    def ranges(self) -> int:
        """Return the number of ranges."""
        return sum(map(len, (*self.lanes.values(), *self.offsets.values())))

    def has_room(self, ranges: int) -> bool:
        """Return whether so many more ranges fit into a declaration."""
        return self.ranges + ranges <= RANGES_MAX

    def check(self) -> None:
        """Check that the rows can be declared together.

        Raises:
            TableError: they are too scattered.
        """
        if not self.has_room(0):
            raise TableError(f"these rows make more than {RANGES_MAX:,} ranges: remove them in parts")

    def add(self, rows: pa.Table) -> None:
        """Add rows, of which only ``PLACE`` is looked at. It blocks: a million rows take most of a second."""
        found = rows.group_by(["_edge", "_log"]).aggregate([("_seq", "list")])
        names = zip(found.column("_edge").to_pylist(), found.column("_log").to_pylist(), strict=True)
        for name, numbers in zip(names, found.column("_seq_list"), strict=True):
            _add(self.lanes[name], numbers.values.to_numpy())
        found = rows.group_by("_shard").aggregate([("_offset", "list")])
        for shard, numbers in zip(found.column("_shard").to_pylist(), found.column("_offset_list"), strict=True):
            _add(self.offsets[shard], numbers.values.to_numpy())

    def add_stored(
        self, lanes: Iterable[tuple[str, str, list[Range]]], offsets: Iterable[tuple[int, list[Range]]]
    ) -> None:
        """Add those of a declaration."""
        for edge, log_id, ranges in lanes:
            self.lanes[edge, log_id].update(RangeSet(ranges))
        for shard, found in offsets:
            self.offsets[shard].update(RangeSet(found))

    def stored(self) -> tuple[list[tuple[str, str, list[Range]]], list[tuple[int, list[Range]]]]:
        """Return lanes and offsets in the form of a declaration."""
        lanes = [(edge, log_id, list(ranges)) for (edge, log_id), ranges in sorted(self.lanes.items())]
        return lanes, [(shard, list(ranges)) for shard, ranges in sorted(self.offsets.items())]


def _add(ranges: RangeSet, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Add numbers as runs: one at a time would take a step for each."""
    ordered = np.sort(numbers)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) != 1)
    for first, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        ranges.add(int(ordered[first]), int(ordered[end - 1]) + 1)


FILES_PER_ROUND_MAX = 1000
"""Maximum number of files that a round removes: the footer of each is read, and the columns that name its rows."""
BY = "retention"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _OldFile(NamedTuple):
    """A file, and when the hub received its newest row."""

    received: datetime
    file: DataFile
    rows: list[DataFile]
    """The files of its shard that follow it, in reverse order."""


class Retention:
    """The retention of one stream's table. Used by one task.

    Args:
        clock: nanoseconds since 1970.
        copies: folder of another table with rows of the stream; None for the table of all rows. What is removed from it
            is not declared.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        stream: StreamKey,
        clock: Callable[[], int],
        copies: str | None = None,
    ) -> None:
        self._store, self._stream, self._clock = store, stream, clock
        self._key, self._declares = copies or table_key(*stream), copies is None
        self._log = TableLog(store, self._key, app_ids(cluster.cluster_id, stream[1]))
        self._files = SmallFiles(1 << 62)
        self.removed_until: int | None = None
        """Time of receipt of the newest row that was removed, ns since 1970, as last read; None without one."""
        self.has_more = False
        """True if the last look left files that are to be removed."""

    async def _read(self) -> None:
        found = (await stored_deletions(self._store, *self._stream)).values()
        self.removed_until = max((each.received_until or 0 for each in found), default=0) or None

    async def look(self, wanted: TableDocument | None) -> int:
        """Remove what is too old or too much. Return the number of files.

        Args:
            wanted: None only reads up to when rows were removed: another process does the work.

        Raises:
            TableError: the table cannot be read or changed; a conflict is decided again by the next round.
            StoreError, NotFound: as the object store.
        """
        if self._declares:
            await self._read()
        self.has_more = False
        state = await self._log.read() if wanted is not None else None
        if wanted is None or state is None:
            return 0
        await self._log.follow(self._files)
        old = await self._old(wanted)
        if not old or self._files.version != state.version:
            return 0
        found, places = await self._taken(old) if self._declares else (old, Places())
        self.has_more = len(found) < len(old) or len(old) >= FILES_PER_ROUND_MAX
        if self._declares:
            received = max(each.received for each in found)
            until = (received - _EPOCH) // timedelta(microseconds=1) * 1000
            await self._declare(places, until, state.version, wanted)
        change = Rewrite("DELETE", [each.file for each in found], (), {})
        await rewrite(self._log, self._key, state, change, self._clock() // 1_000_000)
        if self._declares:
            await self._read()
        return len(found)

    async def _old(self, wanted: TableDocument) -> list[_OldFile]:
        """Return the files to remove, the oldest first."""
        files = sorted(self._files.files.values(), key=attrgetter("shard", "first_offset"))
        shards = [[*reversed(list(group))] for _, group in groupby(files, key=attrgetter("shard"))]
        heads = [await self._opened(shard) for shard in shards]
        heapify(heads)
        size, found = sum(file.size for file in files), list[_OldFile]()
        before = None
        if wanted.retain_s is not None:
            before = _EPOCH + timedelta(microseconds=self._clock() // 1000) - timedelta(seconds=wanted.retain_s)
        while heads and len(found) < FILES_PER_ROUND_MAX:
            is_old = before is not None and heads[0].received < before
            is_much = wanted.retain_bytes is not None and size > wanted.retain_bytes
            # Files that overlap were written by others: what is left would be no range.
            after = heads[0].rows[-1] if heads[0].rows else None
            if not (is_old or is_much) or (after is not None and after.first_offset < heads[0].file.end_offset):
                break
            oldest = heappop(heads)
            found.append(oldest)
            size -= oldest.file.size
            if oldest.rows:
                heappush(heads, await self._opened(oldest.rows))
        return found

    async def _opened(self, shard: list[DataFile]) -> _OldFile:
        file = shard.pop()
        source = self._source(file)
        return _OldFile(await in_thread(lambda: _received(source)), file, shard)

    def _source(self, file: DataFile) -> Any:
        return ObjectFile(self._store, f"{self._key}/{file.path}", file.size, asyncio.get_running_loop())

    async def _taken(self, old: Sequence[_OldFile]) -> tuple[list[_OldFile], Places]:
        """Return the first files whose rows can be declared together, at least one, and their rows."""
        taken, places = list[_OldFile](), Places()
        for each in old:
            rows, one = await self._places(each.file), Places()
            await in_thread(partial(one.add, rows))
            if taken and not places.has_room(one.ranges):
                break
            places.add_stored(*one.stored())
            taken.append(each)
        return taken, places

    async def _places(self, file: DataFile) -> pa.Table:
        source = self._source(file)
        return await in_thread(lambda: pq.ParquetFile(source, pre_buffer=False).read(PLACE, use_threads=False))

    async def _declare(self, places: Places, until: int, version: int, wanted: TableDocument) -> None:
        """Declare the rows together with those that retention removed before, in the place of these declarations.

        Those that would be too many together stay as they are.
        """
        earlier = list[int]()
        for number, each in (await stored_deletions(self._store, *self._stream)).items():
            ranges = sum(len(held) for _, _, held in each.lanes) + sum(len(held) for _, held in each.offsets)
            if each.received_until is not None and places.has_room(ranges):
                await in_thread(partial(places.add_stored, each.lanes, each.offsets))
                until = max(until, each.received_until)
                earlier.append(number)
        lanes, offsets = places.stored()
        bounds = [format_duration(wanted.retain_s)] if wanted.retain_s is not None else []
        bounds += [format_size(wanted.retain_bytes)] if wanted.retain_bytes is not None else []
        reason = f"retention of {' and '.join(bounds)}"
        rows = "the oldest"
        deletion = Deletion(FORMAT, self._clock(), BY, reason, rows, version, lanes, offsets, received_until=until)
        await declare(self._store, *self._stream, deletion)
        for number in earlier:
            await self._store.delete(deletion_key(*self._stream, number))


def _received(source: Any) -> datetime:
    """Return when the hub received the newest row of a file: by the bounds of its row groups, or of its rows where
    another engine wrote it without bounds."""
    opened = pq.ParquetFile(source, pre_buffer=False)
    groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
    columns = [
        next(group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == "_received")
        for group in groups
    ]
    if all(column.statistics is not None and column.statistics.has_min_max for column in columns):
        found = max((column.statistics.max for column in columns), default=_EPOCH)
    else:
        found = max(opened.read(["_received"]).column(0).to_pylist(), default=_EPOCH)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
