"""``read`` and ``table``: history and tail as one DataFrame, from one consistent snapshot."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_sinks import ReadError, read, register, table
from spark_sinks.source.data_source import WeftSource
from tests.cloud_hub.tables.drift import COLUMNS, DRIFTS, shown
from tests.cloud_hub.tables.drift import SCHEMA as DRIFT_SCHEMA
from tests.cloud_hub.tables.drift import expected as drift_expected
from tests.spark_sinks.conftest import EDGES, START, STREAM, Hub, records
from tests.spark_sinks.source.test_hub import Serving
from tests.spark_sinks.test_views import declare
from tests.storage.object_store.buckets import S3Endpoint, bucket_server, s3_endpoint
from weft.config.payload_schema.model import SCALARS, SchemaField
from weft.protocols.payloads import PayloadKind, keeps

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("tiered", "more"), [(0, 4), (4, 0), (3, 2)], ids=["tail only", "table only", "both"])
def test_history_and_tail_are_one(spark: SparkSession, hub: Hub, tiered: int, more: int) -> None:
    hub.write(tiered)
    if tiered:
        hub.tier()
    hub.write(more)
    assert records(read(spark, STREAM, store=hub.root)) == hub.expected()


def test_a_stream_without_a_tail_is_planned_as_plain_parquet(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    ours, theirs = read(spark, STREAM, store=hub.root), table(spark, STREAM, store=hub.root)

    def plan(frame: DataFrame) -> str:
        return re.sub(r"#\d+", "", frame._jdf.queryExecution().analyzed().toString())

    assert plan(ours) == plan(theirs)
    assert "Relation" in plan(ours)
    assert "Project" not in plan(ours)


@pytest.mark.slow
def test_files_without_and_with_numbers_of_columns_are_read_together(
    spark: SparkSession, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:  # releases before had none
        earlier.setattr("weft.storage.table_writer.parquet_file.with_field_ids", lambda schema: schema)
        hub.write(1)
        hub.tier()
    hub.write(1)
    hub.tier()
    for frame in (read(spark, STREAM, store=hub.root), hub.load(spark)):
        assert records(frame) == hub.expected()


@pytest.mark.slow
def test_it_is_what_the_source_reads(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    hub.write(1)
    ours = read(spark, STREAM, store=hub.root)
    theirs = hub.load(spark)
    assert ours.columns == theirs.columns
    order = ["_shard", "_offset"]
    assert ours.orderBy(*order).collect() == theirs.orderBy(*order).collect()


def test_a_table_step_between_read_and_use_makes_no_double_and_no_hole(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    hub.write(2)
    frame = read(spark, STREAM, store=hub.root)
    hub.tier()
    hub.write(1)
    assert records(frame) == hub.expected(range(4))


@pytest.mark.slow
def test_levels_that_are_named_later_are_null_before(spark: SparkSession, hub: Hub) -> None:
    hub.write(1, "plant/{line}/+/telemetry")
    hub.tier()
    hub.write(1)
    ours, theirs = read(spark, STREAM, store=hub.root), hub.load(spark)
    for frame in (ours, theirs):
        assert frame.where("machine is null").count() == 10 * len(EDGES)
        assert frame.where("line is null").count() == 0
        assert records(frame) == hub.expected()
    assert ours.columns == theirs.columns
    hub.tier()
    assert read(spark, STREAM, store=hub.root).where("machine is null").count() == 10 * len(EDGES)
    assert records(hub.load(spark)) == hub.expected()


@pytest.mark.slow
def test_since_edges_and_columns(spark: SparkSession, hub: Hub) -> None:
    hub.write(3)
    hub.tier()
    hub.write(3)
    since = datetime.fromtimestamp(START / 10**9 + 1.5, UTC)
    frame = read(spark, STREAM, store=hub.root, since=since, edges=["press-2"], columns=["payload", "_seq", "_edge"])
    assert frame.columns == ["payload", "_seq", "_edge"]
    assert records(frame) == [row for row in hub.expected() if row[0] == "press-2" and row[1] >= 15]
    texts = read(
        spark, STREAM, store=Path(hub.root), since=since.isoformat(), edges="press-2", columns="payload, _seq, _edge"
    )
    assert texts.columns == frame.columns
    assert records(texts) == records(frame)


def test_since_skips_files_that_end_before_it(spark: SparkSession, hub: Hub) -> None:
    for _ in range(4):
        hub.write()
        hub.tier()
    whole = read(spark, STREAM, store=hub.root)
    late = read(spark, STREAM, store=hub.root, since=datetime.fromtimestamp(START // 10**9 + 3, UTC))
    assert 0 < len(late.inputFiles()) < len(whole.inputFiles())
    assert records(late) == hub.expected(range(3, 4))


@pytest.mark.slow
def test_the_table_alone_and_at_an_earlier_version(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)
    with pytest.raises(ReadError, match="has no table yet"):
        table(spark, STREAM, store=hub.root)
    hub.tier()
    earlier = len(hub.expected())
    hub.write(1)
    assert table(spark, STREAM, store=hub.root).count() == earlier
    hub.tier()
    assert records(table(spark, STREAM, store=hub.root)) == hub.expected()
    assert table(spark, STREAM, store=hub.root, version=0).count() < 2 * earlier
    with pytest.raises(ReadError, match="version: the table of telemetry has none 99; its newest is"):
        table(spark, STREAM, store=hub.root, version=99)
    with pytest.raises(ReadError, match="has no stream 'telemetri'"):
        table(spark, "telemetri", store=hub.root)


def test_a_stream_without_a_record_is_empty(spark: SparkSession, hub: Hub) -> None:
    hub.announce()
    for frame in (read(spark, STREAM, store=hub.root), hub.load(spark)):
        assert frame.columns[9:11] == ["line", "machine"]
        assert frame.count() == 0
    with pytest.raises(ReadError, match="has no table yet: the hub makes it for the first record"):
        table(spark, STREAM, store=hub.root)


@pytest.mark.slow
def test_spellings_of_a_level_that_differ_in_case_are_one_column(spark: SparkSession, hub: Hub) -> None:
    hub.write(1, "plant/{LINE}/+/telemetry", [EDGES[-1]])
    hub.tier()
    hub.write(1, "plant/{line}/+/telemetry")
    frame = read(spark, STREAM, store=hub.root)
    assert frame.where("line is null").count() == 0


def test_errors_say_what_to_do(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    with pytest.raises(ReadError, match="has no stream 'telemetri'"):
        read(spark, "telemetri", store=hub.root)
    with pytest.raises(ReadError, match="the stream has no colour"):
        read(spark, STREAM, store=hub.root, columns=["colour"])
    with pytest.raises(ReadError, match="columns: expected one name or more"):
        read(spark, STREAM, store=hub.root, columns=[])
    with pytest.raises(ReadError, match=r"since: expected a time such as .*Z; got 'latest'"):
        read(spark, STREAM, store=hub.root, since="latest")
    with pytest.raises(ReadError, match="the store holds no hub"):
        read(spark, STREAM, store="/nowhere/at/all")


async def test_it_works_where_an_event_loop_runs(spark: SparkSession, hub: Hub) -> None:
    """As in a notebook."""
    import asyncio

    await asyncio.to_thread(hub.write)
    assert read(spark, STREAM, store=hub.root).count() == 10 * len(EDGES)


@pytest.mark.parametrize(
    "tiered", [0, 3, pytest.param(6, marks=pytest.mark.slow)], ids=["tail only", "both", "table only"]
)
def test_offsets_bound_a_read_whatever_was_tiered(spark: SparkSession, hub: Hub, tiered: int) -> None:
    hub.write(2)
    start = {int(shard): offset for shard, offset in hub.heads().items()}
    hub.write(1)
    hub.tier() if tiered else None
    hub.write(1)
    end = {int(shard): offset for shard, offset in hub.heads().items()}
    hub.write(2)
    hub.tier() if tiered == 6 else None
    assert records(read(spark, STREAM, store=hub.root, ending=end)) == hub.expected(range(4))
    assert records(read(spark, STREAM, store=hub.root, starting=start, ending=end)) == hub.expected(range(2, 4))
    shard = next(shard for shard, offset in end.items() if offset)
    of_one = read(spark, STREAM, store=hub.root, ending={shard: 5})
    assert of_one.select("_shard", "_offset").orderBy("_offset").collect() == [(shard, at) for at in range(5)]


def test_rows_are_selected_alike_from_chunks_and_from_table_files(spark: SparkSession, hub: Hub) -> None:
    """By each way that a row can come: Spark's Parquet reader, our own of table files, and chunks."""
    since, until = (datetime.fromtimestamp(START / 10**9 + at, UTC) for at in (0.5, 1.3))
    options: dict[str, Any] = {"since": since, "until": until, "edges": ["press-2"], "keys": ["plant/+/m1/#"]}
    texts = {"since": since.isoformat(), "until": until.isoformat(), "edges": "press-2", "keys": "plant/+/m1/#"}
    hub.write(3)
    wanted = [row for row in hub.expected() if row[0] == "press-2" and 5 <= row[1] < 13 and row[1] % 2]
    for _ in range(2):
        assert records(read(spark, STREAM, store=hub.root, **options)) == wanted
        assert records(hub.load(spark, **texts)) == wanted
        hub.tier()


