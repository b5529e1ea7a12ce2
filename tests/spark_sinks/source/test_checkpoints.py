"""Checkpoints and shards: one that was made later, one that is not there, and those that hold no selected record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from bench.log_writer import Delivery, LogWriter
from spark_sinks.errors import ReadError
from tests.spark_sinks.conftest import EDGES, SHARDS, START, STREAM, TOPIC, Hub, encoded, payload
from tests.spark_sinks.source.following import Follower, offsets
from weft.protocols.shard.placement import shard_of

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
