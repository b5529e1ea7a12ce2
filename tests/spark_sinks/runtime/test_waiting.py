"""Scripts that wait for a query end cleanly at a signal, and raise what ends the query."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_sinks import await_termination
from spark_sinks.runtime import waiting
from spark_sinks.runtime.waiting import JobInterrupted, interrupted_shortly, silence_py4j, stop_asked
from tests.end_to_end.page_reader import java_options
from tests.spark_sinks.conftest import STREAM, Hub
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[3]
WAIT_SECONDS_MAX = 200.0
SCRIPT = """
from spark_sinks import await_termination, session
source = session().readStream.format("weft").option("store", {store!r}).option("stream", {stream!r}).load()
await_termination(source.writeStream.format("parquet").option("checkpointLocation", "checkpoint").start("rows"))
print("ended")
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_stops_the_query(hub: Hub, spark: SparkSession, tmp_path: Path, number: signal.Signals) -> None:
    hub.write(1)
    source = spark.readStream.format("weft").option("store", hub.root).option("stream", STREAM).load()
    query = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    before = signal.getsignal(number)

    def send() -> None:
        # The handler must be there: the signal would end this process else.
        wait_until(lambda: signal.getsignal(number) is not before)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    await_termination(query)
    assert not query.isActive
    assert signal.getsignal(number) is before


@pytest.mark.slow
def test_a_signal_while_a_query_starts_stops_it_once_it_runs(hub: Hub, spark: SparkSession, tmp_path: Path) -> None:
    hub.write(1)
    source = spark.readStream.format("weft").option("store", hub.root).option("stream", STREAM).load()
    writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with stop_asked() as stop:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
        query = writer.start()
        await_termination(query, lambda _: None, stop)
    assert not query.isActive


@pytest.mark.slow
def test_what_ends_the_query_is_raised(hub: Hub, spark: SparkSession, tmp_path: Path) -> None:
    hub.write(1)
    source = spark.readStream.format("weft").option("store", hub.root).option("stream", STREAM).load()

    def fail(*_: object) -> None:
        raise OSError("the sink is full")

    query = source.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        await_termination(query)


def test_a_stop_within_a_batch_is_told_to_spark_in_few_words() -> None:
    """Spark searches the text with a frame of Java's stack for each character: 7,800 of them ended its thread."""
    trace = "at org.apache.spark.rdd.RDD.collect(RDD.scala)\n" * 200
    raised = Py4JError(f"An error occurred while calling o1.collect.\n: java.lang.InterruptedException\n{trace}")
    with pytest.raises(JobInterrupted, match="InterruptedException") as refused, interrupted_shortly():
        raise raised
    text = "".join(traceback.format_exception(refused.value))
    assert "RDD.collect" not in text
    assert len(text[text.index("py4j.protocol.Py4JJavaError: An error occurred while calling") :]) < 200
    with pytest.raises(Py4JError, match="the sink is full"), interrupted_shortly():
        raise Py4JError("the sink is full")


def test_the_bridge_to_java_writes_nothing_while_it_is_quiet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reported() -> list[str]:
        for name in (None, "py4j.clientserver"):
            log = logging.getLogger(name)
            place = (logging.ERROR, "/lib/py4j/clientserver.py", 1)
            log.handle(log.makeRecord(log.name, *place, "Exception while sending command.", (), None))
        logging.error("of the script")
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    def hear() -> None:  # whatever a command silenced in this process
        monkeypatch.setattr(logging.getLogger("py4j"), "propagate", True)
        monkeypatch.setattr(logging.root, "filters", [])

    hear()
    assert len(reported()) == 3
    silence_py4j()
    assert reported() == ["of the script"]
    hear()
    monkeypatch.setattr(waiting, "SIGNAL_S", 0.01)
    with stop_asked() as stop:
        assert len(reported()) == 3, "an error without a signal is told"
        monkeypatch.setattr(waiting, "SIGNAL_S", PATIENCE_S)
        found: list[str] = []
        early = threading.Thread(target=lambda: found.extend(reported()))  # Java had the signal before this process
        early.start()
        os.kill(os.getpid(), signal.SIGTERM)
        early.join()
        assert (found, stop.asked) == (["of the script"], True)


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_script_ends_at_ctrl_c_without_a_traceback_and_goes_on_where_it_was(
    hub: Hub, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(store=hub.root, stream=STREAM))
    hub.write(1)
    script = subprocess.Popen(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | java_options(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "checkpoint" / "commits" / "0").exists, WAIT_SECONDS_MAX, interval_s=0.1)
        script.send_signal(signal.SIGINT)
        said, trouble = script.communicate(timeout=WAIT_SECONDS_MAX)
    finally:
        script.kill()
    assert (said, script.returncode) == ("ended\n", 0)
    # Spark's worker daemon, a process of its own, may complain of a task that it was cut off from. No other may.
    assert not re.search(r'File "(?!.*/pyspark\.zip/pyspark/daemon\.py")', trouble), trouble
    # The session that is there already resumes the query: to start another one takes longer than all the rest.
    hub.write(1)
    source = spark.readStream.format("weft").option("store", hub.root).option("stream", STREAM).load()
    writer = source.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    assert (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 80
