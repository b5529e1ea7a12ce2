"""A table's checkpoint in Parquet, read by column: its additions of files, nearly all of it, mostly stay unread.

A checkpoint has a column for each kind of action, and one row per action (Delta protocol, "Checkpoint Schema"). All of
it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft.storage.table.delta.entries import Action, AddedFile, TableSize
from weft.storage.table.errors import TableError

FACTS = ("txn", "metaData", "protocol")
"""Kinds of actions that are read for a table's state."""
BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read at a time: a row group may have a million paths and statistics."""
BATCH_ROWS = 16 << 10
_FILE_COLUMNS = ("path", "size", "stats", "deletionVector.storageType")


def take_facts(file: IO[bytes], name: str, take: Callable[[Action], None]) -> None:
    """Give the transactions, the metadata and the protocol of a checkpoint, or of a part of one, to ``take``.

    Raises:
        TableError: it is damaged.
        NotFound, StoreError: as the object store, if ``file`` is of one.
    """
    for batch, kind in _batches(file, name, FACTS, lambda _: True):
        column = batch.column(0)
        if column.null_count < len(column):
            for value in column.drop_null().to_pylist():
                try:
                    take(_action(kind, value))
                except msgspec.ValidationError as error:
                    raise TableError(f"{name} is damaged: {error}") from error


def files(file: IO[bytes], name: str, bytes_max: int | None = None) -> Iterator[AddedFile]:
    """Yield the files of a checkpoint, or of a part of one.

    Args:
        bytes_max: only files that have less bytes; None means all.

    Raises:
        As ``take_facts``.
    """

    def worth(group: pq.RowGroupMetaData) -> bool:
        return bytes_max is None or _smallest(group) < bytes_max

    for batch, _ in _batches(file, name, ("add",), worth, _FILE_COLUMNS):
        adds = batch.column(0)
        wanted = adds.is_valid() if bytes_max is None else pc.less(pc.struct_field(adds, "size"), bytes_max)
        for value in adds.filter(wanted, null_selection_behavior="drop").to_pylist():
            vector = value.get("deletionVector")
            yield AddedFile(value["path"], value["size"], value.get("stats"), vector)


def size(file: IO[bytes], name: str) -> TableSize:
    """Return number and bytes of the files of a checkpoint, or of a part of one.

    Raises:
        As ``take_facts``.
    """
    count = total = 0
    for batch, _ in _batches(file, name, ("add",), lambda _: True, ("size",)):
        adds = batch.column(0)
        sizes = pc.struct_field(adds.filter(adds.is_valid()), "size")
        count, total = count + len(sizes), total + (pc.sum(sizes).as_py() or 0)
    return TableSize(count, total)


def _batches(
    file: IO[bytes],
    name: str,
    kinds: Sequence[str],
    worth: Callable[[pq.RowGroupMetaData], bool],
    columns: Sequence[str] = (),
) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Yield rows with one column, of each kind, from the row groups that may have it."""
    try:
        parquet = pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False)
        for index in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(index)
            for kind in kinds:
                if _has(group, kind) and worth(group):
                    wanted = [f"{kind}.{column}" for column in columns] or [kind]
                    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[index], columns=wanted):
                        yield batch, kind
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{name} is damaged: {error}") from error


def _has(group: pq.RowGroupMetaData, kind: str) -> bool:
    """Return whether a row group may have actions of a kind."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema.startswith(f"{kind}."):
            known = column.statistics
            if known is None or not known.has_null_count or known.null_count < column.num_values:
                return True
    return False


def _smallest(group: pq.RowGroupMetaData) -> int:
    """Return the least size of a file of a row group, as far as its statistics tell."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "add.size" and column.statistics and column.statistics.has_min_max:
            return int(column.statistics.min)
    return 0


def _action(kind: str, value: dict[str, Any]) -> Action:
    if kind != "metaData":
        return msgspec.convert({kind: value}, Action)
    told = value.get("format") or {}
    return Action(
        metaData=value
        | {
            # Arrow has maps as lists of pairs.
            "format": told | {"options": dict(told.get("options") or ())},
            "configuration": dict(value.get("configuration") or ()),
            "partitionColumns": list(value.get("partitionColumns") or ()),
        }
    )
