"""Compiled files without what only a debugger reads, for any architecture: half of some libraries is that.

A loader reads the program headers and what they name. Symbols for debuggers, and the table of sections that leads to
them, stand behind it in the file and are cut off.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
"""Of the Executable and Linkable Format, 64 bits, little-endian, as amd64 and arm64 have it."""
MAGIC = b"\x7fELF\x02\x01"
SAVED_MIN = 64 << 10
"""Bytes that make it worth while: a smaller file stays as its package has it."""


def strip(path: Path) -> int:
    """Cut a compiled file after its last segment. Returns the bytes that this saved; 0 for any other file."""
    with path.open("r+b") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            return 0
        fields = list(HEADER.unpack(head))
        at, size, count = fields[5], fields[9], fields[10]
        end: int = at + size * count
        for index in range(count):
            file.seek(at + index * size)
            _, _, offset, _, _, length, _, _ = SEGMENT.unpack(file.read(SEGMENT.size))
            end = max(end, offset + length)
        saved: int = os.fstat(file.fileno()).st_size - end
        if saved < SAVED_MIN:
            return 0
        fields[6] = fields[12] = fields[13] = 0  # place, number and names of sections
        file.seek(0)
        file.write(HEADER.pack(*fields))
        file.truncate(end)
        return saved
