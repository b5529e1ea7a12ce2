"""Drift of payloads through edge, hub and engines: each value is in its column, or has a reason, in all alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

import duckdb
import polars as pl

from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.drift import COLUMNS, DRIFTS, SCHEMA, expected, page, shown, silent_nulls
from tests.cloud_hub.tables.logs import LogWriter, rows, table
from tests.cloud_hub.tables.test_typed import Process, readings
from weft.client import Client
from weft.cloud_hub.facts.streams import set_schema
from weft.storage.cluster_log import Author, ClusterLog
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


async def test_rows_through_a_hub_have_the_columns_of_the_declared_schema(directory: ObjectStore) -> None:
    """With a token and no key of the store, a program sees what the engines see, in Arrow, pandas and polars."""
    log = await LogWriter.open(directory, shards=1)
    await log.append(0, readings(*(each.payload.encode() for each in DRIFTS)))
    declared = ClusterLog(directory, log.cluster.cluster_id)
    before = await declared.append(set_schema(("default", "telemetry"), SCHEMA.schema), Author(0, "mara", ""))
    async with running_hub(directory, shards=1) as hub:
        client = Client(hub.url)
        (found,) = await asyncio.to_thread(lambda: list(client.all_rows("telemetry", 0)))
        plain = await asyncio.to_thread(lambda: client.rows("telemetry", shard=0, columns=None))
        status, looked = await get(hub, "/v1/streams/telemetry/rows?shard=0&format=json&columns=typed&limit=9")
    assert [shown(row) for row in found.arrow().to_pylist()] == expected()
    assert [shown(row) for row in found.polars().to_dicts()] == expected()
    assert found.pandas()["t"].count() == sum("t" in (each.shows or {}) for each in DRIFTS)
    assert set(found.arrow()["_schema"].to_pylist()) == {before.n}
    assert found.arrow().schema.field("t").metadata[b"comment"] == "[°C]".encode()
    assert not {*COLUMNS, "_misfit", "_schema"} & set(plain.arrow().column_names), "older readers make their own"
    assert (status, [row.get("t") for row in looked["rows"]]) == (
        200,
        [(each.shows or {}).get("t") for each in DRIFTS[:9]],
    )


def test_the_page_shows_what_was_found() -> None:
    text = PAGE.read_text()
    missing = [line for line in page() if line not in text]
    assert not missing, "rows for the table of drift in docs/how-to/typed-tables.md:\n" + "\n".join(page())
