"""A stream's table, followed from version to version: each entry of its log is read once, and its files are never
listed again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import IO

import msgspec

from spark_sinks.source.file_index import FileIndex, TableFile
from weft.storage.table.delta import checkpoint
from weft.storage.table.delta.entries import Action, AddedFile, plain_path
from weft.storage.table.delta.state import DeltaState, StateBuilder


class _Bounds(msgspec.Struct):
    shard: int | None = msgspec.field(name="_shard", default=None)
    offset: int | None = msgspec.field(name="_offset", default=None)
    time: datetime | None = msgspec.field(name="_time", default=None)
    edge: str | None = msgspec.field(name="_edge", default=None)


class _Statistics(msgspec.Struct):
    minValues: _Bounds = msgspec.field(default_factory=_Bounds)  # noqa: N815  (Delta's names)
    maxValues: _Bounds = msgspec.field(default_factory=_Bounds)  # noqa: N815


_DECODER = msgspec.json.Decoder(_Statistics)


class FollowedTable:
    """The facts and the files of a table's version, for ``TableLog.follow``.

    Args:
        applications: beginning of the applications whose transactions are kept.
    """

    reads_files = True
    """A reader of entries with their files."""

    def __init__(self, applications: str) -> None:
        self._applications = applications
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version, self.entry_hash = -1, b""
        self._facts = StateBuilder(self._applications)
        self._files: dict[str, TableFile] = {}
        self._index = FileIndex()
        self._removed: list[TableFile] = []
        self._added: dict[str, TableFile] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        self._facts.take(action)
        if action.add is not None:
            self._add(action.add)
        elif action.remove is not None:
            self._remove(plain_path(action.remove.path))

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one. Raises as ``checkpoint.take_facts``."""
        checkpoint.take_facts(file, name, self._facts.take)
        for added in checkpoint.files(file, name):
            self._add(added)

    def _add(self, added: AddedFile) -> None:
        path = plain_path(added.path)
        self._remove(path)
        self._files[path] = self._added[path] = _table_file(path, added)

    def _remove(self, path: str) -> None:
        known = self._files.pop(path, None)
        # A file that came and went since the last look never was in the index.
        if known is not None and self._added.pop(path, None) is None:
            self._removed.append(known)

    def state(self) -> DeltaState:
        """Return the facts of the version.

        Raises:
            TableError: the log names no protocol or no schema.
        """
        self._facts.version, self._facts.entry_hash = self.version, self.entry_hash
        return self._facts.state()

    def files(self) -> FileIndex:
        """Return the files of the version."""
        if self._removed or self._added:
            whole = len(self._added) + len(self._removed) > len(self._files) // 2
            added = self._added.values()
            self._index = FileIndex(self._files.values()) if whole else self._index.changed(self._removed, added)
            self._removed, self._added = [], {}
        return self._index


def _table_file(path: str, added: AddedFile) -> TableFile:
    try:
        known = _DECODER.decode(added.stats or "{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Another engine's statistics: such a file may have any row.
        known = _Statistics()
    low, high = known.minValues, known.maxValues
    return TableFile(
        path, added.size, low.shard, high.shard, low.offset, high.offset, _in_utc(low.time), _in_utc(high.time),
        low.edge, high.edge,
    )  # fmt: skip


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)
