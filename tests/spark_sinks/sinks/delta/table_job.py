"""A script: everything that a stream has goes into two tables, one appended to and one with the newest row per key.

python -m tests.spark_sinks.sinks.delta.table_job STORE FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame

from spark_sinks import session
from spark_sinks.sinks.delta import DeltaSink
from tests.spark_sinks.conftest import STREAM
from tests.spark_sinks.sinks.killed_jobs import arm, master

RECORDS_PER_BATCH = 60


def main(store: str, folder: Path) -> None:
    arm()
    conf = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    spark = session(master(), **conf)
    append = DeltaSink(folder / "rows", store=store, stream=STREAM)
    newest = DeltaSink(folder / "newest", store=store, stream=STREAM, keys="_edge, _key", order_by="_seq")

    def write(frame: DataFrame, batch: int) -> None:
        append(frame, batch)
        newest(frame.select("_shard", "_offset", "_edge", "_key", "_seq"), batch)

    source = spark.readStream.format("weft").option("store", store).option("stream", STREAM)
    source = source.option("max_records_per_trigger", RECORDS_PER_BATCH)
    writer = source.load().writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
