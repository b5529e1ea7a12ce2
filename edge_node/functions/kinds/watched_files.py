"""Detection of changed files for functions."""

from __future__ import annotations

import os
from collections.abc import Sequence

CHECK_INTERVAL_S = 1.0
"""Interval between two checks of the files."""


class WatchedFiles:
    """A watch over files, by size, times and inode; their content is not read.

    ``now`` is monotonic seconds.
    """

    def __init__(self, paths: Sequence[str], interval_s: float = CHECK_INTERVAL_S) -> None:
        self._paths = paths
        self._interval_s = interval_s
        self._check_at = 0.0
        self._states: list[object] | None = None

    def changed(self, now: float) -> bool:
        """Return whether the files differ from the last check; True at the first. It checks only after the interval."""
        if self._states is not None and now < self._check_at:
            return False
        self._check_at = now + self._interval_s
        former, self._states = self._states, [_state(path) for path in self._paths]
        return self._states != former

    def forget(self) -> None:
        """Report a change at the next check."""
        self._states = None


def _state(path: str) -> object:
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
    except OSError as error:
        return error.errno
