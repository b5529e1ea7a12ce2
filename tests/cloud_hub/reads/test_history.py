"""Records that the log no longer has: the API has the same ones, from the stream's table, in bounded reads."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, TOPICS, LogWriter, Run
from weft.client import Client
from weft.client.operations import HubRefusal
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads import history, records
from weft.cloud_hub.reads.history import (
    READERS_MAX,
    Histories,
    LaneFiles,
    LowestRecords,
    LowestTable,
    PastPlace,
    Readers,
    TableFiles,
    TableReading,
)
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import FoundRecord, Search
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.config.load import parse_schema
from weft.hub_api.records import RecordOfStream
from weft.protocols.chunk_index import Chunk, GapRange, StreamKey
from weft.protocols.lane import Lane, Origin, OriginKind, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.segment import GapReason
from weft.storage.chunk_log import ShardLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.object_store.directory import MemoryStore
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


async def test_records_of_one_edge_are_asked_for_once_wherever_they_are(store: ObjectStore) -> None:
    log = await LogWriter.open(store, 2)
    tables = TableService(store, log.cluster, settings=TableSettings(compact_files_min=1000))
    for n in range(40):
        log.created = START + n * 60 * SECOND
        for shard in (0, 1):
            await log.append(shard, Run(LANE, 100 * n, 100), *([Run(OTHER, n, 1)] if n in {3, 29} else []))
            if n >= 10 and n % 5 == 0:
                await log.snapshot(shard)
        if n % 10 == 9:
            await tables.run_once()
    await collect(log)
    async with running_hub(store) as hub:
        every = (await get(hub, f"{RECORDS}?shard=0&limit=1000"))[1]
        _, one = await get(hub, f"{RECORDS}?shard=0&edge=press-2&limit=20")
        _, next_one = await get(hub, f"{RECORDS}?shard=0&edge=press-2&limit=1&offset=1000")
        _, none = await get(hub, f"{RECORDS}?shard=0&edge=press-3")
    assert {each["edge"] for each in every["records"][:300]} == {"press-1"}
    assert [(each["edge"], each["seq"]) for each in one["records"]] == [("press-2", 3), ("press-2", 29)]
    assert [each["seq"] for each in next_one["records"]] == [29]
    assert none["records"] == []
    assert none["next_offset"] == {"0": 4002}, "nothing is left to ask for"


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


# --- What one tenant's reads of the past cost does not depend on what others have, and does not hold up theirs


OTHERS, CHUNKS = 300, 8


async def test_indexes_are_decoded_for_the_stream_that_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await LogWriter.open(MemoryStore(), 1)
    for n in range(CHUNKS):
        others = [Run(LANE._replace(tenant="busy", stream=f"s{at}"), n, 1) for at in range(OTHERS)]
        await writer.append(0, Run(LANE, 5 * n, 5), *others)
    decoded = []
    index = ShardLog.index

    async def counted(log: ShardLog, n: int, only: frozenset[StreamKey] | None = None) -> Chunk | None:
        chunk = await index(log, n, only)
        if chunk is not None:
            decoded.append(len(chunk.footer.streams))
        return chunk

    monkeypatch.setattr(ShardLog, "index", counted)
    reader = RecordReader(ShardLog(writer.store, writer.cluster, 0), 1 << 20)
    helping = await reader.read(STREAM, 0, 5 * CHUNKS, 1000)
    assert [record.record.seq for record in helping.records] == list(range(5 * CHUNKS))
    beginning = await reader.first(writer.states[0], STREAM, Search(), since=writer.created)
    assert beginning.offset == 0
    assert set(decoded) == {1}


def found(row: dict[str, int]) -> FoundRecord:
    record = RecordOfStream(
        shard=0,
        offset=row["offset"],
        edge="",
        log="",
        stream="",
        seq=0,
        time="",
        clock="",
        received="",
        key="",
        resent=False,
    )
    return FoundRecord(record, row["bytes"])


def lowest(rows: list[dict[str, int]], limit: int, bytes_max: int) -> list[int]:
    """The rows that are wanted, by the rule alone."""
    kept: list[int] = []
    size = 0
    for each in sorted(rows, key=lambda each: each["offset"])[:limit]:
        size += each["bytes"]
        if kept and size > bytes_max:
            break
        kept.append(each["offset"])
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_any_order_leave_the_lowest_and_each_batch_is_cut_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    rows = [{"offset": offset, "bytes": random.choice((0, 1, 90, 900))} for offset in range(400)]
    random.shuffle(rows)
    limit, bytes_max = random.choice((1, 50, 1_000)), random.choice((1, 5_000, 1_000_000))
    cuts: list[int] = []
    cut = LowestRecords.cut

    def counted(rows: LowestRecords, end: int) -> None:
        cuts.append(end)
        cut(rows, end)

    monkeypatch.setattr(LowestRecords, "cut", counted)
    kept = LowestRecords(1_000, limit, bytes_max, found)
    kept.add(pa.Table.from_pylist(rows[:200]))
    kept.add(pa.Table.from_pylist(rows[200:]))
    assert sorted(kept.rows) == lowest(rows, limit, bytes_max)
    assert len(cuts) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_rows_as_arrow_are_as_many_as_the_bounds_allow(seed: int) -> None:
    chance = Random(seed)
    limit, bytes_max = chance.choice((1, 50, 1_000)), chance.choice((1, 5_000, 1_000_000))
    end = chance.choice((90, 999))
    offsets = chance.sample(range(1_000), 300)
    rows = pa.table({"_offset": offsets, "payload": [b"x" * chance.randrange(200) for _ in offsets]})
    found = LowestTable(end, limit, bytes_max, lambda rows: rows)
    for first in range(0, 300, 30):
        found.add(rows.slice(first, 30))
    below = rows.sort_by("_offset").filter(pc.less(pc.field("_offset"), end)).combine_chunks()
    count = found.table().num_rows
    assert found.table() == below.slice(0, count)
    assert count == 1 or (count <= limit and found.table().nbytes <= bytes_max)
    if count < below.num_rows:
        assert found.end == below["_offset"][count].as_py(), "the next row is not lost"
        assert count == limit or below.slice(0, count + 1).nbytes > bytes_max


async def test_tenants_take_turns_at_tables() -> None:
    readers, order = Readers(), []
    may_end = asyncio.Event()

    async def read(tenant: str) -> None:
        async with readers.place(tenant):
            order.append(tenant)
            await may_end.wait()

    tasks = [asyncio.create_task(read("evil")) for _ in range(20)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(read("good")))
    await asyncio.sleep(0)
    tasks[READERS_MAX].cancel()  # a reader that left while it waited
    may_end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order.index("good") <= READERS_MAX + 1
    assert len(order) == 20
    async with readers.place("good"), readers.place("evil"):
        pass


# --- The way of one record: from a number of a lane to its chunk and its row, before and after the log was collected


TRACE = "/v1/streams/telemetry/trace"


def of(lane: Lane, seq: int) -> str:
    return f"{TRACE}?edge={lane.edge}&log={format_log_id(lane.log_id)}&seq={seq}"


async def traced(hub: Hub, path: str) -> tuple[dict[str, Any], int]:
    """The answer at the end of a search, and the number of requests."""
    status, answer = await get(hub, path)
    requests = 1
    while answer["next_shard"] is not None:
        assert requests < 100
        name = "shard" if "offset=" in path else "from_shard"
        more = f"&{name}={answer['next_shard']}" if name == "from_shard" else ""
        if answer["next_chunk"] is not None:
            more += f"&chunk={answer['next_chunk']}"
        status, answer = await get(hub, path + more)
        requests += 1
    assert status == 200, answer
    return answer, requests


def row_at(store: ObjectStore, place: dict[str, Any]) -> dict[str, Any]:
    uri, _ = store.location(table_key("default", "telemetry"))
    rows: list[dict[str, Any]] = pq.read_table(f"{uri}/{place['file']}").slice(place["number"], 1).to_pylist()
    return rows[0]


@pytest.mark.slow
async def test_a_message_is_followed_to_its_row_and_back_before_and_after_the_collector(store: ObjectStore) -> None:
    log = await tabled(store, 4, origin=lambda n: FUNCTION if n % 2 else None)
    found: list[list[dict[str, Any]]] = []
    for collected in (False, True):
        if collected:
            assert await collect(log) == [20, 20]
        found.append([])
        async with running_hub(store) as hub:
            for lane, shard in ((LANE, 0), (OTHER, 1)):
                for seq in (0, 15, 199, 200, 399):
                    answer, _ = await traced(hub, of(lane, seq))
                    record = answer["record"]
                    assert (record["edge"], record["seq"], record["shard"]) == (lane.edge, seq, shard)
                    assert record.get("origin", "") == ("clean@1#68617368" if seq // 10 % 2 else "")
                    row = row_at(store, answer["row"])
                    assert (row["_edge"], row["_seq"], row["_offset"]) == (lane.edge, seq, record["offset"])
                    back, _ = await traced(hub, f"{TRACE}?shard={shard}&offset={record['offset']}")
                    assert {**back, "gap": None} == {**answer, "gap": None}
                    found[-1].append(answer)
    before, after = found
    for one, other in zip(before, after, strict=True):
        number = one["record"]["seq"] // 10
        assert one["chunk"] == {"shard": one["record"]["shard"], "n": number, "key": one["chunk"]["key"]}
        assert await store.get(one["chunk"]["key"]) if number >= 20 else other["chunk"] is None
        assert (one["standing"], one["row"], one["record"]["offset"]) == (
            "here",
            other["row"],
            other["record"]["offset"],
        )
    uri, options = store.location(table_key("default", "telemetry"))
    DeltaTable(uri, storage_options=options).delete("_edge = 'press-1' and _seq = 15")
    async with running_hub(store) as hub:
        for path in (of(LANE, 15), f"{TRACE}?shard=0&offset={before[1]['record']['offset']}"):
            answer, _ = await traced(hub, path)
            assert (answer["standing"], answer["record"], answer["row"]) == ("gone", None, None), (path, answer)


@pytest.mark.slow
async def test_a_search_in_the_log_goes_on_where_it_ended(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "Search", partial(Search, 4))
    log = await LogWriter.open(store, 2)
    for n in range(30):
        await log.append(0, Run(LANE, 10 * n, 10), Run(LANE._replace(edge="press-3"), 10 * n, 10))
        await log.append(1, Run(OTHER, 10 * n, 10))
    async with running_hub(store) as hub:
        for lane, seq, chunk in ((LANE, 5, 0), (LANE, 299, 29), (OTHER, 123, 12)):
            answer, requests = await traced(hub, of(lane, seq))
            assert (answer["record"]["seq"], answer["chunk"]["n"], answer["row"]) == (seq, chunk, None)
            assert requests <= 2 + chunk // 3
        # The place of an edge is the word of its lane: what is behind it is still to come.
        answer, requests = await traced(hub, of(LANE, 300))
        assert (answer["standing"], answer["record"]) == ("to_come", None)
        back, _ = await traced(hub, f"{TRACE}?shard=0&offset=255")
        assert (back["record"]["edge"], back["record"]["seq"]) == ("press-3", 125)


@pytest.mark.slow
async def test_what_never_comes_and_what_nobody_knows_is_said(store: ObjectStore) -> None:
    log = await LogWriter.open(store, 2)
    await log.append(0, Run(LANE, 0, 5))
    await log.append(0, Run(LANE, 9, 1, gaps=[GapRange(5, 9, GapReason.BUDGET)]))
    async with running_hub(store) as hub:
        answer, _ = await traced(hub, of(LANE, 7))
        assert (answer["standing"], answer["record"], answer["chunk"], answer["row"]) == (
            "never_comes",
            None,
            None,
            None,
        )
        assert answer["gap"] == {"first": 5, "end": 9, "reason": "budget"}
        assert (await traced(hub, of(LANE, 9)))[0]["standing"] == "here"
        assert (await traced(hub, of(LANE._replace(edge="nobody"), 7)))[0]["standing"] == "unknown"
        assert (await traced(hub, f"{TRACE}?shard=0&offset=6"))[0]["standing"] == "unknown"
        for path, word in (
            (TRACE, "edge= is missing"),
            (f"{TRACE}?offset=1", "shard= is missing"),
            (of(LANE, 1) + "&offset=1", "offset"),
            (f"{TRACE}?edge=press-1&log=x&seq=1", "log"),
            (f"{TRACE}?edge=press-1&log={7:016x}", "seq= is missing"),
        ):
            status, answer = await get(hub, path)
            assert (status, word in answer["detail"]) == (400, True), answer


def test_files_are_chosen_by_edge_and_number() -> None:
    import pyarrow as pa

    bounds = {
        "min._edge": ["a", "c", None, "c"],
        "max._edge": ["b", "c", None, "e"],
        "min._seq": [0, 0, None, 100],
        "max._seq": [9, 9, None, 200],
    }
    files = LaneFiles.of(pa.table(bounds))
    chosen = {(edge, seq): [*map(bool, files.may_have(edge, seq))] for edge in "abbdz" for seq in (5, 150)}
    assert chosen["a", 5] == [True, False, True, False]
    assert chosen["b", 150] == [False, False, True, False]
    assert chosen["d", 150] == [False, False, True, True]
    assert chosen["z", 5] == [False, False, True, False]
    assert [*map(bool, files.may_have("c", 5))] == [False, True, True, False]
    assert [*map(bool, LaneFiles.of(pa.table({"path": ["x"]})).may_have("a", 5))] == [True]
