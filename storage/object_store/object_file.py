"""An object as a file for libraries that read Parquet: ranges of it are fetched when they are asked for."""

from __future__ import annotations

import asyncio
import io
import os
from collections import deque

from weft.storage.object_store.protocol import ObjectStore

WINDOW_BYTES = 256 << 10
"""Least bytes of a request: the columns of a footer's facts are neighbours of some hundred bytes each."""
WINDOWS_MAX = 4
"""Maximum number of ranges that are kept, each of ``WINDOW_BYTES`` or of one longer read."""


class ObjectFile(io.RawIOBase):
    """An object that is never swapped, for reading in other threads than the event loop's.

    Args:
        size: bytes of the object.
        loop: event loop of the store; it must be running, and not in the thread that reads.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._store, self._key, self._size, self._loop = store, key, size, loop
        self._at = 0
        self._windows: deque[tuple[int, bytes]] = deque(maxlen=WINDOWS_MAX)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return bytes from the position on; fewer at the object's end.

        Raises:
            NotFound, StoreError: as the store.
        """
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if self._at >= end:
            return b""
        start, data = next((each for each in self._windows if self._covers(each, end)), None) or self._fetch(end)
        found = data[self._at - start : end - start]
        self._at += len(found)
        return found

    def _covers(self, window: tuple[int, bytes], end: int) -> bool:
        return window[0] <= self._at and end <= window[0] + len(window[1])

    def _fetch(self, end: int) -> tuple[int, bytes]:
        # A window that would pass the end begins earlier: a footer's length is read first, and then what is before it.
        start = max(0, min(self._at, self._size - WINDOW_BYTES))
        length = max(end - start, WINDOW_BYTES)
        reading = asyncio.run_coroutine_threadsafe(self._store.get_range(self._key, start, length), self._loop)
        self._windows.append((start, reading.result()))
        return self._windows[-1]
