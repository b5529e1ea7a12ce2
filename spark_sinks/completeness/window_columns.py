"""Columns with the start and the end of the window that holds a time, as a grid has them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from weft.config.functions.window_grid import NEVER_US, Grid, pieces_of

START_COLUMN, END_COLUMN = "window_start", "window_end"
_PIECE, _LOCAL, _BEGAN = "_weft_piece", "_weft_local", "_weft_began"
_GRIDS_MAX = 64


def with_window(frame: DataFrame, grid: Grid, time: str) -> DataFrame:
    """Return rows with ``window_start`` and ``window_end`` of the window that holds a timestamp column.

    A time at a border belongs to the later window; without a time, both are null.
    """
    micros = F.unix_micros(F.col(f"`{time}`"))
    if grid.zone is None:
        start = _floor(micros, grid)
        return _named(frame, start, start + F.lit(grid.every_us))
    # The tables of the zone come from Python, which also reads and closes windows by them: those of Java may be older.
    found = frame.withColumn(_PIECE, F.expr(_piece(grid, f"unix_micros(`{time}`)")))
    found = found.withColumn(_LOCAL, _floor(micros + F.col(f"{_PIECE}.offset"), grid))
    # What the clocks show again after they were set back is in the window that was open then.
    reached = F.col(_LOCAL) <= F.col(f"{_PIECE}.reached")
    began = F.greatest(F.col(_LOCAL) - F.col(f"{_PIECE}.offset"), F.col(f"{_PIECE}.from"))
    found = found.withColumn(_BEGAN, F.when(reached, F.col(f"{_PIECE}.reached_start")).otherwise(began))
    local_end = F.greatest(F.col(_LOCAL), F.col(f"{_PIECE}.reached")) + F.lit(grid.every_us)
    end = local_end - F.col(f"{_PIECE}.offset")
    end = F.when(end <= F.col(f"{_PIECE}.until"), end).otherwise(F.col(f"{_PIECE}.last_end"))
    return _named(found, F.col(_BEGAN), end).drop(_PIECE, _LOCAL, _BEGAN)


def _named(frame: DataFrame, start: Column, end: Column) -> DataFrame:
    frame = frame.withColumn(START_COLUMN, F.timestamp_micros(start))
    return frame.withColumn(END_COLUMN, F.timestamp_micros(end))


def _floor(micros: Column, grid: Grid) -> Column:
    # pmod is never negative: moments before 1970 belong to the window below them.
    return micros - F.pmod(micros - F.lit(grid.offset_us), F.lit(grid.every_us))


def _piece(grid: Grid, micros: str) -> str:
    """Return the expression of the piece of a grid that holds a time."""
    return f"element_at({_table(grid)}, {_choice([piece.from_us for piece in pieces_of(grid)], 1, micros)})"


@lru_cache(_GRIDS_MAX)
def _table(grid: Grid) -> str:
    rows = []
    for piece in pieces_of(grid):
        first = piece.from_us == NEVER_US
        reached = NEVER_US if first else grid.offset_us + piece.reached * grid.every_us
        named = {
            "from": piece.from_us, "offset": piece.offset_us, "reached": reached,
            "reached_start": piece.reached_start_us, "until": piece.until_us, "last_end": piece.last_end_us,
        }  # fmt: skip
        rows.append(f"named_struct({', '.join(f'{name!r}, {value}L' for name, value in named.items())})")
    return f"array({', '.join(rows)})"


def _choice(starts: Sequence[int], first: int, micros: str) -> str:
    """Return the expression of the number of the last start at or before a time: a search by halves."""
    if len(starts) == 1:
        return str(first)
    half = len(starts) // 2
    before, after = _choice(starts[:half], first, micros), _choice(starts[half:], first + half, micros)
    return f"IF({micros} < {starts[half]}L, {before}, {after})"
