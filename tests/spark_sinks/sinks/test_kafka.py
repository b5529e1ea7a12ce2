"""Messages that ``KafkaSink`` makes, and what it refuses; test_delivery.py writes them into a real Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.sinks import KafkaSink
from spark_sinks.sinks.kafka import misfit, of_connector

pytestmark = pytest.mark.spark
SCHEMA = (
    "_shard int, _offset long, _edge string, _log string, _seq long, _time timestamp, _key string,"
    "payload string, _payload_bytes binary, _headers map<string,string>"
)


def sink(**arguments: Any) -> KafkaSink:
    return KafkaSink("kafka.example.com:9092", "telemetry", **arguments)


def record(seq: int, key: str | None = "k", payload: str | None = "p", **more: Any) -> tuple[Any, ...]:
    return (0, 100 + seq, "press-1", "00aa", seq, None, key, payload, more.get("bytes"), more.get("headers"))


def messages(made: DataFrame) -> list[tuple[Any, Any, dict[str, Any]]]:
    return [
        (row["key"], bytes(row["value"]), {header["key"]: bytes(header["value"]) for header in row["headers"]})
        for row in made.collect()
    ]


def test_a_message_names_its_record_and_keeps_its_bytes(spark: SparkSession) -> None:
    spoofed = {"unit": "C", "weft.seq": "999", "gone": None}
    frame = spark.createDataFrame(
        [record(8, headers=spoofed), record(7, payload=None, bytes=b"\xff\x00"), record(9, key=None)], SCHEMA
    )
    made = sorted(messages(sink().messages(frame)), key=lambda message: message[2]["weft.seq"])
    origin = {"weft.lane": b"press-1/00aa", "weft.shard": b"0"}
    assert made == [
        (b"k", b"\xff\x00", {**origin, "weft.seq": b"7", "weft.offset": b"107"}),
        (b"k", b"p", {**origin, "weft.seq": b"8", "weft.offset": b"108", "unit": b"C"}),
        (None, b"p", {**origin, "weft.seq": b"9", "weft.offset": b"109"}),
    ]


def test_messages_of_a_key_are_in_the_order_of_the_log_in_one_task(spark: SparkSession) -> None:
    frame = spark.createDataFrame([record(seq, f"k{seq % 3}") for seq in reversed(range(60))], SCHEMA).repartition(6)
    made = sink().messages(frame)
    parts = [
        [(bytes(row["key"]), bytes(row["headers"][1]["value"])) for row in rows] for rows in made.rdd.glom().collect()
    ]
    seen: dict[bytes, int] = {}
    for number, part in enumerate(parts):
        for key in {key for key, _ in part}:
            assert seen.setdefault(key, number) == number
            order = [int(seq) for found, seq in part if found == key]
            assert order == sorted(order)
            assert len(order) == 20
    assert len(seen) == 3


def test_results_say_where_they_come_from(spark: SparkSession) -> None:
    origin = [Row(edge="e", log="00aa", first=3, last=9, count=7)]
    frame = spark.createDataFrame(
        [("m1", 2.5, origin)],
        "machine string, mean double, _from array<struct<edge:string,log:string,first:long,last:long,count:long>>",
    )
    made = sink(key="machine", value="to_json(struct(machine, mean))", headers={"kind": "'mean'"})
    ((key, value, headers),) = messages(made.messages(frame))
    assert (key, value, headers["kind"]) == (b"m1", b'{"machine":"m1","mean":2.5}', b"mean")
    assert headers["weft.lineage"] == b'[{"edge":"e","log":"00aa","first":3,"last":9,"count":7}]'
    with pytest.raises(SinkError, match="lack their origin: keep _edge"):
        made.messages(frame.drop("_from"))
    with pytest.raises(SinkError, match="value: the rows have no payload; give an SQL expression"):
        sink(key="machine").messages(frame)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"options": {"kafka.sasl.jaas.config": "s3cret"}}, "holds a secret; put it into a file"),
        ({"options": {"kafka.ssl.key.password": "s3cret"}}, "holds a secret; put it into a file"),
        ({"options": {"kafka.acks": "1"}}, "kafka.acks is all: without it messages may be lost"),
        ({"options": {"Kafka.Acks": "0"}}, "Kafka.Acks is all: without it messages may be lost"),
        ({"options": {"kafka.ssl.keystore.key": "PEM"}}, "holds a secret; put it into a file"),
        ({"headers": {"weft.seq": "_seq"}}, "weft.seq is the sink's own"),
        ({"topic": ""}, "both are needed"),
    ],
)
def test_arguments_are_checked_before_anything_starts(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SinkError, match=sentence) as refused:
        KafkaSink(**{"bootstrap_servers": "kafka.example.com:9092", "topic": "telemetry", **arguments})
    assert "s3cret" not in str(refused.value)


def test_what_is_missing_is_said(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([record(1)], SCHEMA)
    with pytest.raises(SinkError, match=r"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4"):
        sink()(frame, 0)
    file = tmp_path / "client.properties"
    with pytest.raises(SinkError, match="cannot be read: No such file"):
        sink(options_file=str(file))(frame, 0)
    file.write_text("# a comment\nsecurity.protocol=SASL_SSL\nhush-hush\n")
    with pytest.raises(SinkError, match="line 3: expected NAME=VALUE") as refused:
        sink(options_file=str(file))(frame, 0)
    assert "hush-hush" not in str(refused.value)


def test_an_option_may_stand_in_several_places_and_the_file_wins(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("linger.ms=9\nacks=-1\n")
    made = sink(options={"kafka.acks": "all", "kafka.linger.ms": "5"}, options_file=str(file))
    assert made.settings() == {"kafka.acks": "-1", "kafka.enable.idempotence": "true", "kafka.linger.ms": "9"}


@pytest.mark.parametrize(
    ("jar", "said"),
    [
        ("/x/spark-sql-kafka-0-10_2.13-4.2.0.jar", None),
        ("/x/org.apache.spark_spark-sql-kafka-0-10_2.13-4.2.0.jar", None),
        ("/opt/our-own-assembly.jar", None),
        ("/x/spark-sql-kafka-0-10_2.12-3.5.1.jar", "is of Spark 3.5.1 and Scala 2.12, and this is Spark 4.2.0 with"),
        ("/x/spark-sql-kafka-0-10_2.13-4.1.0-preview1.jar", "is of Spark 4.1.0-preview1 and Scala 2.13"),
    ],
)
def test_a_connector_of_another_version_is_named(jar: str, said: str | None) -> None:
    found = misfit(jar, "4.2.0")
    assert (found is None) == (said is None)
    assert (said or "") in str(found or "")


def test_jars_of_two_versions_are_told_from_other_trouble() -> None:
    java = "An error occurred while calling o91.save.\n: java.lang.NoClassDefFoundError: scala/Serializable\n\tat java"
    assert "(NoClassDefFoundError: scala/Serializable). Start the session with" in str(
        of_connector(RuntimeError(java), "4.2.0")
    )
    assert of_connector(RuntimeError("org.apache.kafka.common.errors.TimeoutException: 60000 ms"), "4.2.0") is None


def test_a_check_says_that_there_is_no_connector(spark: SparkSession) -> None:
    with pytest.raises(SinkError, match=r"no Kafka connector; start it with spark\.jars\.packages=org\.apache\.spark:"):
        sink().check(spark.createDataFrame([], SCHEMA))
