"""One segment of the log, as readers and the budget see it."""

from __future__ import annotations

from dataclasses import dataclass

from weft.storage.segment_log.state.index import SegmentIndex


@dataclass(eq=False)
class Segment:
    """A segment as readers and the budget see it. Guarded by the log's lock."""

    path: str
    first_position: int
    end: int
    """Durable bytes that hold entries; readers look no further."""
    size: int
    """Bytes of the file on disk."""
    index: SegmentIndex
    known_since: int = 0
    """Monotonic ns at which its last record was taken in, or the log opened: its records are at least that old."""
    needed: tuple[int, int] | None = None
    """(``LogState.changes`` then, bytes of it that must stay): for ``room.must_keep``."""
    version: int = 1
    """Version of its header: what may stand in it (``segment.header.version_needed``)."""
    is_movable: bool = True
    """True if its records can be copied; False once the log met damage in it."""
