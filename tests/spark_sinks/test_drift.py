"""Drift of payloads in Spark: from the log and from the table, as the other engines show it."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sinks import read, table
from tests.cloud_hub.tables.drift import COLUMNS, DRIFTS, SCHEMA, expected, shown
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
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
