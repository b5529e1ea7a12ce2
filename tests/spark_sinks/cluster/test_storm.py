"""SIGKILLs of drivers, executors and workers: the tables equal those of a run that nothing interrupted, and the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_sinks.cluster.storm import Storm, TablesStorm
from tests.support.slices import SLICE
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.search(turns=4), pytest.mark.processes]

KILLS = {Storm: SLICE.amount(ci=6, night=40), TablesStorm: SLICE.amount(ci=3, night=20)}
"""Half of them are at commits."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KILLS)
def test_tables_equal_those_of_a_run_without_kills(cluster: SparkCluster, tmp_path: Path, kind: type[Storm]) -> None:
    storm = kind(cluster, tmp_path, SLICE.seed)
    storm.run(KILLS[kind])
    print(f"killed: {dict(storm.kills)}")
    storm.compare()
