"""One segment of the log, for readers and the budget."""

from __future__ import annotations

from dataclasses import dataclass

from weft.storage.segment_log.state.index import SegmentIndex


@dataclass(eq=False)
class Segment:
    """A segment, for readers and the budget. Guarded by the log's lock."""

    path: str
    first_position: int
    end: int
    """Durable bytes with entries; readers do not read beyond them."""
    size: int
    """Bytes of the file on disk."""
    index: SegmentIndex
    known_since: int = 0
    """Monotonic ns at which its last record was received, or the log opened: its records are at least that old."""
    needed: tuple[int, int] | None = None
    """(``LogState.changes`` at that time, needed bytes): for ``room.must_keep``."""
    version: int = 1
    """Version of its header, which limits its entries (``segment.header.version_needed``)."""
    is_movable: bool = True
    """True if its records can be copied; False after damage was found in it."""
