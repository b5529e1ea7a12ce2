"""Tables that Spark makes are those that the hub makes: the same rows, columns, positions and sources."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sinks import read, table
from spark_sinks.errors import SinkError
from spark_sinks.pipelines.catalog import located
from spark_sinks.pipelines.job import start
from spark_sinks.source.stream_log import open_hub
from spark_sinks.tables import query as tables_query
from spark_sinks.tables.query import TablesJob, TablesQuery
from spark_sinks.tables.work import StoreAccess
from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, contents, expected
from tests.cloud_hub.tables.logs import table as logs_table
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore, watch_delta
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
from tests.support.slices import SLICE
from weft.config.load import parse_rules, parse_schema
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, Change, ClusterLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store
from weft.storage.presence import KEEPER_BEAT_S, MISSED_MAX, Claim, TableOwners
from weft.storage.table import schemas as quality
from weft.storage.table.actions import app_ids
from weft.storage.table.deletions import FORMAT, Deletion, Erasure
from weft.storage.table.deletions import declare as declare_deletion
from weft.storage.table.delta_log import TableLog
from weft.storage.table.quality import Counted, QualityCounts, number_of
from weft.storage.table.schemas import SCHEMA, FollowedDeclarations, encode_schema
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def query(store: str, spark: SparkSession, *settings: str, once: bool = True) -> TablesQuery:
    """Start the shipped pipeline."""
    started = start(located("tables", [f"source.store={store}", *settings]).config, spark, once=once)
    assert isinstance(started, TablesQuery)
    return started


def make(store: str, spark: SparkSession, *settings: str) -> None:
    """Run the pipeline until the tables have all records."""
    query(store, spark, *settings).awaitTermination()


def by_the_hub(root: str) -> None:
    """Let a hub node's table step run once."""

    async def run() -> None:
        store = open_store(root)
        cluster = await open_cluster(store, None)
        declared = FollowedDeclarations(store, cluster.cluster_id)
        await declared.start()
        await TableService(store, cluster, terms=TableTerms(declared.schemas.of, declared.quality.of)).run_once()
        await declared.close()

    asyncio.run(run())


def declare(root: str, document: bytes, kind: str = SCHEMA) -> None:
    """Declare a schema of the stream, or its quality rules."""

    async def run() -> None:
        store = open_store(root)
        log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
        await log.append(lambda _: Change(kind, f"default/{STREAM}", document), Author(0, "mara", ""))

    asyncio.run(run())


def facts(root: str, stream: str = STREAM) -> dict[str, Any]:
    """Schema, properties, positions and sources of a table."""

    async def read() -> dict[str, Any]:
        store = open_store(root)
        cluster = await open_cluster(store, None)
        state = await TableLog(store, table_key("default", stream), app_ids(cluster.cluster_id, stream)).read()
        assert state is not None
        return {"columns": state.fields(), "properties": state.properties(), "transactions": state.transactions}

    return asyncio.run(read())


def rows(root: str, stream: str = STREAM) -> pa.Table:
    """All rows of a table, by shard and offset."""
    found = DeltaTable(str(Path(root, table_key("default", stream)))).to_pyarrow_table()
    return found.sort_by([("_shard", "ascending"), ("_offset", "ascending")])


def test_a_table_by_spark_is_that_of_the_hub(spark: SparkSession, hub: Hub) -> None:
    hub.write(3)
    restore = hub.backup()
    make(hub.root, spark)
    made, reported = rows(hub.root), facts(hub.root)
    restore()
    by_the_hub(hub.root)
    assert made.equals(rows(hub.root))
    assert made.num_rows == len(hub.expected())
    assert reported == facts(hub.root)


def test_rows_by_spark_are_sorted_as_an_operator_declared(spark: SparkSession, hub: Hub) -> None:
    hub.payload = lambda edge, seq: b"." * 500_000  # row groups have some megabytes, and rows of one are not sorted
    hub.write(1)
    declare(hub.root, json.dumps({"sort": ["_key"]}).encode(), "table")
    make(hub.root, spark)
    log = Path(hub.root, table_key("default", STREAM), "_delta_log")
    added = [json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_bytes().splitlines()]
    orders = {each["add"]["tags"].get("weft.sortedBy", "[]") for each in added if "add" in each}
    assert [json.loads(order)[:1] for order in orders] == [["_key"]]


def test_typed_columns_by_spark_are_those_of_the_hub(spark: SparkSession, hub: Hub) -> None:
    hub.payload = lambda edge, seq: json.dumps({"t": seq / 4, "n": seq if seq % 5 else edge}).encode()
    hub.write(1)
    restore = hub.backup()
    made: list[pa.Table] = []
    ways: list[Callable[[], None]] = [lambda: make(hub.root, spark), lambda: by_the_hub(hub.root)]
    for make_once in ways:
        make_once()
        for schema in ("t float, n int", "t string, n int"):
            declare(hub.root, encode_schema(parse_schema(schema)))
            hub.write(1)
            make_once()
        made.append(rows(hub.root))
        if len(made) == 1:
            restore()
    assert made[0].equals(made[1])
    names = ["_shard", "_offset", "t", "t_2", "n", "_schema"]
    found = table(spark, STREAM, store=hub.root).select(*names).orderBy("_shard", "_offset").toArrow()
    assert found.to_pylist() == made[0].select(names).to_pylist(), "Spark reads what delta-rs reads"
    assert [row["_schema"] for row in found.to_pylist()].count(None) == len(hub.expected()) // 3
    misfits = dict(made[0].filter(pc.field("_schema") == 1)["_misfit"].drop_null()[0].as_py())
    assert misfits == {"n": f'expected a whole number of 64 bits, got "{EDGES[0]}"'}


