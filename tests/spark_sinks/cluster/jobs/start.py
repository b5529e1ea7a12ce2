"""The start and end that all jobs share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from spark_sinks import session


def run(work: Callable[[SparkSession, Any], Any]) -> None:
    """Start a session on the cluster, do the work with the arguments of the command line, print what it returns."""
    answer = json.loads(sys.argv[1])
    spark = session(answer["master"], **answer["conf"])
    try:
        print(json.dumps(work(spark, answer)))
    finally:
        spark.stop()
