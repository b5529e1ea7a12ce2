"""SIGKILLs of drivers, executors and workers: the tables equal those of a run that nothing interrupted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.spark_sinks.cluster.storm import Storm
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.processes]

KILLS = 8
"""Kills of the storm in CI, half of them at commits. ``./run nightly --jobs spark_storms`` makes storms of 50."""


@pytest.mark.timeout(7200)
def test_tables_equal_those_of_a_run_without_kills(cluster: SparkCluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("WEFT_STORM_SEED", time.time_ns() % 1_000_000))
    kills = int(os.environ.get("WEFT_STORM_KILLS", KILLS))
    print(f"storm of {kills} kills, seed {seed}")
    storm = Storm(cluster, tmp_path, seed)
    storm.run(kills)
    print(f"killed: {dict(storm.kills)}")
    storm.compare()
