"""Rows of small micro-batches, which Spark's planner sends with the plan instead of starting a task in a worker."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import read_int, write_with_length
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import python_streaming_source_runner as planner
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from spark_sinks.source import readers, workers
from spark_sinks.source.data_source import WeftSource
from tests.spark_sinks.conftest import EDGES, STREAM, Hub, records
from tests.spark_sinks.source.following import Follower, collect

TYPED = json.dumps({"fields": {"n": {"type": "int", "unit": "bar"}}})


class Planner:
    """Spark's planning process after the source was loaded there, without Java."""

    def __init__(self, hub: Hub, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        monkeypatch.setattr(planner, "partitions_func", planner.partitions_func)
        workers._patch_plans.__wrapped__(planner)
        self.source = WeftSource({"store": hub.root, "stream": STREAM} | options)
        self.schema: Any = self.source.schema()
        self.reader: Any = self.source.streamReader(self.schema)
        self.start = self.reader.initialOffset()

    def rows(self) -> list[tuple[str, int]] | None:
        """Return (edge, seq) of the rows that come with the plan of the next micro-batch; None if there are none."""
        asked, answer = io.BytesIO(), io.BytesIO()
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        for place in (self.start, end):
            write_with_length(json.dumps(place).encode(), asked)
        asked.seek(0)
        planner.partitions_func(self.reader, self.source, self.schema, 10_000, asked, answer)
        answer.seek(0)
        for _ in range(read_int(answer)):
            answer.read(read_int(answer))
        said = read_int(answer)
        if said != planner.NON_EMPTY_PYARROW_RECORD_BATCHES:
            return None
        read_int(answer)
        table = pa.ipc.open_stream(answer).read_all()
        return sorted(zip(table["_edge"].to_pylist(), table["_seq"].to_pylist(), strict=True))


def test_the_rows_of_a_small_plan_come_with_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.write(2)
    assert Planner(hub, monkeypatch).rows() == [(edge, seq) for edge in sorted(EDGES) for seq in range(20)]


def test_tasks_read_what_is_large_or_tiered(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.write(2)
    with monkeypatch.context() as patch:
        patch.setattr(readers, "ROWS_BYTES_MAX", 100)
        assert Planner(hub, monkeypatch).rows() is None
    hub.tier()
    hub.write()
    assert Planner(hub, monkeypatch).rows() is None


def test_a_chunk_that_is_gone_is_left_to_a_task_which_says_so(hub: Hub) -> None:
    hub.write()
    query = Follower(hub)
    start = query.reader.initialOffset()
    plan = query.reader.partitions(start, query.reader.latestOffset(start, query.reader.getDefaultReadLimit()))
    hub.write()
    hub.tier()
    collect(hub)
    assert query.reader.rows_with_plan(plan) is None


@pytest.mark.spark
@pytest.mark.slow
def test_a_query_has_each_row_once_whatever_its_columns(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    """Java compares the columns of rows that come with a plan with those of the query, and refuses others."""
    commented = StructType()
    for name, kind in (("_edge", StringType()), ("_seq", LongType()), ("payload", BinaryType())):
        commented = commented.add(name, kind, metadata={"comment": f"The record's {name}"})
    collated = "_edge string collate UTF8_LCASE, _seq long, payload binary"
    for number, columns in enumerate([None, commented, TYPED, collated]):
        hub.write()
        reader = spark.readStream.format("weft").options(store=hub.root, stream=STREAM)
        if columns is TYPED:
            reader = reader.option("schema", TYPED)
        elif columns is not None:
            reader = reader.schema(columns)
        frame = reader.load().withColumn("_edge", F.col("_edge").cast("string"))
        writer = frame.select("_edge", "_seq", "payload").writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
        query.awaitTermination()
        assert records(spark.read.parquet(str(tmp_path / "out"))) == hub.expected(), number
