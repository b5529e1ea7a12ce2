"""The last hour and the last day of a node in a few figures, for charts. They are lost when the node ends."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from weft.storage.histogram import Histogram

FIGURES = (
    "records_per_second", "bytes_per_second", "ack_p50_seconds", "ack_p99_seconds", "disk_bytes",
    "waiting_records", "waiting_seconds", "connections",
)  # fmt: skip
"""Names of the figures. A rate is that of the interval before its time, and so are percentiles; the rest are values at
that time."""
RATES = frozenset(("records_per_second", "bytes_per_second"))
HOUR_POINTS_MAX, DAY_POINTS_MAX = 360, 288
SAMPLES_OF_POINT = 30
"""Number of samples that make a point of the day: its rates are their mean, all other figures their maximum."""


class Points:
    """A ring of points, each a time and a value of every figure; NaN where there is none."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._values = array("d")
        self._first = 0

    def add(self, time: float, values: Sequence[float]) -> None:
        """Add a point; the oldest leaves a full ring."""
        row = array("d", (time, *values))
        if len(self._values) < self._length * len(row):
            self._values += row
            return
        self._values[self._first : self._first + len(row)] = row
        self._first = (self._first + len(row)) % len(self._values)

    def view(self) -> dict[str, Any]:
        """Return the times, in seconds since 1970, and the values of each figure; None for a value that is missing."""
        values = self._values[self._first :] + self._values[: self._first]
        width = len(FIGURES) + 1
        return {
            "times": list(values[::width]),
            "figures": {
                name: [None if math.isnan(each) else each for each in values[at::width]]
                for at, name in enumerate(FIGURES, 1)
            },
        }


class History:
    """Both rings. Belongs to the event loop's thread.

    Args:
        interval_s: interval at which ``sample`` is called.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._hour, self._day = Points(HOUR_POINTS_MAX), Points(DAY_POINTS_MAX)
        self._gathered: list[list[float]] = []
        self._before: tuple[float, Mapping[str, int], Histogram] | None = None

    def sample(
        self, now: float, wall_time: float, totals: Mapping[str, int], ack: Histogram, present: Mapping[str, float]
    ) -> None:
        """Add a point.

        Args:
            now: monotonic seconds.
            wall_time: seconds since 1970.
            totals: counters of the rates, by ``FIGURES`` names.
            ack: durations of acknowledgements since the start.
            present: values of the other figures.
        """
        figures = dict(present)
        if self._before is not None:
            then, before, ack_before = self._before
            elapsed = now - then
            if elapsed > 0:
                figures |= {name: (total - before[name]) / elapsed for name, total in totals.items()}
            counts = [mine - theirs for mine, theirs in zip(ack.counts, ack_before.counts, strict=True)]
            figures |= {"ack_p50_seconds": percentile(ack.bounds, counts, 0.5),
                        "ack_p99_seconds": percentile(ack.bounds, counts, 0.99)}  # fmt: skip
        self._before = (now, dict(totals), ack)
        values = [float(figures.get(name, math.nan)) for name in FIGURES]
        self._hour.add(wall_time, values)
        self._gathered.append(values)
        if len(self._gathered) == SAMPLES_OF_POINT:
            columns = zip(*self._gathered, strict=True)
            self._day.add(wall_time, [_joined(name, column) for name, column in zip(FIGURES, columns, strict=True)])
            self._gathered.clear()

    def view(self, *, of_day: bool) -> dict[str, Any]:
        """Return the points of the last hour or of the last day, the oldest first."""
        interval = self._interval_s * (SAMPLES_OF_POINT if of_day else 1)
        return {"interval_seconds": interval, **(self._day if of_day else self._hour).view()}


def percentile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Return a percentile of durations, estimated within its bucket; NaN without durations."""
    wanted, low = sum(counts) * part, 0.0
    if not wanted:
        return math.nan
    for high, count in zip(bounds, counts, strict=False):
        if count and wanted <= count:
            return low + (high - low) * wanted / count
        wanted -= count
        low = high
    return bounds[-1]


def _joined(name: str, values: Sequence[float]) -> float:
    known = [each for each in values if not math.isnan(each)]
    if not known:
        return math.nan
    return sum(known) / len(known) if name in RATES else max(known)
