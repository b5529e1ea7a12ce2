"""Bounds of the table step. The configuration's ``tables`` section sets the interval; the rest are named here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableSettings:
    """How records become table rows. Defaults suit streams of up to some 100,000 records a second."""

    interval_s: float = 10.0
    """Seconds between rounds over all streams."""
    file_rows_max: int = 1_000_000
    """Records of one shard that one commit moves: one Parquet file."""
    file_bytes_max: int = 128 << 20
    """Bytes of log that one Parquet file takes; reading stops at the first section that reaches them."""
    steps_per_round_max: int = 8
    """Commits to one table in a row before the other streams have their turn."""
    compact_files_min: int = 32
    """Small files of one shard that make a rewrite worth while."""
    compact_file_bytes_max: int = 32 << 20
    """A file from this size on is not small."""
    compact_bytes_max: int = 128 << 20
    """Bytes of small files that one rewrite joins; also its memory."""
    checkpoint_versions: int = 100
    """Table versions between checkpoints."""
    retention_hours: int = 168
    """Files that no version younger than this needs, and log entries older than this, are removed."""
    vacuum_interval_s: float = 86_400.0


DEFAULTS = TableSettings()
