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
    told = json.loads(sys.argv[1])
    spark = session(told["master"], **told["conf"])
    try:
        print(json.dumps(work(spark, told)))
    finally:
        spark.stop()
