"""Records that the log no longer has: the API has the same ones, from the stream's table, in bounded reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, TOPICS, LogWriter, Run
from weft.client import Client
from weft.client.operations import HubRefusal
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import history
from weft.cloud_hub.reads.history import Histories, PastPlace, TableFiles, TableReading
from weft.cloud_hub.reads.views import Search
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.config.load import parse_schema
from weft.protocols.lane import Origin, OriginKind
from weft.protocols.payloads import PayloadKind
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.schemas import StreamSchema
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms

STREAM = LANE.tenant, LANE.stream
RECORDS = "/v1/streams/telemetry/records"
FUNCTION = Origin(3, OriginKind.FUNCTION, "clean", "1", b"hash")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


async def tabled(store: ObjectStore, rounds: int = 1, schema: StreamSchema | None = None, **reported: Any) -> LogWriter:
    """Two shards with forty chunks of ten records each, in files of ``rounds`` table steps."""
    reported = {"topics": lambda _: TOPICS, **reported}
    log = await LogWriter.open(store, 2)
    settings = TableSettings(compact_files_min=1000)
    tables = TableService(store, log.cluster, settings=settings, terms=TableTerms(lambda *_: schema))
    for n in range(40):
        log.created = START + n * 60 * SECOND
        for shard, lane in enumerate((LANE, OTHER)):
            await log.append(
                shard,
                Run(lane, 10 * n, 10, resent=n % 7 == 0, **{key: reported[key](n) for key in reported}),
                Run(lane._replace(stream="alarms"), n, 1),
            )
            if n >= 10 and n % 5 == 0:
                await log.snapshot(shard)
        if (n + 1) % (40 // rounds) == 0:
            await tables.run_once()
    return log


async def collect(log: LogWriter) -> list[int]:
    """Delete what the tables and snapshots hold; the first kept chunks."""
    tables = TableService(log.store, log.cluster)
    await tables.run_once()
    since = 0
    clock = HubClock(lambda: START + 10_000 * SECOND + since, lambda: 5 * SECOND + since)
    kept = []
    for shard in range(log.cluster.shards):
        collector = ShardCollector(ShardLog(log.store, log.cluster, shard), tables.first_untabled, 1.0, clock=clock)
        await collector.look()
        since += int((GRACE_S + 1) * SECOND)
        await collector.look()
        assert collector.deleted == 20
        kept.append(collector.watermark)
    return kept


def rounded(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records with times in whole microseconds, as tables have them."""
    times = ("time", "received", "edge_time")
    return [
        {key: f"{value[:26]}000Z" if key in times else value for key, value in record.items()} for record in records
    ]


async def pages(hub: Hub, shard: int, start: str, limit: int) -> list[dict[str, Any]]:
    """All records of a shard from a start on, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        status, answer = await get(hub, f"{RECORDS}?shard={shard}&limit={limit}&{start}")
        assert status == 200, answer
        found += answer["records"]
        if not answer["records"] and not answer["next_chunk"]:
            return rounded(found)
        if str(shard) in answer["next_offset"]:
            start = f"offset={answer['next_offset'][str(shard)]}"
        if answer["next_chunk"]:
            start += f"&chunk={answer['next_chunk'][str(shard)]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"kind": lambda _: PayloadKind.JSON, "payloads": lambda n: [b'{"n": %d}' % n] * 9 + [b"\xff\x00"]},
        pytest.param(
            {"boot_offset": lambda n: START + n * 60 * SECOND, "origin": lambda n: FUNCTION if n % 2 else None},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["bytes", "json", "clocks"],
)
async def test_the_same_records_before_and_after_the_log_was_collected(
    store: ObjectStore, kind: dict[str, Any]
) -> None:
    log = await tabled(store, 4, **kind)
    since = f"since={START + 600 * SECOND}"
    async with running_hub(store) as hub:
        before = [await pages(hub, shard, start, 97) for shard in (0, 1) for start in ("offset=0", "offset=123", since)]
    kept = await collect(log)
    assert kept == [20, 20]
    async with running_hub(store) as hub:
        after = [await pages(hub, shard, start, 97) for shard in (0, 1) for start in ("offset=0", "offset=123", since)]
        _, all_shards = await get(hub, f"{RECORDS}?limit=700")
    assert [len(each) for each in before] == [400, 277, 300] * 2
    assert after == before
    assert [record["shard"] for record in all_shards["records"]] == [0] * 400 + [1] * 300


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["as written", "by another engine"])
async def test_a_client_gets_all_rows_though_the_log_was_collected(
    store: ObjectStore, is_rewritten: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is counted over all rows is right, wherever they are, in answers of any size."""
    log = await tabled(
        store,
        4,
        key=lambda n: b"plant/a/m%d/telemetry" % (n % 3),
        origin=lambda n: FUNCTION if n % 2 else None,
        kind=lambda _: PayloadKind.JSON,
        payloads=lambda n: [b'{"n": %d}' % n] * 9 + [b"\xff\x00"],
    )
    async with running_hub(store) as hub:
        before = [await all_rows(hub, shard) for shard in (0, 1)]
    assert await collect(log) == [20, 20]
    if is_rewritten:
        uri = str(tmp_path / "store/tables/default/telemetry")
        rows = deltalake.DeltaTable(uri).to_pyarrow_table().sort_by([("_key", "descending"), ("_seq", "descending")])
        deltalake.write_deltalake(uri, rows, mode="overwrite", schema_mode="overwrite")
    async with running_hub(store) as hub:
        for limit in (None, 97, 1000):
            assert [await all_rows(hub, shard, limit=limit) for shard in (0, 1)] == before, limit
        assert await all_rows(hub, 0, offset=123, limit=50) == before[0].slice(123)
        assert (await all_rows(hub, 0, offset=None)).num_rows == 200, "what the log alone has, for who asks for that"
        monkeypatch.setattr(hub._api, "_response_bytes_max", 3000)
        assert await all_rows(hub, 0) == before[0]
    assert [each.num_rows for each in before] == [400, 400]


