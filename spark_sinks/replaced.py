"""The part of a table that a batch replaces as a whole, as queries of windows tell it to sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Replaced:
    """The part of a table of which a batch brings all rows.

    A row that has a time in one of the ranges, and a key that the batch lacks, is removed together with the batch's
    commit. A batch without rows empties the ranges.
    """

    column: str
    """Timestamp column that decides."""
    ranges_us: tuple[tuple[int, int], ...]
    """Half-open ranges of microseconds since 1970, ascending, none next to another."""
    newest_by: str
    """Column of whole numbers by which a row is newer than the batch."""
    newest: int
    """The batch's value there: rows of the table with a higher one stay."""
    continues: bool = False
    """True when earlier batches wrote rows: a table that is not there has lost them, so none is made."""


@runtime_checkable
class ReplacesRanges(Protocol):
    """Sink that can remove, in the commit of a batch, rows that the batch no longer has."""

    def replace(self, frame: DataFrame, batch_id: int, replaced: Replaced) -> None:
        """Upsert the rows and remove what they replace: all of it, or nothing.

        Raises:
            SinkError: as for a batch, or the rows lack a column that ``replaced`` names.
        """
