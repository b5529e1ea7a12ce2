"""Groups of rows and their open windows in memory. ``State`` has the same as plain values."""

from __future__ import annotations

import struct
from typing import Any

from weft.edge_node.functions.windows.shares import Shares

_START = struct.Struct(">q")
PANE, GROUP, CHUNK, GAPS = b"w", b"g", b"k", b"!"
"""First byte of a key of ``State``: an open window, a group's memory, kept rows, gaps."""

FIRST, COUNT, START, LAST = 0, 1, 2, 3
"""Indexes in the numbers of a window: ingest time of its oldest row, number of its rows; for a session, the times of
its first and last event."""
GREATEST, CLOSED, LATE, SEEN = 0, 1, 2, 3
"""Indexes in a group's memory: greatest time of an event, greatest end of an emitted window, number of late rows since
then, and ingest time of the last row."""
NEVER, ALWAYS = -(1 << 63), (1 << 63) - 1
"""Times before and after all other times."""


class Pane:
    """An open window, or a part shared by overlapping windows."""

    __slots__ = ("chunks", "key", "numbers", "shares", "start", "tail")

    def __init__(self, start: int, key: bytes, numbers: list[Any]) -> None:
        self.start = start
        """First time of the window; for a session, the time of the row that opened it."""
        self.key = key
        self.numbers = numbers
        self.chunks = 0
        """Number of pieces with its kept rows, if rows are kept."""
        self.tail: list[Any] = []
        """Last piece."""
        self.shares: Shares | None = None
        """Shares of the topics in them; None where topics do not displace each other."""


class Group:
    """Rows that share windows."""

    __slots__ = (
        "closing",
        "due",
        "end",
        "fields",
        "gid",
        "key",
        "memory",
        "memory_key",
        "name",
        "next",
        "pane",
        "panes",
        "start",
    )

    def __init__(self, gid: bytes, name: Any, key: bytes, fields: dict[str, Any], memory: list[int] | None) -> None:
        self.gid = gid
        """Bytes that identify the group."""
        self.name = name
        """Text, or texts, for the look-up by rows; None where its values are not all text."""
        self.key = key
        """Key of its outputs."""
        self.fields = fields
        """Values that define the group, in the form of its outputs."""
        self.memory = memory
        """Numbers that outlive its windows; None where none must."""
        self.memory_key = GROUP + gid if memory is not None else b""
        """Key of the memory in ``State``."""
        self.panes: list[Pane] = []
        """Open windows, by start."""
        self.next = NEVER
        """Time at or before the end of the window that closes next."""
        self.closing = 0
        """Number of its closed windows that wait to be emitted."""
        self.due: int | None = None
        """Tick for which it is in the schedule."""
        # The window of the last row, checked first for the next one, and its range of times.
        self.pane: Pane | None = None
        self.start = self.end = 0

    def turn_to(self, pane: Pane, start: int, end: int) -> None:
        """Set the window to check first for the next row: it takes times from ``start`` to ``end``."""
        self.pane, self.start, self.end = pane, start, end

    def turn_away(self) -> None:
        """Clear the window to check first."""
        self.pane, self.start, self.end = None, 0, 0


def pane_key(start: int, gid: bytes) -> bytes:
    """Return the key of a window in ``State``."""
    return PANE + _START.pack(start) + gid


def of_pane_key(key: bytes) -> tuple[int, bytes]:
    """Return start and group of a window's key."""
    return _START.unpack_from(key, 1)[0], key[9:]


def chunk_key(pane: Pane, number: int) -> bytes:
    """Return the key of a piece of kept rows. Pieces of a window are numbered from 0."""
    return CHUNK + number.to_bytes(4) + pane.key[1:]


def of_chunk_key(key: bytes) -> tuple[int, bytes]:
    """Return the number of a piece, and the key of its window."""
    return int.from_bytes(key[1:5]), PANE + key[5:]
