"""Numbers of the past of each record of one machine. The past consists of earlier records in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Numbers = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
PAST_MAX = 10_000
"""Maximum number of records of one past; beyond it, only the latest in the log count."""
MICROSECONDS = 1_000_000


def in_log_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one machine's rows in the order of the log. All of them are in one shard."""
    return rows.sort_values("_offset", kind="stable", ignore_index=True)


def pasts(times_us: Times, wanted: npt.NDArray[np.bool_], span_us: int) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield (place of a record, places of its past): records before it in the log, at most ``span_us`` older.

    A record with a later time is not in the past, even if it comes earlier in the log: the edge's clock was set, or the
    record is late.

    Args:
        times_us: times of one machine's records in microseconds, in the order of the log.
        wanted: whether the past of a record is wanted.
    """
    is_sorted = bool(np.all(np.diff(times_us) >= 0))
    for at in np.flatnonzero(wanted):
        low = times_us[at] - span_us
        if is_sorted:
            found = np.arange(np.searchsorted(times_us[:at], low, "left"), at)
        else:
            before = times_us[:at]
            found = np.flatnonzero((before >= low) & (before <= times_us[at]))
        yield int(at), found[-PAST_MAX:]


class Lineage:
    """The column ``_from`` of rows that are made of some rows of a source: one range for each lane.

    The parts of each lane are laid out in arrays once, so that a row costs a few sums over its past, and no loop.

    Args:
        sources: the ``_from`` of each row of the source, in the order of the log.
    """

    def __init__(self, sources: Iterable[Any]) -> None:
        lanes: dict[tuple[str, str], list[tuple[int, int, int, int]]] = {}
        for place, parts in enumerate(sources):
            for part in parts if parts is not None else ():
                lanes.setdefault((part["edge"], part["log"]), []).append(
                    (place, part["first"], part["last"], part["count"])
                )
        self._lanes = [(lane, *np.array(lanes[lane], np.int64).T.copy()) for lane in sorted(lanes)]

    def of(self, places: npt.NDArray[np.intp]) -> list[dict[str, Any]]:
        """Return the ranges of some rows.

        Args:
            places: places of the rows in the source, ascending.
        """
        found = []
        low, high = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
        has_all = len(places) == high - low + 1
        for (edge, log), at, first, last, count in self._lanes:
            part = slice(*np.searchsorted(at, (low, high + 1)))
            chosen = part if has_all else part.start + np.flatnonzero(np.isin(at[part], places))
            if len(at[chosen]):
                found.append({
                    "edge": edge, "log": log, "first": int(first[chosen].min()), "last": int(last[chosen].max()),
                    "count": int(count[chosen].sum()),
                })  # fmt: skip
        return found
