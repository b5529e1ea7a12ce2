"""Errors of tables."""

from __future__ import annotations

from weft.storage.table.errors import TableConflict, TableError

__all__ = ["NoHistory", "StreamStopped", "TableConflict", "TableDiverged", "TableError"]


class NoHistory(TableError):
    """A table of all rows that is not there, and is not wanted: a latest table stands instead of it."""


class TableDiverged(TableError):
    """A table with rows of another history than the log's. No more rows are added to it, since some would be doubled or
    missing."""


class StreamStopped(TableError):
    """Records of one shard that cannot become rows. The shard's later records of the stream wait behind them; other
    shards and other streams continue."""

    def __init__(self, table: str, shard: int, first: int, end: int, failure: Exception) -> None:
        self.shard, self.first, self.end = shard, first, end
        self.reason = str(failure) or type(failure).__name__
        super().__init__(f"{table}: offsets {first} to {end - 1} of shard {shard} cannot become rows: {self.reason}")
