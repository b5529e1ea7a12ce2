"""Records and rows that the log no longer has, from the Delta table of their stream, bounded in files, row groups and
bytes."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from weft.cloud_hub.reads.views import FoundRecord, Search, row_view
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, StoreUnfit
from weft.storage.table.actions import READABLE_FEATURES, TableError, table_payload
from weft.storage.table.delta import file_system, guarded, open_table
from weft.storage.table.parquet import group_slices
from weft.storage.table.rows import BYTES_COLUMN, ORIGIN_COLUMN
from weft.storage.table.typed_columns import FIELD

# Choice of the files of a table that may have a number of a lane, by the statistics in its log.

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class LaneFiles(NamedTuple):
    """Bounds of edges and numbers of each file. Edges are numbers of ``names``, since many files have the same ones."""

    names: list[str]
    """Sorted."""
    low_edge: Numbers
    high_edge: Numbers
    low_seq: Numbers
    high_seq: Numbers

    @classmethod
    def of(cls, actions: pa.Table) -> LaneFiles:
        """Return the bounds of files as Delta's log has them; the widest ones where it says none."""
        low, high = (_edges(actions, name) for name in ("min._edge", "max._edge"))
        names = sorted({each for each in (*low.dictionary.to_pylist(), *high.dictionary.to_pylist()) if each})
        return cls(
            names,
            _numbered(low, names, -1),
            _numbered(high, names, len(names)),
            file_numbers(actions, "min._seq", 0),
            file_numbers(actions, "max._seq", 1 << 62),
        )

    def may_have(self, edge: str, seq: int) -> Flags:
        """Return for each file whether it may have a number of an edge."""
        return np.asarray(self.may_have_edge(edge) & (self.low_seq <= seq) & (self.high_seq >= seq))

    def may_have_edge(self, edge: str) -> Flags:
        """Return for each file whether it may have records of an edge."""
        at = np.searchsorted(np.array(self.names, dtype=object), edge) if self.names else 0
        # An edge between two names is between their numbers, too: twice the numbers leave room for it.
        place = 2 * int(at) - (0 if int(at) < len(self.names) and self.names[int(at)] == edge else 1)
        return np.asarray((2 * self.low_edge <= place) & (2 * self.high_edge >= place))


def file_numbers(actions: pa.Table, name: str, default: int) -> Numbers:
    """Return a number of each file's statistics; ``default`` where there is none."""
    if name not in actions.column_names:
        return np.full(actions.num_rows, default, np.int64)
    found: Numbers = actions.column(name).cast(pa.int64()).fill_null(default).to_numpy().astype(np.int64)
    return found


def _edges(actions: pa.Table, name: str) -> pa.DictionaryArray:
    if name not in actions.column_names:
        return pa.nulls(actions.num_rows, pa.string()).dictionary_encode()
    return actions.column(name).cast(pa.string()).combine_chunks().dictionary_encode()


def _numbered(edges: pa.DictionaryArray, names: list[str], default: int) -> Numbers:
    place = {name: number for number, name in enumerate(names)}
    of = np.array([place.get(each, default) for each in edges.dictionary.to_pylist()] or [default], np.int64)
    index = edges.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    found: Numbers = np.where(index < 0, default, of[index])
    return found


# Rows of a table file for an answer: those with the lowest offsets, as dictionaries or as Arrow.


