"""Pipelines that tools of others run: Airflow, Dagster and dbt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from spark_sinks.runtime.session import cache_directory, find_java_home
from tests.cloud_hub.tables.logs import LogWriter
from tests.cloud_hub.tables.test_columns import Process, readings
from tests.end_to_end.page_reader import java_options
from tests.support.third_party import AIRFLOW, DAGSTER, DBT, DELTA_SPARK, Package
from weft.cloud_hub.facts.streams import set_schema
from weft.config.load import parse_schema
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import open_store
from weft.storage.table.schemas import StreamSchema

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


# --- The example project of dbt: built by dbt on a hub's table, again and again, each record once


ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "docs" / "how-to" / "transform-with-dbt"
SCHEMA = parse_schema("temperature float")
BUILD_S_MAX = 400
DUCKDB = ("-c", "from dbt.cli.main import cli; cli()", "build", "--profiles-dir", ".")
SPARK = ("build_on_spark.py",)


class Plant:
    """A hub's store with a stream, and the project beside it."""

    def __init__(self, folder: Path) -> None:
        self.project, self.root = folder / "project", folder / "store"

    @classmethod
    async def make(cls, folder: Path) -> Plant:
        made = cls(folder)
        shutil.copytree(PROJECT, made.project)
        made.root.mkdir()
        store = open_store(str(made.root))
        made.log = await LogWriter.open(store)
        made.tables = await Process.start(store, made.log)
        cluster_log = ClusterLog(store, made.log.cluster.cluster_id)
        await cluster_log.append(set_schema(("default", "telemetry"), SCHEMA), Author(0, "mara", ""))
        return made

    log: LogWriter
    tables: Process

    async def write(self, first: int) -> None:
        """Add twenty records, one of which does not fit."""
        values = [*({"temperature": float(at)} for at in range(first, first + 19)), {"temperature": "hot"}]
        await self.log.append(0, readings(*values, first=first))
        await self.tables.write(StreamSchema(1, SCHEMA))

    def build(self, command: tuple[str, ...], path: str, **variables: str) -> None:
        """Run `dbt build`, which fails when a test of the project does."""
        own = {"PYTHONPATH": path, "WEFT_STORE": str(self.root), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.project,
            env=os.environ | own | variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=BUILD_S_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def obtained(package: Package) -> str:
    try:
        return str(package.obtain())
    except LookupError as reason:
        pytest.skip(str(reason))


async def test_the_example_project_has_each_record_once(tmp_path: Path) -> None:
    libraries = obtained(DBT)
    plant = await Plant.make(tmp_path)
    await plant.write(0)
    plant.build(DUCKDB, libraries)
    plant.build(DUCKDB, libraries)
    await plant.write(20)
    plant.build(DUCKDB, libraries)
    with duckdb.connect(str(plant.project / "plant.duckdb"), read_only=True) as made:
        counts = "SELECT count(*), count(DISTINCT reading_id), count(temperature) FROM readings"
        assert made.sql(counts).fetchall() == [(40, 40, 38)]
        assert made.sql("SELECT sum(readings), sum(misfits) FROM machine_hours").fetchall() == [(40, 2)]


@pytest.mark.spark
async def test_the_example_project_has_each_record_once_in_spark(tmp_path: Path) -> None:
    libraries, delta = obtained(DBT), obtained(DELTA_SPARK)
    plant = await Plant.make(tmp_path)
    home = find_java_home(os.environ, cache_directory())
    java = java_options() | ({} if home is None else {"JAVA_HOME": home})
    # Hive makes a folder of each session in Java's temporary folder, and leaves it.
    hive = f"--conf spark.hadoop.hive.downloaded.resources.dir={tmp_path}/hive"
    java["PYSPARK_SUBMIT_ARGS"] = f"--conf spark.jars.ivy={delta}/ivy {hive} pyspark-shell"
    for first in (0, 20):
        await plant.write(first)
        plant.build(SPARK, os.pathsep.join([str(ROOT), libraries]), **java)
    made = DeltaTable(str(plant.project / "spark-warehouse" / "plant.db" / "readings"))
    assert made.version() == 1, "the second run added, and made nothing anew"
    rows = made.to_pyarrow_table()
    assert rows.num_rows == 40
    assert len(set(rows["reading_id"].to_pylist())) == 40
    assert rows["temperature"].null_count == rows["is_misfit"].to_pylist().count(True) == 2


# --- The code of docs/how-to/run-by-a-scheduler.md, run by Airflow and by Dagster on a store that grows


CODE = Path(__file__).parents[2] / "docs" / "how-to" / "run-by-a-scheduler"
RUN_S_MAX = 400


class Scheduler:
    """An installation with libraries and folders of its own, whose jobs call the `weft` of this environment."""

    def __init__(self, package: Package, folder: Path, plant: Plant, code: str) -> None:
        try:
            libraries = str(package.obtain())
        except LookupError as reason:
            pytest.skip(str(reason))
        self.home = folder / "scheduler"
        self.home.mkdir()
        shutil.copy(CODE / code, self.home)
        weft = self.home / "weft"
        weft.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH {Path(sys.executable).parent / "weft"} "$@"\n')
        weft.chmod(0o755)
        own = {"PYTHONPATH": libraries, "WEFT": str(weft), "WEFT_STORE": str(plant.root), "WEFT_FOLDER": str(self.home)}
        self._environment = os.environ | java_options() | own

    def run(self, *command: str, **variables: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.home,
            env=self._environment | variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    @property
    def rows(self) -> int:
        return int(DeltaTable(str(self.home / "clean")).count())


@pytest.mark.spark
async def test_dagster_makes_the_assets_of_the_page(tmp_path: Path) -> None:
    plant = await Plant.make(tmp_path)
    await plant.write(0)
    dagster = Scheduler(DAGSTER, tmp_path, plant, "dagster_assets.py")
    home = {"DAGSTER_HOME": str(dagster.home), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    dagster.run("dagster", "asset", "materialize", "--select", "*", "-f", "dagster_assets.py", **home)
    assert dagster.rows == 20


@pytest.mark.spark
async def test_airflow_runs_the_dag_of_the_page(tmp_path: Path) -> None:
    plant = await Plant.make(tmp_path)
    await plant.write(0)
    airflow = Scheduler(AIRFLOW, tmp_path, plant, "airflow_dag.py")
    home = {
        "AIRFLOW_HOME": str(airflow.home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(airflow.home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    airflow.run("airflow", "db", "migrate", **home)
    airflow.run("airflow", "dags", "test", "weft_telemetry", **home)
    assert airflow.rows == 20
