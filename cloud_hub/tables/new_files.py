"""The files of a table that are new to a reader, followed from version to version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

import msgspec

from weft.storage.table.delta import checkpoint
from weft.storage.table.delta.entries import Action, AddedFile, plain_path


class _Corner(msgspec.Struct):
    shard: int = msgspec.field(name="_shard", default=0)
    offset: int = msgspec.field(name="_offset", default=0)


class _StoredBounds(msgspec.Struct):
    minValues: _Corner | None = None  # noqa: N815  (Delta's names)
    maxValues: _Corner | None = None  # noqa: N815


_DECODER = msgspec.json.Decoder(_StoredBounds)


class NewFile(NamedTuple):
    """A file of the table of all rows that is to be looked through."""

    path: str
    size: int
    shard: int | None
    """None for a file that an engine wrote, with rows of several shards or without bounds."""
    first: int
    end: int


class NewFiles:
    """The files of a table with rows that were not looked through, followed from version to version."""

    reads_files = True

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        """Shard -> offset up to which rows were looked through."""
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.version, self.entry_hash = -1, b""
        self.files: dict[str, NewFile] = {}

    def take(self, action: Action) -> None:
        """Take one action of the next entry."""
        if action.add is not None:
            self._add(action.add)
        elif action.remove is not None:
            self.files.pop(plain_path(action.remove.path), None)

    def read_checkpoint(self, file: IO[bytes], name: str) -> None:
        """Take a checkpoint, or a part of one. Raises as ``checkpoint.take_facts``."""
        for added in checkpoint.files(file, name):
            self._add(added)

    def _add(self, added: AddedFile) -> None:
        path = plain_path(added.path)
        try:
            known = _DECODER.decode(added.stats or "{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            known = _StoredBounds()
        low, high = known.minValues, known.maxValues
        if low is None or high is None or low.shard != high.shard:
            self.files[path] = NewFile(path, added.size, None, 0, 0)
        elif high.offset >= self.positions.get(low.shard, 0):
            self.files[path] = NewFile(path, added.size, low.shard, low.offset, high.offset + 1)

    def looked_through(self, positions: Mapping[int, int], files: Sequence[NewFile]) -> None:
        """Note that rows up to some offsets were looked through, and these files."""
        self.positions = dict(positions)
        for each in files:
            if each.shard is None or each.end <= positions.get(each.shard, 0):
                self.files.pop(each.path, None)
