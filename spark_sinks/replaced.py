"""The part of a table that a batch replaces as a whole: an argument from queries of windows to sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame


# Rows go in the commit that brings the new ones: after a delete and then an insert, a reader between the two versions
# would see hours that are missing. Partitions by window would be a file for each hour, and PostgreSQL has none.
@dataclass(frozen=True, slots=True)
class Replaced:
    """The part of a table for which a batch brings all rows.

    A row with a time in one of the ranges and a key that the batch lacks is removed in the batch's commit. A batch
    without rows empties the ranges.
    """

    column: str
    """Timestamp column that is compared with the ranges."""
    ranges_us: tuple[tuple[int, int], ...]
    """Half-open ranges of microseconds since 1970, ascending, never adjacent."""
    newest_by: str
    """Column of whole numbers; a row with a higher one is newer than the batch."""
    newest: int
    """The batch's value there: rows of the table with a higher one remain."""
    continues: bool = False
    """True when earlier batches wrote rows: a missing table has lost them, so the sink makes no new one."""


@runtime_checkable
class ReplacesRanges(Protocol):
    """Sink that can remove, in the commit of a batch, rows that the batch no longer has."""

    def replace(self, frame: DataFrame, batch_id: int, replaced: Replaced) -> None:
        """Upsert the rows and remove the rows that they replace, atomically.

        Raises:
            SinkError: as for a batch, or the rows lack a column that ``replaced`` names.
        """
