"""The log's id a second time, beside the segments: a damaged header must not make another log of this one."""

from __future__ import annotations

import contextlib
import os
import re

from crc32c import crc32c

from storage.filesystem import FileSystem, write_atomically

FILE = "log-id"
IDENTITY_BYTES = 26
_LINE = re.compile(rb"([0-9a-f]{16}) ([0-9a-f]{8})\n")


def identity(filesystem: FileSystem, directory: str) -> int | None:
    """The id that the file says; None when there is none, or it is damaged, or the device cannot read it."""
    try:
        match = _LINE.fullmatch(filesystem.read(os.path.join(directory, FILE)))
    except OSError:
        return None
    return int(match[1], 16) if match and int(match[2], 16) == crc32c(match[1]) else None


def keep_identity(filesystem: FileSystem, directory: str, log_id: int) -> None:
    """Write the file, unless it says so already. A disk that has no room for it now gets it at a later start."""
    if identity(filesystem, directory) == log_id:
        return
    digits = b"%016x" % log_id
    with contextlib.suppress(OSError):
        write_atomically(filesystem, os.path.join(directory, FILE), b"%s %08x\n" % (digits, crc32c(digits)))
