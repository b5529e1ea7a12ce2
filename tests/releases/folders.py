"""Folders compared byte by byte."""

from __future__ import annotations

import hashlib
from pathlib import Path


def content(folder: Path) -> dict[str, str]:
    """Every name below a folder, with the hash of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.is_file() or path.is_dir()
    }
