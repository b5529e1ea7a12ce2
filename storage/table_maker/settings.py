"""Bounds of the table step, and declarations of streams. The configuration's ``tables`` section sets the first ones;
the rest are named here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.protocols.shard.shard_state import StreamKey

if TYPE_CHECKING:
    from weft.storage.chunks.traced_rows import OnTraced
    from weft.storage.table.quality.declared import StreamQuality
    from weft.storage.table.schemas import StreamSchema

RETENTION_HOURS = 168
"""Retention of new tables, unless the settings say otherwise."""


@dataclass(frozen=True)
class TableSettings:
    """Settings of the table step. The defaults suit streams of up to some 100,000 records a second."""

    interval_s: float = 10.0
    """Seconds between rounds over all streams."""
    write_bytes: int = 16 << 20
    """Bytes of a stream's log that are written in the next round."""
    write_after_s: float | None = None
    """Time for which fewer bytes wait at most; None writes them in the next round as well."""
    compact_bytes_max: int = 512 << 20
    """Bytes of small files that one rewrite joins."""
    compact_file_bytes_max: int = 128 << 20
    """Size from which on a file does not count as small: a quarter of the former, so that a join may be cut there."""
    retention_hours: int | None = RETENTION_HOURS
    """Age at which log entries, and files that no younger version needs, are removed; a property of each table. None
    leaves it as a table has it."""
    streams_at_once: int = 4
    """Number of streams whose rows are written at the same time: overlaps a bucket's round trips. One tenant has all
    places except one, unless it is the only one."""
    file_rows_max: int = 1_000_000
    """Maximum number of records of one shard in one commit, which are one Parquet file."""
    file_bytes_max: int = 128 << 20
    """Bytes of log for one Parquet file; reading stops at the first section that reaches them."""
    step_bytes_max: int = 256 << 20
    """Bytes of rows in memory after which a step ends: a few bytes of log may expand to many."""
    step_seconds_max: float = 2.0
    """Time of making rows after which a step ends. The rest waits until the other streams have had their turn."""
    join_seconds_max: float = 30.0
    """Time of joining small files after which a rewrite takes no further one."""
    compact_files_min: int = 20
    """Number of small files of one shard and of like size that make a rewrite worth while."""
    compact_files_max: int = 256
    """Number of small neighbours that are joined whatever their sizes are."""
    checkpoint_versions: int = 100
    """Table versions between checkpoints of a table with less than 100,000 files."""
    checkpoint_versions_max: int = 1000
    """Table versions between checkpoints of the largest tables: a reader reads as many entries at most."""
    vacuum_interval_s: float = 86_400.0
    on_traced: OnTraced | None = None
    """Receiver of the rows of traced messages; None for none, which looks for none."""


DEFAULTS = TableSettings()


@dataclass(frozen=True)
class TableTerms:
    """Look-ups of what is declared of the tables of streams. Each is asked again at every step: no restart is needed.

    Args:
        schema: declared schema.
        quality: quality rules.
        sort: columns by which rows of files are sorted first; none for those of ``clustering`` alone.
        instead: whether a latest table stands instead of a table of all rows, which is not made then.
        held: why the table gets no rows for now; None if it does.
    """

    schema: Callable[[StreamKey], StreamSchema | None] = lambda _: None
    quality: Callable[[StreamKey], StreamQuality | None] = lambda _: None
    sort: Callable[[StreamKey], Sequence[str]] = lambda _: ()
    instead: Callable[[StreamKey], bool] = lambda _: False
    held: Callable[[StreamKey], str | None] = lambda _: None


UNDECLARED = TableTerms()
"""Nothing is declared."""
