"""Tests of ``cloud_hub/tables/service.py``."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cloud_hub.tables.latest_tables import latest
from tests.cloud_hub.tables.logs import LANE, OTHER, START, TOPICS, LogWriter, Run, contents, expected, rows, table
from tests.cloud_hub.tables.test_retention import filled
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.hub_api.answers import check_answer
from tests.support.processes import weft
from tests.support.waiting import wait_until
from weft.cloud_hub.facts.streams import LatestDocument, TableDocument
from weft.cloud_hub.facts.tenants import DeclaredQuotas, Quotas
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.quotas import TenantSizes
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.splits import split
from weft.cloud_hub.tables.latest import LatestTierer
from weft.cloud_hub.tables.service import DeclaredTableWork
from weft.output import Refused
from weft.protocols.chunk_index import StreamKey
from weft.storage.chunk_log import Manifest, ShardLog
from weft.storage.cluster import read_cluster
from weft.storage.hub_keys import chunk_key, table_key
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.table import rows as table_rows
from weft.storage.table_writer import shards
from weft.storage.table_writer.service import FairScheduler, FlushPolicy, TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer


@pytest.fixture
async def log(directory: ObjectStore) -> LogWriter:
    return await LogWriter.open(directory)


async def test_a_round_keeps_up_every_stream(directory: ObjectStore, log: LogWriter) -> None:
    alarms = Run(LANE._replace(stream="alarms"), 0, 2)
    await log.append(0, Run(LANE, 0, 3), alarms)
    await log.append(1, Run(OTHER, 0, 4))
    service = TableService(directory, log.cluster, clock=lambda: 99)
    assert await service.run_once() == 9
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)], 1: [Run(OTHER, 0, 4)]})
    assert contents(directory, "alarms") == expected({0: [alarms]})
    first, second = service.status()
    assert (first.stream, first.lag_records, first.rows_moved, first.committed_at) == ("alarms", 0, 2, 99)
    assert [(item.shard, item.table, item.log) for item in second.shards] == [(0, 3, 3), (1, 4, 4)]
    files = [item for item in await directory.list(table_key("default", "telemetry")) if item.key.endswith(".parquet")]
    assert (second.files, second.bytes) == (len(files), sum(item.size for item in files))


def watched_service(
    store: ObjectStore, log: LogWriter, patch: pytest.MonkeyPatch
) -> tuple[TableService, asyncio.Event]:
    """A service with hardly a pause between rounds, and an event for its first rows."""
    moved, step = asyncio.Event(), Tierer.step

    async def watched(self: Tierer) -> int:
        rows = await step(self)
        if rows:
            moved.set()
        return rows

    patch.setattr(Tierer, "step", watched)
    return TableService(store, log.cluster, settings=TableSettings(interval_s=0.001)), moved


async def test_it_runs_by_itself_until_it_is_closed(
    directory: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, moved = watched_service(directory, log, monkeypatch)
    service.start()
    await log.append(0, Run(LANE, 0, 3))
    await moved.wait()
    await service.close()
    await service.close()
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})


async def test_one_broken_table_does_not_hold_up_the_others(
    directory: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(0, Run(LANE._replace(stream="broken"), 0, 2), Run(LANE, 0, 3))
    step = Tierer.step

    async def failing(self: Tierer) -> int:
        if self.key.endswith("broken"):
            raise StoreError("the bucket is gone")
        return await step(self)

    monkeypatch.setattr(Tierer, "step", failing)
    service = TableService(directory, log.cluster)
    assert await service.run_once() == 3
    broken, telemetry = service.status()
    assert (broken.error, broken.lag_records) == ("the bucket is gone", 2)
    assert (telemetry.error, telemetry.lag_records) == (None, 0)
    monkeypatch.undo()
    assert await service.run_once() == 2
    assert service.status()[0].error is None


async def test_a_mistake_of_ours_does_not_end_it(
    directory: ObjectStore, log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(0, Run(LANE, 0, 3))
    rounds = []
    run_once = TableService.run_once

    async def failing(self: TableService) -> int:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("a bug")
        return await run_once(self)

    monkeypatch.setattr(TableService, "run_once", failing)
    service, moved = watched_service(directory, log, monkeypatch)
    service.start()
    await moved.wait()
    await service.close()


async def test_a_store_that_cannot_hold_tables_says_so(log: LogWriter) -> None:
    memory = open_store("memory://")
    log = await LogWriter.open(memory)
    await log.append(0, Run(LANE, 0, 3))
    service = TableService(memory, log.cluster)
    assert await service.run_once() == 0
    assert "give the hub a directory or a bucket" in str(service.status()[0].error)


async def test_a_damaged_shard_keeps_nothing_of_the_others_from_the_table(
    directory: ObjectStore, log: LogWriter
) -> None:
    await log.append(0, Run(LANE, 0, 3))
    await log.append(1, Run(OTHER, 0, 4))
    key = f"shard-1/chunk/{0:020d}"
    whole = (await directory.get(key)).data
    service = TableService(directory, log.cluster)
    for damaged_at, where in ((-20, "error"), (100, "status")):  # its index; then a section only
        damaged = bytearray(whole)
        damaged[damaged_at] ^= 1
        await directory.delete(key)
        await directory.create(key, bytes(damaged))
        await service.run_once()
        assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})
        reported = service.error if where == "error" else service.status()[0].error
        assert f"{key} is damaged" in str(reported)
        assert "restore this object" in str(reported)
    await directory.delete(key)
    await directory.create(key, whole)
    assert await service.run_once() == 4
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)], 1: [Run(OTHER, 0, 4)]})
    assert (service.error, service.status()[0].error) == (None, None)


async def test_a_damaged_log_is_reported_and_its_tables_stay(directory: ObjectStore, log: LogWriter) -> None:
    await log.append(0, Run(LANE, 0, 3))
    service = TableService(directory, log.cluster)
    await service.run_once()
    await directory.create(f"shard-0/chunk/{1:020d}", b"not a chunk" * 10)
    assert await service.run_once() == 0
    assert "chunk" in str(service.error)


async def test_a_service_that_slept_while_chunks_were_collected_goes_on_where_another_node_left_off(
    directory: ObjectStore, log: LogWriter
) -> None:
    await log.append(0, Run(LANE, 0, 3))
    asleep, other = (TableService(directory, log.cluster) for _ in range(2))
    await asleep.run_once()
    for first in range(3, 13):
        await log.append(0, Run(LANE, first, 1))
    await other.run_once()
    await log.snapshot(0)
    shard = ShardLog(directory, log.cluster, 0)
    manifest, etag = await shard.manifest()
    assert await shard.swap_manifest(Manifest(manifest.snapshot_n, manifest.snapshot, 8), etag)
    for n in range(8):
        await directory.delete(chunk_key(0, n))
    await log.append(0, Run(LANE, 13, 2))
    for view in asleep._views:
        view.log._looked_at = None  # it slept longer than any look holds
    assert await asleep.run_once() == 2
    assert asleep.error is None
    assert [payload for *_, payload in contents(directory)] == [Run(LANE, 0, 15).payload(seq) for seq in range(15)]


# --- A hub makes the tables that the cluster log declares, while records come, and says how far they are


async def test_a_bug_that_shows_with_one_stream_does_not_stop_the_next_ones(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    for stream in ("broken", "telemetry"):
        await log.append(0, Run(LANE._replace(stream=stream), 0, 5))
    step = LatestTierer.step

    async def fail(self: LatestTierer) -> int:
        if self.key.endswith("broken"):
            raise ValueError("a payload that nobody thought of")
        return await step(self)

    monkeypatch.setattr(LatestTierer, "step", fail)
    documents = {("default", each): TableDocument(LatestDocument(("_key",))) for each in ("broken", "telemetry")}
    tables: Any = SimpleNamespace(views=await load_shards(directory, log.cluster), keeps_beside=lambda key: True)
    declared: Any = SimpleNamespace(documents=documents)
    clock: Any = SimpleNamespace(now=lambda: START, wrong=lambda: None)
    work = DeclaredTableWork(directory, log.cluster, tables, declared, clock)
    await work.look()
    assert [(each.stream, each.lag_records, each.error) for each in work.status()] == [
        ("broken", 5, "a payload that nobody thought of"),
        ("telemetry", 0, None),
    ]


@pytest.mark.slow
async def test_a_hub_makes_a_declared_table_and_ends_it_when_it_is_withdrawn(tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\n")
    store = open_store(str(tmp_path / "store"))
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 5, topics=TOPICS))

    async def run(*arguments: object) -> Any:
        result = await asyncio.to_thread(weft, "hub", "table", *arguments)
        if result.exception is not None:
            raise result.exception
        return result.output

    hub = await Hub.open(HubSettings(str(tmp_path / "store"), port=0, table_interval_s=0.2, cluster_log_interval_s=0.1))
    try:
        await run("set", config, "telemetry", "--latest", "_key", "--every", "1s", "--retain", "30d")
        config.write_text(f"store: {tmp_path / 'store'}\nretain_log: 1d\n")
        await run("set", config, "telemetry", "--retain-log", "90d", "--sort", "machine,_edge")
        (reported,) = json.loads(await run("list", config, "--json"))
        assert reported["sort"] == ["machine", "_edge"]
        assert "machine, _edge" in await run("list", config)
        assert [reported[name] for name in ("stream", "latest", "every", "retain", "retain_log")] == [
            "default/telemetry",
            ["_key"],
            "1s",
            "30d",
            "90d",
        ]

        def is_there() -> bool:
            found = _status(hub.url)
            return [(each["key"], each["lag_records"], each["error"]) for each in found] == [(["_key"], 0, None)]

        await asyncio.to_thread(wait_until, is_there)
        assert [row[1] for row in latest(store).values()] == [4]
        await log.follow(0)
        await log.append(0, Run(LANE, 5, 3))

        def is_newer() -> bool:
            return [row[1] for row in latest(store).values()] == [7]

        await asyncio.to_thread(wait_until, is_newer)
        await run("remove", config, "telemetry")

        def is_gone() -> bool:
            return _status(hub.url) == []

        await asyncio.to_thread(wait_until, is_gone)
    finally:
        await hub.close()


def _status(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/v1/status") as answer:
        status = json.loads(answer.read())
    check_answer("GET", "/v1/status", status)
    found: list[dict[str, Any]] = status["latest_tables"]
    return found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "name what to declare"),
        (("--latest", "_seq"), "'_seq' cannot be part of a key"),
        (("--every", "1m"), "--every is the interval of a latest table"),
        (("--latest", "_key", "--every", "25h"), "not between 1s and 24h"),
        (("--retain", "5m"), "at least an hour, got 5m"),
        (("--retain-size", "7 cats"), "--retain-size: expected"),
        (("--sort", "payload"), "rows cannot be sorted by 'payload'"),
        (("--sort", "machine,payload.order.id"), "'payload.order.id'"),
        (("--sort", "machine, machine"), "each column once"),
        (("--sort", ",".join(f"c{n}" for n in range(9))), "at most 8 columns"),
    ],
)
def test_what_cannot_be_declared_is_refused_before_the_store_is_opened(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    result = weft("hub", "table", "set", tmp_path / "hub.yaml", "telemetry", *options)
    assert isinstance(result.exception, Refused)
    assert why in str(result.exception)


def test_a_term_of_the_log_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    def said(retain_log: str) -> str:
        (tmp_path / "hub.yaml").write_text(f"store: {tmp_path / 'store'}\n{retain_log}")
        return str(weft("hub", "table", "set", tmp_path / "hub.yaml", "telemetry", "--retain-log", "30d").exception)

    assert "the hub keeps its log without a limit" in said("")
    assert "for 60d (`retain_log`), and a term of a stream can only be longer" in said("retain_log: 60d\n")


@pytest.mark.slow
async def test_answers_say_up_to_when_rows_were_removed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    log = await filled(store)
    hub = await Hub.open(HubSettings(str(tmp_path / "store"), port=0, table_interval_s=0.2, cluster_log_interval_s=0.1))
    try:
        before = await asyncio.to_thread(_answer, hub.url, "/records?limit=1000")
        assert "removed_until" not in before
        config = tmp_path / "hub.yaml"
        config.write_text(f"store: {tmp_path / 'store'}\n")
        await asyncio.to_thread(weft, "hub", "table", "set", config, "telemetry", "--retain", "30d")
        wanted = "2023-11-15T02:13:20.000000000Z"  # all rows are older than 30 days

        def is_said() -> bool:
            table = _answer(hub.url, "")["table"]  # None until the hub has looked at it
            return table is not None and table.get("removed_until") == wanted

        await asyncio.to_thread(wait_until, is_said)
        for path in ("/completeness", "/records?limit=1000"):
            assert (await asyncio.to_thread(_answer, hub.url, path))["removed_until"] == wanted
        assert rows(store).num_rows == 0
        assert log.cluster is not None
    finally:
        await hub.close()


def _answer(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/v1/streams/telemetry{path}") as answer:
        document = json.loads(answer.read())
    check_answer("GET", "/v1/streams/{stream}" + path.partition("?")[0], document)
    return document


# --- Quiet streams wait for more records, as their operator wants; nothing waits longer, and nothing else changes


BUSY = LANE._replace(stream="busy")


async def test_a_quiet_stream_is_written_at_the_moment_and_a_busy_one_by_its_bytes(tmp_path: Path) -> None:
    now = 600.0
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    settings = TableSettings(write_bytes=100_000, write_after_s=600.0)
    service = TableService(store, log.cluster, settings=settings, monotonic=lambda: now)
    quiet, busy = [], []
    rounds = []
    for number in range(12):
        now += 60
        quiet.append(Run(LANE, 3 * number, 3))
        busy.append(Run(BUSY, 3 * number, 3, payload_bytes=20_000))
        await log.append(0, quiet[-1], busy[-1])
        rounds.append(await service.run_once())
    # The first round writes what came before, the moment is at 1,200 s, and two chunks are 100 kB.
    assert rounds == [6, 0, 6, 0, 6, 0, 6, 0, 6, 30, 0, 6]
    assert contents(store, "telemetry") == expected({0: quiet[:10]})
    assert contents(store, "busy") == expected({0: busy})
    assert len(table(store, "telemetry").file_uris()) == 2


async def test_without_a_time_to_wait_each_round_writes_what_is_there(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    service = TableService(store, log.cluster, settings=TableSettings(write_bytes=100_000))
    for number in range(3):
        await log.append(0, Run(LANE, 3 * number, 3))
        assert await service.run_once() == 3


async def test_a_changed_time_of_vacuum_reaches_tables_that_are_there(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    for number, hours in enumerate((168, 48, 48)):
        await log.append(0, Run(LANE, number, 1))
        await TableService(store, log.cluster, settings=TableSettings(retention_hours=hours)).run_once()
        names = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
        reported = table(store).metadata().configuration
        assert {reported[name] for name in names} == {f"interval {hours} hours"}
    table(store).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 30 days"})
    await log.append(0, Run(LANE, 3, 1))
    await TableService(store, log.cluster, settings=TableSettings(retention_hours=24)).run_once()
    reported = table(store).metadata().configuration
    assert reported["delta.deletedFileRetentionDuration"] == "interval 30 days", "its owner's word"


def test_many_quiet_streams_wait_unasked_and_make_no_other_tenant_wait() -> None:
    now = 1000.0
    due = FlushPolicy(1 << 20, None, 10.0, lambda: now)
    many = [("crowded", f"s{number}") for number in range(1000)]
    few = [("small", f"s{number}") for number in range(10)]
    rounds = []
    for _ in range(17):  # 1,000 streams in 16 shards are eight times the files of a round
        now += 10
        due.begin([*many, *few], 16)
        assert all(map(due.is_due, few))
        written = [key for key in many if due.is_due(key)]
        rounds.append(len(written))
        for key in [*written, *few]:
            due.written(key)
    assert sorted(set(rounds)) == [0, 1000]
    assert rounds.count(1000) == 3, "the first round, and one of eight"


# --- No tenant's streams hold up another tenant's table by more than one bounded step


HOSTILE = [("crowd", f"s{number}") for number in range(1000)]
OTHERS = [("other", "alarms"), ("other", "telemetry")]


class Worker:
    """Turns that take a second each on a clock of their own.

    Args:
        needed: turns that a stream needs; one, unless it is named.
    """

    def __init__(self, needed: dict[StreamKey, int] | None = None) -> None:
        self.now = 0.0
        self.order: list[StreamKey] = []
        self.at_once: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._needed = needed or {}

    async def turn(self, key: StreamKey) -> bool:
        self.order.append(key)
        self.at_once[key[0]] += 1
        self.most[key[0]] = max(self.most[key[0]], self.at_once[key[0]])
        await asyncio.sleep(0)
        self.now += 1
        self.at_once[key[0]] -= 1
        return self.order.count(key) < self._needed.get(key, 1)


def turns(worker: Worker, places: int = 4, seconds: float = 10_000) -> FairScheduler:
    return FairScheduler(places, seconds, lambda: worker.now)


async def test_a_tenant_with_a_thousand_streams_does_not_go_first() -> None:
    worker = Worker()
    assert not await turns(worker).run([*HOSTILE, *OTHERS], worker.turn)
    assert sorted(worker.order) == sorted([*HOSTILE, *OTHERS])
    assert max(worker.order.index(key) for key in OTHERS) < 10


async def test_one_long_stream_leaves_the_other_tenants_their_turns() -> None:
    worker = Worker({HOSTILE[0]: 100, OTHERS[0]: 3})
    await turns(worker, places=1).run([HOSTILE[0], *OTHERS], worker.turn)
    assert worker.order[:8].count(HOSTILE[0]) <= 5
    assert worker.order.count(HOSTILE[0]) == 100


async def test_the_last_place_is_left_to_another_tenant() -> None:
    worker = Worker()
    await turns(worker).run([*HOSTILE[:50], *OTHERS], worker.turn)
    assert worker.most["other"] >= 1
    alone = Worker()
    await turns(alone).run(HOSTILE[:50], alone.turn)
    assert alone.most["crowd"] == 4


async def test_what_a_pass_leaves_over_comes_first_in_the_next() -> None:
    worker = Worker()
    plan = turns(worker, places=1, seconds=10)
    keys = HOSTILE[:25]
    passes = 1
    while await plan.run([*keys, *OTHERS] if passes == 1 else keys, worker.turn):
        keys = [key for key in HOSTILE[:25] if key not in worker.order]
        passes += 1
        assert passes < 10
    assert sorted(worker.order) == sorted([*HOSTILE[:25], *OTHERS])


async def test_a_tenant_that_rested_has_saved_up_nothing() -> None:
    worker = Worker({HOSTILE[0]: 1000, OTHERS[0]: 1000})
    plan = turns(worker, places=1, seconds=100)
    await plan.run([HOSTILE[0]], worker.turn)
    await plan.run([HOSTILE[0], OTHERS[0]], worker.turn)
    late = worker.order[101:201]
    assert 45 <= late.count(OTHERS[0]) <= 55


async def test_rows_of_a_long_key_are_counted_before_they_are_made(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch says its key once. As rows, it is a thousand times as long."""
    for module in (table_rows, table_rows):
        monkeypatch.setattr(module, "BYTES_MAX", 1 << 20)
    log = await LogWriter.open(directory)
    run = Run(LANE, 0, 1000, key=b"k" * 60_000)
    await log.append(0, run)
    tierer = await new_tierer(directory, log, step_bytes_max=4 << 20)
    moved = [await tierer.step() for _ in range(3)]
    assert all(0 < count <= 90 for count in moved)
    assert await drain(tierer) == 1000 - sum(moved)
    assert contents(directory) == expected({0: [run]})


