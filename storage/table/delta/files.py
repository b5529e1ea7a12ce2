"""Files of a table, as pyarrow reads them."""

from __future__ import annotations

import pyarrow.fs
from deltalake.fs import DeltaStorageHandler


def file_system(uri: str, options: dict[str, str]) -> pyarrow.fs.FileSystem:
    """Return the file system whose root is a table."""
    if "://" not in uri:
        return pyarrow.fs.SubTreeFileSystem(uri, pyarrow.fs.LocalFileSystem())
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(uri, options))
