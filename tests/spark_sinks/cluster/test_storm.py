"""SIGKILLs of drivers, executors and workers: the tables equal those of a run that nothing interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_sinks.cluster.storm import Storm
from tests.support.slices import SLICE
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search, pytest.mark.processes]

KILLS = SLICE.amount(ci=8, night=50)
"""Half of them are at commits."""


@pytest.mark.timeout(7200)
def test_tables_equal_those_of_a_run_without_kills(cluster: SparkCluster, tmp_path: Path) -> None:
    storm = Storm(cluster, tmp_path, SLICE.seed)
    storm.run(KILLS)
    print(f"killed: {dict(storm.kills)}")
    storm.compare()
