"""Names of the files in a log's directory that are no segments of it, or not yet."""

from __future__ import annotations

UNFINISHED = ".new"
"""Suffix of a segment that is being created: a crash leaves a file that no start-up reads."""
DAMAGED = ".damaged"
"""Suffix of the second name of a damaged segment, and of a file that may be another log's."""
STRANGE = ".strange"
"""Suffix of what has a segment's name and is no file."""


def aside_path(path: str) -> str:
    """Return the name under which a damaged segment is kept."""
    return path + DAMAGED
