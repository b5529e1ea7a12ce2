"""A pipeline of shifts by the time of events: checked, run, and equal to a batch over all rows."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sinks import read
from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.check import check
from spark_sinks.pipelines.job import PACKAGES, code_of, start, write_archive
from tests.spark_sinks.completeness.buffering import Buffering
from tests.spark_sinks.completeness.conftest import MIDNIGHT, SECOND, STREAM
from weft.config.functions.windows import HOUR_US, Grid
from weft.config.load import parse
from weft.config.pipelines import Pipeline, check_pipeline

SHIFTS = """\
name: shifts
source: {store: %(hub)s, stream: telemetry, schema: {fields: {ts: timestamp(ms), v: int}}}
steps:
  - sql: SELECT %(columns)s FROM input WHERE v >= 500
  - window: {every: 8h, offset: 6h, zone: Europe/Berlin, time: ts, late: 6h, by: [machine], emit: {n: count(*)}}
sink: {delta: {path: %(folder)s/shifts, mode: upsert}}
checkpoint: %(folder)s/checkpoint
"""


def pipeline(fleet: Buffering, folder: Path, columns: str) -> Pipeline:
    text = SHIFTS % {"hub": fleet.root, "folder": folder, "columns": columns}
    return parse(text, "shifts.yaml", Pipeline, check_pipeline).config


@pytest.mark.slow
def test_shifts_of_a_pipeline_equal_a_batch_over_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 30, devices=3, only=["press-1"])
    fleet.until(16)
    shifts = pipeline(fleet, tmp_path, "machine, ts, _time, _from")
    assert check(shifts, spark).errors == []
    for hour in (20, 38):
        start(shifts, spark, once=True).awaitTermination()
        fleet.until(hour)
    start(shifts, spark, once=True).awaitTermination()
    grid = Grid(8 * HOUR_US, 6 * HOUR_US, "Europe/Berlin")
    expected: dict[tuple[datetime, str], int] = {}
    for row in read(spark, STREAM, store=fleet.root, schema="ts timestamp(ms), v int").where("v >= 500").collect():
        began = datetime.fromtimestamp(grid.start(grid.number(int(row.ts.timestamp()) * 1_000_000)) // 1_000_000, UTC)
        expected[began, row.machine] = expected.get((began, row.machine), 0) + 1
    rows = DeltaTable(str(tmp_path / "shifts")).to_pyarrow_table().to_pylist()
    assert {(row["window_start"], row["machine"]): row["n"] for row in rows} == expected
    ended = MIDNIGHT // SECOND + 31 * 3600
    assert {row["_complete"] for row in rows if row["window_end"].timestamp() <= ended} == {True}
    assert {row["_late"] for row in rows} == {0}


@pytest.mark.slow
def test_a_step_that_loses_the_time_of_the_event_is_named(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 1, devices=1, only=["press-1"])
    fleet.until(1)
    (finding,) = check(pipeline(fleet, tmp_path, "machine, _time, _from"), spark).errors
    assert finding.message.startswith("drops ts, which windows need")


@pytest.mark.slow
def test_windows_of_another_time_than_the_source_s_are_refused_when_they_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 30, devices=1, only=["press-1"])
    fleet.until(30)
    for columns, time in (("machine, ts, ts AS _time, _from", "_time"), ("machine, _time, _time AS ts, _from", "ts")):
        shifts = pipeline(fleet, tmp_path, columns)
        with pytest.raises(PipelineError, match=f"a {time} that is not the source's own"):
            start(shifts, spark, once=True).awaitTermination()
    assert not (tmp_path / "shifts").exists()


# --- The archive that executors get holds all that they import


TEXT = "name: p\nsource: {store: s, stream: telemetry}\nsteps: [python: 'STEP']\nsink: {console: {}}\n"


@pytest.mark.slow
def test_a_python_without_weft_imports_it_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "plant_steps.py").write_text("def warm(frame):\n    return frame\n")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    pipeline = parse(TEXT.replace("STEP", "plant_steps:warm"), "p.yaml", Pipeline).config
    path = tmp_path / "code.zip"
    write_archive(str(path), code_of(pipeline))
    libraries = sysconfig.get_paths()["purelib"]
    # Without site no editable install is found: only what is in the archive, and compiled libraries.
    text = (
        f"import sys; sys.path += [{str(path)!r}, {libraries!r}]\n"
        "import plant_steps, pyspark_weft, spark_sinks.pipelines.job, spark_sinks.pipelines.shipped.clean\n"
        "from spark_sinks.pipelines.catalog import located\n"
        "assert pyspark_weft.DefaultSource.name() == 'weft'\n"
        "assert 'code.zip' in spark_sinks.__file__ and 'code.zip' in sys.modules['weft.config.load'].__file__\n"
        "print(located('clean').config.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", text], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr
    assert path.stat().st_size < 4 << 20


def test_libraries_are_not_sent_and_compiled_modules_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = parse(TEXT.replace("STEP", "pandas:concat"), "p.yaml", Pipeline).config
    assert [*code_of(pipeline)] == [*PACKAGES]
    (tmp_path / "fast_steps.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    pipeline = parse(TEXT.replace("STEP", "fast_steps:warm"), "p.yaml", Pipeline).config
    with pytest.raises(PipelineError, match="module fast_steps is compiled and cannot be sent to executors"):
        [*code_of(pipeline)]
