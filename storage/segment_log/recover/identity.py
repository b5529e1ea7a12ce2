"""A file beside the segments with facts that must outlive them: a damaged header must not turn this log into another
one, and an unreadable block may hide a stream's name for longer than one start.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from crc32c import crc32c

from weft.storage.filesystem import FileSystem, write_atomically

FILE = "log-id"
_LINE = re.compile(rb"([0-9a-f]{16})( [0-9a-f]{16})? ([0-9a-f]{8})\n")


class Identity(NamedTuple):
    """Content of the file."""

    log_id: int
    first_seq: int = 0
    """First number of streams whose names the log does not know (``LogState.first_seq``)."""


def read_identity(filesystem: FileSystem, directory: str) -> Identity | None:
    """Return the file's content; None if there is no file, it is damaged, or the device cannot read it."""
    try:
        match = _LINE.fullmatch(filesystem.read(os.path.join(directory, FILE)))
    except OSError:
        return None
    if not match or int(match[3], 16) != crc32c(match[1] + (match[2] or b"")):
        return None
    return Identity(int(match[1], 16), int(match[2] or b"0", 16))


def keep_identity(filesystem: FileSystem, directory: str, identity: Identity) -> None:
    """Write the file, unless it has this content. On a full disk, it is written at a later start.

    Raises:
        OSError: it could not be written, and without it numbers might be assigned twice.
    """
    if read_identity(filesystem, directory) == identity:
        return
    digits = b"%016x %016x" % identity
    try:
        write_atomically(
            filesystem, os.path.join(directory, FILE), b"%s %08x\n" % (digits, crc32c(digits)), is_open=True
        )
    except OSError:
        if identity.first_seq:
            raise
