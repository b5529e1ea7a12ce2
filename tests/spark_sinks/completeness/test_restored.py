"""Windows of a store that was restored from a backup."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sinks import ReadError
from tests.spark_sinks.completeness.conftest import EDGES, PER_HOUR, Fleet
from tests.spark_sinks.completeness.test_windows import Table, recomputed, windows

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_state_of_a_log_that_was_restored_and_has_grown_past_it_is_refused(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.hours(0, 2)
    backup, states, delivered = tmp_path / "backup", copy.deepcopy(fleet._writer._states), dict(fleet.delivered)
    shutil.copytree(fleet.root, backup)
    fleet.hours(2, 4)
    table, checkpoint = Table(), tmp_path / "checkpoint"
    windows(spark, fleet, table, checkpoint).awaitTermination()
    assert table.values() == recomputed(spark, fleet)
    shutil.rmtree(fleet.root)
    shutil.copytree(backup, fleet.root)
    fleet._writer._states, fleet.delivered = states, delivered
    # The same records come again, in other chunks, and more of them.
    fleet.deliver(*(fleet.records(edge, 7 * PER_HOUR) for edge in EDGES), hour=7.5)
    fleet.hours(7, 10)
    with pytest.raises(ReadError, match=r"checkpoint: it goes up to .* has another chunk \d\. The hub"):
        windows(spark, fleet, table, checkpoint).awaitTermination()
    again = Table()
    windows(spark, fleet, again, tmp_path / "new").awaitTermination()
    assert again.values() == recomputed(spark, fleet)
