"""Memory and disk space that a command may use on a machine on which a node runs: at most half of what is free."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_MEMORY_FACTS = Path("/proc/meminfo")
_MEMORY_BYTES_MIN = 96 << 20
"""Least memory in which SQLite's own cache fits."""


def within_free_memory(wished_bytes: int) -> int:
    """Return ``wished_bytes``, or half of the available memory if that is less."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", _MEMORY_FACTS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        found = None
    return wished_bytes if found is None else min(wished_bytes, max(_MEMORY_BYTES_MIN, int(found[1]) * 1024 // 2))


def within_free_space(wished_bytes: int) -> int:
    """Return ``wished_bytes``, or half of the free space for SQLite's temporary files if that is less."""
    # In this order: https://www.sqlite.org/tempfiles.html, section 5.
    folders = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp", ".")
    fit = (each for each in folders if each and os.path.isdir(each) and os.access(each, os.W_OK | os.X_OK))
    folder = next(fit, ".")
    return min(wished_bytes, shutil.disk_usage(folder).free // 2)
