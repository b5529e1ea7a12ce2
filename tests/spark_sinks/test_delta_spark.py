"""Our tables through delta-spark's reader, as docs/how-to/open-the-table.md says it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from spark_sinks.runtime.session import cache_directory, find_java_home
from tests.end_to_end.page_reader import blocks, java_options
from tests.spark_sinks.conftest import Hub
from tests.support.third_party import DELTA_SPARK, DUCKDB_DELTA
from weft.config.load import parse_schema
from weft.protocols.payloads import PayloadKind
from weft.storage.table.schemas import StreamSchema

pytestmark = [pytest.mark.search(turns=4), pytest.mark.spark, pytest.mark.timeout(590)]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "open-the-table.md"
RUN_SECONDS_MAX = 500
FEED = """
feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
feed = feed.load("store/latest/default/telemetry").orderBy("_commit_version").collect()
print("kinds", sorted({row["_change_type"] for row in feed}))
came = [row for row in feed if row["_change_type"] in ("insert", "update_postimage")]
print("newest", sorted({row["_key"]: row["_seq"] for row in came}.items()))
"""


VERSIONS = """
import json
spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
for version in range(NEWEST + 1):
    frame = spark.read.format("delta").option("versionAsOf", version).load("store/tables/default/telemetry")
    rows = frame.select(*[name for name in NAMES if name in frame.columns]).collect()
    found = sorted((row.asDict(recursive=True) for row in rows), key=lambda row: (row["_shard"], row["_offset"]))
    print("version", json.dumps(found, default=str))
"""
OWN_READER = """
import glob, json, sys
import duckdb
folder, place, uri, newest, *names = sys.argv[1:]
extension, = glob.glob(f"{folder}/duckdb_extension_delta/extensions/*/delta.duckdb_extension")
database = duckdb.connect(config={"extension_directory": place})
database.execute(f"INSTALL '{extension}'; LOAD delta")
for version in range(int(newest) + 1):
    scan = f"delta_scan('{uri}', version := {version})"
    there = [row[0] for row in database.sql(f"DESCRIBE SELECT * FROM {scan}").fetchall()]
    kept = ", ".join(name for name in names if name in there)
    rows = database.sql(f"SELECT {kept} FROM {scan} ORDER BY _shard, _offset").to_arrow_table().to_pylist()
    print("version", json.dumps(rows, default=str))
