"""A disk that became read-only under a running node: Linux does that to a file system that meets errors."""

from __future__ import annotations

import os


def read_only_mount(path: str) -> str | None:
    """Return where the file system of ``path`` is mounted if it is read-only now; None if it is not, or unknown."""
    try:
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            return None
        place = os.path.realpath(path)
        while not os.path.ismount(place):
            place = os.path.dirname(place)
    except OSError:
        return None
    return place


def sentence(path: str, mount: str, error: BaseException) -> str:
    """Return what a node says last that ended with ``error`` because the disk below ``mount`` became read-only."""
    return (
        f"the disk mounted at {mount} became read-only, so the node cannot keep anything in {path} and stopped "
        f"({error}). What it acknowledged is on the disk. Look for the reason in the kernel's messages (dmesg), check "
        "or replace the disk, mount it read-write, and start the node again"
    )
