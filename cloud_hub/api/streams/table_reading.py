"""Rows of a table's files as records, as one request reads them: bounded in files, row groups and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from weft.cloud_hub.api.lowest_rows import LowestRows, bounds, may_have, microseconds, plain_rows
from weft.cloud_hub.api.record_views import row_view
from weft.cloud_hub.api.search import Search
from weft.cloud_hub.api.streams.lane_files import LaneFiles, Numbers
from weft.cloud_hub.api.views import View
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.table.delta.slices import group_slices
from weft.storage.table.errors import TableError

FILES_READ_MAX = 64
"""Maximum number of files that one request opens of one shard."""
GROUP_BYTES_MAX = 512 << 20
"""Maximum number of bytes of a row group, uncompressed: other engines may have written the file."""
BATCH_ROWS = 1024
OFFSETS_UNKNOWN = 1 << 62
"""``last`` of a file without statistics."""
_PLACE = ["_shard", "_offset"]


class PastPlace(NamedTuple):
    """A request for the part of one shard."""

    stream: StreamKey
    shard: int
    watermark: int
    """The watermark of the shard's log, read before."""
    budget: Search


class Past(NamedTuple):
    """Rows of a table as records."""

    records: list[View]
    """Records in the order of their offsets."""
    next_offset: int
    """The offset to go on from."""
    is_end: bool
    """True when the table has no row from there on."""


class RowPlace(NamedTuple):
    """A row of a table."""

    file: str
    """Path of its file in the table's folder."""
    number: int
    """Number of the row in the file, from 0."""


class LanePlace(NamedTuple):
    """The answer to a search for a number of a lane."""

    offset: int | None
    """None if no row has it."""
    end: int
    """Offset behind the shard's last row."""


class TableFiles(NamedTuple):
    """The files of one version of a table, by shard and first offset. A file with rows of several shards is named for
    each of them."""

    payload: PayloadKind
    columns: list[str]
    """The columns that records are made of."""
    shards: Numbers
    first: Numbers
    last: Numbers
    reach: Numbers
    """The highest ``last`` up to each file, within its shard."""
    paths: pa.Array
    path_of: Numbers
    """For each of the above, the index of its path."""
    lanes: LaneFiles
    """Bounds of edges and numbers, by the index of the path."""
    system: pyarrow.fs.FileSystem
    opened_at: float
    """Monotonic seconds."""
    complete: dict[int, int]
    """Shard -> a watermark of its log: the files have all rows of chunks below it, as far as the table does."""

    def of(self, shard: int) -> range:
        """Return the numbers of a shard's files."""
        return range(*(int(np.searchsorted(self.shards, shard, side)) for side in ("left", "right")))

    def from_offset(self, shard: int, offset: int) -> range:
        """Return the numbers of a shard's files; those before them have lower offsets only."""
        there = self.of(shard)
        return range(there.start + int(np.searchsorted(self.reach[there.start : there.stop], offset)), there.stop)

    def path(self, number: int) -> str:
        return unquote(self.paths[int(self.path_of[number])].as_py())

    def open(self, number: int) -> pq.ParquetFile:
        path = self.path(number)
        return pq.ParquetFile(self.system.open_input_file(path), page_checksum_verification=True, pre_buffer=True)