"""
"""Scripts that print the rows of each version."""
SCHEMAS = (
    None,
    "n int",
    {"fields": {"n": {"type": "int", "required": True}, "t": {"type": "float", "unit": "K"}}},
    {"fields": {"n": "string", "t": {"type": "float", "unit": "K"}, "line": "string"}},
    {"fields": {"n": "int", "t": {"type": "float", "unit": "C"}, "rpm": {"type": "array<int>", "from": "m.rpm"}}},
    {"fields": {"n": "int", "day": "date", "local": "local_timestamp"}},
)
NAMES = [
    "_shard",
    "_offset",
    "_edge",
    "_seq",
    "n",
    "n_2",
    "t",
    "t_2",
    "line_2",
    "rpm",
    "day",
    "local",
    "_schema",
    "_misfit",
]


@pytest.fixture(scope="module")
def downloads() -> Path:
    """A folder with delta-spark, of the version that the page names, and its jars."""
    assert f"pip install {DELTA_SPARK.name}`" in PAGE.read_text()
    try:
        return DELTA_SPARK.obtain()
    except LookupError as error:
        pytest.skip(str(error))


def ran(session: str, script: str, folder: Path, downloads: Path) -> str:
    """What a script prints after the start of its session."""
    file = folder / "script.py"
    file.write_text(f"{session}\n{script}")
    home = find_java_home(os.environ, cache_directory())
    own = {
        "PYTHONPATH": f"{downloads}{os.pathsep}{ROOT}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.jars.ivy={downloads / 'ivy'} --conf spark.ui.enabled=false pyspark-shell",
    }
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env=os.environ | own | java_options() | ({} if home is None else {"JAVA_HOME": home}),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_delta_reader_opens_our_table(
    hub: Hub, tmp_path: Path, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:  # files of earlier releases have no numbers of columns
        earlier.setattr("weft.storage.table_writer.parquet_file.with_field_ids", lambda schema: schema)
        hub.write(1)
        rows = hub.tier()
    hub.latest()
    hub.write(1)
    rows += hub.tier()
    newest = hub.latest()
    (tmp_path / "store").symlink_to(hub.root)
    script = next(block.text for block in blocks(PAGE) if 'format("delta")' in block.text)
    assert "table(spark" in script
    count = "print('rows', table(spark, 'telemetry', store='store').count())"
    reported = ran(script, f"{count}\n{FEED}", tmp_path, downloads)
    assert re.search(r"\|\s*m0\|\s*40\|", reported)
    assert f"rows {rows}" in reported
    assert "kinds ['insert', 'update_postimage', 'update_preimage']" in reported
    assert f"newest {newest}" in reported


def test_five_readers_agree_on_every_version_of_a_table_whose_schema_changes(
    hub: Hub, tmp_path: Path, downloads: Path
) -> None:
    hub.kind, hub.payload = PayloadKind.JSON, reading
    for number, text in enumerate(SCHEMAS):
        hub.write(1)
        assert hub.tier(StreamSchema(number, parse_schema(text)) if text is not None else None) == 40
    (tmp_path / "store").symlink_to(hub.root)
    page = next(block.text for block in blocks(PAGE) if 'format("delta")' in block.text)
    session = page.partition("getOrCreate()")[0] + "getOrCreate()"
    newest = DeltaTable(f"{hub.root}/tables/default/telemetry")
    reported = ran(session, f"NEWEST, NAMES = {newest.version()}, {NAMES}\n{VERSIONS}", tmp_path, downloads)
    by_spark = versions(reported)
    assert len(by_spark) == newest.version() + 1
    counts = [len(rows) for rows in by_spark]
    assert counts == sorted(counts), "no version takes a row back"
    assert counts[-1] == 40 * len(SCHEMAS)
    assert by_duckdb(newest, tmp_path) == by_spark
    for version, rows in enumerate(by_spark):
        newest.load_as_version(version)
        for engine, found in in_other_engines(newest).items():
            assert found == rows, (version, engine)
    assert {row["_schema"] for row in by_spark[-1]} == {None, *range(1, len(SCHEMAS))}
    assert any(row["_misfit"] for row in by_spark[-1])


def versions(text: str) -> list[list[dict[str, Any]]]:
    """The rows of each version that a script has printed."""
    return [
        [_with_map(row) for row in json.loads(line.partition(" ")[2])]
        for line in text.splitlines()
        if line.startswith("version ")
    ]


def by_duckdb(newest: DeltaTable, folder: Path) -> list[list[dict[str, Any]]]:
    """The rows of each version by DuckDB's own reader of Delta tables."""
    try:
        libraries = str(DUCKDB_DELTA.obtain())
    except LookupError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            OWN_READER,
            libraries,
            folder / "extensions",
            newest.table_uri,
            str(newest.version()),
            *NAMES,
        ],
        env=os.environ | {"PYTHONPATH": libraries},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return versions(done.stdout)


def reading(edge: str, seq: int) -> bytes:
    times = {"day": "2026-11-01", "local": f"2026-11-01T12:00:0{seq % 10}"}
    return json.dumps({"n": seq, "t": seq / 2, "line": "é", "m": {"rpm": [seq, None]}} | times).encode()


def in_other_engines(table: DeltaTable) -> dict[str, list[dict[str, Any]]]:
    """The rows of a version as each engine has them; maps as delta-spark gives them."""
    there = [field.name for field in table.schema().fields]
    names = [name for name in NAMES if name in there]
    found: dict[str, list[dict[str, Any]]] = {}
    by = [("_shard", "ascending"), ("_offset", "ascending")]
    found["delta-rs"] = table.to_pyarrow_table(columns=names).sort_by(by).to_pylist()
    if table.file_uris():
        lazy = pl.scan_delta(table).select(names).sort("_shard", "_offset")
        found["polars"] = lazy.collect().to_dicts()
        database = duckdb.connect()
        database.register("telemetry", table.to_pyarrow_dataset())
        query = f"SELECT {', '.join(names)} FROM telemetry ORDER BY _shard, _offset"
        found["duckdb"] = database.sql(query).to_arrow_table().to_pylist()
    return {
        engine: [_with_map(row) for row in json.loads(json.dumps(rows, default=str))] for engine, rows in found.items()
    }


def _with_map(row: dict[str, Any]) -> dict[str, Any]:
    reported = row.get("_misfit")
    return row if reported is None else row | {"_misfit": dict(map(_pair, _entries(reported)))}


def _entries(found: Any) -> Any:
    return found.items() if isinstance(found, dict) else found


def _pair(entry: Any) -> tuple[str, str]:
    return (entry["key"], entry["value"]) if isinstance(entry, dict) else entry