async def test_a_step_ends_when_its_time_is_over(directory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table_rows, table_rows):
        monkeypatch.setattr(module, "ROWS_MAX", 10)
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 100))
    slow = itertools.count()
    views = (await new_tierer(directory, log))._views
    tierer = Tierer(
        directory,
        log.cluster,
        "default",
        "telemetry",
        views,
        settings=TableSettings(step_seconds_max=3),
        monotonic=lambda: next(slow),
    )
    assert await tierer.step() == 30
    assert await drain(tierer) == 70
    assert contents(directory) == expected({0: [Run(LANE, 0, 100)]})


async def test_other_tenants_tables_are_made_while_one_has_a_thousand_streams(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    crowd = [Run(LANE._replace(tenant="crowd", stream=f"s{number}"), 0, 1) for number in range(30)]
    await log.append(0, *crowd, Run(LANE._replace(tenant="other"), 0, 5))
    service = TableService(directory, log.cluster)
    order: list[StreamKey] = []
    turn = service._turn

    async def watched(key: StreamKey) -> bool:
        order.append(key)
        return await turn(key)

    service._turn = watched  # type: ignore[method-assign]
    assert await service.run_once() == 35
    assert order.index(("other", "telemetry")) <= 4


# --- What a table step asks of a store, counted: the number of streams must not multiply it


CHUNKS = 40


class CountingStore:
    """A store that counts calls by kind, and by the kind of object."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.others: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name == "location":
            return call

        async def counted(key: str, *arguments: Any, **named: Any) -> Any:
            kind = "chunk" if "/chunk/" in key else "other"
            self.calls[f"{name} {kind}"] += 1
            if kind == "other":
                self.others.append(f"{name} {key}")
            return await call(key, *arguments, **named)

        return counted

    def count(self, *kinds: str) -> int:
        return sum(self.calls[kind] for kind in kinds)

    @property
    def chunk_gets(self) -> int:
        return self.count("get chunk", "get_range chunk")


class AnswersNoCreate(CountingStore):
    """A store that takes new objects, and ends to answer before it says so."""

    async def create(self, key: str, data: bytes) -> str:
        await self._inner.create(key, data)
        raise StoreError("no answer")


def runs(streams: int, number: int) -> list[Run]:
    lanes = [LANE._replace(stream=f"s{i:02d}") for i in range(streams)]
    return [Run(lane, 3 * number, 3, payload_bytes=70_000 // streams) for lane in lanes]


async def behind(store: Any, streams: int) -> TableService:
    """A service that has made the tables of one shard, whose log has ``CHUNKS`` chunks more by now."""
    log = await LogWriter.open(store, 1)
    await log.append(0, *runs(streams, 0))
    service = TableService(store, log.cluster)
    await service.run_once()
    for number in range(1, CHUNKS + 1):
        await log.append(0, *runs(streams, number))
    return service


@pytest.mark.parametrize("streams", [1, 20])
async def test_each_chunk_is_read_once_for_all_streams(tmp_path: Path, streams: int) -> None:
    store = CountingStore(open_store(str(tmp_path)))
    service = await behind(store, streams)
    store.calls.clear()
    store.others.clear()
    assert await service.run_once() == 3 * CHUNKS * streams
    # One for each chunk, and those that were asked for beyond the head.
    assert store.chunk_gets <= CHUNKS + 5
    assert store.count("list chunk", "list other") == 0
    assert store.count("create other") == 2 * streams, "one Parquet file and one version each"
    assert store.count("get other", "get_range other") <= 3 * streams, ("more than the newest entry", store.others)
    store.calls.clear()
    assert await service.run_once() == 0
    assert store.chunk_gets == 1, "an idle round asks each shard for one chunk"
    assert sum(store.calls.values()) == 1
    assert contents(store, "s00") == expected({0: [runs(streams, n)[0] for n in range(CHUNKS + 1)]})


class WatchedFooter:
    """A footer that counts the walks over all its lanes or sections."""

    walks = 0

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in {"lanes", "streams"}:
            WatchedFooter.walks += 1
        return getattr(self._inner, name)


@pytest.mark.parametrize("streams", [1, 20])
async def test_a_round_walks_over_the_index_of_a_chunk_once_for_all_streams(
    tmp_path: Path, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proof q1: each stream looked through all lanes and sections of each chunk."""
    whole = ShardLog.whole

    async def watched(self: ShardLog, n: int) -> Any:
        found = await whole(self, n)
        footer: Any = found and WatchedFooter(found[0].footer)
        return found and (found[0]._replace(footer=footer), found[1])

    store = open_store(str(tmp_path))
    service = await behind(store, streams)
    monkeypatch.setattr(ShardLog, "whole", watched)
    monkeypatch.setattr(WatchedFooter, "walks", 0)
    assert await service.run_once() == 3 * CHUNKS * streams
    assert CHUNKS <= WatchedFooter.walks <= 8 * CHUNKS


async def test_more_than_fits_in_memory_is_taken_in_several_passes_and_each_chunk_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CHUNK_BYTES_MAX", 4_000_000)  # about twenty chunks
    store = CountingStore(open_store(str(tmp_path)))
    service = await behind(store, 5)
    store.calls.clear()
    assert await service.run_once() == 3 * CHUNKS * 5
    assert store.chunk_gets <= CHUNKS * 1.3
    for stream in range(5):
        assert contents(store, f"s{stream:02d}") == expected({0: [runs(5, n)[stream] for n in range(CHUNKS + 1)]})


async def test_shards_that_splits_make_share_the_memory_for_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CHUNK_BYTES_MAX", 4_000_000)
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 5))
    service = TableService(store, log.cluster)
    await service.run_once()
    for shard in (0, 0, 1):
        cluster = await read_cluster(store)
        await split(store, cluster, shard, wall_clock=time.time_ns, random_bits=random.getrandbits)
    await service.run_once()
    assert [view.chunks.bytes_max for view in service._views] == [1_000_000] * 4