# --- Typed columns of reads: the same from the log, from table files and from both, and over schema changes


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


# --- Streams that say `payload: json` or `text`: the same columns from the log, from the table and from both


Found = list[tuple[str, int, str | None, bytes | None]]
JSON, TEXT, BYTES = PayloadKind.JSON, PayloadKind.TEXT, PayloadKind.BYTES


def mixed(edge: str, seq: int) -> bytes:
    """JSON, text that is none, and bytes that are no text, in turn."""
    return [b'{"edge": "%s", "n": %d}' % (edge.encode(), seq), b"n %d" % seq, b"\xff%d" % seq][seq % 3]


@pytest.fixture
def mixed_hub(hub: Hub) -> Hub:
    hub.kind, hub.payload = JSON, mixed
    return hub


def payloads_expected(hub: Hub, kind: PayloadKind = JSON) -> Found:
    found: Found = []
    for edge in EDGES:
        for seq in range(10 * hub.rounds):
            payload = mixed(edge, seq)
            kept = keeps(kind, payload)
            found.append((edge, seq, payload.decode() if kept else None, None if kept else payload))
    return sorted(found, key=lambda row: row[:2])


def payloads_found(frame: DataFrame) -> Found:
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
        assert payloads_found(frame) == payloads_expected(hub, kind)
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
    assert payloads_found(table(spark, STREAM, store=mixed_hub.root)) == [
        row for row in payloads_expected(mixed_hub) if row[1] < 20
    ]


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
    assert payloads_found(spark.read.parquet(str(tmp_path / "out"))) == payloads_expected(mixed_hub)