def test_rows_that_spark_makes_count_for_quality_rules_as_the_hubs_do(spark: SparkSession, hub: Hub) -> None:
    hub.payload = lambda edge, seq: json.dumps({"t": seq} if seq % 3 else {"n": edge}).encode()
    hub.write(1)
    make(hub.root, spark)
    before = len(hub.expected())
    rules = parse_rules(
        "quarantine: true\nrules: {hot: {range: {field: t, max: 9}}, there: {not_null: t}, fits: {fits: true}, "
        "once: {unique: [t]}}"
    )
    declare(hub.root, encode_schema(parse_schema("t float, n int")))
    declare(hub.root, quality.encode_quality(rules), quality.QUALITY)
    hub.write(2)
    restore = hub.backup()
    make(hub.root, spark)
    reported = facts(hub.root)["transactions"]
    made = rows(hub.root)
    assert table(spark, STREAM, store=hub.root).where("_failed IS NOT NULL").count() > 0, "Spark reads the marks"
    assert read(spark, STREAM, store=hub.root).count() == made.num_rows
    restore()
    by_the_hub(hub.root)
    assert reported == facts(hub.root)["transactions"]
    assert made.equals(rows(hub.root)), "with the marks"
    (prefix,) = {name.partition("quality/")[0] for name in reported if "quality/" in name}
    counts, found = QualityCounts(reported, prefix), rows(hub.root).filter(pc.field("_schema") == 1)
    assert counts.rows == found.num_rows == len(hub.expected()) - before
    values = found["t"].to_pylist()
    assert [counts.of(number_of(rule)) for rule in rules.rules.values()] == [
        Counted(len(values), sum(value is not None and value > 9 for value in values)),
        Counted(len(values), values.count(None)),
        Counted(len(values), values.count(None)),
        Counted(len(values), len(values) - values.count(None) - len({*values} - {None})),
    ]


