"""Files of a Delta table: as its checkpoints list them, and followed from version to version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any, Generic, NamedTuple, TypeVar

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
            if _has(group, "sidecar"):
                raise TableError(
                    f"{name} has its list of files in others (sidecars), which Weft does not read. Set the table's "
                    "property delta.checkpointPolicy to classic, and make a checkpoint"
                )
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


# Files as their statistics tell, and followers of a table's files from version to version.

STATISTICS_STEP = timedelta(milliseconds=1)
"""Delta truncates times in its statistics to milliseconds."""


class _Bounds(msgspec.Struct):
    shard: int | None = msgspec.field(name="_shard", default=None)
    offset: int | None = msgspec.field(name="_offset", default=None)
    time: datetime | None = msgspec.field(name="_time", default=None)
    edge: str | None = msgspec.field(name="_edge", default=None)


class _Statistics(msgspec.Struct):
    numRecords: int | None = None  # noqa: N815  (Delta's names)
    minValues: _Bounds = msgspec.field(default_factory=_Bounds)  # noqa: N815
    maxValues: _Bounds = msgspec.field(default_factory=_Bounds)  # noqa: N815


_DECODER = msgspec.json.Decoder(_Statistics)


def _statistics(text: str) -> _Statistics:
    try:
        try:
            return _DECODER.decode(text)
        except msgspec.ValidationError:
            # A time or an edge in another engine's form says nothing of rows and places.
            found = msgspec.json.decode(text, type=dict[str, Any])
            for each in (found.get("minValues"), found.get("maxValues")):
                if isinstance(each, dict):
                    each.pop("_time", None)
                    each.pop("_edge", None)
            return msgspec.convert(found, _Statistics)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Statistics()  # such a file may have any row


class TableFile(NamedTuple):
    """A Parquet file of a table. The bounds are from the commit's statistics; None when a writer left them out."""

    path: str
    """Relative to the table's root."""
    size: int
    """In bytes."""
    shard_min: int | None
    shard_max: int | None
    offset_min: int | None
    offset_max: int | None
    time_min: datetime | None
    time_max: datetime | None
    edge_min: str | None = None
    edge_max: str | None = None
    rows: int | None = None

    @classmethod
    def of(cls, added: AddedFile) -> TableFile:
        """Return a file by what ``FileFollower.kept`` is given."""
        known = _statistics(added.stats or "{}")
        low, high = known.minValues, known.maxValues
        return cls(
            added.path,
            added.size,
            low.shard,
            high.shard,
            low.offset,
            high.offset,
            _in_utc(low.time),
            _in_utc(high.time),
            low.edge,
            high.edge,
            known.numRecords,
        )

    @property
    def shard(self) -> int | None:
        """Return the shard of all its rows; None if they may be of several, or have no bounds."""
        is_bounded = self.offset_min is not None and self.offset_max is not None
        return self.shard_min if is_bounded and self.shard_min == self.shard_max else None

    @property
    def first(self) -> int:
        """Return its lowest offset; 0 if it is not known."""
        return self.offset_min or 0

    @property
    def end(self) -> int:
        """Return the offset after its last one; 0 if it is not known."""
        return 0 if self.offset_max is None else self.offset_max + 1

    def may_hold(self, shard: int, first: int, end: int) -> bool:
        """Return whether this file may have rows of ``shard`` with offsets in ``[first, end)``."""
        if self.shard_min is not None and self.shard_max is not None and not self.shard_min <= shard <= self.shard_max:
            return False
        if self.offset_min is None or self.offset_max is None:
            return True
        return self.offset_min < end and first <= self.offset_max

    def may_hold_edge(self, edges: Collection[str]) -> bool:
        """Return whether the file may have a row of one of these edge nodes."""
        if self.edge_min is None or self.edge_max is None:
            return True
        return any(self.edge_min <= edge <= self.edge_max for edge in edges)

    def may_start(self, moment: datetime) -> bool:
        """Return whether the file can have a row with a ``_time`` before ``moment``."""
        return self.time_min is None or self.time_min < moment

    def may_reach(self, moment: datetime) -> bool:
        """Return whether the file can have a row with a ``_time`` of ``moment`` or later."""
        return self.time_max is None or self.time_max + STATISTICS_STEP >= moment


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


T = TypeVar("T")


class FileFollower(Generic[T]):
    """The files of a table by their paths, which ``TableLog.follow`` brings up to the newest version.

    Subclasses choose what is kept of a file, and of which files.
    """

    reads_files = True
    """False for a follower that needs no additions and removals of files: decoding them takes long."""
    bytes_max: int | None = None
    """Size of the files that a checkpoint's reading leaves out; None means none."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version = -1
        """Version up to which it has read; -1 before the first."""
        self.entry_hash = b""
        """Hash of that version's entry."""
        self.files: dict[str, T] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        if action.add is not None:
            self.add(action.add)
        elif action.remove is not None:
            self.remove(plain_path(action.remove.path))

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one, in a thread. Raises as ``take_facts``."""
        for added in checkpoint_files(file, name, self.bytes_max):
            self.add(added)

    def add(self, added: AddedFile) -> None:
        """Add a file of the version, in the place of one with its path."""
        if (path := plain_path(added.path)) != added.path:
            added = msgspec.structs.replace(added, path=path)
        self.remove(path)
        if (kept := self.kept(added)) is not None:
            self.files[path] = kept

    def remove(self, path: str) -> None:
        """Remove a file that the version does not have."""
        self.files.pop(path, None)

    def kept(self, added: AddedFile) -> T | None:
        """Return what is kept of a file; None leaves it out. The path is that of the file, not encoded."""
        raise NotImplementedError


class TableFiles(FileFollower[AddedFile]):
    """All files of a table: some hundred bytes of memory for each."""

    def kept(self, added: AddedFile) -> AddedFile:
        """Return the whole action."""
        return added


FILES_MAX = 100_000
"""Maximum number of files that are kept, some 50 MB; others wait until these are joined and the table is read again."""
VACUUM_END = "VACUUM END"
"""Delta's name of what ends a vacuum."""
MOMENT_MS_MAX = (1 << 63) // 1_000_000


class SmallFiles(FileFollower[DataFile]):
    """The files of a table below a size whose statistics have one shard and an offset range, and the size of all. To
    join files, the large ones need not be known.

    Args:
        bytes_max: size of the files that are left out.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: int = bytes_max
        super().__init__()

    def clear(self) -> None:
        """Forget the table."""
        super().clear()
        self.size: TableSize | None = TableSize(0, 0)
        """Files of the version, the large ones too; None after a removal of one whose size it does not say."""
        self.vacuumed_ms: int | None = None
        """Moment at which a vacuum last ended that removed files, milliseconds since 1970; None if no entry that was
        read says it. A checkpoint does not."""

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        super().take(action)
        if action.add is not None:
            self._count(1, action.add.size)
        elif action.remove is not None:
            self._count(-1, action.remove.size)
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
        super().read_checkpoint(file, name)

    def kept(self, added: AddedFile) -> DataFile | None:
        """Return a small file with bounds."""
        # Rows that a deletion vector removes would come back in a joined file.
        if added.size >= self.bytes_max or added.deletionVector is not None or len(self.files) >= FILES_MAX:
            return None
        file = TableFile.of(added)
        if file.shard is None or file.rows is None:
            return None
        return DataFile(file.path, file.size, file.rows, file.shard, file.first, file.end, 0, "")