# --- Drift of payloads in Spark: from the log and from the table, as the other engines show it


ZONE = "spark.sql.session.timeZone"
ROUNDS = -(-len(DRIFTS) // 10)


def _payload(edge: str, seq: int) -> bytes:
    return DRIFTS[seq % len(DRIFTS)].payload.encode()


def of_spark(frame: DataFrame) -> list[object]:
    rows = frame.select("_seq", "_misfit", *COLUMNS).where(f"_seq < {len(DRIFTS)}").orderBy("_seq").collect()
    return [shown(row.asDict()) for row in rows]


def test_all_kinds_of_drift_show_the_same_in_spark(spark: SparkSession, hub: Hub) -> None:
    hub.kind = PayloadKind.JSON
    hub.payload = _payload
    hub.write(ROUNDS, edges=EDGES[:1])
    assert of_spark(read(spark, STREAM, store=hub.root, schema=DRIFT_SCHEMA.schema)) == drift_expected(), "the log"
    hub.tier(DRIFT_SCHEMA)
    assert of_spark(table(spark, STREAM, store=hub.root)) == drift_expected(), "the table's own columns"
    by_payloads = read(spark, STREAM, store=hub.root, schema=DRIFT_SCHEMA.schema)
    assert of_spark(by_payloads) == drift_expected(), "payloads of the table"
    zone = spark.conf.get(ZONE)
    try:
        spark.conf.set(ZONE, "America/New_York")
        for frame in (table(spark, STREAM, store=hub.root), by_payloads):
            shows = (
                frame.where("local IS NOT NULL OR at IS NOT NULL").selectExpr("string(local)", "string(at)").distinct()
            )
            assert {*map(tuple, shows.collect())} == {("2026-11-01 12:00:00", None), (None, "2026-11-01 07:00:00")}
    finally:
        spark.conf.set(ZONE, zone)


def test_every_reader_has_the_columns_of_the_declared_schema(spark: SparkSession, hub: Hub) -> None:
    """No reader has to know the schema: it is declared once, and all see the same, of log and table."""
    hub.kind = PayloadKind.JSON
    hub.payload = _payload
    hub.write(ROUNDS - 2, edges=EDGES[:1])
    version = declare(hub.root, DRIFT_SCHEMA.schema)
    hub.tier(DRIFT_SCHEMA._replace(version=version))
    hub.write(2, edges=EDGES[:1])
    with Serving(hub.root) as serving:
        (view,) = register(spark, hub.root).values()
        (far,) = register(spark, hub=serving.url, streams=[STREAM], prefix="far_").values()
        readers = {
            "read": read(spark, STREAM, store=hub.root),
            "format": hub.load(spark),
            "view": spark.table(view),
            "read through the hub": read(spark, STREAM, hub=serving.url),
            "view through the hub": spark.table(far),
        }
        for name, frame in readers.items():
            # The version, too: its rows are of table and log, which has not been in the table.
            assert of_spark(frame.where(f"_schema = {version}")) == drift_expected(), name
            assert frame.columns == readers["read"].columns, name
            assert frame.schema["t"].metadata.get("comment") == "[°C]" or "hub" in name
        assert read(spark, STREAM, store=hub.root, columns=["_seq", "t"]).where("t = 1e300").count() == 1
        for frame in (
            read(spark, STREAM, store=hub.root, schema="none"),
            hub.load(spark, schema="none"),
            read(spark, STREAM, hub=serving.url, schema="none"),
        ):
            assert not {*COLUMNS, "_misfit", "_schema"} & {*frame.columns}
        own = read(spark, STREAM, hub=serving.url, schema="t float")
        assert (own.where("t = 1e300").count(), "_schema" in own.columns) == (1, False), (
            "a schema of one's own is alone"
        )


# --- Streams in an object store: history and tail both come through the source


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with s3_endpoint() as running:
        yield running


@pytest.mark.s3
@pytest.mark.slow
def test_log_and_table_in_a_bucket(spark: SparkSession, endpoint: S3Endpoint) -> None:
    options = dict(endpoint.options)
    hub = Hub(f"{endpoint.new_bucket()}/weft", options)
    hub.write(2)
    hub.tier()
    hub.write(1)
    assert records(read(spark, STREAM, store=hub.root, store_options=options)) == hub.expected()
    named = {f"store.{name}": value for name, value in options.items()}
    starting = {shard: min(5, end) for shard, end in hub.heads().items()}
    some = hub.load(spark, edges="press-1", starting=json.dumps(starting), **named)
    assert {row[0] for row in records(some)} == {"press-1"}
    with pytest.raises(ReadError, match="or use read"):
        table(spark, STREAM, store=hub.root, store_options=options)


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_log_and_table_with_google_and_azure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with bucket_server(scheme, tmp_path) as server:
        hub = Hub(f"{server.new_bucket()}/weft", server.options)
        hub.write(2)
        hub.tier()
        hub.write(1)
        assert records(read(spark, STREAM, store=hub.root, store_options=server.options)) == hub.expected()
        for name, value in server.options.items():
            monkeypatch.setenv(name, value)
        assert records(read(spark, STREAM, store=hub.root)) == hub.expected()


@pytest.mark.s3
@pytest.mark.slow
def test_executors_get_the_endpoint_and_the_key_from_the_driver(
    spark: SparkSession, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session runs already, so its workers do not see what is set now. The endpoint has no TLS."""
    assert endpoint.url.startswith("http://")
    hub = Hub(f"{endpoint.new_bucket()}/weft", endpoint.options)
    hub.write(2)
    hub.tier()
    hub.write(1)
    for name, value in endpoint.options.items():
        monkeypatch.setenv(name, value)
    assert records(read(spark, STREAM, store=hub.root)) == hub.expected()


@pytest.mark.s3
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "AWS_ENDPOINT_URL: expected a URL such as https://minio.example.com"),
        ({"AWS_ENDPOINT_URL": "http://minio", "AWS_ALLOW_HTTP": "no"}, "without TLS, and AWS_ALLOW_HTTP is no"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_a_sentence(
    spark: SparkSession, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ReadError, match=sentence):
        read(spark, STREAM, store="s3://bucket/weft", store_options=options)