class Lowest:
    """The rows with the lowest offsets, of those that were offered.

    Args:
        end: rows from this offset on are not wanted.
    """

    def __init__(self, end: int, limit: int, bytes_max: int) -> None:
        self.end = end
        self._limit, self._bytes_max = limit, bytes_max

    def offer(self, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Leave out rows that the lowest ones of these offsets make superfluous."""
        if len(offsets) > self._limit:
            self.cut(int(np.partition(offsets, self._limit)[self._limit]))

    def cut(self, end: int) -> None:
        """Drop the rows from an offset on."""
        self.end = min(self.end, end)

    def add(self, rows: pa.Table) -> None:
        """Add rows of a file. Those beyond a bound leave, and ``end`` is the lowest of them."""
        raise NotImplementedError


class LowestRecords(Lowest):
    """The lowest rows as records.

    Args:
        view: makes a record of a row.
    """

    def __init__(self, end: int, limit: int, bytes_max: int, view: Callable[[dict[str, Any]], FoundRecord]) -> None:
        super().__init__(end, limit, bytes_max)
        self._view = view
        self.rows: dict[int, FoundRecord] = {}
        self._bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows of a file. Those beyond a bound leave, and ``end`` is the lowest of them."""
        for row in map(self._view, plain_rows(rows)):
            self.rows[row.record.offset] = row
            self._bytes += row.size
        if len(self.rows) > self._limit or self._bytes > self._bytes_max:
            self._cut_to_bounds()
        if len(self.rows) == self._limit or self._bytes >= self._bytes_max:
            self.end = min(self.end, max(self.rows) + 1)

    def _cut_to_bounds(self) -> None:
        """Drop the highest rows, all at once: the sort takes time."""
        ordered = sorted(self.rows)
        kept = size = 0
        for offset in ordered[: self._limit]:
            size += self.rows[offset].size
            if kept and size > self._bytes_max:
                break
            kept += 1
        if kept < len(ordered):
            self.cut(ordered[kept])

    def cut(self, end: int) -> None:
        """Drop the rows from an offset on."""
        super().cut(end)
        for offset in [offset for offset in self.rows if offset >= end]:
            self._bytes -= self.rows.pop(offset).size


class LowestTable(Lowest):
    """The lowest rows as Arrow.

    Args:
        made: makes what the answer has of a file's rows, with the column ``_offset``.
    """

    def __init__(self, end: int, limit: int, bytes_max: int, made: Callable[[pa.Table], pa.Table]) -> None:
        super().__init__(end, limit, bytes_max)
        self._made = made
        self._parts: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows of a file. Those beyond a bound leave, and ``end`` is the lowest of them."""
        made = self._made(rows)
        self._parts.append(made)
        self._rows += made.num_rows
        self._bytes += made.nbytes
        # Sorted at twice a bound, so that the sort costs little for each row.
        if self._rows > 2 * self._limit or self._bytes > 2 * self._bytes_max:
            self.table()

    def table(self) -> pa.Table:
        """Return the rows in the order of their offsets; a table without columns if there is none."""
        if not self._rows:
            return pa.table({})
        found = pa.concat_tables(self._parts).sort_by("_offset").combine_chunks()
        offsets = found.column("_offset").to_numpy()
        kept = min(int(np.searchsorted(offsets, self.end)), self._limit)
        kept = rows_within(found.slice(0, kept), self._bytes_max)
        if kept < len(offsets):
            self.end = min(self.end, int(offsets[kept]))
            found = found.slice(0, kept)
        self._parts, self._rows, self._bytes = [found], kept, found.nbytes
        return found


def rows_within(rows: pa.RecordBatch | pa.Table, bytes_max: int) -> int:
    """Return the number of the first rows that have at most so many bytes together; at least 1, unless there is
    none."""
    if rows.nbytes <= bytes_max:
        return int(rows.num_rows)
    # Rows may differ in size by any factor, so the bytes of a slice cannot be estimated from those of all.
    return max(1, bisect_right(range(1, rows.num_rows), bytes_max, key=lambda count: rows.slice(0, count).nbytes))


def bounds(file: pq.ParquetFile, column: str) -> Iterator[tuple[Any, Any]]:
    """Yield lowest and highest value of a column for each row group; None where they are unknown."""
    # A nested column has several leaves.
    leaves = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
    at = leaves.index(column)
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(at).statistics
        yield (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)


def may_have(known: tuple[Any, Any], first: int, end: int) -> bool:
    """Return whether [``first``, ``end``) overlaps these bounds. Unknown bounds overlap everything."""
    low, high = known
    return (low is None or low < end) and (high is None or high >= first)


def microseconds(time: Any) -> int:
    """Return a time of a table in microseconds since 1970."""
    return int(pa.scalar(time, pa.timestamp("us", "UTC")).value)


def plain_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries, with times in microseconds since 1970."""
    columns = {
        name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    found: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return found


# Rows of a table's files as records, as one request reads them: bounded in files, row groups and bytes.

# Files are chosen by the table's log. A Delta table object would read the whole log: seconds for a million files.
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
    edge: str | None = None
    """The only edge; None for all."""


class Past(NamedTuple):
    """Rows of a table as records."""

    records: list[FoundRecord]
    """Records in the order of their offsets."""
    next_offset: int
    """The offset to continue from."""
    is_end: bool
    """True when the table has no row from there on."""


class PastRows(NamedTuple):
    """Rows of a table as Arrow."""

    rows: pa.Table
    """Rows in the order of their offsets; without columns if there is none."""
    next_offset: int
    """The offset to continue from."""
    is_end: bool
    """True when the table has no row from there on."""


class RowsAsked(NamedTuple):
    """The form of rows that a request asks for."""

    columns: Collection[str]
    """Columns of the table that they are made of; those that it lacks are left out."""
    made: Callable[[pa.Table, PayloadKind], pa.Table]
    """Makes them of rows of the table, whose payloads are of a kind."""


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
    typed: frozenset[str]
    """Names of typed columns, in small letters."""
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
        self._edge = place.edge
        self._opened = 0
        self._wanted: Collection[str] = files.columns

    def records(self, span: tuple[int, int], limit: int, bytes_max: int) -> Past:
        """Return rows as records."""
        first, end = span
        payload = self._files.payload
        found = LowestRecords(end, limit, bytes_max, lambda row: row_view(row, self._shard, self._stream, payload))
        self._read(first, found)
        records = [found.rows[offset] for offset in sorted(found.rows)]
        if found.end < end:
            return Past(records, found.end, False)
        return Past(records, records[-1].record.offset + 1 if records else first, True)

    def rows(self, span: tuple[int, int], limit: int, bytes_max: int, asked: RowsAsked) -> PastRows:
        """Return rows as Arrow."""
        first, end = span
        payload = self._files.payload
        # A typed column that was there before the topic level of its name is another thing: what the level was is
        # unknown then.
        self._wanted = [name for name in asked.columns if name.casefold() not in self._files.typed]
        found = LowestTable(end, limit, bytes_max, lambda rows: asked.made(rows, payload))
        self._read(first, found)
        rows = found.table()
        if found.end < end:
            return PastRows(rows, found.end, False)
        return PastRows(rows, rows["_offset"][-1].as_py() + 1 if rows.num_rows else first, True)

    def _read(self, first: int, found: Lowest) -> None:
        """Read the rows from an offset on up to the end that ``found`` has."""
        files = self._files
        of_edge = None if self._edge is None else files.lanes.may_have_edge(self._edge)
        for number in files.from_offset(self._shard, first):
            if files.first[number] >= found.end:
                break
            if files.last[number] < first or (of_edge is not None and not of_edge[files.path_of[number]]):
                continue
            if self._opened and (self._opened >= FILES_READ_MAX or self._budget.is_spent):
                found.cut(int(files.first[number]))
                break
            with files.open(number) as file:
                self._read_file(file, first, found)
        if found.end <= first:
            raise TableError(f"more than {FILES_READ_MAX} files have offset {first}: read it with an engine")

    def _read_file(self, file: pq.ParquetFile, first: int, found: Lowest) -> None:
        self._opened += 1
        known = list(bounds(file, "_offset"))
        of_edge = None if self._edge is None else list(bounds(file, "_edge"))
        for each in group_slices(file.metadata):
            # The rows of a slice are sorted by other columns: which ones are wanted shows when all are known.
            groups = {
                group: self._offsets(file, group)
                for group in range(each.first, each.end)
                if may_have(known[group], first, found.end) and (of_edge is None or self._has_edge(of_edge[group]))
            }
            if groups:
                found.offer(np.concatenate([offsets[offsets >= first] for offsets in groups.values()]))
            for group, offsets in groups.items():
                self._read_group(file, group, np.flatnonzero((offsets >= first) & (offsets < found.end)), found)

    def _read_group(self, file: pq.ParquetFile, group: int, wanted: Numbers, found: Lowest) -> None:
        """Read rows of a row group, by their numbers."""
        at = 0
        for batch in self._batches(file, group) if len(wanted) else ():
            some = wanted[(wanted >= at) & (wanted < at + batch.num_rows)] - at
            at += batch.num_rows
            if len(some):
                # Not `take`, which does not know the string views that other engines write.
                runs = np.split(some, np.flatnonzero(np.diff(some) != 1) + 1)
                found.add(pa.Table.from_batches([batch.slice(int(run[0]), len(run)) for run in runs]))
            if at > wanted[-1]:
                return

    def _offsets(self, file: pq.ParquetFile, group: int) -> Numbers:
        """Return the offset of each row of a row group; -1 for those of other shards, and of other edges."""
        place = self._columns(file, group, _PLACE if self._edge is None else [*_PLACE, "_edge"])
        offsets: Numbers = place.column("_offset").to_numpy()
        wanted = place.column("_shard").to_numpy() == self._shard
        if self._edge is not None:
            edges = place.column("_edge").cast(pa.string())
            wanted &= pc.fill_null(pc.equal(edges, self._edge), False).to_numpy()
        return np.where(wanted, offsets, -1)

    def _has_edge(self, known: tuple[Any, Any]) -> bool:
        low, high = known
        return low is None or low <= self._edge <= high

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
        ranges = zip(bounds(file, "_offset"), bounds(file, "_received"), strict=True)
        for group, ((low, _), (_, latest)) in enumerate(ranges):
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
                ranges = zip(bounds(file, "_seq"), bounds(file, "_edge"), strict=True)
                for group, (seqs, (low, high)) in enumerate(ranges):
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
        # Of a topic level or a typed column, the table's spelling has precedence over that of what is asked.
        wanted = {name.casefold() for name in self._wanted}
        columns = [name for name in file.schema_arrow.names if name.casefold() in wanted]
        yield from file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)

    def _count(self, file: pq.ParquetFile, group: int) -> None:
        size = file.metadata.row_group(group).total_byte_size
        if size > GROUP_BYTES_MAX:
            raise TableError(f"a row group has {size} bytes, more than {GROUP_BYTES_MAX}: read it with an engine")


# Records that the log no longer has, from the Delta table of their stream.
#
# A table may have a million files. Their list is read at most once a minute for each table, and kept sorted by shard
# and offset; a request then opens the few files whose statistics have its offsets, and of these the row groups.

T = TypeVar("T")
AGE_S_MAX = 60.0
"""Maximum age of a list of files: a request does not show rows for longer than that after they were deleted."""
FILES_HELD_MAX = 1_000_000
"""Maximum number of files in all lists that are kept, some hundred bytes each. The list read last stays in any case."""
FILES_MAX = 1_000_000
"""Maximum number of files of a table that is read for the API: while they are listed, each takes 1.4 kB."""
READERS_MAX = 2
"""Maximum number of requests that read tables at one time; others wait, and tenants take turns. Each may hold a row
group in memory."""
_BOUNDS = ("min._shard", "max._shard", "min._offset", "max._offset")


class Readers:
    """Places of requests that read tables. Tenants take turns."""

    def __init__(self) -> None:
        self._free = READERS_MAX
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give a place to the next who waits."""
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Histories:
    """A reader of the tables of a hub's streams.

    Args:
        monotonic: seconds.
    """

    def __init__(self, store: ObjectStore, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._store, self._cluster, self._monotonic = store, cluster, monotonic
        self._files: OrderedDict[StreamKey, TableFiles] = OrderedDict()
        self._opening = asyncio.Lock()
        self._readers = Readers()

    async def records(self, place: PastPlace, span: tuple[int, int], limit: int, bytes_max: int) -> Past | None:
        """Return the rows of ``span``, offsets from the first to before the second, at most ``limit`` and about
        ``bytes_max`` bytes of payload, at least one; None without a table.

        Raises:
            TableError: the table cannot be read.
        """

        def read(files: TableFiles) -> Past:
            return TableReading(files, place).records(span, limit, bytes_max)

        return await self._read(place, read, lambda found: found.is_end)

    async def rows(
        self, place: PastPlace, span: tuple[int, int], limit: int, bytes_max: int, asked: RowsAsked
    ) -> PastRows | None:
        """Return the rows of ``span`` as Arrow, as ``records`` does. Bytes are those of Arrow."""

        def read(files: TableFiles) -> PastRows:
            return TableReading(files, place).rows(span, limit, bytes_max, asked)

        return await self._read(place, read, lambda found: found.is_end)

    async def since(self, place: PastPlace, time: int) -> int | None:
        """Return the lowest offset of a shard's rows that the hub received at a time or later; None without one.

        Args:
            time: nanoseconds since 1970.

        Raises:
            TableError: the table cannot be read.
        """
        return await self._read(
            place, lambda files: TableReading(files, place).since(time), lambda found: found is None
        )

    async def row(self, place: PastPlace, offset: int) -> RowPlace | None:
        """Return the row of an offset. None if the table had none up to a minute ago.

        Raises:
            TableError: the table cannot be read.
        """
        return await self._read(
            place, lambda files: TableReading(files, place).row(offset), lambda found: found is None
        )

    async def find(self, place: PastPlace, lane: Lane, seq: int) -> LanePlace:
        """Return the offset of a number of a lane, as the table has had it up to a minute ago.

        Raises:
            TableError: the table cannot be read, or too many of its files may have the number.
        """
        found = await self._read(
            place, lambda files: TableReading(files, place).find(lane, seq), lambda found: found.offset is None
        )
        return found or LanePlace(None, 0)

    async def _read(self, place: PastPlace, read: Callable[[TableFiles], T], is_end: Callable[[T], bool]) -> T | None:
        stream, shard = place.stream, place.shard
        async with self._readers.place(stream[0]):
            while True:
                files, is_new = await self._list(stream)
                if files is None:
                    return None
                try:
                    found = await asyncio.to_thread(place.budget.timed(guarded), partial(read, files))
                except TableError as error:
                    self._files.pop(stream, None)
                    # A file may have been removed since the list was read: others have its rows then.
                    if is_new or not isinstance(error.__cause__, FileNotFoundError):
                        raise TableError(f"the table of {stream[0]}/{stream[1]} cannot be read: {error}") from error
                    continue
                if is_new:
                    files.complete[shard] = max(files.complete.get(shard, 0), place.watermark)
                if not is_end(found) or files.complete.get(shard, 0) >= place.watermark:
                    return found
                # The collector has continued since the list was read. The table's newest rows may be missing in it.
                self._files[stream] = files._replace(opened_at=self._monotonic() - AGE_S_MAX)

    async def _list(self, stream: StreamKey) -> tuple[TableFiles | None, bool]:
        """Return a table's files, and whether they were listed now."""
        async with self._opening:
            known = self._files.get(stream)
            if known is not None and self._monotonic() - known.opened_at < AGE_S_MAX:
                self._files.move_to_end(stream)
                return known, False
            self._files.pop(stream, None)
            complete = known.complete if known is not None else {}
            try:
                uri, options = self._store.location(table_key(*stream))
            except StoreUnfit:  # no store for tables
                return None, True
            at, shards = self._monotonic(), self._cluster.tree.count
            found = await asyncio.to_thread(guarded, partial(_listed, uri, options, shards, at))
            if found is not None:
                found.complete.update(complete)
                self._files[stream] = found
                while len(self._files) > 1 and sum(len(each.paths) for each in self._files.values()) > FILES_HELD_MAX:
                    self._files.popitem(last=False)
            return found, True


def _listed(uri: str, options: dict[str, str], shards: int, at: float) -> TableFiles | None:
    table = open_table(uri, options)
    if table is None:
        return None
    if features := set(table.protocol().reader_features or ()) - READABLE_FEATURES:
        raise TableError(f"it uses {', '.join(sorted(features))}: read it with an engine that knows them")
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows > FILES_MAX:
        raise TableError(f"it has {actions.num_rows} files, more than {FILES_MAX}: read it with an engine")
    low, high, first, last = (
        file_numbers(actions, name, default)
        for name, default in zip(_BOUNDS, (0, shards - 1, 0, OFFSETS_UNKNOWN), strict=True)
    )
    counts = np.maximum(high - low + 1, 0)
    index = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    of = low[index] + nth
    order = np.lexsort((first[index], of))
    index, of = index[order], of[order]
    reach = last[index].copy()
    for start in np.unique(of, return_index=True)[1]:
        end = int(np.searchsorted(of, of[start], "right"))
        reach[start:end] = np.maximum.accumulate(reach[start:end])
    types = {field.name: getattr(field.type, "type", None) for field in table.schema().fields}
    payload = table_payload(types.get("payload"), table.metadata().configuration)
    wanted = (
        "_shard",
        "_offset",
        "_edge",
        "_log",
        "_seq",
        "_time",
        "_clock",
        "_received",
        "_key",
        "_resent",
        "_headers",
        "_edge_time",
        ORIGIN_COLUMN,
        "payload",
        BYTES_COLUMN,
    )
    paths = actions.column("path").combine_chunks()
    columns = [name for name in wanted if name in types]
    system, lanes = file_system(uri, options), LaneFiles.of(actions)
    typed = frozenset(field.name.casefold() for field in table.schema().fields if FIELD in (field.metadata or {}))
    return TableFiles(
        payload, columns, typed, of, first[index], last[index], reach, paths, index, lanes, system, at, {}
    )
