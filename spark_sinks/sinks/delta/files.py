"""Rows into the Parquet files of a table, durable before any version names them."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from datetime import date
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.sinks.delta.columns import Layout
from spark_sinks.sinks.delta.keys import codes_of
from spark_sinks.sinks.delta.place import Place
from weft.storage.table.delta.row_groups import RowGroups
from weft.storage.table.delta.statistics import FileStatistics

FILE_BYTES_MAX = 128 << 20
"""Compressed bytes after which a task begins another file."""
GROUP_BYTES_MAX = 32 << 20
BUFFERED_BYTES_MAX = 192 << 20
"""Maximum bytes of unfinished files in a task; beyond it, the task finishes the largest."""
FILES_MAX = 1000
"""Maximum number of files that one task writes in a batch: a partition column with too many values makes a file for
each."""
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.@+-]{1,60}")
_NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]


class NewFile(msgspec.Struct, frozen=True):
    """A Parquet file in the table's folder that no version names yet."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str
    """Statistics in JSON, as in the Delta protocol's "Per-file Statistics"."""


class FileWriter:
    """A writer of rows of one layout into files, split by partition and size."""

    def __init__(self, place: Place, layout: Layout) -> None:
        self._place, self._layout = place, layout
        self._schema = layout.in_files
        self._open: dict[Values, _OpenFile] = {}
        self._files: list[NewFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the layout's columns.

        Raises:
            SinkError: there are more partitions than a task can write.
            StoreError: the store did not answer.
        """
        for values, rows in self._partitions(batch):
            file = self._open.setdefault(values, _OpenFile(self._schema, self._layout.statistics))
            file.add(rows)
            if file.groups.written >= FILE_BYTES_MAX:
                self._finish(values)
        while sum(file.groups.bytes for file in self._open.values()) > BUFFERED_BYTES_MAX:
            self._finish(max(self._open, key=lambda values: self._open[values].groups.bytes))

    def finish(self) -> list[NewFile]:
        """Write the unfinished files. Return all files, which are durable."""
        for values in list(self._open):
            self._finish(values)
        return self._files

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        rows, names = batch.select(self._schema.names), self._layout.partition_by
        if not names:
            yield (), rows
            return
        keys = [batch.column(name) for name in names]
        codes = codes_of([pa.chunked_array([key]) for key in keys])
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        rows = rows.take(pa.array(order))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            at = int(order[start])
            yield tuple(partition_text(key[at].as_py()) for key in keys), rows.slice(start, end - start)

    def _finish(self, values: Values) -> None:
        if len(self._files) >= FILES_MAX:
            raise SinkError(
                f"partition_by: the rows of one task have more than {FILES_MAX} partitions. Choose a column with fewer "
                f"values, or repartition the rows by {', '.join(self._layout.partition_by)} before the sink"
            )
        file = self._open.pop(values)
        data = file.groups.finish()
        folders = [_folder(name, value) for name, value in zip(self._layout.partition_by, values, strict=True)]
        path = "/".join([*folders, f"part-{secrets.token_hex(12)}.parquet"])
        run(self._place.store.create(f"{self._place.key}/{path}", data))
        partition = dict(zip(self._layout.partition_by, values, strict=True))
        self._files.append(NewFile(path, len(data), file.statistics.rows, partition, file.statistics.to_json()))


class _OpenFile:
    """A Parquet file in memory, and the bounds of its rows."""

    def __init__(self, schema: pa.Schema, statistics: tuple[str, ...]) -> None:
        self.statistics = FileStatistics(statistics)
        self.groups = RowGroups(schema, GROUP_BYTES_MAX)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.statistics.add(batch)
        self.groups.add(batch)


def partition_text(value: Any) -> str | None:
    """Return a value as text for the table's log (PROTOCOL.md, "Partition Value Serialization"); '' means null
    there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    return None if value in (None, "") else str(value)


def _folder(name: str, value: str | None) -> str:
    """Return a folder name for people: readers take the value from the log."""
    if value is None:
        return f"{_safe(name)}={_NULL_VALUE}"
    return f"{_safe(name)}={_safe(value)}"


def _safe(text: str) -> str:
    return text if _PLAIN_VALUE.fullmatch(text) else f"~{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
