"""Drift of payloads in Spark: from the log and from the table, as the other engines show it."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sinks import read, register, table
from tests.cloud_hub.tables.drift import COLUMNS, DRIFTS, SCHEMA, expected, shown
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
from tests.spark_sinks.source.test_through_hub import Serving
from tests.spark_sinks.test_views import declare
from weft.protocols.payloads import PayloadKind

pytestmark = pytest.mark.spark
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
    assert of_spark(read(spark, STREAM, store=hub.root, schema=SCHEMA.schema)) == expected(), "the log"
    hub.tier(SCHEMA)
    assert of_spark(table(spark, STREAM, store=hub.root)) == expected(), "the table's own columns"
    by_payloads = read(spark, STREAM, store=hub.root, schema=SCHEMA.schema)
    assert of_spark(by_payloads) == expected(), "payloads of the table"
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
    version = declare(hub.root, SCHEMA.schema)
    hub.tier(SCHEMA._replace(version=version))
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
            assert of_spark(frame.where(f"_schema = {version}")) == expected(), name
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
