"""Records that the log no longer has, from the Delta table of their stream.

A table may have a million files. Their list is read at most once a minute for each table, and kept sorted by shard and
offset; a request then opens the few files whose statistics have its offsets, and of these the row groups.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs

from weft.cloud_hub.api.streams.lane_files import LaneFiles, file_numbers
from weft.cloud_hub.api.streams.table_reading import (
    OFFSETS_UNKNOWN,
    LanePlace,
    Past,
    PastPlace,
    RowPlace,
    TableFiles,
    TableReading,
)
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.chunk_log import Cluster, table_key
from weft.storage.object_store import ObjectStore, StoreUnfit
from weft.storage.table.columns import ORIGIN_COLUMN
from weft.storage.table.delta.calls import guarded
from weft.storage.table.delta.files import file_system
from weft.storage.table.delta.versions import open_table
from weft.storage.table.errors import TableError
from weft.storage.table.names import table_payload
from weft.storage.table.payload_columns import BYTES_COLUMN

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
READABLE_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})
"""Reader features of tables whose files have exactly the table's rows."""
_BOUNDS = ("min._shard", "max._shard", "min._offset", "max._offset")


class _Readers:
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
        self._readers = _Readers()

    async def records(self, place: PastPlace, span: tuple[int, int], limit: int, bytes_max: int) -> Past | None:
        """Return the rows of ``span``, offsets from the first to before the second, at most ``limit`` and about
        ``bytes_max`` bytes of payload, at least one; None without a table.

        Raises:
            TableError: the table cannot be read.
        """

        def read(files: TableFiles) -> Past:
            return TableReading(files, place).records(span, limit, bytes_max)

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
                    found = await asyncio.to_thread(guarded, partial(read, files))
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
                # The collector has gone on since the list was read. The table's newest rows may be missing in it.
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
        "_shard", "_offset", "_edge", "_log", "_seq", "_time", "_clock", "_received", "_key", "_resent", "_headers",
        "_edge_time", ORIGIN_COLUMN, "payload", BYTES_COLUMN,
    )  # fmt: skip
    paths = actions.column("path").combine_chunks()
    columns = [name for name in wanted if name in types]
    system, lanes = file_system(uri, options), LaneFiles.of(actions)
    return TableFiles(payload, columns, of, first[index], last[index], reach, paths, index, lanes, system, at, {})
