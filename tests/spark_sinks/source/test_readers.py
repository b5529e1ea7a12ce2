"""Checkpoints and shards: one that was made later, one that is not there, and those that hold no selected record."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadMaxRows

from bench.log_writer import Delivery, LogWriter
from spark_sinks.errors import ReadError
from tests.spark_sinks.conftest import EDGES, SHARDS, START, STREAM, TOPIC, Hub, encoded, payload
from tests.spark_sinks.source.following import Follower, collect, offsets
from weft.cloud_hub.stream_deletion import Deletion, delete
from weft.protocols.shard.placement import shard_of
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

pytestmark = pytest.mark.spark


def test_a_shard_made_after_the_checkpoint_begins_at_zero(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    hub.tier()
    file = Path(hub.root) / "cluster.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"shards": 2 * SHARDS}))
    edge = next(f"new-{i}" for i in range(99) if shard_of("default", f"new-{i}", 2 * SHARDS) >= SHARDS)
    writer = LogWriter(hub.root, shards=2 * SHARDS, stream=STREAM)
    writer.write(Delivery(edge, [encoded(edge, 0)], 9, [TOPIC]), received=START)
    after = Follower(hub)
    end, rest = after.batch(at)
    assert rest == sorted((edge, seq, payload(edge, seq)) for seq in range(10))
    assert set(offsets(end)) == {str(shard) for shard in range(2 * SHARDS)}
    assert {shard: end[shard] for shard in offsets(at)} == offsets(at)
    assert Follower(hub).batch(end) == (end, [])
    assert first == hub.expected()


def test_a_checkpoint_that_names_an_unknown_shard_is_refused(hub: Hub) -> None:
    hub.write()
    with pytest.raises(ReadError, match=r"names shard 7, and the store has the shards 0, 1, 2, 3\. The checkpoint bel"):
        Follower(hub).batch({**hub.heads(), "7": 1})
    with pytest.raises(ReadError, match=r"is past the end of the log"):
        Follower(hub).batch({shard: offset + 1 for shard, offset in hub.heads().items()})


def test_shards_without_a_selected_edge_take_no_part_of_the_limit(hub: Hub) -> None:
    hub.write(4)
    edge = EDGES[0]
    query = Follower(hub, edges=edge)
    at = query.reader.initialOffset()
    end, rows = query.batch(at, ReadMaxRows(20))
    own = str(shard_of("default", edge, SHARDS))
    assert end[own] == 20
    assert {shard: offset for shard, offset in offsets(end).items() if shard != own} == {
        shard: offset for shard, offset in hub.heads().items() if shard != own
    }
    assert {row[0] for row in rows} == {edge}
    _, more = query.batch(end)
    assert sorted(rows + more) == [row for row in hub.expected() if row[0] == edge]


def test_tasks_are_of_the_shards_that_hold_the_edge(hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    hub.write(2)
    query = Follower(hub, edges=EDGES[-1])
    tasks = query.reader.partitions(query.reader.initialOffset(), hub.heads())
    parts = [part for task in tasks for part in task.parts]
    assert {part.shard for part in parts} == {shard_of("default", EDGES[-1], SHARDS)}


# --- Readers that the collector has passed: they continue from the table, or say what is gone


def test_a_query_that_slept_past_the_collector_goes_on_from_the_table(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    assert first == hub.expected()
    hub.write(4)
    hub.tier()
    assert collect(hub) > 0
    hub.write(1)
    query.sleep()
    at, rest = query.batch(at)
    assert sorted(first + rest) == hub.expected()
    assert offsets(at) == hub.heads()


def test_so_does_a_query_that_was_stopped(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    hub.write(4)
    hub.tier()
    assert collect(hub) > 0
    hub.write(1)
    assert sorted(first + Follower(hub).batch(at)[1]) == hub.expected()


def test_a_task_whose_chunk_was_deleted_says_how_to_go_on(hub: Hub) -> None:
    hub.write(3)
    query = Follower(hub)
    start = query.reader.initialOffset()
    tasks = query.reader.partitions(start, hub.heads())
    hub.tier()
    assert collect(hub) > 0
    with pytest.raises(ReadError, match=r"chunk/.* was deleted .*; start the query again: it continues from the table"):
        [list(query.reader.read(task)) for task in tasks]
    query.sleep()
    assert query.rows(start, hub.heads()) == hub.expected()


def test_rows_that_the_table_has_lost_too_are_named(hub: Hub) -> None:
    hub.write(4)
    query = Follower(hub)
    start = query.reader.initialOffset()
    hub.tier()
    collect(hub)
    table = Path(hub.root) / table_key("default", "telemetry")
    DeltaTable(table).delete("_offset < 15")
    with pytest.raises(ReadError) as caught:
        Follower(hub).batch(start)
    said = str(caught.value)
    assert re.search(r"offsets 0 to 15 of shard \d were removed from the table, and from the log before", said)
    assert 'set .option("fail_on_data_loss", "false"), or start from offset 15' in said
    _, rest = Follower(hub, fail_on_data_loss=False).batch(start)
    fresh = Follower(hub)
    _, present = fresh.batch(fresh.reader.initialOffset())
    assert rest == present, "a query that begins now begins with what there is"
    assert set(rest) < set(hub.expected())


def test_a_table_that_was_moved_away_is_no_empty_stream(hub: Hub) -> None:
    hub.write(4)
    hub.tier()
    collect(hub)
    table = Path(hub.root) / table_key("default", "telemetry")
    table.rename(table.with_name("moved"))
    query = Follower(hub)
    with pytest.raises(ReadError, match=r"offsets 0 to \d+ of shard \d are neither in the log nor in the table"):
        query.batch(query.reader.initialOffset())
    skipping = Follower(hub, fail_on_data_loss=False)
    at, rows = skipping.batch(skipping.reader.initialOffset())
    assert offsets(at) == hub.heads()
    assert set(rows) < set(hub.expected())


def test_a_stream_without_a_table_of_all_rows_has_only_what_the_log_has(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    assert first == hub.expected()
    hub.write(2)
    hub.latest(instead=True)
    assert collect(hub) > 0
    with pytest.raises(ReadError, match="left the log, and the stream has a latest table instead of a table of all"):
        Follower(hub).batch(at)
    skipping = Follower(hub, fail_on_data_loss=False)
    at, rows = skipping.batch(at)
    assert offsets(at) == hub.heads()
    assert set(rows) < set(hub.expected()) - set(first)


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_is_not_mounted_has_lost_nothing(hub: Hub, fails: bool) -> None:
    hub.write(2)
    query = Follower(hub, fail_on_data_loss=fails)
    start = query.reader.initialOffset()
    end = hub.heads()
    for recent in query.reader._opened()._recent.values():
        recent.clear()  # As in a query that is more chunks behind than it remembers.
    root = Path(hub.root)
    away = root.rename(root.with_name("away"))
    with pytest.raises(ReadError, match=r"the store holds no hub"):
        query.reader.partitions(start, end)
    away.rename(root)
    assert query.rows(start, end) == hub.expected()


# --- Readers of a stream that an operator deleted: a clear error, and no gap when it begins again


def delete_stream(hub: Hub) -> None:
    wanted = Deletion(("default", "telemetry"), "mara", "trial is over", keeps_tables=True, is_forced=True)

    async def work() -> None:
        store = open_store(hub.root)
        bits = random.Random(1).getrandbits
        cluster = await open_cluster(store, None)
        assert (await delete(store, cluster, wanted, wall_clock=lambda: 1 << 61, random_bits=bits)).shards
        for shard in range(cluster.shards):
            await ShardLog(store, cluster, shard).extend(hub._writer._states[shard])

    asyncio.run(work())


def test_a_running_query_and_a_new_one_are_told_and_a_later_one_goes_on(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    hub.write(2)
    hub.tier()
    delete_stream(hub)
    said = r"stream 'telemetry' of tenant 'default' was deleted at .*: trial is over\. Its table stays, at .*telemetry"
    with pytest.raises(ReadError, match=said):
        query.batch(at)
    with pytest.raises(ReadError, match=said):
        Follower(hub).batch(at)
    hub.write(2)
    assert sorted(first + Follower(hub).batch(at)[1]) == hub.expected()