@pytest.mark.parametrize("kind", ["float", "string", "array<float>"])
async def test_a_level_has_no_values_of_an_older_typed_column_of_its_name(store: ObjectStore, kind: str) -> None:
    payload = {"float": b"1.5", "string": b'"x"', "array<float>": b"[1.5]"}[kind]
    log = await tabled(
        store,
        2,
        StreamSchema(3, parse_schema({"fields": {"machine": kind}})),
        kind=lambda _: PayloadKind.JSON,
        payloads=lambda _: [b'{"machine": %s}' % payload] * 10,
        topics=lambda n: TOPICS if n > 30 else ["plant/{line}/+/telemetry"],
    )
    await collect(log)
    async with running_hub(store) as hub:
        rows = await all_rows(hub, 0)
    machines = rows.column("machine").to_pylist()
    assert machines == [None] * 400, "it is unknown"


async def all_rows(hub: Hub, shard: int, **query: Any) -> pa.Table:
    client = Client(hub.url)
    tables = await asyncio.to_thread(lambda: [each.arrow() for each in client.all_rows("telemetry", shard, **query)])
    return pa.concat_tables(tables).combine_chunks()


async def test_since_finds_the_first_record_received_then(store: ObjectStore) -> None:
    log = await tabled(store, 8)
    await collect(log)
    places = [PastPlace(STREAM, shard, 0, Search()) for shard in (0, 1)]
    histories = Histories(store, log.cluster, lambda: 0.0)

    async def found(time: int) -> list[int | None]:
        return [await histories.since(place, time) for place in places]

    assert await found(0) == await found(START) == [0, 0]
    for n in (1, 7, 24, 39):
        assert await found(START + n * 60 * SECOND - SECOND) == [10 * n, 10 * n]
    assert await found(START + 3600 * SECOND) == [None, None]


@pytest.mark.slow
async def test_a_page_opens_few_of_many_files_and_lists_them_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await tabled(store, 40)
    opened, listed = list[str](), 0
    open_file, list_files = TableFiles.open, history._listed

    def counted_open(self: Any, number: int) -> pq.ParquetFile:
        opened.append(str(number))
        return open_file(self, number)

    def counted_list(*arguments: Any) -> Any:
        nonlocal listed
        listed += 1
        return list_files(*arguments)

    monkeypatch.setattr(TableFiles, "open", counted_open)
    monkeypatch.setattr(history, "_listed", counted_list)
    now = 0.0
    histories = Histories(store, log.cluster, lambda: now)
    for offset in range(0, 400, 25):
        past = await histories.records(PastPlace(STREAM, 1, 0, Search()), (offset, 400), 25, 1 << 20)
        assert past is not None
        assert [record.record.offset for record in past.records] == [*range(offset, offset + 25)]
        assert len(opened) <= 4
        opened.clear()
    assert listed == 1
    assert await histories.since(PastPlace(STREAM, 1, 0, Search()), START + 3600 * SECOND) is None
    assert len(opened) <= 7, "files are halved"
    past = await histories.records(PastPlace(STREAM, 1, 7, Search()), (400, 500), 25, 1 << 20)
    assert past == ([], 400, True)
    assert listed == 2, "a watermark that is newer than the list may be past rows that the list lacks"
    await histories.records(PastPlace(STREAM, 1, 7, Search()), (400, 500), 25, 1 << 20)
    assert listed == 2
    now = history.AGE_S_MAX
    await histories.records(PastPlace(STREAM, 1, 7, Search()), (0, 10), 25, 1 << 20)
    assert listed == 3