async def test_a_table_that_is_moved_away_while_the_hub_runs_is_made_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 5))
    service = TableService(store, log.cluster)
    await service.run_once()
    (tmp_path / "tables/default/telemetry").rename(tmp_path / "moved")
    await log.append(0, Run(LANE, 5, 5))
    await service.run_once()
    await service.run_once()
    assert contents(store) == expected({0: [Run(LANE, 0, 10)]})


# --- At a tenant's quota of table bytes its tables stand, others continue, and no record is lost


async def test_tables_at_the_quota_stand_and_go_on_once_it_is_raised(directory: ObjectStore) -> None:
    log, quotas = await LogWriter.open(directory), DeclaredQuotas()
    sizes = TenantSizes(directory, quotas)
    service = TableService(directory, log.cluster, terms=TableTerms(held=sizes.held))
    await log.append(0, Run(LANE, 0, 3))
    assert await service.run_once() == 3
    quotas._of = {LANE.tenant: Quotas(table_bytes=1)}
    await sizes.look([(LANE.tenant, LANE.stream)])
    assert (sizes.of(LANE.tenant) or 0) > 1
    await log.append(0, Run(LANE, 3, 5))
    await log.append(1, Run(OTHER, 0, 4))
    assert await service.run_once() == 0
    (status,) = service.status()
    assert status.lag_records == 9
    assert "its quota is 1B" in (status.error or "")
    assert "weft hub tenant set" in (status.error or "")
    assert await service.first_untabled(0) is None, "nothing of the log is deleted meanwhile"
    assert contents(directory) == expected({0: [Run(LANE, 0, 3)]})
    quotas._of = {LANE.tenant: Quotas(table_bytes=1 << 40)}
    assert await service.run_once() == 9
    assert service.status()[0].error is None
    assert contents(directory) == expected({0: [Run(LANE, 0, 3), Run(LANE, 3, 5)], 1: [Run(OTHER, 0, 4)]})


async def test_tenants_without_the_quota_cost_no_listing(directory: ObjectStore) -> None:
    quotas = DeclaredQuotas()
    sizes = TenantSizes(directory, quotas)
    await sizes.look([(LANE.tenant, LANE.stream)])
    assert sizes.of(LANE.tenant) is None
    assert sizes.held((LANE.tenant, LANE.stream)) is None
