"""The only door to the disk.

All durable data go through ``FileSystem``, so that tests can replace it with one that forgets unsynced data, tears
writes, and fails any call. The promises are POSIX's, spelt out: bytes are durable after ``File.sync``; a name (created,
linked, renamed, removed) is durable after ``sync_directory`` of its directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


REMOVED = " (deleted)"
"""Suffix of a removed file's name in Linux's ``/proc/<pid>/fd`` (proc_pid_fd(5))."""


class DirectoryInUse(RuntimeError):
    """The error when another process holds the lock: two writers on one directory would destroy it."""


class File(Protocol):
    """An open file. Not for use by two threads at once. Every method may raise ``OSError``."""

    def write_at(self, offset: int, data: Buffer) -> None:
        """Write all of ``data`` at ``offset``. Not durable before ``sync``."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def allocate(self, length: int) -> None:
        """Reserve zeroed space up to ``length`` bytes, so that later writes need no metadata and cannot run out."""

    def truncate(self, length: int) -> None:
        """Cut (or extend with zeros) to ``length`` bytes. Not durable before ``sync``."""

    def sync(self) -> None:
        """Make everything written so far durable (fdatasync). After an error the state is unknown: never try again.

        Raises ``FileNotFoundError`` if the file no longer has a name: its content would be lost with the process.
        """

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def close(self) -> None:
        """Release the file. Does not sync."""


class Lock(Protocol):
    """An exclusive lock on a directory, held until ``close`` or the end of the process."""

    def is_in_place(self) -> bool:
        """Return whether the locked directory is still in its place, and not replaced by another."""
        ...

    def close(self) -> None:
        """Release the lock."""


class FileSystem(Protocol):
    """Names and files. Paths are plain strings. Every method may raise ``OSError``."""

    def open(self, path: str, *, read_only: bool = False) -> File:
        """Open an existing file (``FileNotFoundError``, ``IsADirectoryError``) for reading and, unless ``read_only``,
        writing."""
        ...

    def create(self, path: str) -> File:
        """Create a file that must not exist yet (``FileExistsError``). The name needs ``sync_directory``."""
        ...

    def read(self, path: str) -> bytes:
        """Return the whole content of a file."""
        ...

    def size(self, path: str) -> int:
        """Return the length of a file in bytes."""
        ...

    def modified(self, path: str) -> int:
        """Return when a file was last written: nanoseconds since 1970, by the clock of who keeps the file system."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the name exists."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def is_directory(self, path: str) -> bool:
        """Return whether the name is a directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, durably. Also sync a directory that an earlier process created,
        which may have ended before it was durable."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name that must not exist yet (``FileExistsError``): create-if-absent."""

    def rename(self, source: str, target: str) -> None:
        """Move a name, replacing the target in one step."""

    def remove(self, path: str) -> None:
        """Remove a file's name."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. It may come back after a power cut."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, path: str) -> int:
        """Return the number of bytes that may still be written to the file system that holds ``path``."""
        ...

    def lock(self, directory: str) -> Lock:
        """Take the directory's exclusive lock or raise ``DirectoryInUse``."""
        ...


class _OSFile:
    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, os.O_CLOEXEC | flags, 0o640)
        self._link = f"/proc/self/fd/{self._fd}"

    def write_at(self, offset: int, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view = view[written:]
            offset += written

    def read_at(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0:
            part = os.pread(self._fd, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def allocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(self._fd, max(length, self.size()))

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def sync(self) -> None:
        os.fdatasync(self._fd)
        if self._is_removed():
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was being written")

    def _is_removed(self) -> bool:
        # Not with fstat: since Linux 6.13 the write after a read of a file's times sets them again, to the nanosecond.
        # This change of the inode takes a third of the time and of the processor time of a small write and sync.
        try:
            if not os.readlink(self._link).endswith(REMOVED):
                return False
        except OSError:  # no /proc
            pass
        return os.fstat(self._fd).st_nlink == 0  # it may have a second name

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def mode(self) -> int:
        return os.fstat(self._fd).st_mode

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""A folder may come from strangers: a symbolic link in it would name any file of this machine, and a pipe waits for its
writer."""


def _check_regular(mode: int, path: str) -> None:
    """Refuse what the system would open for reading, although it holds no data."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


class _OSLock:
    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OSFileSystem:
    """The machine's own file system."""

    def open(self, path: str, *, read_only: bool = False) -> File:
        if not read_only:
            return _OSFile(path, os.O_RDWR)
        file = _OSFile(path, _TO_READ)
        try:
            _check_regular(file.mode(), path)
        except OSError:
            file.close()
            raise
        return file

    def create(self, path: str) -> File:
        return _OSFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def read(self, path: str) -> bytes:
        with open(os.open(path, _TO_READ | os.O_CLOEXEC), "rb") as file:
            _check_regular(os.fstat(file.fileno()).st_mode, path)
            return file.read()

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified(self, path: str) -> int:
        return os.stat(path).st_mtime_ns

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        path = leaf = os.path.abspath(path)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o750)
        parent = os.path.dirname(leaf)
        changed = {*map(os.path.dirname, missing)}
        for directory in {*changed, parent, os.path.dirname(parent)}:
            try:
                self.sync_directory(directory)
            except OSError as error:
                # A directory that this process did not change may be unsyncable for it: in others' folders, or on
                # read-only file systems (EINVAL).
                if directory in changed or error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                    raise

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        space = os.statvfs(path)
        return space.f_bavail * space.f_frsize

    def lock(self, directory: str) -> Lock:
        try:
            return _OSLock(os.path.join(directory, "lock"))
        except BlockingIOError:
            raise DirectoryInUse(f"{directory} is in use by another process") from None


@runtime_checkable
class SealsFiles(Protocol):
    """A ``FileSystem`` that encrypts state files (``storage.segment_log.sealed.disk``)."""

    def sealed(self, path: str, data: Buffer) -> bytes:
        """Return the bytes to write as the content of a file."""
        ...


def write_atomically(filesystem: FileSystem, path: str, data: bytes, *, is_open: bool = False) -> None:
    """Replace the content of ``path`` durably: after a crash a reader sees the old bytes or the new, never a mix.

    Args:
        is_open: it holds nothing of users' data, and stays readable without a key on a disk that encrypts.
    """
    if isinstance(filesystem, SealsFiles) and not is_open:
        data = filesystem.sealed(path, data)
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        filesystem.remove(temporary)
    file = filesystem.create(temporary)
    try:
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    filesystem.rename(temporary, path)
    filesystem.sync_directory(os.path.dirname(path) or ".")
