"""Places of imported logs: data directories of an earlier disk, which ``weft edge import`` put into this node's.

``<data_dir>/imported/<log id>`` is a log that the node's links still have to bring to the hubs, and ``<log id>.done``
one that the hubs have completely.
"""

from __future__ import annotations

import os
import re

FOLDER = "imported"
DONE = ".done"
PART = ".part"
"""Suffix while the files are still being copied: the node skips it."""
_NAME = re.compile(r"[0-9a-f]{16}")


def folder(data_dir: str) -> str:
    """Return the folder of a node's imported logs; it need not exist."""
    return os.path.join(data_dir, FOLDER)


def waiting(data_dir: str) -> list[str]:
    """Return the log ids of the imports that hubs do not have yet, sorted."""
    return sorted(name for name in _names(data_dir) if _NAME.fullmatch(name))


def done(data_dir: str) -> list[str]:
    """Return the log ids of the imports that hubs have, sorted. Their folders can be deleted."""
    names = (name.removesuffix(DONE) for name in _names(data_dir) if name.endswith(DONE))
    return sorted(name for name in names if _NAME.fullmatch(name))


def _names(data_dir: str) -> list[str]:
    try:
        return os.listdir(folder(data_dir))
    except (FileNotFoundError, NotADirectoryError):
        return []
