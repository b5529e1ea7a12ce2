"""A streaming query of its own process, into PostgreSQL or Kafka, that kills itself where its settings say.

``python -m tests.spark_sinks.sinks.delivery_job SETTINGS``, with ``Settings`` as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_sinks import session
from spark_sinks.sinks import JdbcSink, KafkaSink
from spark_sinks.sinks.jdbc import Batch
from tests.support.spark_cluster import temporary_of_spark

ROOT = Path(__file__).parents[3]
RUN_S_MAX = 240
COPIED, BEFORE_COMMIT, AFTER_COMMIT, SENDING = "copied", "before commit", "after commit", "sending"
KILL_BYTES = 20_000
"""Bytes of a batch that Kafka has on disk when the driver is killed while it sends."""


@dataclass
class Settings:
    """One run. It ends when everything in the store is written, or by SIGKILL."""

    store: str
    stream: str
    checkpoint: str
    sink: dict[str, Any]
    """Arguments of ``KafkaSink`` when it has ``topic``, else of ``JdbcSink``."""
    kill: str = ""
    """Where the driver and Java kill themselves; empty for not at all."""
    kill_batch: int = 0
    """Number of batches of this run that are written before the one with the kill."""
    batch_records: int = 400
    conf: dict[str, str] = field(default_factory=dict)
    kafka_data: str = ""
    dump: str = ""
    """File for the topic's messages, a line of JSON for each, in the order of their partitions."""


def run(settings: Settings) -> str:
    """Run a process; what it printed.

    Raises:
        AssertionError: it did not end as its settings say.
    """
    with temporary_of_spark() as temporary:
        done = subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(asdict(settings))],
            env={**os.environ, **temporary},
            cwd=ROOT,
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
    assert done.returncode == (-signal.SIGKILL if settings.kill else 0), done.stdout[-1000:] + done.stderr[-3000:]
    return f"{done.stdout}{done.stderr}"


def die() -> None:
    """Kill Python and Java, which are one group, at once."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def job(settings: Settings) -> None:
    conf = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": tempfile.gettempdir(),
        **settings.conf,
    }
    spark = session("local[2]", **conf)
    written = 0
    is_kafka = "topic" in settings.sink
    sink: Callable[[DataFrame, int], None]
    sink = KafkaSink(**settings.sink) if is_kafka else JdbcSink(**settings.sink)

    def write(frame: DataFrame, batch_id: int) -> None:
        nonlocal written
        if settings.kill and written == settings.kill_batch:
            _arm(settings)
        sink(frame, batch_id)
        if settings.kill == AFTER_COMMIT and written == settings.kill_batch:
            die()
        written += 1

    reader = spark.readStream.format("weft").options(store=settings.store, stream=settings.stream)
    frame = reader.option("max_records_per_trigger", settings.batch_records).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", settings.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    if settings.dump:
        _dump(spark, settings)
    spark.stop()


def _arm(settings: Settings) -> None:
    import psycopg

    if settings.kill == COPIED:
        copy = Batch._copy

        def copied(self: Batch, connection: Any) -> None:
            copy(self, connection)
            die()

        Batch._copy = copied  # type: ignore[method-assign]
    elif settings.kill == BEFORE_COMMIT:
        psycopg.Connection.commit = _die_instead  # type: ignore[method-assign, assignment]
    elif settings.kill == SENDING:
        threading.Thread(target=_die_while_sending, args=(Path(settings.kafka_data),), daemon=True).start()


def _die_instead(_: Any) -> None:
    die()


def _die_while_sending(data: Path) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in data.glob("telemetry-*/*.log"))

    before = size()
    while size() < before + KILL_BYTES:
        time.sleep(0.001)
    die()


def _dump(spark: SparkSession, settings: Settings) -> None:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", settings.sink["bootstrap_servers"])
    frame = reader.option("subscribe", settings.sink["topic"]).option("includeHeaders", "true").load()
    headers = "map_from_entries(transform(headers, h -> struct(h.key, CAST(h.value AS STRING)))) AS headers"
    rows = frame.orderBy("partition", "offset").selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", headers)
    Path(settings.dump).write_text("".join(json.dumps(row.asDict()) + "\n" for row in rows.collect()))


if __name__ == "__main__":
    job(Settings(**json.loads(sys.argv[1])))
