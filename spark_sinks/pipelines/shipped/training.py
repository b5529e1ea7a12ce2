"""Train the model of the pipeline *features*: ``python -m spark_sinks.pipelines.shipped.training SERIES MODEL``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from spark_sinks.pipelines.shipped.features import MICROSECONDS, Numbers, Times, table_of, write_model
from weft.config.units import parse_duration

TREES = 200
ROWS_MAX = 10_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Train an isolation forest on a series of normal operation, and write it.

    The series is a CSV file, possibly compressed, with the columns ``timestamp`` and ``value``.
    """
    parser = argparse.ArgumentParser(prog="training", description="Train the model of the pipeline features.")
    parser.add_argument("series", help="CSV file with the columns timestamp and value")
    parser.add_argument("model", help="file to write")
    parser.add_argument("--version", default="1", help="version of the model (default: 1)")
    parser.add_argument("--until", help="use values before this time only, such as 2013-12-09")
    parser.add_argument("--history", default="1h", help="option `history` of the pipeline (default: 1h)")
    parser.add_argument("--warm-up", type=int, default=6, help="option `warm_up` of the pipeline (default: 6)")
    given = parser.parse_args(arguments)
    try:
        history_us = round(parse_duration(given.history) * MICROSECONDS)
        times_us, values = series(given.series, given.until)
        table = table_of(times_us, values, history_us=history_us, warm_up=given.warm_up)
        head = write_model(given.model, trained(table), given.version)
    except (OSError, ValueError) as error:
        print(f"training: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print(f"{given.model}: version {head.version}, {len(table)} rows of {len(head.features)} features")  # noqa: T201
    return 0


def series(path: str, until: str | None) -> tuple[Times, Numbers]:
    """Return the times in microseconds and the values of a CSV file.

    Raises:
        ValueError: it lacks a column, or a value is no number.
    """
    table = pd.read_csv(path, nrows=ROWS_MAX)
    if lost := {"timestamp", "value"} - set(table.columns):
        raise ValueError(f"{path} has no column {', '.join(sorted(lost))}; it has {', '.join(table.columns)}")
    moments = pd.to_datetime(table["timestamp"], utc=True)
    kept = moments < pd.Timestamp(until, tz="UTC") if until is not None else moments.notna()
    times = moments[kept].astype("datetime64[us, UTC]").astype("int64").to_numpy()
    return times, table.loc[kept, "value"].to_numpy(np.float64)


def trained(table: Numbers) -> object:
    """Return an isolation forest fitted to rows of features; the same rows give the same forest.

    Raises:
        ValueError: there are too few rows.
    """
    from sklearn.ensemble import IsolationForest

    if len(table) < TREES:
        raise ValueError(f"{len(table)} rows are too few to train a model; at least {TREES} are needed")
    return IsolationForest(n_estimators=TREES, random_state=0).fit(table)


if __name__ == "__main__":
    sys.exit(main())
