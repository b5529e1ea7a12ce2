"""Step of the pipeline *features*: rolling features of each record's machine."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sinks.lineage.columns import FROM_COLUMN, FROM_TYPE
from spark_sinks.pipelines.context import Context
from spark_sinks.pipelines.shipped.past import EDGE, NEW, POSITION, duration, need, number, rows_with_past
from spark_sinks.pipelines.shipped.rolling import MICROSECONDS, Lineage, Numbers, Times, in_log_order, pasts

FEATURES_VERSION = "1"
"""Version of the features. Models name the version of their training; raise it with each change of a feature."""
FEATURES = ("value", "mean", "deviation", "lowest", "highest", "slope_per_h", "last_step")
"""Input columns of a model, in this order."""
_NEEDED = (*POSITION, "_time", EDGE, FROM_COLUMN, "machine", "value")
_SCHEMA = (
    "_shard int, _offset bigint, _edge string, _time timestamp, machine string, "
    + ", ".join(f"{name} double" for name in FEATURES)
    + f", records int, features_version string, _from {FROM_TYPE}"
)
_COLUMNS = ["_shard", "_offset", "_edge", "_time", "machine", *FEATURES, "records", "features_version", FROM_COLUMN]


def rolling_features(frame: DataFrame, context: Context, *, history: str = "1h", warm_up: int = 6) -> DataFrame:
    """Return each record with features of its machine's last ``history``, the record included.

    Features are computed from earlier records in the log of the same edge node and machine, so later records never
    change a row. They are null while there are fewer than ``warm_up`` records.

    Args:
        frame: rows with ``machine`` (string) and ``value`` (double), and ``_shard, _offset, _time, _edge, _from``.

    Raises:
        PipelineError: an option is out of its bounds, or a column is missing.
    """
    need(frame, context, _NEEDED)
    past = duration(context, "history", history)
    least = int(number(context, "warm_up", warm_up, least=2, most=10_000))
    frame = frame.where(F.col("value").isNotNull() & ~F.isnan("value"))
    rows = rows_with_past(frame.select(*_NEEDED), context, "machine", before=past)
    rows = rows.where(F.col("value").isNotNull() & ~F.isnan("value"))
    rows = rows.withColumn("_time", F.unix_micros("_time")).withColumn("value", F.col("value").cast("double"))
    rolling = Rolling(round(past.total_seconds() * MICROSECONDS), least)

    def features(of_one: pd.DataFrame) -> pd.DataFrame:  # Spark counts the arguments: a bound method has one too many.
        return rolling.features(of_one)

    return rows.groupBy(EDGE, "machine").applyInPandas(features, _SCHEMA)


class Rolling(msgspec.Struct, frozen=True):
    """Options of ``rolling_features``, as numbers."""

    history_us: int
    warm_up: int

    def features(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the features of one machine's new records. ``_time`` comes in microseconds."""
        rows = in_log_order(rows)
        times, values = rows["_time"].to_numpy(np.int64), rows["value"].to_numpy(np.float64)
        shards, offsets, edges, machines = (rows[name].tolist() for name in (*POSITION, EDGE, "machine"))
        lineage = Lineage(rows[FROM_COLUMN])
        made = []
        for at, earlier in pasts(times, rows[NEW].to_numpy(bool), self.history_us):
            used = np.append(earlier, at)
            moment = pd.Timestamp(int(times[at]) * 1000, tz="UTC")
            numbers = _numbers(times[used], values[used]) if len(used) >= self.warm_up else (values[at], *[None] * 6)
            made.append((
                int(shards[at]), int(offsets[at]), edges[at], moment, machines[at], *numbers, len(used),
                FEATURES_VERSION, lineage.of(used),
            ))  # fmt: skip
        return pd.DataFrame(made, columns=_COLUMNS).astype(dict.fromkeys(FEATURES, "float64"))


def table_of(times_us: Times, values: Numbers, *, history_us: int, warm_up: int) -> Numbers:
    """Return the features of a series for training: a row of ``FEATURES`` for each value with a full history."""
    wanted = np.ones(len(values), bool)
    used = [np.append(earlier, at) for at, earlier in pasts(times_us, wanted, history_us)]
    found = [_numbers(times_us[each], values[each]) for each in used if len(each) >= warm_up]
    return np.array(found, np.float64).reshape(-1, len(FEATURES))


def _numbers(times_us: Times, values: Numbers) -> tuple[float, ...]:
    """Return the features of the last of some records. Training and scoring both use this function."""
    hours = (times_us - times_us[-1]) / (3600 * MICROSECONDS)
    centred = hours - hours.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (values - values.mean())) / spread if spread > 0 else 0.0
    return (
        float(values[-1]), float(values.mean()), float(values.std(ddof=1)), float(values.min()), float(values.max()),
        slope, float(values[-1] - values[-2]),
    )  # fmt: skip
