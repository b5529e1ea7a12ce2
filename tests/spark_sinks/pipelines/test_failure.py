"""The sentence in which a run ends, out of Spark's traces."""

from __future__ import annotations

import pytest

from spark_sinks.pipelines.steps import sentence_of
from weft.storage.object_store import NotFound, StoreError

TRACE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
{}
	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        ("ValueError: no number: 'hot'", "ValueError: no number: 'hot'"),
        ("spark_sinks.errors.SinkError: the table is gone. Make it", "the table is gone. Make it"),
        (
            f"{NotFound.__module__}.{NotFound.__qualname__}: shard-0/chunk/7",
            "the store lacks shard-0/chunk/7. Check that it exists and has room, and start the pipeline again",
        ),
        (f"{StoreError.__module__}.{StoreError.__qualname__}: timed out", "a store failed: timed out. Check that"),
        (
            "pyspark.errors.PySparkRuntimeError: [X] Python worker failed to connect back.",
            "took more than 10 s to start",
        ),
    ],
)
def test_the_innermost_error_is_told_and_what_to_do(raised: str, sentence: str) -> None:
    assert sentence in sentence_of(RuntimeError(TRACE.format(raised)))
