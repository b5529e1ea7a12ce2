"""Names of the files in a log's directory that are not segments of it, or not yet."""

from __future__ import annotations

UNFINISHED = ".new"
"""Suffix of a segment that is being created: after a crash, no start reads such a file."""
DAMAGED = ".damaged"
"""Suffix of the second name of a damaged segment, and of a file that may be another log's."""
STRANGE = ".strange"
"""Suffix of an object with a segment's name that is not a file."""


def aside_path(path: str) -> str:
    """Return the name under which a damaged segment is kept."""
    return path + DAMAGED
