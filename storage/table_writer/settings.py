"""Bounds of table writing, declarations of streams, properties of tables, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.protocols.chunk_index import StreamKey
from weft.protocols.payloads import PayloadKind
from weft.storage.table.actions import PAYLOAD_PROPERTY, TableConflict, TableError

if TYPE_CHECKING:
    from weft.storage.table.rows import OnTraced
    from weft.storage.table.schemas import StreamQuality, StreamSchema


# Bounds of the table step, and declarations of streams. The configuration's ``tables`` section sets the first ones;
# the rest are named here.

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
        instead: whether a latest table replaces a table of all rows, which is not made then.
        held: why the table gets no rows for now; None if it does.
    """

    schema: Callable[[StreamKey], StreamSchema | None] = lambda _: None
    quality: Callable[[StreamKey], StreamQuality | None] = lambda _: None
    sort: Callable[[StreamKey], Sequence[str]] = lambda _: ()
    instead: Callable[[StreamKey], bool] = lambda _: False
    held: Callable[[StreamKey], str | None] = lambda _: None


UNDECLARED = TableTerms()
"""Nothing is declared."""


# Errors of tables.

__all__ = ["NoHistory", "StreamStopped", "TableConflict", "TableDiverged", "TableError"]


class NoHistory(TableError):
    """A table of all rows that is not there, and is not wanted: a latest table replaces it of it."""


class TableDiverged(TableError):
    """A table with rows of another history than the log's. No more rows are added to it, since some would be doubled or
    missing."""


class StreamStopped(TableError):
    """Records of one shard that cannot become rows. The shard's later records of the stream wait behind them; other
    shards and other streams continue."""

    def __init__(self, table: str, shard: int, first: int, end: int, failure: Exception) -> None:
        self.shard, self.first, self.end = shard, first, end
        self.reason = str(failure) or type(failure).__name__
        super().__init__(f"{table}: offsets {first} to {end - 1} of shard {shard} cannot become rows: {self.reason}")


# Properties of a table: its retention, and its columns with statistics, by which engines skip files
# (``storage/table/delta/statistics``).
#
# Every column that the table's ``delta.dataSkippingStatsColumns`` names has both bounds and a null count in every
# file: deltalake's own dataset treats a missing bound as one that no value meets, and loses rows.

RETENTION_PROPERTIES = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
_HOURS = re.compile(r"interval \d+ hours")
"""Form in which the hub writes them."""
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
COLUMNS = ("_offset", "_shard", "_edge", "_seq", "_time")
"""The fixed columns with statistics, in addition to the topic levels of the table."""
LEVELS_WITH_STATISTICS_MAX = 32
"""Maximum number of levels with bounds: each is in the table's log twice for every file. Delta's own default is 32
columns, too."""
LEVEL_CHARACTERS_MAX = 64
"""Length of a level's name above which it has no statistics, for the same reason."""


def statistics_columns(levels: Sequence[str], typed: Sequence[str] = ()) -> list[str]:
    """Return the columns with statistics, for a table with these topic levels and typed columns with bounds."""
    short = [name for name in levels if len(name) <= LEVEL_CHARACTERS_MAX]
    return [*COLUMNS, *short[:LEVELS_WITH_STATISTICS_MAX], *typed]


def new_properties(payload: PayloadKind, statistics: Sequence[str], settings: TableSettings) -> dict[str, str]:
    """Return the properties of a new table."""
    said = {} if payload is PayloadKind.BYTES else {PAYLOAD_PROPERTY: payload.label}
    return said | {STATISTICS_PROPERTY: ",".join(statistics)} | _retention(settings)


def changed_properties(now: Mapping[str, str], settings: TableSettings) -> dict[str, str]:
    """Return the properties of a table that the settings want otherwise."""
    # Another form is its owner's word.
    wanted = RETENTION_PROPERTIES if settings.retention_hours is not None else ()
    ours = {name for name in wanted if _HOURS.fullmatch(now.get(name, ""))}
    return {name: value for name, value in _retention(settings).items() if name in ours and now[name] != value}


def _retention(settings: TableSettings) -> dict[str, str]:
    return dict.fromkeys(RETENTION_PROPERTIES, f"interval {settings.retention_hours or RETENTION_HOURS} hours")
