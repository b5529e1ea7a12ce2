"""Settings and fixed bounds of a segment log."""

from __future__ import annotations

from dataclasses import dataclass

BATCH_BYTES_MAX = 1 << 20
"""A batch is closed once it holds this much uncompressed: enough for zstd to work with, small enough to skip."""
BATCH_RECORDS_MAX = 65_536
COMMIT_BYTES_MAX = 4 << 20
"""One write and fsync carries about this much; what is appended beyond it goes into the next. Bounds the latency of
one commit (0.4 s at the 10 MB/s of an SD card) and the memory that the writer encodes into."""
DUE_BYTES = 512 << 10
"""A commit begins once this much is pending, whatever else the owner's thread still has to read."""
RECORD_BYTES_MAX = 16 << 20
"""Longest record: key, payload and headers together."""
POINT_SPACING_BYTES = 64 << 10
"""A segment's sparse index has at most one point per stream in this many bytes: a read walks no further."""
SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 1 << 30
BUDGET_SEGMENTS_MIN = 4
"""A log needs its newest sealed segment, the one it writes, and some of which to delete."""


@dataclass(frozen=True)
class LogSettings:
    """How large a log may grow and how it writes. Sizes in bytes."""

    segment_bytes: int = 64 << 20
    """Size at which a segment file is sealed and the next begun; also what is preallocated."""
    budget_bytes: int = 16 << 30
    """Most that the log's files may take on disk. Released segments are deleted only to stay below it."""
    tail_bytes: int = 32 << 20
    """Newest batches kept in memory for readers that keep up."""
    pending_bytes_max: int = 64 << 20
    """Bytes appended and not durable at which listeners are to stop reading sockets; at twice this, append refuses."""
    commit_interval_s: float = 0.0
    """Shortest time between two commits: larger spares flash and costs latency. 0 commits as fast as the disk can."""
    compression_level: int = 1
    """zstd level of batches of 4 KiB and more."""

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
        if self.tail_bytes < 0 or self.pending_bytes_max <= 0 or self.commit_interval_s < 0:
            raise ValueError(
                "tail_bytes and commit_interval_s must not be negative, pending_bytes_max must be positive"
            )
        if not 1 <= self.compression_level <= 19:
            raise ValueError(f"compression_level is {self.compression_level}; choose 1 to 19")
