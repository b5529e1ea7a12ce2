"""Positions of the tables in a shard's log, from the tables themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from weft.protocols.errors import CodecError
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.chunk_log import Cluster, ShardLog
from weft.storage.object_store import ObjectStore, StoreError, StoreUnfit
from weft.storage.table.instead import positions_of
from weft.storage.table.names import app_id, source_ids
from weft.storage.table_maker.errors import TableDiverged, TableError
from weft.storage.table_maker.gather import LastChunk
from weft.storage.table_maker.shards import ShardView


def tabled_streams(state: ShardState) -> dict[StreamKey, int]:
    """Return the next offset of each stream with records whose table may lack some: deleted ones have all."""
    forgotten = state.forgotten
    return {
        key: end
        for key, end in state.next_offset.items()
        if end and (key not in forgotten or not forgotten[key].tabled)
    }


async def table_position(store: ObjectStore, log: ShardLog, stream: StreamKey) -> int | None:
    """Return the offset below which all of a shard's records of a stream are table rows, or skipped, or were taken
    into a latest table that stands instead; None without a table.

    Raises:
        TableError, StoreUnfit: the table cannot be read.
    """
    table = await positions_of(store, log.cluster, stream)
    return None if table is None else table.transactions.get(app_id(log.cluster.cluster_id, stream[1], log.shard))


class Position(NamedTuple):
    """A table's position in one shard."""

    end: int
    """Offset below which all records are table rows, or skipped; 0 without any."""
    source: LastChunk | None
    """The chunk with the last row below it."""


class TablePositions:
    """Positions of tables as the tables themselves say; each table is opened once.

    Args:
        shards: function from a stream to the numbers of the shards whose positions are wanted.
    """

    def __init__(self, store: ObjectStore, cluster: Cluster, shards: Callable[[StreamKey], Iterable[int]]) -> None:
        self._store, self._cluster, self._shards = store, cluster, shards
        self._known: dict[StreamKey, dict[int, Position] | None] = {}

    async def of(self, stream: StreamKey) -> dict[int, Position] | None:
        """Return the positions by shard; None without a table, or when it cannot be read."""
        if stream not in self._known:
            try:
                self._known[stream] = await self._read(stream)
            except (TableError, StoreError, StoreUnfit):
                self._known[stream] = None
        return self._known[stream]

    async def _read(self, stream: StreamKey) -> dict[int, Position] | None:
        table = await positions_of(self._store, self._cluster, stream)
        if table is None:
            return None
        apps = {shard: app_id(self._cluster.cluster_id, stream[1], shard) for shard in self._shards(stream)}
        told = table.transactions
        return {shard: _position([told.get(name) for name in (app, *source_ids(app))]) for shard, app in apps.items()}


def _position(told: Sequence[int | None]) -> Position:
    end, n, crc = told
    return Position(end or 0, None if n is None or crc is None else LastChunk(n, crc))


async def first_untabled(
    tables: TablePositions, log: ShardLog, state: ShardState, in_trouble: Callable[[StreamKey], bool]
) -> int | None:
    """Return the number of the first chunk of a shard with records that are not in their tables.

    The tables say it themselves: a table that was moved away since its last row, or restored from a backup, has fewer
    rows than the hub's memory of it.

    Args:
        state: state of the shard; chunks after it count as untabled.
        in_trouble: returns whether the last work on a stream's table failed.

    Returns:
        The number; None if a table is missing, failing, or of another history than the log.

    Raises:
        StoreError, Corrupt: the log cannot be read.
    """
    # Copied, because the state must not change while the tables are read.
    first, ends = state.n + 1, tabled_streams(state)
    watermark = (await log.manifest())[0].watermark
    for key, end in sorted(ends.items()):
        if in_trouble(key):
            return None
        positions = await tables.of(key)
        position = None if positions is None else positions.get(log.shard)
        if position is None or not position.end:
            return None  # a stream with records and no table: the first round of its table is still pending
        source = position.source
        if source is None:
            return None
        if source.n >= watermark:  # below it there is nothing, or only chunks that a paused writer made again
            chunk = await log.index(source.n)
            if chunk is None or chunk.footer_crc != source.footer_crc:
                return None
        if position.end < end:
            first = min(first, source.n)
    return first


async def checked_source(table: str, view: ShardView, position: int, source: LastChunk | None) -> LastChunk:
    """Return the chunk of a table's position, which the log still has.

    A log that was restored to an earlier state is behind the table only until it has grown past the position. From
    then on, its offsets have other records than the table's rows.

    Raises:
        TableDiverged: it has not.
        TableError: the chunk cannot be read.
    """
    if source is None:
        raise diverged(table, view.shard, position, "and does not say of which chunk")
    try:
        chunk = await view.log.index(source.n)
    except CodecError as error:
        raise TableError(f"{table}: its position cannot be compared with the log: {error}") from error
    if chunk is None or chunk.footer_crc != source.footer_crc:
        manifest, _ = await view.log.manifest()
        # Below the watermark there is nothing, or only chunks that a paused writer made again.
        if source.n >= manifest.watermark:
            how = f"taken from another chunk {source.n} than the log's"
            if chunk is None:
                how = f"taken from chunk {source.n}, which the log does not have"
            raise diverged(table, view.shard, position, how)
    return source


def diverged(table: str, shard: int, position: int, how: str) -> TableDiverged:
    """Return the error of a table whose position in a shard is not one of the log."""
    return TableDiverged(
        f"{table} holds offsets of shard {shard} up to {position}, {how}. The store was restored to an earlier state. "
        "Move the table away, and the hub makes it again from the log. Records that only the table has stay in what "
        "was moved away"
    )
