"""Records by lane and sequence number, from table and log, without reading all of either.

The search reads only files of the table whose statistics have the lane's shard, the edge and some of the numbers. Above
the table's position, it reads only indexes of chunks, and sections with some of the numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs
from deltalake import DeltaTable

from weft.proofs.trace.errors import TraceError
from weft.proofs.trace.narrowing import Narrowing
from weft.proofs.trace.used import Used
from weft.protocols.chunk import Chunk
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.shard_state import ShardState, lane_of
from weft.storage.chunk_log import CollectedPast, ShardLog, table_key
from weft.storage.cluster import Cluster
from weft.storage.object_store import NotFound, ObjectStore, StoreUnfit
from weft.storage.table.delta.calls import guarded
from weft.storage.table.delta.files import file_system
from weft.storage.table.delta.versions import open_table
from weft.storage.table.names import app_id, table_payload
from weft.storage.table.rows import FIXED_COLUMNS, RowsOf, rows_of, usable_fields
from weft.storage.table.typed_columns import FIELD

ATTEMPTS_MAX = 3
"""Maximum number of attempts, since the collector may delete chunks during a trace."""
Row = dict[str, Any]


class Looked(msgspec.Struct):
    """Amounts that were read for a trace."""

    files: int = 0
    """Files of tables that were read."""
    files_there: int = 0
    indexes: int = 0
    """Chunks whose index was read."""
    sections: int = 0
    """Chunks whose records were read."""


class Wanted(NamedTuple):
    """Records to find."""

    lane: Lane
    used: Used
    narrowing: Narrowing
    rows_max: int
    keep: Callable[[Row], bool] | None = None
    """Predicate for the wanted records of the range; None means all."""


class Found(NamedTuple):
    """Found records, ascending by sequence number: at most ``rows_max`` + 1. The last then only shows that there are
    more."""

    rows: list[Row]
    narrowed_by: list[str]
    """Columns by which other records of the range were excluded."""


class Finder:
    """Finds records. Opens the table of a stream once, for all ranges of a trace."""

    def __init__(self, store: ObjectStore, cluster: Cluster) -> None:
        self.store, self.cluster = store, cluster
        self.looked = Looked()
        self._tables: dict[str, OpenTable | None] = {}

    async def find(self, state: ShardState, wanted: Wanted, shards: Sequence[int]) -> Found:
        """Return records of a lane.

        Args:
            state: state of the lane's shard.
            shards: the lane's shard, and those that had the lane before, the last first.

        Raises:
            TraceError: the collector deleted chunks during the search several times.
            TableError: the table cannot be read.
            Corrupt: a chunk is damaged.
            StoreError: the store did not answer.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            table = await self._table(wanted.lane)
            try:
                return await _Search(self, table, state, wanted, shards).run()
            except (CollectedPast, NotFound) as error:
                if attempt == ATTEMPTS_MAX:
                    raise TraceError(f"chunks were deleted while they were read: {error}; try again") from error
                # The rows of the deleted chunks are in a later version of the table.
                self._tables.clear()
        raise AssertionError("the last attempt raises")

    async def _table(self, lane: Lane) -> OpenTable | None:
        if lane.stream not in self._tables:
            self._tables[lane.stream] = None
            with contextlib.suppress(StoreUnfit):
                uri, options = self.store.location(table_key(lane.tenant, lane.stream))
                opened = await asyncio.to_thread(guarded, partial(OpenTable.open, uri, options))
                self._tables[lane.stream] = opened
                self.looked.files_there += len(opened.files) if opened is not None else 0
        return self._tables[lane.stream]


class OpenTable(NamedTuple):
    """A version of a stream's table."""

    table: DeltaTable
    schema: pa.Schema
    payload: PayloadKind
    levels: list[str]
    files: list[dict[str, Any]]
    """Path and statistics of each file."""
    system: pyarrow.fs.FileSystem

    @classmethod
    def open(cls, uri: str, options: dict[str, str]) -> OpenTable | None:
        """Return the newest version of the table, or None if there is no table. Blocks."""
        table = open_table(uri, options)
        if table is None:
            return None
        types = {field.name: getattr(field.type, "type", None) for field in table.schema().fields}
        typed = {field.name for field in table.schema().fields if FIELD in field.metadata}
        payload = table_payload(types.get("payload"), table.metadata().configuration)
        levels = [name for name, kind in types.items() if name not in FIXED_COLUMNS | typed and kind == "string"]
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return cls(table, pa.schema(table.schema()), payload, levels, files, file_system(uri, options))


