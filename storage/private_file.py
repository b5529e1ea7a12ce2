"""Files that only a service and its administrator may read: hashed passwords, hashed tokens.

They are not part of a log or a store, and need owners and modes, which ``FileSystem`` does not have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

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
    _sync(folder)


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
    _sync(folder)


def _ownership(path: str, folder: str) -> tuple[int, int, int]:
    """Return the owner, group and mode for the file."""
    with contextlib.suppress(FileNotFoundError):
        known = os.stat(path)
        # Kept, so that the service can still read a file after an administrator has changed it.
        return known.st_uid, known.st_gid, known.st_mode & 0o777
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid(), _OWNER
    # `sudo weft token add` must not leave a file that the service's user cannot read.
    place = os.stat(folder)
    of_root_for_a_group = place.st_uid == 0 and place.st_gid != 0
    return place.st_uid, place.st_gid, _OWNER_AND_GROUP if of_root_for_a_group else _OWNER


def _sync(folder: str) -> None:
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
