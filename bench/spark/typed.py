"""Typed columns: payloads decoded per second of a core, by format, and beside ``from_json`` over the same rows.

Four fields of readings of about 100 bytes are decoded. First all of them fit, then one in a hundred does not. The
queries in Spark take turns, over a log of its own and over its table.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import cbor2
import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.common import encode_batch
from bench.log_writer import Delivery, LogWriter
from bench.spark.log import BATCH_RECORDS, START_S, STREAM, TOPIC, Log, tiered
from bench.spark.measure import in_turns
from spark_sinks import read
from weft.config.load import parse_schema
from weft.config.payload_schema.model import SchemaFormat
from weft.storage.payloads.decoder import PayloadDecoder

FIELDS = "temperature double, vibration double, n bigint, unit string"
ENCODERS: dict[SchemaFormat, Callable[[Any], bytes]] = {
    "json": lambda value: json.dumps(value).encode(),
    "msgpack": msgspec.msgpack.encode,
    "cbor": cbor2.dumps,
}
RECORDS_MAX = 1_000_000
SLICE = 1 << 16
START = START_S * 10**9
INTERVAL_NS = 100_000


def readings(rng: random.Random, count: int, misfits_percent: float = 0) -> list[dict[str, Any]]:
    """Return readings, some of which have text for a number."""
    found = []
    for _ in range(count):
        is_wrong = rng.random() * 100 < misfits_percent
        found.append(
            {
                "temperature": "hot" if is_wrong else round(rng.gauss(60, 5), 3),
                "vibration": rng.random(),
                "n": rng.randrange(10**6),
                "unit": rng.choice(["C", "F"]),
                "device": f"press-{rng.randrange(200)}",
            }
        )
    return found


def decoder_figures(records: int, runs: int) -> dict[str, Any]:
    """Return payloads per second and core, without Spark: all columns with ``_misfit``."""
    figures: dict[str, Any] = {}
    for name, encode in ENCODERS.items():
        decoder = PayloadDecoder(
            parse_schema(FIELDS, payload_format=name), ["temperature", "vibration", "n", "unit", "_misfit"]
        )
        for case, misfits in (("", 0), ("_one_percent_misfits", 1)):
            payloads = [encode(each) for each in readings(random.Random(1), min(records, SLICE), misfits)]
            column = pa.array(payloads, pa.binary())
            decoder.columns(column)
            seconds = []
            for _ in range(runs):
                started = time.process_time()  # of this core, whatever else the machine does
                decoder.columns(column)
                seconds.append(time.process_time() - started)
            figures[f"{name}{case}"] = round(len(payloads) / statistics.median(seconds))
    return figures


def make_readings(root: str, records: int) -> None:
    """Write a log of JSON readings."""
    rng = random.Random(2)
    pool = [ENCODERS["json"](each) for each in readings(rng, 20_000)]
    writer = LogWriter(root, stream=STREAM)
    keys = [f"plant/{i % 4}/m{i % 200}/telemetry".encode() for i in range(BATCH_RECORDS)]
    for seq in range(0, records, BATCH_RECORDS):
        payloads = rng.choices(pool, k=min(BATCH_RECORDS, records - seq))
        data = encode_batch(seq, START + seq * INTERVAL_NS, INTERVAL_NS, keys[: len(payloads)], payloads)
        writer.write(Delivery("press-shop-7", [data], topics=[TOPIC]), received=START + seq * INTERVAL_NS + 10**9)


def summed(frame: DataFrame) -> None:
    """Use all four fields of every row."""
    frame.agg(F.sum("temperature"), F.sum("vibration"), F.sum("n"), F.max("unit")).collect()


def spark_figures(spark: SparkSession, root: str, records: int, runs: int) -> dict[str, Any]:
    """Return records per second of the same query by typed columns and by ``from_json``, turn by turn."""

    def by_from_json() -> None:
        text = F.col("payload").cast("string")
        summed(read(spark, STREAM, store=root).select(F.from_json(text, FIELDS).alias("f")).select("f.*"))

    ways = {"typed": lambda: summed(read(spark, STREAM, store=root, schema=FIELDS)), "from_json": by_from_json}
    medians = in_turns(ways, runs)
    found: dict[str, Any] = {f"{way}_records_per_second": round(records / median) for way, median in medians.items()}
    return found | {"ratio": round(medians["from_json"] / medians["typed"], 2)}


def figures(spark: SparkSession, log: Log, runs: int) -> dict[str, Any]:
    """Return payloads per second of a core by format, and records per second of both ways in Spark."""
    records = min(log.records, RECORDS_MAX)
    found: dict[str, Any] = {"records": records, "fields": FIELDS}
    found["decoder_records_per_second"] = decoder_figures(records, runs)
    with tempfile.TemporaryDirectory() as root:
        make_readings(root, records)
        found["tail"] = spark_figures(spark, root, records, runs)
        tiered(root)
        found["table"] = spark_figures(spark, root, records, runs)
    return found
