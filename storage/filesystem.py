"""The only door to the disk, and files that only a service and its administrator may read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import Protocol, runtime_checkable

# The only door to the disk.
#
# All durable data go through ``FileSystem``, so that tests can replace it with one that forgets unsynced data, tears
# writes, and fails any call. The promises are POSIX's, spelt out: bytes are durable after ``File.sync``; a name
# (created, linked, renamed, removed) is durable after ``sync_directory`` of its directory.

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
        # pwrite may write less than asked, at a signal or on a full disk; the next call then names the error.
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
            # File systems without reservation still need the zeros that tell the end of
            # the entries.
            os.ftruncate(self._fd, max(length, self.size()))

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def sync(self) -> None:
        # Not fsync: the length was reserved before, so no metadata has to reach the disk but in that case, which
        # fdatasync covers.
        os.fdatasync(self._fd)
        # A sync of a file without a name succeeds, and everything in it is gone when the process ends. Acknowledging it
        # would be a lie.
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
            # The kernel releases the lock when the process dies, however it dies. A file with a process id would have
            # to be judged.
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
        # Readers get a descriptor that cannot write, so that looking at a log needs no right to change it.
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
            # Another process may create the same folder at the same time.
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
    """A ``FileSystem`` that encrypts state files (``storage.segment_log.encryption``)."""

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
        # Into a new file that then takes the name: a crash leaves the former content or the new one, never half of
        # either.
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    filesystem.rename(temporary, path)
    filesystem.sync_directory(os.path.dirname(path) or ".")


# Files that only a service and its administrator may read: hashed passwords, hashed tokens.
#
# They are not part of a log or a store, and need owners and modes, which ``FileSystem`` does not have.

_OWNER = 0o600
_OWNER_AND_GROUP = 0o640


def replace_private_file(path: str, data: bytes) -> None:
    """Replace a file's content durably and in one step; create the file if it is missing.

    An existing file keeps its owner, group and mode. Only the owner can read a new file; one that root creates gets the
    owner and group of its folder, and in root's own folder, the folder's group may read it.

    Raises:
        OSError: the file or its folder cannot be written. The old content remains.
    """
    folder = os.path.dirname(path) or "."
    owner, group, mode = _ownership(path, folder)
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    # Exclusive: in a folder of another user, root must not write through a link of this name.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER)
    with open(descriptor, "wb") as file:
        if (owner, group) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
            os.fchown(descriptor, owner, group)
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.replace(temporary, path)
    sync_folder(folder)


def append_private_line(path: str, line: bytes, bytes_max: int) -> None:
    """Append a line to a file, durably; create the file if it is missing, as ``replace_private_file`` does.

    Raises:
        OverflowError: the file would have more than ``bytes_max`` bytes.
        OSError: the file or its folder cannot be written.
    """
    folder = os.path.dirname(path) or "."
    owner, group, mode = _ownership(path, folder)
    # No link: in a folder of another user, root must not write through a link of this name.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, _OWNER), "ab", buffering=0) as file:
        known = os.fstat(file.fileno())
        if known.st_size + len(line) > bytes_max:
            raise OverflowError(f"{path} has {known.st_size} bytes")
        if (owner, group) != (known.st_uid, known.st_gid) and os.geteuid() == 0:
            os.fchown(file.fileno(), owner, group)
        if known.st_size == 0:
            os.fchmod(file.fileno(), mode)
        # One write: lines of two commands at once do not mix.
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.fsync(file.fileno())
    sync_folder(folder)


def _ownership(path: str, folder: str) -> tuple[int, int, int]:
    """Return the owner, group and mode for the file."""
    with contextlib.suppress(FileNotFoundError):
        known = os.stat(path)
        # Kept, so that the service can still read a file after an administrator has changed it.
        return known.st_uid, known.st_gid, known.st_mode & 0o777
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid(), _OWNER
    # `sudo weft user add` must not leave a file that the service's user cannot read.
    place = os.stat(folder)
    of_root_for_a_group = place.st_uid == 0 and place.st_gid != 0
    return place.st_uid, place.st_gid, _OWNER_AND_GROUP if of_root_for_a_group else _OWNER


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_private_file(path: str, bytes_max: int) -> bytes:
    """Return up to ``bytes_max + 1`` bytes of a regular file with a secret.

    Raises:
        OSError: it cannot be read, is no regular file, or other users may read or write it.
    """
    # A pipe must not keep the caller waiting for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            raise PermissionError(
                errno.EPERM, f"other users may read or write it (mode {stat.S_IMODE(mode):03o}); run chmod 600", path
            )
        return file.read(bytes_max + 1)
