"""The code of docs/how-to/run-by-a-scheduler.md, run by Airflow and by Dagster on a store that grows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.end_to_end.page_reader import java_options
from tests.end_to_end.test_dbt import Plant
from tests.support.third_party import AIRFLOW, DAGSTER, Package

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]
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


async def test_dagster_makes_the_assets_of_the_page(tmp_path: Path) -> None:
    plant = await Plant.make(tmp_path)
    await plant.write(0)
    dagster = Scheduler(DAGSTER, tmp_path, plant, "dagster_assets.py")
    home = {"DAGSTER_HOME": str(dagster.home), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    dagster.run("dagster", "asset", "materialize", "--select", "*", "-f", "dagster_assets.py", **home)
    assert dagster.rows == 20


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
