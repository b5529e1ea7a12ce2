"""Files of a Delta table: as its checkpoints list them, and followed from version to version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft.storage.table.actions import Action, AddedFile, DataFile, TableError, TableSize, plain_path

# A table's checkpoint in Parquet, read by column: its additions of files, nearly all of it, mostly stay unread.
#
# A checkpoint has a column for each kind of action, and one row per action (Delta protocol, "Checkpoint Schema"). All
# of it blocks.

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
    # A commit needs positions, schema and protocol. The list of files, nearly all of a checkpoint, stays unread: for a
    # million files it took 2.4 s and gigabytes.
    for batch, kind in _batches(file, name, FACTS, lambda _: True):
        column = batch.column(0)
        if column.null_count < len(column):
            for value in column.drop_null().to_pylist():
                try:
                    take(_action(kind, value))
                except msgspec.ValidationError as error:
                    raise TableError(f"{name} is damaged: {error}") from error


def checkpoint_files(file: IO[bytes], name: str, bytes_max: int | None = None) -> Iterator[AddedFile]:
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


def checkpoint_size(file: IO[bytes], name: str) -> TableSize:
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
        # Without buffering ahead, which would read the columns that are not asked for.
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
    format_ = value.get("format") or {}
    return Action(
        metaData=value
        | {
            # Arrow has maps as lists of pairs.
            "format": format_ | {"options": dict(format_.get("options") or ())},
            "configuration": dict(value.get("configuration") or ()),
            "partitionColumns": list(value.get("partitionColumns") or ()),
        }
    )


# The small files of a table, and the size of all, followed from version to version. To join files, the large ones
# need not be known.

FILES_MAX = 100_000
"""Maximum number of files that are kept, some 50 MB; others wait until these are joined and the table is read again."""
VACUUM_END = "VACUUM END"
"""Delta's name of what ends a vacuum."""
MOMENT_MS_MAX = (1 << 63) // 1_000_000


class _Bounds(msgspec.Struct):
    shard: int = msgspec.field(name="_shard")
    offset: int = msgspec.field(name="_offset")


class _Statistics(msgspec.Struct):
    numRecords: int  # noqa: N815  (Delta's names)
    minValues: _Bounds  # noqa: N815
    maxValues: _Bounds  # noqa: N815


_DECODER = msgspec.json.Decoder(_Statistics)


class SmallFiles:
    """The files of a table below a size whose statistics have one shard and an offset range; others are left out.

    Args:
        bytes_max: size of the files that are left out.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reads_files = True
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version = -1
        self.entry_hash = b""
        self._files: dict[str, DataFile] = {}
        self.size: TableSize | None = TableSize(0, 0)
        """Files of the version, the large ones too; None after a removal of one whose size it does not say."""
        self.vacuumed_ms: int | None = None
        """Moment at which a vacuum last ended that removed files, milliseconds since 1970; None if no entry that was
        read says it. A checkpoint does not."""

    def files(self) -> list[DataFile]:
        """Return the files of the version, in no order."""
        return list(self._files.values())

    def has_all(self, files: Iterable[DataFile]) -> bool:
        """Return whether the version has all of these files."""
        return all(file.path in self._files for file in files)

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        if action.add is not None:
            self._count(1, action.add.size)
            self.add(action.add)
        elif action.remove is not None:
            self._count(-1, action.remove.size)
            self._files.pop(plain_path(action.remove.path), None)
        elif action.commitInfo is not None and action.commitInfo.get("operation") == VACUUM_END:
            moment = action.commitInfo.get("timestamp")
            self.vacuumed_ms = moment if isinstance(moment, int) and 0 <= moment < MOMENT_MS_MAX else None

    def _count(self, files: int, size: int | None) -> None:
        if self.size is not None:
            known = size is not None
            self.size = TableSize(self.size.files + files, self.size.bytes + files * (size or 0)) if known else None

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one. Raises as ``take_facts``."""
        part = checkpoint_size(file, name)
        if self.size is not None:
            self.size = TableSize(self.size.files + part.files, self.size.bytes + part.bytes)
        file.seek(0)
        for added in checkpoint_files(file, name, self.bytes_max):
            self.add(added)

    def add(self, added: AddedFile) -> None:
        """Add a file of the version, if it is a small one."""
        path = plain_path(added.path)
        self._files.pop(path, None)
        # Rows that a deletion vector removes would come back in a joined file.
        if added.size >= self.bytes_max or added.deletionVector is not None or len(self._files) >= FILES_MAX:
            return
        try:
            known = _DECODER.decode(added.stats or "")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        low, high = known.minValues, known.maxValues
        if low.shard == high.shard:
            end = high.offset + 1
            self._files[path] = DataFile(path, added.size, known.numRecords, low.shard, low.offset, end, 0, "")


# All files of a table, followed from version to version: some hundred bytes of memory for each.


class TableFiles:
    """The files of a table by their paths."""

    reads_files = True

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version, self.entry_hash = -1, b""
        self.files: dict[str, AddedFile] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        if action.add is not None:
            self.files[plain_path(action.add.path)] = action.add
        elif action.remove is not None:
            self.files.pop(plain_path(action.remove.path), None)

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one."""
        for added in checkpoint_files(file, name):
            self.files[plain_path(added.path)] = added
