"""A process with a query of event time in shifts of a zone and of sessions, killed with SIGKILL around its commits."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sinks import complete_windows, session
from spark_sinks.completeness import windows
from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.completeness.buffering import Buffering
from tests.spark_sinks.completeness.conftest import MIDNIGHT, STREAM
from tests.spark_sinks.sinks.killed_jobs import Jobs, arm

SHIFTS: dict[str, Any] = {"every": "8h", "offset": "6h", "zone": "Europe/Berlin"}
KINDS = {"shifts": SHIFTS, "runs": SHIFTS | {"gap": "15m"}}
KEYS = {"shifts": ["window_start", "machine"], "runs": ["window_start", "machine", "session_start"]}


def look(spark: SparkSession, store: str, folder: Path) -> None:
    for name, options in KINDS.items():
        complete_windows(
            spark,
            STREAM,
            store=store,
            by=["machine"],
            aggregate={"n": "count(*)", "total": "sum(v)"},
            schema="ts timestamp(ms), v int",
            time={"column": "ts", "late": "6h"},
            sink=DeltaSink(folder / name, keys=KEYS[name], order_by="_log_end"),
            checkpoint=folder / f"state-{name}",
            trigger=None,
            **options,
        ).awaitTermination()


def rows(folder: Path) -> list[tuple[Any, ...]]:
    found = []
    for name, keys in KEYS.items():
        columns = [*keys, "window_end", "n", "total", "_late", "_complete"]
        table = DeltaTable(str(folder / name)).to_pyarrow_table(columns=columns).to_pylist()
        found += sorted((tuple(row[column] for column in columns) for row in table), key=repr)
    return found


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.timeout(3000)
def test_killed_queries_of_event_time_leave_the_tables_of_one_that_was_not_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 30, devices=2, only=["press-1", "press-2"])
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    jobs = Jobs([__name__, fleet.root, str(killed)], killed / "shifts")
    for hour, kill in ((9, "before 2"), (17, "after 2"), (24, "before 3"), (31, "after 3")):
        fleet.until(hour, ["press-1"] if hour == 17 else None)
        assert jobs.run(kill) == -signal.SIGKILL
    shutil.rmtree(killed / "state-shifts")
    fleet.until(45)
    look(spark, fleet.root, killed)
    look(spark, fleet.root, whole)
    assert rows(killed) == rows(whole)
    assert {row[-1] for row in rows(whole)} == {True}


if __name__ == "__main__":
    arm()
    windows.WINDOWS_MAX = 1
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    look(session("local[1]", **conf), sys.argv[1], Path(sys.argv[2]))
