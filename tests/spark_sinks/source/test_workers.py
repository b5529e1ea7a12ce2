"""Traces of broken pipes: kept from the terminal in Spark's processes, and printed everywhere else."""

from __future__ import annotations

import importlib.machinery
import io
import json
import subprocess
import sys
import traceback
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
from spark_sinks.source.workers import keep_broken_pipes_quiet
from tests.spark_sinks.conftest import EDGES, STREAM, Hub, records
from tests.spark_sinks.source.following import Follower, collect


@pytest.mark.parametrize(
    ("main", "error", "is_printed"),
    [
        ("pyspark.daemon", BrokenPipeError(32, "Broken pipe"), False),
        ("pyspark.daemon", ValueError("no number"), True),
        ("pyspark.sql.streaming.python_streaming_source_runner", BrokenPipeError(32, "Broken pipe"), True),
        ("my_script", BrokenPipeError(32, "Broken pipe"), True),
    ],
)
def test_only_broken_pipes_of_workers_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: str, error: Exception, is_printed: bool
) -> None:
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.machinery.ModuleSpec(main, None))
    keep_broken_pipes_quiet()
    keep_broken_pipes_quiet()
    try:
        raise error
    except Exception:
        traceback.print_exc()
    assert bool(capsys.readouterr().err) == is_printed


def test_a_process_that_only_plans_a_read_is_quiet_too() -> None:
    plan = (
        "import sys, traceback, importlib.machinery as m\n"
        "sys.modules['__main__'].__spec__ = m.ModuleSpec('pyspark.daemon', None)\n"
        "import spark_sinks.source.data_source\n"
        "try: raise BrokenPipeError\n"
        "except BrokenPipeError: traceback.print_exc()\n"
    )
    assert subprocess.run([sys.executable, "-c", plan], capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize(
    ("main", "error", "is_printed"),
    [
        ("pyspark.sql.streaming.python_streaming_source_runner", BrokenPipeError(32, "Broken pipe"), False),
        ("pyspark.sql.streaming.python_streaming_source_runner", ValueError("no number"), True),
        ("my_script", BrokenPipeError(32, "Broken pipe"), True),
    ],
)
def test_a_planner_ends_at_a_broken_pipe_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: str, error: Exception, is_printed: bool
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.machinery.ModuleSpec(main, None))
    keep_broken_pipes_quiet()
    keep_broken_pipes_quiet()
    sys.excepthook(type(error), error, None)
    assert bool(capsys.readouterr().err) == is_printed


# --- Rows of small micro-batches, which Spark's planner sends with the plan instead of starting a task in a worker


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
