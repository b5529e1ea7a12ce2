"""Joining of files of a table into one, in the memory of a slice of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.object_store import ObjectStore
from weft.storage.object_store.object_file import ObjectFile
from weft.storage.table.delta.entries import DataFile
from weft.storage.table.delta.slices import group_slices, parts_of
from weft.storage.table_maker.delta import in_thread
from weft.storage.table_maker.parquet_file import ParquetFile
from weft.storage.table_maker.settings import TableSettings

_BATCH_ROWS = 16 << 10
WHOLE_BYTES_MAX = 4 << 20
"""Size up to which a file is read in one request."""
READ_BYTES = 1 << 20
"""Bytes of a column of a large row group that are read at a time."""
READ_GROUPS_BYTES = 16 << 20
"""Bytes of small row groups, without compression, that are read at a time."""
PART_BYTES = 8 << 20
"""Bytes of a joined file that are written at a time."""


Keep = Callable[[pa.RecordBatch], pa.RecordBatch]


class Joined(NamedTuple):
    """Files of a table, and the file with their rows; no version names it yet."""

    old: Sequence[DataFile]
    new: DataFile


class Joiner:
    """A joiner of files of the table in the folder ``key``.

    Args:
        clock: nanoseconds since 1970, for file times.
        monotonic: seconds.
        nonce: returns a name for a file that no other joiner uses.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        settings: TableSettings,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        nonce: Callable[[], str],
    ) -> None:
        self._store, self._key, self._settings = store, key, settings
        self._clock, self._monotonic, self._nonce = clock, monotonic, nonce

    async def join(
        self, run: Sequence[DataFile], schema: pa.Schema, keep: Keep | None = None, sort: Sequence[str] = ()
    ) -> Joined:
        """Join files, at least two and as many as the time allows.

        Args:
            keep: function that returns the rows of a batch which the new file has; at least one of all. None keeps all.
            sort: columns by which an operator wants the rows to be sorted.

        Raises:
            StoreError, NotFound: a file cannot be read, or the new one not written.
        """
        out = await in_thread(lambda: ParquetFile(schema, sort))
        taken: list[DataFile] = []
        # The first offset and the nonce name it: where it ends shows once the time is over.
        path = f"shard-{run[0].shard}-{run[0].first_offset:020d}-{self._nonce()}.parquet"
        size = await self._store.create_from(f"{self._key}/{path}", self._joined(run, out, taken, keep))
        return Joined(taken, out.data_file(path, size, self._clock() // 1_000_000))

    async def _joined(
        self, run: Sequence[DataFile], out: ParquetFile, taken: list[DataFile], keep: Keep | None
    ) -> AsyncIterator[memoryview]:
        """Yield the bytes of the joined file: a slice of it is in memory, and parts of a file that it is made of."""
        until = self._monotonic() + self._settings.join_seconds_max
        for file in run:
            # Fewer than two files would save nothing.
            if len(taken) > 1 and self._monotonic() >= until:
                break
            parts = _copied(await self._opened_file(file), out, keep)
            while (part := await in_thread(partial(next, parts, None))) is not None:
                yield part
            taken.append(file)
        yield await in_thread(out.finish)

    async def _opened_file(self, file: DataFile) -> Any:
        key = f"{self._key}/{file.path}"
        if file.size <= WHOLE_BYTES_MAX:
            return pa.BufferReader((await self._store.get(key)).data)
        return ObjectFile(self._store, key, file.size, asyncio.get_running_loop())


def _copied(source: Any, out: ParquetFile, keep: Keep | None) -> Iterator[memoryview]:
    """Add the rows of a file to another one, and yield the parts of that that are ready. Columns that the first lacks,
    because they were added later, are null."""
    streamed = pq.ParquetFile(source, page_checksum_verification=True, buffer_size=READ_BYTES, pre_buffer=False)
    whole = pq.ParquetFile(source, metadata=streamed.metadata, page_checksum_verification=True, pre_buffer=True)
    for each in group_slices(streamed.metadata):
        out.keep_together(each.rows, each.bytes)
        for part in parts_of(each, streamed.metadata, READ_GROUPS_BYTES):
            # Small row groups are read at once. Each column of a large one comes in pieces: its rows may take far more.
            file = whole if len(part) > 1 or each.bytes <= READ_GROUPS_BYTES else streamed
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=part):
                rows = _as_schema(batch, out.schema)
                out.add([rows if keep is None else keep(rows)])
                if out.ready >= PART_BYTES:
                    yield out.take()


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
