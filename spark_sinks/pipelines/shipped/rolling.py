"""Numbers of the past of each record of one machine. The past consists of earlier records in the log."""

from __future__ import annotations

from collections.abc import Iterator
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


def lineage(rows: pd.DataFrame, places: npt.NDArray[np.intp]) -> list[dict[str, Any]]:
    """Return the column ``_from`` of a row made of some rows of a source: one range for each lane."""
    lanes: dict[tuple[str, str], list[int]] = {}
    for each in rows["_from"].iloc[places]:
        for part in each if each is not None else ():
            lane = (part["edge"], part["log"])
            held = lanes.setdefault(lane, [part["first"], part["last"], 0])
            held[:] = [min(held[0], part["first"]), max(held[1], part["last"]), held[2] + part["count"]]
    return [
        {"edge": edge, "log": log, "first": first, "last": last, "count": count}
        for (edge, log), (first, last, count) in sorted(lanes.items())
    ]
