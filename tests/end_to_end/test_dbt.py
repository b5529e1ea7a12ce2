"""The example project of dbt: built by dbt on a hub's table, again and again, each record once."""

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
from tests.cloud_hub.tables.test_typed import Process, readings
from tests.end_to_end.page_reader import java_options
from tests.support.third_party import DBT, DELTA_SPARK, Package
from weft.cloud_hub.facts.streams import set_schema
from weft.config.load import parse_schema
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import open_store
from weft.storage.table.schemas import StreamSchema

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "docs" / "how-to" / "transform-with-dbt"
SCHEMA = parse_schema("temperature float")
BUILD_S_MAX = 400
DUCKDB = ("-c", "from dbt.cli.main import cli; cli()", "build", "--profiles-dir", ".")
SPARK = ("build_on_spark.py",)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


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
