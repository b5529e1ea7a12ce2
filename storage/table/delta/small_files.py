"""The small files of a table, and the size of all, followed from version to version. To join files, the large ones
need not be known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import msgspec

from weft.storage.table.delta import checkpoint
from weft.storage.table.delta.entries import Action, AddedFile, DataFile, TableSize, plain_path

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
        """Take a checkpoint, or a part of one. Raises as ``checkpoint.take_facts``."""
        part = checkpoint.size(file, name)
        if self.size is not None:
            self.size = TableSize(self.size.files + part.files, self.size.bytes + part.bytes)
        file.seek(0)
        for added in checkpoint.files(file, name, self.bytes_max):
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
