"""Points of a window that look like all of its rows."""

from __future__ import annotations

from typing import Any

from weft.edge_node.functions.lttb import lttb
from weft.edge_node.functions.windows.times import SECOND


def downsample(kept: list[list[Any]], at: int, points: int) -> list[list[float]]:
    """Return some points as pairs of time (seconds since 1970) and value, in order of time.

    Args:
        kept: of each row its time in ns, and values.
        at: place of the value in a row.
        points: most points to return.
    """
    found = [(row[0], row[at]) for row in kept if row[at] is not None]
    times, values = [time for time, _ in found], [value for _, value in found]
    return [[times[place] / SECOND, values[place]] for place in lttb(times, values, points)]
