"""Tables that Spark makes are those that the hub makes: the same rows, columns, positions and sources."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sinks.pipelines.catalog import located
from spark_sinks.pipelines.job import start
from spark_sinks.tables.query import TablesQuery
from tests.spark_sinks.conftest import STREAM, Hub
from weft.storage.chunk_log import table_key
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.presence.keepers import Claim, Keepers
from weft.storage.table.delta.log import TableLog
from weft.storage.table.names import app_ids
from weft.storage.table_maker.service import TableService

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
        await TableService(store, await open_cluster(store, None)).run_once()

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
    made, told = rows(hub.root), facts(hub.root)
    restore()
    by_the_hub(hub.root)
    assert made.equals(rows(hub.root))
    assert made.num_rows == len(hub.expected())
    assert told == facts(hub.root)


def test_one_round_makes_also_the_tables_of_a_pipeline_that_died(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)

    async def die() -> None:
        claim = Claim("spark pipeline tables", 0)
        await Keepers(open_store(hub.root), "dead", 10.0, time.monotonic, claim=claim)._beat()

    asyncio.run(die())
    make(hub.root, spark)
    assert rows(hub.root).num_rows == len(hub.expected())
