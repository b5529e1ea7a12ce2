"""Tables that Spark makes are those that the hub makes: the same rows, columns, positions and sources."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sinks import read, table
from spark_sinks.pipelines.catalog import located
from spark_sinks.pipelines.job import start
from spark_sinks.tables.query import TablesQuery
from tests.spark_sinks.conftest import EDGES, STREAM, Hub
from weft.config.load import parse_rules, parse_schema
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, Change, ClusterLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store
from weft.storage.presence import Claim, TableOwners
from weft.storage.table import schemas as quality
from weft.storage.table.actions import app_ids
from weft.storage.table.deletions import FORMAT, Deletion, Erasure
from weft.storage.table.deletions import declare as declare_deletion
from weft.storage.table.delta_log import TableLog
from weft.storage.table.quality import Counted, QualityCounts, number_of
from weft.storage.table.schemas import SCHEMA, FollowedDeclarations, encode_schema
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableTerms

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
