"""All files of a table, followed from version to version: some hundred bytes of memory for each."""

from __future__ import annotations

from typing import IO

from weft.storage.table.delta import checkpoint
from weft.storage.table.delta.entries import Action, AddedFile, plain_path


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
        for added in checkpoint.files(file, name):
            self.files[plain_path(added.path)] = added
