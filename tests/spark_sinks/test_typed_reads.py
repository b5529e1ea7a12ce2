"""Typed columns of reads: the same from the log, from table files and from both, and over schema changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_sinks import ReadError, read
from spark_sinks.source.data_source import WeftSource
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
from weft.config.payload_schema.model import SCALARS, SchemaField
from weft.protocols.payloads import PayloadKind

pytestmark = pytest.mark.spark
SCHEMA = {
    "format": "json",
    "fields": {
        "temperature": {"type": "float", "unit": "°C", "description": "At the die"},
        "n": {"type": "int", "required": True},
        "rpm": {"type": "array<int>", "from": "motor.rpm"},
    },
}
TYPED = ["temperature", "n", "rpm", "_misfit"]


def reading(edge: str, seq: int) -> bytes:
    """Readings, and in turn what is none: text, bytes that are no text, and numbers as text."""
    if seq % 5 == 3:
        return [b"hello", b"\xff%d" % seq, b'{"n": "%d", "temperature": 1e400}' % seq][seq % 3]
    return json.dumps({"n": seq, "temperature": seq / 2, "motor": {"rpm": [seq, None]}}).encode()


def expected(hub: Hub) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for edge in EDGES:
        for seq in range(10 * hub.rounds):
            if seq % 5 != 3:
                rows.append((edge, seq, seq / 2, seq, [seq, None], None))
            elif seq % 3 == 2:
                misfit = {
                    "n": f'expected a whole number of 64 bits, got "{seq}"',
                    "temperature": "expected a number of 64 bits, got 1E+400",
                }
                rows.append((edge, seq, None, None, None, misfit))
            else:
                rows.append((edge, seq, None, None, None, {"payload": ...}))
    return rows


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    def shown(row: Row) -> tuple[Any, ...]:
        misfit = row["_misfit"]
        return (*row[:5], {"payload": ...} if misfit and misfit.get("payload", "").startswith("it is not") else misfit)

    return sorted((shown(row) for row in frame.select("_edge", "_seq", *TYPED).collect()), key=lambda row: row[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        PayloadKind.JSON,
        pytest.param(PayloadKind.BYTES, marks=pytest.mark.slow),
        pytest.param(PayloadKind.TEXT, marks=pytest.mark.slow),
    ],
)
def test_a_row_is_the_same_wherever_it_is(spark: SparkSession, hub: Hub, kind: PayloadKind) -> None:
    hub.kind, hub.payload = kind, reading
    hub.write(2)
    hub.tier()
    hub.write(1)
    frames = [read(spark, STREAM, store=hub.root, schema=SCHEMA), hub.load(spark, schema=json.dumps(SCHEMA))]
    for frame in frames:
        assert frame.columns[-4:] == TYPED
        assert dict(frame.dtypes)["rpm"] == "array<bigint>"
        assert frame.schema["temperature"].metadata == {"comment": "At the die [°C]"}
        assert found(frame) == sorted(expected(hub), key=lambda row: row[:2])
        assert frame.where("payload is not null or _misfit is not null").count() == 30 * len(EDGES), "no row is lost"
    some = [
        read(spark, STREAM, store=hub.root, schema=SCHEMA, columns=["n", "_seq"]),
        hub.load(spark, schema=json.dumps(SCHEMA), columns="n,_seq"),
    ]
    for frame in some:
        assert frame.where("n is not null and n <> _seq").count() == 0
        assert frame.where("n is null").count() == sum(row[3] is None for row in expected(hub))


def test_the_short_form_and_a_schema_of_columns(spark: SparkSession, hub: Hub) -> None:
    hub.payload = reading
    hub.write()
    reader = spark.read.format("weft").options(store=hub.root, stream=STREAM, schema="temperature double, n bigint")
    frame = reader.schema("_seq bigint, n bigint, _misfit map<string,string>").load()
    assert frame.where("n = _seq").count() == 8 * len(EDGES)
    assert frame.where("_misfit is not null").count() == 2 * len(EDGES)
    with pytest.raises(PySparkException, match="column n has the type bigint, not string; cast it after the read"):
        reader.schema("n string").load().count()


def test_what_is_not_used_is_not_decoded(spark: SparkSession, hub: Hub) -> None:
    hub.payload = reading
    hub.write()
    hub.tier()
    frame = read(spark, STREAM, store=hub.root, schema=SCHEMA)

    def plan(frame: DataFrame) -> str:
        text: str = frame._jdf.queryExecution().executedPlan().toString()
        return text

    assert "ArrowEvalPython" not in plan(frame.groupBy("_edge").count())
    both = plan(frame.select("temperature", "n").where("_time > '2020-01-01'"))
    assert both.count("ArrowEvalPython") == 1
    assert "PushedFilters: [IsNotNull(_time)" in both


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schema": "temperature"}, "schema: expected columns such as `temperature float, unit string`"),
        ({"schema": "fields:\n  a: flot"}, "schema:2: fields.a: expected a type such as float, int, string"),
        (
            {"schema": "machine string"},
            "schema: fields.machine: the stream has a topic level machine. Name the field "
            "otherwise, for example `machine_value`, and set `from: machine`",
        ),
        ({"schema": "a int", "payload_format": "xml"}, "payload_format: expected json, cbor, msgpack; got 'xml'"),
        ({"payload_format": "json"}, "payload_format: there is no schema"),
        ({"schema": json.dumps(SCHEMA), "payload_format": "json"}, "schema: has a format of its own"),
        ({"schema": "a int", "columns": "b"}, "columns: the stream has no b; it has _offset"),
    ],
)
def test_a_wrong_schema_is_refused(hub: Hub, options: dict[str, str], sentence: str) -> None:
    hub.write()
    with pytest.raises(ReadError) as caught:
        WeftSource({"store": hub.root, "stream": STREAM} | options).schema()
    assert sentence in str(caught.value)


def test_a_schema_that_is_neither_text_nor_mapping_is_refused(spark: SparkSession, hub: Hub) -> None:
    wrong: Any = 5
    with pytest.raises(
        ReadError, match="schema: expected a text such as 'temperature float, unit string', or a mapping"
    ):
        read(spark, STREAM, store=hub.root, schema=wrong)


def test_every_type_and_setting_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    words = [*SCALARS, "array<float>", "decimal(10,2)", *(field.encode_name for field in fields(SchemaField))]
    assert [word for word in words if f"`{word}`" not in page] == []


def test_a_running_query_tells_once_of_new_columns(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.write(1, "plant/{line}/+/telemetry")
    source = WeftSource({"store": hub.root, "stream": STREAM, "schema": "machine string"})
    reader: Any = source.streamReader(source.schema())
    start = reader.initialOffset()
    hub.write(1)
    with caplog.at_level(logging.WARNING, "weft.spark"):
        ends = [reader.latestOffset(start, ReadAllAvailable()) for _ in range(3)]
    (reported,) = [record.getMessage() for record in caplog.records]
    assert "stream telemetry has new topic levels: machine." in reported
    # Its field of this name stays what it was.
    batches = [batch for part in reader.partitions(start, ends[-1]) for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 20 * len(EDGES)
    assert all(batch.column("machine").null_count == batch.num_rows for batch in batches)
    narrow = StructType().add("payload", BinaryType()).add("line", StringType())
    with pytest.raises(ReadError, match="the stream has a topic level machine"):
        WeftSource({"store": hub.root, "stream": STREAM, "schema": "machine string"}).streamReader(
            narrow
        ).initialOffset()


class Job:
    """A streaming query that can be started again from its checkpoint with another schema."""

    def __init__(self, spark: SparkSession, hub: Hub, folder: Path) -> None:
        self._spark, self._hub, self._folder = spark, hub, folder
        self.rows: list[dict[str, Any]] = []

    def _keep(self, frame: DataFrame, _batch: int) -> None:
        self.rows += [row.asDict() for row in frame.collect()]

    def drain(self, schema: str, *, grouped: str | None = None) -> None:
        options = {"store": self._hub.root, "stream": STREAM, "schema": schema}
        frame = self._spark.readStream.format("weft").options(**options).load()
        frame = frame.groupBy(grouped).agg(F.count("*").alias("rows")) if grouped else frame
        writer = frame.writeStream.trigger(availableNow=True).outputMode("update" if grouped else "append")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        writer.foreachBatch(self._keep).start().awaitTermination()


@pytest.mark.slow
def test_a_restart_takes_new_columns_and_another_schema(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.payload = reading
    job = Job(spark, hub, tmp_path)
    hub.write(1, "plant/{line}/+/telemetry")
    job.drain("n int")
    assert {"machine", "temperature"}.isdisjoint(job.rows[0])
    job.rows.clear()
    hub.write()
    job.drain("n string, temperature float")
    assert len(job.rows) == 10 * len(EDGES)
    assert {row["machine"] for row in job.rows} == {"m0", "m1"}
    assert {row["temperature"] for row in job.rows if row["temperature"]} == {
        n / 2 for n in range(10, 20) if n % 5 != 3
    }


@pytest.mark.slow
def test_state_of_another_type_is_refused_by_name(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.payload = reading
    job = Job(spark, hub, tmp_path)
    hub.write()
    job.drain("n int, temperature float", grouped="n")
    hub.write()
    job.drain("n int, rpm int", grouped="n")
    hub.write()
    with pytest.raises(PySparkException, match=r"STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE|schema"):
        job.drain("n string", grouped="n")
