"""Drift of payloads through edge, hub and engines: each value is in its column, or has a reason, in all alike."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from tests.cloud_hub.tables.drift import COLUMNS, DRIFTS, SCHEMA, expected, page, shown, silent_nulls
from tests.cloud_hub.tables.logs import LogWriter, rows, table
from tests.cloud_hub.tables.test_typed import Process, readings
from weft.storage.object_store import ObjectStore
from weft.storage.payloads.check import PayloadCheck

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "typed-tables.md"


async def test_all_kinds_of_drift_show_the_same_in_edge_hub_and_engines(directory: ObjectStore) -> None:
    assert silent_nulls() == []
    log = await LogWriter.open(directory, shards=1)
    await log.append(0, readings(*(each.payload.encode() for each in DRIFTS)))
    await (await Process.start(directory, log)).write(SCHEMA)
    names = ["_offset", *COLUMNS, "_misfit"]
    check = PayloadCheck(SCHEMA.schema)
    at_the_edge = [tuple(sorted(dict(check.misfits(each.payload.encode())))) for each in DRIFTS]
    assert at_the_edge == [misfits for _, misfits in expected()]
    assert [shown(row) for row in rows(directory).to_pylist()] == expected()
    by_polars = pl.scan_delta(table(directory)).select(names).sort("_offset").collect()
    assert [shown(row) for row in by_polars.to_dicts()] == expected()
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.register("telemetry", table(directory).to_pyarrow_dataset())
    columns = ", ".join(f'"{name}"' for name in names)  # `at` is a word of its own there
    (file,) = (path.removeprefix("file://") for path in table(directory).file_uris())
    for source in ("telemetry", f"read_parquet('{file}')"):
        found = database.sql(f"SELECT {columns} FROM {source} ORDER BY _offset").fetchall()
        assert [shown(dict(zip(names, row, strict=True))) for row in found] == expected(), source


def test_the_page_shows_what_was_found() -> None:
    text = PAGE.read_text()
    missing = [line for line in page() if line not in text]
    assert not missing, "rows for the table of drift in docs/how-to/typed-tables.md:\n" + "\n".join(page())