class TableReading:
    """Reads of one request, in a thread."""

    def __init__(self, files: TableFiles, place: PastPlace) -> None:
        self._files, self._stream, self._shard, self._budget = files, place.stream[1], place.shard, place.budget
        self._opened = 0

    def records(self, span: tuple[int, int], limit: int, bytes_max: int) -> Past:
        """Return rows as records."""
        files, (first, end) = self._files, span
        found = LowestRows(end, limit, bytes_max)
        for number in files.from_offset(self._shard, first):
            if files.first[number] >= found.end:
                break
            if files.last[number] < first:
                continue
            if self._opened and (self._opened >= FILES_READ_MAX or self._budget.is_spent):
                found.cut(int(files.first[number]))
                break
            with files.open(number) as file:
                self._read_file(file, first, found)
        if found.end <= first:
            raise TableError(f"more than {FILES_READ_MAX} files have offset {first}: read it with an engine")
        records = [found.rows[offset] for offset in sorted(found.rows)]
        if found.end < end:
            return Past(records, found.end, False)
        return Past(records, records[-1]["offset"] + 1 if records else first, True)

    def _read_file(self, file: pq.ParquetFile, first: int, found: LowestRows) -> None:
        self._opened += 1
        known = list(bounds(file, "_offset"))
        for each in group_slices(file.metadata):
            # The rows of a slice are sorted by other columns: which ones are wanted shows when all are known.
            groups = {
                group: self._offsets(file, group)
                for group in range(each.first, each.end)
                if may_have(known[group], first, found.end)
            }
            if groups:
                found.offer(np.concatenate([offsets[offsets >= first] for offsets in groups.values()]))
            for group, offsets in groups.items():
                self._read_group(file, group, np.flatnonzero((offsets >= first) & (offsets < found.end)), found)

    def _read_group(self, file: pq.ParquetFile, group: int, wanted: Numbers, found: LowestRows) -> None:
        """Read rows of a row group, by their numbers."""
        at = 0
        for batch in self._batches(file, group) if len(wanted) else ():
            some = wanted[(wanted >= at) & (wanted < at + batch.num_rows)] - at
            at += batch.num_rows
            if len(some):
                # Not `take`, which does not know the string views that other engines write.
                runs = np.split(some, np.flatnonzero(np.diff(some) != 1) + 1)
                rows = plain_rows(pa.Table.from_batches([batch.slice(int(run[0]), len(run)) for run in runs]))
                found.add([row_view(row, self._stream, self._files.payload) for row in rows])
            if at > wanted[-1]:
                return

    def _offsets(self, file: pq.ParquetFile, group: int) -> Numbers:
        """Return the offset of each row of a row group; -1 for those of other shards."""
        place = self._columns(file, group, _PLACE)
        offsets: Numbers = place.column("_offset").to_numpy()
        return np.where(place.column("_shard").to_numpy() == self._shard, offsets, -1)

    def since(self, time: int) -> int | None:
        """Return the lowest offset of the rows received at a time or later."""
        there, time_us = self._files.of(self._shard), -(-time // 1000)
        # The hub's clock only advances in the log, so later files have later times.
        low, high = there.start, there.stop
        while low < high:
            middle = (low + high) // 2
            if self._latest(middle) < time_us:
                low = middle + 1
            else:
                high = middle
        for number in range(low, there.stop):
            if self._opened >= FILES_READ_MAX:
                return int(self._files.first[number])
            self._opened += 1
            with self._files.open(number) as file:
                found = self._first_received(file, time_us)
            if found is not None:
                return found
        return None

    def _first_received(self, file: pq.ParquetFile, time_us: int) -> int | None:
        lowest: int | None = None
        told = zip(bounds(file, "_offset"), bounds(file, "_received"), strict=True)
        for group, ((low, _), (_, latest)) in enumerate(told):
            # A later row group may have lower offsets: the rows of a slice are sorted by other columns.
            if (lowest is not None and low is not None and low >= lowest) or (
                latest is not None and microseconds(latest) < time_us
            ):
                continue
            rows = self._columns(file, group, [*_PLACE, "_received"])
            received = rows.column("_received").cast(pa.int64()).to_numpy()
            wanted = (rows.column("_shard").to_numpy() == self._shard) & (received >= time_us)
            if wanted.any():
                offset = int(rows.column("_offset").to_numpy()[wanted].min())
                lowest = offset if lowest is None else min(lowest, offset)
        return lowest

    def row(self, offset: int) -> RowPlace | None:
        """Return the place of an offset's row."""
        files = self._files
        for number in files.from_offset(self._shard, offset):
            if files.first[number] > offset:
                break
            if files.last[number] < offset:
                continue
            with self._opening(number) as file:
                before = 0
                for group, known in enumerate(bounds(file, "_offset")):
                    if may_have(known, offset, offset + 1):
                        for at in np.flatnonzero(self._offsets(file, group) == offset):
                            return RowPlace(files.path(number), before + int(at))
                    before += file.metadata.row_group(group).num_rows
        return None

    def find(self, lane: Lane, seq: int) -> LanePlace:
        """Return the offset of a number of a lane."""
        files, there = self._files, self._files.of(self._shard)
        wanted = files.lanes.may_have(lane.edge, seq)
        end = int(files.reach[there.stop - 1]) + 1 if there else 0
        end = 0 if end > OFFSETS_UNKNOWN else end
        for number in there:
            if not wanted[files.path_of[number]]:
                continue
            with self._opening(number) as file:
                told = zip(bounds(file, "_seq"), bounds(file, "_edge"), strict=True)
                for group, (seqs, (low, high)) in enumerate(told):
                    if not may_have(seqs, seq, seq + 1) or (low is not None and not low <= lane.edge <= high):
                        continue
                    rows = self._columns(file, group, [*_PLACE, "_edge", "_log", "_seq"])
                    mask = (rows.column("_shard").to_numpy() == self._shard) & (rows.column("_seq").to_numpy() == seq)
                    for row in (each for at in np.flatnonzero(mask) for each in rows.slice(int(at), 1).to_pylist()):
                        if (row["_edge"], row["_log"]) == (lane.edge, format_log_id(lane.log_id)):
                            return LanePlace(row["_offset"], end)
        return LanePlace(None, end)

    def _opening(self, number: int) -> pq.ParquetFile:
        if self._opened >= FILES_READ_MAX or self._budget.is_spent:
            raise TableError(f"more than {FILES_READ_MAX} files may have the row: read it with an engine")
        self._opened += 1
        return self._files.open(number)

    def _latest(self, number: int) -> int:
        """Return the latest ``_received`` of a file, in microseconds; a very late one if it does not say."""
        self._opened += 1
        with self._files.open(number) as file:
            times = [high for _, high in bounds(file, "_received")]
        return max((1 << 62 if time is None else microseconds(time) for time in times), default=0)

    def _columns(self, file: pq.ParquetFile, group: int, names: list[str]) -> pa.Table:
        self._count(file, group)
        return file.read_row_group(group, columns=names, use_threads=False)

    def _batches(self, file: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
        self._budget.took(file.metadata.row_group(group).total_byte_size)
        there = set(file.schema_arrow.names)
        columns = [name for name in self._files.columns if name in there]
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)

    def _count(self, file: pq.ParquetFile, group: int) -> None:
        size = file.metadata.row_group(group).total_byte_size
        if size > GROUP_BYTES_MAX:
            raise TableError(f"a row group has {size} bytes, more than {GROUP_BYTES_MAX}: read it with an engine")
