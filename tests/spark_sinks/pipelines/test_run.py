"""``weft spark run``: the shipped pipelines over a log, killed and started again, as a person runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.end_to_end.page_reader import java_options
from tests.spark_sinks.conftest import EDGES, Hub
from tests.support.spark_cluster import kill_group, temporary_of_spark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.processes]
COMMAND = [sys.executable, "-m", "weft", "spark"]
CONF = ["--master", "local[2]", "--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=2"]
WAIT_S = 280.0
"""For a machine that has much else to do."""


def weft(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        check=False,
        cwd=cwd,
        env=os.environ | java_options(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@contextmanager
def running(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A pipeline in a process group of its own: its Java process ends with it."""
    with temporary_of_spark() as temporary, (cwd / "said").open("w") as said:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd,
            env={**os.environ, **temporary},
            stderr=said,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill_group(process)


def wait_for(said: Path, text: str, process: subprocess.Popen[str]) -> None:
    def is_said() -> bool:
        assert process.poll() is None, said.read_text()
        return text in said.read_text()

    wait_until(is_said, WAIT_S, said.read_text, interval_s=0.1)


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(path)).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


@pytest.mark.search(turns=4)
@pytest.mark.timeout(890)
def test_clean_has_each_record_once_after_a_kill(plant: Hub, tmp_path: Path) -> None:
    run = ["run", "clean", "--set", f"source.store={plant.root}", "--set", "trigger=1s", *CONF]
    with running(*run, cwd=tmp_path) as process:
        wait_for(tmp_path / "said", "micro-batch 0", process)
        plant.write(1)
        kill_group(process)
    plant.write(1)
    plant.tier()
    done = weft(*run, "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = [(edge, seq) for edge, seq, _ in plant.expected()]
    assert rows(tmp_path / "clean", "_edge", "_seq") == expected
    lineage = DeltaTable(str(tmp_path / "clean")).to_pyarrow_table(columns=["_from"])["_from"].to_pylist()
    assert sorted((each["edge"], each["first"]) for (each,) in lineage) == expected
    plant.write(1)
    with running(*run, cwd=tmp_path) as process:
        wait_for(tmp_path / "said", "micro-batch", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, (tmp_path / "said").read_text()
    assert rows(tmp_path / "clean", "_edge", "_seq") == [(edge, seq) for edge, seq, _ in plant.expected()]


@pytest.mark.search(turns=4)
@pytest.mark.timeout(890)
def test_machine_hours_are_those_of_all_records(plant: Hub, tmp_path: Path) -> None:
    hours = ["--set", f"source.store={plant.root}", "--set", "steps[1].window.every=1s", "--set", "trigger=1s"]
    run = ["run", "machine-hours", *hours, *CONF]
    with running(*run, cwd=tmp_path) as process:
        wait_for(tmp_path / "said", "windows", process)
        kill_group(process)
    plant.write(2)
    done = weft(*run, "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "machine-hours", "window_start", "machine", "records")
    assert len({row[:2] for row in found}) == len(found)
    assert sum(row[2] for row in found) == plant.rounds * 10 * len(EDGES)
    complete = rows(tmp_path / "machine-hours", "window_start", "_complete")
    assert any(is_complete for _, is_complete in complete)


SLOW_STEP = """\
import time

def slow(frame):
    def wait(batches):
        for batch in batches:
            open({begun!r}, "w").close()
            time.sleep(300)
            yield batch
    return frame.mapInArrow(wait, frame.schema)
"""


@pytest.mark.slow
@pytest.mark.timeout(890)
@pytest.mark.parametrize("whole_group", [False, True], ids=["process", "group"])
def test_a_pipeline_that_is_ended_within_a_batch_says_nothing(whole_group: bool, plant: Hub, tmp_path: Path) -> None:
    """Service managers send SIGTERM to the whole group: Java ends first, and each call of it fails from then on."""
    begun, log = tmp_path / "begun", tmp_path / "spark.log"
    (tmp_path / "slow_steps.py").write_text(SLOW_STEP.format(begun=str(begun)))
    (tmp_path / "slow.yaml").write_text(
        f"name: slow\nsource: {{store: {plant.root}, stream: telemetry}}\n"
        "steps: [{python: 'slow_steps:slow', mode: batch}]\nsink: {delta: out}\ncheckpoint: c\n"
    )
    with running("run", "slow.yaml", "--spark-log", str(log), *CONF, cwd=tmp_path) as process:
        said = tmp_path / "said"
        wait_until(lambda: begun.exists() or process.poll() is not None, WAIT_S, said.read_text, interval_s=0.1)
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
        status = process.wait(WAIT_S)
    lines = [line for line in said.read_text().splitlines() if not line.startswith("micro-batch running for")]
    assert (lines, status) == ([], 0), said.read_text()
    assert "StackOverflowError" not in log.read_text(errors="replace")


@pytest.mark.slow
def test_a_pipeline_is_run_once(plant: Hub, tmp_path: Path) -> None:
    (tmp_path / "warm_steps.py").write_text(
        "def warm(frame, above):\n    return frame.where(frame.t > above)\n\n"
        "def shown(frame):\n    context = frame.sparkSession.sparkContext\n"
        "    with open('shown', 'w') as file:\n"
        "        print(context.appName, context.getLocalProperty('spark.job.description'), sep='\\n', file=file)\n"
        "    return frame\n"
    )
    (tmp_path / "warm.yaml").write_text(
        f"name: warm\nsource: {{store: {plant.root}, stream: telemetry}}\nsteps:\n"
        "  - sql: |\n      SELECT _edge, _seq, _from,\n"
        "      CAST(get_json_object(CAST(payload AS STRING), '$.temperature') AS DOUBLE) AS t FROM input\n"
        "  - {python: 'warm_steps:warm', options: {above: 28}}\n  - {python: 'warm_steps:shown', mode: batch}\n"
        "sink: {console: {rows: 100}}\n"
    )
    done = weft("run", "warm.yaml", "--once", *CONF, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = sorted((row["_edge"], row["_seq"], row["t"]) for row in map(json.loads, done.stdout.splitlines()))
    expected = [(edge, seq, 20.5 + seq % 10) for edge, seq, _ in plant.expected() if seq % 10 >= 8]
    assert shown == expected
    assert "micro-batch 0: 120 records" in done.stderr
    names = (tmp_path / "shown").read_text().splitlines()
    assert names[:2] == ["warm", "warm"], "the names of application and query, as Spark's pages show them"
