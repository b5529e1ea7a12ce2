"""Makes the tables of a store once, as the shipped pipeline does, in small files that are joined and vacuumed at once.

It prints a line when a Spark job begins, so that the test can kill executors in the middle of it, and kills itself
before or after a commit when the test asks for that.
"""

from __future__ import annotations

import itertools
from typing import Any

from pyspark.sql import SparkSession

from spark_sinks.pipelines.catalog import located
from spark_sinks.pipelines.job import start
from spark_sinks.tables.query import SparkWriter, TablesJob
from tests.spark_sinks.cluster.jobs.start import run
from tests.spark_sinks.sinks.killed_jobs import arm_tables
from weft.storage.table_writer.settings import TableSettings

SETTINGS = TableSettings(compact_files_min=2, checkpoint_versions=3, vacuum_interval_s=0.0, file_bytes_max=256)


def main(spark: SparkSession, reported: Any) -> Any:
    numbers, collect = itertools.count(), SparkWriter._collect

    def told_of(self: SparkWriter, *given: Any) -> Any:
        print(f"batch {next(numbers)}", flush=True)
        return collect(self, *given)

    SparkWriter._collect = told_of  # type: ignore[method-assign, assignment]
    TablesJob.settings = lambda _: SETTINGS  # type: ignore[method-assign, assignment]
    query = start(located("tables", [f"source.store={reported['store']}"]).config, spark, once=True)
    query.awaitTermination()
    return "done"


if __name__ == "__main__":
    arm_tables()
    run(main)
