"""Streaming reads: limits, restarts, and checkpoints that outlive the move from chunks to table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark_sinks.conftest import EDGES, STREAM, Hub, records
from tests.spark_sinks.source.following import offsets

pytestmark = pytest.mark.spark


class Job:
    """A streaming query that appends what it reads to Parquet files, and can be run again from its checkpoint."""

    def __init__(self, spark: SparkSession, hub: Hub, folder: Path) -> None:
        self._spark, self._hub, self._folder = spark, hub, folder

    def drain(self, **options: object) -> list[dict[str, Any]]:
        """Read what is there; the progress of every micro-batch."""
        query = self.start(**options)
        query.awaitTermination()
        progress = [json.loads(p.json) for p in query.recentProgress]
        return [p for p in progress if p["numInputRows"]]

    def start(self, **options: object) -> StreamingQuery:
        named = {"store": self._hub.root, "stream": STREAM, **options}
        frame = self._spark.readStream.format("weft").options(**named).load()
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start(str(self._folder / "out"))

    def output(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "out"))


@pytest.fixture
def job(spark: SparkSession, hub: Hub, tmp_path: Path) -> Job:
    return Job(spark, hub, tmp_path / "job")


@pytest.mark.slow
def test_a_checkpoint_stays_valid_when_chunks_become_table_rows(hub: Hub, job: Job) -> None:
    hub.write(2)
    job.drain()
    hub.write(2)
    hub.tier()
    hub.write(1)
    job.drain()
    assert records(job.output()) == hub.expected()
    hub.tier()
    assert job.drain() == []
    assert records(job.output()) == hub.expected()


@pytest.mark.slow
def test_a_checkpoint_stays_valid_when_the_store_moves(hub: Hub, job: Job) -> None:
    hub.write(2)
    hub.tier()
    hub.write(1)
    before = f"{hub.root}-before"
    shutil.copytree(hub.root, before)
    job.drain(store=before)
    shutil.rmtree(before)
    hub.write(2)
    hub.tier()
    job.drain()
    assert records(job.output()) == hub.expected()


@pytest.mark.slow
def test_an_unfinished_batch_is_read_again_from_the_table(hub: Hub, job: Job, tmp_path: Path) -> None:
    """The offsets of a batch that a crash cut short are in the checkpoint; by the restart the rows were tiered."""
    hub.write(3)
    job.drain()
    commits = tmp_path / "job" / "checkpoint" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    metadata = tmp_path / "job" / "out" / "_spark_metadata"
    for path in (metadata / last.name, metadata / f".{last.name}.crc"):
        path.unlink(missing_ok=True)
    hub.tier()
    job.drain()
    assert records(job.output()) == hub.expected()


@pytest.mark.slow
def test_a_rate_limit_shares_the_batch_among_shards(hub: Hub, job: Job) -> None:
    hub.write(3)
    total = 3 * 10 * len(EDGES)
    batches = job.drain(max_records_per_trigger=50)
    assert [progress["numInputRows"] for progress in batches] == [50, 50, total - 100]
    assert records(job.output()) == hub.expected()
    (source,) = batches[-1]["sources"]
    assert offsets(source["endOffset"]) == hub.heads(), "the checkpoint has the log's own offsets"


@pytest.mark.slow
def test_a_query_that_starts_at_the_latest_reads_only_what_comes_after(hub: Hub, job: Job) -> None:
    hub.write(2)
    assert job.drain(starting="latest") == []
    hub.write(1)
    job.drain(starting="latest")
    assert records(job.output()) == hub.expected(range(2, 3))


def test_a_running_query_follows_the_log(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.write()
    frame = spark.readStream.format("weft").options(store=hub.root, stream=STREAM).load()
    writer = frame.writeStream.format("memory").queryName("follow").trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        hub.write()
        query.processAllAvailable()
        hub.tier()
        hub.write()
        query.processAllAvailable()
        assert records(spark.table("follow")) == hub.expected()
    finally:
        query.stop()


@pytest.mark.slow
def test_the_sentence_of_a_refusal_comes_last(hub: Hub, job: Job) -> None:
    hub.write()
    with pytest.raises(
        PySparkException, match=r"a streaming read has no end; use \.trigger\(availableNow=True\)"
    ) as caught:
        job.drain(ending="latest")
    assert "During handling of the above exception" not in str(caught.value)
