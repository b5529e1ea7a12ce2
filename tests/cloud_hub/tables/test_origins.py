"""Column ``_origin``: which version of which function made a row, whatever its number meant before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.live import running_hub
from tests.cloud_hub.tables.logs import LANE, LogWriter, Run, contents, expected, rows, table
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.edge_node.timing import clock_reader, wall_clock
from weft.proofs.audit.audit import audit
from weft.protocols.lane import Origin, OriginKind
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.table.delta import DeltaHandle
from weft.storage.table.rows import row_schema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import TableSettings

FUNCTION = OriginKind.FUNCTION
FIRST, SECOND = (Origin(1, FUNCTION, "calm", version, bytes([7] * 8)) for version in ("1", "2"))


def origins(store: ObjectStore) -> list[str | None]:
    found: list[str | None] = rows(store).column("_origin").to_pylist()
    return found


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    loop = asyncio.new_event_loop()
    log = SegmentLog.open(
        str(tmp_path / "data"),
        LogSettings(segment_bytes=1 << 20),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.getrandbits,
        post=lambda callback: callback(),
        start_writer=False,
    )
    yield log
    log.close()
    loop.close()


def append(log: SegmentLog, *payloads: bytes, origin: int = 0) -> None:
    log.append(
        log.stream("telemetry"), wall_clock(), [b"plant/a/m1/telemetry"] * len(payloads), list(payloads), origin=origin
    )
    log.committer.run_once()


async def deliver(log: SegmentLog, hub: Hub, folder: Path, records: int) -> None:
    """Replicate a log, until this many records of it were acknowledged to this link."""
    link = LinkConfig(to=(hub.url,), retry_min_s=0.01, retry_max_s=0.05)
    streams = {"telemetry": Stream(from_=("plant/{line}/{machine}/telemetry",))}
    config = EdgeConfig(node="press-1", data_dir=str(folder), streams=streams, links={"cloud": link})
    links = Links(config, log, wall_clock=wall_clock)
    links.start()
    await until(lambda: links.statuses[0].records_acked == records)
    await links.close()


@pytest.mark.slow
async def test_two_versions_of_a_function_and_a_device_share_a_table(
    tmp_path: Path, store: ObjectStore, log: SegmentLog
) -> None:
    """From the edge's log over a link to a hub, and into DuckDB. A second link tells the numbers again."""
    first = log.origin(FUNCTION, "calm", "1", bytes.fromhex("8a1f03c4aa"))
    append(log, b"1", b"2")
    append(log, b"3", origin=first)
    async with running_hub(store, table_interval_s=0.05) as hub:
        await deliver(log, hub, tmp_path / "data", 3)
        second = log.origin(FUNCTION, "calm", "2", bytes.fromhex("ffeeddcc"))
        append(log, b"4", b"5", origin=second)
        append(log, b"6", origin=first)
        await deliver(log, hub, tmp_path / "data", 3)
        made = tmp_path / "store/tables/default/telemetry/_delta_log/00000000000000000000.json"
        await until(lambda: made.exists() and rows(store).num_rows == 6)
    telemetry = table(store).to_pyarrow_dataset()
    assert telemetry.count_rows() == 6
    found = duckdb.sql("SELECT payload::VARCHAR, _origin FROM telemetry ORDER BY _seq").fetchall()
    one, two = "calm@1#8a1f03c4", "calm@2#ffeeddcc"
    assert found == [("1", None), ("2", None), ("3", one), ("4", two), ("5", two), ("6", one)]
    report = await audit(store, "default", "telemetry", payloads=True)
    assert (report.agrees, report.origins()) == (True, {one: 2, two: 2})


async def test_a_number_means_what_its_chunk_says(store: ObjectStore) -> None:
    """The lane forgets, and learns another meaning, before the table gets to the first chunk."""
    writer = await LogWriter.open(store)
    await writer.append(0, Run(LANE, 0, 2, origin=FIRST))
    await writer.append(0, Run(LANE, 2, 2, origin=SECOND))
    await writer.append(0, Run(LANE, 4, 1))
    await drain(await new_tierer(store, writer))
    assert origins(store) == ["calm@1#07070707"] * 2 + ["calm@2#07070707"] * 2 + [None]


async def test_a_number_that_nothing_explains_stays_a_number(store: ObjectStore) -> None:
    writer = await LogWriter.open(store)
    await writer.append(0, Run(LANE, 0, 1, origin=FIRST, explained=False))
    await drain(await new_tierer(store, writer))
    assert origins(store) == ["#1"]


