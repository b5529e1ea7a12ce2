"""Folders for a directory store's temporary files: one locked slot per open store.

The lock distinguishes a crashed writer's leftovers from a live one's work in progress, without relying on a clock.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref

from weft.storage.filesystem import DirectoryInUse, FileSystem, Lock

HIDDEN = ".weft"
"""Directory of a store's own files; no key starts with a dot."""
SLOTS_MAX = 1024
_LOCK_NAME = "lock"


class Slot:
    """A directory for temporary files that belongs to one open store until it is collected or the process ends."""

    def __init__(self, path: str, lock: Lock) -> None:
        self._path = path
        self._numbers = itertools.count()
        weakref.finalize(self, lock.close)

    def new_path(self) -> str:
        """Return a new path."""
        return f"{self._path}/{next(self._numbers)}"


def take_slot(filesystem: FileSystem, root: str) -> Slot:
    """Take a free slot, and remove the files of crashed writers from it and every other free slot.

    Raises:
        OSError: the directory cannot be written, or ``SLOTS_MAX`` stores are open at once.
    """
    base = f"{root}/{HIDDEN}/temporary"
    filesystem.make_directory(base)
    known = len(filesystem.list_names(base))
    taken: Slot | None = None
    for number in range(SLOTS_MAX):
        if taken is not None and number >= known:
            break
        path = f"{base}/{number}"
        filesystem.make_directory(path)
        with contextlib.suppress(DirectoryInUse):
            lock = filesystem.lock(path)
            _sweep(filesystem, path)
            if taken is None:
                taken = Slot(path, lock)
            else:
                lock.close()
    if taken is None:
        raise OSError(f"{SLOTS_MAX} stores have {root} open; close some")
    return taken


def _sweep(filesystem: FileSystem, path: str) -> None:
    for name in filesystem.list_names(path):
        if name != _LOCK_NAME:
            filesystem.remove(f"{path}/{name}")
