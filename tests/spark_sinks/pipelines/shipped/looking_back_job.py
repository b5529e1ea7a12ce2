"""A script: *anomalies*, *sessions* and *features* over one log, one after the other, in small micro-batches.

python -m tests.spark_sinks.pipelines.shipped.looking_back_job SETTINGS..., with ``Settings`` as JSON, in their order.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from pyspark.sql import SparkSession

from spark_sinks import session
from spark_sinks.pipelines.catalog import located
from spark_sinks.pipelines.job import start
from tests.spark_sinks.sinks.killed_jobs import arm, master


@dataclass(frozen=True)
class Settings:
    """One run over everything that the log has."""

    store: str
    hub: str
    model: str
    folder: str
    """For the tables ``sessions`` and ``features``, and the checkpoints."""
    alerts: str
    """Stream of the alerts, and name of the pipeline that writes it."""
    records_max: int
    """Records of a micro-batch."""


def command(*runs: Settings) -> list[str]:
    """Return the module and its arguments."""
    return [__name__, *(json.dumps(asdict(each)) for each in runs)]


def run(spark: SparkSession, settings: Settings) -> None:
    own = {
        "anomalies": {
            "name": settings.alerts,
            "sink.stream.hub": settings.hub,
            "sink.stream.stream": settings.alerts,
            "steps[1].options": "{history: 30m, threshold: 6.0, warm_up: 20, quiet: 10m}",
        },
        "sessions": {"sink.delta.path": f"{settings.folder}/sessions"},
        "features": {
            "sink.delta.path": f"{settings.folder}/features",
            "steps[1].options": "{history: 10m, warm_up: 4}",
            "steps[2].options": f"{{model: {settings.model}}}",
        },
    }
    for name, options in own.items():
        named = {
            "source.store": settings.store,
            "source.max_records_per_trigger": settings.records_max,
            "checkpoint": f"{settings.folder}/checkpoints/{name}",
            **options,
        }
        pipeline = located(name, [f"{key}={value}" for key, value in named.items()]).config
        start(pipeline, spark, once=True).awaitTermination()


def main(runs: list[Settings]) -> None:
    arm()
    spark = session(master(), **{"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"})
    for each in runs:
        run(spark, each)


if __name__ == "__main__":
    main([Settings(**json.loads(text)) for text in sys.argv[1:]])
