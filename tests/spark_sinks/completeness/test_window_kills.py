"""A process with a query of complete windows, killed with SIGKILL around the commits of its Delta table."""

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
from tests.spark_sinks.completeness.conftest import PER_HOUR, STREAM, Fleet
from tests.spark_sinks.sinks.killed_jobs import Jobs, arm

AGGREGATE = {"records": "count(*)", "edges": "sort_array(collect_set(_edge))"}
ONLINE = ("press-1", "press-2")
HOURS = 6
WINDOWS_PER_COMMIT = 1


def look(spark: SparkSession, store: str, folder: Path) -> None:
    complete_windows(
        spark,
        STREAM,
        store=store,
        every="1h",
        by=["machine"],
        aggregate=AGGREGATE,
        sink=DeltaSink(folder / "hours", keys=["window_start", "machine"], order_by="_log_end"),
        checkpoint=folder / "state",
        trigger=None,
    ).awaitTermination()


def rows(folder: Path) -> list[tuple[Any, ...]]:
    columns = ("window_start", "machine", "records", "edges", "_complete")
    found = DeltaTable(str(folder / "hours")).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


@pytest.mark.search(turns=4)
@pytest.mark.spark
@pytest.mark.timeout(3000)
def test_a_query_that_is_killed_and_loses_its_checkpoint_leaves_the_table_of_one_that_was_not(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """Meanwhile an edge is offline, and the others change what they call a machine: no row of the old name stays."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    jobs = Jobs([__name__, fleet.root, str(killed)], killed / "hours")

    def run(kill: str) -> None:
        assert jobs.run(kill) == -signal.SIGKILL

    fleet.hours(0, 2)
    fleet.hours(2, 4, ONLINE)
    run("before 2")
    assert {row[1] for row in rows(killed)} == {"m0", "m1"}
    assert (killed / "state").is_dir(), "killed between two commits of a step"
    fleet.topic = "plant/{machine}/{line}/telemetry"
    fleet.hours(4, HOURS, ONLINE)
    run("after 2")
    assert {row[1] for row in rows(killed)} > {"a"}, "the rows are there, and the state is not"
    shutil.rmtree(killed / "state")
    fleet.deliver(fleet.records("paint-1", HOURS * PER_HOUR), hour=HOURS)
    look(spark, fleet.root, killed)
    look(spark, fleet.root, whole)
    assert rows(killed) == rows(whole)
    assert [row[1:3] + row[4:] for row in rows(killed)] == [("a", 3 * PER_HOUR, True)] * HOURS


if __name__ == "__main__":
    arm()
    windows.WINDOWS_MAX = WINDOWS_PER_COMMIT
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    look(session("local[1]", **conf), sys.argv[1], Path(sys.argv[2]))