@pytest.mark.slow
async def test_a_page_is_bounded_by_bytes_and_files_and_goes_on(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await tabled(store, 40, payload_bytes=lambda _: 1000)
    histories = Histories(store, log.cluster, lambda: 0.0)

    async def page(first: int, bytes_max: int = 1 << 20, budget: int = 1 << 30) -> tuple[list[int], int, bool]:
        past = await histories.records(PastPlace(STREAM, 0, 0, Search(bytes_max=budget)), (first, 400), 300, bytes_max)
        assert past is not None
        return [record.record.offset for record in past.records], past.next_offset, past.is_end

    assert await page(0, bytes_max=4500) == ([0, 1, 2, 3], 4, False)
    assert await page(0, bytes_max=1) == ([0], 1, False)
    assert await page(5, budget=1) == ([5, 6, 7, 8, 9], 10, False)
    monkeypatch.setattr(history, "FILES_READ_MAX", 3)
    assert await page(15) == ([*range(15, 40)], 40, False)
    assert await page(380) == ([*range(380, 400)], 400, True)


async def test_files_that_another_engine_joined_and_shuffled_are_read_by_offset(
    store: ObjectStore, tmp_path: Path
) -> None:
    log = await tabled(store, 4)
    uri = str(tmp_path / "store/tables/default/telemetry")
    histories = Histories(store, log.cluster, lambda: 0.0)
    place = PastPlace(STREAM, 1, 0, Search())
    before = await histories.records(place, (90, 400), 50, 1 << 20)
    rows = deltalake.DeltaTable(uri).to_pyarrow_table()
    joined = rows.sort_by([("_seq", "descending"), ("_shard", "ascending")])
    deltalake.write_deltalake(uri, joined, mode="overwrite", schema_mode="overwrite")
    fresh = Histories(store, log.cluster, lambda: 0.0)
    assert await fresh.records(place, (90, 400), 50, 1 << 20) == before
    deltalake.DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert await histories.records(place, (90, 400), 50, 1 << 20) == before, "the files of its list are gone"


async def test_rows_that_an_operator_deleted_are_passed_over(store: ObjectStore, tmp_path: Path) -> None:
    log = await tabled(store, 4)
    await collect(log)
    deltalake.DeltaTable(str(tmp_path / "store/tables/default/telemetry")).delete("_offset < 150")
    async with running_hub(store) as hub:
        assert [record["offset"] for record in await pages(hub, 0, "offset=20", 100)] == [*range(150, 400)]
        assert (await all_rows(hub, 0, limit=100))["_offset"].to_pylist() == [*range(150, 400)]
    deltalake.DeltaTable(str(tmp_path / "store/tables/default/telemetry")).delete("_shard = 0")
    async with running_hub(store) as hub:
        assert (await all_rows(hub, 0, limit=70))["_offset"].to_pylist() == [*range(200, 400)], "the log has the others"


async def test_without_a_table_the_answer_says_where_records_are(store: ObjectStore, tmp_path: Path) -> None:
    log = await tabled(store)
    await collect(log)
    table = tmp_path / "store/tables/default/telemetry"
    await asyncio.to_thread(table.rename, tmp_path / "away")
    async with running_hub(store) as hub:
        status, answer = await get(hub, f"{RECORDS}?shard=0&offset=0")
        with pytest.raises(HubRefusal) as refused:
            await all_rows(hub, 0)
    assert (status, "below the watermark" in answer["detail"]) == (410, True)
    assert refused.value.status == 410


async def test_files_that_are_sorted_by_machine_give_the_records_in_the_logs_order(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.storage.table_writer.parquet_file.SLICE_ROWS_MAX", 160)
    monkeypatch.setattr("weft.storage.table_writer.parquet_file.GROUP_ROWS_MAX", 10)
    log = await LogWriter.open(store, 1)
    tables = TableService(store, log.cluster)
    runs = []
    for n in range(40):
        log.created = START + n * 60 * SECOND
        runs.append(Run(LANE, 10 * n, 10, key=b"plant/a/m%d/telemetry" % (39 - n), topics=TOPICS))
        await log.append(0, runs[-1])
    await tables.run_once()
    histories, place = Histories(store, log.cluster, lambda: 0.0), PastPlace(STREAM, 0, 0, Search())
    groups = 0
    read = TableReading._read_group

    def counted(self: Any, file: Any, group: int, wanted: Any, found: Any) -> None:
        nonlocal groups
        groups += len(wanted) > 0
        read(self, file, group, wanted, found)

    monkeypatch.setattr(TableReading, "_read_group", counted)
    for first, limit in ((0, 400), (3, 25), (155, 10), (399, 5)):
        past = await histories.records(place, (first, 400), limit, 1 << 20)
        assert past is not None
        assert [record.record.offset for record in past.records] == [*range(first, min(400, first + limit))]
        assert [record.record.key for record in past.records] == [
            runs[record.record.offset // 10].key.decode() for record in past.records
        ]
    assert groups == 40 + 3 + 2 + 1, "row groups without a wanted row are not read"
    for n in (1, 7, 24, 39):
        assert await histories.since(place, START + n * 60 * SECOND - SECOND) == 10 * n
