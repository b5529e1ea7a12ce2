"""A table whose stream says `payload: json` or `text`: strings that engines open, and no byte lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from weft.protocols.payloads import PayloadKind
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import PAYLOAD_PROPERTY
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings

PAYLOADS = [b'{"t": 21.5}', b"\xff\x00", b"plain", b"", b'{"t": "\xc3\xa9"}', b'{"t": 1']
JSON, TEXT, BYTES = PayloadKind.JSON, PayloadKind.TEXT, PayloadKind.BYTES


def run(first: int = 0, kind: int | None = None, lane: object = LANE, payloads: list[bytes] = PAYLOADS) -> Run:
    return Run(lane, first, len(payloads), topics=TOPICS, payloads=payloads, kind=kind)  # type: ignore[arg-type]


def payloads(store: ObjectStore) -> list[tuple[object, object]]:
    found = rows(store, columns=["_shard", "_offset", "payload", "_payload_bytes"]).to_pylist()
    return [(row["payload"], row["_payload_bytes"]) for row in found]


def columns(store: ObjectStore) -> dict[str, pa.DataType]:
    schema = pa.schema(table(store).schema())
    return {name: schema.field(name).type for name in schema.names if "payload" in name}


AS_JSON = [
    ('{"t": 21.5}', None),
    (None, b"\xff\x00"),
    (None, b"plain"),
    (None, b""),
    ('{"t": "é"}', None),
    (None, b'{"t": 1'),
]
AS_TEXT = [
    ('{"t": 21.5}', None),
    (None, b"\xff\x00"),
    ("plain", None),
    ("", None),
    ('{"t": "é"}', None),
    ('{"t": 1', None),
]


@pytest.mark.parametrize(("kind", "expected"), [(JSON, AS_JSON), (TEXT, AS_TEXT)])
async def test_payloads_are_strings_and_what_is_none_keeps_its_bytes(
    store: ObjectStore, kind: PayloadKind, expected: list[tuple[object, object]]
) -> None:
    log = await LogWriter.open(store)
    await log.append(0, run(kind=kind))
    await drain(tierer := await new_tierer(store, log))
    assert payloads(store) == expected
    assert columns(store) == {"payload": pa.string(), "_payload_bytes": pa.binary()}
    assert (tierer.payload, table(store).metadata().configuration[PAYLOAD_PROPERTY]) == (kind, kind.label)
    protocol = table(store).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


async def test_engines_open_the_json_of_a_table_that_has_other_bytes_too(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run(kind=JSON))
    await drain(await new_tierer(directory, log))
    files = table(directory).file_uris()
    query = "SELECT (payload->>'$.t') AS t FROM read_parquet(?) WHERE payload->>'$.t' IS NOT NULL ORDER BY t"
    assert duckdb.execute(query, [files]).fetchall() == [("21.5",), ("é",)]
    database = duckdb.connect()
    database.register("telemetry", table(directory).to_pyarrow_dataset())
    assert database.execute("SELECT count(payload::JSON) FROM telemetry").fetchall() == [(2,)]
    found = pl.scan_delta(table(directory)).select(pl.col("payload").str.json_path_match("$.t")).collect()
    assert sorted(found["payload"].drop_nulls()) == ["21.5", "é"]


async def test_a_rewrite_and_a_restart_keep_payloads_as_they_were(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for number in range(3):
        await log.append(0, run(number * len(PAYLOADS), JSON if number == 0 else None))
        await drain(tierer := await new_tierer(directory, log))
    await Maintenance(directory, tierer, settings=TableSettings(compact_files_min=2)).maintain()
    assert len(table(directory).file_uris()) == 1
    assert payloads(directory) == AS_JSON * 3


@pytest.mark.parametrize("order", [(JSON, TEXT), (TEXT, JSON), (BYTES, JSON), (99, JSON)])
async def test_of_edges_that_differ_the_strictest_counts_in_any_order(directory: ObjectStore, order: list[int]) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run(kind=order[0]), run(kind=order[1], lane=OTHER))
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == AS_JSON * 2


async def test_a_table_of_bytes_stays_one_and_the_hub_says_so_once(
    directory: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run())
    await drain(await new_tierer(directory, log))
    await log.append(0, run(6, JSON))
    await log.append(0, run(0, JSON, OTHER))
    tierer = await new_tierer(directory, log)
    with caplog.at_level(logging.WARNING):
        await drain(tierer)
    assert columns(directory) == {"payload": pa.binary()}
    assert rows(directory).column("payload").to_pylist() == PAYLOADS * 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "the table of default/telemetry has payloads as bytes and keeps them; edge press-1 has payload: json. "
        "To change the table, move it away: the hub makes it again from the log"
    )


async def test_a_table_of_json_stays_one_when_edges_say_something_else(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run(kind=JSON))
    await drain(await new_tierer(directory, log))
    await log.append(0, run(6, BYTES))
    await log.append(1, run(0, TEXT, OTHER))
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == AS_JSON * 3


async def test_a_table_moved_away_is_made_for_what_edges_say_now(directory: ObjectStore, tmp_path: Path) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run())
    service = TableService(directory, log.cluster)
    await service.run_once()
    assert service.payload("default", "telemetry") is BYTES
    await log.append(0, run(6, JSON))
    await service.run_once()
    assert columns(directory) == {"payload": pa.binary()}
    shutil.move(tmp_path / "store/tables/default/telemetry", tmp_path / "moved")
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == AS_JSON * 2


async def test_a_level_that_is_called_like_our_column_changes_nothing(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 2, b"a/b", ["{_payload_bytes}/{line}"], payloads=[b"1", b"\xff"], kind=JSON))
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == [("1", None), (None, b"\xff")]
