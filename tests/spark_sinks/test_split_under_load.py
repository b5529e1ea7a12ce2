"""A Spark query and claims of completeness, while a shard of a hub under load splits."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sinks import complete_until, read
from tests.end_to_end.test_hub_processes import make_edge, make_hub
from tests.end_to_end.test_kills import STREAM, Load
from tests.end_to_end.test_split import NAMES
from tests.support import forked

pytestmark = [pytest.mark.spark, pytest.mark.processes]
LOOKS = 8


@pytest.mark.search(turns=4)
@pytest.mark.timeout(600)
def test_a_running_query_goes_on_and_nothing_is_claimed_early(spark: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path)
    edges = [make_edge(tmp_path, name, hub) for name in NAMES]
    loads: list[Load] = []
    claims: list[tuple[datetime, int]] = []
    try:
        for service in (hub, *edges):
            service.start()
        loads = [Load(edge.mqtt_port, options=["--prefix", edge.name, "--devices", "2"]) for edge in edges]
        time.sleep(3.0)
        query = (
            spark.readStream.format("weft")
            .option("store", hub.store)
            .option("stream", STREAM)
            .load()
            .select("_edge", "_seq", "_shard")
            .writeStream.format("parquet")
            .trigger(processingTime="1 second")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "out"))
        )
        for look in range(LOOKS):
            if look == LOOKS // 2:
                forked.run(
                    [sys.executable, "-m", "weft", "hub", "split", str(hub.config_path), "0", "--yes"],
                    stdout=subprocess.PIPE,
                    check=True,
                )
            claims += claim(spark, hub.store)
        for load in loads:
            load.finish()
        total = sum(edge.status()["streams"][STREAM]["durable_end"] for edge in edges)
        deadline = time.monotonic() + 120
        while read(spark, STREAM, store=hub.store).count() < total:
            assert time.monotonic() < deadline
        claims += claim(spark, hub.store)
        query.processAllAvailable()
        assert query.exception() is None
        query.stop()
        final = read(spark, STREAM, store=hub.store)
        rows = [
            (row["_edge"], row["_seq"], row["_shard"]) for row in spark.read.parquet(str(tmp_path / "out")).collect()
        ]
        held = [final.where(F.col("_time") < moment).count() for moment, _ in claims]
    finally:
        for load in loads:
            load.kill()
        for service in (*edges, hub):
            service.stop()
    assert len(rows) == total == len({row[:2] for row in rows}), "each record once"
    shards = Counter(shard for edge, _, shard in rows if edge == NAMES[2])
    assert shards.keys() == {0, 2}, "some records of the edge came before the split, and some after it"
    moments = [moment for moment, _ in claims]
    assert len(moments) > LOOKS // 2
    assert moments == sorted(moments), "a claim was taken back"
    assert held == [count for _, count in claims], "records came later that a claim had covered"


def claim(spark: SparkSession, store: str) -> list[tuple[datetime, int]]:
    """What is claimed to be complete, and how many records of before that moment there are."""
    moment = complete_until(spark, STREAM, store=store).moment
    rows = read(spark, STREAM, store=store)
    return [] if moment is None else [(moment, rows.where(F.col("_time") < moment).count())]
