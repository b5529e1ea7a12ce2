"""Checkpoints, tables and window states that earlier releases of Spark queries have written: the queries continue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.releases.fabric import TELEMETRY, Fabric
from tests.releases.queries import run_queries
from tests.releases.write import FOLDER, RELEASES, rows, unpack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.processes]


@pytest.mark.parametrize("release", RELEASES)
def test_queries_of_each_release_go_on_with_each_row_once(spark: SparkSession, tmp_path: Path, release: str) -> None:
    unpack(FOLDER / f"{release}.tar.xz", tmp_path)
    telemetry: list[str] = json.loads((FOLDER / f"{release}.json").read_text())["telemetry"]
    table, windows = tmp_path / "lake/rows", tmp_path / "lake/windows"
    files = set(table.glob("*.parquet"))
    fabric = Fabric(tmp_path)
    with fabric.hub(), fabric.edge():
        fabric.publish(TELEMETRY, ['{"temperature": 1.5}'])
        wait_until(lambda: rows(tmp_path) == len(telemetry) + 1)
        run_queries(spark, tmp_path)
    found = DeltaTable(str(table)).to_pyarrow_table().sort_by("_seq")
    assert found["_seq"].to_pylist() == list(range(len(telemetry) + 1))
    assert found["payload"].to_pylist() == [*telemetry, '{"temperature": 1.5}']
    assert files
    assert files <= set(table.glob("*.parquet")), "the table was not begun again"
    batches = [int(path.name) for path in (tmp_path / "checkpoints/rows/commits").iterdir() if path.name.isdigit()]
    assert max(batches) > 0, "the checkpoint was not begun again"
    # The window of the new record may not be due yet.
    counted = sum(DeltaTable(str(windows)).to_pyarrow_table()["records"].to_pylist())
    assert counted in (len(telemetry), len(telemetry) + 1)
