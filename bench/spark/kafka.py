"""Spark's Kafka source beside ours: the same records from a topic and from a stream's tail, turn by turn.

Kafka is one node on loopback, from Maven. Its topic is filled from the stream, with the records' keys and payloads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.spark.log import STREAM, Log
from bench.spark.measure import in_turns, noop
from tests.support.brokers import VERSION, Kafka, connector_jars, kafka

TOPIC = "telemetry"
COLUMNS = "_offset,_time,_key,payload"
PRODUCER = {
    # As the log of Weft has it: zstd over some hundred records. Kafka's default would be 16 KiB, uncompressed.
    "kafka.compression.type": "zstd",
    "kafka.batch.size": "500000",
    "kafka.linger.ms": "50",
    "kafka.acks": "all",
}

CLOSED_WHEN_IDLE = {
    # Spark keeps a producer for ten minutes, which would look for the ended server every second during other cases.
    "spark.kafka.producer.cache.timeout": "1s",
    "spark.kafka.producer.cache.evictorThreadRunInterval": "1s",
}


def connector_conf() -> dict[str, str]:
    """Return the conf that brings Spark's connector into a session; nothing where it cannot be had."""
    try:
        return {"spark.jars": connector_jars(), **CLOSED_WHEN_IDLE}
    except LookupError as error:
        print(f"no Kafka beside it: {error}")
        return {}


def from_kafka(spark: SparkSession, server: Kafka) -> DataFrame:
    """Return the whole topic."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server.address)
    return reader.option("subscribe", TOPIC).load()


def from_weft(spark: SparkSession, root: str, columns: str | None = None) -> DataFrame:
    """Return the whole stream, with all columns or some."""
    reader = spark.read.format("weft").option("store", root).option("stream", STREAM)
    return (reader if columns is None else reader.option("columns", columns)).load()


def fill(spark: SparkSession, root: str, server: Kafka) -> None:
    """Write the stream's keys and payloads into the topic."""
    frame = from_weft(spark, root, "_key,payload").select(F.col("_key").alias("key"), F.col("payload").alias("value"))
    writer = frame.write.format("kafka").options(**PRODUCER)
    writer.option("kafka.bootstrap.servers", server.address).option("topic", TOPIC).save()


def aggregate(frame: DataFrame, key: str, time: str, payload: str) -> None:
    """Group by the key, as people write it."""
    frame.groupBy(key).agg(F.count("*"), F.max(time), F.sum(F.length(payload))).collect()


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return records per second both ways.

    Raises:
        LookupError: Kafka cannot be had here.
    """
    with kafka() as server:
        root = log.root
        fill(spark, root, server)
        ours, theirs = ("_key", "_time", "payload"), ("key", "timestamp", "value")
        cases: dict[str, dict[str, Callable[[], None]]] = {
            "noop": {
                "kafka": lambda: noop(from_kafka(spark, server)),
                "weft": lambda: noop(from_weft(spark, root, COLUMNS)),
                "weft, all columns": lambda: noop(from_weft(spark, root)),
            },
            "aggregate": {
                "kafka": lambda: aggregate(from_kafka(spark, server), *theirs),
                "weft": lambda: aggregate(from_weft(spark, root, COLUMNS), *ours),
                "weft, all columns": lambda: aggregate(from_weft(spark, root), *ours),
            },
        }
        found: dict[str, Any] = {"records": log.records, "runs": runs, "spark": spark.version, "kafka": VERSION}
        assert from_kafka(spark, server).count() == log.records
        for name, ways in cases.items():
            seconds = in_turns(ways, runs)
            found[name] = {way: round(log.records / median) for way, median in seconds.items()}
    return found
