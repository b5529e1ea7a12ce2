"""The durable part of a log's end: no reader gets a record that a power cut could still remove.

Bytes can be read by other processes before the fsync that covers them has returned. A commit mark proves that
everything before it was synced; only the node knows whether the last commit is durable. So it is shown

- once the node reports it (the ends of its streams on its status page), where the node can be reached;
- otherwise once it has not changed for ``SETTLED_S``;
- at once when no node runs: recovery keeps what can be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.edge_node.inspect.view.cursor import Commit

SETTLED_S = 1.0
"""Time without a change after which a commit counts as synced: an fsync takes milliseconds on a healthy disk."""
_LOCKS = "/proc/locks"

DurableEnds = Callable[[], Mapping[str, int] | None]
"""Function that requests the sequence number after the last durable record of each stream from the node; None when it
does not answer."""


def is_locked(directory: str) -> bool | None:
    """Return whether a node runs on a data directory; None where the system does not report it.

    The lock is looked up rather than tried: holding it even for a moment could prevent a node's start.
    """
    try:
        lock = os.stat(os.path.join(directory, "lock"))
        with open(_LOCKS, encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return False if os.path.exists(_LOCKS) else None
    except OSError:
        return None
    return any(_is_lock_of(line.split(), lock) for line in lines)


def _is_lock_of(fields: list[str], file: os.stat_result) -> bool:
    """Return whether a line of /proc/locks (proc(5)), such as ``1: FLOCK ADVISORY WRITE 25 fe:00:99 0 EOF``, describes
    this lock."""
    if len(fields) < 6 or fields[1] != "FLOCK":
        return False
    major, _, rest = fields[5].partition(":")
    minor, _, inode = rest.partition(":")
    # File systems without a device of their own (btrfs, overlayfs) have another number there than in stat.
    is_device = os.major(file.st_dev) == 0 or (int(major, 16), int(minor, 16)) == (
        os.major(file.st_dev), os.minor(file.st_dev)
    )  # fmt: skip
    return is_device and inode == str(file.st_ino)


class Durability:
    """Decision whether commits at the end of a log may be shown. For one reader."""

    def __init__(
        self,
        directory: str,
        durable_ends: DurableEnds | None = None,
        *,
        locked: Callable[[str], bool | None] = is_locked,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Decide for the log in ``directory``.

        Args:
            durable_ends: requests the node; None when its address is unknown.
        """
        self._directory = directory
        self._durable_ends = durable_ends
        self._locked = locked
        self._monotonic = monotonic
        self._seen: tuple[int, int] = (-1, -1)
        self._seen_at = 0.0

    def covers(self, commit: Commit) -> bool:
        """Return whether a commit without a mark after it is durable."""
        if commit.is_proven:
            return True
        ends = self._durable_ends() if self._durable_ends is not None and commit.ends else None
        if ends is not None:
            return all(ends.get(name, 0) >= end for name, end in commit.ends.items())
        # Checked last: a node in another container may run although its lock is not visible here.
        return self._locked(self._directory) is False or self._has_settled(commit)

    def _has_settled(self, commit: Commit) -> bool:
        place = (commit.segment, commit.end)
        if place != self._seen:
            self._seen, self._seen_at = place, self._monotonic() - min(commit.age_s, SETTLED_S)
        return self._monotonic() - self._seen_at >= SETTLED_S
