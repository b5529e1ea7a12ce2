"""Rows of a step that may count in a latest table, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

import pyarrow as pa

from weft.cloud_hub.tables.keys import Key
from weft.cloud_hub.tables.merging import Keyed, reduced, with_tombstones
from weft.storage.hub_keys import latest_key
from weft.storage.table.delta.entries import DataFile
from weft.storage.table.erased import Erased, without
from weft.storage.table_maker.delta import in_thread
from weft.storage.table_maker.gather import Gatherer
from weft.storage.table_maker.joining import Joined
from weft.storage.table_maker.settings import TableSettings
from weft.storage.table_maker.writers import OF_ONE_SHARD, Made, StreamRows, WantedRows


class _Batches:
    """Rows of one shard in memory, in the place of a file."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = with_tombstones(schema)
        self._batches: list[pa.RecordBatch] = []

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._schema

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows."""
        self._batches += batches

    def rows(self) -> pa.Table:
        """Return the rows."""
        return pa.Table.from_batches(self._batches, self._schema)


class RowCollector:
    """Writer of no files: it keeps the rows that may count, until the caller has committed what becomes of them."""

    def __init__(
        self, key: Key, settings: TableSettings, clock: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._key, self._settings, self._clock, self._monotonic = key, settings, clock, monotonic
        self.found: dict[tuple[int, int], Keyed] = {}
        """(shard, first offset) -> rows"""

    async def write(self, rows: StreamRows, wanted: Sequence[WantedRows]) -> list[Made | Exception]:
        """Read the rows of each shard. See ``FileWriter``."""
        table = latest_key(*rows.stream)
        gatherer = Gatherer(table, rows.stream, rows.declared, self._settings, monotonic=self._monotonic)
        made: list[Made | Exception] = []
        for view, n, first, end in wanted:
            out = _Batches(rows.schema)
            try:
                gathered = await gatherer.gather(view, out, n, first, end, rows.payload, len(wanted))
            except OF_ONE_SHARD as error:
                made.append(error)
                continue
            self.found[view.shard, first] = await in_thread(partial(self._kept, view.shard, out, rows.erased))
            made.append(Made((), gathered))
        return made

    def _kept(self, shard: int, out: _Batches, erased: Erased | None) -> Keyed:
        return reduced(without(out.rows(), shard, erased), self._key, self._clock() // 1000)

    def join(
        self, key: str, runs: Sequence[Sequence[DataFile]], schema: pa.Schema, sort: Sequence[str] = ()
    ) -> AsyncIterator[Joined]:
        """Do not join: a bucket has one file."""
        raise NotImplementedError(key)
