"""Settings and fixed bounds of a segment log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BATCH_BYTES_MAX = 1 << 20
"""A batch is closed once it holds this much uncompressed: enough for zstd to work with, small enough to skip."""
BATCH_RECORDS_MAX = 65_536
COMMIT_BYTES_MAX = 4 << 20
"""One write and fsync carries about this much; what is appended beyond it goes into the next. Bounds the latency of
one commit (0.4 s at the 10 MB/s of an SD card) and the memory that the writer encodes into."""
DUE_BYTES = 512 << 10
"""A commit begins once this much is pending, whatever else the owner's thread still has to read."""
SURE_ROOM_MARGIN_BYTES = 64 << 10
"""Appends are looked at closely when the newest segment has less room than this beyond what is pending."""
RECORD_BYTES_MAX = 17 << 20
"""Longest record: a message of 16 MiB, the most that ``limits.message`` allows, with its key and headers. With more,
the copies that are made of a record on its way would hold a loop for longer than a turn is worth (decision 0119)."""
POINT_SPACING_BYTES = 64 << 10
"""A segment's sparse index has at most one point per stream in this many bytes: a read walks no further."""
SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 1 << 30
BUDGET_SEGMENTS_MIN = 4
"""A log needs its newest sealed segment, the one it writes, and some of which to delete."""
MOVE_SHARE = 4
"""Largest part of a segment that is moved out to free the rest, as 1 / ``MOVE_SHARE``: each byte freed then costs at
most a third of a byte written."""
SPARE_SHARE = 2
"""This part of a segment stays free within the budget, for moving when nothing else can make room; then segments of
which at least this part is free are cleaned."""
SEGMENT_SHARE_MIN = 4
"""A log that cannot win the place of a whole segment goes on with smaller ones, down to this part."""
DROP_SHARE = 64
"""A stream over its own size loses at least this part of it at a time, so that notices stay few."""
IDENTITY_BYTES = 43
"""Length of the file with the log's id (``recover.identity``), which the budget counts."""
HOUSEKEEPING_INTERVAL_S = 30.0
"""Seconds between two runs of retention; a run writes nothing unless something has expired."""
SPACE_INTERVAL_S = 0.5
"""Between two looks whether a disk that others have filled has space again for a commit that was taken."""


@dataclass(frozen=True)
class StreamPolicy:
    """Rules for how long a stream's records stay, and what becomes of them when there is no room."""

    when_full: Literal["refuse", "drop_oldest"] = "refuse"
    """Over its own size, or when the log's budget is used up: take nothing more, or lose the oldest records."""
    retain_s: float | None = None
    """Records older than this go, those that wait for a hub under a notice; None keeps them while there is room."""
    retain_bytes: int | None = None
    """Most bytes of the stream's entries in the log; None leaves it to the log's budget."""
    replicated: bool = True
    """True if hubs release the stream's records. Otherwise only retention removes them, and that is no loss."""


DEFAULT_POLICY = StreamPolicy()


@dataclass(frozen=True)
class LogSettings:
    """Settings for how large a log may grow and how it writes. Sizes in bytes."""

    segment_bytes: int = 64 << 20
    """Size at which a segment file is sealed and the next begun; also what is preallocated."""
    budget_bytes: int = 16 << 30
    """Most that the log's files take on disk, to the byte."""
    tail_bytes: int = 32 << 20
    """Newest batches kept in memory for readers that keep up."""
    pending_bytes_max: int = 64 << 20
    """Bytes appended and not durable at which listeners are to stop reading sockets; at twice this, append refuses."""
    commit_interval_s: float | None = None
    """Time between the end of a commit and the beginning of the next: larger spares flash and costs latency. 0 commits
    as fast as the disk can; None as the load needs it (``commit.pacing``)."""
    compression_level: int | None = 1
    """Level of zstd compression for batches of 4 KiB and more; None stores them uncompressed."""

    @property
    def spare_bytes(self) -> int:
        """Return the part of the budget that appends never use, so that records can always be moved forward."""
        return self.segment_bytes // SPARE_SHARE

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}; choose {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )
        if self.budget_bytes < BUDGET_SEGMENTS_MIN * self.segment_bytes:
            raise ValueError(
                f"budget_bytes is {self.budget_bytes}; a log of {self.segment_bytes}-byte segments needs at least "
                f"{BUDGET_SEGMENTS_MIN * self.segment_bytes}: raise the budget or make segments smaller"
            )
        if self.tail_bytes < 0 or self.pending_bytes_max <= 0 or (self.commit_interval_s or 0.0) < 0:
            raise ValueError(
                "tail_bytes and commit_interval_s must not be negative, pending_bytes_max must be positive"
            )
        if self.compression_level is not None and not 1 <= self.compression_level <= 19:
            raise ValueError(f"compression_level is {self.compression_level}; choose 1 to 19")
