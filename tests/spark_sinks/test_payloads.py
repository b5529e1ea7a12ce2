"""Streams that say `payload: json` or `text`: the same columns from the log, from the table and from both."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sinks import read, table
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
from weft.protocols.payloads import PayloadKind, keeps

pytestmark = pytest.mark.spark
Found = list[tuple[str, int, str | None, bytes | None]]
JSON, TEXT, BYTES = PayloadKind.JSON, PayloadKind.TEXT, PayloadKind.BYTES


def mixed(edge: str, seq: int) -> bytes:
    """JSON, text that is none, and bytes that are no text, in turn."""
    return [b'{"edge": "%s", "n": %d}' % (edge.encode(), seq), b"n %d" % seq, b"\xff%d" % seq][seq % 3]


@pytest.fixture
def mixed_hub(hub: Hub) -> Hub:
    hub.kind, hub.payload = JSON, mixed
    return hub


def expected(hub: Hub, kind: PayloadKind = JSON) -> Found:
    found: Found = []
    for edge in EDGES:
        for seq in range(10 * hub.rounds):
            payload = mixed(edge, seq)
            kept = keeps(kind, payload)
            found.append((edge, seq, payload.decode() if kept else None, None if kept else payload))
    return sorted(found, key=lambda row: row[:2])


def found(frame: DataFrame) -> Found:
    rows = frame.select("_edge", "_seq", "payload", "_payload_bytes").collect()
    return sorted(
        ((edge, seq, text, None if rest is None else bytes(rest)) for edge, seq, text, rest in rows),
        key=lambda row: row[:2],
    )


@pytest.mark.parametrize("kind", [JSON, pytest.param(TEXT, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("tiered", "more"),
    [
        pytest.param(0, 2, id="tail only", marks=pytest.mark.slow),
        pytest.param(2, 0, id="table only", marks=pytest.mark.slow),
        pytest.param(2, 1, id="both"),
    ],
)
def test_columns_are_the_same_wherever_a_record_is(
    spark: SparkSession, hub: Hub, tiered: int, more: int, kind: PayloadKind
) -> None:
    hub.kind, hub.payload = kind, mixed
    hub.write(tiered)
    if tiered:
        hub.tier()
    hub.write(more)
    for frame in (read(spark, STREAM, store=hub.root), hub.load(spark)):
        assert found(frame) == expected(hub, kind)
        assert dict(frame.dtypes)["payload"] == "string"
        assert dict(frame.dtypes)["_payload_bytes"] == "binary"


@pytest.mark.slow
def test_spark_opens_the_json(spark: SparkSession, mixed_hub: Hub) -> None:
    mixed_hub.write(2)
    mixed_hub.tier()
    mixed_hub.write(1)
    frame = read(spark, STREAM, store=mixed_hub.root)
    numbers = frame.select(F.get_json_object("payload", "$.n").cast("long").alias("n")).where("n is not null")
    assert sorted(row.n for row in numbers.collect()) == sorted(n for n in range(0, 30, 3) for _ in EDGES)
    assert found(table(spark, STREAM, store=mixed_hub.root)) == [row for row in expected(mixed_hub) if row[1] < 20]


@pytest.mark.slow
def test_the_table_says_what_payloads_are_once_it_is_there(spark: SparkSession, hub: Hub) -> None:
    hub.payload = mixed
    hub.write()
    hub.tier()
    hub.kind = JSON
    hub.write()
    for frame in (read(spark, STREAM, store=hub.root), hub.load(spark)):
        assert dict(frame.dtypes)["payload"] == "binary"
        assert "_payload_bytes" not in frame.columns
        assert frame.count() == 20 * len(EDGES)


@pytest.mark.slow
def test_a_schema_is_held_against_the_stream(spark: SparkSession, mixed_hub: Hub) -> None:
    mixed_hub.write()
    reader = spark.read.format("weft").option("store", mixed_hub.root).option("stream", STREAM)
    assert reader.schema("payload string, _payload_bytes binary").load().count() == 10 * len(EDGES)
    with pytest.raises(PySparkException, match="column payload has the type string, not binary; cast it after"):
        reader.schema("payload binary").load().count()


@pytest.mark.slow
def test_a_streaming_read_goes_on_from_log_to_table(spark: SparkSession, mixed_hub: Hub, tmp_path: Path) -> None:
    def drain() -> None:
        options = {"store": mixed_hub.root, "stream": STREAM}
        frame = spark.readStream.format("weft").options(**options).load()
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "out")
        ).awaitTermination()

    mixed_hub.write()
    drain()
    mixed_hub.write()
    mixed_hub.tier()
    mixed_hub.write()
    drain()
    assert found(spark.read.parquet(str(tmp_path / "out"))) == expected(mixed_hub)