def made_before(store: ObjectStore, **columns: pa.DataType) -> None:
    """Make a table as a release without the column did, or one whose owner added columns."""
    uri, options = store.location("tables/default/telemetry")
    schema = row_schema([])
    schema = schema.remove(schema.get_field_index("_origin"))
    for name, kind in columns.items():
        schema = schema.append(pa.field(name, kind))
    DeltaHandle.create(uri, options, schema, {})


async def test_a_table_made_before_gets_the_column_once(store: ObjectStore) -> None:
    writer = await LogWriter.open(store)
    made_before(store)
    tierer = await new_tierer(store, writer)
    for number in range(4):
        await writer.append(0, Run(LANE, number, 1, origin=FIRST if number > 1 else None))
        for view in tierer._views:
            await view.log.extend(view.state)
        await drain(tierer)
    assert origins(store) == [None, None, "calm@1#07070707", "calm@1#07070707"]
    operations = [entry["operation"] for entry in table(store).history()]
    assert operations.count("ADD COLUMN") == 1


async def test_files_without_and_with_numbers_of_columns_are_read_together(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What releases without the numbers wrote, and later files: every reader goes by the names."""
    writer = await LogWriter.open(store)
    with monkeypatch.context() as earlier:
        earlier.setattr("weft.storage.table_writer.parquet_file.with_field_ids", lambda schema: schema)
        await writer.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(store, writer))
    await writer.append(0, Run(LANE, 3, 2, origin=SECOND))
    tierer = await new_tierer(store, writer)
    await drain(tierer)
    wanted = [(None, 0), (None, 1), (None, 2), ("calm@2#07070707", 3), ("calm@2#07070707", 4)]
    for joined in (False, True):
        if joined:
            maintenance = Maintenance(store, tierer, settings=TableSettings(compact_files_max=2))
            await maintenance.compact(await tierer.take())
        files = table(store).file_uris()
        numbered = sorted(pq.read_schema(file).field("_seq").metadata is not None for file in files)
        assert numbered == ([True] if joined else [False, True])
        telemetry = table(store).to_pyarrow_dataset()
        assert telemetry.count_rows() == 5
        assert duckdb.sql("SELECT _origin, _seq FROM telemetry ORDER BY _seq").fetchall() == wanted
        by_files = f"SELECT _origin, _seq FROM read_parquet({files}) ORDER BY _seq"
        assert duckdb.sql(by_files).fetchall() == wanted
        assert pl.scan_delta(table(store)).select("_origin", "_seq").sort("_seq").collect().rows() == wanted
        assert pl.scan_parquet(files).select("_origin", "_seq").sort("_seq").collect().rows() == wanted
        assert contents(store) == expected({0: [Run(LANE, 0, 3), Run(LANE, 3, 2)]})


async def test_files_of_before_and_after_are_joined(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a release without the column wrote, and later ones, in one file after maintenance."""
    writer = await LogWriter.open(store)
    made_before(store)
    settings = TableSettings(compact_files_max=2)
    with monkeypatch.context() as earlier:
        earlier.setattr("weft.storage.table_writer.tiering.lacking", lambda _: [])
        await writer.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(store, writer))
    assert "_origin" not in rows(store).column_names
    await writer.append(0, Run(LANE, 3, 2, origin=SECOND))
    tierer = await new_tierer(store, writer)
    await drain(tierer)
    await Maintenance(store, tierer, settings=settings).compact(await tierer.take())
    assert len(table(store).file_uris()) == 1
    assert origins(store) == [None] * 3 + ["calm@2#07070707"] * 2
    assert contents(store) == expected({0: [Run(LANE, 0, 3), Run(LANE, 3, 2)]})


@pytest.mark.parametrize("column", [{"_Origin": pa.string()}, {"_origin": pa.int64()}])
async def test_a_column_of_the_owner_by_that_name_is_left_alone(
    store: ObjectStore, column: dict[str, pa.DataType]
) -> None:
    writer = await LogWriter.open(store)
    made_before(store, **column)
    await writer.append(0, Run(LANE, 0, 3, origin=FIRST))
    await drain(await new_tierer(store, writer))
    assert contents(store) == expected({0: [Run(LANE, 0, 3)]})
    assert rows(store).column(*column).to_pylist() == [None] * 3


async def test_an_audit_counts_what_functions_made_in_a_table_that_was_made_before(store: ObjectStore) -> None:
    writer = await LogWriter.open(store)
    made_before(store)
    await writer.append(0, Run(LANE, 0, 3), Run(LANE, 3, 2, origin=FIRST))
    report = await audit(store, "default", "telemetry")
    assert (report.agrees, report.origins()) == (True, {"calm@1#07070707": 2})
