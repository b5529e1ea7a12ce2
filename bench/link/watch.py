"""Moments at which files get their names, as the kernel tells them (inotify): when a folder's chunks become visible."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

IN_CREATE, IN_MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("=iIII")
_READ_BYTES = 1 << 16
_LOOK_S = 0.05
"""Interval of looks for folders that are new."""


class Watch:
    """The first moment at which each file of some folders was there, in ns since 1970."""

    def __init__(self, root: Path, pattern: str) -> None:
        self._root, self._pattern = root, pattern
        self.times: dict[str, int] = {}
        """Path of a file below the root -> its moment. Files that came before their folder was watched are missing."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK)
        if self._file < 0:
            raise SystemExit(f"inotify is not to be had here: {os.strerror(ctypes.get_errno())}")
        self._folders: dict[int, str] = {}
        self._known: set[Path] = set()
        self._stop = threading.Event()

    def _follow(self) -> None:
        """Watch the folders that are there by now."""
        for folder in set(self._root.glob(self._pattern)) - self._known:
            number = self._libc.inotify_add_watch(self._file, os.fsencode(folder), IN_CREATE | IN_MOVED_TO)
            if number < 0:
                raise SystemExit(f"{folder} cannot be watched: {os.strerror(ctypes.get_errno())}")
            self._folders[number] = folder.relative_to(self._root).as_posix()
            self._known.add(folder)

    def run(self) -> None:
        """Take events until ``stop``."""
        looked = 0.0
        while not self._stop.is_set():
            if time.monotonic() - looked > _LOOK_S:
                self._follow()
                looked = time.monotonic()
            if not select.select([self._file], [], [], _LOOK_S)[0]:
                continue
            now, data, at = time.time_ns(), os.read(self._file, _READ_BYTES), 0
            while at < len(data):
                number, _, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = data[at : at + length].rstrip(b"\0").decode()
                at += length
                self.times.setdefault(f"{self._folders[number]}/{name}", now)

    def stop(self) -> None:
        """End ``run``."""
        self._stop.set()


@contextlib.contextmanager
def watching(root: Path, pattern: str) -> Iterator[dict[str, int]]:
    """Watch the folders below ``root`` that match, also later ones, in a thread; yields their files' moments."""
    watch = Watch(root, pattern)
    thread = threading.Thread(target=watch.run, name="watch", daemon=True)
    thread.start()
    try:
        yield watch.times
    finally:
        watch.stop()
        thread.join()
        os.close(watch._file)
