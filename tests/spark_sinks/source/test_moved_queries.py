"""``weft spark move`` on the checkpoints of Spark's own queries: docs/how-to/two-regions.md."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.conftest import EDGES, STREAM
from tests.spark_sinks.source.test_moving import Region, regions, rows
from weft.cli import cli

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def move(checkpoint: Path, there: Region, here: Region) -> tuple[int, str]:
    command = ["spark", "move", str(checkpoint), "--from", there.root, "--to", here.root, "--stream", STREAM]
    result = CliRunner().invoke(cli, command)
    return result.exit_code, result.output


def test_rows_and_state_go_on_in_the_other_region(spark: SparkSession, tmp_path: Path) -> None:
    """A table gets each record once, and a count continues, although the other log has another order and lacks some."""
    west, east = regions(tmp_path)
    a, b = EDGES[:2]
    counts: dict[str, int] = {}

    def count(frame: DataFrame, _: int) -> None:
        counts.update({row["_edge"]: row["count"] for row in frame.collect()})

    def drain(region: Region, name: str) -> None:
        sink = DeltaSink(tmp_path / "table", store=region.root, stream=STREAM, name=name)
        plain = spark.readStream.format("weft").options(store=region.root, stream=STREAM, max_records_per_trigger=15)
        run(plain.load(), sink, "rows")
        run(plain.load().groupBy("_edge").count(), count, "counts")

    def run(frame: DataFrame, sink: Any, name: str) -> None:
        writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True).outputMode("update")
        writer.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()

    def table() -> list[tuple[str, int, bytes]]:
        found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["_edge", "_seq", "payload"]).to_pylist()
        return sorted((row["_edge"], row["_seq"], row["payload"]) for row in found)

    west.take((a, 0), (b, 0))
    west.take((a, 1))
    east.take((b, 1), (b, 0))
    drain(west, "west")
    commits = tmp_path / "rows" / "commits"
    last = max((file for file in commits.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    shutil.move(last, tmp_path / "kept")
    status, reported = move(tmp_path / "rows", west, east)
    assert (status, "is not complete" in reported) == (1, True)
    shutil.move(tmp_path / "kept", last)
    for name in ("rows", "counts"):
        assert move(tmp_path / name, west, east)[0] == 0
    drain(east, "east")
    assert table() == rows([(a, 0), (a, 1), (b, 0), (b, 1)])
    east.take((a, 0), (a, 1), (a, 2))
    drain(east, "east")
    assert table() == rows([(a, 0), (a, 1), (a, 2), (b, 0), (b, 1)])
    assert counts == {a: 30, b: 20}
