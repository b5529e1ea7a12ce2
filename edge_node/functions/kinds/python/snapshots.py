"""Copies of the user's files, so that a version runs from the same bytes until the next one has passed its trial."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import hashlib
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from weft.config.signing.code import CodeNotSigned, check_code

BYTES_MAX = 512 << 20
"""Maximum size of the code and its files, such as a model, together."""
HASH_CHARACTERS = 12
PREFIX = "weft-function-"
MARK = "WEFT_FUNCTION_FOLDER"
"""Environment variable with the folder, in the process that runs a version and all of its children."""
LOCK = "lock"


class FilesSnapshot(NamedTuple):
    """The files at one moment."""

    version: str
    """Prefix of the SHA-256 of names and contents."""
    folder: str


class Snapshots:
    """The files of a function, and copies of them in a folder of its own. The first file is the code."""

    def __init__(self, paths: Sequence[str], signed_by: Sequence[str] = ()) -> None:
        """Take no copy yet.

        Args:
            signed_by: files with the keys of which one has to have signed each file; empty where none has to.
        """
        self._paths = paths
        self._signed_by = signed_by
        self._folder: str | None = None
        self._lock: int | None = None
        self._count = 0

    async def take(self) -> FilesSnapshot:
        """Return a copy of the present files.

        Raises:
            OSError: a file cannot be read or copied.
            CodeNotSigned: a file has no signature of a key.
            ValueError: the files are too large, or two have one name.
        """
        return await asyncio.to_thread(self._take)

    def _take(self) -> FilesSnapshot:
        names = [os.path.basename(path) for path in self._paths]
        if len(set(names)) < len(names):
            raise ValueError(f"two files have the same name: {', '.join(sorted(names))}. Rename one")
        found = [os.stat(path) for path in self._paths]
        for path, each in zip(self._paths, found, strict=True):
            if not stat.S_ISREG(each.st_mode):  # a device or a pipe may have no end
                raise ValueError(f"{path} is not a regular file")
        if sum(each.st_size for each in found) > BYTES_MAX:
            raise ValueError(f"the files have more than {BYTES_MAX >> 20} MiB together")
        if self._folder is None:
            remove_left_folders()
            self._folder, self._lock = _new_folder()
        self._count += 1
        folder = os.path.join(self._folder, str(self._count))
        os.mkdir(folder)
        digest = hashlib.sha256()
        for path, name in zip(self._paths, names, strict=True):
            copy = os.path.join(folder, name)
            shutil.copyfile(path, copy)
            with open(copy, "rb") as file:
                digest.update(f"{name}\0".encode())
                content = hashlib.file_digest(file, "sha256")
                digest.update(content.digest())
            if self._signed_by:
                # Of the copy, which is what runs: the file may change at any moment.
                self._check(path, content.hexdigest(), folder)
        return FilesSnapshot(digest.hexdigest()[:HASH_CHARACTERS], folder)

    def _check(self, path: str, digest: str, folder: str) -> None:
        try:
            check_code(path, digest, self._signed_by)
        except CodeNotSigned:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    async def drop(self, snapshot: FilesSnapshot) -> None:
        """Remove a copy that is no longer in use."""
        await asyncio.to_thread(shutil.rmtree, snapshot.folder, ignore_errors=True)

    async def close(self) -> None:
        """Remove all copies."""
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _new_folder() -> tuple[str, int]:
    """Return a new folder, and the lock that marks it as in use."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):
            return folder, lock
        os.close(lock)  # another node has removed it before it was locked


def remove_left_folders() -> None:
    """Remove folders of killed nodes, and end processes of their code that the kernel has not ended with the node. A
    lock marks folders in use, independent of process ids."""
    for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # in use, or another user's
            lock = os.open(os.path.join(folder, LOCK), os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    _end_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _end_processes(folder: str) -> None:
    """End the processes that have a folder in their environment, which child processes inherit. Other users'
    environments cannot be read."""
    mark = f"{MARK}={folder}/".encode()
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            if any(each.startswith(mark) for each in file.read().split(b"\0")):
                os.kill(int(path.split("/")[2]), signal.SIGKILL)
