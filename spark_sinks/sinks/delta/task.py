"""The work of an executor for a batch: skip the rows that the table has, and write the others to Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from spark_sinks.errors import SinkError
from spark_sinks.sinks.delta.columns import Layout
from spark_sinks.sinks.delta.files import FileWriter, NewFile
from spark_sinks.sinks.delta.place import Place
from spark_sinks.sinks.delta.positions import PositionFilter, Positions, merged_ends

INLINE_BYTES_MAX = 128 << 10
"""Maximum bytes of rows that a task sends to the driver, which makes one file of the few rows of all tasks."""
UPSERT_BYTES_MAX = 512 << 20
"""Maximum bytes of new rows in one batch with keys: the driver holds them."""
RESULT_SCHEMA = "result binary"


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one task."""

    files: list[NewFile]
    rows: bytes
    """Arrow IPC stream of rows that are not in ``files``; empty without any."""
    ends: list[tuple[str, int, int]]
    """(stream, shard, end of the offsets) of the rows."""
    skipped: int
    """Rows that the table had already."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The function of ``mapInArrow``.

    Args:
        inline_bytes_max: maximum bytes of rows without a file; None never writes one.
        held_bytes_max: bytes of rows without a file above which the task fails.
    """

    place: Place
    layout: Layout
    positions: PositionFilter | None
    inline_bytes_max: int | None = INLINE_BYTES_MAX
    held_bytes_max: int = UPSERT_BYTES_MAX

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one result, or none when there are no rows.

        Raises:
            SinkError: the rows have no valid place in the log, or are more than the driver can hold.
        """
        held: list[pa.RecordBatch] = []
        writer: FileWriter | None = None
        ends: list[Positions] = []
        seen = kept = held_bytes = 0
        for batch in batches:
            seen += batch.num_rows
            new = batch
            if self.positions is not None:
                new, found = self.positions.new_rows(batch)
                ends.append(found)
            kept += new.num_rows
            rows = self.layout.aligned(new)
            if writer is None:
                held.append(rows)
                held_bytes += rows.nbytes
                if self.inline_bytes_max is None:
                    check_size(held_bytes, self.held_bytes_max)
                elif held_bytes > self.inline_bytes_max:
                    writer = FileWriter(self.place, self.layout)
                    for early in held:
                        writer.add(early)
                    held = []
            else:
                writer.add(rows)
        if seen:
            listed = [(stream, shard, end) for (stream, shard), end in merged_ends(ends).items()]
            files = [] if writer is None else writer.finish()
            result = TaskResult(files, to_ipc(held, self.layout.schema), listed, seen - kept)
            yield pa.RecordBatch.from_pydict({"result": [msgspec.msgpack.encode(result)]})


def check_size(size: int, bytes_max: int) -> None:
    """Check that rows with keys fit into the driver's memory.

    Raises:
        SinkError: they do not.
    """
    if size > bytes_max:
        raise SinkError(
            f"a batch with keys has {size >> 20} MiB of rows or more, at most {bytes_max >> 20} MiB go through the "
            "driver: lower max_records_per_trigger"
        )


def to_ipc(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return rows as an Arrow IPC stream; nothing for no rows."""
    if not any(batch.num_rows for batch in batches):
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return out.getvalue().to_pybytes()


def from_ipc(parts: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """Return the rows of several IPC streams."""
    tables = [pa.ipc.open_stream(part).read_all() for part in parts if part]
    return pa.concat_tables([schema.empty_table(), *tables])
