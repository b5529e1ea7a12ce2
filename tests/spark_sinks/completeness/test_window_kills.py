"""A process with a query of complete windows, killed with SIGKILL around the commit of its Delta table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_sinks import complete_windows, session
from spark_sinks.completeness.window_store import _StateFile
from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.completeness.conftest import PER_HOUR, STREAM, Fleet

AGGREGATE = {"records": "count(*)", "edges": "sort_array(collect_set(_edge))"}
FAULTS = ("before the commit", "after the commit", "before the commit", "after the state")
KILLED = -signal.SIGKILL


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(DeltaSink):
    """A sink whose process is killed before or after it has committed."""

    fault = ""

    def __call__(self, frame: Any, batch_id: int) -> None:
        if self.fault == "before the commit":
            kill()
        super().__call__(frame, batch_id)
        if self.fault == "after the commit":
            kill()


def look(spark: SparkSession, store: str, folder: Path, sink: DeltaSink) -> None:
    complete_windows(
        spark, STREAM, store=store, every="1h", by=["machine"], aggregate=AGGREGATE, sink=sink,
        checkpoint=folder / "state", trigger=None,
    ).awaitTermination()  # fmt: skip


def delta_sink(folder: Path) -> Dying:
    return Dying(folder / "hours", keys=["window_start", "machine"], order_by="_log_end")


def main(store: str, folder: str, fault: str) -> None:
    sink = delta_sink(Path(folder))
    sink.fault = fault
    if fault == "after the state":
        save = _StateFile.save

        def last(self: _StateFile, state: str) -> None:
            save(self, state)
            kill()

        _StateFile.save = last  # type: ignore[method-assign]
    look(session("local[1]"), store, Path(folder), sink)


def rows(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    from deltalake import DeltaTable

    files = DeltaTable(str(folder / "hours")).file_uris()
    found = spark.read.parquet(*files).collect()
    return sorted((row.window_start, row.machine, row.records, row.edges, row._complete) for row in found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_query_that_is_killed_and_loses_its_checkpoint_leaves_the_same_table(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for hour, fault in enumerate(FAULTS, 2):
        fleet.hours(
            2 * hour - 4, 2 * hour - 2, ["press-1", "press-2"] if hour > 2 else ["press-1", "press-2", "paint-1"]
        )
        command = [sys.executable, "-m", __name__, fleet.root, str(killed), fault]
        # What a killed JVM leaves goes with this folder. Its name is short: it becomes part of a socket's.
        with tempfile.TemporaryDirectory(prefix="w") as temporary:
            environment = {**os.environ, "TMPDIR": temporary}
            assert subprocess.run(command, check=False, timeout=900, env=environment).returncode == KILLED, fault
    shutil.rmtree(killed / "state")
    fleet.deliver(fleet.records("paint-1", fleet.delivered["press-1"]), hour=2 * len(FAULTS) + 1)
    assert fleet.delivered["paint-1"] == 2 * len(FAULTS) * PER_HOUR
    look(spark, fleet.root, killed, delta_sink(killed))
    look(spark, fleet.root, whole, delta_sink(whole))
    assert rows(spark, killed) == rows(spark, whole)
    assert len(rows(spark, killed)) == 2 * 2 * len(FAULTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