def test_a_table_that_is_made_after_an_erasure_does_not_have_the_rows(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    offsets = [(0, [(1, 3), (4, 5)])]
    erasure = Deletion(FORMAT, 0, "mara", "", "by _key", 0, [], offsets, Erasure([]))
    asyncio.run(declare_deletion(open_store(hub.root), "default", STREAM, erasure))
    restore = hub.backup()
    make(hub.root, spark)
    made = rows(hub.root)
    restore()
    by_the_hub(hub.root)
    assert made.equals(rows(hub.root))
    assert made.num_rows == len(hub.expected()) - 3
    kept = made.filter(pc.field("_shard") == 0)["_offset"].to_pylist()
    assert kept[:3] == [0, 3, 5]


def test_one_round_makes_also_the_tables_of_a_pipeline_that_died(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)

    async def die() -> None:
        claim = Claim("spark pipeline tables", 0)
        await TableOwners(open_store(hub.root), "dead", 10.0, time.monotonic, claim=claim)._presence._beat()

    asyncio.run(die())
    make(hub.root, spark)
    assert rows(hub.root).num_rows == len(hub.expected())


# --- A pipeline ``tables`` that dies at every step: what it leaves is whole, and the hub finishes the work


BOUNDS = TableSettings(compact_files_min=2, checkpoint_versions=2, vacuum_interval_s=0.0)
"""A round writes rows, joins files, writes a checkpoint and vacuums."""
Runs = dict[int, list[Run]]


class Death(Boundaries):
    """Boundaries behind which nothing happens any more."""

    dead = False

    def crossing(self, name: str) -> bool:
        if self.dead:
            raise Crash(name)
        self.dead = self.fatal == len(self.calls)
        return super().crossing(name)


async def fill(root: Path) -> Runs:
    """A log of which a table with small files has the first part."""
    store = open_store(str(root))
    log = await LogWriter.open(store)
    runs: Runs = {0: [], 1: []}

    async def append(first: int) -> None:
        for shard, lane in ((0, LANE), (1, OTHER)):
            runs[shard].append(Run(lane, first, 3, topics=TOPICS))
            await log.append(shard, runs[shard][-1])

    for first in (0, 3):
        await append(first)
        await drain(await new_tierer(store, log))
    for first in (6, 9):
        await append(first)
    return runs


class HubAfter:
    """A hub node that looks twice: at once, and when a dead pipeline has missed its beats."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0

    async def take_over(self, runs: Runs) -> None:
        store = open_store(str(self.root))
        rows = contents(store)
        assert len(rows) == len(set(rows))
        assert set(rows) <= set(expected(runs))
        assert set(expected({shard: each[:2] for shard, each in runs.items()})) <= set(rows), "a row is gone"
        service = TableService(
            store, await open_cluster(store, None), settings=TableSettings(), monotonic=lambda: self.now
        )
        await service.owners.start(waits=False)
        if service.owners.alive > 1:
            await service.run_once()
            assert contents(store) == rows, "the pipeline still counts as alive, and the hub left the table to it"
            self.now += MISSED_MAX * KEEPER_BEAT_S + 1
            await service.owners.look()
        await service.run_once()
        await service.owners.close()
        assert contents(store) == expected(runs)


def die(root: Path, spark: SparkSession, boundaries: Boundaries) -> BaseException | None:
    """Run the pipeline once over what there is."""

    async def opened(options: Any) -> Any:
        store, cluster = await open_hub(options)
        return WatchedStore(store, boundaries), cluster

    run = tables_query.SparkWriter._run

    async def job(self: Any, *arguments: Any) -> Any:
        fatal = boundaries.crossing("job")
        result = await run(self, *arguments)
        if fatal:
            raise Crash("job")
        return result

    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        patch.setattr(tables_query, "open_hub", opened)
        patch.setattr(tables_query.SparkWriter, "_run", job)
        patch.setattr(TablesJob, "settings", lambda _: BOUNDS)
        try:
            query(str(root), spark).awaitTermination()
        except Crash as crash:
            return crash
    return None


def die_at(root: Path, spark: SparkSession, fatal: int | None, after: bool) -> list[str]:
    runs = asyncio.run(fill(root))
    boundaries = Death(fatal, after)
    crash = die(root, spark, boundaries)
    # The calls of shards run beside each other: the last ones may be one fewer than in the run that counted them.
    assert (crash is None) == (fatal is None or len(boundaries.calls) <= fatal)
    if fatal is None:
        assert contents(open_store(str(root))) == expected(runs)
        assert len(logs_table(open_store(str(root))).file_uris()) == 2
    asyncio.run(HubAfter(root).take_over(runs))
    return boundaries.calls


@pytest.mark.search
@pytest.mark.timeout(1800)
def test_dying_at_any_step_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    calls = die_at(tmp_path / "whole", spark, None, False)
    assert calls.count("job") == 2, "one that writes rows, and one that joins files"
    assert {"create", "delta.checkpoint", "delta.vacuum", "delete"} <= set(calls)
    steps = [(fatal, after) for fatal in range(len(calls)) for after in (False, True)]
    for fatal, after in SLICE.some(steps, ci=10):
        die_at(tmp_path / f"{fatal}-{after}", spark, fatal, after)


def test_dying_around_its_jobs_and_commits_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    calls = die_at(tmp_path / "whole", spark, None, False)
    jobs = [at for at, name in enumerate(calls) if name == "job"]
    commits = [calls.index("create", at) for at in jobs]
    for fatal, after in [(jobs[0], True), (commits[0], False), (commits[0], True), (jobs[1], True), (commits[1], True)]:
        die_at(tmp_path / f"{fatal}-{after}", spark, fatal, after)


class KillingStore(WatchedStore):
    """A store that kills its process before or after the first file that it writes."""

    def __init__(self, store: Any, after: bool, marker: Path) -> None:
        super().__init__(store, Boundaries())
        self._after, self._marker = after, marker

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name not in {"create", "create_from"} or self._marker.exists():
            return call

        async def killed(*arguments: Any) -> Any:
            if self._after:
                await call(*arguments)
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        return killed


@dataclass(frozen=True)
class KillingAccess(StoreAccess):
    """Access of executors that kill themselves once."""

    after: bool = False
    marker: Path = field(default=Path())

    def open(self) -> Any:
        return KillingStore(super().open(), self.after, self.marker)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rows before", "rows after", "joined before", "joined after"])
def test_an_executor_that_dies_costs_a_job_and_no_record(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    root, marker, after = tmp_path / "store", tmp_path / "killed", what.endswith("after")
    runs = asyncio.run(fill(root))
    if what.startswith("joined"):
        # Only a join is left.
        asyncio.run(_drained(root))
    monkeypatch.setattr(TablesJob, "settings", lambda _: BOUNDS)
    monkeypatch.setattr(
        tables_query, "StoreAccess", lambda uri, options, cluster: KillingAccess(uri, options, cluster, after, marker)
    )
    # Without a cluster, Spark repeats no task: the job fails, and this run or the next one makes it again.
    with contextlib.suppress(SinkError):
        query(str(root), spark).awaitTermination()
    assert marker.exists()
    assert "Python worker exited unexpectedly" in caplog.text
    query(str(root), spark).awaitTermination()
    assert contents(open_store(str(root))) == expected(runs)
    assert len(logs_table(open_store(str(root))).file_uris()) == 2


async def _drained(root: Path) -> None:
    store = open_store(str(root))
    await drain(await new_tierer(store, await LogWriter.open(store)))
