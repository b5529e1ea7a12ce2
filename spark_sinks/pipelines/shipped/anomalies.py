"""Step of the pipeline *anomalies*: values far from the machine's earlier ones become alerts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.lineage import FROM_COLUMN, FROM_TYPE
from spark_sinks.pipelines.shipped.features import MICROSECONDS, Lineage, Numbers, Times, in_log_order, pasts
from spark_sinks.pipelines.shipped.sessions import EDGE, NEW, POSITION, duration, need, number, rows_with_past
from spark_sinks.pipelines.steps import Context

MAD_TO_DEVIATION = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""
ALERT = ", ".join(
    (
        "_shard int, _offset bigint, _time timestamp, machine string, value double",
        "expected_low double, expected_high double, median double, score double",
        f"records int, key string, payload string, _from {FROM_TYPE}",
    )
)
_COLUMNS = [
    "_shard",
    "_offset",
    "_time",
    "machine",
    "value",
    "expected_low",
    "expected_high",
    "median",
    "score",
    "records",
    "key",
    "payload",
    FROM_COLUMN,
]
_NEEDED = (*POSITION, "_time", EDGE, FROM_COLUMN, "machine", "value")


def find_alerts(
    frame: DataFrame,
    context: Context,
    *,
    history: str = "1d",
    threshold: float = 10.0,
    warm_up: int = 100,
    quiet: str = "6h",
    deviation_min: float = 0.0,
) -> DataFrame:
    """Return one alert for each time that a machine's value leaves its expected range.

    The score of a record is its distance from the median of the machine's records in the ``history`` before it, in
    robust standard deviations (1.4826 times the median absolute deviation). Neither is moved by a few wild values. A
    record with a score beyond ``threshold`` makes an alert, unless another one did in the ``quiet`` before it. A record
    is compared with earlier records in the log of the same edge node and machine, so a late record is judged by its own
    time, and once.

    Args:
        frame: rows with ``machine`` (string) and ``value`` (double), and ``_shard, _offset, _time, _edge, _from``.
        warm_up: minimum number of records in the history; with fewer there are no alerts.
        deviation_min: lower limit of the standard deviation, in the unit of ``value``, for values that hardly move.

    Raises:
        PipelineError: an option is out of its bounds, or a column is missing.
    """
    need(frame, context, _NEEDED)
    past, silence = duration(context, "history", history), duration(context, "quiet", quiet)
    rule = AlertRule(
        _us(past),
        _us(silence),
        number(context, "threshold", threshold, least=1, most=1000),
        int(number(context, "warm_up", warm_up, least=5, most=10_000)),
        number(context, "deviation_min", deviation_min, least=0, most=1e12),
    )
    frame = frame.where(F.col("value").isNotNull() & ~F.isnan("value"))
    rows = rows_with_past(frame.select(*_NEEDED), context, "machine", before=past + silence)
    rows = rows.where(F.col("value").isNotNull() & ~F.isnan("value"))
    rows = rows.withColumn("_time", F.unix_micros("_time")).withColumn("value", F.col("value").cast("double"))

    def alerts(of_one: pd.DataFrame) -> pd.DataFrame:  # Spark counts the arguments: a bound method has one too many.
        return rule.alerts(of_one)

    return rows.groupBy(EDGE, "machine").applyInPandas(alerts, ALERT)


class Judged(NamedTuple):
    """Judgement of one record by its past."""

    places: npt.NDArray[np.intp]
    median: float
    deviation: float
    score: float


class AlertRule(msgspec.Struct, frozen=True):
    """Options of ``find_alerts``, as numbers."""

    history_us: int
    quiet_us: int
    threshold: float
    warm_up: int
    deviation_min: float

    def alerts(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the alerts of one machine's new records. ``_time`` comes in microseconds."""
        rows = in_log_order(rows)
        times, values = rows["_time"].to_numpy(np.int64), rows["value"].to_numpy(np.float64)
        new = rows[NEW].to_numpy(bool)
        judged = {
            at: self.judged(float(values[at]), values[places], places)
            for at, places in pasts(times, self._asked(times, new), self.history_us)
        }
        over = np.zeros(len(rows), bool)
        over[[at for at, found in judged.items() if abs(found.score) > self.threshold]] = True
        alerts = [
            self._alert(rows, at, judged[at])
            for at, earlier in pasts(times, over & new, self.quiet_us)
            if not over[earlier].any()
        ]
        return pd.DataFrame(alerts, columns=_COLUMNS)

    def _asked(self, times: Times, new: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which records need a score: the new ones, and those within ``quiet`` before one of them."""
        asked = new.copy()
        for _, earlier in pasts(times, new, self.quiet_us):
            asked[earlier] = True
        return asked

    def judged(self, value: float, past: Numbers, places: npt.NDArray[np.intp]) -> Judged:
        """Return the judgement of a value by its past; the score is 0 while the past is too short."""
        if len(past) < self.warm_up:
            return Judged(places, 0.0, 0.0, 0.0)
        median = float(np.median(past))
        deviation = max(MAD_TO_DEVIATION * float(np.median(np.abs(past - median))), self.deviation_min)
        # The deviation of a constant value is 0, so it gives no scale: deviation_min is for such values.
        return Judged(places, median, deviation, (value - median) / deviation if deviation > 0 else 0.0)

    def _alert(self, rows: pd.DataFrame, at: int, found: Judged) -> tuple[Any, ...]:
        row = rows.iloc[at]
        reach = self.threshold * found.deviation
        low, high = found.median - reach, found.median + reach
        moment = pd.Timestamp(int(row["_time"]) * 1000, tz="UTC")
        machine, value = str(row["machine"]), float(row["value"])
        alert = {
            "machine": machine,
            "time": moment.isoformat(),
            "value": value,
            "expected_low": low,
            "expected_high": high,
            "score": round(found.score, 2),
        }
        made_of = np.append(found.places, at)
        return (
            int(row["_shard"]),
            int(row["_offset"]),
            moment,
            machine,
            value,
            low,
            high,
            found.median,
            found.score,
            len(found.places),
            f"alerts/{machine}",
            msgspec.json.encode(alert).decode(),
            Lineage(rows[FROM_COLUMN].iloc[made_of]).of(np.arange(len(made_of))),
        )


def _us(span: timedelta) -> int:
    return round(span.total_seconds() * MICROSECONDS)
