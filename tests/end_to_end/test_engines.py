"""What engines of others read of a table, as docs/how-to/read-from-engines.md says it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_sinks.runtime.session import cache_directory, find_java_home
from tests.cloud_hub.live import running_hub
from tests.cloud_hub.tables.logs import LogWriter
from tests.cloud_hub.tables.test_columns import DAYS, WROTE, readings
from tests.end_to_end.page_reader import blocks, java_options
from tests.support.third_party import CHDB, DELTA_SHARING, DELTA_SPARK, DUCKDB_DELTA, DUCKDB_ICEBERG, Package
from tests.support.tokens import create_token, declare_tokens
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.facts.streams import set_schema
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store
from weft.storage.table import iceberg

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs/how-to/read-from-engines.md"
WANTED = [
    [0, "date 2026-11-01", "datetime 2026-11-01T12:00:00.000001", "datetime 2026-11-01T11:00:00+00:00"],
    [1, "date 2026-12-24", "datetime 2026-12-24T23:59:59", "datetime 2026-11-01T11:00:00+00:00"],
    [2, None, None, None],
]
WITHOUT_ZONE = json.loads(json.dumps(WANTED).replace("+00:00", ""))
"""As ClickHouse has them by Delta's log: each time as one without a zone, in UTC."""
"""Offset, day, local time and time of each row, with Python's types of the last three."""
SHOW = """
import json
from datetime import UTC
def shown(value):
    if value is None or value != value:
        return None
    if hasattr(value, "to_pydatetime"):  # of pandas
        value = value.to_pydatetime()
    if getattr(value, "tzinfo", None):  # some show a moment in the zone of the machine
        value = value.astimezone(UTC)
    return f"{type(value).__name__} {value.isoformat()}"
print("ROWS", json.dumps(sorted([int(row[0]), *map(shown, row[1:])] for row in rows)))
"""
NAMES = ["_offset", "day", "local", "at"]
FROM_ARROW = f"rows = [[row[name] for name in {NAMES}] for row in telemetry.to_pylist()]"
FROM_DUCKDB = "rows = telemetry.select('_offset', 'day', 'local', 'at').fetchall()"
FROM_POLARS = f"rows = telemetry.select({NAMES}).collect().rows()"
FROM_PANDAS = f"rows = telemetry[{NAMES}].astype(object).itertuples(index=False)"
FROM_SPARK = f"""
rows = telemetry.select({NAMES}).collect()
assert dict(telemetry.dtypes)["local"] == "timestamp_ntz"
rows = [[*row[:3], row[3] and row[3].astimezone()] for row in rows]  # Python has moments of Spark in the local zone
"""
WITH_EXTENSIONS = """
import sys
from pathlib import Path
import duckdb
with duckdb.connect() as database:
    for folder in sys.path:
        for library in Path(folder).glob("duckdb_extension_*/extensions/*/*.duckdb_extension"):
            database.execute(f"INSTALL '{library}'")
"""
"""DuckDB's extensions, as if it had downloaded them."""
FROM_CLICKHOUSE = f"""
import json
from datetime import UTC, date, datetime
import chdb
answer = json.loads(str(chdb.query(query, "JSON")))
types = {{each["name"]: each["type"] for each in answer["meta"]}}
def value(name, text):
    if text is None or name == "_offset":
        return text
    if "DateTime64" not in types[name]:
        return date.fromisoformat(text)
    return datetime.fromisoformat(text).replace(tzinfo=UTC if "UTC" in types[name] else None)
rows = [[value(name, row[name]) for name in {NAMES}] for row in answer["data"]]
"""


class Engine(NamedTuple):
    """How a test reads with an engine."""

    package: Package | None
    """What it needs beside the tests' own environment."""
    begins: str
    """The line of the page's block that no other has."""
    rows: str
    """Gives ``rows`` of what the block calls ``telemetry``."""
    before: str = ""