class _Search:
    def __init__(
        self, finder: Finder, table: OpenTable | None, state: ShardState, wanted: Wanted, shards: Sequence[int]
    ) -> None:
        self._shards = shards
        self._finder, self._table, self._state, self._wanted = finder, table, state, wanted
        self._lane, self._used, self._looked = wanted.lane, wanted.used, finder.looked
        self._rows: dict[int, Row] = {}
        self._payload = table.payload if table is not None else PayloadKind.BYTES
        told = state.stream_fields(self._lane.tenant, self._lane.stream)
        levels = table.levels if table is not None else []
        self._fields = [*levels, *usable_fields(told, table.schema.names if table is not None else ())]
        self._narrowed_by: list[str] = []

    async def run(self) -> Found:
        if self._table is not None:
            await asyncio.to_thread(guarded, partial(self._read_table, self._table))
        for shard in reversed(self._shards):
            position = 0
            if self._table is not None:
                app = app_id(self._finder.cluster.cluster_id, self._lane.stream, shard)
                position = int(self._table.table.transaction_version(app) or 0)
            if not self._is_done():
                await self._read_log(shard, position)
        return Found([self._rows[seq] for seq in sorted(self._rows)], self._narrowed_by)

    def _is_done(self) -> bool:
        return len(self._rows) > self._wanted.rows_max or len(self._rows) == self._used.numbers

    def _take(self, rows: Iterable[Row]) -> None:
        keep = self._wanted.keep
        for row in rows:
            if self._is_done():
                return
            if keep is None or keep(row):
                self._rows[row["_seq"]] = row

    def _read_table(self, table: OpenTable) -> None:
        """Read the files that may hold some of the records."""
        wanted = self._condition(table.schema.names)
        for path in self._pruned(table.files):
            if self._is_done():
                return
            self._looked.files += 1
            found = pads.dataset([path], table.schema, format="parquet", filesystem=table.system)
            for batch in found.scanner(filter=wanted, batch_readahead=1, use_threads=False).to_batches():
                self._take(batch.to_pylist())

    def _pruned(self, files: Iterable[dict[str, Any]]) -> list[str]:
        """Return the files whose statistics do not exclude the records, the lowest numbers first."""
        shards, used, found = (min(self._shards), max(self._shards)), self._used, []
        wanted = {"_shard": shards, "_edge": (used.edge, used.edge), "_seq": (used.first, used.last)}
        for row in files:
            bounds = {name: (row.get(f"min.{name}"), row.get(f"max.{name}")) for name in wanted}
            if all(_overlap(bounds[name], wanted[name]) for name in wanted):
                found.append((bounds["_seq"][0] or 0, unquote(row["path"])))
        return [path for _, path in sorted(found)]

    async def _read_log(self, shard: int, position: int) -> None:
        log, lane, used = ShardLog(self._finder.store, self._finder.cluster, shard), self._lane, self._used
        wanted = RangeSet([(used.first, used.last + 1)])
        n = await log.locate(lane.tenant, lane.stream, position)
        async for chunk in log.indexes(max(n, log.watermark), only=frozenset([(lane.tenant, lane.stream)])):
            self._looked.indexes += 1
            updates = [update for update in chunk.footer.lanes if lane_of(update) == lane]
            if any(wanted.missing(*each) != [each] for update in updates for each in update.ranges):
                await self._read_chunk(log, chunk, position)
                if self._is_done():
                    return

    async def _read_chunk(self, log: ShardLog, chunk: Chunk, position: int) -> None:
        lane, used = self._lane, self._used
        for section in chunk.footer.streams:
            if (section.tenant, section.stream) != (lane.tenant, lane.stream):
                continue
            self._looked.sections += 1
            data = await log.section(chunk.header.n, section)
            told = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
            rows = rows_of(
                [told], log.shard, self._fields, self._topics, position, edges={used.edge}, payload=self._payload
            )
            for batch in rows:
                self._take(pa.table(batch).filter(self._condition(batch.schema.names)).to_pylist())

    def _condition(self, columns: Sequence[str]) -> pc.Expression:
        """Return the condition on rows with these columns."""
        used = self._used
        wanted = (
            (pc.field("_edge") == used.edge) & (pc.field("_log") == used.log)
            & (pc.field("_seq") >= used.first) & (pc.field("_seq") <= used.last)
        )  # fmt: skip
        narrowing, self._narrowed_by = self._wanted.narrowing.expression(columns)
        return wanted if narrowing is None else wanted & narrowing

    def _topics(self, lane: Lane) -> Sequence[str]:
        held = self._state.lanes.get(lane)
        return held.topics if held is not None else ()


def _overlap(bounds: tuple[Any, Any], wanted: tuple[Any, Any]) -> bool:
    low, high = bounds
    return low is None or high is None or (low <= wanted[1] and wanted[0] <= high)
