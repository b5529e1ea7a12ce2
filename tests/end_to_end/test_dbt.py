"""The example project of dbt: built by dbt on a hub's table, again and again, each record once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.cloud_hub.tables.logs import LogWriter
from tests.cloud_hub.tables.test_typed import Process, readings
from tests.support.third_party import DBT
from weft.config.pipelines.schema_text import parse_schema
from weft.storage.object_store import open_store
from weft.storage.table.schemas import StreamSchema

PROJECT = Path(__file__).parents[2] / "docs" / "how-to" / "transform-with-dbt"
SCHEMA = StreamSchema(3, parse_schema("temperature float"))
DBT_S = 240


def build(folder: Path, libraries: Path) -> None:
    """Run `dbt build`, which fails when a test of the project does."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(libraries),
        "WEFT_STORE": str(folder / "store"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    command = [sys.executable, "-c", "from dbt.cli.main import cli; cli()", "build", "--profiles-dir", "."]
    done = subprocess.run(
        command, cwd=folder / "project", env=environment, check=False, capture_output=True, text=True, timeout=DBT_S
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
async def test_the_example_project_has_each_record_once(tmp_path: Path) -> None:
    try:
        libraries = DBT.obtain()
    except LookupError as reason:
        pytest.skip(str(reason))
    shutil.copytree(PROJECT, tmp_path / "project")
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    log = await LogWriter.open(store)
    process = await Process.start(store, log)
    for first in (0, 20):
        values = [*({"temperature": float(at)} for at in range(first, first + 19)), {"temperature": "hot"}]
        await log.append(0, readings(*values, first=first))
        await process.write(SCHEMA)
        build(tmp_path, libraries)
        build(tmp_path, libraries)
    with duckdb.connect(str(tmp_path / "project" / "plant.duckdb"), read_only=True) as made:
        assert made.sql("SELECT count(*), count(DISTINCT reading_id), count(temperature) FROM readings").fetchone() == (
            40, 40, 38,
        )  # fmt: skip
        assert made.sql("SELECT sum(readings), sum(misfits) FROM machine_hours").fetchone() == (40, 2)