ENGINES = {
    "pyiceberg": Engine(None, ".scan().to_arrow()", FROM_ARROW),
    "duckdb by iceberg": Engine(DUCKDB_ICEBERG, "TYPE iceberg, ENDPOINT", FROM_DUCKDB, WITH_EXTENSIONS),
    "duckdb by delta": Engine(DUCKDB_DELTA, "delta_scan", FROM_DUCKDB, WITH_EXTENSIONS),
    "polars by delta": Engine(None, "pl.scan_delta", FROM_POLARS),
    "polars by iceberg": Engine(None, "pl.scan_iceberg", FROM_POLARS),
    "pandas": Engine(DELTA_SHARING, "load_as_pandas", FROM_PANDAS),
    "spark by delta": Engine(DELTA_SPARK, 'format("delta")', FROM_SPARK),
    "clickhouse by iceberg": Engine(CHDB, "icebergLocal", FROM_CLICKHOUSE),
    "clickhouse by delta": Engine(CHDB, "deltaLakeLocal", FROM_CLICKHOUSE),
}


@pytest.fixture
async def token(tmp_path: Path) -> str:
    """A token of a hub whose stream has days and times."""
    store = open_store(str(tmp_path / "store"))
    log = await LogWriter.open(store, shards=1)
    later = WROTE | {"day": "2026-12-24", "local": "2026-12-24T23:59:59"}
    await log.append(0, readings(WROTE, later, {"m": [1]}))
    declared = ClusterLog(store, log.cluster.cluster_id)
    await declared.append(set_schema(("default", "telemetry"), DAYS.schema), Author(0, "mara", ""))
    made = create_token(tmp_path / "tokens.yaml", "reader", Scope.READER)
    await declare_tokens(store, str(tmp_path / "tokens.yaml"), shards=1)
    return made


@pytest.fixture
async def hub(tmp_path: Path, token: str) -> AsyncIterator[Hub]:
    store = open_store(str(tmp_path / "store"))
    makes = {"iceberg": True, "table_interval_s": 0.05, "iceberg_interval_s": 0.05, "shards": 1}
    async with running_hub(store, sharing=True, **makes) as hub:

        async def is_made() -> bool:
            return await iceberg.current(store, table_key("default", "telemetry")) is not None

        await until(is_made)
        profile = {"shareCredentialsVersion": 1, "endpoint": f"{hub.url}/delta-sharing", "bearerToken": token}
        (tmp_path / "quality-team.share").write_text(json.dumps(profile))
        yield hub


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in ENGINES if not name.startswith("spark")], id="libraries"),
        pytest.param(["spark by delta"], id="spark", marks=pytest.mark.spark),
    ],
)
async def test_days_and_times_arrive_as_such(hub: Hub, token: str, tmp_path: Path, names: list[str]) -> None:
    found = dict(zip(names, await asyncio.gather(*(read(name, hub, token, tmp_path) for name in names)), strict=True))
    missing = {name: rows for name, rows in found.items() if isinstance(rows, str)}
    assert found == {name: WITHOUT_ZONE if name == "clickhouse by delta" else WANTED for name in names} | missing
    if missing:
        pytest.skip(f"the others are right: {missing}")


async def read(name: str, hub: Hub, token: str, folder: Path) -> Any:
    """Return the rows that an engine has in the folder with the store, or why it cannot be had."""
    engine, home = ENGINES[name], folder / name
    try:
        libraries = "" if engine.package is None else str(engine.package.obtain())
    except LookupError as error:
        return str(error)
    (block,) = (block for block in blocks(PAGE) if engine.begins in block.text)
    code = block.text if block.language == "python" else f"query = {block.text!r}"
    script = "\n".join((engine.before, code.replace("http://127.0.0.1:8090", hub.url), engine.rows, SHOW))
    # A home of its own: DuckDB keeps extensions there. A zone that is not UTC tells who takes local times for moments.
    own = {"HOME": str(home), "TZ": "Asia/Tokyo", "WEFT_TOKEN": token, "PYTHONPATH": libraries}
    if engine.package is DELTA_SPARK:
        java = find_java_home(os.environ, cache_directory())
        small = "--conf spark.databricks.delta.snapshotPartitions=1 --conf spark.ui.enabled=false"
        ivy = f"--conf spark.jars.ivy={libraries}/ivy {small} pyspark-shell"
        own |= java_options() | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": ivy}
        own |= {} if java is None else {"JAVA_HOME": java}
    home.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        cwd=folder,
        env=os.environ | own,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S * 3)
    finally:
        if process.returncode is None:
            process.kill()
    lines = [line for line in said.decode().splitlines() if line.startswith("ROWS ")]
    assert lines, (name, said.decode()[-3000:])
    return json.loads(lines[0].removeprefix("ROWS "))
